"""Kill -9 at random moments of the smoke recipe's training, and the same command again: is anything lost or twice?

Runs with `max_staleness` 0 and 2 in turn. After every kill the journal is audited; a run that has come to its end is
compared with an undisturbed one (on-policy: the same adapter bits) or replayed (asynchronous: the same adapter bits).

    python -m tests.benchmarks.chaos --json [--quick]
"""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.config import dump
from components.model.peft import WEIGHTS_FILE
from components.rollout.prepare import write_tasks
from components.training.initialise import initialise
from pipeline.recipe import load_recipe
from tests.audit import audit
from tests.benchmarks.timing import arguments, print_figures

MEAN_SECONDS = 4.0
"""How long a process works before it is killed, on average (exponential)."""
FORBIDDEN = ("trained_twice", "regenerated_finished", "dropped", "missing_steps")


@dataclass
class Tally:
    """What was seen over all kills."""

    kills: int = 0
    resumed: int = 0
    lost_steps: int = 0
    runs: int = 0
    runs_with_other_bits: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class Process:
    """One process of the train step; `steps` is the last optimizer step that it has reported.

    `prelude` is done first in it.
    """

    def __init__(self, call: dict[str, Any], prelude: str = "") -> None:
        program = f"{prelude}\nfrom components.training.run import train; train(**{call!r})"
        self._process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        self.working = threading.Event()
        self.resumed_after: int | None = None
        self.steps = 0
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill_after(self, seconds: float) -> bool:
        """Let it work so long; False when it has come to its end before."""
        self.working.wait()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        if self._process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit("the train step ended with an error:\n" + "".join(self.said[-30:]))
        return self._process.returncode != 0

    def _read(self) -> None:
        for line in self._process.stderr or ():
            self.said.append(line)
            if found := re.match(r"resumed after step (\d+)", line):
                self.resumed_after = int(found[1])
            if found := re.match(r"step +(\d+)/", line):
                self.steps = int(found[1])
            if found := re.match(r"(resumed after step|step +\d+/)", line):
                self.working.set()
        self.working.set()


def disturb(call: dict[str, Any], folder: Path, tally: Tally, kills: int, draws: random.Random) -> None:
    """Run to the end over as many kills as come, at most `kills` in all."""
    reported = 0
    while True:
        process = Process(call)
        killed = process.kill_after(draws.expovariate(1 / MEAN_SECONDS) if tally.kills < kills else 1e6)
        if process.resumed_after is not None:
            tally.resumed += 1
            tally.lost_steps += max(0, reported - process.resumed_after)
        reported = max(reported, process.steps)
        found = audit(folder / "run") if (folder / "run" / "journal.jsonl").exists() else {}
        tally.faults.update({name: found.get(name, 0) for name in FORBIDDEN})
        if not killed:
            return
        tally.kills += 1
        print(f"kill {tally.kills}: after step {reported}, {dict(+tally.faults) or 'sound'}", file=sys.stderr)


def inputs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The smoke recipe's sections, and the call of its train step."""
    sections = dump(load_recipe("smoke"))
    world = json.dumps(sections["environment"])
    places = {name: str(folder / name) for name in ("tasks", "base", "adapter")}
    write_tasks(section=json.dumps(sections["prepare_data"]), environment=world, seed=0, folder=places["tasks"])
    initialise(section=json.dumps(sections["init_model"]), environment=world, seed=0, **places)
    return sections["train"], {"environment": world, "seed": 0, **places}


def call_of(train: dict[str, Any], shared: dict[str, Any], folder: Path, staleness: int) -> dict[str, Any]:
    rollout = train["rollout"] | {"max_staleness": staleness}
    section = json.dumps(train | {"rollout": rollout, "checkpoint_every": 5})
    return {**shared, "section": section, "run_folder": str(folder / "run"), "trained": str(folder / "trained")}


def same_bits(folder: Path, reference: Path | None) -> bool:
    """Whether the run ended with the reference's adapter; without one, with what its own journal gives."""
    if reference is not None:
        return (folder / "trained" / WEIGHTS_FILE).read_bytes() == (reference / "trained" / WEIGHTS_FILE).read_bytes()
    command = [sys.executable, "-m", "pipeline.cli", "replay", str(folder / "run")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Kill until there are enough, and print what was found."""
    options = arguments(__doc__.splitlines()[0])
    kills, draws, tally = (6 if options.quick else 60), random.Random(0), Tally()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        train, shared = inputs(root)
        undisturbed = root / "undisturbed"
        Process(call_of(train, shared, undisturbed, 0)).kill_after(1e6)
        while tally.kills < kills:
            staleness = 2 * (tally.runs % 2)
            folder = root / f"run-{tally.runs}"
            disturb(call_of(train, shared, folder, staleness), folder, tally, kills, draws)
            tally.runs += 1
            tally.runs_with_other_bits += not same_bits(folder, None if staleness else undisturbed)
            shutil.rmtree(folder)
    print_figures(
        {
            "kills": tally.kills,
            "lost_steps": tally.lost_steps,
            "trained_twice": tally.faults["trained_twice"],
            "dropped": tally.faults["dropped"] + tally.faults["missing_steps"],
            "regenerated_finished": tally.faults["regenerated_finished"],
            "resumed": tally.resumed,
            "runs": tally.runs,
            "runs_with_other_bits": tally.runs_with_other_bits,
            "seconds": time.monotonic() - started,
        },
        options,
    )


if __name__ == "__main__":
    main()
