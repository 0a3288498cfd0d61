"""Conversations -> token ids and the mask of what the assistant said, as an episode of the run would lay them out.

So the prompts are those that the sampler sees in the run, and what is learnt is what it would sample there, with the
token that ends a turn (see `rollout/transcript.py`).
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from components.environments.tools import Tool
from components.errors import DataError, HeadraceError, Problem, folded
from components.rollout.player import Player
from components.rollout.renderer import Renderer
from components.rollout.transcript import transcript
from components.training.packing import UNSAMPLED_VERSION
from components.training.tuning.methods import Row
from components.training.tuning.rows import Talk
from components.types import Message, Role, Sample, Task

OPENED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Laid:
    """One conversation as token ids (int32), and which of them the assistant said."""

    ids: np.ndarray
    said: np.ndarray

    def sample(self) -> Sample:
        """As the packer takes it."""
        length = len(self.ids)
        return Sample(
            token_ids=tuple(self.ids.tolist()),
            completion_mask=tuple(self.said.tolist()),
            logprobs=(0.0,) * length,
            versions=(UNSAMPLED_VERSION,) * length,
            advantage=0.0,
        )


@dataclass(frozen=True, slots=True)
class Example:
    """One row: a conversation, or the chosen one and the rejected one."""

    laid: tuple[Laid, ...]
    where: str = ""

    @property
    def longest(self) -> int:
        """Tokens of the longer conversation."""
        return max(len(each.ids) for each in self.laid)

    def row(self) -> Row:
        """As a tuner takes it."""
        return tuple(each.sample() for each in self.laid)


@dataclass(frozen=True, slots=True)
class Fitting:
    """The examples that fit a row of the packing, and how many were left out because they do not."""

    examples: tuple[Example, ...]
    too_long: int = 0


async def lay_out_all(player: Player, talks: Sequence[Talk], first_task: Task) -> list[Example]:
    """Every conversation as the run's own renderer writes it, in order.

    Texts are opened by the environment, each as a task of its own; tools that a row does not list are the environment's
    once it has opened `first_task`. Raises DataError with all that the environment cannot open, and all that cannot be
    said in the renderer's form.
    """
    tools = (await _opened(player, first_task))[1]
    room = asyncio.Semaphore(OPENED_AT_ONCE)
    problems: list[Problem] = []

    async def one(talk: Talk) -> Example:
        async with room:
            laid: tuple[Laid, ...] = ()
            try:
                opening, own = talk.opening.messages, tools
                if talk.opening.task:
                    opening, own = await _opened(player, Task(talk.where or talk.opening.task, talk.opening.task))
                shown = own if talk.opening.tools is None else talk.opening.tools
                laid = tuple(lay_out(player.renderer, opening, answer, shown) for answer in talk.answers)
            except DataError as error:
                problems.extend(Problem(f"{talk.where}: {e.where}", e.value, e.message) for e in error.problems)
            return Example(laid, talk.where)

    examples = await asyncio.gather(*map(one, talks))
    if problems:
        raise DataError(folded(problems))
    return examples


def lay_out(renderer: Renderer, opening: Sequence[Message], said: Sequence[Message], tools: Sequence[Tool]) -> Laid:
    """One conversation: what the assistant says in `said` is learnt, and its part in the opening is context."""
    spoken = [len(opening) + place for place, message in enumerate(said) if message.role is Role.ASSISTANT]
    found = transcript(renderer, [*opening, *said], tools, learned=spoken)
    return Laid(np.asarray(found.token_ids, np.int32), np.asarray(found.completion_mask, np.bool_))


def fitting(examples: Iterable[Example], row_length: int, *, drop: bool) -> Fitting:
    """The examples of at most `row_length` tokens.

    Raises DataError that names the longer ones, unless they are to be dropped, and when none is left.
    """
    examples = list(examples)
    kept = tuple(example for example in examples if example.longest <= row_length)
    longer = [example for example in examples if example.longest > row_length]
    message = f"is longer, rendered, than packing.row_length = {row_length}; raise it, or set tune.rows.too_long: drop"
    problems = [Problem(example.where, f"{example.longest} tokens", message) for example in longer]
    if problems and not drop:
        raise DataError(folded(problems))
    if not kept:
        raise DataError([*folded(problems), Problem("tune.rows", len(examples), "no row is left: all are too long")])
    return Fitting(kept, len(longer))


def fingerprint(examples: Sequence[Example]) -> str:
    """A hash over all ids and masks in order: the data, and how it is rendered."""
    digest = hashlib.sha256()
    for example in examples:
        for laid in example.laid:
            digest.update(len(laid.ids).to_bytes(8, "little"))
            digest.update(laid.ids.tobytes())
            digest.update(laid.said.tobytes())
        digest.update(b"|")
    return digest.hexdigest()[:16]


async def _opened(player: Player, task: Task) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    environment = player.make_environment()
    try:
        return (await environment.reset(task)).messages, tuple(environment.tools)
    except HeadraceError:
        raise
    except Exception as error:  # The boundary to code of others.
        message = f"{player.name} cannot open it as a task: {type(error).__name__}: {error}"
        raise DataError(Problem("prompt", task.prompt, message)) from error
    finally:
        await environment.close()
