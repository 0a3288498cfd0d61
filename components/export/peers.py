"""Exported directories -> logits by transformers and peft. Needs torch; imported only where it is installed."""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import peft
import torch
import transformers
from jaxtyping import Float
from numpy import ndarray

from components.model.checkpoint_folder import write_tensors
from components.model.huggingface import read_config
from components.model.source import Source

# Their bars and advice are for who trains with them.
transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()

Reader = Callable[[Sequence[int]], Float[ndarray, "positions vocab"]]


def merged_reader(folder: Path, last: int) -> Reader:
    """The merged checkpoint, as a user of transformers loads it; logits of the last `last` positions."""
    with _quiet():
        return _reader(_load(folder), last)


def adapter_reader(source: Source, folder: Path, last: int) -> Reader:
    """The PEFT directory on its base; logits of the last `last` positions.

    A base that transformers does not read as it is (a GGUF file, the text model inside a multimodal checkpoint) is
    written out beside `folder` for the time that it is loaded.
    """
    architecture = source.architecture
    with _quiet():
        if source.path.is_dir() and read_config(source.path)["model_type"] == architecture.family:
            base = _load(source.path)
        else:
            with tempfile.TemporaryDirectory(prefix="base.", dir=folder.parent) as plain:
                write_tensors(Path(plain), architecture, source.tensors, dtype="float32")
                base = _load(Path(plain))
        return _reader(peft.PeftModel.from_pretrained(base, folder), last)


def encode(folder: Path, text: str) -> list[int]:
    """The ids of a plain text by the tokenizer that transformers finds in the folder."""
    with _quiet():
        ids: list[int] = transformers.AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)
    return ids


@contextmanager
def _quiet() -> Iterator[None]:
    """What the two libraries deprecate in each other is not the user's business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _load(folder: Path) -> torch.nn.Module:
    # "eager" is the one kind of attention that has every switch, such as Gemma 2's soft caps.
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model


def _reader(model: torch.nn.Module, last: int) -> Reader:
    model.eval()

    def read(text: Sequence[int]) -> Float[ndarray, "positions vocab"]:
        with torch.no_grad():
            scores: torch.Tensor = model(torch.tensor([list(text)])).logits
        return scores[0, -last:].float().numpy()

    return read
