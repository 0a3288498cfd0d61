import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.objective import Objective, ObjectiveConfig, mean_statistics
from components.algorithms.terms import Aggregation, ImportanceRule, Proximal
from components.config import load
from components.model.decoder import forward, logits
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import Microbatch, Packer, PackingConfig
from components.training.update import (
    Accumulate,
    TrainState,
    add_statistics,
    init_state,
    make_accumulate,
    make_apply,
    make_score,
    zero_gradients,
)
from components.types import Sample
from tests.training import tiny

TEMPERATURE = 0.7
BASE, ADAPTER = tiny.base(), tiny.adapter()
SCORE = make_score(tiny.ARCHITECTURE, temperature=TEMPERATURE)


def objective(aggregation: str = "token_mean", **values) -> Objective:
    constant = {"constant": 10} if aggregation == "constant" else {}
    return Objective.from_config(load(ObjectiveConfig, {"aggregation": aggregation, **constant, **values}))


@functools.partial(jax.jit, static_argnums=1)
def table(adapter, batch: tuple[Sample, ...]) -> jax.Array:
    """log p of tokens 1, 2, ... of each sample, alone in its row, by plain softmax over plain logits."""
    length = max(len(sample.token_ids) for sample in batch)
    tokens = jnp.array([sample.token_ids + (0,) * (length - len(sample.token_ids)) for sample in batch])
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    hidden = forward(tiny.ARCHITECTURE, BASE, adapter, tokens, positions, jnp.ones_like(tokens))
    scores = jax.nn.log_softmax(logits(tiny.ARCHITECTURE, BASE, hidden) / TEMPERATURE)
    return jnp.take_along_axis(scores[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]


def padded(batch: tuple[Sample, ...], field: str) -> np.ndarray:
    """One row per sample of what stands beside tokens 1, 2, ..., zeros behind its end."""
    length = max(len(sample.token_ids) for sample in batch)
    rows = [dataclasses.asdict(sample)[field][1:] for sample in batch]
    return np.array([[*row, *[0] * (length - 1 - len(row))] for row in rows])


@functools.partial(jax.jit, static_argnums=(0, 2))
def whole_batch_loss(made: Objective, adapter, batch: tuple[Sample, ...]) -> jax.Array:
    """The loss as the papers write it: one sample per row, no packing, no weights, no micro-batches."""
    logprobs, mask = table(adapter, batch), padded(batch, "completion_mask").astype(bool)
    advantages = np.array([sample.advantage for sample in batch])[:, None]
    ratio = jnp.exp(logprobs - padded(batch, "logprobs"))
    if made.proximal is Proximal.BEHAVIOR:
        losses = -jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
    elif made.importance_rule is ImportanceRule.TRUNCATE:
        losses = -jax.lax.stop_gradient(jnp.minimum(ratio, 2.0)) * advantages * logprobs
    else:
        inside = (ratio >= 0.5) & (ratio <= 5.0)
        losses = -jax.lax.stop_gradient(jnp.where(inside, ratio, 0.0)) * advantages * logprobs
    losses = losses + made.kl_coefficient * (logprobs - table(None, batch)) ** 2 / 2
    losses = jnp.where(mask, losses, 0.0)
    match made.aggregation:
        case Aggregation.TOKEN_MEAN:
            return losses.sum() / mask.sum()
        case Aggregation.SEQUENCE_MEAN:
            return (losses.sum(axis=1) / mask.sum(axis=1)).mean()
        case Aggregation.CONSTANT:
            return (losses.sum(axis=1) / 10).mean()


@functools.cache
def accumulator(made: Objective) -> Accumulate:
    return make_accumulate(tiny.ARCHITECTURE, made, temperature=TEMPERATURE, chunk=8)


def packed(batch: Sequence[Sample], rows: int, row_length: int, made: Objective | None = None) -> list[Microbatch]:
    config = PackingConfig(rows=rows, row_length=row_length, capacities=(rows * row_length,))
    return list(Packer(config, (made or objective()).weight).pack(batch))


def streamed(made: Objective, batch: Sequence[Sample], rows: int, row_length: int):
    """(gradient, loss) of the whole batch, from micro-batches as a packer gives them."""
    gradients, means = streamed_step(made, batch, rows, row_length)
    return gradients, means["loss"]


def streamed_step(made: Objective, batch: Sequence[Sample], rows: int, row_length: int):
    """(gradient, mean statistics) of the whole batch, by a trainer at version 2."""
    gradients, sums = zero_gradients(ADAPTER), {}
    for microbatch in packed(batch, rows, row_length, made):
        if made.needs_reference:
            sampled = microbatch.sampled.replace(reference_logprobs=SCORE(BASE, None, microbatch))
            microbatch = microbatch.replace(sampled=sampled)
        gradients, statistics = accumulator(made)(BASE, ADAPTER, gradients, microbatch, jnp.int32(2))
        sums = add_statistics(sums, statistics)
    denominator = sum(made.share(sum(sample.completion_mask)) for sample in batch)
    means = mean_statistics({key: float(value) for key, value in sums.items()}, denominator)
    return jax.tree.map(lambda leaf: leaf / denominator, gradients), means


def assert_close(found, wanted, rtol: float = 1e-5) -> None:
    """Every array differs by at most rtol of its norm."""
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert float(jnp.linalg.norm(ours - theirs)) <= rtol * float(jnp.linalg.norm(theirs))


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_streamed_accumulation_equals_the_whole_batch_for_any_split_and_packing(aggregation):
    made, batch = objective(aggregation.value), tiny.samples()
    wanted_loss, wanted = jax.value_and_grad(whole_batch_loss, argnums=1)(made, ADAPTER, batch)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(wanted)) > 1e-3
    for rows, row_length in [(8, 9), (3, 9), (1, 24)]:
        gradients, loss = streamed(made, batch, rows, row_length)
        assert loss == pytest.approx(float(wanted_loss), rel=1e-5)
        assert_close(gradients, wanted)


