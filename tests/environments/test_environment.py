"""ToolEnvironment: calls at the same time, replies in order, refusals the policy can read; loading by name."""

import asyncio
import sys
import textwrap
import time

import pytest

from components.environments.arithmetic import Arithmetic
from components.environments.environment import (
    Observation,
    ToolEnvironment,
    ToolUse,
    environment_factory,
    load_environment,
)
from components.environments.rewards import Grade
from components.environments.tools import tool
from components.errors import ConfigError
from components.types import MalformedCall, Message, Role, Task, ToolCall


class Vault(ToolEnvironment):
    """A word that only the tool knows."""

    system_prompt = "Find the word."
    examples = (Message(Role.USER, "Try"), Message(Role.ASSISTANT, "ok"))

    def __init__(self, word: str = "opal") -> None:
        self.word = word
        self.order: list[str] = []
        self.tools = (tool(self.look), tool(self.wait))

    def tasks(self, split: str) -> list[Task]:
        return [Task(id=split, prompt="What is in the vault?")]

    def grade(self, task: Task, answer: str) -> dict[str, float]:
        return {"word": float(answer == self.word), "short": 0.5}

    async def look(self, name: str) -> str:
        """Look into a box."""
        self.order.append(f"look {name}")
        return self.word

    async def wait(self, seconds: float) -> str:
        """Wait."""
        self.order.append("wait begins")
        await asyncio.sleep(seconds)
        self.order.append("wait ends")
        return "waited"


def run(environment, *messages):
    async def play():
        observations = [await environment.reset(environment.tasks("train")[0])]
        observations += [await environment.step(message) for message in messages]
        return observations

    return asyncio.run(play())


def test_an_episode_opens_with_system_examples_and_prompt():
    (opening,) = run(Vault())
    assert [(message.role, message.content) for message in opening.messages] == [
        (Role.SYSTEM, "Find the word."),
        (Role.USER, "Try"),
        (Role.ASSISTANT, "ok"),
        (Role.USER, "What is in the vault?"),
    ]


def test_calls_run_at_the_same_time_and_replies_keep_their_order():
    environment = Vault()
    calls = (ToolCall("wait", {"seconds": 0.01}), ToolCall("look", {"name": "left"}))
    _, reply = run(environment, Message(Role.ASSISTANT, "", tool_calls=calls))
    assert environment.order == ["wait begins", "look left", "wait ends"]
    assert [(message.role, message.name, message.content) for message in reply.messages] == [
        (Role.TOOL, "wait", "waited"),
        (Role.TOOL, "look", "opal"),
    ]
    assert (reply.tool_use.calls, reply.tool_use.errors, reply.done) == (2, 0, False)
    assert reply.tool_use.seconds >= 0.01


def test_unknown_tools_and_malformed_calls_are_answered_with_the_reason_and_counted():
    message = Message(
        Role.ASSISTANT,
        "",
        tool_calls=(ToolCall("open", {}), ToolCall("look", {})),
        malformed_calls=(MalformedCall("<tool_call>{", "not JSON"),),
    )
    _, reply = run(Vault(), message)
    assert [message.content for message in reply.messages] == [
        'error: there is no tool "open"; tools: look, wait',
        'error: look: missing argument "name"',
        "error: malformed tool call: not JSON",
    ]
    use = reply.tool_use
    assert (use.calls, use.errors, use.malformed) == (2, 2, 1)


def test_a_text_without_a_call_ends_the_episode_and_is_graded_in_parts():
    environment = Vault()
    _, end = run(environment, Message(Role.ASSISTANT, "opal"))
    assert end == Observation((), done=True)
    assert asyncio.run(environment.reward()) == {"word": 1.0, "short": 0.5}


def test_without_a_final_text_the_reward_is_zero():
    environment = Vault()
    run(environment, Message(Role.ASSISTANT, "", tool_calls=(ToolCall("look", {"name": "x"}),)))
    assert asyncio.run(environment.reward()) == Grade(0.0, "there was no answer")


