"""A critic beside the policy: one base, two gradients that do not touch each other, values and returns by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.objective import Objective, ObjectiveConfig
from components.algorithms.returns import generalised_advantages, normalised
from components.config import load
from components.errors import ConfigError, RunStoppedError
from components.model.decoder import forward
from components.model.lora import LoraConfig, module_names
from components.model.value_head import ValueHead, fresh_like
from components.training.critic import CriticConfig, CriticState, critic_shapes, make_critic
from components.training.learner import Learner
from components.training.ledger import Fate
from components.training.minibatches import minibatches
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import Packer, PackingConfig, to_sample
from components.training.reading import Reading
from components.training.update import init_state, make_accumulate, make_apply, make_score, zero_gradients
from components.types import Outcome, Sample
from tests.training import tiny
from tests.training.test_learner import group, rewarded, trajectory

BASE, ADAPTER = tiny.base(), tiny.adapter()
POLICY_RATE = OptimizerConfig(learning_rate=0.02)
OPTIMIZER = make_optimizer(POLICY_RATE, total_steps=50)
APPLY, SCORE = make_apply(OPTIMIZER), make_score(tiny.ARCHITECTURE, temperature=1.0)
PACKING = PackingConfig(rows=8, row_length=12, capacities=(96,))
CLIP = 0.3


@functools.cache
def critic() -> tuple[CriticState, object]:
    """A critic that expects something, and what trains it."""
    made, programs = make_critic(
        CriticConfig(), tiny.ARCHITECTURE, ADAPTER, optimizer=POLICY_RATE, steps=50, value_clip=CLIP, seed=3
    )
    leaves, tree = jax.tree.flatten(made.weights)
    keys = jax.random.split(jax.random.key(5), len(leaves))
    noisy = [leaf + 0.2 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return dataclasses.replace(made, weights=jax.tree.unflatten(tree, noisy)), programs


@functools.cache
def accumulator(made: Objective):
    return make_accumulate(tiny.ARCHITECTURE, made, temperature=1.0, chunk=8)


def learner(
    packing: PackingConfig = PACKING, *, programs=None, accumulate=None, score=SCORE, seed: int = 0, **values
) -> Learner:
    made = Objective.from_config(load(ObjectiveConfig, {"preset": "ppo", **values}))
    state = init_state(ADAPTER, OPTIMIZER)
    judged, own = critic()
    if made.needs_critic:
        state = dataclasses.replace(state, critic=jax.tree.map(jnp.copy, judged))
    return Learner(
        BASE,
        state,
        made,
        packing,
        accumulate=accumulate or accumulator(made),
        apply=APPLY,
        score=score,
        critic=(programs or own) if made.needs_critic else None,
        seed=seed,
    )


def values_by_row(weights, sample: Sample) -> np.ndarray:
    """The value after each token of a sample that is alone in its row, by plain algebra on the hidden states."""
    tokens = jnp.array([sample.token_ids])
    places = jnp.arange(tokens.shape[1])[None]
    hidden = forward(tiny.ARCHITECTURE, BASE, weights.adapter, tokens, places, jnp.ones_like(tokens))
    return np.asarray(hidden[0] @ weights.head.weight + weights.head.bias)


def judged_by_hand(weights, member) -> tuple[np.ndarray, float]:
    """Of a trajectory: the values of the states in which its tokens were sampled, and of the one behind the last."""
    sample = to_sample(member, 0.0)
    values = values_by_row(weights, sample)
    sampled = np.flatnonzero(sample.completion_mask)
    return values[sampled - 1], float(values[sampled[-1]])


@pytest.mark.parametrize("packing", [PACKING, PackingConfig(rows=1, row_length=24, capacities=(24,))])
def test_values_are_those_of_the_states_in_which_tokens_were_sampled_for_any_packing(packing):
    state, programs = critic()
    members = [trajectory(member, 1.0, turns=(0.0,) * (1 + member % 2), length=1 + member) for member in range(3)]
    reading = Reading(packing, lambda each: programs.judge(BASE, state.weights, each))
    reading.add([to_sample(member, 0.0) for member in members])
    for member, found, after in zip(members, *reading.finish(), strict=True):
        wanted, last = judged_by_hand(state.weights, member)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert after[-1] == pytest.approx(last, abs=1e-5)


def microbatches(rows: int, row_length: int, old: float = 0.0):
    """Eight samples with an old value of `old` and returns that differ from token to token."""
    packer = Packer(
        PackingConfig(rows=rows, row_length=row_length, capacities=(rows * row_length,)), lambda length: 1.0
    )
    return list(packer.pack(with_returns(old)))


def with_returns(old: float) -> list[Sample]:
    made = []
    for sample in tiny.samples():
        length = sum(sample.completion_mask)
        returns = tuple(np.linspace(-1.0, sample.advantage, length).tolist())
        made.append(dataclasses.replace(sample, values=(old,) * length, returns=returns))
    return made


def test_the_value_loss_of_any_packing_is_that_of_samples_alone_in_their_rows():
    state, programs = critic()
    batch = with_returns(0.1)
    length = max(len(sample.token_ids) for sample in batch)
    tokens = jnp.array([[*sample.token_ids, *[0] * (length - len(sample.token_ids))] for sample in batch])
    places = [np.flatnonzero(sample.completion_mask) for sample in batch]
    rows, before = np.repeat(np.arange(len(batch)), list(map(len, places))), np.concatenate(places) - 1
    returns = np.concatenate([sample.returns for sample in batch])

    @jax.jit
    def whole(weights):
        positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
        hidden = forward(tiny.ARCHITECTURE, BASE, weights.adapter, tokens, positions, jnp.ones_like(tokens))
        values = (hidden @ weights.head.weight + weights.head.bias)[rows, before]
        held = jnp.clip(values, 0.1 - CLIP, 0.1 + CLIP)
        return 0.5 * jnp.maximum((values - returns) ** 2, (held - returns) ** 2).sum()

    loss, wanted = jax.value_and_grad(whole)(state.weights)
    for shape in ((8, 9), (2, 18)):
        gradients, found = zero_gradients(state.weights), 0.0
        for microbatch in microbatches(*shape, old=0.1):
            gradients, statistics = programs.fit(BASE, state.weights, gradients, microbatch)
            found += float(statistics["value_loss"])
        assert found == pytest.approx(float(loss), rel=1e-4)
        for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_the_critic_stands_on_the_base_of_the_policy_which_is_neither_copied_nor_compiled_in():
    state, programs = critic()
    (microbatch,) = microbatches(8, 9)
    before = sum(each.shape == BASE.embedding.shape for each in jax.live_arrays())
    programs.fit(BASE, state.weights, zero_gradients(state.weights), microbatch)
    assert sum(each.shape == BASE.embedding.shape for each in jax.live_arrays()) == before
    lowered = jax.jit(programs.fit).lower(BASE, state.weights, zero_gradients(state.weights), microbatch).as_text()
    embedding = "tensor<23x16xf32>"
    assert lowered.split("@main(")[1].split("->")[0].count(embedding) == 1
    assert not [line for line in lowered.splitlines() if "constant" in line and embedding in line]


def bits(tree) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves(tree)]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(one, other, strict=True))


def test_the_critics_loss_moves_the_critic_alone_and_the_policys_the_policy_alone():
    frozen = bits(BASE)
    # Without whitening and with returns that were foreseen exactly there is nothing for the policy, only for neither.
    still = learner(accumulate=lambda base, adapter, gradients, *rest: (gradients, {}), epochs=1, minibatches=1)
    policy, value = bits(still.state.adapter), bits(still.state.critic.weights)
    still.add(rewarded(1.0, 0.0))
    still.finish()
    assert same(bits(still.state.adapter), policy)
    assert not same(bits(still.state.critic.weights), value)

    _, own = critic()
    deaf = own._replace(fit=lambda base, critic, gradients, microbatch: (gradients, {}))
    moved = learner(programs=deaf, epochs=1, minibatches=1)
    moved.add(rewarded(1.0, 0.0))
    moved.finish()
    assert not same(bits(moved.state.adapter), policy)
    assert same(bits(moved.state.critic.weights), value)
    assert same(bits(BASE), frozen)


class Seen:
    """Stands in the trainer's place and keeps the micro-batches."""

    def __init__(self) -> None:
        self.microbatches = []

    def __call__(self, base, adapter, gradients, microbatch, version=None):
        self.microbatches.append(microbatch)
        tokens = jnp.sum(microbatch.sampled.mask, dtype=jnp.float32)
        zero = jnp.float32(0.0)
        parts = {"loss": zero, "policy_loss": zero, "importance_weight": zero, "importance_weight_squared": zero}
        return gradients, {"tokens": tokens, "behavior_kl": 0.5 * tokens, **parts}

    def flat(self, name: str) -> np.ndarray:
        parts = [np.asarray(getattr(each.sampled, name))[np.asarray(each.sampled.mask)] for each in self.microbatches]
        return np.concatenate(parts)


