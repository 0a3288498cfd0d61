"""Groups in, one better adapter out: what each token is credited with, what is refused, and when it stops."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.algorithms.objective import Objective, ObjectiveConfig
from components.config import load
from components.errors import RunStoppedError
from components.training.learner import Learner
from components.training.ledger import Fate
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import Packer, PackingConfig, to_sample
from components.training.update import init_state, make_accumulate, make_apply, make_score
from components.types import Completion, FinishReason, Group, Outcome, Task, Trajectory, Turn
from tests.training import tiny

BASE, ADAPTER = tiny.base(), tiny.adapter()
SCORE = make_score(tiny.ARCHITECTURE, temperature=1.0)
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=0.01), total_steps=50)
APPLY = make_apply(OPTIMIZER)


@functools.cache
def accumulator(made: Objective):
    return make_accumulate(tiny.ARCHITECTURE, made, temperature=1.0, chunk=8)


class Seen:
    """Stands in the trainer's place and keeps the micro-batches: what they hold is the question, not their gradient."""

    def __init__(self) -> None:
        self.microbatches = []

    def __call__(self, base, adapter, gradients, microbatch, version=None):
        self.microbatches.append(microbatch)
        return gradients, {}

    @property
    def advantages(self) -> list[float]:
        """Of all sampled tokens, in their order."""
        parts = [np.asarray(each.sampled.advantages)[np.asarray(each.sampled.mask)] for each in self.microbatches]
        return np.concatenate(parts).tolist()


def learner(seen: Seen | None = None, packing: PackingConfig | None = None, apply=APPLY, **values) -> Learner:
    made = Objective.from_config(load(ObjectiveConfig, values))
    state = init_state(ADAPTER, OPTIMIZER)
    packing = packing or PackingConfig(rows=8, row_length=12, capacities=(96,))
    accumulate = accumulator(made) if seen is None else seen
    return Learner(BASE, state, made, packing, accumulate=accumulate, apply=apply, score=SCORE, max_skipped=1)


def trajectory(member: int, reward: float, turns: tuple[float, ...] = (0.0,), length: int = 2) -> Trajectory:
    """Turns of `length` sampled tokens each, and what each has earned of the reward; one observed token between."""
    context: list[int] = [1, 2]
    played = []
    for number, earned in enumerate(turns):
        ids = tuple((3 + member + number + place) % 23 for place in range(length))
        completion = Completion(ids, (-2.0,) * length, (0,) * length, FinishReason.STOP)
        played.append(Turn(tuple(context), completion, reward=earned))
        context += [*ids, 7]
    return Trajectory(
        task=Task(id="t", prompt=""),
        turns=tuple(played),
        messages=(),
        outcome=Outcome.FINISHED,
        reward=reward,
        member=member,
    )


def group(*members: Trajectory) -> Group:
    return Group(members[0].task, members)


def rewarded(*rewards: float) -> Group:
    return group(*(trajectory(member, reward) for member, reward in enumerate(rewards)))


def test_a_reward_at_the_end_is_credited_to_every_token_of_the_episode():
    seen = Seen()
    made = learner(seen, preset="rloo")
    assert made.add(rewarded(1.0, 0.0, 0.5)) is Fate.TRAINED
    numbers = made.finish()
    assert seen.advantages == pytest.approx([0.75, 0.75, -0.75, -0.75])
    assert numbers["advantage_max"] == 0.75
    assert (numbers["reward_mean"], numbers["reward_min"], numbers["reward_max"]) == (0.5, 0.0, 1.0)
    assert numbers["groups_without_signal"] == 0


def test_turn_rewards_are_credited_to_their_turn_and_those_before_it():
    seen = Seen()
    made = learner(seen, advantage="dr_grpo", credit="turn")
    # To go: 1 1 and 0.5 0 (what no turn claims is the last turn's).
    made.add(group(trajectory(0, 1.0, turns=(0.0, 0.0)), trajectory(1, 0.5, turns=(0.5, 0.0))))
    made.finish()
    assert seen.advantages == pytest.approx([0.25, 0.25, 0.5, 0.5, -0.25, -0.25, -0.5, -0.5])


