"""What would stop a tiny model's warm start, found before anything runs: an environment without demonstrations, or ones
too long for a row.
"""

import asyncio
import dataclasses
from itertools import islice

from components.environments.environment import environment_factory, tasks_of
from components.errors import ConfigError, DataError, HeadraceError, Problem, RunStoppedError
from components.rollout.player import Player, make_player
from components.rollout.tokenizer import Tokenizer
from components.training.initialise import demonstrations, row_problems
from components.training.tuning.demonstrations import Demonstrating
from pipeline.recipe import Recipe

SHOWN, SHOWN_SECONDS = 20, 10.0
"""Tasks whose demonstrations are played, and for how long; the step itself looks at all before it trains."""


def tiny_problems(recipe: Recipe, tokenizer: Tokenizer | None) -> list[Problem]:
    """All problems of `init_model.tiny.warm_start`; none where nothing is warm-started.

    With a tokenizer the first tasks are demonstrated, too: environment and renderer of the recipe must be sound.
    """
    tiny, world = recipe.init_model.tiny, recipe.environment
    if tiny is None or tiny.warm_start is None:
        return []
    try:
        made = environment_factory(world.use, world.options, isolation=world.isolation, mcp=world.mcp)()
    except (ConfigError, DataError):
        return []  # Told as a problem of the environment.
    if not isinstance(made, Demonstrating):
        message = "needs an environment with a method demonstration(task, with_tool=...); write one, or set null here "
        return [Problem("init_model.tiny.warm_start", world.use, f"{message}for a model of random weights")]
    # Which tasks a limit of tokens drops is not known here.
    if tokenizer is None or recipe.prepare_data.max_prompt_tokens is not None:
        return []
    return _shown(make_player(world, tokenizer), recipe)


def _shown(player: Player, recipe: Recipe) -> list[Problem]:
    tiny = recipe.init_model.tiny
    assert tiny is not None, "only a tiny model is warm-started"
    seconds = min(player.limits.max_seconds, SHOWN_SECONDS)
    player = dataclasses.replace(player, limits=dataclasses.replace(player.limits, max_seconds=seconds))
    count = min(recipe.prepare_data.train_tasks or SHOWN, SHOWN)
    tasks = list(islice(tasks_of(player.make_environment(), "train"), count))
    try:
        return row_problems(asyncio.run(demonstrations(player, tasks)), tiny)
    except RunStoppedError:
        return []  # A run may wait longer than there is time here.
    except (ConfigError, DataError) as error:
        return error.problems
    except HeadraceError as error:
        return [Problem("init_model.tiny.warm_start", recipe.environment.use, f"a demonstration failed: {error}")]
