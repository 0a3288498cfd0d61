"""Environments of other libraries are played as they are, with their rewards, and end when they end."""

import asyncio
import sys

import pytest

from components.environments.environment import Environment, environment_factory
from components.errors import ConfigError
from components.rollout.episode import EpisodeLimits, run_episode
from components.types import Outcome, Role, SequenceId
from tests.fakes import ByteRenderer, ScriptedPolicy


class Corridor:
    """Gymnasium's interface: walk right from a place that the seed gives to place 3; every step costs a little."""

    closed = 0

    def __init__(self, end: int = 3, render: bool = True) -> None:
        self.end, self.shows = end, render

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.place = (seed or 0) % 2
        return self.place, {}

    def step(self, action):
        self.place += action
        done = self.place >= self.end
        return self.place, 1.0 if done else -0.125, done, self.place < -1, {}

    def render(self):
        return "." * max(self.place, 0) + "@" if self.shows else None

    def close(self):
        type(self).closed += 1


def play(options, seed, *lines, turns=8):
    make = environment_factory("gymnasium", {"make": f"{__name__}:Corridor", **options})
    assert isinstance(make(), Environment)
    task = next(task for task in make().tasks("train") if task.data["seed"] == seed)
    limits = EpisodeLimits(max_turns=turns)
    policy = ScriptedPolicy(*lines)
    return asyncio.run(run_episode(policy, make(), ByteRenderer(), task, limits=limits, sequence=SequenceId("0")))


ACTIONS = {"actions": {"left": -1, "right": 1}}


def test_words_become_actions_and_rewards_of_steps_are_those_of_turns():
    closed = Corridor.closed
    trajectory = play({**ACTIONS, "instruction": "Walk."}, 1, "I go right.", "left or right", "Right!")
    shown = [message.content for message in trajectory.messages if message.role is Role.USER]
    assert shown == ["Walk.\n\nAnswer with one of: left, right.\n\n.@", "..@", "...@"]
    assert [turn.reward for turn in trajectory.turns] == [-0.125, 1.0]
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FINISHED, 0.875)
    assert Corridor.closed == closed + 1


def test_a_message_that_names_no_action_costs_a_turn_and_what_is_not_rendered_is_shown_as_it_is():
    trajectory = play({**ACTIONS, "arguments": {"render": False}}, 0, "hm", "right", turns=3)
    shown = [message.content for message in trajectory.messages if message.role is Role.USER]
    assert shown == [
        "Answer with one of: left, right.\n\n0",
        "That is none of: left, right.",
        "1",
        "That is none of: left, right.",
    ]
    assert (trajectory.cut_by, trajectory.reward) == ("turns", -0.125)


def test_an_environment_that_gives_up_ends_the_episode():
    trajectory = play(ACTIONS, 0, "left")
    assert (trajectory.outcome, trajectory.reward, len(trajectory.turns)) == (Outcome.FINISHED, -0.25, 2)


def test_seeds_of_train_and_test_are_disjoint_and_options_are_checked():
    made = environment_factory(
        "gymnasium", {"make": f"{__name__}:Corridor", **ACTIONS, "train_tasks": 3, "test_tasks": 2}
    )()
    train, test = ({task.data["seed"] for task in made.tasks(split)} for split in ("train", "test"))
    assert (len(train), len(test), train & test) == (3, 2, set())
    with pytest.raises(ConfigError, match="give a module:function"):
        environment_factory("gymnasium", {"make": f"{__name__}:Nothing", **ACTIONS})


def test_frozen_lake_of_gymnasium_itself():
    pytest.importorskip("gymnasium")
    arguments = {"id": "FrozenLake-v1", "render_mode": "ansi", "is_slippery": False}
    actions = {"left": 0, "down": 1, "right": 2, "up": 3}
    options = {"make": "gymnasium:make", "arguments": arguments, "actions": actions}
    way = ["down", "down", "right", "right", "down", "right"]
    trajectory = play(options, 0, *way)
    assert (trajectory.outcome, trajectory.reward, len(trajectory.turns)) == (Outcome.FINISHED, 1.0, 6)
    assert "SFFF" in trajectory.messages[2].content


def test_an_environment_of_verifiers_itself(tmp_path, monkeypatch):
    pytest.importorskip("verifiers.envs.multiturn_env", reason="needs verifiers 0.1")
    (tmp_path / "guessing.py").write_text(
        "import verifiers as vf\n"
        "from datasets import Dataset\n"
        "class Guessing(vf.MultiTurnEnv):\n"
        "    async def env_response(self, messages, state, **kwargs):\n"
        "        right = messages[-1].content == state['answer']\n"
        "        reply = [vf.UserMessage(content='yes' if right else 'no')]\n"
        "        if right:\n"
        "            state['final_env_response'] = reply\n"
        "        return reply\n"
        "async def right(completion, answer, **kwargs):\n"
        "    return float(completion[-2].content == answer) / len(completion) if len(completion) > 1 else 0.0\n"
        "def load_environment(word='opal'):\n"
        "    rows = [{'question': f'word {i}?', 'answer': word} for i in range(3)]\n"
        "    return Guessing(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right]), max_turns=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    make = environment_factory("verifiers", {"module": "guessing", "arguments": {"word": "opal"}})
    tasks = list(make().tasks("train"))
    assert [(task.prompt, task.answer) for task in tasks] == [(f"word {i}?", "opal") for i in range(3)]

    def play(*lines, turns=8):
        policy, limits = ScriptedPolicy(*lines), EpisodeLimits(max_turns=turns)
        return run_episode(policy, make(), ByteRenderer(), tasks[1], limits=limits, sequence=SequenceId("0"))

    async def all_of_them():
        return await asyncio.gather(play("ruby", "opal"), play("ruby"), play("ruby", "jade", turns=2))

    found, stopped, cut = asyncio.run(all_of_them())
    assert [message.content for message in found.messages] == ["word 1?", "ruby", "no", "opal"]
    assert (found.outcome, found.reward) == (Outcome.FINISHED, 0.25)
    assert (stopped.outcome, stopped.reward, len(stopped.turns)) == (Outcome.FINISHED, 0.0, 5)
    assert (cut.outcome, cut.cut_by, cut.reward) == (Outcome.TRUNCATED, "turns", 0.0)
    sys.modules.pop("guessing")
