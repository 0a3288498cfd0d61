"""The orchestrator never waits for the slowest, never runs too far ahead, and never swallows a bug."""

import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.environments.environment import Observation
from components.errors import ConfigError, RunStoppedError
from components.rollout.cursor import TaskCursor
from components.rollout.episode import EpisodeLimits, run_episode
from components.rollout.orchestrator import Listener, Orchestrator, RolloutConfig, play_all
from components.types import Completion, Failure, FinishReason, Outcome, SequenceId, Task, Trajectory, Turn
from tests.fakes import ByteRenderer, EchoEnvironment, ScriptedPolicy

TASKS = [Task(id=name, prompt="the same text") for name in "abcdefgh"]


def trajectory(task: Task, sequence: SequenceId, *, failed: bool = False, reward: float = 0.0) -> Trajectory:
    return Trajectory(
        task=task,
        turns=(Turn((1,), Completion((2,), (-0.1,), (0,), FinishReason.STOP)),),
        messages=(),
        outcome=Outcome.FAILED if failed else Outcome.FINISHED,
        reward=None if failed else float(reward),
        failure=Failure("tool", "no port") if failed else None,
        epoch=sequence.epoch,
        member=sequence.member,
        attempt=sequence.attempt,
    )


def collect(play, config: RolloutConfig, *, steps: int, seed: int = 0, tasks=TASKS, **callbacks):
    """Consume `steps` optimizer steps' worth of groups, advancing the version after each."""

    async def run():
        seen = []
        cursor = TaskCursor(tasks, seed=seed)
        async with Orchestrator(play, cursor, config, last_version=steps, **callbacks) as orchestrator:
            async for group in orchestrator:
                seen.append(group)
                if len(seen) % config.tasks_per_step == 0:
                    orchestrator.advance(len(seen) // config.tasks_per_step)
        return seen

    return asyncio.run(run())


async def instant(task, sequence):
    return trajectory(task, sequence)


def test_exactly_the_planned_groups_are_played():
    played = []

    async def play(task, sequence):
        played.append((task.id, sequence.epoch, sequence.member))
        return trajectory(task, sequence)

    config = RolloutConfig(group_size=2, tasks_per_step=3, max_concurrency=64, max_staleness=2)
    groups = collect(play, config, steps=5)
    assert len(groups) == 15
    assert len(played) == len(set(played)) == 30


@settings(deadline=None, max_examples=25)
@given(staleness=st.integers(0, 3), per_step=st.integers(1, 3), concurrency=st.integers(2, 12), data=st.data())
def test_generation_never_runs_further_ahead_than_the_bound(staleness, per_step, concurrency, data):
    config = RolloutConfig(group_size=2, tasks_per_step=per_step, max_concurrency=concurrency, max_staleness=staleness)
    delays = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=7))
    state = {"running": 0, "peak": 0, "started": 0}

    async def run():
        consumed = 0

        async def play(task, sequence):
            state["running"] += 1
            state["peak"] = max(state["peak"], state["running"])
            state["started"] += 1
            # Whatever starts belongs to a step that is at most `staleness` ahead of the version in force.
            assert (state["started"] - 1) // 2 < (staleness + consumed // per_step + 1) * per_step
            for _ in range(delays[state["started"] % len(delays)]):
                await asyncio.sleep(0)
            state["running"] -= 1
            return trajectory(task, sequence)

        async with Orchestrator(play, TaskCursor(TASKS, seed=1), config, last_version=4) as orchestrator:
            async for _ in orchestrator:
                consumed += 1
                if consumed % per_step == 0:
                    orchestrator.advance(consumed // per_step)
        return consumed

    assert asyncio.run(run()) == 4 * per_step
    assert state["peak"] <= concurrency


def test_without_staleness_groups_come_in_order_of_admission_whatever_their_speed():
    async def play(task, sequence):
        await asyncio.sleep(0.02 if task.id in "aceg" else 0)
        return trajectory(task, sequence)

    config = RolloutConfig(group_size=2, tasks_per_step=4, max_staleness=0)
    assert [group.position for group in collect(play, config, steps=3)] == list(range(12))


def test_with_staleness_a_fast_group_overtakes_a_slow_one():
    slow = next(TaskCursor(TASKS, seed=0)).task.id

    async def play(task, sequence):
        await asyncio.sleep(0.05 if task.id == slow and sequence.epoch == 0 else 0)
        return trajectory(task, sequence)

    config = RolloutConfig(group_size=2, tasks_per_step=2, max_staleness=1)
    positions = [group.position for group in collect(play, config, steps=3)]
    assert sorted(positions) == list(range(6))
    assert positions[0] != 0


def test_members_keep_their_own_reward_whatever_the_order_of_arrival():
    seconds = (0.03, 0.01, 0.02)

    async def play(task, sequence):
        await asyncio.sleep(seconds[sequence.member])
        return trajectory(task, sequence, reward=sequence.member + 10 * (task.id == "b"))

    config = RolloutConfig(group_size=3, tasks_per_step=2)
    groups = collect(play, config, steps=1, tasks=TASKS[:2])
    rewards = {group.task.id: [member.reward for member in group.trajectories] for group in groups}
    assert rewards == {"a": [0.0, 1.0, 2.0], "b": [10.0, 11.0, 12.0]}


def test_equal_prompts_are_groups_of_their_own_and_a_reward_sits_with_its_completion():
    """Two tasks with one text; the reward is the number that the completion holds."""
    tasks = [Task("a", "same"), Task("b", "same")]

    class Number(EchoEnvironment):
        async def step(self, message):
            self.said = message.content
            return Observation((), done=True)

        async def reward(self):
            return float(self.said)

    def groups(*seconds):
        async def play(task, sequence):
            policy = ScriptedPolicy(str(sequence.member + 5 * (task.id == "b")), seconds=dict(enumerate(seconds)))
            limits = EpisodeLimits()
            return await run_episode(policy, Number(), ByteRenderer(), task, limits=limits, sequence=sequence)

        config = RolloutConfig(group_size=3, tasks_per_step=2)
        return {
            group.task.id: [(bytes(each.turns[0].completion.token_ids), each.reward) for each in group.trajectories]
            for group in collect(play, config, steps=1, tasks=tasks)
        }

    expected = {"a": [(b"0", 0.0), (b"1", 1.0), (b"2", 2.0)], "b": [(b"5", 5.0), (b"6", 6.0), (b"7", 7.0)]}
    assert groups(0.03, 0.01, 0.02) == groups(0, 0, 0) == expected


def test_a_failed_episode_is_tried_again_and_every_attempt_is_seen():
    seen = []

    async def play(task, sequence):
        return trajectory(task, sequence, failed=sequence.member == 0 and sequence.attempt == 0)

    config = RolloutConfig(group_size=2, tasks_per_step=1, max_attempts=2)
    (group,) = collect(play, config, steps=1, listener=Listener(ended=lambda position, ended: seen.append(ended)))
    assert [member.attempt for member in group.trajectories] == [1, 0]
    assert len(seen) == 3


def test_a_group_without_two_valid_members_trains_nothing_and_another_takes_its_place():
    rejected = []
    broken = next(TaskCursor(TASKS, seed=0)).task.id

    async def play(task, sequence):
        return trajectory(task, sequence, failed=task.id == broken and sequence.member > 0)

    config = RolloutConfig(group_size=3, tasks_per_step=2, max_attempts=1)
    groups = collect(play, config, steps=1, listener=Listener(rejected=rejected.append))
    assert len(groups) == 2
    assert [group.task.id for group in rejected] == [broken]
    assert broken not in {group.task.id for group in groups}


def test_an_outage_stops_the_run_with_the_environments_own_words():
    async def play(task, sequence):
        return trajectory(task, sequence, failed=True)

    config = RolloutConfig(group_size=2, tasks_per_step=2, max_failures_in_a_row=6)
    with pytest.raises(RunStoppedError, match=r"6 episodes failed in a row.*'tool'.*no port"):
        collect(play, config, steps=2)


def test_a_bug_ends_the_run_as_itself():
    async def play(task, sequence):
        if sequence.member == 1:
            raise ZeroDivisionError("our own")
        return trajectory(task, sequence)

    with pytest.raises(ZeroDivisionError, match="our own"):
        collect(play, RolloutConfig(group_size=2, tasks_per_step=2), steps=1)


def test_attempts_that_ended_before_a_restart_are_not_played_again():
    first = next(TaskCursor(TASKS, seed=0))
    before = [
        trajectory(first.task, SequenceId(first.task.id, member=0), reward=5),
        trajectory(first.task, SequenceId(first.task.id, member=1), failed=True),
    ]
    played, ended = [], []

    async def play(task, sequence):
        played.append((sequence.member, sequence.attempt))
        return trajectory(task, sequence)

    config = RolloutConfig(group_size=3, tasks_per_step=1, max_attempts=2)
    listener = Listener(ended=lambda position, each: ended.append((position, each.member)))
    (group,) = collect(play, config, steps=1, recovered={0: before}, listener=listener)
    assert sorted(played) == [(1, 1), (2, 0)]
    assert [member.reward for member in group.trajectories] == [5.0, 0.0, 0.0]
    assert sorted(ended) == [(0, 1), (0, 2)]


def test_a_quorum_closes_a_group_without_its_slowest_members():
    cancelled, closed = [], []

    async def play(task, sequence):
        try:
            await asyncio.sleep(60 if sequence.member == 2 else 0)
        except asyncio.CancelledError:
            cancelled.append(sequence.member)
            raise
        return trajectory(task, sequence)

    config = RolloutConfig(group_size=3, tasks_per_step=1, max_staleness=1, group_quorum=2)
    listener = Listener(closed=lambda position, task, epoch: closed.append(position))
    groups = collect(play, config, steps=2, listener=listener)
    assert [[member.member for member in group.trajectories] for group in groups] == [[0, 1], [0, 1]]
    assert set(cancelled) == {2}
    assert sorted(closed)[:2] == [0, 1]


def test_a_failed_member_does_not_count_for_the_quorum():
    async def play(task, sequence):
        await asyncio.sleep(0.01 * sequence.member)
        return trajectory(task, sequence, failed=sequence.member == 0)

    config = RolloutConfig(group_size=4, tasks_per_step=1, max_staleness=1, group_quorum=2, max_attempts=1)
    (group,) = collect(play, config, steps=1)
    assert [member.member for member in group.valid] == [1, 2]


def test_one_kind_of_failure_in_too_large_a_share_stops_the_run_with_a_summary():
    async def play(task, sequence):
        await asyncio.sleep(0)
        return trajectory(task, sequence, failed=sequence.member == 0)

    config = RolloutConfig(
        group_size=3, tasks_per_step=4, max_staleness=1, max_attempts=1, max_failure_share=0.25, max_concurrency=48
    )
    with pytest.raises(RunStoppedError, match=r"51 of the last 1\d\d attempts.*'tool'.*25% of 200") as caught:
        collect(play, config, steps=100)
    assert re.search(r"51 of 1\d\d attempts failed, by kind:\n  tool +51   last: no port", str(caught.value))


def test_a_group_that_was_handed_on_and_given_back_is_replaced():
    async def run():
        config, seen = RolloutConfig(group_size=2, tasks_per_step=2), []
        async with Orchestrator(instant, TaskCursor(TASKS, seed=0), config, last_version=1) as orchestrator:
            async for group in orchestrator:
                seen.append(group.position)
                if len(seen) == 1:
                    orchestrator.replace()
        return seen

    assert asyncio.run(run()) == [0, 1, 2]


def test_a_limit_that_changes_while_the_run_goes_on_is_kept():
    running = peak = 0

    async def play(task, sequence):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return trajectory(task, sequence)

    async def run():
        nonlocal peak
        config = RolloutConfig(group_size=2, tasks_per_step=4, max_staleness=3, max_concurrency="auto")
        async with Orchestrator(play, TaskCursor(TASKS, seed=0), config, last_version=6) as orchestrator:
            assert orchestrator.concurrency == 8
            seen, peaks = 0, []
            async for _ in orchestrator:
                seen += 1
                if seen % 4 == 0:
                    peaks.append(peak)
                    peak, orchestrator.concurrency = 0, (2 if seen == 4 else 12)
                    orchestrator.advance(seen // 4)
        return peaks

    peaks = asyncio.run(run())
    assert peaks[0] == 8
    assert max(peaks) <= 12


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"group_quorum": 8}, r"group_quorum: must be less than group_size \(8\).*got 8"),
        ({"group_quorum": 4, "max_staleness": 0}, "group_quorum: makes a run depend on time"),
        ({"drop_older_than": 1, "max_staleness": 2}, r"drop_older_than: is below max_staleness \(2\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(values, said):
    with pytest.raises(ConfigError, match=said):
        RolloutConfig(**({"group_size": 8, "max_staleness": 1} | values))


def test_leaving_early_cancels_what_still_runs():
    cancelled = []

    async def play(task, sequence):
        try:
            await asyncio.sleep(60 if sequence.member else 0)
        except asyncio.CancelledError:
            cancelled.append(task.id)
            raise
        return trajectory(task, sequence)

    async def run():
        config = RolloutConfig(group_size=2, tasks_per_step=2)
        async with Orchestrator(play, TaskCursor(TASKS, seed=0), config, last_version=1):
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert len(cancelled) == 2


def test_a_concurrency_below_the_group_size_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"group_size \(8\).*got 4"):
        RolloutConfig(group_size=8, max_concurrency=4)


def test_play_all_keeps_the_order_and_the_bound():
    running = peak = 0

    async def play(task, sequence):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001 * (5 - sequence.member))
        running -= 1
        return trajectory(task, sequence)

    sequences = [(TASKS[0], SequenceId("a", member=member)) for member in range(5)]
    played = asyncio.run(play_all(play, sequences, max_concurrency=2))
    assert [member.member for member in played] == [0, 1, 2, 3, 4]
    assert peak == 2
