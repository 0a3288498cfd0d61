"""The tool `python`: what a policy reads of what its code did."""

import asyncio
from collections.abc import Mapping

import pytest

from components.environments.environment import ToolEnvironment, environment_factory
from components.environments.python_tool import PythonTool
from components.environments.sandbox.detection import reason_against
from components.environments.sandbox.limits import DEFAULT_ISOLATION, Isolation, Limits
from components.environments.tools import ToolResult
from components.errors import ConfigError
from components.types import Message, Role, Task, ToolCall

REASON = reason_against("sandbox")
LEVELS = [pytest.param("sandbox", marks=pytest.mark.skipif(REASON is not None, reason=str(REASON))), "process"]


class Coding(ToolEnvironment):
    """An environment with the tool, as a user writes it."""

    def __init__(self, isolation: Isolation = DEFAULT_ISOLATION) -> None:
        self.python = PythonTool(isolation, Limits(seconds=10.0))
        self.tools = (self.python.tool,)

    def tasks(self, split: str) -> list[Task]:
        return [Task("1", "What is 6 * 7?", "42")]

    def grade(self, task: Task, answer: str) -> float:
        return float(answer == task.answer)

    async def close(self) -> None:
        await self.python.close()


def play(isolation: Isolation, *codes: str) -> list[ToolResult]:
    async def calls() -> list[ToolResult]:
        python = PythonTool(isolation, Limits(seconds=10.0, output_bytes=5000))
        results = [await python.tool.call({"code": code}) for code in codes]
        await python.close()
        return results

    return asyncio.run(calls())


@pytest.mark.parametrize("isolation", LEVELS)
def test_the_policy_reads_what_was_printed_and_the_last_value(isolation: Isolation) -> None:
    both, printed, value, nothing = play(isolation, "print('a')\n6 * 7", "print('a\\n')", "'é'", "x = 1")
    assert both == ToolResult("a\n42")
    assert printed.text == "a"
    assert value.text == "'é'"
    assert nothing.text == "(empty)"


@pytest.mark.parametrize("isolation", LEVELS)
def test_an_error_is_short_and_flagged(isolation: Isolation) -> None:
    raised, left, syntax, wrote, bad = play(
        isolation, "print('a')\n{}['b']", "import os; os._exit(3)", "1 +", "while True: print('x' * 100)", ""
    )
    told = "error: line 2, in <module>: {}['b']\nKeyError: 'b'\nprinted before that: a"
    assert (raised.text, raised.is_error) == (told, True)
    assert (left.text, left.is_error) == ("error: ended with exit code 3", True)
    assert (syntax.text, syntax.is_error) == ("error: line 1: 1 +\nSyntaxError: invalid syntax", True)
    assert wrote.text.startswith("error: the code wrote more than 5000 bytes\nprinted before that: ")
    assert bad == ToolResult("(empty)")


@pytest.mark.parametrize("isolation", LEVELS)
def test_calls_of_an_episode_share_files_and_nothing_else(isolation: Isolation) -> None:
    _, read, variable = play(isolation, "x = 1\nopen('f', 'w').write('kept')", "open('f').read()", "x")
    assert read.text == "'kept'"
    assert "NameError: name 'x' is not defined" in variable.text
    (other,) = play(isolation, "import os; os.listdir()")
    assert other.text == "[]"


@pytest.mark.parametrize("isolation", LEVELS)
def test_the_recipe_decides_the_isolation_of_an_environment(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = environment_factory(f"{__name__}:Coding", isolation=isolation)

    async def episode() -> tuple[Message, float | object]:
        environment = make()
        assert vars(environment)["python"]._sandbox.isolation == isolation
        await environment.reset(Task("1", "What is 6 * 7?", "42"))
        call = ToolCall("python", {"code": "print(6 * 7)"})
        observation = await environment.step(Message(Role.ASSISTANT, "", tool_calls=(call, call)))
        await environment.step(Message(Role.ASSISTANT, "42"))
        reward = await environment.reward()
        await environment.close()
        return observation.messages[1], reward

    message, reward = asyncio.run(episode())
    assert message == Message(Role.TOOL, "42", name="python")
    assert reward == 1.0


def test_isolation_is_no_option() -> None:
    options: Mapping[str, object] = {"isolation": "process"}
    with pytest.raises(ConfigError, match=r"environment\.options\.isolation: write it as environment\.isolation"):
        environment_factory(f"{__name__}:Coding", options)
