"""How much of a tool's latency does a run feel? Seconds per optimizer step, in one run, with the sides in turn.

Three sides do the same work (same model, engine, trainer, tokens, groups per step), two turns an episode with a tool
call between them:

    zero latency      streamed, the tool answers at once
    streamed          the tool takes a log-normal time whose 99th percentile is 10 x its mean
    barrier           the same latency; a step's episodes are all generated before any of them is trained on

A run is stopped once it has made its steps, so that the last of them are like the others; the first ones, in which
generation runs ahead and the concurrency finds its size, do not count. Seconds of processor time stand beside those of
the clock: where other work shares the machine, they are the steadier figure.

The sweep lets the tool's mean latency grow over two decades, in units of a step without latency. `limit` says what
keeps a point from being as fast as zero latency: the staleness bound (as many episodes run as pacing allows), the
concurrency (it could still grow), cache memory (contexts are computed again), or the shared cores (the trainer does not
wait, but the engine works harder for the same tokens).

    python -m tests.benchmarks.async_overlap --json [--quick]
"""

import asyncio
import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from components.algorithms.objective import Objective, ObjectiveConfig
from components.engine.core import EngineConfig
from components.engine.engine import Engine
from components.engine.sampling import SamplingConfig
from components.errors import RunStoppedError
from components.model import platform
from components.model.architecture import Architecture
from components.model.base import random_base
from components.model.lora import LoraConfig, init_adapter, module_names
from components.model.weights import Model
from components.rollout.concurrency import RECOMPUTED, WAITED
from components.rollout.cursor import TaskCursor
from components.rollout.episode import EpisodeLimits
from components.rollout.orchestrator import Orchestrator, RolloutConfig
from components.rollout.player import Player
from components.rollout.session import Session
from components.rollout.tokenizer import CharacterTokenizer
from components.telemetry.clock import idle_share, is_waiting
from components.training.history import Event, History
from components.training.learner import Learner
from components.training.loop import RunPlan, TrainingLoop
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import PackingConfig
from components.training.records import RunRecords
from components.training.update import init_state, make_accumulate, make_apply, make_score
from components.training.weight_sync import WeightSync
from components.types import Group
from tests.benchmarks.slow_tool import FixedLength, NumbersRenderer, SlowTool
from tests.benchmarks.timing import arguments, print_figures

NEW_TOKENS, CAPACITY = 24, 192
GROUP_SIZE = 4
TASKS_PER_STEP = 4
STALENESS = 4
"""By Little's law: a group of four waits for the slowest of its calls, nearly three times the mean of one."""
SLOTS = GROUP_SIZE * TASKS_PER_STEP * (STALENESS + 1)
"""The cache holds every episode that pacing lets run."""
LATENCIES = (0.1, 0.3, 1.0, 3.0, 10.0)
QUICK_LATENCIES = (0.1, 3.0)
"""In units of a step without latency."""
HIDDEN = 1.05
"""Up to this ratio to the time without latency, the latency counts as hidden."""

ARCHITECTURE = Architecture.from_huggingface(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 768,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "eos_token_id": 255,
        "tie_word_embeddings": True,
    }
)


@dataclass(frozen=True)
class Side:
    """One way of running: `latency` is the mean of the tool's seconds."""

    latency: float
    max_staleness: int = STALENESS
    barrier: bool = False


@dataclass
class Seen:
    """The steps in steady state of one run, and as many episodes as pacing lets run."""

    steps: list[dict[str, Any]]
    most: int

    @property
    def seconds(self) -> float:
        """Seconds per step, the median."""
        return statistics.median(step["seconds"] for step in self.steps)

    @property
    def cpu_seconds(self) -> float:
        """Seconds of processor time per step, the median."""
        return statistics.median(step["cpu_seconds"] for step in self.steps)

    @property
    def staleness(self) -> float:
        """How many versions behind the trained tokens are, in the mean."""
        return statistics.mean(step["staleness_mean"] for step in self.steps)

    @property
    def concurrency(self) -> int:
        """How many episodes were allowed to run at the end."""
        return int(self.steps[-1]["concurrency"])

    @property
    def limit(self) -> str:
        """What more episodes in flight would run into, or need."""
        if idle_share(self.total("trainer_seconds")) <= WAITED:
            return "shared cores"
        if statistics.mean(step["recomputed_share"] for step in self.steps) > RECOMPUTED:
            return "cache memory"
        return "staleness bound" if self.concurrency == self.most else "concurrency"

    def total(self, clock: str) -> dict[str, float]:
        """Seconds by state of a role."""
        return summed(step[clock] for step in self.steps)


