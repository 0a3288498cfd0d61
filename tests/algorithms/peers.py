r"""Random sequences as Headrace lays them and as verl and TRL do, and a loss with its gradient by the log-probs.

Their functions are called as they are; where the packages are not installed, or in other versions, a test is skipped.
Nothing but their code has to be there to be imported:

    pip install --no-deps verl==0.9.1 trl==1.16.0 ray==2.60.0 tensordict==0.15.3 pyvers==0.2.3 orjson==3.13.0 \
        omegaconf==2.4.0 hydra-core==1.3.8 antlr4-python3-runtime==4.9.3 codetiming==1.4.0 pandas==3.1.1 \
        datasets==5.2.0 multiprocess==0.70.19 dill==0.4.1 xxhash==4.1.0
"""

import importlib.metadata
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.objective import Objective, ObjectiveConfig
from components.algorithms.sampled import SampledTokens
from components.config import load

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
"""Float32 on both sides."""
VERSIONS = {"verl": "0.9.1", "trl": "1.16.0"}


def peer(module: str) -> Any:
    """A module of verl or TRL in the version that is compared with; otherwise the test is skipped."""
    name = module.partition(".")[0]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    if version != VERSIONS[name]:
        pytest.skip(f"{name} is {version}, and {VERSIONS[name]} is compared with")
    pytest.importorskip("torch")
    return pytest.importorskip(module, exc_type=ImportError)


def tensor(array: Any) -> Any:
    torch: ModuleType = pytest.importorskip("torch")
    return torch.tensor(np.asarray(array, np.float32))


@dataclass(frozen=True)
class Rows:
    """Sequences as rows of one width, as the peers lay them; `flat` gives their sampled tokens as Headrace does."""

    mask: np.ndarray
    logprobs: np.ndarray
    behavior: np.ndarray
    reference: np.ndarray
    advantages: np.ndarray

    def flat(self, rows: np.ndarray) -> jax.Array:
        return jnp.asarray(rows[self.mask], jnp.float32)

    @property
    def lengths(self) -> np.ndarray:
        return self.mask.sum(axis=1)

    @property
    def sequence(self) -> jax.Array:
        return jnp.asarray(np.nonzero(self.mask)[0], jnp.int32)

    def sampled(self, objective: Objective) -> SampledTokens:
        weights = np.broadcast_to([[objective.weight(length)] for length in self.lengths.tolist()], self.mask.shape)
        return SampledTokens(
            behavior_logprobs=self.flat(self.behavior),
            advantages=self.flat(np.broadcast_to(self.advantages[:, None], self.mask.shape)),
            weights=self.flat(weights),
            sequence=self.sequence,
            versions=jnp.zeros(int(self.mask.sum()), jnp.int32),
        )


def make_rows(spread: float = 0.4) -> Rows:
    """Twelve sequences of 1 to 15 sampled tokens with replies in between, advantages of both signs."""
    random = np.random.default_rng(3)
    mask = np.arange(16) < random.integers(3, 16, (12, 1))
    mask[::2, 1:3] = False
    behavior = random.uniform(-5.0, -0.1, mask.shape)
    logprobs = behavior + random.normal(0.0, spread, mask.shape)
    reference = behavior + random.normal(0.0, 0.4, mask.shape)
    return Rows(mask, logprobs, behavior, reference, random.normal(0.0, 1.0, 12))


ROWS = make_rows()


def loss_and_gradient(rows: Rows, **settings: Any) -> tuple[float, np.ndarray]:
    """Of a whole optimizer step, by the log-prob of each sampled token."""
    objective = Objective.from_config(load(ObjectiveConfig, settings))
    denominator = sum(objective.share(length) for length in rows.lengths.tolist())
    tokens = rows.sampled(objective)
    if objective.needs_reference:
        tokens = tokens.replace(reference_logprobs=rows.flat(rows.reference))

    def loss(logprobs: jax.Array) -> jax.Array:
        return objective.loss(logprobs, tokens)[0] / denominator

    value, gradient = jax.value_and_grad(loss)(rows.flat(rows.logprobs))
    return float(value), np.asarray(gradient)


def assert_same(ours: tuple[float, np.ndarray], theirs: tuple[float, np.ndarray]) -> None:
    np.testing.assert_allclose(ours[0], theirs[0], **CLOSE)
    np.testing.assert_allclose(ours[1], theirs[1], **CLOSE)
