"""The journal of a run, read without the code that writes it -> was everything done exactly once?"""

import json
from collections import Counter
from pathlib import Path
from typing import Any


def read_events(run_folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal."""
    text = (run_folder / "journal.jsonl").read_bytes()
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def audit(run_folder: Path) -> dict[str, int]:
    """Counts of what must never be: all zero in a sound run, `steps` aside.

    trained_twice: groups in more than one optimizer step. regenerated_finished: attempts that ended twice. dropped:
    tasks that were passed over: not settled, though so many later ones are that pacing would not have let them start.
    missing_steps: gaps in the versions.
    """
    trained: Counter[int] = Counter()
    ended: Counter[tuple[int, int, int]] = Counter()
    rejected: set[int] = set()
    open_step: list[int] = []
    versions, ahead = [], 0
    for event in read_events(run_folder):
        match event["event"]:
            case "opened":
                rollout = event["settings"]["train"]["rollout"]
                ahead = (rollout["max_staleness"] + 1) * rollout["tasks_per_step"]
            case "ended":
                ended[event["position"], event["member"], event["attempt"]] += 1
            case "consumed":
                open_step.append(event["position"])
            case "rejected":
                rejected.add(event["position"])
            case "stepped":
                trained.update(open_step)
                open_step = []
                versions.append(event["version"])
            case "resumed":
                open_step = []
    settled = set(trained) | rejected
    return {
        "steps": len(versions),
        "trained_twice": sum(times > 1 for times in trained.values()),
        "regenerated_finished": sum(times > 1 for times in ended.values()),
        "dropped": len(set(range(max(settled, default=0) - 2 * ahead)) - settled),
        "missing_steps": sum(version != place for place, version in enumerate(versions, start=1)),
    }
