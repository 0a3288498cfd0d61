"""A trained adapter and its base -> a PEFT directory, a merged checkpoint, and the proof that both load elsewhere."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jax.numpy as jnp
from pydantic import Field

from components.config import config, from_json
from components.export.card import write_card
from components.export.merged import write_merged
from components.export.proof import prove
from components.model import platform, weights
from components.model.base_artifact import BaseArtifact, read_base
from components.model.lora import merge
from components.model.peft import load_adapter, read_config, save_adapter
from components.model.quantise import dense_tree
from components.rollout.prepare import read_tasks
from components.rollout.tokenizer import load_tokenizer
from components.telemetry.run_files import read_run, update_summary


@config
class ExportConfig:
    """`dtype` is that of the merged checkpoint; `canaries` is the number of test tasks whose prompts prove the export.

    The proof compares `proof_tokens` greedy tokens of each, and its log differences must stay below `tolerance`.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    max_shard_bytes: Annotated[int, Field(ge=1)] = 2_000_000_000
    canaries: Annotated[int, Field(ge=1)] = 3
    proof_tokens: Annotated[int, Field(ge=1)] = 8
    tolerance: Annotated[float, Field(gt=0)] = 1e-3


def export(
    *, section: str, run_folder: str, tasks: str, base: str, trained: str, adapter: str, merged: str
) -> dict[str, Any]:
    """Write both forms and prove them; gives the proof, which the run's summary keeps too.

    Raises ProofError when what was written does not give the numbers of what was trained.
    """
    settings = from_json(ExportConfig, section, where="export")
    platform.use_compilation_cache()
    artifact = read_base(Path(base))
    # float32 whatever the run used: the weights are summed in it, and the proof compares in it. A quantised base is
    # written as the numbers that it stands for, as those are what the adapter was trained on.
    model = weights.load(artifact.source, dtype=jnp.float32, quantise=artifact.quantise)
    model = replace(model, base=dense_tree(model.base))
    tokenizer = load_tokenizer(weights.locate(artifact.source))
    policy = load_adapter(Path(trained), model.architecture)
    lora = read_config(Path(trained))
    save_adapter(Path(adapter), policy, lora, base_name=artifact.source)
    write_merged(
        Path(merged),
        model.architecture,
        merge(model.base, policy),
        tokenizer,
        dtype=settings.dtype,
        max_shard_bytes=settings.max_shard_bytes,
    )
    prompts = [tokenizer.encode(task.prompt) for task in read_tasks(tasks, "test")[: settings.canaries]]
    proof = prove(
        model.architecture,
        model.base,
        policy,
        Path(adapter),
        Path(merged),
        prompts,
        new_tokens=settings.proof_tokens,
        tolerance=settings.tolerance,
        merged_dtype=settings.dtype,
    )
    summary = read_run(run_folder).summary
    card = partial(write_card, base=_name(artifact), lora=lora, scores=summary, proof=proof)
    card(Path(adapter), "adapter")
    card(Path(merged), "merged")
    update_summary(run_folder, {"proofs": {**summary.get("proofs", {}), "export": proof}})
    return proof


def _name(artifact: BaseArtifact) -> str:
    quantised = "" if artifact.quantise == "none" else f", quantised to {artifact.quantise}"
    return f"{artifact.source} (fingerprint {artifact.fingerprint}{quantised})"
