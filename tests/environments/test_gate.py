"""What stands between all episodes and one tool: room, second tries, and a pause while it is down."""

import asyncio
import json

import pytest

from components.environments.environment import ToolEnvironment
from components.environments.gate import Gate, ToolLimits, TransientToolError
from components.environments.tools import ToolError, tool
from components.errors import ConfigError, ToolFailedError
from components.rollout.episode import EpisodeLimits, run_episode
from components.training.trajectory_lines import trajectory_record
from components.types import CallOutcome, Message, Outcome, Role, SequenceId, Task, ToolCall
from tests.fakes import ByteRenderer, ScriptedPolicy


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_only_so_many_calls_of_all_episodes_run_at_once_also_of_a_method():
    running = most = 0

    class World:
        async def dig(self) -> str:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return "dug"

    async def play():
        limits = ToolLimits(concurrency=3)
        worlds = [tool(World().dig, limits=limits, timeout=1.0) for _ in range(20)]
        return [result.text for result in await asyncio.gather(*(each.call({}) for each in worlds))]

    for _ in range(2):  # a second event loop finds the same gate
        assert asyncio.run(play()) == ["dug"] * 20
        assert (running, most) == (0, 3)


def test_waiting_for_room_does_not_count_as_the_tools_time():
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "done"

    async def play():
        made = tool(slow, limits=ToolLimits(concurrency=1), timeout=0.2)
        return await asyncio.gather(*(made.call({}) for _ in range(8)))

    assert [result.text for result in asyncio.run(play())] == ["done"] * 8


def gate(name="search", **limits):
    slept: list[float] = []

    async def sleep(seconds):
        slept.append(seconds)

    clock = Clock()
    return Gate(name, ToolLimits(**limits), clock=clock, sleep=sleep), slept, clock


def failing(times, value="found", error=None):
    left = [times]

    async def attempt():
        if left[0] > 0:
            left[0] -= 1
            raise error or TransientToolError("connection reset")
        return value

    return attempt


def test_a_fault_that_is_gone_in_a_moment_is_not_seen():
    made, slept, _ = gate(retries=3, backoff_seconds=1.0, max_backoff_seconds=3.0)
    assert asyncio.run(made.call(failing(3))) == "found"
    assert [0.5 <= slept[0] <= 1, 1 <= slept[1] <= 2, 1.5 <= slept[2] <= 3] == [True] * 3


def test_the_jitter_is_a_function_of_tool_call_and_try():
    waits = []
    for name in ("search", "search", "other"):
        made, slept, _ = gate(name, retries=2)
        for _ in range(2):
            asyncio.run(made.call(failing(2)))
        waits.append(slept)
    assert waits[0] == waits[1] != waits[2]
    assert len(set(waits[0])) == 4


def test_a_fault_that_stays_is_an_infrastructure_failure_and_no_text_of_the_policys():
    async def search() -> str:
        raise TransientToolError("server is full")

    limits = ToolLimits(retries=2, backoff_seconds=0.001)
    with pytest.raises(ToolFailedError, match="tool search failed 3 times in a row: server is full"):
        asyncio.run(tool(search, limits=limits).call({}))
    with pytest.raises(ToolFailedError, match="tool search failed: server is full"):
        asyncio.run(tool(search).call({}))


def test_a_tool_that_is_down_is_left_alone_and_then_one_call_decides():
    made, _, clock = gate(break_after=3, pause_seconds=10.0)
    broken = failing(100, error=ToolFailedError("no route"))

    def call(attempt):
        return asyncio.run(made.call(attempt))

    for _ in range(3):
        with pytest.raises(ToolFailedError, match="no route"):
            call(broken)
    asked: list[str] = []

    async def ask():
        asked.append("asked")

    with pytest.raises(ToolFailedError, match=r"left alone after 3 failures in a row.*10\.0 seconds.*no route"):
        call(ask)
    clock.now = 9.9
    with pytest.raises(ToolFailedError, match="left alone"):
        call(ask)
    assert asked == []
    clock.now = 10.0
    with pytest.raises(ToolFailedError, match="no route"):
        call(broken)  # the probe fails: another pause
    clock.now = 19.9
    with pytest.raises(ToolFailedError, match="left alone after 4"):
        call(ask)
    clock.now = 20.0
    call(ask)
    call(ask)
    assert asked == ["asked"] * 2


def test_while_one_call_is_the_probe_the_others_fail_at_once():
    made, _, clock = gate(break_after=1, pause_seconds=5.0)

    async def play():
        with pytest.raises(ToolFailedError):
            await made.call(failing(1, error=ToolFailedError("down")))
        clock.now = 5.0
        release = asyncio.Event()

        async def slow():
            await release.wait()
            return "well"

        probe = asyncio.create_task(made.call(slow))
        await asyncio.sleep(0)
        with pytest.raises(ToolFailedError, match="is being tried"):
            await made.call(slow)
        release.set()
        return [await probe, await made.call(slow)]

    assert asyncio.run(play()) == ["well", "well"]


