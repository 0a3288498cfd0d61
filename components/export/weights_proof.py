"""A merged checkpoint and what it was made of -> that each of its numbers is the right one, or an error.

Read from the disk again, tensor by tensor. What no canary prompt would ever touch (an expert, a rare token's row) is
held against its source, too.
"""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Float

from components.errors import ProofError
from components.model.huggingface import open_folder
from components.model.layout import stored_shapes
from components.model.lora import LoraPair, named_pairs
from components.model.peft import load_adapter
from components.model.source import Source

_FLOAT32 = 2.0**-24


def prove_weights(source: Source, adapter_folder: Path, merged_folder: Path, dtype: str) -> dict[str, Any]:
    """Numbers of tensors, and how far the worst number is from `base + scale * B @ A`, which is computed in float64.

    A tensor that the adapter does not change must be the source's, rounded to `dtype`; one that it does, the sum in
    float32, rounded once: a sum that was rounded on the way is further off. Raises ProofError naming the tensor.
    """
    kind = np.dtype(dtype)
    pairs = {
        f"{name}.weight": pair for name, pair in named_pairs(load_adapter(adapter_folder, source.architecture)).items()
    }
    stored, names = open_folder(merged_folder), stored_shapes(source.architecture)
    if stored.keys() != names.keys():
        wrong = sorted(stored.keys() ^ names.keys())
        raise ProofError(f"{merged_folder} holds other tensors than the base: {wrong[0]} and {len(wrong) - 1} more")
    worst = 0.0
    for name in names:
        found = stored[name]()
        if found.dtype != kind:
            raise ProofError(f"{merged_folder}: {name} is {found.dtype}, not {kind}")
        if name in pairs:
            worst = max(worst, _largest_error(name, found, source.tensors[name](), pairs[name]))
        elif not np.array_equal(found, source.tensors[name]().astype(kind, copy=False)):
            raise ProofError(f"{merged_folder}: {name} is not that of the base, and the adapter does not change it")
    return {"tensors": len(names), "changed": len(pairs), "largest_error": worst}


def _largest_error(name: str, found: np.ndarray, base: np.ndarray, pair: LoraPair) -> float:
    """Raises ProofError for a number that is further off than rounding the sum of float32 once explains."""
    a, b = np.asarray(pair.a, np.float64), np.asarray(pair.b, np.float64)
    exact = base.astype(np.float64) + pair.scale * (a @ b).T
    if found.shape != exact.shape:
        raise ProofError(f"{name} of the merged checkpoint has shape {found.shape}, not {exact.shape}")
    error = np.abs(found.astype(np.float64) - exact)
    # No term of a sum of products is larger than the norms of its row and column say.
    largest = np.abs(base).max() + abs(pair.scale) * np.linalg.norm(a, axis=1).max() * np.linalg.norm(b, axis=0).max()
    allowed = _half_step(exact, found.dtype) + float(largest) * (a.shape[1] + 4) * _FLOAT32
    if not np.all(error <= allowed):
        row, column = np.unravel_index(np.argmax(error - allowed), error.shape)
        raise ProofError(
            f"{name} of the merged checkpoint is not base + scale * B @ A, summed in float32 and rounded once to "
            f"{found.dtype}: row {row}, column {column} is off by {error[row, column]:.3g}, and "
            f"{allowed[row, column]:.3g} is what rounding explains"
        )
    return float(error.max())


def _half_step(exact: Float[np.ndarray, "rows columns"], dtype: np.dtype[Any]) -> Float[np.ndarray, "rows columns"]:
    """Half of the distance between neighbouring numbers of `dtype`."""
    _, exponents = np.frexp(exact)
    return float(ml_dtypes.finfo(dtype).eps) / 2 * np.exp2(exponents - 1.0)
