"""A source -> a model: an architecture and its frozen base, whatever the files are."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from components.errors import WeightsError
from components.model import huggingface
from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.gguf import open_gguf
from components.model.lockstep import program
from components.model.packages import package_file
from components.model.placement import HERE, Placement
from components.model.quantise import Kind

__all__ = ["Model", "load", "locate", "random_base"]


@dataclass(frozen=True)
class Model:
    """What a source holds. `tokenizer_source` is the file or folder that also holds its tokenizer, if it does."""

    architecture: Architecture
    base: Base
    tokenizer_source: Path | None


jax.tree_util.register_dataclass(Model, data_fields=["base"], meta_fields=["architecture", "tokenizer_source"])


def locate(source: str) -> Path:
    """The path that a source means: `package:NAME` is the GGUF file inside the installed package NAME.

    Raises WeightsError where nothing is there.
    """
    kind, _, package = source.partition(":")
    path = package_file(package) if kind == "package" else Path(source)
    if not path.exists():
        raise WeightsError(f"there is no file or folder {source}; give a Hugging Face folder, a .gguf or package:NAME")
    return path


@program
def load(source: str, *, dtype: DTypeLike = jnp.float32, quantise: Kind = "none", placement: Placement = HERE) -> Model:
    """Read a Hugging Face folder (config.json, *.safetensors), a `.gguf` file, or `package:NAME`.

    The linear weights and the embedding are cast to `dtype`, or stored as `quantise` says and multiplied in `dtype`;
    norms and biases stay float32. Each tensor goes from its file to the devices of `placement`, to each its part,
    before the next is read, so at most one is held twice. Raises WeightsError that names what is unknown, missing,
    unexpected, doubled or misshapen.
    """
    path = locate(source)
    if path.is_dir():
        config, tensors = huggingface.read_config(path), huggingface.open_folder(path)
        tokenizer = path if any(path.glob("tokenizer*")) else None
    elif path.suffix == ".gguf":
        (config, tensors), tokenizer = open_gguf(path), path
    else:
        raise WeightsError(f"{source} is neither a folder nor a .gguf file")
    architecture = Architecture.from_huggingface(config)
    base = huggingface.assemble(
        architecture, tensors, dtype=dtype, where=source, quantise=quantise, placement=placement
    )
    return Model(architecture=architecture, base=base, tokenizer_source=tokenizer)
