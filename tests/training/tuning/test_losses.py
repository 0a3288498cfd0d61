"""Each method's loss and gradient on a tiny policy against plain formulas over unpacked samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.config import load
from components.model.decoder import forward, logits
from components.model.weights import Model
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import Packer, PackingConfig
from components.training.tuning.methods import DistillLoss, DpoLoss, OrpoLoss, SupervisedLoss, denominator_of, make_loss
from components.training.tuning.settings import PreferenceLoss, Reference, TuneConfig
from components.training.tuning.tuner import make_accumulate, make_measure, make_tuner
from components.training.update import make_score, zero_gradients
from tests.model.tiny import quick_jit
from tests.training import tiny

BASE, ADAPTER = tiny.base(), tiny.adapter()
TEACHER = jax.tree.map(lambda leaf: 1.3 * leaf, BASE)
SCORE = make_score(tiny.ARCHITECTURE, temperature=1.0)


SAMPLES = tiny.samples()
PAIRS = [SAMPLES[0:2], SAMPLES[2:4], SAMPLES[4:6]]
SINGLES = [(sample,) for sample in SAMPLES]
LENGTH = max(len(sample.token_ids) for sample in SAMPLES)


def tables(base, adapter) -> jax.Array:
    """log p over the vocabulary for tokens 1, 2, ... of each sample, alone in its row, by plain softmax."""
    tokens = jnp.array([sample.token_ids + (0,) * (LENGTH - len(sample.token_ids)) for sample in SAMPLES])
    positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    hidden = forward(tiny.ARCHITECTURE, base, adapter, tokens, positions, jnp.ones_like(tokens))
    return jax.nn.log_softmax(logits(tiny.ARCHITECTURE, base, hidden)[:, :-1])


quick_tables = quick_jit(tables)


def said(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(places in the table, tokens) of what the assistant said in a sample."""
    places = np.flatnonzero(SAMPLES[number].completion_mask) - 1
    return places, np.array(SAMPLES[number].token_ids)[places + 1]


def logprobs(adapter) -> list[jax.Array]:
    """Of what the assistant said, sample by sample."""
    found = tables(BASE, adapter)
    return [found[(number, *said(number))] for number in range(len(SAMPLES))]


def plain_sft(adapter):
    return -jnp.concatenate(logprobs(adapter)).mean()


def plain_dpo(adapter):
    ratios = [(one - other).sum() for one, other in zip(logprobs(adapter), logprobs(None), strict=True)]
    margins = jnp.stack(ratios[0:6:2]) - jnp.stack(ratios[1:6:2])
    return jnp.mean(-0.9 * jnp.log(1 / (1 + jnp.exp(-0.5 * margins))) - 0.1 * jnp.log(1 / (1 + jnp.exp(0.5 * margins))))


def plain_orpo(adapter):
    likely = jnp.exp(jnp.stack([each.mean() for each in logprobs(adapter)]))
    chosen, rejected = likely[0:6:2], likely[1:6:2]
    ratio = (chosen / (1 - chosen)) / (rejected / (1 - rejected))
    return jnp.mean(-jnp.log(chosen) - 0.3 * jnp.log(1 / (1 + 1 / ratio)))


def plain_distill(adapter):
    p, t = jax.nn.log_softmax(tables(BASE, adapter) / 2), jax.nn.log_softmax(tables(TEACHER, None) / 2)
    each = 0.75 * (jnp.exp(t) * (t - p)).sum(-1) + 0.25 * (jnp.exp(p) * (p - t)).sum(-1)
    return 4 * jnp.concatenate([each[number, said(number)[0]] for number in range(len(SAMPLES))]).mean()


CASES = {
    "sft": (SupervisedLoss(), plain_sft, SINGLES),
    "dpo": (DpoLoss(0.5, 0.1, PreferenceLoss.SIGMOID, Reference.BASE), plain_dpo, PAIRS),
    "orpo": (OrpoLoss(0.3), plain_orpo, PAIRS),
    "distill": (DistillLoss(0.25, 2.0, chunk=8), plain_distill, SINGLES),
}


@functools.cache
def accumulator(name: str):
    return make_accumulate(tiny.ARCHITECTURE, CASES[name][0], teacher_of(name), chunk=8)


def teacher_of(name: str):
    return tiny.ARCHITECTURE if name == "distill" else None


def packed(rows, shape: tuple[int, int]):
    """The micro-batches of rows whose samples stay together, in rows of a length."""
    packer = Packer(PackingConfig(rows=shape[0], row_length=shape[1], capacities=(shape[0] * shape[1],)), lambda _: 1.0)
    found = [packer.add_together(row) for row in rows] + [packer.flush()]
    return [microbatch for microbatch in found if microbatch is not None]


