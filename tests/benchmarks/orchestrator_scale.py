"""What does an episode cost that mostly waits? 10,000 of them at once, on one core, with nothing to compute.

A scripted policy answers at once and an environment sleeps between its two turns, so what is seen is the price of the
orchestrator, of the episode and of the token ledger: processor time per turn, memory per waiting episode, and memory
that is left over when many episodes have come and gone.

    python -m tests.benchmarks.orchestrator_scale --json [--quick]
"""

import asyncio
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from components.environments.environment import Environment, Observation
from components.environments.tools import Tool
from components.rollout.collector import rare_collections
from components.rollout.cursor import TaskCursor
from components.rollout.episode import EpisodeLimits
from components.rollout.orchestrator import Orchestrator, RolloutConfig
from components.rollout.player import Player
from components.training.ledger import Fate, Ledger
from components.types import Completion, FinishReason, Message, Role, SequenceId, Task, Trajectory
from tests.benchmarks.timing import arguments, print_figures
from tests.fakes import ByteRenderer

CONCURRENCY = 10_000
GROUP_SIZE = 8
TASKS_PER_STEP = 125
GROUPS_AHEAD = CONCURRENCY // GROUP_SIZE
TURNS = 2
TASKS = [Task(str(number), f"what is {number} and {number}?") for number in range(512)]


async def scripted(prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
    """A policy that always says the same sixteen tokens."""
    await asyncio.sleep(0)
    return Completion((33,) * 16, (-0.5,) * 16, (0,) * 16, FinishReason.STOP)


class Waiting:
    """Waits once in its two turns, as a tool would make it."""

    tools: Sequence[Tool] = ()

    def __init__(self, wait: Callable[[], Any]) -> None:
        self._wait = wait
        self._steps = 0

    def tasks(self, split: str) -> list[Task]:
        return TASKS

    async def reset(self, task: Task) -> Observation:
        return Observation((Message(Role.USER, task.prompt),))

    async def step(self, message: Message) -> Observation:
        self._steps += 1
        if self._steps == TURNS:
            return Observation((), done=True)
        await self._wait()
        return Observation((Message(Role.TOOL, "42"),))

    async def reward(self) -> float:
        return 1.0

    async def close(self) -> None:
        return None


@dataclass
class Scene:
    """Everything around the episodes, as a run has it."""

    make_environment: Callable[[], Environment]
    steps: int
    concurrency: int = CONCURRENCY

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        limits = EpisodeLimits(max_turns=TURNS, max_new_tokens=16, max_context=256)
        self.player = Player(self.make_environment, ByteRenderer(), limits)

    async def counted(self, prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        completion = await scripted(prompt_ids, sequence=sequence, max_tokens=max_tokens)
        self.ledger.sampled(sequence, completion.versions)
        return completion

    async def play(self, task: Task, sequence: SequenceId) -> Trajectory:
        return await self.player.play(self.counted, task, sequence)

    async def run(self, after_step: Callable[[int], None] = lambda version: None) -> None:
        """Play and settle `steps` optimizer steps' worth of groups."""
        settings = RolloutConfig(
            group_size=GROUP_SIZE,
            tasks_per_step=TASKS_PER_STEP,
            max_concurrency=self.concurrency,
            max_staleness=GROUPS_AHEAD // TASKS_PER_STEP,
        )
        cursor = TaskCursor(TASKS, seed=0)
        async with Orchestrator(self.play, cursor, settings, last_version=self.steps) as orchestrator:
            for version in range(1, self.steps + 1):
                for _ in range(TASKS_PER_STEP):
                    for trajectory in (await anext(orchestrator)).trajectories:
                        assert trajectory.reward == 1.0
                        self.ledger.settle(trajectory, Fate.TRAINED)
                orchestrator.advance(version)
                after_step(version)
        self.ledger.check()


def resident_bytes() -> int:
    """Memory of this process that is in use, once nothing is left for the collector."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def bytes_per_waiting_episode() -> float:
    """Memory with all episodes waiting for their environment, over that with none."""
    gate = asyncio.Event()
    waiting = 0

    async def wait() -> None:
        nonlocal waiting
        waiting += 1
        await gate.wait()

    await Scene(lambda: Waiting(lambda: asyncio.sleep(0)), steps=1, concurrency=GROUP_SIZE).run()
    before = resident_bytes()
    playing = asyncio.create_task(Scene(lambda: Waiting(wait), steps=GROUPS_AHEAD // TASKS_PER_STEP).run())
    while waiting < CONCURRENCY:
        await asyncio.sleep(0.05)
    used = resident_bytes() - before
    gate.set()
    await playing
    return used / CONCURRENCY


async def cost_of_many(episodes: int, mean_wait: float) -> dict[str, float]:
    """Processor time per turn, and what memory grows by per episode after the first three tenths."""
    draw = random.Random(0)
    per_step = TASKS_PER_STEP * GROUP_SIZE
    steps = episodes // per_step
    seen: dict[int, int] = {}
    measuring = 0.0

    def after_step(version: int) -> None:
        nonlocal measuring
        # The last steps are left out: fewer and fewer episodes run.
        if version in (steps * 3 // 10, steps - GROUPS_AHEAD // TASKS_PER_STEP):
            before = time.process_time()
            seen[version] = resident_bytes()
            measuring += time.process_time() - before

    scene = Scene(lambda: Waiting(lambda: asyncio.sleep(mean_wait * draw.uniform(0.5, 1.5))), steps)
    started = time.process_time()
    with rare_collections():
        await scene.run(after_step)
    seconds = time.process_time() - started - measuring
    (first, at_first), (last, at_last) = seen.items()
    return {
        "cpu_microseconds_per_turn": seconds / (steps * per_step * TURNS) * 1e6,
        "growth_bytes_per_episode": (at_last - at_first) / ((last - first) * per_step),
    }


def main() -> None:
    """Both measurements on one core."""
    options = arguments(__doc__.splitlines()[0])
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    episodes = 30_000 if options.quick else 100_000
    memory = asyncio.run(bytes_per_waiting_episode())
    print(f"{memory:.0f} bytes per waiting episode", file=sys.stderr)
    figures = asyncio.run(cost_of_many(episodes, mean_wait=2.0))
    print_figures(
        {"episodes": episodes, "concurrent_episodes": CONCURRENCY, "bytes_per_waiting_episode": memory, **figures},
        options,
    )


if __name__ == "__main__":
    main()
