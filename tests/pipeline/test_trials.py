"""The trials of a sweep, side by side."""

from pathlib import Path

from components.config import dump
from components.telemetry.run_files import read_run, update_summary
from pipeline import manifest as manifests
from pipeline.recipe import load_recipe
from pipeline.start import Start, folder_of
from pipeline.trials import compare_trials


def test_the_best_trial_is_the_first_of_the_most_accurate_and_all_are_on_the_page(tmp_path: Path) -> None:
    accuracies = (0.25, 0.75, 0.75)
    folders = []
    for number, accuracy in enumerate(accuracies):
        folder = folder_of(str(tmp_path), "9f3c", "", f"trial-{number}")
        trial = {"train.steps": number + 1}
        recipe = dump(load_recipe("smoke", trial))
        named = {"image": "none: local", "source": "smoke", "overrides": trial, "parameters": {}, "trial": trial}
        manifests.write(folder, manifests.compose(recipe, recipe, Start("/promoted", 0), **named))
        update_summary(folder, {"recipe": "smoke", "accuracy_after": accuracy})
        folders.append(folder)
    page = tmp_path / "out" / "page"
    scores = [{"accuracy_after": accuracy, "steps": 1.0} for accuracy in accuracies]
    numbers = compare_trials(run_folders=folders, scores=scores, page=str(page))
    assert numbers == {
        "accuracy_after": 0.75,
        "steps": 1.0,
        "best_trial": 1,
        "trials": 3,
        "trial_0_accuracy_after": 0.25,
        "trial_1_accuracy_after": 0.75,
        "trial_2_accuracy_after": 0.75,
    }
    html = page.read_text()
    assert html == (tmp_path / "comparison.html").read_text()
    assert "3 runs compared" in html
    assert "2: steps=3" in html
    assert read_run(str(tmp_path)).summary["outcome"] == f"the best of 3 trials is 1: steps=2, in {folders[1]}"
