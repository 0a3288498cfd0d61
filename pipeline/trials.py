"""The trials of a sweep -> one page that puts them side by side, and the numbers of the best.

Both are also in the folder of the sweep, below which each trial has its own: `comparison.html` and `summary.json`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from components import storage
from components.telemetry.comparison import ComparedRun, flattened, render_comparison
from components.telemetry.progress import say
from components.telemetry.run_files import read_run, update_summary
from pipeline import manifest as manifests
from pipeline.start import sweep_of

HEADLINE = "accuracy_after"
PAGE = "comparison.html"


def compare_trials(
    *, run_folders: Sequence[str], scores: Sequence[Mapping[str, Any]], page: str
) -> dict[str, int | float]:
    """Write the page; gives the best trial's scalars, its place in the list (from 0), and every trial's headline.

    The best has the highest accuracy after training, the first of equals.
    """
    manifest_of = {folder: manifests.read(folder) for folder in run_folders}
    runs = [
        ComparedRun(
            name=folder,
            record=read_run(folder),
            parameters=flattened(manifest_of[folder]["recipe"]),
            title=_title(number, manifest_of[folder]),
            place=folder,
        )
        for number, folder in enumerate(run_folders)
    ]
    html = render_comparison(runs)
    folder = sweep_of(run_folders[0])
    for place in (page, storage.join(folder, PAGE)):
        storage.write_text(place, html)
    best = max(range(len(scores)), key=lambda number: (scores[number].get(HEADLINE, 0.0), -number))
    outcome = f"the best of {len(runs)} trials is {runs[best].title}, in {run_folders[best]}"
    say(outcome)
    headlines = {f"trial_{number}_{HEADLINE}": score[HEADLINE] for number, score in enumerate(scores)}
    numbers = {**scores[best], "best_trial": best, "trials": len(runs), **headlines}
    update_summary(folder, {"recipe": runs[best].record.summary["recipe"], "outcome": outcome, **numbers})
    return numbers


def _title(number: int, manifest: Mapping[str, Any]) -> str:
    """What the trial replaced, short enough for the head of a column."""
    trial = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in manifest["trial"].items())
    return f"{number}: {trial}"
