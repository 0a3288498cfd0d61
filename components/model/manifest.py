"""An adapter -> what tells it from every other one, and the first difference between two of them, in words.

The side that trains and the side that serves each make a manifest of the arrays that they hold; nothing else has to be
carried back to know whether the right adapter has arrived.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from components.model.lockstep import on_host
from components.model.lora import Adapter, LoraPair, delta_norm, named_pairs

Matrix = Float[Array | np.ndarray, "rows columns"]


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """One bound module. Hashes are of dtype and row-major bytes.

    `delta_norm`, the Frobenius norm of scale * A @ B, follows from the rest up to rounding and is not compared.
    """

    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    scale: float
    a_hash: str
    b_hash: str
    delta_norm: float = field(compare=False, repr=False)

    @property
    def hashes(self) -> tuple[str, str]:
        """Of A and of B."""
        return self.a_hash, self.b_hash


@dataclass(frozen=True, slots=True)
class Manifest:
    """Facts by the modules' Hugging Face names, in order of layers."""

    modules: Mapping[str, ModuleFacts]

    @property
    def delta_norm(self) -> float:
        """Frobenius norm of scale * A @ B over all modules."""
        return float(np.sqrt(sum(facts.delta_norm**2 for facts in self.modules.values())))

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that name modules, shapes, scales and every bit of the numbers."""
        return _digest(repr(sorted(self.modules.items())).encode())


@dataclass(frozen=True, slots=True)
class Held:
    """An adapter as it lies on an engine's devices, and the manifest that the engine's side has made of it."""

    adapter: Adapter
    manifest: Manifest


def make_manifest(adapter: Adapter) -> Manifest:
    """Reads the arrays once, on the host; 20 MB take about 30 ms."""
    return Manifest({name: _facts(pair) for name, pair in named_pairs(on_host(adapter)).items()})


def find_difference(adapter: Adapter, wanted: Manifest, held: Manifest, earlier: Mapping[int, Manifest]) -> str | None:
    """How what an engine holds differs from `adapter`, whose manifest is `wanted`; None where it does not.

    Names the first module that differs and how: missing, unexpected, of one of the `earlier` versions, transposed,
    another shape, another scale, other numbers.
    """
    counts = f"the engine holds {len(held.modules)} modules, the trainer {len(wanted.modules)}"
    if missing := [name for name in wanted.modules if name not in held.modules]:
        return f"missing module {missing[0]}: {counts}"
    if extra := [name for name in held.modules if name not in wanted.modules]:
        return f"unexpected module {extra[0]}: {counts}"
    different = [name for name, facts in wanted.modules.items() if held.modules[name] != facts]
    if not different:
        return None
    name = different[0]
    older = {number: each.modules[name] for number, each in earlier.items() if name in each.modules}
    how = _module_difference(named_pairs(on_host(adapter))[name], wanted.modules[name], held.modules[name], older)
    return f"{how.format(name=name)} ({len(different)} of {len(wanted.modules)} modules differ)"


def _module_difference(
    pair: LoraPair, wanted: ModuleFacts, found: ModuleFacts, earlier: Mapping[int, ModuleFacts]
) -> str:
    """With a place for the module's name."""
    same_numbers = found.hashes == wanted.hashes
    stale = [number for number, facts in earlier.items() if facts.hashes == found.hashes and not same_numbers]
    if stale:
        return f"stale adapter: the engine's {{name}} holds the numbers of version {max(stale)}"
    for side in ("A", "B"):
        (matrix, shape, digest), (_, found_shape, found_digest) = _side(pair, wanted, side), _side(pair, found, side)
        swapped = found_shape == shape[::-1] != shape
        if found_digest == _hash(np.asarray(matrix).T) and (swapped or found_digest != digest):
            return f"transposed matrix: the engine's {side} of {{name}} is the transpose of the trainer's"
        if found_shape != shape:
            return f"wrong shape: the engine's {side} of {{name}} is {found_shape}, the trainer's {shape}"
    if same_numbers:
        return f"wrong scale: the engine's {{name}} has {found.scale:g}, the trainer's {wanted.scale:g}"
    side = "A" if found.a_hash != wanted.a_hash else "B"
    return (
        f"other numbers: the engine's {side} of {{name}} is neither of this version nor of an earlier one; its "
        f"scale * A @ B has the norm {found.delta_norm:.4g}, the trainer's {wanted.delta_norm:.4g}"
    )


def _side(pair: LoraPair, facts: ModuleFacts, side: str) -> tuple[Matrix, tuple[int, ...], str]:
    return (pair.a, facts.a_shape, facts.a_hash) if side == "A" else (pair.b, facts.b_shape, facts.b_hash)


def _facts(pair: LoraPair) -> ModuleFacts:
    return ModuleFacts(
        a_shape=pair.a.shape,
        b_shape=pair.b.shape,
        scale=pair.scale,
        delta_norm=delta_norm(pair) if pair.a.shape[-1] == pair.b.shape[0] else float("nan"),
        a_hash=_hash(pair.a),
        b_hash=_hash(pair.b),
    )


def _hash(matrix: Matrix) -> str:
    values = np.ascontiguousarray(matrix)
    return _digest(values.dtype.name.encode(), values.data)


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]
