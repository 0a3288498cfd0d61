"""The records that travel between rooms. No arrays, no devices, no I/O.

A `Task` is played as an episode in an environment; its record is a `Trajectory` of `Turn`s; the trajectories of one
task are a `Group`; a trajectory laid flat for the trainer is a `Sample`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the policy wrote and the parser understood."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call that the policy tried to write. `reason` is shown to the policy, which can learn from it.

    `kind` is the reason in one word, by which metrics count: see `components.rollout.call_text.KINDS`.
    """

    text: str
    reason: str
    kind: str = "form"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `name` is the tool's name where the role is TOOL.

    `thinking` is what a policy wrote in a thinking block before its answer: no part of the answer, and no call in it.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: tuple[MalformedCall, ...] = ()
    name: str | None = None
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `answer` is the gold answer where there is one; `data` is whatever else its environment needs.

    `limits` lowers the recipe's limits of an episode for this task, by their names: {"max_turns": 2, "max_seconds": 5}.
    """

    id: str
    prompt: str
    answer: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, int | float] = field(default_factory=dict)


class CallOutcome(StrEnum):
    """How a call of a tool ended. All but OK and BROKEN are texts that the policy reads as errors.

    The arguments did not fit, the tool refused them, it raised, it took too long, there is no tool of that name; or the
    infrastructure broke, and the episode with it.
    """

    OK = "ok"
    ARGUMENTS = "arguments"
    REFUSED = "refused"
    RAISED = "raised"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"
    BROKEN = "broken"


class CallRecord(NamedTuple):
    """One call of a tool: its name, how it ended, and its wall time in seconds, waiting for its turn included."""

    tool: str
    outcome: CallOutcome
    seconds: float


class FinishReason(StrEnum):
    """Why a completion ended: a stop id or stop string, its own limit of tokens, or no room left in the context."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy sampled in one turn: three lists of one length, in step token by token.

    `logprobs` are of the temperature-scaled distribution over the whole vocabulary; `versions` is the number of
    optimizer updates that the policy had seen when it sampled the token. Example:

        Completion(token_ids=(5, 2), logprobs=(-0.1, -0.7), versions=(3, 4), finish_reason=FinishReason.STOP)
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                f"a completion has {len(self.token_ids)} tokens, {len(self.logprobs)} log-probs and "
                f"{len(self.versions)} versions; they must be in step"
            )


@dataclass(frozen=True, slots=True)
class SequenceId:
    """Names one turn of one episode. Randomness is a function of it (and of the run's seed), never of time or slot."""

    task_id: str
    epoch: int = 0
    member: int = 0
    attempt: int = 0
    turn: int = 0

    @property
    def episode(self) -> str:
        """The episode as spans and logs name it: TASK/EPOCH/MEMBER/ATTEMPT."""
        return f"{self.task_id}/{self.epoch}/{self.member}/{self.attempt}"


@runtime_checkable
class Policy(Protocol):
    """Tokens in, tokens out. `prompt_ids` is the whole context so far, `max_tokens` the limit of this turn."""

    async def __call__(self, prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        """Sample one turn. Raises EngineFailedError when the engine cannot serve it."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """A completion and the whole prompt that it answers. The next turn's prompt extends prompt + completion.

    `reward` is the part of the episode's reward that the environment says was earned by this turn; `calls` are the
    tools that it called, in the order of the calls.
    """

    prompt_ids: tuple[int, ...]
    completion: Completion
    reward: float = 0.0
    calls: tuple[CallRecord, ...] = ()


class Outcome(StrEnum):
    """How an episode ended: by itself, cut by a limit (its reward counts), or broken at a boundary (it does not)."""

    FINISHED = "finished"
    TRUNCATED = "truncated"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is the boundary that broke (see errors.RolloutError), `message` the error's own text."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of an episode. `reward` is None exactly when the outcome is FAILED.

    `cut_by` names the limit of a truncated episode: length, context or turns. `reward_reasons` says why a part is what
    it is, where its grader said so.
    """

    task: Task
    turns: tuple[Turn, ...]
    messages: tuple[Message, ...]
    outcome: Outcome
    reward: float | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    reward_reasons: Mapping[str, str] = field(default_factory=dict)
    cut_by: str | None = None
    failure: Failure | None = None
    epoch: int = 0
    member: int = 0
    attempt: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    malformed_calls: int = 0
    seconds: float = 0.0
    tool_seconds: float = 0.0

    @property
    def generated_tokens(self) -> int:
        """Tokens that the policy sampled in this episode."""
        return sum(len(turn.completion.token_ids) for turn in self.turns)

    @property
    def oldest_version(self) -> int:
        """The lowest policy version among its tokens; 0 when it has none."""
        return min((version for turn in self.turns for version in turn.completion.versions), default=0)


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task, ordered by member. `position` is its place in the run's order of admission."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    position: int = 0
    epoch: int = 0

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The members that carry a reward."""
        return tuple(trajectory for trajectory in self.trajectories if trajectory.outcome is not Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory laid flat: five lists of one length, plus one advantage for the whole.

    Where credit differs within it, `token_advantages` holds one per sampled token, and counts instead. The other four
    have one number per sampled token where an objective needs them, and are empty elsewhere: the token's log-prob at
    the start of the optimizer step, the reference's, what a critic expected before it, and what the critic should have
    expected.

    `completion_mask` is true where the policy sampled the token; elsewhere log-prob is 0.0 and version -1. Example, for
    the prompt "hi", the completion "a", the observation "!" and the completion "ok" as bytes:

        token_ids        h  i  a  !  o  k
        completion_mask  F  F  T  F  T  T
    """

    token_ids: tuple[int, ...]
    completion_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    advantage: float
    task_id: str = ""
    member: int = 0
    token_advantages: tuple[float, ...] = ()
    proximal_logprobs: tuple[float, ...] = ()
    reference_logprobs: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