def test_turn_rewards_change_nothing_where_the_episode_is_credited():
    seen, plain = Seen(), Seen()
    for each, turns in ((seen, (0.5, 0.0)), (plain, (0.0, 0.0))):
        made = learner(each, advantage="dr_grpo")
        made.add(group(trajectory(0, 1.0, turns=(0.0, 0.0)), trajectory(1, 0.5, turns=turns)))
        made.finish()
    assert seen.advantages == plain.advantages


def test_reinforce_pp_compares_the_whole_batch_however_it_is_split_into_groups():
    found = []
    for groups in ([rewarded(1.0, 0.0), rewarded(0.5, 0.5)], [rewarded(1.0, 0.0, 0.5, 0.5)]):
        seen = Seen()
        made = learner(seen, preset="reinforce_pp", discount=0.5)
        assert [made.add(each) for each in groups] == [Fate.TRAINED] * len(groups)
        assert seen.microbatches == []
        made.finish()
        found.append(seen.advantages)
    returns = np.array([0.5, 1.0, 0.0, 0.0, 0.25, 0.5, 0.25, 0.5])
    wanted = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(found[1], wanted, rtol=1e-5)


def test_the_overlong_penalty_comes_off_the_reward_in_sampled_tokens():
    seen = Seen()
    made = learner(seen, advantage="dr_grpo", overlong_penalty=1.0, overlong_limit=5, overlong_buffer=4)
    # 2 and 4 sampled tokens: -1/4 and -3/4, so rewards of 0.75 and 0.25.
    made.add(group(trajectory(0, 1.0), trajectory(1, 1.0, length=4)))
    made.finish()
    assert seen.advantages == pytest.approx([0.25] * 2 + [-0.25] * 4)


def scores(members: tuple[Trajectory, ...], adapter) -> list[np.ndarray]:
    """Log-probs of each member's sampled tokens, one forward pass each."""
    found = []
    for member in members:
        packer = Packer(PackingConfig(rows=1, row_length=12, capacities=(12,)), lambda length: 1.0)
        (microbatch,) = packer.pack([to_sample(member, 0.0)])
        found.append(np.asarray(SCORE(BASE, adapter, microbatch))[np.asarray(microbatch.sampled.mask)])
    return found


@pytest.mark.parametrize("reference", ["base", "start"])
def test_a_kl_in_the_reward_is_charged_against_the_reference_for_any_packing(reference):
    members = tuple(trajectory(member, float(member % 2)) for member in range(4))
    references = scores(members, None if reference == "base" else ADAPTER)
    distance = [np.full(2, -2.0) - each for each in references]
    rewards = np.array([member.reward - 0.1 * each.sum() for member, each in zip(members, distance, strict=True)])
    wanted = np.repeat(rewards - rewards.mean(), 2)
    for packing in (None, PackingConfig(rows=1, row_length=12, capacities=(12,))):
        seen = Seen()
        keys = {"kl_coefficient": 0.1, "kl_place": "reward", "reference": reference}
        made = learner(seen, packing, advantage="dr_grpo", **keys)
        made.add(group(*members))
        numbers = made.finish()
        np.testing.assert_allclose(seen.advantages, wanted, rtol=1e-4, atol=1e-5)
        k3 = np.concatenate([np.exp(-each) + each - 1 for each in distance]).mean()
        assert numbers["reference_kl"] == pytest.approx(k3, rel=1e-4)


def test_the_start_adapter_stays_the_reference_when_the_policy_has_moved_on():
    made = learner(kl_coefficient=0.1, reference="start")
    kls = []
    for _ in range(2):
        made.add(rewarded(1.0, 0.0))
        kls.append(made.finish()["reference_kl"])
    assert kls[0] == pytest.approx(0.0, abs=1e-9)
    assert kls[1] > 1e-7