@pytest.mark.parametrize("bootstrap", [True, False])
def test_advantages_and_returns_are_gae_over_the_critics_values_and_truncated_episodes_bootstrap(bootstrap):
    seen = Seen()
    keys = {"discount": 0.9, "decay": 0.8, "credit": "turn", "epochs": 1, "minibatches": 1, "bootstrap": bootstrap}
    made = learner(accumulate=seen, **keys)
    weights = made.state.critic.weights
    ended = trajectory(0, 1.0, turns=(0.25, 0.0))
    cut = dataclasses.replace(trajectory(1, 0.5, length=3), outcome=Outcome.TRUNCATED, cut_by="length")
    assert made.add(group(ended, cut)) is Fate.TRAINED
    judged = [judged_by_hand(weights, member) for member in (ended, cut)]
    numbers = made.finish()
    # Rewards stand at the last token of a turn; the last turn has what no other claims.
    rewards = [[0.0, 0.25, 0.0, 0.75], [0.0, 0.0, 0.5]]
    lasts = [0.0, judged[1][1] if bootstrap else 0.0]
    advantages, returns = [], []
    for given, (values, _), last in zip(rewards, judged, lasts, strict=True):
        found = generalised_advantages(
            given, values.tolist(), [True] * len(given), discount=0.9, decay=0.8, last_value=last
        )
        advantages += found[0]
        returns += found[1]
    np.testing.assert_allclose(seen.flat("advantages"), normalised(advantages), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(seen.flat("returns"), returns, rtol=1e-4, atol=1e-5)
    old = np.concatenate([values for values, _ in judged])
    np.testing.assert_allclose(seen.flat("values"), old, atol=1e-5)
    assert numbers["explained_variance"] == pytest.approx(1 - np.var(returns - old) / np.var(returns), rel=1e-4)
    assert numbers["return_mean"] == pytest.approx(np.mean(returns), rel=1e-4)
    assert numbers["value_mean"] == pytest.approx(old.mean(), rel=1e-3)
    assert numbers["value_loss"] == pytest.approx(0.5 * np.mean((old - returns) ** 2), rel=1e-3)
    assert numbers["value_clipped"] == 0.0


def test_two_members_without_a_difference_still_teach_the_critic():
    made = learner(epochs=1, minibatches=1, whiten=False)
    before = bits(made.state.critic.weights)
    assert made.add(rewarded(0.5, 0.5)) is Fate.TRAINED
    made.finish()
    assert not same(bits(made.state.critic.weights), before)


def test_one_pass_of_one_minibatch_is_the_step_of_the_whole_batch():
    """A row at a time as the learner does it, and all samples in one gradient that is divided once."""
    kept, packing = Seen(), PackingConfig(rows=1, row_length=12, capacities=(12,))
    for made in (learner(accumulate=kept, epochs=1, minibatches=1), learner(packing, epochs=1, minibatches=1)):
        for rewards in ((1.0, 0.0, 0.5), (0.0, 0.0, 1.0)):
            made.add(rewarded(*rewards))
        numbers = made.finish()
    assert (numbers["microbatches"], numbers["trained_tokens"]) == (2, 12)
    (whole,) = kept.microbatches
    gradients, _ = accumulator(made._objective)(BASE, ADAPTER, zero_gradients(ADAPTER), whole)
    wanted, _ = APPLY(init_state(ADAPTER, OPTIMIZER), gradients, 12)
    state, programs = critic()
    gradients, _ = programs.fit(BASE, state.weights, zero_gradients(state.weights), whole)
    judged, _ = programs.apply(jax.tree.map(jnp.copy, state), gradients, 12, jnp.int32(0))
    found = (made.state.adapter, made.state.critic.weights)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, (wanted.adapter, judged.weights))), strict=True):
        # Adam moves by the gradient's sign, which rounding decides where the gradient is nearly 0.
        assert np.mean(np.abs(np.asarray(ours) - np.asarray(theirs)) > 1e-4) < 0.02


