"""How much of a tool's latency does a run feel? Seconds per optimizer step, in one run, with the sides in turn.

Three sides do the same work (same model, engine, trainer, tokens, groups per step), two turns an episode with a tool
call between them:

    zero latency      streamed, the tool answers at once
    streamed          the tool takes a log-normal time whose 99th percentile is 10 x its mean
    barrier           the same latency; a step's episodes are all generated before any of them is trained on

    python -m tests.benchmarks.async_overlap --json [--quick]
"""

import asyncio
import dataclasses
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from components.algorithms.objective import Objective, ObjectiveConfig
from components.engine.core import EngineConfig
from components.engine.engine import Engine
from components.engine.sampling import SamplingConfig
from components.environments.environment import Observation, ToolUse
from components.environments.tools import Tool
from components.model import platform
from components.model.architecture import Architecture
from components.model.base import random_base
from components.model.lora import LoraConfig, init_adapter, module_names
from components.model.weights import Model
from components.rollout.cursor import TaskCursor
from components.rollout.episode import EpisodeLimits
from components.rollout.orchestrator import Orchestrator, RolloutConfig
from components.rollout.player import Player
from components.rollout.session import Session
from components.rollout.tokenizer import CharacterTokenizer
from components.telemetry.clock import idle_share
from components.telemetry.metrics import read_metrics
from components.training.learner import Learner
from components.training.loop import Progress, TrainingLoop
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import PackingConfig
from components.training.records import RunRecords
from components.training.update import init_state, make_accumulate, make_apply, make_score
from components.training.weight_sync import WeightSync
from components.types import Completion, FinishReason, Group, Message, Policy, Role, SequenceId, Task
from tests.benchmarks.timing import arguments, print_figures
from tests.fakes import ByteRenderer

NEW_TOKENS = 24
GROUP_SIZE = 4
TASKS_PER_STEP = 8
STALENESS = 4
"""By Little's law: a group of four waits for the slowest of its calls, nearly three times the mean of one."""
SIGMA = 2.3263 - math.sqrt(2.3263**2 - 2 * math.log(10))
"""Deviation of the logarithm for which the 99th percentile is 10 x the mean."""

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


class NumbersRenderer(ByteRenderer):
    """Bytes as tokens; what the policy says is the list of its token ids."""

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Message:
        return Message(Role.ASSISTANT, " ".join(map(str, token_ids)))


class FixedLength:
    """A turn that has its whole length is a turn that stopped: the episode goes on."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def __call__(self, prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        completion = await self._policy(prompt_ids, sequence=sequence, max_tokens=max_tokens)
        return dataclasses.replace(completion, finish_reason=FinishReason.STOP)


class SlowTool:
    """Two turns; the tool in between sleeps. The reward only has to differ within a group."""

    tools: Sequence[Tool] = ()

    def __init__(self, latency: float, draws: np.random.Generator) -> None:
        self.latency = latency
        self.draws = draws
        self.said: list[str] = []

    def tasks(self, split: str) -> list[Task]:
        return [Task(str(number), f"problem {number:04d} ".ljust(48, ".")) for number in range(512)]

    async def reset(self, task: Task) -> Observation:
        return Observation((Message(Role.USER, task.prompt),))

    async def step(self, message: Message) -> Observation:
        self.said.append(message.content)
        if len(self.said) == 2:
            return Observation((), done=True)
        seconds = self.latency * self.draws.lognormal(-(SIGMA**2) / 2, SIGMA) if self.latency else 0.0
        await asyncio.sleep(seconds)
        return Observation((Message(Role.TOOL, "result: 42."),), tool_use=ToolUse(calls=1, seconds=seconds))

    async def reward(self) -> float:
        return float(sum(map(int, self.said[0].split())) % 7)

    async def close(self) -> None:
        return None


class WholeStepFirst:
    """Turns an orchestrator into a barrier: a step's groups are handed on when the last of them is complete."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
        self._ready: list[Group] = []

    async def __aenter__(self) -> "WholeStepFirst":
        await self._orchestrator.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._orchestrator.__aexit__(*exception)

    def advance(self, version: int) -> None:
        self._orchestrator.advance(version)

    async def __anext__(self) -> Group:
        if not self._ready:
            self._ready = [await anext(self._orchestrator) for _ in range(TASKS_PER_STEP)]
        return self._ready.pop(0)


class BarrierLoop(TrainingLoop):
    """The ordinary loop: generate all, then train on all."""

    def _orchestrator(self) -> Any:
        return WholeStepFirst(super()._orchestrator())


@dataclass(frozen=True)
class Side:
    """One way of running. `latency` is the mean of the tool's seconds."""

    latency: float
    max_staleness: int
    barrier: bool = False


