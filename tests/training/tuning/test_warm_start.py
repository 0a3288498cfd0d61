import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.errors import ConfigError
from components.model.decoder import forward, logits
from components.training.optimizer import OptimizerConfig
from components.training.tuning.warm_start import SupervisedConfig, fit
from components.types import Sample
from tests.training import tiny

BASE = tiny.base()
CONFIG = SupervisedConfig(steps=60, rows=4, row_length=16, optimizer=OptimizerConfig(learning_rate=1e-2))


def successors() -> Iterator[Sample]:
    """The completion of a number is the next two numbers."""
    for number in itertools.cycle(range(20)):
        mask = (False, False, True, True)
        yield Sample((21, number, number + 1, number + 2), mask, (0.0,) * 4, (-1,) * 4, advantage=0.0)


def greedy(base, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        tokens = jnp.array([ids])
        hidden = forward(tiny.ARCHITECTURE, base, None, tokens, jnp.arange(len(ids))[None], jnp.ones_like(tokens))
        ids.append(int(logits(tiny.ARCHITECTURE, base, hidden)[0, -1].argmax()))
    return ids[len(prompt) :]


def test_tuning_teaches_the_completions_and_leaves_the_given_base_as_it_is():
    before = [np.array(leaf) for leaf in jax.tree.leaves(BASE)]
    reports: list[tuple[int, float]] = []
    tuned = fit(tiny.ARCHITECTURE, BASE, successors(), CONFIG, progress=lambda step, loss: reports.append((step, loss)))
    assert [step for step, _ in reports] == [50, 60]
    assert reports[-1][1] < 0.3
    assert greedy(tuned, [21, 7], 2) == [8, 9]
    for leaf, old in zip(jax.tree.leaves(BASE), before, strict=True):
        np.testing.assert_array_equal(leaf, old)


def test_examples_that_end_too_early_are_refused_with_the_step():
    with pytest.raises(ConfigError, match="used up after 0 steps"):
        fit(tiny.ARCHITECTURE, BASE, [], CONFIG)
