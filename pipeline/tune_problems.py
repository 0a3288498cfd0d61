"""What would stop the tune step of a recipe, found before anything runs: its rows, steps, rows' length and teacher."""

from collections.abc import Iterator

from components.environments.environment import environment_factory
from components.errors import ConfigError, DataError, Problem, WeightsError
from components.launcher.platform import device_problems
from components.model.architecture import Architecture
from components.training.tuning.demonstrations import Demonstrating
from components.training.tuning.order import split_held_out
from components.training.tuning.rows import read_rows
from components.training.tuning.settings import TuneConfig
from components.training.tuning.teaching import check_size
from pipeline.recipe import Recipe


def tune_problems(recipe: Recipe, architecture: Architecture | None) -> list[Problem]:
    """All problems of the section `tune`; none where there is no such section."""
    settings = recipe.tune
    if settings is None:
        return []
    devices = 1 if settings.mesh is None else settings.mesh.devices
    placed = device_problems(recipe.platform, devices, "tune.mesh")
    return [*placed, *_row_problems(recipe, settings), *_teacher(settings, architecture)]


def _row_problems(recipe: Recipe, settings: TuneConfig) -> Iterator[Problem]:
    """Rows are read and not yet rendered: their lengths are known when the model's tokenizer is."""
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
