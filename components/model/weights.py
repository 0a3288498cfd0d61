"""A source -> a model: an architecture and its frozen base, whatever the files are."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from components.model import huggingface
from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.lockstep import program
from components.model.placement import HERE, Placement
from components.model.quantise import Kind
from components.model.source import open_source

__all__ = ["Model", "load", "random_base"]


@dataclass(frozen=True)
class Model:
    """What a source holds. `tokenizer_source` is the file or folder that also holds its tokenizer, if it does."""

    architecture: Architecture
    base: Base
    tokenizer_source: Path | None


jax.tree_util.register_dataclass(Model, data_fields=["base"], meta_fields=["architecture", "tokenizer_source"])


@program
def load(source: str, *, dtype: DTypeLike = jnp.float32, quantise: Kind = "none", placement: Placement = HERE) -> Model:
    """Read a Hugging Face folder (config.json, *.safetensors), a `.gguf` file, or `package:NAME`.

    The linear weights and the embedding are cast to `dtype`, or stored as `quantise` says and multiplied in `dtype`;
    norms and biases stay float32. Each tensor goes from its file to the devices of `placement`, to each its part,
    before the next is read, so at most one is held twice. Raises WeightsError that names what is unknown, missing,
    unexpected, doubled or misshapen.
    """
    opened = open_source(source)
    base = huggingface.assemble(
        opened.architecture, opened.tensors, dtype=dtype, where=source, quantise=quantise, placement=placement
    )
    holds_tokenizer = opened.path.is_file() or any(opened.path.glob("tokenizer*"))
    return Model(opened.architecture, base, tokenizer_source=opened.path if holds_tokenizer else None)