def test_passes_and_minibatches_make_their_updates_and_count_one_step_and_each_token_once():
    seen = Seen()
    made = learner(accumulate=seen, epochs=3, minibatches=2)
    for rewards in ((1.0, 0.0), (0.5, 0.0, 1.0)):
        made.add(rewarded(*rewards))
    numbers = made.finish()
    assert (int(made.state.step), int(made.state.skipped)) == (1, 0)
    assert (numbers["updates"], numbers["epochs"], numbers["microbatches"]) == (6, 3, 6)
    assert numbers["trained_tokens"] == 10
    assert [numbers[f"epoch_kl_{number}"] for number in (1, 2, 3)] == [0.5] * 3
    sizes = [int(each.sampled.mask.sum()) for each in seen.microbatches]
    assert sizes == [6, 4] * 3
    orders = [[np.asarray(each.targets).tolist() for each in seen.microbatches[2 * n : 2 * n + 2]] for n in range(3)]
    assert orders[0] != orders[1] != orders[2]


def test_a_pass_that_went_too_far_is_the_last():
    for bound, made in ((0.4, 1), (0.6, 3)):
        found = learner(accumulate=Seen(), epochs=3, max_kl=bound)
        found.add(rewarded(1.0, 0.0))
        assert found.finish()["epochs"] == made
        assert int(found.state.step) == 1