async def seconds_per_step(side: Side, steps: int) -> dict[str, Any]:
    """Median seconds of the steps in steady state (the first two and the last two are left out), and idle shares."""
    base, key = random_base(jax.random.key(0), ARCHITECTURE), jax.random.key(1)
    adapter = init_adapter(key, ARCHITECTURE, LoraConfig(rank=8))
    objective, optimizer = Objective.from_config(ObjectiveConfig()), make_optimizer(OptimizerConfig(), steps)
    draws = np.random.default_rng(0)
    limits = EpisodeLimits(max_turns=2, max_new_tokens=NEW_TOKENS, max_context=192)
    concurrency = GROUP_SIZE * TASKS_PER_STEP * (side.max_staleness + 1)
    engine = Engine(
        ARCHITECTURE, base, adapter, config=EngineConfig(slots=32, capacity=192, decode_steps=8), seed=0, stop_ids=()
    )
    score = make_score(ARCHITECTURE, temperature=1.0)
    learner = Learner(
        base,
        init_state(adapter, optimizer),
        objective,
        PackingConfig(rows=4, row_length=256),
        accumulate=make_accumulate(ARCHITECTURE, objective, temperature=1.0),
        apply=make_apply(optimizer),
        score=score,
    )
    with engine, tempfile.TemporaryDirectory() as folder:
        player = Player(lambda: SlowTool(side.latency, draws), NumbersRenderer(), limits)
        session = Session(Model(ARCHITECTURE, base, None), adapter, CharacterTokenizer("ab"), player, engine)
        sync = WeightSync(
            engine,
            lambda adapter, canaries: [engine.score(adapter, canary) for canary in canaries],
            [list(range(16))],
            expected_modules=len(module_names(adapter)),
            tolerance=1e-3,
        )
        kind = BarrierLoop if side.barrier else TrainingLoop
        loop = kind(
            session,
            FixedLength(engine.policy(SamplingConfig())),
            learner,
            sync,
            TaskCursor(player.make_environment().tasks("train"), seed=0),
            Progress(),
            RunRecords(folder),
            rollout=RolloutConfig(
                group_size=GROUP_SIZE,
                tasks_per_step=TASKS_PER_STEP,
                max_concurrency=concurrency,
                max_staleness=side.max_staleness,
            ),
            steps=steps,
            checkpoint_every=steps + 1,
            save=lambda progress: None,
        )
        await loop.run()
        steady = read_metrics(f"{folder}/metrics.jsonl")[2:-2]
    return {
        "seconds": statistics.median(line["seconds"] for line in steady),
        "trainer_seconds": _summed(line["trainer_seconds"] for line in steady),
        "engine_seconds": _summed(line["engine_seconds"] for line in steady),
        "staleness": statistics.mean(line["staleness_mean"] for line in steady),
    }


def _summed(parts: Any) -> dict[str, float]:
    totals: dict[str, float] = {}
    for part in parts:
        totals = {state: totals.get(state, 0.0) + part.get(state, 0.0) for state in totals | part}
    return totals


def main() -> None:
    """Run the sides in turn, several rounds, and print medians and ratios."""
    options = arguments(__doc__.splitlines()[0])
    platform.use_compilation_cache()
    rounds, steps = (1, 15) if options.quick else (2, 24)
    asyncio.run(seconds_per_step(Side(0.0, 1), 5))  # compiles
    zero = asyncio.run(seconds_per_step(Side(0.0, 1), 8))["seconds"]
    # A tool whose mean is as long as a step of work: an ordinary loop would more than double its time.
    latency = zero
    sides = {
        "zero": Side(0.0, STALENESS),
        "streamed": Side(latency, STALENESS),
        "barrier": Side(latency, 0, barrier=True),
    }
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            result = asyncio.run(seconds_per_step(side, steps // 3 if side.barrier else steps))
            seen[name].append(result)
            print(f"round {number + 1}, {name}: {result['seconds']:.2f} s per step", file=sys.stderr)
    print_figures(_figures(seen, latency), options)


def _figures(seen: Mapping[str, list[dict[str, Any]]], latency: float) -> dict[str, Any]:
    ratios = {
        name: statistics.median(
            side["seconds"] / zero["seconds"] for side, zero in zip(seen[name], seen["zero"], strict=True)
        )
        for name in ("streamed", "barrier")
    }
    trainer = _summed(side["trainer_seconds"] for side in seen["streamed"])
    engine = _summed(side["engine_seconds"] for side in seen["streamed"])
    return {
        "streamed_over_zero_latency": ratios["streamed"],
        "barrier_over_zero_latency": ratios["barrier"],
        "trainer_idle_share": idle_share(trainer),
        "engine_idle_share": idle_share(engine),
        "idle_by_cause": {
            "trainer": {state: seconds for state, seconds in trainer.items() if state.startswith("waiting")},
            "engine": {state: seconds for state, seconds in engine.items() if state.startswith("waiting")},
        },
        "staleness_mean": statistics.median(side["staleness"] for side in seen["streamed"]),
        "tool_latency_mean_over_step": latency / statistics.median(side["seconds"] for side in seen["zero"]),
    }


if __name__ == "__main__":
    main()
