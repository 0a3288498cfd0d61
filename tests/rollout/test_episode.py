"""An episode is one policy in one environment: what is cut, what fails, and what is a bug."""

import asyncio

import pytest

from components.environments.environment import Observation
from components.errors import ConfigError
from components.rollout.episode import EpisodeLimits, run_episode
from components.types import Message, Outcome, Role, SequenceId, Task, Trajectory
from tests.fakes import ByteRenderer, EchoEnvironment, ScriptedPolicy

TASK = Task(id="0", prompt="hi")


def play(policy, environment, **limits) -> Trajectory:
    arguments = {"limits": EpisodeLimits(**limits), "sequence": SequenceId("0")}
    return asyncio.run(run_episode(policy, environment, ByteRenderer(), TASK, **arguments))


def test_each_prompt_extends_the_one_before_and_its_completion():
    environment = EchoEnvironment()
    trajectory = play(ScriptedPolicy("a", "ok"), environment)
    assert [bytes(turn.prompt_ids) for turn in trajectory.turns] == [b"hi", b"hia!"]
    assert trajectory.outcome is Outcome.FINISHED
    assert trajectory.reward == 1.0
    assert trajectory.generated_tokens == 3
    assert environment.closed


def test_turns_are_named_so_that_randomness_can_follow_the_name():
    policy = ScriptedPolicy("a", "b", "ok")
    play(policy, EchoEnvironment())
    assert [sequence.turn for sequence, _ in policy.asked] == [0, 1, 2]


def test_the_limit_of_turns_truncates_and_the_reward_still_counts():
    trajectory = play(ScriptedPolicy("a"), EchoEnvironment(), max_turns=2)
    assert (trajectory.outcome, trajectory.cut_by, trajectory.reward) == (Outcome.TRUNCATED, "turns", 0.0)
    assert len(trajectory.turns) == 2


def test_a_completion_cut_by_its_length_ends_the_episode():
    trajectory = play(ScriptedPolicy("abcdef"), EchoEnvironment(), max_new_tokens=4)
    assert (trajectory.outcome, trajectory.cut_by) == (Outcome.TRUNCATED, "length")
    assert len(trajectory.turns) == 1


def test_running_out_of_context_ends_the_episode_and_is_flagged():
    # Prompts of 2, 2+16+1, ... tokens; the fourth has 2 + 3 * 17 = 53 and leaves 11 of the 16 tokens of a turn.
    trajectory = play(ScriptedPolicy("x" * 16), EchoEnvironment(), max_context=64, max_new_tokens=16, max_turns=30)
    assert (trajectory.outcome, trajectory.cut_by) == (Outcome.TRUNCATED, "context")
    assert len(trajectory.turns) == 4
    last = trajectory.turns[-1]
    assert len(last.prompt_ids) + len(last.completion.token_ids) == 64


def test_an_episode_that_ends_by_itself_exactly_at_the_limit_is_not_flagged():
    trajectory = play(ScriptedPolicy("ok"), EchoEnvironment(), max_context=4, max_new_tokens=16)
    assert (trajectory.outcome, trajectory.cut_by, trajectory.reward) == (Outcome.FINISHED, None, 1.0)


class _FourBytes(EchoEnvironment):
    """Answers with four bytes, so that after three full turns of 16 a prompt of 2 has become one of 62."""

    async def step(self, message):
        observation = await super().step(message)
        return observation if observation.done else Observation((Message(Role.TOOL, "...."),))


def test_a_context_of_64_with_62_in_it_ends_in_a_flag_or_in_an_answer_but_in_no_further_turns():
    limits = {"max_context": 64, "max_new_tokens": 16, "max_turns": 30}
    cut = play(ScriptedPolicy("x" * 16), _FourBytes(), **limits)
    assert [len(turn.prompt_ids) for turn in cut.turns] == [2, 22, 42, 62]
    assert [len(turn.completion.token_ids) for turn in cut.turns] == [16, 16, 16, 2]
    assert (cut.outcome, cut.cut_by, cut.malformed_calls, cut.reward) == (Outcome.TRUNCATED, "context", 0, 0.0)
    ended = play(ScriptedPolicy("x" * 16, "x" * 16, "x" * 16, "ok"), _FourBytes(), **limits)
    assert len(ended.turns[-1].prompt_ids) + len(ended.turns[-1].completion.token_ids) == 64
    assert (ended.outcome, ended.cut_by, ended.reward) == (Outcome.FINISHED, None, 1.0)


