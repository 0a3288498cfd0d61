"""Whatever an environment, tool, grader or engine does: a typed outcome in bounded time, and the run goes on."""

import asyncio
import contextlib
import dataclasses
import time

import numpy as np
import pytest

from components.environments.environment import Observation, ToolEnvironment, ToolUse
from components.environments.grader_pool import GraderPool
from components.environments.intake import MAX_JSON, MAX_MESSAGES
from components.environments.tools import tool, tool_from_definition
from components.errors import EngineFailedError, SandboxFailedError, ToolFailedError
from components.rollout.cursor import TaskCursor
from components.rollout.episode import EpisodeLimits, run_episode
from components.rollout.orchestrator import Orchestrator, RolloutConfig
from components.telemetry.loop_lag import LoopLag
from components.training.ledger import Fate, Ledger
from components.types import Message, Outcome, Role, SequenceId, Task, ToolCall, Trajectory
from tests.environments import graders_that_misbehave as graders
from tests.fakes import ByteRenderer, EchoEnvironment, ScriptedPolicy

TASK = Task(id="7", prompt="hi")
MEGABYTES_50 = "x" * 50_000_000
EASY = EpisodeLimits()
QUICK = EpisodeLimits(max_seconds=0.1, max_close_seconds=0.05)


async def episode(environment, policy=None, *, limits=EASY, renderer=None) -> Trajectory:
    policy = policy or ScriptedPolicy("a", "ok")
    return await run_episode(
        policy, environment, renderer or ByteRenderer(), TASK, limits=limits, sequence=SequenceId(TASK.id)
    )


def play(environment, policy=None, **keywords) -> Trajectory:
    return asyncio.run(episode(environment, policy, **keywords))


class After(EchoEnvironment):
    """Does `act` in the method `where`, and gives what that gives; everything else as EchoEnvironment."""

    def __init__(self, where: str, act) -> None:
        super().__init__()
        self.where, self.act = where, act

    async def reset(self, task):
        return await self.act() if self.where == "reset" else await super().reset(task)

    async def step(self, message):
        return await self.act() if self.where == "step" else await super().step(message)

    async def reward(self):
        return await self.act() if self.where == "reward" else await super().reward()

    async def close(self):
        await super().close()
        if self.where == "close":
            await self.act()


class Using(ToolEnvironment):
    """One tool, called once; the reply is the answer of nobody."""

    def __init__(self, function, **settings) -> None:
        self.tools = (tool(function, name="try", **settings),)

    def tasks(self, split):
        return [TASK]

    def grade(self, task, answer):
        return 1.0


class CallingRenderer(ByteRenderer):
    """Takes a text "a" for a call of the tool."""

    def parse(self, token_ids, tools):
        message = super().parse(token_ids, tools)
        return Message(Role.ASSISTANT, "", tool_calls=(ToolCall("try", {}),)) if message.content == "a" else message


def gives(value):
    async def act():
        return value

    return act


def raises(error: BaseException):
    async def act():
        raise error

    return act


async def hangs():
    await asyncio.sleep(60)


async def hangs_and_will_not_end():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def cancels_itself():
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


class BrokenWordsError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("where", ["reset", "step", "reward", "close"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("port"), "raised KeyError: 'port'"),
        (SystemExit(3), "called sys.exit(3)"),
        (BrokenWordsError(), "raised BrokenWordsError: (its text raised ValueError)"),
        (ValueError("\ud800"), "raised ValueError: ?"),
        (ExceptionGroup("two", [KeyError(), ValueError()]), "raised ExceptionGroup: two"),
    ],
)
def test_what_an_environment_raises_is_a_failure_in_its_own_words(where, error, words):
    failure = play(After(where, raises(error))).failure
    assert failure.kind == ("grader" if where == "reward" else "environment")
    assert failure.message == f"{where} of task 7 {words}" or words in failure.message


