"""What the steps before export leave behind, made in a moment: a base, a trained adapter, tasks, a run's folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from components.config import dump
from components.export.proof import Exported
from components.export.run import ExportConfig, export
from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.base_artifact import HERE, read_base, write_base
from components.model.checkpoint_folder import write_checkpoint
from components.model.lora import Adapter, LoraConfig, init_adapter
from components.model.peft import save_adapter
from components.model.quantise import Kind
from components.rollout.tokenizer import CharacterTokenizer
from components.telemetry.run_files import update_summary

ALPHABET = "0123456789+-="
PADDED_VOCABULARY = 24
"""More rows than the 14 tokens that the tokenizer knows."""

LLAMA = {
    "model_type": "llama",
    "vocab_size": PADDED_VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
    "eos_token_id": 0,
}
LORA = LoraConfig(rank=4, alpha=8.0, rslora=True)


@dataclass(frozen=True)
class Run:
    """The folders that export reads and writes."""

    folder: Path
    architecture: Architecture

    def export(self, **settings: object) -> dict[str, Any]:
        names = {"run_folder": "run", "tasks": "tasks", "base": "base", "trained": "trained"}
        places = {key: str(self.folder / name) for key, name in {**names, "adapter": "adapter"}.items()}
        section = json.dumps({**dump(ExportConfig()), **settings})
        return export(section=section, merged=str(self.merged), **places)

    @property
    def adapter(self) -> Path:
        return self.folder / "adapter"

    @property
    def merged(self) -> Path:
        return self.folder / "merged"

    @property
    def exported(self) -> Exported:
        return Exported(read_base(self.folder / "base"), self.folder / "trained", self.adapter, self.merged)


def make_run(
    folder: Path,
    config: dict[str, Any] = LLAMA,
    lora: LoraConfig = LORA,
    *,
    dtype: str = "float32",
    quantise: Kind = "none",
) -> Run:
    """A run whose base lies in its own folder, with a tokenizer of 14 characters."""
    architecture = Architecture.from_huggingface(config)
    write_checkpoint(folder / "base", architecture, uneven_base(architecture), dtype="float32")
    CharacterTokenizer(ALPHABET).save(folder / "base")
    write_base(folder / "base", HERE, dtype=dtype, quantise=quantise)
    save_adapter(folder / "trained", trained_adapter(architecture, lora), lora, base_name="base")
    (folder / "tasks").mkdir()
    lines = [json.dumps({"id": str(i), "prompt": f"{i}+{i}="}) for i in range(4)]
    (folder / "tasks" / "test.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "run").mkdir()
    update_summary(str(folder / "run"), {"accuracy_after": 0.875, "proofs": {"sync": 1}})
    return Run(folder, architecture)


def uneven_base(architecture: Architecture) -> Base:
    """Random weights in which no norm and no bias stands at its trivial start."""
    shapes = jax.eval_shape(lambda: random_base(jax.random.key(0), architecture))
    draw = np.random.default_rng(0).standard_normal

    def leaf(like: jax.ShapeDtypeStruct) -> jax.Array:
        spread, middle = (0.2, 1.0) if len(like.shape) == 1 else (like.shape[-2] ** -0.5, 0.0)
        return jnp.asarray(middle + spread * draw(like.shape, np.float32))

    return jax.tree.map(leaf, shapes)


def trained_adapter(architecture: Architecture, config: LoraConfig = LORA) -> Adapter:
    """An adapter whose B is not zero any more."""
    start = jax.eval_shape(lambda: init_adapter(jax.random.key(0), architecture, config))
    draw = np.random.default_rng(1).standard_normal
    return jax.tree.map(lambda like: jnp.asarray(0.2 * draw(like.shape, np.float32)), start)
