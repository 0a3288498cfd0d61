"""A base's tensors and an adapter -> the tensors of a merged checkpoint, one at a time."""

from functools import partial
from typing import Any

import numpy as np

from components.model.huggingface import Tensors
from components.model.layout import stored_shapes
from components.model.lora import Adapter, LoraPair, delta, named_pairs
from components.model.source import Source


def merged_tensors(source: Source, adapter: Adapter) -> Tensors:
    """What the adapter changes is read, summed in float32 and given; the rest is read as it is stored.

    The source's own numbers are taken whatever the run held of them: what was quantised for training is merged into
    what it was made of.
    """
    pairs = {f"{name}.weight": pair for name, pair in named_pairs(adapter).items()}
    names = stored_shapes(source.architecture)
    changed = {name: partial(_sum, source.tensors[name], pair) for name, pair in pairs.items()}
    return {name: changed.get(name, source.tensors[name]) for name in names}


def _sum(read: Any, pair: LoraPair) -> np.ndarray:
    weight: np.ndarray = read().astype(np.float32)
    # In the [out, in] layout of a checkpoint.
    weight += delta(pair).T
    return weight