def test_the_step_is_one_version_for_all_of_its_updates():
    versions = []

    class Versions(Seen):
        def __call__(self, base, adapter, gradients, microbatch, version=None):
            versions.append(int(version))
            return super().__call__(base, adapter, gradients, microbatch, version)

    made = learner(accumulate=Versions(), epochs=2, minibatches=2)
    for _ in range(2):
        made.add(rewarded(1.0, 0.0))
        made.finish()
    assert versions == [0] * 4 + [1] * 4


def test_minibatches_are_shuffled_by_seed_step_and_pass_alone():
    samples = list(tiny.samples())
    parts = minibatches(samples, 3, seed=1, step=2, epoch=0)
    assert sorted(len(part) for part in parts) == [2, 3, 3]
    assert sorted(each.task_id for part in parts for each in part) == [str(number) for number in range(8)]
    np.random.seed(7)
    assert minibatches(samples, 3, seed=1, step=2, epoch=0) == parts
    others = [
        minibatches(samples, 3, **key)
        for key in (
            {"seed": 2, "step": 2, "epoch": 0},
            {"seed": 1, "step": 3, "epoch": 0},
            {"seed": 1, "step": 2, "epoch": 1},
        )
    ]
    assert all(other != parts for other in others)
    assert minibatches(samples, 1, seed=1, step=2, epoch=0) == [samples]
    assert [len(part) for part in minibatches(samples[:2], 5, seed=1, step=2, epoch=0)] == [1, 1]
    assert minibatches([], 5, seed=1, step=2, epoch=0) == [[]]


