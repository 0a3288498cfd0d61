"""Each method moves its own measure on rows that it never learns from."""

import jax
import pytest

from components.algorithms.preference import PreferenceLoss
from components.algorithms.terms import Reference
from components.errors import RunStoppedError
from components.model.weights import Model
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import PackingConfig
from components.training.tuning.methods import DistillLoss, DpoLoss, OrpoLoss, Row, SupervisedLoss
from components.training.tuning.tuner import make_tuner
from components.types import Sample
from tests.training import tiny

MODEL = Model(tiny.ARCHITECTURE, tiny.base(), None)
TEACHER = Model(tiny.ARCHITECTURE, jax.tree.map(lambda leaf: 1.5 * leaf, tiny.base()), None)
PACKING = PackingConfig(rows=8, row_length=16, capacities=(128,))
METHODS = {
    "sft": (SupervisedLoss(), "token_accuracy", 1),
    "dpo": (DpoLoss(0.5, 0.0, PreferenceLoss.SIGMOID, Reference.START), "margin", 1),
    "orpo": (OrpoLoss(1.0), "margin", 1),
    "distill": (DistillLoss(0.5, 1.0, chunk=128), "forward_kl", -1),
}


def said(prompt: list[int], answer: list[int]) -> Sample:
    mask = (False,) * len(prompt) + (True,) * len(answer)
    return Sample((*prompt, *answer), mask, (0.0,) * len(mask), (-1,) * len(mask), advantage=0.0)


def row(number: int, *, pair: bool) -> Row:
    """Whatever is asked, 7 and 9 are right, and 3 and 4 are not."""
    prompt = [21, number, 20]
    return (said(prompt, [7, 9]), said(prompt, [3, 4])) if pair else (said(prompt, [7, 9]),)


@pytest.mark.parametrize("name", list(METHODS))
def test_each_method_moves_its_own_measure_on_held_out_rows(name: str) -> None:
    loss, measure, direction = METHODS[name]
    pair = name in ("dpo", "orpo")
    learnt, held_out = ([row(n, pair=pair) for n in range(first, first + 6)] for first in (0, 6))
    tuner = make_tuner(
        MODEL,
        tiny.adapter(),
        loss,
        make_optimizer(OptimizerConfig(learning_rate=3e-2), 25),
        PACKING,
        teacher=TEACHER if name == "distill" else None,
    )
    before = tuner.measure(held_out)
    for _ in range(25):
        numbers = tuner.learn(learnt)
    after = tuner.measure(held_out)
    assert direction * (after[measure] - before[measure]) > 0
    assert numbers["rows"] == 6
    assert numbers["skipped"] == 0


def test_a_gradient_that_is_not_finite_changes_nothing_and_stops_the_run_after_a_bound() -> None:
    broken = Model(tiny.ARCHITECTURE, jax.tree.map(lambda leaf: leaf * float("inf"), tiny.base()), None)
    optimizer = make_optimizer(OptimizerConfig(), 3)
    tuner = make_tuner(broken, tiny.adapter(), SupervisedLoss(), optimizer, PACKING, max_skipped=1)
    assert tuner.learn([row(1, pair=False)])["skipped"] == 1
    with pytest.raises(RunStoppedError, match=r"2 optimizer steps in a row .* more than tune.optimizer.max_skipped"):
        tuner.learn([row(1, pair=False)])
    for ours, theirs in zip(jax.tree.leaves(tuner.state.adapter), jax.tree.leaves(tiny.adapter()), strict=True):
        assert (ours == theirs).all()
