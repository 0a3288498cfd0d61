"""An adapter that passed its gate -> the promoted one: a pointer that one run at a time moves, with its history.

    ROOT/promoted                    {"promotions": [...]}, the newest first; see `Promotion`
    ROOT/adapters/RUN-FINGERPRINT/   the adapters themselves, copied, so that they outlive the runs that made them

A run knows the generation of the pointer that it started from and moves it from there only. So of two runs at once one
is promoted, and the other is told by which one it was overtaken; history is in the pointer, and is never half-written.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components import storage
from components.config import config, from_json
from components.errors import DataError, HeadraceError, Problem
from components.storage import ConflictError, Uri
from components.telemetry.progress import say
from components.telemetry.run_files import read_run, update_summary

POINTER = "promoted"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
LATEST = "latest-promoted"
"""How a recipe names whatever is promoted when its run starts."""


@config
class PromoteConfig:
    """Whether a run that passes its gate is promoted, and the folder or gs:// URI `root` where the pointer lies.

    An empty `root` is the folder `promoted/NAME` beside the run's own, NAME being the recipe's.
    """

    enabled: bool = True
    root: str = ""


@dataclass(frozen=True, slots=True)
class Promotion:
    """One entry of the history. `adapter` is a PEFT directory, `fingerprint` that of its files (`fingerprint_of`).

    `base` is the fingerprint of the weights that the adapter belongs to, `parent` the adapter that the run started
    from, `data` where its tasks came from, and `measure` what the gate saw.
    """

    adapter: str
    fingerprint: str
    run: str
    recipe: str
    promoted_at: str
    base: str = ""
    parent: str | None = None
    data: str = ""
    measure: str = ""


class OvertakenError(HeadraceError):
    """Another run was promoted since this one started."""


def promote(*, section: str, run_folder: str, adapter: str) -> str:
    """Promote the exported adapter of a run that has passed its gate; gives in words what came of it.

    To be overtaken by another run is an answer and no error. The run's summary keeps it as `promotion`.
    """
    settings = from_json(PromoteConfig, section, where="promote")
    start = read_run(run_folder).summary.get("start", {})
    try:
        entry = move_pointer(settings.root, Path(adapter), run_folder, expected=start.get("promoted_generation", 0))
    except OvertakenError as overtaken:
        outcome = f"not promoted: {overtaken}"
    else:
        outcome = f"promoted: {entry.adapter}"
    say(outcome)
    update_summary(run_folder, {"promotion": outcome})
    return outcome


def move_pointer(root: str, adapter: Path, run_folder: str, *, expected: int | None) -> Promotion:
    """Copy the adapter below `root` and let the pointer name it, if its generation is `expected` (None: any).

    A run that is promoted already is left as it is, so that a step may be tried again. Raises OvertakenError.
    """
    history, generation = read_promotions(root)
    fingerprint = fingerprint_of(adapter)
    run = run_folder.rstrip("/")
    if history and (history[0].run, history[0].fingerprint) == (run, fingerprint):
        return history[0]
    if expected is not None and generation != expected:
        raise OvertakenError(_overtaken(history))
    target = storage.join(root, "adapters", f"{run.rpartition('/')[2]}-{fingerprint[:8]}")
    storage.upload_folder(adapter, target)
    entry = _entry(target, fingerprint, run)
    text = json.dumps({"promotions": [asdict(each) for each in (entry, *history)]}, indent=2)
    try:
        storage.write_text(storage.join(root, POINTER), text, if_generation_match=generation)
    except ConflictError:
        raise OvertakenError(_overtaken(read_promotions(root)[0])) from None
    return entry


def read_promotions(root: Uri) -> tuple[list[Promotion], int]:
    """The history, newest first, and the pointer's generation: nothing and 0 where nothing has been promoted.

    Raises DataError for a pointer that cannot be read.
    """
    uri = storage.join(root, POINTER)
    try:
        text, generation = storage.read_versioned(uri)
    except FileNotFoundError:
        return [], 0
    try:
        return [Promotion(**entry) for entry in json.loads(text)["promotions"]], generation
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(Problem(uri, text[:80], f"is no pointer that Headrace wrote: {error}")) from None


def fingerprint_of(adapter: Uri) -> str:
    """SHA-256 over the files of a PEFT directory, local or gs://. Raises DataError where one of them is missing."""
    digest = hashlib.sha256()
    for name in ADAPTER_FILES:
        uri = storage.join(adapter, name)
        try:
            digest.update(f"{name} {storage.checksum(uri)}\n".encode())
        except FileNotFoundError:
            raise DataError(Problem(uri, str(adapter), "does not exist; a PEFT adapter holds it")) from None
    return digest.hexdigest()


def _entry(adapter: str, fingerprint: str, run: str) -> Promotion:
    summary: dict[str, Any] = dict(read_run(run).summary)
    start = summary.get("start", {})
    return Promotion(
        adapter=adapter,
        fingerprint=fingerprint,
        run=run,
        recipe=str(summary.get("recipe", "")),
        promoted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        base=str(summary.get("base", {}).get("fingerprint", "")),
        parent=(start.get("parent") or {}).get("uri"),
        data=str(start.get("data_source", "")),
        measure=str(summary.get("gate", {}).get("measured", "")),
    )


def _overtaken(history: list[Promotion]) -> str:
    if not history:
        return "the pointer that was there when this run started is gone"
    first = history[0]
    return f"since this run started, {first.run} was promoted ({first.measure or first.promoted_at})"