@pytest.mark.parametrize(
    ("error", "kind"), [(ToolFailedError("no port"), "tool"), (SandboxFailedError("no disk"), "sandbox")]
)
def test_a_typed_error_of_the_environment_keeps_its_kind(error, kind):
    failure = play(After("step", raises(error))).failure
    assert (failure.kind, failure.message) == (kind, str(error))


def test_an_error_with_50_mb_of_words_is_cut():
    assert len(play(After("step", raises(ValueError(MEGABYTES_50)))).failure.message) < 1000


@pytest.mark.parametrize("where", ["reset", "step", "reward"])
@pytest.mark.parametrize("act", [hangs, hangs_and_will_not_end])
def test_whatever_hangs_is_a_timeout_that_says_where_and_keeps_the_turns(where, act):
    async def main():
        trajectory = await episode(After(where, act), limits=QUICK)
        await asyncio.sleep(0)
        return trajectory, len(asyncio.all_tasks())

    started = time.perf_counter()
    trajectory, tasks = asyncio.run(main())
    assert time.perf_counter() - started < 5
    assert trajectory.failure.kind == "timeout"
    assert f"max_seconds = 0.1; it was waiting for {where}" in trajectory.failure.message
    assert len(trajectory.turns) == {"reset": 0, "step": 1, "reward": 2}[where]
    assert trajectory.reward is None
    assert tasks == 1


def test_a_close_that_hangs_fails_its_episode_alone_and_soon():
    limits = EpisodeLimits(max_seconds=60, max_close_seconds=0.05)
    started = time.perf_counter()
    failure = play(After("close", hangs), limits=limits).failure
    assert time.perf_counter() - started < 5
    assert (failure.kind, failure.message) == (
        "environment",
        "close of task 7 took longer than max_close_seconds = 0.05",
    )


def test_a_close_that_will_not_end_ends_with_the_episode():
    assert play(After("close", hangs_and_will_not_end), limits=QUICK).failure.kind == "timeout"


def test_the_first_failure_is_the_one_that_is_told():
    class Twice(After):
        async def close(self):
            raise ValueError("the second")

    assert "the first" in play(Twice("step", raises(KeyError("the first")))).failure.message


def test_an_environment_that_catches_its_cancellation_and_goes_on_samples_no_more():
    async def late():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return written("!")

    policy = ScriptedPolicy("a")
    trajectory = play(After("step", late), policy, limits=QUICK)
    assert trajectory.failure.kind == "timeout"
    assert len(policy.asked) == len(trajectory.turns) == 1


@pytest.mark.parametrize("act", [raises(asyncio.CancelledError()), cancels_itself])
@pytest.mark.parametrize("where", ["reset", "step", "reward", "close"])
def test_a_cancellation_that_nobody_asked_for_is_a_failure(where, act):
    trajectory = play(After(where, act))
    assert (trajectory.outcome, trajectory.failure.kind) == (Outcome.FAILED, "cancelled")
    assert trajectory.failure.message.startswith(f"{where} of task 7 cancelled")


def test_a_policy_that_is_cancelled_by_its_engine_is_a_failure():
    async def dropped(prompt_ids, *, sequence, max_tokens):
        raise asyncio.CancelledError

    assert play(EchoEnvironment(), dropped).failure.kind == "cancelled"


@pytest.mark.parametrize("act", [hangs, hangs_and_will_not_end])
def test_a_real_cancellation_cancels_and_closes(act):
    environment = After("step", act)

    async def main():
        before = len(asyncio.all_tasks())
        playing = asyncio.create_task(episode(environment, limits=EpisodeLimits(max_close_seconds=0.05)))
        await asyncio.sleep(0.05)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before

    # The grace for who will not end is a second longer than what close may take, twice.
    asyncio.run(asyncio.wait_for(main(), 10))
    assert environment.closed is (act is hangs)


def test_reset_and_close_run_in_one_task():
    tasks = []

    async def remember():
        tasks.append(asyncio.current_task())
        return Observation((), done=True)

    class Both(After):
        async def close(self):
            tasks.append(asyncio.current_task())

    play(Both("reset", remember))
    assert tasks[0] is tasks[1]


