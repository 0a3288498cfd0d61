"""A train run on gs:// over a bad network, with kill -9 in the middle of it: is anything lost, twice, or half visible?

The tiny run of the tests, on a GCS server of this machine behind a proxy that injects faults of all kinds by a seeded
schedule. While it runs, another process lists and reads its folder all along. In the end the folder is fetched past
the proxy, by code that has nothing to do with the one that wrote it, and is compared with an undisturbed run on a disk.

    python -m tests.benchmarks.storage_faults --json [--quick]
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from components import storage
from components.model.peft import WEIGHTS_FILE
from components.storage import sending
from components.storage.patience import PATIENCE
from tests.audit import audit
from tests.benchmarks.chaos import Process
from tests.benchmarks.timing import arguments, print_figures
from tests.storage.fault_proxy import FaultProxy, Faults, google_storage
from tests.storage.gcs_contract import Request
from tests.tiny_run import ENVIRONMENT, TRAIN, make_inputs

BUCKET = "headrace"
RUN = f"gs://{BUCKET}/run"
IMPATIENT = """
from components.storage.patience import PATIENCE
from components.training import journal
PATIENCE.answer, PATIENCE.first_pause, PATIENCE.longest_pause = 1.0, 0.02, 0.2
journal.REMOTE_INTERVAL = 0.1
"""
"""Pauses of seconds would only make it longer."""
WEIGHTS = {
    "429 with Retry-After": 0.2,
    "work done, answer late": 0.3,
    "connections refused": 0.3,
    "request cut": 4.0,
    "upload damaged": 2.0,
    "chunk kept in part": 4.0,
}
"""What takes long is rare; what can befall few requests is frequent among those."""
LOST = ("dropped", "missing_steps")
TWICE = ("trained_twice", "regenerated_finished")


@dataclass
class Seen:
    """What came of a disturbed run."""

    kills: int = 0
    resumed: int = 0
    reader: dict[str, Any] | None = None


def call_of(places: dict[str, str], run_folder: str, trained: Path, steps: int) -> dict[str, Any]:
    """The train step's arguments."""
    return {
        "section": json.dumps(TRAIN | {"steps": steps}),
        "environment": json.dumps(ENVIRONMENT),
        "seed": 0,
        "run_folder": run_folder,
        "trained": str(trained),
        **places,
    }


def disturbed_run(call: dict[str, Any], folder: Path, kills: int, draws: random.Random, patience: float = 2.0) -> Seen:
    """Run to the end over as many kills, each within `patience` seconds of work, while another process looks on."""
    seen = Seen()
    with looking_on(folder / "stop", seen):
        while True:
            process = Process(call, IMPATIENT)
            killed = process.kill_after(draws.uniform(0.2, patience) if seen.kills < kills else 1e6)
            seen.resumed += process.resumed_after is not None
            if not killed:
                return seen
            seen.kills += 1
            reached = max(process.steps, process.resumed_after or 0)
            print(f"kill {seen.kills}: after step {reached}", file=sys.stderr, flush=True)


@contextmanager
def looking_on(stop: Path, seen: Seen) -> Iterator[None]:
    """Have a reader look at the run for the time of a block; what it has seen is in `seen.reader` afterwards."""
    command = [sys.executable, "-m", "tests.storage.reader", RUN, str(stop)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        stop.touch()
        said, _ = reader.communicate()
    seen.reader = json.loads(said.splitlines()[-1])


def artifacts_differ(folder: Path) -> int:
    """Send a folder with a large file up and down over the bad network; 1 where it comes back as another one."""
    PATIENCE.answer, PATIENCE.first_pause, PATIENCE.longest_pause = 1.0, 0.02, 0.2
    sending.CHUNK_BYTES = 3 << 20
    source, back = folder / "artifact", folder / "back"
    source.mkdir()
    for name, size in {"weights": 12 << 20, "config": 500, "empty": 0}.items():
        (source / name).write_bytes(random.Random(size).randbytes(size))
    storage.upload_folder(source, f"gs://{BUCKET}/artifact")
    storage.download_folder(f"gs://{BUCKET}/artifact", back)
    return int(any(path.read_bytes() != (back / path.name).read_bytes() for path in source.iterdir()))


def fetch(proxy: FaultProxy, prefix: str, folder: Path) -> None:
    """Write all objects below a prefix as files of a folder."""
    target = f"/storage/v1/b/{BUCKET}/o?prefix={quote(prefix, safe='')}"
    listed = proxy.contract.perform(Request("GET", target, {}, b""))
    for name in (item["name"] for item in json.loads(listed.body)["items"]):
        media = f"/download/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}?alt=media"
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(proxy.contract.perform(Request("GET", media, {}, b"")).body)


def verdict(proxy: FaultProxy, seen: Seen, folder: Path, reference: Path, steps: int) -> dict[str, Any]:
    """What was lost, twice, or half visible, and how it was found."""
    fetch(proxy, "run/", folder)
    run = folder / "run"
    found = audit(run)
    adapters = [(each / "trained" / WEIGHTS_FILE).read_bytes() for each in (folder, reference)]
    read, written = seen.reader["read"].items(), steps_written(run)
    lost = {name: found[name] for name in LOST} | {
        "steps": steps - found["steps"],
        "metrics": len(set(range(1, steps + 1)) - set(written)),
        "lines_that_were_read_once": sum((run / log).stat().st_size < size for log, size in read),
        "other_adapter": int(adapters[0] != adapters[1]),
        "checkpoints": int(not (run / "checkpoints" / str(steps) / "checkpoint.json").is_file()),
    }
    twice = {name: found[name] for name in TWICE} | {"metrics_twice": len(written) - len(set(written))}
    return {
        "faults_injected": proxy.faults.total,
        "lost": sum(lost.values()),
        "twice": sum(twice.values()),
        "half_visible": len(seen.reader["half_visible"]),
        "resumed": seen.resumed,
        "kills": seen.kills,
        "looks": seen.reader["looks"],
        "found": [f"{name}: {number}" for name, number in (lost | twice).items() if number]
        + seen.reader["half_visible"],
        "faults_of_changes": proxy.faults.of_changes,
        "faults_by_kind": dict(sorted(proxy.faults.counted.items())),
        "requests": proxy.requests.total(),
    }


def steps_written(run: Path) -> list[int]:
    """Steps with a line in metrics.jsonl, without those that a resume has taken back."""
    kept: list[int] = []
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if "resumed_after" in line:
            kept = [step for step in kept if step <= line["resumed_after"]]
        else:
            kept.append(line["step"])
    return kept


def main() -> None:
    """Disturb a run, and print what was found."""
    options = arguments(__doc__.splitlines()[0])
    steps, kills, rate, patience = (8, 1, 0.3, 2.0) if options.quick else (40, 5, 0.2, 12.0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, google_storage(BUCKET) as proxy:
        root = Path(temporary)
        reference, disturbed = root / "reference", root / "disturbed"
        disturbed.mkdir()
        places = make_inputs(root / "inputs")
        Process(call_of(places, str(reference / "run"), reference / "trained", steps)).kill_after(1e6)
        proxy.faults = Faults(seed=0, rate=rate, weights=WEIGHTS, late=1.3)
        call = call_of(places, RUN, disturbed / "trained", steps)
        seen = disturbed_run(call, disturbed, kills, random.Random(0), patience)
        differ = artifacts_differ(root)
        figures = verdict(proxy, seen, disturbed, reference, steps)
    figures["lost"] += differ
    print_figures({**figures, "seconds": time.monotonic() - started}, options)


if __name__ == "__main__":
    main()