def test_no_room_at_all_asks_nothing():
    policy = ScriptedPolicy("a")
    trajectory = play(policy, EchoEnvironment(), max_context=2)
    assert (trajectory.cut_by, policy.asked) == ("context", [])


class _Broken(EchoEnvironment):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    async def reset(self, task):
        self.fail("reset")
        return await super().reset(task)

    async def step(self, message):
        self.fail("step")
        return await super().step(message)

    async def reward(self):
        self.fail("reward")
        return 1.0

    async def close(self):
        self.fail("close")

    def fail(self, where: str) -> None:
        if self.where == where:
            raise KeyError("port")


@pytest.mark.parametrize(
    ("where", "kind", "turns"),
    [("reset", "environment", 0), ("step", "environment", 1), ("reward", "grader", 1), ("close", "environment", 1)],
)
def test_an_environment_that_raises_is_a_failure_with_its_own_words_and_never_a_reward(where, kind, turns):
    trajectory = play(ScriptedPolicy("ok"), _Broken(where))
    assert trajectory.outcome is Outcome.FAILED
    assert trajectory.reward is None
    assert trajectory.failure.kind == kind
    assert "KeyError: 'port'" in trajectory.failure.message
    assert len(trajectory.turns) == turns


def test_an_environment_that_returns_junk_is_a_failure():
    class Junk(EchoEnvironment):
        async def step(self, message):
            return {"done": True}

    trajectory = play(ScriptedPolicy("a"), Junk())
    assert "returned dict" in trajectory.failure.message


@pytest.mark.parametrize("reward", [float("nan"), "1.0", [1.0, 2.0]])
def test_a_reward_that_is_no_finite_number_is_a_failure(reward):
    class Odd(EchoEnvironment):
        async def reward(self):
            return reward

    assert play(ScriptedPolicy("ok"), Odd()).failure.kind == "grader"


def test_a_hanging_environment_is_a_timeout():
    class Hanging(EchoEnvironment):
        async def step(self, message):
            await asyncio.sleep(60)
            return Observation(())

    environment = Hanging()
    trajectory = play(ScriptedPolicy("a"), environment, max_seconds=0.05)
    assert trajectory.failure.kind == "timeout"
    assert environment.closed


def test_the_policys_bug_is_no_failure_of_the_episode():
    async def buggy(prompt_ids, *, sequence, max_tokens):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(buggy, EchoEnvironment())


def test_messages_tell_the_whole_conversation():
    trajectory = play(ScriptedPolicy("a", "ok"), EchoEnvironment())
    assert trajectory.messages == (
        Message(Role.USER, "hi"),
        Message(Role.ASSISTANT, "a"),
        Message(Role.TOOL, "!"),
        Message(Role.ASSISTANT, "ok"),
    )


def test_a_task_may_lower_the_limits_of_the_recipe_but_not_raise_them():
    limits = EpisodeLimits(max_turns=5, max_new_tokens=16)

    def play(**lowered):
        task = Task("0", "hi", limits=lowered)
        policy = ScriptedPolicy("abc")
        episode = run_episode(policy, EchoEnvironment(), ByteRenderer(), task, limits=limits, sequence=SequenceId("0"))
        return asyncio.run(episode), policy

    trajectory, policy = play(max_turns=2, max_new_tokens=99)
    assert (trajectory.cut_by, len(trajectory.turns), policy.asked[0][1]) == ("turns", 2, 16)
    trajectory, policy = play(max_new_tokens=2)
    assert (trajectory.cut_by, policy.asked[0][1]) == ("length", 2)
    with pytest.raises(ConfigError, match=r"limits\.max_turn: unknown key; did you mean max_turns"):
        play(max_turn=2)
    with pytest.raises(ConfigError, match=r"limits\.max_seconds"):
        play(max_seconds=-1)
