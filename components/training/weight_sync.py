"""A trained adapter -> the adapter that the engine serves, proven on the way.

Three things are checked before a version answers a single request: the number of bound modules, that every number is
finite, and that trainer and engine give the same log-probs to a few canary sequences, each by its own path through the
model. The proof of each version, with the fingerprint of what was handed over, is kept with the run.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float

from components.errors import ProofError
from components.model.lora import Adapter, module_names
from components.telemetry.spans import span

Canaries = Sequence[Sequence[int]]

TrainerScore = Callable[[Adapter, Canaries], Sequence[Float[np.ndarray, " tokens"]]]
"""Log-probs of tokens 1.. of each canary, by the path that trains."""


@runtime_checkable
class Serving(Protocol):
    """What a weight sync needs of an engine."""

    def score(self, adapter: Adapter, token_ids: Sequence[int]) -> Float[np.ndarray, " tokens"]:
        """Log-probs of tokens 1.. of `token_ids` under a candidate adapter, by the path that serves requests."""
        ...

    def swap(self, adapter: Adapter, version: int) -> Future[None]:
        """Serve this adapter from the next decode step on; done when it does."""
        ...


@dataclass(frozen=True, slots=True)
class SyncProof:
    """What was found before a version served. `delta_norm` is the Frobenius norm of scale * A @ B over all modules."""

    version: int
    modules: int
    fingerprint: str
    delta_norm: float
    canary_difference: float
    adapter_bytes: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For the run's records."""
        return asdict(self)


class WeightSync:
    """Hands each version to the engine, or raises ProofError and leaves the engine on the version before."""

    def __init__(
        self,
        engine: Serving,
        trainer_score: TrainerScore,
        canaries: Canaries,
        *,
        expected_modules: int,
        tolerance: float,
    ) -> None:
        self._engine = engine
        self._trainer_score = trainer_score
        self._canaries = canaries
        self._expected_modules = expected_modules
        self._tolerance = tolerance

    def publish(self, adapter: Adapter, version: int) -> SyncProof:
        """Prove `adapter` and serve it as `version`. Blocks for short forward passes: call it off the event loop."""
        with span("weight_sync", version=version):
            started = time.perf_counter()
            modules = len(module_names(adapter))
            if modules != self._expected_modules:
                raise ProofError(
                    f"weight sync of version {version}: the adapter binds {modules} modules and the recipe's LoRA "
                    f"targets bind {self._expected_modules}; a part of the policy would not be served"
                )
            delta = delta_norm(adapter)
            if not np.isfinite(delta):
                raise ProofError(f"weight sync of version {version}: the adapter holds numbers that are not finite")
            difference = self._canary_difference(adapter, version)
            self._engine.swap(adapter, version).result()
            return SyncProof(
                version=version,
                modules=modules,
                fingerprint=fingerprint(adapter),
                delta_norm=delta,
                canary_difference=difference,
                adapter_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(adapter)),
                seconds=time.perf_counter() - started,
            )

    def _canary_difference(self, adapter: Adapter, version: int) -> float:
        trained = self._trainer_score(adapter, self._canaries)
        served = [self._engine.score(adapter, canary) for canary in self._canaries]
        worst = max(float(np.max(np.abs(one - other))) for one, other in zip(trained, served, strict=True))
        if not worst <= self._tolerance:
            raise ProofError(
                f"weight sync of version {version}: trainer and engine differ by {worst:.3g} in the log-probs of a "
                f"canary sequence (tolerance {self._tolerance:g}); what would be sampled is not what is trained"
            )
        return worst


def fingerprint(adapter: Adapter) -> str:
    """SHA-256 over names, scales, shapes and bytes of an adapter; its first 16 digits."""
    digest = hashlib.sha256()
    for layer in adapter.layers:
        for name in sorted(layer):
            pair = layer[name]
            digest.update(repr((name, pair.scale, pair.a.shape, pair.b.shape)).encode())
            digest.update(np.asarray(pair.a).tobytes())
            digest.update(np.asarray(pair.b).tobytes())
    return digest.hexdigest()[:16]


def delta_norm(adapter: Adapter) -> float:
    """Frobenius norm of scale * A @ B over all modules, from the small Gram matrices: no [in, out] array is made."""
    total = 0.0
    for layer in adapter.layers:
        for pair in layer.values():
            a, b = np.asarray(pair.a, np.float64), np.asarray(pair.b, np.float64)
            total += pair.scale**2 * float(np.sum((a.T @ a) * (b @ b.T)))
    return total**0.5
