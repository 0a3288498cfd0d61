"""Questions with a list of functions, in the format of the Berkeley Function-Calling Leaderboard.

A file of questions has one JSON object a line: `id`, `question` (one turn of messages), `function` (the definitions). A
file of answers has, by `id`, the `ground_truth`: a list of calls, each {name: {argument: [values that are right]}}. A
question of which there is no answer wants no call at all.

What matches, chosen once for training and evaluation:
- the calls of a message and the right ones, one to one, in any order, by name;
- every argument that is given has one of its right values; one that is not known to the answer is wrong;
- an argument may be left out where "" is among its right values;
- texts are compared without case, white space and the marks , . / - _ * ^ ' "; true is not 1; 3.0 is 3;
- of lists the items are compared by the same rules, and of objects the values, for each of which several may be right.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from components.environments.datasets import OnProblem, TaskFile
from components.environments.environment import Observation, ToolEnvironment, ToolUse
from components.environments.rewards import Grade, Reward
from components.environments.rows import read_rows
from components.environments.sizes import short_repr
from components.environments.tasks.splits import check_split
from components.environments.tools import Tool, tool_from_definition
from components.errors import ConfigError, DataError, Problem
from components.types import Message, Role, Task, ToolCall

_IGNORED = str.maketrans("", "", " \t\n,./-_*^'\"")
_MAX_CALLS = 50


class FunctionCalls(ToolEnvironment):
    """Call the right functions with the right arguments, in the BFCL format. Reward 1 when all calls match.

    `questions` and `answers` are files, local or gs://; `test_share` of the questions, by id, are the test split.
    """

    def __init__(
        self,
        questions: Sequence[str],
        answers: Sequence[str] = (),
        test_share: float = 0.2,
        instruction: str = "",
        on_problem: OnProblem = "stop",
    ) -> None:
        if not questions:
            raise ConfigError(Problem("questions", questions, "name at least one file"))
        if not 0 < test_share < 1:
            raise ConfigError(Problem("test_share", test_share, "must be between 0 and 1"))
        self._questions, self._answers, self._test_share = tuple(questions), tuple(answers), test_share
        self._on_problem: OnProblem = on_problem
        self.system_prompt = instruction or None
        self._calls: tuple[ToolCall, ...] = ()
        self._malformed: tuple[str, ...] = ()

    def tasks(self, split: str) -> Iterable[Task]:
        """The questions of "train" or "test". Raises DataError that names every unusable row and field."""
        return self.read(split).tasks

    def read(self, split: str) -> TaskFile:
        """As `tasks`, with the rows that were left out."""
        check_split(split)
        problems: list[Problem] = []
        answers = dict(answer for _, answer in self._read(self._answers, _answer, problems))
        tasks: dict[str, Task] = {}
        for where, (name, row) in self._read(self._questions, _question, problems):
            if name in tasks:
                problems.append(Problem(f"{where}: id", name, "an earlier row has this id"))
            else:
                tasks[name] = Task(name, row["prompt"], data=row | {"answer": answers.get(name, [])})
        if problems and self._on_problem == "stop":
            raise DataError(problems)
        kept = tuple(task for task in tasks.values() if (_share_of(task.id) < self._test_share) == (split == "test"))
        if not kept:
            raise DataError([*problems, Problem(", ".join(self._questions), split, "this split has no question")])
        return TaskFile(kept, tuple(problems))

    def opening(self, task: Task) -> tuple[Message, ...]:
        """The question's own messages; a system prompt before them where the question has none."""
        messages = tuple(Message(Role(each["role"]), each["content"]) for each in task.data["messages"])
        system = [Message(Role.SYSTEM, self.system_prompt)] if self.system_prompt else []
        return messages if messages[0].role is Role.SYSTEM else (*system, *messages)

    async def reset(self, task: Task) -> Observation:
        """Open the episode with the question's own functions as tools."""
        self.tools = _tools(task.data["functions"], task.id)
        return await super().reset(task)

    async def step(self, message: Message) -> Observation:
        """Take the calls as the answer: nothing is executed."""
        self.answer = message.content
        self._calls = tuple(message.tool_calls)
        self._malformed = tuple(call.reason for call in message.malformed_calls)
        return Observation((), done=True, tool_use=ToolUse(len(self._calls), malformed=len(self._malformed)))

    async def reward(self) -> Reward:
        """1 when the calls match the right ones, and none is malformed."""
        if self.answer is None:
            return Grade(0.0, "there was no answer")
        if self._malformed:
            return Grade(0.0, f"a call is malformed: {self._malformed[0]}")
        return grade_calls(self._calls, self.task.data["answer"])

    def grade(self, task: Task, answer: str) -> Reward:
        """A text without calls, graded alone."""
        return grade_calls((), task.data["answer"])

    def solution(self, task: Task) -> Sequence[Message]:
        """The right calls in one message, each argument with the first of its right values."""
        calls = tuple(
            ToolCall(name, {key: _plain(values[0]) for key, values in arguments.items() if values[0] != ""})
            for call in task.data["answer"]
            for name, arguments in call.items()
        )
        return (Message(Role.ASSISTANT, "" if calls else "None of these functions can do that.", tool_calls=calls),)

    def _read(self, files: Sequence[str], take: Any, problems: list[Problem]) -> Iterator[tuple[str, tuple[str, Any]]]:
        for uri in files:
            for where, row in read_rows(uri, problems):
                try:
                    yield where, take(row, where)
                except DataError as error:
                    problems += error.problems


