"""A base as it travels between steps: a folder with `base.json`, which says where its weights and its tokenizer lie.

For weights that lie elsewhere (a Hugging Face folder, a GGUF file, `package:NAME`) the folder holds that one small
file, so that nothing is copied; its fingerprint tells when the weights have gone or changed since. A base that was made
in the run lies in the folder itself, as `config.json`, safetensors and a tokenizer.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from components.errors import WeightsError
from components.model.quantise import Kind
from components.model.source import locate

BASE_FILE = "base.json"
HERE = "."
"""The source of a base that lies in the artifact's own folder."""


@dataclass(frozen=True, slots=True)
class BaseArtifact:
    """`source`, `dtype` and `quantise` are what `weights.load` takes; the tokenizer lies in the same source."""

    source: str
    dtype: str
    fingerprint: str
    size_bytes: int
    quantise: Kind = "none"


def write_base(folder: Path, source: str, *, dtype: str, quantise: Kind = "none") -> BaseArtifact:
    """Point to `source`, or to what already lies in the folder when it is `HERE`. Raises WeightsError if nothing is."""
    folder.mkdir(parents=True, exist_ok=True)
    files = _files(folder if source == HERE else locate(source))
    size = sum(file.stat().st_size for file in files)
    artifact = BaseArtifact(source, dtype, _fingerprint(files), size, quantise)
    (folder / BASE_FILE).write_text(json.dumps(asdict(artifact), indent=2) + "\n")
    return artifact


def read_base(folder: Path) -> BaseArtifact:
    """The base that the folder stands for, its source made absolute where it is the folder.

    Raises WeightsError when the artifact is empty, or when the weights are not those that the run started with.
    """
    path = folder / BASE_FILE
    if not path.is_file():
        raise WeightsError(f"{folder} holds no {BASE_FILE}: the output of init_model is gone; run that step again")
    artifact = BaseArtifact(**json.loads(path.read_text()))
    source = str(folder) if artifact.source == HERE else artifact.source
    try:
        found = _fingerprint(_files(locate(source)))
    except WeightsError as error:
        what = f"the base that this run started from (fingerprint {artifact.fingerprint})"
        raise WeightsError(f"{what} is no longer where it was: {error}") from None
    if found != artifact.fingerprint:
        raise WeightsError(
            f"the weights at {source} are not those that init_model saw (fingerprint {found}, then "
            f"{artifact.fingerprint}); put them back, or start a new run"
        )
    return replace(artifact, source=source)


def _files(path: Path) -> list[Path]:
    """The files that make the model, by name; what else lies in the folder does not bear on it."""
    if path.is_file():
        return [path]
    kinds = ("*.safetensors", "*.json", "*.gguf")
    files = sorted({file for kind in kinds for file in path.glob(kind) if file.name != BASE_FILE})
    if not files:
        raise WeightsError(f"{path} holds no weights (*.safetensors, *.gguf)")
    return files


def _fingerprint(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:16]