@pytest.mark.parametrize("rows", [16, 8, 4, 3])
def test_micro_batches_of_any_size_give_the_same_advantages_and_the_same_update(rows):
    """AL10: two tasks of eight samples; a last micro-batch that is not full is padded."""
    groups = [rewarded(*[1.0, 0.0, 0.5, 0.0, 1.0, 0.0, 0.0, 1.0]), rewarded(*[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])]
    adapters = []
    for size in (16, rows):
        made = learner(None, PackingConfig(rows=size, row_length=8, capacities=(8 * size,)), preset="grpo")
        for each in groups:
            made.add(each)
        made.finish()
        adapters.append(made.state.adapter)
    for ours, theirs in zip(*map(jax.tree.leaves, adapters), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_dynamic_sampling_refuses_groups_without_a_mix_and_ends_with_clear_words():
    made = learner(preset="dapo", refill_limit=2)
    assert not made.refuses(rewarded(1.0, 0.0))
    assert made.refuses(rewarded(0.7, 0.7))
    assert made.refuses(rewarded(0.0, 0.0))
    with pytest.raises(RunStoppedError, match=r"step 1: 3 groups.*the last 1, more than objective.refill_limit \(2\)"):
        made.refuses(rewarded(1.0, 1.0))
    made.add(rewarded(1.0, 0.0))
    assert made.finish()["groups_refused"] == 3
    assert made.refuses(rewarded(0.7, 0.7))
    assert not learner().refuses(rewarded(0.7, 0.7))


def test_a_step_in_which_nothing_was_played_has_numbers_that_are_finite():
    made = learner()
    numbers = made.finish()
    assert np.isfinite(list(numbers.values())).all()
    assert (numbers["loss"], numbers["skipped"], numbers["reward_mean"], numbers["advantage_std"]) == (0.0, 1, 0.0, 0.0)


def test_gradients_that_are_not_finite_stop_the_run_after_a_bound_and_poison_nothing():
    broken = [True]

    def apply(state, gradients, denominator, steps=1):
        if broken[0]:
            gradients = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), gradients)
        return APPLY(state, gradients, denominator, steps)

    made = learner(apply=apply)

    def step() -> dict[str, float]:
        made.add(rewarded(1.0, 0.0))
        return made.finish()

    first = step()
    assert first["skipped"] == 1
    broken[0] = False
    assert step()["skipped"] == 0
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((made.state.adapter, made.state.optimizer)))
    broken[0] = True
    step()
    before = jax.tree.map(np.asarray, made.state.adapter)
    with pytest.raises(RunStoppedError, match=r"2 optimizer steps in a row were not finite.*max_skipped \(1\)"):
        step()
    for ours, theirs in zip(jax.tree.leaves(made.state.adapter), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_member_that_said_nothing_is_compared_with_and_not_trained_on():
    seen = Seen()
    made = learner(seen, advantage="dr_grpo")
    silent = dataclasses.replace(trajectory(1, 0.0), turns=())
    assert made.add(group(trajectory(0, 1.0), silent)) is Fate.TRAINED
    made.finish()
    assert seen.advantages == [0.5, 0.5]


def test_the_trainer_s_log_probs_of_what_it_trained_on_are_those_before_the_update():
    made = learner()
    members = [trajectory(0, 1.0, (0.0, 0.0)), trajectory(1, 0.0, length=3)]
    made.add(Group(members[0].task, tuple(members)))
    made.finish()
    assert set(made.logprobs) == {("t", 0), ("t", 1)}
    packing = PackingConfig(rows=8, row_length=12, capacities=(96,))
    for member in members:
        (microbatch,) = Packer(packing, lambda length: 1.0).pack([to_sample(member, 0.0)])
        expected = np.asarray(SCORE(BASE, ADAPTER, microbatch))[np.asarray(microbatch.sampled.mask)]
        assert made.logprobs["t", member.member].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    made.finish()
    assert made.logprobs == {}
