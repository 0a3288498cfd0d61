"""Trajectories and events for tests of the journal: small, and with everything in them that is hard to write down."""

from components.types import (
    CallOutcome,
    CallRecord,
    Completion,
    Failure,
    FinishReason,
    MalformedCall,
    Message,
    Outcome,
    Role,
    SequenceId,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

TASKS = {name: Task(id=name, prompt=f"task {name}") for name in "abcdef"}


def trajectory(
    task: str = "a",
    member: int = 0,
    *,
    attempt: int = 0,
    versions: tuple[int, ...] = (0, 0, 1),
    failed: bool = False,
    reward: float = 0.5,
) -> Trajectory:
    """Two turns, the first of two tokens, the second of the rest."""
    first = Completion((5, 6), (-0.1, -1 / 3), versions[:2], FinishReason.STOP)
    rest = versions[2:]
    second = Completion((7,) * len(rest), (-1e-7,) * len(rest), rest, FinishReason.LENGTH)
    calls = (ToolCall("math.gcd", {"a": 12, "b": [1.5, None, "ü"]}),)
    return Trajectory(
        task=TASKS[task],
        turns=(
            Turn((1, 2), first, calls=(CallRecord("math.gcd", CallOutcome.RAISED, 1 / 3),)),
            Turn((1, 2, 5, 6, 9), second, reward=-0.25),
        ),
        messages=(
            Message(Role.USER, "line\nbreak, \ud800 and \u2028"),
            Message(Role.ASSISTANT, "", tool_calls=calls, malformed_calls=(MalformedCall("{", "cut"),)),
            Message(Role.TOOL, "3", name="math.gcd"),
        ),
        outcome=Outcome.FAILED if failed else Outcome.TRUNCATED,
        reward=None if failed else reward,
        reward_parts={} if failed else {"answer": reward},
        reward_reasons={} if failed else {"answer": "half of \u2212 it"},
        cut_by=None if failed else "length",
        failure=Failure("tool", "no port\nat all") if failed else None,
        member=member,
        attempt=attempt,
        tool_calls=1,
        seconds=1.25,
        tool_seconds=0.1,
    )


def sequence(task: str = "a", member: int = 0, *, attempt: int = 0, turn: int = 0) -> SequenceId:
    return SequenceId(task, member=member, attempt=attempt, turn=turn)