def test_an_engine_error_is_a_failure_that_keeps_the_turns_before_it():
    first = ScriptedPolicy("a")

    async def policy(prompt_ids, *, sequence, max_tokens):
        if sequence.turn == 1:
            raise EngineFailedError("the engine is closed")
        return await first(prompt_ids, sequence=sequence, max_tokens=max_tokens)

    trajectory = play(EchoEnvironment(), policy)
    assert (trajectory.failure.kind, trajectory.failure.message) == ("engine", "the engine is closed")
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize("part", ["start", "extend", "parse"])
def test_a_bug_of_the_renderer_propagates_as_itself_and_the_environment_is_closed(part):
    renderer = ByteRenderer()

    def broken(*arguments):
        raise ZeroDivisionError(part)

    setattr(renderer, part, broken)
    environment = EchoEnvironment()
    with pytest.raises(ZeroDivisionError, match=part):
        play(environment, renderer=renderer)
    assert environment.closed


def unchecked(kind, **fields):
    """A record as it is made outside of tests, where nobody checks the types of its fields."""
    made = object.__new__(kind)
    for each in dataclasses.fields(kind):
        object.__setattr__(made, each.name, fields.get(each.name, each.default))
    return made


def observed(messages=(), **fields) -> Observation:
    return unchecked(Observation, messages=messages, **fields)


def written(content="x", role=Role.TOOL, **fields) -> Observation:
    return observed((unchecked(Message, role=role, content=content, **fields),))


def called(*calls) -> Observation:
    return written("", Role.ASSISTANT, tool_calls=calls)


def call(arguments) -> ToolCall:
    return unchecked(ToolCall, name="f", arguments=arguments)


JUNK = [
    ({"done": True}, "returned dict, not an Observation"),
    (None, "returned NoneType, not an Observation"),
    (observed("hello"), "messages must be a tuple of Message, not str 'hello'"),
    (observed(map(str, ())), "messages must be a tuple of Message, not map"),
    (observed(({"role": "user"},)), "messages[0] must be a Message, not dict {'role': 'user'}"),
    (written(role="tool"), "messages[0].role must be one of SYSTEM, USER, ASSISTANT, TOOL of Role"),
    (written(None), "messages[0].content must be text, not NoneType None"),
    (written(b"bytes"), "messages[0].content must be text, not bytes b'bytes'"),
    (written("\ud83d"), "messages[0] holds a lone surrogate"),
    (written(name="\ud83d"), "messages[0] holds a lone surrogate"),
    (written(name=3), "messages[0].name must be text, not int 3"),
    (observed(done="yes"), "done must be True or False, not str 'yes'"),
    (observed(done=np.zeros(2)), "done must be True or False, not ndarray"),
    (observed(tool_use={"calls": 1}), "tool_use must be a ToolUse"),
    (observed(tool_use=unchecked(ToolUse, calls="3")), "tool_use must hold numbers"),
    (called("search"), "tool_calls must be ToolCalls with a name and arguments"),
    (called(call([1])), "tool_calls must be ToolCalls with a name and arguments"),
    (called(call({"x": object()})), "tool_calls cannot be written as JSON"),
    (called(call({"x": "\ud83d"})), "tool_calls cannot be written as JSON"),
    (written(tool_calls=3, role=Role.ASSISTANT), "tool_calls must be a tuple of ToolCall"),
    (written(malformed_calls=3, role=Role.ASSISTANT), "malformed_calls must be a tuple"),
]


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize(("junk", "message"), JUNK)
def test_junk_is_a_failure_that_says_what_it_was(where, junk, message):
    trajectory = play(After(where, gives(junk)))
    assert trajectory.failure.kind == "environment"
    assert message in trajectory.failure.message
    assert len(trajectory.turns) == (where == "step")


def test_a_numpy_bool_ends_an_episode():
    assert play(After("step", gives(observed(done=np.bool_(True))))).outcome is Outcome.FINISHED


