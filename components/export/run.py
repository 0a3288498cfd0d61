"""A trained adapter and its base -> a PEFT directory, a merged checkpoint, and the proof that both load elsewhere."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from components import storage
from components.config import config, from_json
from components.engine.sampling import SamplingConfig
from components.errors import ConfigError, DataError, Problem, ProofError
from components.export.card import CARD, Manifest, write_card
from components.export.merged import merged_tensors
from components.export.proof import PEERS, Exported, in_words, prove
from components.export.serving import generation_config, write_tokenizer
from components.model import platform
from components.model.base_artifact import read_base
from components.model.checkpoint_folder import MAX_SHARD_BYTES, write_json, write_tensors
from components.model.peft import CONFIG_FILE, load_adapter, read_config, save_adapter
from components.model.placement import MeshConfig, make_placements
from components.model.source import Source, open_source
from components.rollout.prepare import read_tasks
from components.rollout.renderer import make_renderer
from components.rollout.tokenizer import Tokenizer, load_tokenizer
from components.telemetry.failure import notes_failure
from components.telemetry.outlets.mlflow import EXPERIMENT, keep_files
from components.telemetry.progress import say
from components.telemetry.run_files import read_run, update_summary

PROOF_FILE = "proof.json"
MANIFEST_FILE = "manifest.json"
"""What the run is made of, which its first step writes into the run's folder."""
LONGEST_PROMPT = 256
"""Tokens of a canary prompt that are read; enough to reach every weight, and quick on any machine."""


@config
class ExportConfig:
    """`dtype` is that of the merged checkpoint; `canaries` is the number of test tasks whose prompts prove the export.

    The proof compares `proof_tokens` greedy tokens of each, and its logit differences must stay below `tolerance`.
    `sampling` is what the generation config tells engines to do; without it, what the base's own says. `mesh` splits
    the models that prove it, which are in float32, over several devices.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    max_shard_bytes: Annotated[int, Field(ge=1)] = MAX_SHARD_BYTES
    sampling: SamplingConfig | None = None
    canaries: Annotated[int, Field(ge=1)] = 3
    proof_tokens: Annotated[int, Field(ge=1)] = 8
    tolerance: Annotated[float, Field(gt=0)] = 1e-3
    mesh: MeshConfig | None = None

    def __post_init__(self) -> None:
        if self.sampling is not None and self.sampling.stop_strings:
            message = "not every engine reads texts that end a turn from a generation config; leave them out"
            raise ConfigError(Problem("export.sampling.stop_strings", self.sampling.stop_strings, message))


@notes_failure("export")
def export(
    *, section: str, run_folder: str, tasks: str, base: str, trained: str, adapter: str, merged: str
) -> dict[str, Any]:
    """Write both forms and prove them; gives the proof, which the run's summary keeps too.

    Raises ProofError when what was written does not give the numbers of what was trained, WeightsError when the base
    that the run started from is no longer where it was.
    """
    settings = from_json(ExportConfig, section, where="export")
    platform.use_compilation_cache()
    exported = Exported(
        base=read_base(Path(base)),
        trained=Path(trained),
        adapter=Path(adapter),
        merged=Path(merged),
        dtype=settings.dtype,
        placement=make_placements(settings.mesh).trainer,
    )
    source = open_source(exported.base.source)
    tokenizer = load_tokenizer(source.path)
    texts = [task.prompt for task in read_tasks(tasks, "test")[: settings.canaries]]
    prompts = _prompts(texts, tokenizer, tasks)
    record = _record(run_folder)
    _write(exported, source, tokenizer, settings, record)
    say(f"export: written to {adapter} and {merged}; now both are read back")
    proof = {
        **prove(exported, source, prompts, new_tokens=settings.proof_tokens, tolerance=settings.tolerance),
        "tokenizer": _prove_tokenizer(exported.merged, tokenizer, texts),
    }
    say(f"export: {in_words(proof)}")
    _describe(exported, proof, run_folder, record)
    small = [str(exported.adapter / name) for name in (CARD, CONFIG_FILE, PROOF_FILE)]
    settings_of_run = (record.get("exact", {}).get("train") or {}).get("telemetry", {})
    keep_files(run_folder, {"adapter": small}, experiment=settings_of_run.get("mlflow_experiment", EXPERIMENT))
    return proof


def _write(
    exported: Exported, source: Source, tokenizer: Tokenizer, settings: ExportConfig, record: Mapping[str, Any]
) -> None:
    """Both directories, but for what is said of them."""
    policy = load_adapter(exported.trained, source.architecture)
    save_adapter(exported.adapter, policy, read_config(exported.trained), base_name=exported.base.source)
    renderer = record.get("exact", {}).get("environment", {}).get("renderer")
    stops = () if renderer is None else make_renderer(renderer, tokenizer).stop_ids
    write_tokenizer(exported.merged, source.path, source.architecture, tokenizer)
    write_tensors(
        exported.merged,
        source.architecture,
        merged_tensors(source, policy),
        dtype=settings.dtype,
        max_shard_bytes=settings.max_shard_bytes,
        generation=generation_config(source.path, source.architecture, stops=stops, sampling=settings.sampling),
    )


def _describe(exported: Exported, proof: Mapping[str, Any], run_folder: str, record: Mapping[str, Any]) -> None:
    """The proof and a card beside the weights, and the proof among those of the run."""
    run = read_run(run_folder)
    manifest = Manifest(exported.base, read_config(exported.trained), proof, record, run)
    for kind, folder in (("adapter", exported.adapter), ("merged", exported.merged)):
        write_json(folder / PROOF_FILE, proof)
        write_card(folder, "adapter" if kind == "adapter" else "merged", manifest)
    update_summary(run_folder, {"proofs": {**run.summary.get("proofs", {}), "export": dict(proof)}})


def _prompts(texts: Sequence[str], tokenizer: Tokenizer, where: str) -> list[list[int]]:
    opening = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    prompts = [(opening + tokenizer.encode(text))[:LONGEST_PROMPT] for text in texts]
    if not any(prompts):
        raise DataError(Problem("export", where, "there is no test task with a prompt that could prove the export"))
    return [prompt for prompt in prompts if prompt]


def _prove_tokenizer(folder: Path, tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, bool]:
    """Whether the tokenizer that was written gives the ids that the run saw. Raises ProofError where ours does not."""
    again = load_tokenizer(folder)
    ids = [tokenizer.encode(text) for text in texts]
    if [again.encode(text) for text in texts] != ids:
        raise ProofError(f"the tokenizer in {folder} gives other ids for a canary prompt than the run's own")
    found = {"own": True}
    if (folder / "tokenizer.json").is_file() and all(importlib.util.find_spec(peer) for peer in PEERS):
        from components.export import peers

        found["transformers"] = [peers.encode(folder, text) for text in texts] == ids
        if not found["transformers"]:
            say(f"export: WARNING: transformers reads the tokenizer in {folder} as another one than the run's")
    return found


def _record(run_folder: str) -> dict[str, Any]:
    """The run's manifest; empty where it has none."""
    try:
        record: dict[str, Any] = json.loads(storage.read_text(storage.join(run_folder, MANIFEST_FILE)))
    except FileNotFoundError:
        return {}
    return record