class Measured(RunRecords):
    """Keeps the numbers of all steps after the first `warm_up`, and stops the loop after `steps` more."""

    def __init__(self, folder: str, warm_up: int, steps: int) -> None:
        super().__init__(folder)
        self.kept: list[dict[str, Any]] = []
        self._warm_up, self._last = warm_up, warm_up + steps
        self._cpu = time.process_time()
        self.loop: TrainingLoop | None = None

    def step(self, step: int, numbers: Mapping[str, Any], groups: Sequence[Group], *others: Any) -> None:
        """Keep the numbers of one step."""
        super().step(step, numbers, groups, *others)
        before, self._cpu = self._cpu, time.process_time()
        if step > self._warm_up:
            assert self.loop is not None
            self.kept.append({**numbers, "cpu_seconds": self._cpu - before})
            if step >= self._last:
                self.loop.stop("measured")


class BarrierLoop(TrainingLoop):
    """The ordinary loop: generate all, then train on all."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._ready: list[Group] = []

    async def _next(self, orchestrator: Orchestrator) -> Group | None:
        if not self._ready:
            groups = [await super(BarrierLoop, self)._next(orchestrator) for _ in range(TASKS_PER_STEP)]
            self._ready = [group for group in groups if group is not None]
        return self._ready.pop(0) if self._ready else None


class NoJournal:
    """Nothing of this run is needed again."""

    def append(self, event: Event) -> None:
        return None


async def run(side: Side, *, warm_up: int, steps: int) -> Seen:
    """Run one side until it has made its steps."""
    draws = np.random.default_rng(0)
    limits = EpisodeLimits(max_turns=2, max_new_tokens=NEW_TOKENS, max_context=CAPACITY)
    player = Player(lambda: SlowTool(side.latency, draws), NumbersRenderer(), limits)
    base = random_base(jax.random.key(0), ARCHITECTURE)
    adapter = init_adapter(jax.random.key(1), ARCHITECTURE, LoraConfig(rank=8))
    config = EngineConfig(slots=SLOTS, rows=GROUP_SIZE * TASKS_PER_STEP, capacity=CAPACITY, decode_steps=8)
    engine = Engine(ARCHITECTURE, base, adapter, config=config, seed=0, reproducible=side.max_staleness == 0)
    kind = BarrierLoop if side.barrier else TrainingLoop
    with engine, tempfile.TemporaryDirectory() as folder:
        session = Session(Model(ARCHITECTURE, base, None), adapter, CharacterTokenizer("ab"), player, engine)
        records = Measured(folder, warm_up, steps)
        loop = kind(
            session,
            FixedLength(engine.policy(SamplingConfig())),
            _learner(session),
            _sync(session),
            TaskCursor(list(player.make_environment().tasks("train")), seed=0),
            History(),
            NoJournal(),
            records,
            rollout=RolloutConfig(
                group_size=GROUP_SIZE,
                tasks_per_step=TASKS_PER_STEP,
                max_concurrency="auto",
                max_staleness=side.max_staleness,
            ),
            plan=RunPlan(steps=10_000, checkpoint_every=10_000),
            save=lambda version, state, facts: None,
        )
        records.loop = loop
        with contextlib.suppress(RunStoppedError):
            await loop.run()
    return Seen(records.kept, GROUP_SIZE * TASKS_PER_STEP * (side.max_staleness + 1))


def _learner(session: Session) -> Learner:
    objective, optimizer = Objective.from_config(ObjectiveConfig()), make_optimizer(OptimizerConfig(), 10_000)
    return Learner(
        session.model.base,
        init_state(session.adapter, optimizer),
        objective,
        PackingConfig(rows=4, row_length=256),
        accumulate=make_accumulate(ARCHITECTURE, objective, temperature=1.0),
        apply=make_apply(optimizer),
        score=make_score(ARCHITECTURE, temperature=1.0),
    )


def _sync(session: Session) -> WeightSync:
    engine = session.engine
    return WeightSync(
        engine,
        lambda adapter, canaries: [engine.score(adapter, canary) for canary in canaries],
        [list(range(16))],
        expected_modules=len(module_names(session.adapter)),
        tolerance=1e-3,
    )


def main() -> None:
    """Run the sides in turn, several rounds, then the sweep, and print medians and ratios."""
    options = arguments(__doc__.splitlines()[0])
    platform.use_compilation_cache()
    rounds, warm_up, steps = (1, 5, 6) if options.quick else (3, 8, 16)
    for staleness in (0, STALENESS):  # compiles
        asyncio.run(run(Side(0.0, staleness), warm_up=2, steps=1))
    zero = asyncio.run(run(Side(0.0), warm_up=2, steps=4)).seconds
    # A tool whose mean is as long as a step of work: an ordinary loop would more than double its time.
    sides = {"zero": Side(0.0), "streamed": Side(zero), "barrier": Side(zero, 0, barrier=True)}
    seen: dict[str, list[Seen]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            shorter = 3 if side.barrier else 1
            seen[name].append(asyncio.run(run(side, warm_up=warm_up // shorter, steps=steps // shorter)))
            print(f"round {number + 1}, {name}: {_described(seen[name][-1])}", file=sys.stderr)
    latencies = QUICK_LATENCIES if options.quick else LATENCIES
    print_figures(_figures(seen, zero) | {"sweep": sweep(zero, warm_up, steps // 2, latencies)}, options)


def sweep(zero: float, warm_up: int, steps: int, latencies: Sequence[float]) -> dict[str, Any]:
    """Points by latency, in units of a step without any, which is measured again before and after them."""

    def measure(latency: float) -> Seen:
        seen = asyncio.run(run(Side(latency * zero), warm_up=warm_up, steps=steps))
        print(f"latency of {latency:g} steps: {_described(seen)}", file=sys.stderr)
        return seen

    first = measure(0.0)
    seen = {latency: measure(latency) for latency in latencies}
    without = _median((first.seconds, measure(0.0).seconds))
    felt = {latency: each for latency, each in seen.items() if each.seconds / without > HIDDEN}
    hidden = max((latency for latency in latencies if latency < min(felt, default=math.inf)), default=0.0)
    limit = felt[min(felt)].limit if felt else "none"
    print(f"latency is hidden up to {hidden:g} steps; what limits it then: {limit}", file=sys.stderr)
    points = {f"{latency:g}": _point(each, without) for latency, each in seen.items()}
    return {"latency_in_steps": points, "hidden_up_to": hidden, "limit_beyond": limit}


def _described(seen: Seen) -> str:
    waited = idle_share(seen.total("trainer_seconds"))
    return f"{seen.seconds:.2f} s per step, {seen.cpu_seconds:.2f} s of processors, trainer idle {waited:.0%}"


def _point(seen: Seen, zero: float) -> dict[str, Any]:
    ratio = seen.seconds / zero
    return {
        "over_zero_latency": ratio,
        "trainer_idle_share": idle_share(seen.total("trainer_seconds")),
        "engine_idle_share": idle_share(seen.total("engine_seconds")),
        "concurrency": seen.concurrency,
        "staleness_mean": seen.staleness,
        "limit": "none" if ratio <= HIDDEN else seen.limit,
    }


def _figures(seen: Mapping[str, list[Seen]], latency: float) -> dict[str, Any]:
    def ratio(name: str, number: Callable[[Seen], float]) -> float:
        return _median(number(side) / number(zero) for side, zero in zip(seen[name], seen["zero"], strict=True))

    trainer = summed(side.total("trainer_seconds") for side in seen["streamed"])
    engine = summed(side.total("engine_seconds") for side in seen["streamed"])
    return {
        "streamed_over_zero_latency": ratio("streamed", lambda side: side.seconds),
        "barrier_over_zero_latency": ratio("barrier", lambda side: side.seconds),
        "streamed_over_zero_latency_processor": ratio("streamed", lambda side: side.cpu_seconds),
        "trainer_idle_share": idle_share(trainer),
        "engine_idle_share": idle_share(engine),
        "idle_by_cause": {
            "trainer": {state: seconds for state, seconds in trainer.items() if is_waiting(state)},
            "engine": {state: seconds for state, seconds in engine.items() if is_waiting(state)},
        },
        "staleness_mean": _median(side.staleness for side in seen["streamed"]),
        "concurrency": _median(side.concurrency for side in seen["streamed"]),
        "step_seconds_zero_latency": _median(side.seconds for side in seen["zero"]),
        "tool_latency_mean_seconds": latency,
    }


def _median(numbers: Iterable[float]) -> float:
    return statistics.median(numbers)


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by state over several readings."""
    totals: dict[str, float] = {}
    for part in parts:
        totals = {state: totals.get(state, 0.0) + part.get(state, 0.0) for state in totals | dict(part)}
    return totals


if __name__ == "__main__":
    main()