CORRECTIONS = {
    "clipped": {},
    "truncated": {"proximal": "current"},
    "masked": {"proximal": "current", "importance_rule": "mask"},
}
SPLITS = [(3, 9), (1, 24)]  # rows and their length: a sample per row, several per row


def of_mixed_versions(batch: Sequence[Sample]) -> tuple[Sample, ...]:
    """Every sample sampled by versions 0, 1, 2, 0, ... from token to token."""
    return tuple(
        dataclasses.replace(
            sample,
            versions=tuple(place % 3 if sampled else -1 for place, sampled in enumerate(sample.completion_mask)),
        )
        for sample in batch
    )


# Every correction and every aggregation once: they do not know of each other.
@pytest.mark.parametrize(("aggregation", "correction"), list(zip(Aggregation, CORRECTIONS, strict=True)))
def test_samples_that_arrive_in_any_order_and_split_give_the_gradient_of_the_whole_batch(aggregation, correction):
    made = objective(aggregation.value, kl_coefficient=0.3, **CORRECTIONS[correction])
    batch = of_mixed_versions(tiny.samples())
    wanted = jax.grad(whole_batch_loss, argnums=1)(made, ADAPTER, batch)
    _, whole = streamed_step(made, batch, *SPLITS[0])
    assert 0 < whole["clipped"] < 1
    assert 0 < whole["same_version_share"] < 1
    for seed, (rows, row_length) in enumerate(SPLITS):
        order = np.random.default_rng(seed).permutation(len(batch))
        gradients, means = streamed_step(made, [batch[number] for number in order], rows, row_length)
        assert_close(gradients, wanted)
        assert means == pytest.approx(whole, rel=1e-5)


BY_SEQUENCE = [
    {"preset": "gspo", "clip_high": 0.5, "clip_low": 0.5, "entropy_coefficient": 0.1, "off_policy_delta": 0.1},
    {"preset": "decoupled", "importance_level": "sequence", "kl_coefficient": 0.3, "kl_estimator": "k3"},
]


@pytest.mark.parametrize("values", BY_SEQUENCE)
def test_what_concerns_a_sequence_is_the_same_for_any_packing_and_split(values):
    made = Objective.from_config(load(ObjectiveConfig, values))
    batch = of_mixed_versions(tiny.samples())
    wanted, whole = streamed_step(made, batch, *SPLITS[0])
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(wanted)) > 1e-3
    gradients, means = streamed_step(made, batch[::-1], *SPLITS[1])
    assert_close(gradients, wanted)
    assert means == pytest.approx(whole, rel=1e-5)
    if "entropy_coefficient" in values:
        assert means["entropy_loss"] == pytest.approx(-0.1 * mean_sequence_entropy(batch), rel=1e-4)


