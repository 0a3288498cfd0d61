"""Tools of real MCP servers, over both transports: schemas, errors, crashes, and one session for all episodes."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from components.config import load
from components.environments.environment import ToolEnvironment, environment_factory
from components.environments.gate import ToolLimits
from components.environments.mcp_servers import McpServer, with_server_tools
from components.environments.tools import tool
from components.errors import ConfigError, ToolFailedError
from components.rollout.episode import EpisodeLimits, run_episode
from components.rollout.player import EnvironmentConfig
from components.types import CallOutcome, Message, Role, SequenceId, Task, ToolCall
from tests.fakes import ByteRenderer, ScriptedPolicy

SERVER = Path(__file__).with_name("desk_server.py")
STDIO = McpServer(command=(sys.executable, str(SERVER)))


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def served(port: int) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


async def tools(server):
    return {each.name: each for each in await with_server_tools((), [server])}


async def check_all_of_it(server):
    found = await tools(server)
    drawer = found["open_drawer"]
    assert drawer.description == "Open a drawer and read the code inside."
    assert drawer.parameters["required"] == ["key"]
    assert drawer.parameters["properties"]["times"]["type"] == "integer"
    good = await drawer.call({"key": "brass"})
    assert (good.text, good.outcome) == ("brass-4711 ", CallOutcome.OK)
    bad = await drawer.call({"kee": "brass"})
    assert bad.text == 'error: open_drawer: missing argument "key"; unknown argument "kee"; did you mean "key"?'
    refused = await found["refuse"].call({"key": "brass"})
    assert (refused.outcome, "the key brass is worn out" in refused.text) == (CallOutcome.REFUSED, True)
    assert json.loads((await found["size"].call({})).text) == {"width": 3}
    long = await drawer.call({"key": "k", "times": 10_000})
    assert long.text.endswith("more characters]")
    assert len(long.text) < 8100
    started = time.perf_counter()
    waited = await asyncio.gather(*(found["wait"].call({"seconds": 0.3}) for _ in range(40)))
    assert [each.text for each in waited] == ["waited"] * 40
    assert time.perf_counter() - started < 40 * 0.3
    again = await tools(server)
    assert (await again["process"].call({})).text == (await found["process"].call({})).text
    return found


def test_the_tools_of_a_server_over_stdin_and_stdout(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THIS_PROCESS", "x")

    async def play():
        found = await check_all_of_it(STDIO)
        return (await found["process"].call({})).text

    said = asyncio.run(play())
    pid = int(said.split()[0])
    assert "SECRET_OF_THIS_PROCESS" not in said
    with pytest.raises(ProcessLookupError):  # it ended with the event loop
        os.kill(pid, 0)


def test_the_tools_of_a_server_over_http_and_a_server_that_comes_back():
    port = free_port()
    server = McpServer(url=f"http://127.0.0.1:{port}/mcp", connect_tries=1)

    async def play():
        with served(port) as process:
            found = await check_all_of_it(server)
            waiting = asyncio.create_task(found["wait"].call({"seconds": 60}))
            await found["size"].call({})
            process.kill()
            with pytest.raises(ToolFailedError, match="went away during a call of wait"):
                await waiting
        with pytest.raises(ToolFailedError, match=f"127.0.0.1:{port}/mcp cannot be reached: ConnectError"):
            await found["size"].call({})
        with served(port):
            return await found["open_drawer"].call({"key": "new"})

    assert asyncio.run(play()).text == "new-4711 "


def test_a_crash_fails_all_calls_on_the_way_and_the_next_one_starts_a_new_server():
    async def play():
        found = await tools(STDIO)
        first = (await found["process"].call({})).text
        calls = [found["wait"].call({"seconds": 60}) for _ in range(5)]
        ended = await asyncio.gather(*calls, found["crash"].call({}), return_exceptions=True)
        after = await asyncio.gather(*(found["process"].call({}) for _ in range(5)))
        return first, ended, {each.text for each in after}

    first, ended, after = asyncio.run(play())
    assert [type(error) for error in ended] == [ToolFailedError] * 6
    assert "went away during a call of" in str(ended[0])
    assert len(after) == 1
    assert first not in after


def test_a_server_that_cannot_start_is_told_with_its_own_words_after_the_tries_it_was_given():
    script = "import sys; sys.exit('no licence was found')"
    server = McpServer(command=(sys.executable, "-c", script), connect_tries=2)
    with pytest.raises(ToolFailedError, match=r"cannot be reached: .*it said: no licence was found"):
        asyncio.run(tools(server))
    with pytest.raises(ToolFailedError, match="FileNotFoundError"):
        asyncio.run(tools(McpServer(command=("/no/such/program",), connect_tries=1)))
    silent = McpServer(command=("sleep", "60"), connect_tries=1, connect_seconds=0.3)
    with pytest.raises(ToolFailedError, match=r"no answer within 0\.3 seconds"):
        asyncio.run(tools(silent))


def test_entries_for_one_server_share_it_and_differ_in_names_tools_and_limits():
    @tool
    def size() -> str:
        """My own."""
        return "mine"

    named = McpServer(command=STDIO.command, name="desk", tools=("size", "process"))
    quick = McpServer(
        command=STDIO.command, timeout_seconds=0.2, tools=("size", "wait"), limits=ToolLimits(concurrency=2)
    )

    async def play():
        found = await with_server_tools((size,), [named, quick])
        again = await with_server_tools((size,), [named, quick])
        results = [await each.call({"seconds": 60} if each.name == "wait" else {}) for each in found]
        whole = (await tools(STDIO))["process"]
        with pytest.raises(ConfigError, match="has no such tool; it has: open_drawer, refuse, wait"):
            await tools(McpServer(command=STDIO.command, tools=("sise",)))
        return found, again, results, await whole.call({})

    found, again, results, process = asyncio.run(play())
    assert [each.name for each in found] == ["size", "desk_size", "process", "server2_size", "wait"]
    assert [each.text for each in results[:2]] == ["mine", results[3].text]
    assert json.loads(results[1].text) == {"width": 3}
    assert (results[4].text, results[4].outcome) == ("error: wait took longer than 0.2 seconds", CallOutcome.TIMEOUT)
    assert process.text == results[2].text
    assert (found[1].gate, found[3].gate is again[3].gate, found[3].gate is found[4].gate) == (None, True, False)


class Desk(ToolEnvironment):
    """What is the code? Only the server knows."""

    def tasks(self, split):
        return [Task("0", "hi")]

    def grade(self, task, answer):
        return float("4711" in answer)


class CallingRenderer(ByteRenderer):
    def parse(self, token_ids, tools):
        text = bytes(token_ids).decode()
        assert [each.name for each in tools][:1] == ["open_drawer"]
        calls = (ToolCall("open_drawer", {"key": "k"}),) if text == "open" else ()
        return Message(Role.ASSISTANT, text, tool_calls=calls)


def test_a_recipe_gives_an_environment_the_tools_of_a_server_and_many_episodes_share_it():
    settings = load(EnvironmentConfig, {"use": f"{__name__}:Desk", "mcp": [{"command": list(STDIO.command)}]})
    make = environment_factory(settings.use, settings.options, mcp=settings.mcp)

    def episode(*lines, member=0):
        sequence = SequenceId("0", member=member)
        limits = EpisodeLimits()
        return run_episode(
            ScriptedPolicy(*lines), make(), CallingRenderer(), Task("0", "hi"), limits=limits, sequence=sequence
        )

    async def play():
        return await asyncio.gather(*(episode("open", "4711", member=member) for member in range(20)))

    played = asyncio.run(play())
    assert [each.reward for each in played] == [1.0] * 20
    assert [each.messages[2].content for each in played] == ["k-4711 "] * 20


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give exactly one of the two"),
        ({"command": ["a"], "url": "http://a"}, "give exactly one of the two"),
        ({"url": "ftp://a"}, "must begin with http"),
        ({"url": "http://a", "environment": {"A": "b"}}, "environment: has no effect with a url"),
        ({"command": ["a"], "token_file": "b"}, "token_file: has no effect with a command"),
        ({"command": ["a"], "nmae": "b"}, "did you mean name"),
    ],
)
def test_a_server_that_cannot_work_is_refused_before_anything_runs(values, message):
    with pytest.raises(ConfigError, match=message):
        load(McpServer, values)


def test_only_an_environment_that_has_tools_takes_those_of_a_server():
    with pytest.raises(ConfigError, match="only a ToolEnvironment can take tools of a server"):
        environment_factory("tests.fakes:EchoEnvironment", mcp=(STDIO,))
