"""Questions that take two documents to answer, and a search over all of them."""

import functools
import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from components.environments.environment import Observation, ToolEnvironment
from components.environments.graders import grade_exact
from components.environments.rewards import Grade, Reward
from components.environments.search import SearchIndex, open_index, search_tool
from components.environments.tasks.invented_land import document, make_land, questions
from components.environments.tasks.made_files import made_file
from components.environments.tasks.splits import check_counts, check_split
from components.errors import ConfigError, Problem
from components.types import Message, Role, Task, ToolCall

INSTRUCTION = (
    "Answer the question with the help of the search. It takes two steps: find out what the question is about, then "
    "search for that. End with a line: Answer: and the name alone."
)
_LAST_ANSWER = re.compile(r"(?:.*\banswer\s*:)?\s*(.*?)\s*\.?\s*$", flags=re.IGNORECASE | re.DOTALL)


class MultiHop(ToolEnvironment):
    """Find the answer to a two-step question by searching 400 documents about an invented land. Reward 1 if right.

    `found_weight` rewards an episode in which the search has shown the document that holds the answer. Case, articles
    and punctuation do not matter.
    """

    def __init__(
        self,
        train_tasks: int = 500,
        test_tasks: int = 100,
        results: int = 3,
        worked_example: bool = True,
        found_weight: float = 0.0,
        instruction: str = INSTRUCTION,
        seed: int = 0,
    ) -> None:
        """`results` is how many documents a search shows; the land, too, is a function of `seed`."""
        problems = check_counts(train_tasks, test_tasks)
        if not 1 <= results <= 10:
            problems.append(Problem("results", results, "must be from 1 to 10"))
        if not problems and train_tasks + test_tasks >= (room := len(_shuffled(seed))):
            message = f"the land answers {room - 1} questions beside the worked example's"
            problems.append(Problem("train_tasks, test_tasks", (train_tasks, test_tasks), message))
        if problems:
            raise ConfigError(problems)
        self._train, self._test, self._seed, self._found_weight = train_tasks, test_tasks, seed, found_weight
        self.tools = (search_tool(_index(seed), results=results),)
        self.system_prompt = instruction or None
        self._shown: list[str] = []
        if worked_example:
            self.examples = self._worked(_shuffled(seed)[0])

    def tasks(self, split: str) -> Iterable[Task]:
        """The questions of "train" or "test": a function of the options."""
        check_split(split)
        ordered = _shuffled(self._seed)[1:]
        return ordered[: self._test] if split == "test" else ordered[self._test : self._test + self._train]

    async def reset(self, task: Task) -> Observation:
        """Open the episode."""
        self._shown = []
        return await super().reset(task)

    async def step(self, message: Message) -> Observation:
        """Run the searches, or take the text as the answer."""
        observation = await super().step(message)
        self._shown += [reply.content for reply in observation.messages]
        return observation

    async def reward(self) -> Reward:
        """The grade of the answer, and the part `found` where it has a weight."""
        graded = await super().reward()
        if not self._found_weight or not isinstance(graded, Grade):
            return graded
        title = f"] {self.task.data['bridge']}\n"
        return {"answer": graded, "found": self._found_weight * any(title in text for text in self._shown)}

    def grade(self, task: Task, answer: str) -> Grade:
        """1.0 for the right name, after the last "Answer:" or as the last line."""
        said = answer.strip().rpartition("\n")[2] if "answer" not in answer.lower() else answer
        found = _LAST_ANSWER.match(said[-500:])
        return grade_exact(found.group(1) if found else said, task.answer or "", loose=True)

    def solution(self, task: Task) -> Sequence[Message]:
        """Two searches, and the answer."""
        calls = [ToolCall("search", {"query": task.data[key]}) for key in ("start", "bridge")]
        searches = [Message(Role.ASSISTANT, "", tool_calls=(call,)) for call in calls]
        return (*searches, Message(Role.ASSISTANT, f"Answer: {task.answer}"))

    def _worked(self, task: Task) -> tuple[Message, ...]:
        """The two searches with the one document each that matters."""
        land = make_land(self._seed)
        found = [
            Message(Role.TOOL, f"[1] {name}\n{document(land[name])}", name="search")
            for name in (task.data["start"], task.data["bridge"])
        ]
        first, second, answer = self.solution(task)
        return (Message(Role.USER, task.prompt), first, found[0], second, found[1], answer)


@functools.cache
def _index(seed: int) -> SearchIndex:
    def write(path: Path) -> None:
        rows = ({"title": thing.name, "text": document(thing)} for thing in make_land(seed).values())
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    return open_index(str(made_file(f"land-{seed}.jsonl", write)))


@functools.cache
def _shuffled(seed: int) -> list[Task]:
    """All questions in the order in which splits take them; the first is the worked example's."""
    tasks = [
        Task(f"land {each.text}", each.text, each.answer, {"start": each.start, "bridge": each.bridge})
        for each in questions(make_land(seed))
    ]
    random.Random(seed).shuffle(tasks)
    return tasks
