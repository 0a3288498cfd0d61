"""200 optimizer steps of constant work: do time and memory per step stay what they were?

The smoke recipe's model and task, asynchronous (`max_staleness` 1), with a learning rate so small that the policy, and
with it the work of a step, stays the same. Prints medians of the last fifth of the steps over those of the first.

    python -m tests.benchmarks.endurance --json [--quick]
"""

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from components.telemetry.metrics import read_metrics
from components.training.run import train
from tests.benchmarks.chaos import inputs
from tests.benchmarks.timing import arguments, print_figures

WARM_UP = 5
"""Steps left out at the start: programs are compiled there."""


def ratio(values: Sequence[float]) -> float:
    """Median of the last fifth over that of the first."""
    fifth = len(values) // 5
    return statistics.median(values[-fifth:]) / statistics.median(values[:fifth])


def main() -> None:
    """Run, and print the ratios."""
    options = arguments(__doc__.splitlines()[0])
    steps = 40 if options.quick else 200
    with tempfile.TemporaryDirectory() as folder:
        section, shared = inputs(Path(folder))
        section |= {"steps": steps + WARM_UP, "checkpoint_every": 10, "optimizer": {"learning_rate": 1e-9}}
        section["rollout"] |= {"max_staleness": 1, "max_concurrency": 256}
        train(**shared, section=json.dumps(section), run_folder=f"{folder}/run", trained=f"{folder}/trained")
        lines = read_metrics(f"{folder}/run/metrics.jsonl")[WARM_UP:]
        journal_bytes = Path(folder, "run", "journal.jsonl").stat().st_size
    resident = [line["resident_bytes"] for line in lines]
    print_figures(
        {
            "steps": len(lines),
            "seconds_last_over_first_fifth": ratio([line["seconds"] for line in lines]),
            "memory_last_over_first_fifth": ratio(resident),
            "memory_growth_bytes_per_step": (resident[-1] - resident[len(resident) // 5]) / (len(resident) * 0.8),
            "journal_bytes_per_trained_token": journal_bytes / sum(line["tokens"]["trained"] for line in lines),
        },
        options,
    )


if __name__ == "__main__":
    main()