def test_junk_where_the_tools_should_be_is_a_failure():
    class Odd(EchoEnvironment):
        tools = ("calculator",)

    class Raising(EchoEnvironment):
        @property
        def tools(self):
            raise KeyError("no tools yet")

    assert "tools must be a tuple of functions under @tool, not ('calculator',)" in play(Odd()).failure.message
    assert "no tools yet" in play(Raising()).failure.message


HUGE = [
    (written(MEGABYTES_50), "has 50000000 characters or more, over its limit of 1000000 (max_observation_characters)"),
    (written(name=MEGABYTES_50), "over its limit of 1000000"),
    (observed((Message(Role.TOOL, "y" * 50),) * 1_000_000), f"may have {MAX_MESSAGES} messages, not 1000000"),
    (observed((Message(Role.TOOL, "y" * 5000),) * 10_000), "over its limit of 1000000"),
    (called(call({"x": MEGABYTES_50})), f"more than {MAX_JSON} characters"),
    (called(call({"x": [0] * 10_000_000})), f"more than {MAX_JSON} characters"),
]


async def with_lag(work) -> tuple[Trajectory, float]:
    async with LoopLag() as lag:
        await asyncio.sleep(0.03)
        trajectory = await work()
    return trajectory, lag.worst_seconds


def quickest(work) -> tuple[Trajectory, float]:
    """The least of five lags: what a busy machine adds does not come every time."""
    return min((asyncio.run(with_lag(work)) for _ in range(5)), key=lambda seen: seen[1])


@pytest.mark.parametrize(("huge", "message"), HUGE)
def test_50_mb_are_refused_with_both_numbers_before_anything_reads_them(huge, message):
    trajectory, lag = quickest(lambda: episode(After("step", gives(huge))))
    assert trajectory.failure.kind == "environment"
    assert message in trajectory.failure.message
    assert len(trajectory.failure.message) < 500
    assert lag < 0.05


def test_a_tool_definition_of_50_mb_is_refused():
    class Chatty(EchoEnvironment):
        tools = (tool_from_definition({"name": "f", "description": MEGABYTES_50}, print),)

    trajectory, lag = quickest(lambda: episode(Chatty()))
    assert f"more than {MAX_JSON} characters" in trajectory.failure.message
    assert lag < 0.05


def test_a_long_text_within_the_limit_is_translated_in_a_thread():
    class Slow(ByteRenderer):
        def extend(self, completion, messages):
            until = time.perf_counter() + 0.2
            while time.perf_counter() < until:
                pass
            return [1]

    environment = lambda: After("step", gives(written("x" * 100_000)))  # noqa: E731
    limits = EpisodeLimits(max_turns=2)
    trajectory, lag = quickest(lambda: episode(environment(), renderer=Slow(), limits=limits))
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.TRUNCATED, 2)
    assert lag < 0.05


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (float("nan"), "finite, not nan"),
        (float("inf"), "finite"),
        (np.float32("nan"), "finite"),
        ([1.0, 2.0], "must be a number, not list [1.0, 2.0]"),
        (None, "not NoneType None"),
        ("1.0", "not str '1.0'"),
        ({}, "at least one part"),
        ({"a": 1e308, "b": 1e308}, "sum of the parts: a reward must be finite"),
        ({str(number): 0.0 for number in range(1000)}, "may have 100 parts, not 1000"),
        ({"x" * 1000: 0.0}, "at most 200 characters"),
        (MEGABYTES_50, "must be a number, not str 'xxx"),
        ([0.0] * 10_000_000, "must be a number, not list [0.0, 0.0"),
        ({"a": dict.fromkeys(range(1_000_000))}, "a dict of 1000000 items"),
    ],
)
def test_a_reward_that_is_no_finite_number_is_a_failure_of_the_grader(reward, words):
    trajectory, lag = quickest(lambda: episode(After("reward", gives(reward))))
    assert (trajectory.failure.kind, trajectory.reward) == ("grader", None)
    assert words in trajectory.failure.message
    assert len(trajectory.failure.message) < 500
    assert lag < 0.05


