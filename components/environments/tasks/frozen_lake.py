"""A walk over thin ice: a game of text, turn by turn, that is won or lost at its end.

The policy sees the map and says one direction a turn. With `slippery` a move goes where it was meant to in one of three
cases, and to each side in one of three, as in Gymnasium's FrozenLake. Where it goes is a function of the seed, the map
and the number of the move, so that all members of a group meet the same ice and an episode can be played again.
"""

import hashlib
import random
import re
from collections import deque
from collections.abc import Iterable, Sequence

from components.environments.environment import NO_TOOL_USE, Observation, ToolUse
from components.environments.rewards import Grade
from components.environments.tasks.splits import check_counts, drawn_tasks
from components.environments.tools import Tool
from components.errors import ConfigError, Problem
from components.types import Message, Role, Task

DIRECTIONS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_NAMES = tuple(DIRECTIONS)
_SAID = re.compile(r"\b(left|right|up|down)\b", flags=re.IGNORECASE)
_RULES = (
    "You walk over a frozen lake. P is you, G the goal, O a hole, . is ice. Reach G, keep out of O. "
    "In each turn say one word: left, right, up or down."
)
Place = tuple[int, int]


class FrozenLake:
    """Walk to the goal over a frozen lake with holes, one word a turn. Reward 1 at the goal, else 0.

    Every map can be won within `max_moves`, with its slips where it is slippery. A turn without a direction, or with
    several, moves nowhere and is told why; it counts as a move.
    """

    tools: Sequence[Tool] = ()

    def __init__(
        self,
        size: int = 4,
        holes: float = 0.2,
        slippery: bool = False,
        max_moves: int = 20,
        train_tasks: int = 500,
        test_tasks: int = 100,
        seed: int = 0,
    ) -> None:
        """`holes` is the share of places, but start and goal, that are holes."""
        problems = check_counts(train_tasks, test_tasks)
        if not 2 <= size <= 12:
            problems.append(Problem("size", size, "must be from 2 to 12"))
        if not 0 <= holes <= 0.5:
            problems.append(Problem("holes", holes, "must be from 0 to 0.5"))
        if max_moves < 2 * (size - 1):
            problems.append(Problem("max_moves", max_moves, f"the goal may be {2 * (size - 1)} moves away"))
        if problems:
            raise ConfigError(problems)
        self._size, self._holes, self._slippery, self._max_moves = size, holes, slippery, max_moves
        self._counts = {"train_tasks": train_tasks, "test_tasks": test_tasks}
        self._seed = seed
        self._rows: Sequence[str] = ()
        self._at: Place = (0, 0)
        self._moves = 0
        self._ended = ""

    def tasks(self, split: str) -> Iterable[Task]:
        """The maps of "train" or "test": a function of the options."""
        rng = random.Random(self._seed)
        return drawn_tasks(lambda: self._draw(rng), split, **self._counts)

    async def reset(self, task: Task) -> Observation:
        """The rules and the map."""
        self._rows, self._moves, self._ended = list(task.data["map"]), 0, ""
        self._at = _find(self._rows, "S")
        return Observation((Message(Role.USER, f"{_RULES}\n\n{self._picture()}"),))

    async def step(self, message: Message) -> Observation:
        """Move, and show the map anew."""
        self._moves += 1
        said = {word.lower() for word in _SAID.findall(message.content)}
        if len(said) == 1 and not message.tool_calls and not message.malformed_calls:
            told, use = self._walk(said.pop()), NO_TOOL_USE
        else:
            why = f"it says {', '.join(sorted(said))}" if said else "it says no direction"
            told = f"You stay where you are: {why}; say one of left, right, up, down, and nothing else."
            use = ToolUse(malformed=len(message.malformed_calls))
        if self._ended:
            return Observation((), done=True, tool_use=use, reward=float(self._ended == "goal"))
        if self._moves >= self._max_moves:
            self._ended = "moves"
            return Observation((), done=True, tool_use=use)
        return Observation((Message(Role.USER, f"{told}\n\n{self._picture()}"),), tool_use=use)

    async def reward(self) -> Grade:
        """1 at the goal."""
        told = {
            "goal": f"reached the goal in move {self._moves}",
            "hole": f"fell into a hole in move {self._moves}",
            "moves": f"did not arrive within {self._max_moves} moves",
        }
        return Grade(float(self._ended == "goal"), told.get(self._ended, f"was under way after {self._moves} moves"))

    async def close(self) -> None:
        """It holds nothing."""

    def solution(self, task: Task) -> Sequence[Message]:
        """A shortest walk to the goal."""
        return tuple(Message(Role.ASSISTANT, name) for name in self._path(task.data["map"]) or ())

    def _walk(self, direction: str) -> str:
        goes = _slipped(direction, self._key(self._rows), self._moves) if self._slippery else direction
        self._at = _after(self._at, goes, len(self._rows))
        place = self._rows[self._at[0]][self._at[1]]
        self._ended = {"G": "goal", "O": "hole"}.get(place, "")
        return f"You go {goes}." if goes == direction else f"You slip, and go {goes}."

    def _picture(self) -> str:
        rows = [list(row.replace("S", ".")) for row in self._rows]
        rows[self._at[0]][self._at[1]] = "P"
        return "\n".join("".join(row) for row in rows)

    def _draw(self, rng: random.Random) -> Task | None:
        """A map, or None for one that cannot be won, or is won at once."""
        places = [(row, column) for row in range(self._size) for column in range(self._size)]
        start, goal = rng.sample(places, 2)
        cells = {place: "O" if rng.random() < self._holes else "." for place in places}
        cells |= {start: "S", goal: "G"}
        rows = ["".join(cells[row, column] for column in range(self._size)) for row in range(self._size)]
        path = self._path(rows)
        if path is None or len(path) < 2:
            return None
        return Task(f"lake {'/'.join(rows)}", "\n".join(rows), data={"map": rows, "shortest": len(path)})

    def _key(self, rows: Sequence[str]) -> str:
        return f"{self._seed} {'/'.join(rows)}"

    def _path(self, rows: Sequence[str]) -> list[str] | None:
        """The directions to say, over places and, as ice differs from move to move, the number of the move."""
        size, key, goal = len(rows), self._key(rows), _find(rows, "G")
        waiting: deque[tuple[Place, list[str]]] = deque([(_find(rows, "S"), [])])
        seen: set[tuple[Place, int]] = set()
        while waiting:
            place, path = waiting.popleft()
            if place == goal:
                return path
            if len(path) >= self._max_moves:
                continue
            for name in _NAMES:
                goes = _slipped(name, key, len(path) + 1) if self._slippery else name
                following = _after(place, goes, size)
                met = (following, len(path) + 1 if self._slippery else 0)
                if rows[following[0]][following[1]] != "O" and met not in seen:
                    seen.add(met)
                    waiting.append((following, [*path, name]))
        return None


def _slipped(direction: str, key: str, move: int) -> str:
    """Where a step goes on slippery ice: as meant, or to either side of it, each in one of three cases."""
    digest = hashlib.sha256(f"{key} {move}".encode()).digest()
    turn = int.from_bytes(digest[:8], "big") % 3 - 1
    return _NAMES[(_NAMES.index(direction) + turn) % 4]


def _after(place: Place, direction: str, size: int) -> Place:
    """The place that a step leads to; the edge of the lake holds."""
    down, right = DIRECTIONS[direction]
    return min(max(place[0] + down, 0), size - 1), min(max(place[1] + right, 0), size - 1)


def _find(rows: Sequence[str], mark: str) -> Place:
    return next((number, row.index(mark)) for number, row in enumerate(rows) if mark in row)