def test_a_grade_may_be_a_coroutine():
    class Slow(Vault):
        async def grade(self, task, answer):
            await asyncio.sleep(0)
            return 0.25

    environment = Slow()
    run(environment, Message(Role.ASSISTANT, "opal"))
    assert asyncio.run(environment.reward()) == 0.25


def test_tool_use_adds_up():
    assert ToolUse(1, 2, 3, 0.5) + ToolUse(10, 20, 30, 1.0) == ToolUse(11, 22, 33, 1.5)


@pytest.fixture
def module(tmp_path, monkeypatch):
    source = """
        from components.environments.environment import ToolEnvironment

        class Mine(ToolEnvironment):
            def __init__(self, size: int, names: list[str] | None = None):
                self.size = size
            def tasks(self, split):
                return []
            def grade(self, task, answer):
                return 0.0

        class Unfinished(ToolEnvironment):
            def tasks(self, split):
                return []

        class Other:
            def reset(self, task): ...

        class Plain(Mine):
            def __init__(self) -> None: ...
    """
    (tmp_path / "someones_module.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    yield "someones_module"
    sys.modules.pop("someones_module", None)


def test_a_factory_makes_a_fresh_environment_each_time(module):
    make = environment_factory(f"{module}:Mine", {"size": 3, "names": ["a"]})
    assert make().size == 3
    assert make() is not make()
    assert type(make()) is load_environment(f"{module}:Mine")
    assert environment_factory("arithmetic")().tasks("test")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arithmetics", "module:Class"),
        ("no_such_module:Mine", "No module named 'no_such_module'"),
        ("someones_module:Mien", "did you mean Mine"),
        ("someones_module:toool", r"has no class toool \("),
        ("someones_module:Unfinished", "must define grade"),
        ("someones_module:Other", "has no tasks, step, reward, close"),
    ],
)
def test_a_name_that_cannot_be_loaded_is_explained(module, name, message):
    with pytest.raises(ConfigError, match=message):
        load_environment(name)


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({}, ['missing option "size"']),
        ({"size": "3"}, ['"size" must be an integer']),
        ({"size": 3, "nmes": []}, ['unknown option "nmes"; did you mean "names"?']),
        ({"sise": 3}, ['missing option "size"', 'unknown option "sise"']),
    ],
)
def test_every_option_that_does_not_fit_is_named(module, options, messages):
    with pytest.raises(ConfigError) as caught:
        environment_factory(f"{module}:Mine", options, where="environment")
    assert len(caught.value.problems) == len(messages)
    for problem, message in zip(caught.value.problems, messages, strict=True):
        assert problem.where == "environment.options"
        assert message in problem.message
    with pytest.raises(ConfigError, match="takes: nothing"):
        environment_factory(f"{module}:Plain", {"size": 1})


def test_a_grade_that_blocks_fails_its_own_episode_and_not_the_run():
    class Blocking(Arithmetic):
        def grade(self, task, answer):
            time.sleep(5)
            return 1.0

    async def play():
        environment = Blocking()
        await environment.reset(next(iter(environment.tasks("test"))))
        await environment.step(Message(Role.ASSISTANT, "7"))
        ticks = 0
        try:
            async with asyncio.timeout(0.2):
                reward = asyncio.ensure_future(environment.reward())
                while not reward.done():
                    await asyncio.sleep(0.01)
                    ticks += 1
        except TimeoutError:
            return ticks
        return 0

    # The event loop went on while the grader slept.
    assert asyncio.run(play()) > 5


class Twice(Vault):
    """Has a tool twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tools = (self.tools[0], self.tools[0])


def test_two_tools_of_one_name_are_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"tools of .*Twice: two tools have this name.*look"):
        environment_factory(f"{__name__}:Twice")


class Untooled(Vault):
    """Has tools that are none, as where a comma was forgotten."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.tools = {"one": self.tools[0], "none": None, "plain": (len,)}[kind]


@pytest.mark.parametrize("kind", ["one", "none", "plain"])
def test_tools_that_are_no_tuple_of_tools_are_refused_before_anything_runs(kind: str):
    with pytest.raises(ConfigError, match="tools must be a tuple of functions under @tool, not "):
        environment_factory(f"{__name__}:Untooled", {"kind": kind})