@pytest.mark.parametrize(("reward", "number"), [(np.bool_(True), 1.0), (np.float32(0.5), 0.5), (np.array([2]), 2.0)])
def test_a_numpy_scalar_is_a_reward(reward, number):
    trajectory = play(After("reward", gives(reward)))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FINISHED, number)
    assert type(trajectory.reward) is float


def reply(function, **settings) -> tuple[Trajectory, str]:
    trajectory = play(Using(function, **settings), renderer=CallingRenderer())
    return trajectory, next(each.content for each in trajectory.messages if each.role is Role.TOOL)


async def tool_hangs() -> str:
    await asyncio.sleep(60)
    return "late"


async def tool_will_not_end() -> str:
    await hangs_and_will_not_end()
    return "never"


async def tool_cancels_itself() -> str:
    raise asyncio.CancelledError


async def tool_exits() -> str:
    raise SystemExit(2)


def tool_exits_in_its_thread() -> str:
    raise SystemExit(2)


def tool_stops() -> str:
    return next(iter([]))


def tool_has_no_words() -> str:
    raise BrokenWordsError


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (tool_hangs, "error: try took longer than 0.3 seconds"),
        (tool_will_not_end, "error: try took longer than 0.3 seconds"),
        (tool_cancels_itself, "error: SelfCancelledError: it ended as cancelled, although nobody had cancelled it"),
        (tool_exits, "error: RuntimeError: it called sys.exit(2)"),
        (tool_exits_in_its_thread, "error: RuntimeError: it called sys.exit(2)"),
        (tool_stops, "error: RuntimeError: coroutine raised StopIteration"),
        (tool_has_no_words, "error: BrokenWordsError: (its text raised ValueError)"),
    ],
)
def test_a_tool_that_misbehaves_is_an_observation_and_the_episode_goes_on(function, text):
    trajectory, said = reply(function, timeout=0.3)
    assert said == text
    assert (trajectory.outcome, trajectory.reward, trajectory.tool_errors) == (Outcome.FINISHED, 1.0, 1)


@pytest.mark.parametrize(
    "result",
    [MEGABYTES_50, {"stdout": MEGABYTES_50}, [{"a": number} for number in range(1_000_000)], MEGABYTES_50.encode()],
    ids=["text", "nested text", "a list", "bytes"],
)
def test_a_tool_that_returns_50_mb_is_cut_and_blocks_nobody(result):
    async def big() -> object:
        return result

    trajectory, lag = quickest(lambda: episode(Using(big), renderer=CallingRenderer()))
    said = next(each.content for each in trajectory.messages if each.role is Role.TOOL)
    assert trajectory.outcome is not Outcome.FAILED
    assert 8000 <= len(said) < 8100
    assert "\n[cut: " in said
    assert lag < 0.05


def test_text_of_a_tool_that_cannot_be_encoded_is_mended():
    def odd() -> str:
        return "a\ud800b"

    assert reply(odd)[1] == "a?b"


class InAProcess(EchoEnvironment):
    """Its grader runs where it can be killed."""

    def __init__(self, pool, grader) -> None:
        super().__init__()
        self.pool, self.grader = pool, grader

    async def reward(self):
        return await self.pool.grade(self.grader, "four")


@pytest.mark.parametrize(
    ("grader", "words"),
    [
        (graders.never_ends, "never_ends timed out after 0.5 seconds"),
        (graders.dies, "dies took its process down (exit code 3)"),
        (graders.exits, "exits took its process down (exit code 4)"),
        (graders.raises, "raises raised ValueError: cannot grade four"),
        (graders.gives_50_mb, "gives_50_mb raised an answer of 500"),
        (lambda text: 1.0, "cannot be sent to a process"),
    ],
)
def test_a_grader_that_misbehaves_costs_its_own_episode_and_the_next_one_is_graded(grader, words):
    async def main():
        # Only one that never ends has to be waited for.
        with GraderPool(workers=1, timeout=0.5 if grader is graders.never_ends else 30.0) as pool:
            return await episode(InAProcess(pool, grader)), await episode(InAProcess(pool, graders.length))

    bad, good = asyncio.run(main())
    assert (bad.failure.kind, bad.reward) == ("grader", None)
    assert words in bad.failure.message
    assert (good.outcome, good.reward) == (Outcome.FINISHED, 4.0)