def test_later_updates_are_clipped_around_the_policy_at_the_steps_start():
    """With `proximal: current` the log-probs of the start are read once, before the first update."""
    seen = Seen()
    made = learner(accumulate=seen, preset="grpo", proximal="current", epochs=2)
    members = [trajectory(member, float(member)) for member in range(3)]
    made.add(group(*members))
    made.finish()
    (microbatch,) = Packer(PACKING, lambda length: 1.0).pack(
        [to_sample(member, 1.0) for member in (members[0], members[2])]
    )
    wanted = np.asarray(SCORE(BASE, ADAPTER, microbatch))[np.asarray(microbatch.sampled.mask)]
    # The one in the middle has advantage 0 and is left out.
    for each in seen.microbatches:
        found = np.asarray(each.sampled.proximal_logprobs)[np.asarray(each.sampled.mask)]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "policies"),
    [({"preset": "ppo"}, [None]), ({"preset": "grpo", "reference": "start", "proximal": "current"}, ["now", "start"])],
)
def test_what_no_update_of_a_step_changes_is_read_once_for_all_of_them(settings, policies):
    named = {None: None, "start": ADAPTER, "now": jax.tree.map(lambda leaf: 2 * leaf, ADAPTER)}
    seen, read = Seen(), []

    def score(base, adapter, microbatch):
        read.append((next(name for name in named if adapter is named[name]), int(microbatch.sampled.mask.sum())))
        return SCORE(base, adapter, microbatch)

    made = learner(accumulate=seen, score=score, kl_coefficient=0.1, epochs=3, minibatches=2, **settings)
    made.state = dataclasses.replace(made.state, adapter=named["now"])
    for rewards in ((1.0, 0.0), (0.5, 0.0, 1.0)):
        made.add(rewarded(*rewards))
    made.finish()
    assert read == [(name, 10) for name in policies]
    assert len(seen.microbatches) == 6
    for each in seen.microbatches:
        wanted = np.asarray(SCORE(BASE, named[policies[-1]], each))
        np.testing.assert_allclose(each.sampled.reference_logprobs, wanted, rtol=1e-4, atol=1e-5)


def test_several_updates_of_any_objective_lower_its_loss_further_than_one():
    moved = []
    for epochs in (1, 3):
        made = learner(preset="grpo", epochs=epochs)
        made.add(rewarded(1.0, 0.0, 0.0))
        made.finish()
        moved.append(
            sum(float(np.abs(a - b).sum()) for a, b in zip(bits(made.state.adapter), bits(ADAPTER), strict=True))
        )
    assert moved[1] > 1.5 * moved[0]


def test_a_critic_whose_gradients_are_not_finite_stops_the_run_and_poisons_nothing():
    _, own = critic()

    def broken(base, critic, gradients, microbatch):
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), gradients), {}

    made = learner(programs=own._replace(fit=broken, max_skipped=1), epochs=1, minibatches=1)
    before = bits(made.state.critic)
    made.add(rewarded(1.0, 0.0))
    assert made.finish()["critic_skipped"] == 1
    made.add(rewarded(1.0, 0.0))
    with pytest.raises(
        RunStoppedError, match=r"2 updates of the critic in a row.*critic\.optimizer\.max_skipped \(1\)"
    ):
        made.finish()
    assert same(bits(made.state.critic), before)


def test_a_step_in_which_nothing_was_played_has_numbers_that_are_finite():
    made = learner()
    numbers = made.finish()
    assert np.isfinite(list(numbers.values())).all()
    assert (numbers["loss"], numbers["trained_tokens"], int(made.state.step)) == (0.0, 0.0, 1)


def test_a_critic_binds_what_the_policy_binds_or_what_its_own_section_says():
    fresh = fresh_like(jax.random.key(0), ADAPTER)
    assert module_names(fresh) == module_names(ADAPTER)
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, ADAPTER)
    assert all(not pair.b.any() for layer in fresh.layers for pair in layer.values())
    own = CriticConfig(lora=LoraConfig(rank=3, targets=(".*q_proj",)))
    shapes = critic_shapes(own, tiny.ARCHITECTURE, ADAPTER)
    assert module_names(shapes.adapter) == ("model.layers.0.self_attn.q_proj",)
    assert shapes.adapter.layers[0]["q_proj"].a.shape == (16, 3)
    assert isinstance(shapes.head, ValueHead)
    assert shapes.head.weight.shape == (16,)
    with pytest.raises(ConfigError, match="binds no module"):
        critic_shapes(CriticConfig(lora=LoraConfig(targets=("x",))), tiny.ARCHITECTURE, ADAPTER)
