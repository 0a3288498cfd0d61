"""A run that has ended, well or not -> its jobs are gone, its manifest is whole, and a page of Markdown sums it up.

What happened is read from the run's folder: what Kubeflow Pipelines tells an exit handler is not always right, and says
nothing about a decision.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from components import storage
from components.telemetry.progress import say
from components.telemetry.run_files import RunRecord, failure_of, read_run
from pipeline import manifest as manifests
from pipeline.closing import close_run
from pipeline.start import TRIALS, folder_of, from_record, job_owner, mark_seen

TASKS = ("tune", "train")
"""The steps whose work a JobSet may do."""


def finish(*, run_root: str, run_id: str, error: str, manifest: str, manifest_uri: str, summary: str) -> None:
    """Write both files, and delete the JobSets of the run and of its trials, even where the writing fails.

    `error` is what the run failed of, as far as Kubeflow Pipelines knows it.
    """
    folder = folder_of(run_root, run_id, manifest_uri)
    try:
        record = _manifest_of(folder)
        run = read_run(folder, trajectories=False)
        if "gate" in run.summary and record:
            mark_seen(from_record(record["start"]), folder)
        if error or storage.is_remote(folder):
            # A run that ends well on one machine has its report from `headrace run`, which knows more.
            close_run(folder, error=error)
            run = read_run(folder, trajectories=False)
        storage.write_text(manifest, json.dumps(record, indent=2) + "\n")
        storage.write_text(summary, run_markdown(run, record, folder=folder, error=error))
    finally:
        _delete_jobs(folder, run_id)


def run_markdown(run: RunRecord, manifest: Mapping[str, Any], *, folder: str, error: str = "") -> str:
    """What a person wants to know of a run that has ended."""
    name = run.summary.get("recipe", "run")
    lines = [f"# {name}", "", _outcome(run, error), ""]
    if run.measures:
        rows = [
            (
                each["name"],
                f"{each['before']['value']:.3f}",
                f"{each['after']['value']:.3f}",
                _interval(each["paired"]["difference"]),
            )
            for each in run.measures
        ]
        lines += [*_table(("measure", "before", "after", "difference"), rows), ""]
    facts = [(key, str(value)) for key, value in _facts(run, manifest, folder)]
    return "\n".join([*lines, *_table(("", ""), facts), ""])


def _manifest_of(folder: str) -> dict[str, Any]:
    """Empty for a run whose recipe was refused."""
    return manifests.read(folder) if storage.exists(storage.join(folder, manifests.MANIFEST)) else {}


def _outcome(run: RunRecord, error: str) -> str:
    if error:
        failure = failure_of(run.summary) or {"step": "", "message": error}
        return f"**Failed{' in ' + failure['step'] if failure['step'] else ''}.** {failure['message']}"
    found = run.summary.get("promotion") or run.summary.get("outcome") or _scored(run)
    return f"**{found[:1].upper()}{found[1:]}**"


def _scored(run: RunRecord) -> str:
    if not run.measures:
        return "nothing was decided"
    first = run.measures[0]
    return f"{first['name']} {first['before']['value']:.3f} before, {first['after']['value']:.3f} after"


def _facts(run: RunRecord, manifest: Mapping[str, Any], folder: str) -> Iterator[tuple[str, Any]]:
    summary = run.summary
    yield "run folder", folder
    if manifest:
        yield "recipe", manifest["source"]
        yield "overrides", json.dumps(manifest["overrides"]) if manifest["overrides"] else "none"
        yield "seed", manifest["seed"]
        yield "parent", (manifest["start"]["parent"] or {}).get("uri", "none")
        yield "code", manifest["code"]["commit"]
        yield "image", manifest["image"]
    for name, key in (("data", "sha256"), ("base", "fingerprint")):
        if name in manifest:
            yield name, manifest[name][key]
    if run.tokens:
        yield "tokens", ", ".join(f"{amount:,} {fate.replace('_', ' ')}" for fate, amount in run.tokens.items())
    for key in ("steps", "trainer_idle_share", "engine_idle_share"):
        if key in summary:
            yield key.replace("_", " "), summary[key]
    for reason in summary.get("gate", {}).get("reasons", ()):
        yield "refused", reason


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; a stroke inside a cell would end it."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (list(head), ["---"] * len(head), *cells)]


def _interval(difference: Mapping[str, Any]) -> str:
    return f"{difference['value']:+.3f} ({difference['low']:+.3f} to {difference['high']:+.3f})"


def _delete_jobs(folder: str, run_id: str) -> None:
    for trial in ("", *_trials(folder)):
        record = _manifest_of(storage.join(folder, TRIALS, trial) if trial else folder)
        platform = record.get("exact", {}).get("platform", {})
        if platform.get("launcher") == "jobset":
            _delete_job(job_owner(run_id, trial), platform["namespace"])


def _delete_job(owner: str, namespace: str) -> None:
    from components.launcher.jobset import delete_job  # with it comes the Kubernetes client

    for task in TASKS:
        if delete_job(owner, task, namespace=namespace):
            say(f"the JobSet in which {owner} was to {task} was still there, and is deleted")


def _trials(folder: str) -> list[str]:
    below = storage.join(folder, TRIALS)
    ends = f"/{manifests.MANIFEST}"
    files = [file.removeprefix(f"{below}/") for file in storage.list_files(below)]
    return sorted(file.removesuffix(ends) for file in files if file.endswith(ends) and file.count("/") == 1)