def test_a_run_with_every_kind_of_failure_in_it_goes_on_to_its_end():
    ways = [
        ("step", raises(KeyError("port")), "environment"),
        ("step", hangs, "timeout"),
        ("step", hangs_and_will_not_end, "timeout"),
        ("step", gives(written(None)), "environment"),
        ("step", gives(written(MEGABYTES_50)), "environment"),
        ("step", raises(ToolFailedError("no port")), "tool"),
        ("reward", gives(float("nan")), "grader"),
        ("reward", gives([1.0]), "grader"),
        ("step", raises(asyncio.CancelledError()), "cancelled"),
        ("close", hangs, "environment"),
    ]
    failed: dict[str, str] = {}

    async def play_one(task, sequence):
        way = int(task.id)
        broken = sequence.member == 0 and sequence.attempt == 0
        environment = After(*ways[way][:2]) if broken else EchoEnvironment()
        # Only what hangs is waited for briefly: on a busy machine an honest step may take longer.
        limits = QUICK if broken and ways[way][2] == "timeout" else dataclasses.replace(QUICK, max_seconds=30.0)
        trajectory = await run_episode(
            ScriptedPolicy("a", "ok"), environment, ByteRenderer(), task, limits=limits, sequence=sequence
        )
        if trajectory.failure:
            failed[task.id] = trajectory.failure.kind
        return trajectory

    async def main():
        cursor = TaskCursor([Task(str(way), "hi") for way in range(len(ways))], seed=0)
        settings = RolloutConfig(group_size=2, tasks_per_step=len(ways), max_attempts=2)
        async with Orchestrator(play_one, cursor, settings, last_version=1) as orchestrator:
            return [group async for group in orchestrator]

    groups = asyncio.run(main())
    assert len(groups) == len(ways)
    assert all(len(group.valid) == 2 for group in groups)
    assert failed == {str(way): kind for way, (_, _, kind) in enumerate(ways)}


def test_our_own_code_never_blocks_the_event_loop():
    steps, per_step = 4, 8

    async def main():
        ledger = Ledger()
        policy = ScriptedPolicy("a", "b", "ok", seconds={member: 0.01 * member for member in range(4)})

        async def counted(prompt_ids, *, sequence, max_tokens):
            completion = await policy(prompt_ids, sequence=sequence, max_tokens=max_tokens)
            ledger.sampled(sequence, completion.versions)
            return completion

        async def play_one(task, sequence):
            return await run_episode(counted, EchoEnvironment(), ByteRenderer(), task, limits=limits, sequence=sequence)

        cursor = TaskCursor([Task(str(number), "x" * 20_000) for number in range(8)], seed=0)
        settings = RolloutConfig(group_size=4, tasks_per_step=per_step, max_staleness=1)
        limits = EpisodeLimits(max_context=100_000)
        async with LoopLag() as lag, Orchestrator(play_one, cursor, settings, last_version=steps) as orchestrator:
            for version in range(1, steps + 1):
                for _ in range(per_step):
                    for trajectory in (await anext(orchestrator)).trajectories:
                        ledger.settle(trajectory, Fate.TRAINED)
                orchestrator.advance(version)
        ledger.check()
        return lag

    # What our code does, it does every time; a busy machine stalls us now and then.
    lags = (asyncio.run(main()) for _ in range(20))
    assert any(lag.worst_seconds < 0.05 and lag.blocked_by == {} for lag in lags)
