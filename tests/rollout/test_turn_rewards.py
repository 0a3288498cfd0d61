"""What the environment says a message has earned stands beside the turn that wrote it, and why beside the whole."""

import asyncio
import dataclasses

import numpy as np
import pytest

from components.environments.environment import Observation
from components.environments.rewards import Grade, Reward
from components.rollout.episode import EpisodeLimits, run_episode
from components.training.trajectory_lines import trajectory_record
from components.types import Message, SequenceId, Task, Trajectory
from tests.fakes import ByteRenderer, EchoEnvironment, ScriptedPolicy


class Paying(EchoEnvironment):
    """Pays for each message."""

    def __init__(self, pay: object) -> None:
        super().__init__()
        self.pay = pay

    async def step(self, message: Message) -> Observation:
        return dataclasses.replace(await super().step(message), reward=self.pay if message.content != "ok" else 0.0)


class Telling(EchoEnvironment):
    """Says why."""

    async def reward(self) -> Reward:
        return {"said ok": Grade(1.0, "it said ok"), "brief": 0.5}


def play(environment: EchoEnvironment, *lines: str) -> Trajectory:
    sequence = SequenceId("0")
    return asyncio.run(
        run_episode(
            ScriptedPolicy(*lines),
            environment,
            ByteRenderer(),
            Task("0", "hi"),
            limits=EpisodeLimits(max_turns=4),
            sequence=sequence,
        )
    )


def test_a_turn_keeps_what_it_has_earned_and_the_whole_is_the_environments():
    played = play(Paying(0.25), "a", "b", "ok")
    assert [turn.reward for turn in played.turns] == [0.25, 0.25, 0.0]
    assert played.reward == 1.0


def test_an_environment_that_says_nothing_of_turns_credits_none():
    assert [turn.reward for turn in play(EchoEnvironment(), "a", "ok").turns] == [0.0, 0.0]


@pytest.mark.parametrize("pay", [float("nan"), float("inf"), -float("inf")])
def test_a_turn_reward_that_is_not_finite_fails_the_episode(pay):
    played = play(Paying(pay), "a", "ok")
    assert played.reward is None
    assert "must be finite" in played.failure.message


def test_a_turn_reward_of_numpy_becomes_a_float():
    played = play(Paying(np.float64(0.5)), "a", "ok")
    assert type(played.turns[0].reward) is float


def test_the_reasons_of_a_reward_are_kept_with_its_parts():
    played = play(Telling(), "ok")
    assert (played.reward, played.reward_parts) == (1.5, {"said ok": 1.0, "brief": 0.5})
    assert played.reward_reasons == {"said ok": "it said ok"}
    assert trajectory_record(3, played)["reward_reasons"] == {"said ok": "it said ok"}
