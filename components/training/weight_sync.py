"""A trained adapter -> the adapter that the engine serves, proven on the way.

Before a version answers a single request, the manifest that the engine makes of what it holds must be the trainer's,
and both must give the same log-probs to a few canary sequences, each by its own path through the model. The first
catches an adapter that was changed on the way, the second an engine that makes something else of it. The proof of each
version is kept with the run.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float

from components.errors import ProofError
from components.model.lora import Adapter
from components.model.manifest import Held, Manifest, find_difference, make_manifest
from components.telemetry.spans import span
from components.training.sync_diagnosis import Diagnosis, distance

REMEMBERED_VERSIONS = 64
"""Of so many versions a stale adapter is told by its number; 200 modules take some 100 kB for each."""

Canaries = Sequence[Sequence[int]]

TrainerScore = Callable[[Adapter, Canaries], Sequence[Float[np.ndarray, " tokens"]]]
"""Log-probs of tokens 1.. of each canary, by the path that trains."""


@runtime_checkable
class Serving(Protocol):
    """What a weight sync needs of an engine. `score` and `swap` take an adapter as `stage` has given it back."""

    def stage(self, adapter: Adapter) -> Held:
        """Take a candidate to where it would be served from, and tell what has arrived. Serving goes on as before."""
        ...

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
    """Hands each version to the engine, or raises ProofError and leaves the engine on the version before.

    `expected_modules` are the names of the modules that the recipe binds, or how many of them there are.
    """

    def __init__(
        self,
        engine: Serving,
        trainer_score: TrainerScore,
        canaries: Canaries,
        *,
        expected_modules: Sequence[str] | int,
        tolerance: float,
    ) -> None:
        self._engine = engine
        self._trainer_score = trainer_score
        self._canaries = canaries
        self._expected_modules = expected_modules
        self._tolerance = tolerance
        self._manifests: dict[int, Manifest] = {}
        self._served: tuple[int, Adapter] | None = None

    def publish(self, adapter: Adapter, version: int) -> SyncProof:
        """Prove `adapter` and serve it as `version`. Blocks for short forward passes: call it off the event loop.

        Raises ProofError with the module and what is wrong about it.
        """
        with span("weight_sync", version=version):
            started = time.perf_counter()
            manifest = make_manifest(adapter)
            if fault := _fault(manifest, self._expected_modules):
                raise _refused(version, fault)
            held = self._engine.stage(adapter)
            if fault := find_difference(adapter, manifest, held.manifest, self._manifests):
                raise _refused(version, fault)
            difference = self._canary_difference(adapter, held.adapter, version)
            self._engine.swap(held.adapter, version).result()
            self._remember(adapter, version, manifest)
            return SyncProof(
                version=version,
                modules=len(manifest.modules),
                fingerprint=manifest.fingerprint,
                delta_norm=manifest.delta_norm,
                canary_difference=difference,
                adapter_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(adapter)),
                seconds=time.perf_counter() - started,
            )

    def _canary_difference(self, adapter: Adapter, held: Adapter, version: int) -> float:
        difference = distance(self._trained(adapter), self._score_held(held))
        if difference <= self._tolerance:
            return difference
        diagnosis = Diagnosis(self._trained, self._served_by_engine, self._tolerance)
        raise _refused(
            version,
            f"{diagnosis.describe(adapter, self._served)}. The engine holds the right adapter, and yet it differs from "
            f"the trainer by {difference:.3g} in the log-probs of a canary sequence (tolerance {self._tolerance:g}); "
            "what would be sampled is not what is trained",
        )

    def _trained(self, adapter: Adapter) -> Float[np.ndarray, " tokens"]:
        return np.concatenate(self._trainer_score(adapter, self._canaries))

    def _served_by_engine(self, adapter: Adapter) -> Float[np.ndarray, " tokens"]:
        return self._score_held(self._engine.stage(adapter).adapter)

    def _score_held(self, held: Adapter) -> Float[np.ndarray, " tokens"]:
        return np.concatenate([self._engine.score(held, canary) for canary in self._canaries])

    def _remember(self, adapter: Adapter, version: int, manifest: Manifest) -> None:
        """Keeps what a stale adapter is told by: the manifests of some versions and the arrays of the last."""
        self._served = version, adapter
        self._manifests[version] = manifest
        for old in sorted(self._manifests)[:-REMEMBERED_VERSIONS]:
            del self._manifests[old]


def fingerprint(adapter: Adapter) -> str:
    """16 hexadecimal digits that name an adapter to the bit; as in its proof."""
    return make_manifest(adapter).fingerprint


def _fault(manifest: Manifest, expected: Sequence[str] | int) -> str | None:
    """What is wrong with the trainer's own adapter."""
    count, bound = len(manifest.modules), expected if isinstance(expected, int) else len(expected)
    absent = [] if isinstance(expected, int) else [name for name in expected if name not in manifest.modules]
    if absent or count != bound:
        named = f" {absent[0]}" if absent else ""
        return (
            f"missing module{named}: the adapter binds {count} modules and the recipe's LoRA targets bind {bound}; "
            "a part of the policy would not be served"
        )
    broken = [name for name, facts in manifest.modules.items() if not np.isfinite(facts.delta_norm)]
    return f"the adapter's {broken[0]} holds numbers that are not finite" if broken else None


def _refused(version: int, fault: str) -> ProofError:
    return ProofError(f"weight sync of version {version}: {fault}")