def grade_calls(calls: Sequence[ToolCall], expected: Sequence[Mapping[str, Any]]) -> Grade:
    """1.0 when calls and right calls match one to one, in any order; the reason names the first that does not."""
    if len(calls) > _MAX_CALLS:
        return Grade(0.0, f"{len(calls)} calls, {len(expected)} are right")
    left = [(name, arguments) for call in expected for name, arguments in call.items()]
    for call in calls:
        faults = [_call_fault(call, name, arguments) for name, arguments in left]
        if None not in faults:
            same_name = [fault for (name, _), fault in zip(left, faults, strict=True) if name == call.name and fault]
            why = same_name[0] if same_name else "is not among the right calls" if expected else "no call is right"
            return Grade(0.0, f"{short_repr(call.name)}: {why}")
        left.pop(faults.index(None))
    if left:
        return Grade(0.0, f"the call of {', '.join(name for name, _ in left)} is missing")
    return Grade(1.0, f"{len(calls)} calls match" if calls else "no call, which is right")


def _call_fault(call: ToolCall, name: str, arguments: Mapping[str, Sequence[Any]]) -> str | None:
    if call.name != name:
        return "has another name"
    for key, value in call.arguments.items():
        if key not in arguments:
            return f"argument {short_repr(key)} is not wanted"
        if not any(same_value(value, right) for right in arguments[key] if right != "" or value == ""):
            return f"argument {key} is {short_repr(value)}, right is {short_repr(arguments[key][0])}"
    for key, right in arguments.items():
        if key not in call.arguments and "" not in right:
            return f"argument {key} is missing"
    return None


def same_value(value: Any, right: Any) -> bool:
    """Whether a value is the right one, by the choices above."""
    if isinstance(value, str) or isinstance(right, str):
        both = isinstance(value, str) and isinstance(right, str)
        return both and _compared(value) == _compared(right)
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(right, Mapping):
        if not isinstance(value, Mapping):
            return False
        optional = {key for key, values in right.items() if "" in values}
        known = set(value) <= set(right) and set(right) - optional <= set(value)
        return known and all(any(same_value(item, each) for each in right[key]) for key, item in value.items())
    if isinstance(right, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(right):
            return False
        return all(same_value(item, each) for item, each in zip(value, right, strict=True))
    return bool(value == right)


def _compared(text: str) -> str:
    return text.translate(_IGNORED).lower()


def _plain(value: Any) -> Any:
    """A right value as a call writes it: an object's values are lists of right ones, of which the first is taken."""
    if isinstance(value, Mapping):
        return {key: _plain(values[0]) for key, values in value.items() if values[0] != ""}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _question(row: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    turns, functions = row.get("question"), row.get("function")
    problems: list[Problem] = []
    if not isinstance(turns, list) or len(turns) != 1 or not turns[0] or not all(map(_is_message, turns[0])):
        problems.append(Problem(f"{where}: question", turns, "must be one turn: a list that holds a list of messages"))
    if not isinstance(functions, list) or not functions:
        problems.append(Problem(f"{where}: function", functions, "must be a list of definitions"))
    else:
        try:
            _tools(functions, f"{where}: function")
        except DataError as error:
            problems += error.problems
    if problems or not isinstance(turns, list):
        raise DataError(problems)
    prompt = "\n".join(message["content"] for message in turns[0] if message["role"] == "user")
    return _id_of(row, where), {"prompt": prompt, "messages": turns[0], "functions": functions}


def _answer(row: Mapping[str, Any], where: str) -> tuple[str, list[Any]]:
    truth = row.get("ground_truth")
    if not isinstance(truth, list) or not all(map(_is_right_call, truth)):
        message = "must be a list of {name: {argument: [right values]}}"
        raise DataError(Problem(f"{where}: ground_truth", truth, message))
    return _id_of(row, where), truth


def _id_of(row: Mapping[str, Any], where: str) -> str:
    name = row.get("id")
    if not isinstance(name, str) or not name:
        raise DataError(Problem(f"{where}: id", name, "must be a text, and not empty"))
    return name


def _is_message(value: Any) -> bool:
    roles = (Role.SYSTEM, Role.USER, Role.ASSISTANT)
    return isinstance(value, Mapping) and value.get("role") in roles and isinstance(value.get("content"), str)


def _is_right_call(call: Any) -> bool:
    return isinstance(call, Mapping) and all(
        isinstance(arguments, Mapping) and all(isinstance(values, list) and values for values in arguments.values())
        for arguments in call.values()
    )


def _tools(functions: Sequence[Any], where: str) -> tuple[Tool, ...]:
    tools = []
    for number, definition in enumerate(functions):
        if not isinstance(definition, Mapping):
            raise DataError(Problem(f"{where}[{number}]", definition, "a definition must be an object"))
        tools.append(tool_from_definition(definition, _not_run, where=f"{where}[{number}]"))
    return tuple(tools)


def _not_run(**arguments: Any) -> str:
    return json.dumps(arguments, default=str)


def _share_of(name: str) -> float:
    """A number from 0 to 1 that depends on the id alone, so that a question never changes its split."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
