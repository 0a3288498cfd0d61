"""The trials of a sweep -> one page that puts them side by side, and the numbers of the best."""

from collections.abc import Mapping, Sequence
from typing import Any

from components.telemetry.comparison import ComparedRun, flattened, write_comparison
from components.telemetry.progress import say
from components.telemetry.run_files import read_run
from pipeline import manifest as manifests

HEADLINE = "accuracy_after"


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
    write_comparison(runs, page)
    best = max(range(len(scores)), key=lambda number: (scores[number].get(HEADLINE, 0.0), -number))
    say(f"the best of {len(runs)} trials: {runs[best].title} ({run_folders[best]})")
    headlines = {f"trial_{number}_{HEADLINE}": score[HEADLINE] for number, score in enumerate(scores)}
    return {**scores[best], "best_trial": best, "trials": len(runs), **headlines}


def _title(number: int, manifest: Mapping[str, Any]) -> str:
    """What the trial replaced, short enough for the head of a column."""
    trial = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in manifest["trial"].items())
    return f"{number}: {trial}"
