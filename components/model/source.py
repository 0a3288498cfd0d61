"""A source -> its architecture and its tensors, each of which is read when it is asked for; no array is made."""

from dataclasses import dataclass
from pathlib import Path

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.gguf import open_gguf
from components.model.huggingface import open_folder, read_config
from components.model.packages import package_file
from components.model.stored import StoredTensors


@dataclass(frozen=True)
class Source:
    """What lies at `path`, in the names and layouts of Hugging Face."""

    path: Path
    architecture: Architecture
    tensors: StoredTensors


def locate(source: str) -> Path:
    """The path that a source means: `package:NAME` is the GGUF file inside the installed package NAME.

    Raises WeightsError where nothing is there.
    """
    kind, _, package = source.partition(":")
    path = package_file(package) if kind == "package" else Path(source)
    if not path.exists():
        raise WeightsError(f"there is no file or folder {source}; give a Hugging Face folder, a .gguf or package:NAME")
    return path


def open_source(source: str) -> Source:
    """Open what `weights.load` would load. Raises WeightsError where nothing is there or it cannot be read."""
    path = locate(source)
    if path.is_dir():
        config, tensors = read_config(path), open_folder(path)
    elif path.suffix == ".gguf":
        config, tensors = open_gguf(path)
    else:
        raise WeightsError(f"{source} is neither a folder nor a .gguf file")
    return Source(path, Architecture.from_huggingface(config), tensors)
