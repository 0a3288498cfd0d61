"""What would stop the tune step of a recipe, found before anything runs: its rows, steps, rows' length and teacher."""

import asyncio
from collections.abc import Iterator, Sequence

from components.environments.environment import environment_factory, tasks_of
from components.errors import ConfigError, DataError, Problem, WeightsError, folded
from components.launcher.platform import device_problems
from components.model.architecture import Architecture
from components.rollout.player import make_player
from components.rollout.tokenizer import Tokenizer
from components.training.tuning.demonstrations import Demonstrating
from components.training.tuning.examples import fitting, lay_out_all
from components.training.tuning.order import split_held_out
from components.training.tuning.rows import Talk, read_rows
from components.training.tuning.settings import TuneConfig
from components.training.tuning.teaching import check_size
from components.types import Role
from pipeline.recipe import Recipe

RENDERED = 1000
"""Rows of files that are rendered, which takes a second at most; the step itself looks at all before any work."""


def tune_problems(
    recipe: Recipe, architecture: Architecture | None, tokenizer: Tokenizer | None = None
) -> list[Problem]:
    """All problems of the section `tune`; none where there is no such section.

    With a tokenizer the first rows are rendered, too: the environment and the renderer of the recipe must be sound.
    """
    settings = recipe.tune
    if settings is None:
        return []
    devices = 1 if settings.mesh is None else settings.mesh.devices
    placed = device_problems(recipe.platform, devices, "tune.mesh")
    return [*placed, *_row_problems(recipe, settings, tokenizer), *_teacher(settings, architecture)]


def _row_problems(recipe: Recipe, settings: TuneConfig, tokenizer: Tokenizer | None) -> Iterator[Problem]:
    chosen = settings.rows
    try:
        if chosen.demonstrations is None:
            found = read_rows(
                chosen.files,
                compares=settings.method.compares,
                min_reward=chosen.min_reward,
                skip=chosen.bad_rows == "skip",
            )
            yield from _schedule_problems(settings, len(found.talks))
            yield from folded(list(_unreadable(recipe, found.talks[:RENDERED])))
            if tokenizer is not None:
                _render(recipe, settings, tokenizer, found.talks)
            return
        world = recipe.environment
        if not isinstance(
            environment_factory(world.use, world.options, isolation=world.isolation, mcp=world.mcp)(), Demonstrating
        ):
            message = "needs an environment with a method demonstration(task, with_tool=...)"
            yield Problem("tune.rows.demonstrations", world.use, message)
    except ConfigError as error:
        yield from error.problems
    except DataError as error:
        yield from error.problems


def _unreadable(recipe: Recipe, talks: Sequence[Talk]) -> Iterator[Problem]:
    """Texts of rows that a model made in the run could not read; it would be taught the end of a text instead."""
    if recipe.init_model.tiny is None:
        return
    alphabet = set(recipe.init_model.tiny.alphabet)
    for talk in talks:
        said = [*talk.opening.messages, *(message for answer in talk.answers for message in answer)]
        texts = [talk.opening.task, *(each.content for each in said if each.role in (Role.USER, Role.ASSISTANT))]
        if lacking := "".join(sorted(set("".join(texts)) - alphabet)):
            yield Problem(
                talk.where, lacking, "is not in init_model.tiny.alphabet, so the model could not read the row"
            )


def _render(recipe: Recipe, settings: TuneConfig, tokenizer: Tokenizer, talks: Sequence[Talk]) -> None:
    """Raises DataError for rows that cannot be rendered, or are too long."""
    player = make_player(recipe.environment, tokenizer)
    first = next(tasks_of(player.make_environment(), "train"))
    examples = asyncio.run(lay_out_all(player, talks[:RENDERED], first))
    # Where only some are rendered, that all of these are too long to keep says nothing of the others.
    if settings.rows.too_long == "refuse" or len(talks) <= RENDERED:
        fitting(examples, settings.packing.row_length, drop=settings.rows.too_long == "drop")


def _schedule_problems(settings: TuneConfig, rows: int) -> Iterator[Problem]:
    training, _ = split_held_out(rows, settings.rows.held_out, seed=0)
    steps = settings.total_steps(len(training))
    warmup = settings.optimizer.warmup_steps
    if warmup and warmup >= steps:
        message = f"must be less than the {steps} steps that {len(training)} rows give, or the rate is never reached"
        yield Problem("tune.optimizer.warmup_steps", warmup, message)


def _teacher(settings: TuneConfig, architecture: Architecture | None) -> Iterator[Problem]:
    if settings.distill is None or architecture is None:
        return
    try:
        check_size(settings.distill.teacher, architecture.vocab_size)
    except ConfigError as error:
        yield from error.problems
    except WeightsError as error:
        yield Problem("tune.distill.teacher.source", settings.distill.teacher.source, str(error))