def mean_sequence_entropy(batch: tuple[Sample, ...]) -> float:
    """The mean over sequences of the mean entropy of their sampled tokens, by plain softmax."""
    length = max(len(sample.token_ids) for sample in batch)
    tokens = jnp.array([sample.token_ids + (0,) * (length - len(sample.token_ids)) for sample in batch])
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    hidden = forward(tiny.ARCHITECTURE, BASE, ADAPTER, tokens, positions, jnp.ones_like(tokens))
    scores = jax.nn.log_softmax(logits(tiny.ARCHITECTURE, BASE, hidden) / TEMPERATURE)[:, :-1]
    mask = padded(batch, "completion_mask").astype(bool)
    entropies = np.where(mask, -(jnp.exp(scores) * scores).sum(axis=-1), 0.0)
    return float((entropies.sum(axis=1) / mask.sum(axis=1)).mean())


def test_the_largest_importance_weight_of_a_step_is_not_a_sum_over_its_micro_batches():
    batch = tiny.samples()
    mask = padded(batch, "completion_mask").astype(bool)
    ratio = np.exp(np.asarray(table(ADAPTER, batch)) - padded(batch, "logprobs"))[mask]
    for split in SPLITS:
        _, means = streamed_step(objective(), batch, *split)
        assert means["importance_weight_max"] == pytest.approx(ratio.max(), rel=1e-4)
        assert means["effective_sample_size"] == pytest.approx(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()))


def test_leaving_out_samples_without_gradient_changes_nothing_but_the_work():
    made, batch = objective(), tiny.samples()
    whole, _ = streamed(made, batch, rows=3, row_length=9)
    kept = [sample for sample in batch if made.has_gradient(sample.advantage)]
    assert len(kept) == len(batch) - 1
    gradients, _ = streamed(made, kept, rows=3, row_length=9)
    all_tokens = sum(sum(sample.completion_mask) for sample in batch)
    kept_tokens = sum(sum(sample.completion_mask) for sample in kept)
    assert_close(jax.tree.map(lambda leaf: leaf * kept_tokens / all_tokens, gradients), whole)


def test_scores_are_of_the_temperature_scaled_whole_vocabulary():
    batch = tiny.samples()
    mask = padded(batch, "completion_mask").astype(bool)
    for adapter in (None, ADAPTER):
        found = [
            np.asarray(SCORE(BASE, adapter, microbatch))[np.asarray(microbatch.sampled.mask)]
            for microbatch in packed(batch, rows=3, row_length=9)
        ]
        np.testing.assert_allclose(np.concatenate(found), table(adapter, batch)[mask], rtol=1e-4, atol=1e-5)


def test_an_unchanged_policy_has_ratio_one_at_every_token():
    (microbatch,) = packed(rescored(tiny.samples()), rows=8, row_length=9)
    ratio = jnp.exp(SCORE(BASE, ADAPTER, microbatch) - microbatch.sampled.behavior_logprobs)
    np.testing.assert_allclose(ratio, np.ones_like(ratio), atol=1e-3)