def summed(name: str, rows, shape: tuple[int, int]):
    """(loss, gradient) of an optimizer step over these rows, micro-batch by micro-batch."""
    loss = CASES[name][0]
    gradients, total, count = zero_gradients(ADAPTER), 0.0, 0
    for microbatch in packed(rows, shape):
        reference = SCORE(BASE, None, microbatch) if loss.reference else None
        teacher = TEACHER if loss.has_teacher else None
        gradients, sums = accumulator(name)(BASE, ADAPTER, gradients, microbatch, reference, teacher)
        total, count = total + float(sums["loss"]), count + 1
    denominator = denominator_of(loss, rows)
    return total / denominator, jax.tree.map(lambda leaf: leaf / denominator, gradients), count


@pytest.mark.parametrize("name", list(CASES))
def test_loss_and_gradient_are_the_formulas_packed_or_not_and_for_any_split(name: str) -> None:
    _, plain, rows = CASES[name]
    wanted, wanted_gradient = quick_jit(jax.value_and_grad(plain))(ADAPTER)
    splits = set()
    for order, shape in [(rows, (2, 9)), (rows[::-1], (1, 48))]:
        found, gradient, count = summed(name, order, shape)
        splits.add(count)
        assert found == pytest.approx(float(wanted), rel=2e-5)
        for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted_gradient), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-6 + 2e-4 * float(jnp.abs(theirs).max()))
    assert len(splits) == 2


@pytest.mark.parametrize("name", list(CASES))
def test_nothing_to_learn_from_is_a_loss_of_0_and_a_gradient_of_0(name: str) -> None:
    loss = CASES[name][0]
    (microbatch,) = packed(CASES[name][2][:1], (2, 9))
    nothing = jnp.full_like(microbatch.sampled.sequence, -1)
    silent = microbatch.replace(sampled=microbatch.sampled.replace(sequence=nothing))
    # What stands at padding is no number, and must not become part of a sum.
    reference = jnp.full(len(nothing), jnp.nan) if loss.reference else None
    teacher = TEACHER if loss.has_teacher else None
    gradients, sums = accumulator(name)(BASE, ADAPTER, zero_gradients(ADAPTER), silent, reference, teacher)
    assert {key: float(value) for key, value in sums.items()} == dict.fromkeys(sums, 0.0)
    assert all(float(jnp.abs(leaf).max()) == 0.0 for leaf in jax.tree.leaves(gradients))


def test_what_is_measured_is_what_is_learnt_from() -> None:
    measure = make_measure(tiny.ARCHITECTURE, SupervisedLoss(), chunk=8)
    (microbatch,) = packed(SINGLES[:2], (2, 9))
    sums = measure(BASE, ADAPTER, microbatch)
    found, both = quick_tables(BASE, ADAPTER), [said(0), said(1)]
    expected = np.concatenate([found[(number, *both[number])] for number in (0, 1)])
    assert float(sums["loss"]) == pytest.approx(-expected.sum(), rel=1e-5)
    likeliest = [found[number].argmax(-1)[both[number][0]] == both[number][1] for number in (0, 1)]
    assert float(sums["token_accuracy"]) == np.concatenate(likeliest).sum()


@pytest.mark.parametrize("reference", list(Reference))
def test_a_margin_is_taken_against_the_base_or_against_the_start(reference: Reference) -> None:
    loss = DpoLoss(0.5, 0.0, PreferenceLoss.SIGMOID, reference)
    optimizer = make_optimizer(OptimizerConfig(), 1)
    model = Model(tiny.ARCHITECTURE, BASE, None)
    tuner = make_tuner(model, ADAPTER, loss, optimizer, PackingConfig(rows=2, row_length=9, capacities=(18,)))
    numbers = tuner.measure(PAIRS)
    if reference is Reference.START:
        assert numbers["margin"] == pytest.approx(0.0, abs=1e-6)
        assert numbers["loss"] == pytest.approx(np.log(2), rel=1e-6)
    else:
        assert abs(numbers["margin"]) > 1e-3


def test_a_recipe_says_every_constant() -> None:
    given = {"beta": 0.2, "label_smoothing": 0.1, "reference": "base"}
    settings = load(TuneConfig, {"method": "dpo", "rows": {"files": ["a.jsonl"]}, "dpo": given})
    assert make_loss(settings) == DpoLoss(0.2, 0.1, PreferenceLoss.SIGMOID, Reference.BASE)
