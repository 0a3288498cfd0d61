"""A base and an adapter on a disk, and a recipe's environment -> an engine that serves and a player that plays.

Training and evaluation both open one, so that both play with the same tokenizer, renderer and engine.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from components.engine.engine import Engine, EngineConfig
from components.engine.sampling import SamplingConfig
from components.model import platform
from components.model.base_artifact import read_base
from components.model.checkpoint_folder import own_ends
from components.model.lora import Adapter
from components.model.peft import load_adapter
from components.model.placement import BOTH_HERE, Placements
from components.model.source import locate
from components.model.weights import Model, load
from components.rollout.player import EnvironmentConfig, Player, make_player
from components.rollout.tokenizer import Tokenizer, load_tokenizer
from components.telemetry.progress import say
from components.types import Policy


@dataclass(frozen=True, slots=True)
class Session:
    """What is open: `adapter` is the one that the engine serves at the start, as version 0.

    `shares_devices`: trainer and engine take turns on the same ones.
    """

    model: Model
    adapter: Adapter
    tokenizer: Tokenizer
    player: Player
    engine: Engine
    shares_devices: bool = True

    def trainer_waits(self, waits: bool) -> None:
        """Tell an engine that shares its devices whether the trainer is out of work; see `EngineConfig.patience`."""
        if self.shares_devices:
            self.engine.trainer_waits(waits)

    def policy(self, sampling: SamplingConfig) -> Policy:
        """The engine's policy, with the stop strings of the renderer beside those of the recipe."""
        stops = dict.fromkeys((*sampling.stop_strings, *self.player.renderer.stop_strings))
        return self.engine.policy(dataclasses.replace(sampling, stop_strings=tuple(stops)))


@contextmanager
def open_session(
    *,
    base: Path,
    adapter: Path,
    environment: EnvironmentConfig,
    engine: EngineConfig,
    seed: int,
    sides: Placements = BOTH_HERE,
    reproducible: bool = True,
) -> Iterator[Session]:
    """Load what lies in the folders `base` and `adapter` and start an engine on it; it is closed on leaving.

    `reproducible` is the engine's: without it tokens depend, in their last bits, on what decodes beside them.
    The session's model and adapter are on the trainer's devices; an engine on others has copies of its own.
    Raises WeightsError or ConfigError, before the engine starts, for what does not fit together.
    """
    platform.use_compilation_cache()
    artifact = read_base(base)
    model = load(artifact.source, dtype=artifact.dtype, quantise=artifact.quantise, placement=sides.trainer)
    tokenizer = load_tokenizer(artifact.source)
    player = make_player(environment, tokenizer, ends=own_ends(locate(artifact.source), model.architecture))
    say(str(player.choice))
    start = sides.trainer.weights(load_adapter(adapter, model.architecture))
    serving = Engine(
        model.architecture,
        sides.engine.weights(model.base),
        sides.engine.weights(start),
        config=engine,
        seed=seed,
        reproducible=reproducible,
        stop_ids=player.renderer.stop_ids,
        decode_text=tokenizer.decode,
    )
    with serving:
        yield Session(model, start, tokenizer, player, serving, shares_devices=sides.trainer == sides.engine)