def rescored(batch: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The samples as if the policy of this test had drawn them."""
    rows = np.asarray(table(ADAPTER, batch)).tolist()
    logprobs = [(0.0, *row[: len(each.token_ids) - 1]) for row, each in zip(rows, batch, strict=True)]
    return tuple(dataclasses.replace(each, logprobs=row) for row, each in zip(logprobs, batch, strict=True))


def empty_microbatch() -> Microbatch:
    (microbatch,) = packed(tiny.samples(), rows=8, row_length=9)
    sampled = dataclasses.replace(microbatch.sampled, sequence=jnp.full_like(microbatch.sampled.sequence, -1))
    return dataclasses.replace(microbatch, sampled=sampled)


def test_a_step_in_which_every_token_is_masked_moves_nothing_and_is_counted():
    gradients, statistics = accumulator(objective())(BASE, ADAPTER, zero_gradients(ADAPTER), empty_microbatch())
    assert all(float(jnp.abs(leaf).max()) == 0.0 for leaf in jax.tree.leaves(gradients))
    assert float(statistics["loss"]) == 0.0
    sums = add_statistics({}, statistics)
    assert mean_statistics({key: float(value) for key, value in sums.items()}, 0)["loss"] == 0.0

    optimizer = make_optimizer(OptimizerConfig(weight_decay=0.1), total_steps=4)
    state, metrics = make_apply(optimizer)(init_state(ADAPTER, optimizer), gradients, 0)
    assert_same_bits(state.adapter, ADAPTER)
    assert_same_bits(state.optimizer, optimizer.direction.init(ADAPTER))
    assert (int(state.step), int(state.skipped), int(metrics["skipped"])) == (1, 1, 1)


def test_an_empty_micro_batch_beside_a_full_one_changes_nothing():
    accumulate = accumulator(objective())
    (full,) = packed(tiny.samples(), rows=8, row_length=9)
    alone, _ = accumulate(BASE, ADAPTER, zero_gradients(ADAPTER), full)
    alone = jax.tree.map(jnp.copy, alone)
    both, _ = accumulate(BASE, ADAPTER, zero_gradients(ADAPTER), full)
    both, _ = accumulate(BASE, ADAPTER, both, empty_microbatch())
    assert_same_bits(both, alone)


def assert_same_bits(found, wanted) -> None:
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_gradient_that_is_not_finite_skips_the_step():
    optimizer = make_optimizer(OptimizerConfig(), total_steps=4)
    apply = make_apply(optimizer)
    broken = jax.tree.map(lambda leaf: leaf.at[0, 0].set(jnp.nan), zero_gradients(ADAPTER))
    state, metrics = apply(init_state(ADAPTER, optimizer), broken, 3)
    assert int(metrics["skipped"]) == 1
    assert all(np.isfinite(float(value)) for value in metrics.values())
    assert_same_bits(state.adapter, ADAPTER)
    state, metrics = apply(state, jax.tree.map(jnp.ones_like, ADAPTER), 3)
    assert int(metrics["skipped"]) == 0
    assert (int(state.step), int(state.skipped)) == (2, 1)


def test_the_first_step_of_adam_moves_every_weight_by_the_learning_rate():
    """Adam's first direction is the gradient's sign; 3 is divided by the denominator 6, which the sign forgets."""
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.01, clip_norm=None), total_steps=1)
    gradients = jax.tree.map(lambda leaf: jnp.full_like(leaf, 3.0), ADAPTER)
    count = sum(leaf.size for leaf in jax.tree.leaves(ADAPTER))
    state, metrics = make_apply(optimizer)(init_state(ADAPTER, optimizer), gradients, 6)
    assert_close(state.adapter, jax.tree.map(lambda leaf: leaf - 0.01, ADAPTER))
    assert float(metrics["gradient_norm"]) == pytest.approx(0.5 * count**0.5, rel=1e-5)
    assert float(metrics["update_norm"]) == pytest.approx(0.01 * count**0.5, rel=1e-4)
    assert float(metrics["learning_rate"]) == pytest.approx(0.01)


def test_the_adapter_of_the_old_state_can_still_be_served_and_the_rest_is_donated():
    optimizer = make_optimizer(OptimizerConfig(), total_steps=4)
    state, gradients = init_state(ADAPTER, optimizer), jax.tree.map(jnp.ones_like, ADAPTER)
    after, _ = make_apply(optimizer)(state, gradients, 1)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state.adapter))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(gradients))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_sums_of_gradients_are_donated_and_the_base_is_neither_copied_nor_compiled_in():
    accumulate = accumulator(objective())
    (microbatch,) = packed(tiny.samples(), rows=8, row_length=9)
    gradients = zero_gradients(ADAPTER)
    before = live_embeddings()
    accumulate(BASE, ADAPTER, gradients, microbatch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(gradients))
    assert live_embeddings() == before
    text = jax.jit(accumulate).lower(BASE, ADAPTER, zero_gradients(ADAPTER), microbatch).as_text()
    embedding = "tensor<23x16xf32>"
    assert text.split("@main(")[1].split("->")[0].count(embedding) == 1
    assert not [line for line in text.splitlines() if "constant" in line and embedding in line]


def live_embeddings() -> int:
    return sum(each.shape == BASE.embedding.shape for each in jax.live_arrays())


def test_training_lowers_the_loss_and_touches_the_adapter_only():
    made, batch = objective(), rescored(tiny.samples())
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.01), total_steps=3)
    accumulate, apply = accumulator(made), make_apply(optimizer)
    (microbatch,) = packed(batch, rows=8, row_length=9)
    frozen = jax.tree.map(jnp.copy, BASE)
    state: TrainState = init_state(ADAPTER, optimizer)
    losses, programs = [], accumulate.function._cache_size()
    for _ in range(3):
        gradients, statistics = accumulate(BASE, state.adapter, zero_gradients(state.adapter), microbatch)
        losses.append(float(statistics["loss"]))
        state, _ = apply(state, gradients, float(statistics["tokens"]))
    assert losses[0] > losses[1] > losses[2]
    assert accumulate.function._cache_size() - programs <= 1, "an adapter that has moved compiles nothing"
    assert_same_bits(BASE, frozen)
