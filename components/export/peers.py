"""Exported directories -> logits by transformers and peft. Needs torch; imported only where it is installed."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from jaxtyping import Float

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.huggingface import huggingface_config, to_huggingface_tensors

# Their bars and advice are for who trains with them.
transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()

Reader = Callable[[Sequence[int]], Float[np.ndarray, "time vocab"]]


def merged_reader(folder: Path) -> Reader:
    """The merged checkpoint, as a user of transformers loads it."""
    with _quiet():
        return _reader(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))


def adapter_reader(architecture: Architecture, base: Base, folder: Path) -> Reader:
    """The PEFT directory on the base that the run had, which is handed to transformers in memory."""
    model_type = architecture.family
    settings = {key: value for key, value in huggingface_config(architecture).items() if key != "model_type"}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(model_type, **settings))
    tensors = to_huggingface_tensors(architecture, base)
    model.load_state_dict({name: torch.from_numpy(np.array(each)) for name, each in tensors.items()}, strict=False)
    with _quiet():
        return _reader(peft.PeftModel.from_pretrained(model.float(), folder))


@contextmanager
def _quiet() -> Iterator[None]:
    """What the two libraries deprecate in each other is not the user's business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _reader(model: torch.nn.Module) -> Reader:
    model.eval()

    def read(text: Sequence[int]) -> Float[np.ndarray, "time vocab"]:
        with torch.no_grad():
            scores: torch.Tensor = model(torch.tensor([list(text)])).logits
        return scores[0].float().numpy()

    return read