def test_a_cancelled_probe_leaves_the_question_open():
    made, _, clock = gate(break_after=1, pause_seconds=5.0)

    async def play():
        with pytest.raises(ToolFailedError):
            await made.call(failing(1, error=ToolFailedError("down")))
        clock.now = 5.0
        probe = asyncio.create_task(made.call(asyncio.Event().wait))
        await asyncio.sleep(0)
        probe.cancel()
        await asyncio.wait((probe,))
        return await made.call(failing(0))

    assert asyncio.run(play()) == "found"


def test_what_the_policy_does_wrong_never_breaks_the_circuit():
    def find(number: int) -> int:
        if number == 1:
            raise ToolError("no such thing")
        return [7][number]

    made = tool(find, limits=ToolLimits(break_after=2))
    outcomes = [asyncio.run(made.call({"number": number})).outcome for number in (1, 2, 1, 2, 1, "a", 0)]
    assert outcomes == [*[CallOutcome.REFUSED, CallOutcome.RAISED] * 2, *outcomes[4:]]
    assert outcomes[4:] == [CallOutcome.REFUSED, CallOutcome.ARGUMENTS, CallOutcome.OK]


@pytest.mark.parametrize("limits", [{"pause_seconds": 3.0}, {"backoff_seconds": 2.0}, {"max_backoff_seconds": 2.0}])
def test_a_limit_that_changes_nothing_is_refused(limits):
    with pytest.raises(ConfigError, match="has no effect without"):
        ToolLimits(**limits)


class Digging(ToolEnvironment):
    """Two tools; the second has lost its server."""

    def __init__(self):
        self.ended: list[str] = []
        self.tools = (tool(self.dig), tool(self.rest), tool(self.ask, limits=ToolLimits(break_after=1)))

    def tasks(self, split):
        return [Task("0", "hi")]

    def grade(self, task, answer):
        return 1.0

    async def dig(self, depth: int) -> str:
        return "dug"

    async def rest(self) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.append("rest")
        return "rested"

    async def ask(self) -> str:
        raise ToolFailedError("no server")


class CallingRenderer(ByteRenderer):
    """Letters are calls: d(ig), a(sk), r(est), x (no such tool)."""

    def parse(self, token_ids, tools):
        names = {"d": ToolCall("dig", {"depth": 1}), "e": ToolCall("dig", {}), "a": ToolCall("ask", {})}
        names |= {"r": ToolCall("rest", {}), "x": ToolCall("burn", {})}
        text = bytes(token_ids).decode()
        return Message(Role.ASSISTANT, text, tool_calls=tuple(names[letter] for letter in text if letter in names))


def play(environment, *lines):
    episode = run_episode(
        ScriptedPolicy(*lines),
        environment,
        CallingRenderer(),
        Task("0", "hi"),
        limits=EpisodeLimits(max_turns=5),
        sequence=SequenceId("0"),
    )
    return asyncio.run(episode)


def test_each_turn_records_its_calls_by_tool_and_outcome():
    trajectory = play(Digging(), "ded", "x", "!")
    assert [[(call.tool, call.outcome) for call in turn.calls] for turn in trajectory.turns] == [
        [("dig", CallOutcome.OK), ("dig", CallOutcome.ARGUMENTS), ("dig", CallOutcome.OK)],
        [("(unknown)", CallOutcome.UNKNOWN)],
        [],
    ]
    assert (trajectory.tool_calls, trajectory.tool_errors, trajectory.reward) == (4, 2, 1.0)
    written = json.loads(json.dumps(trajectory_record(1, trajectory)["calls"]))
    assert [tuple(each[:3]) for each in written] == [
        (0, "dig", "ok"),
        (0, "dig", "arguments"),
        (0, "dig", "ok"),
        (1, "(unknown)", "unknown"),
    ]
    assert all(call.seconds >= 0 for turn in trajectory.turns for call in turn.calls)


def test_a_broken_tool_fails_the_episode_by_its_name_and_ends_the_calls_beside_it():
    environment = Digging()
    trajectory = play(environment, "ra")
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FAILED, None)
    assert (trajectory.failure.kind, trajectory.failure.message) == ("tool", "no server")
    assert environment.ended == ["rest"]
    assert [call[:2] for call in trajectory.turns[0].calls] == [("ask", CallOutcome.BROKEN)]
    second = play(Digging(), "a")
    assert "tool ask is left alone after 1 failures in a row" in second.failure.message
    assert (second.failure.kind, second.reward) == ("tool", None)
