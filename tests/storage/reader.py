"""A person, a report or another process that looks into a run on a bucket all along: is anything ever half there?

    python -m tests.storage.reader gs://BUCKET/RUN STOP_FILE

Ends when STOP_FILE is there, and prints {"looks", "half_visible": [...], "read": {log: bytes}} as its last line.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from components import storage
from components.errors import DataError
from components.storage.patience import PATIENCE

LOGS = ("journal.jsonl", "metrics.jsonl", "trajectories.jsonl")


class Reader:
    """Looks again and again, and keeps what it has found wrong."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._seen = dict.fromkeys(LOGS, b"")
        self.half_visible: list[str] = []
        self.looks = 0

    @property
    def read(self) -> dict[str, int]:
        """Bytes of each log that have been seen."""
        return {name: len(text) for name, text in self._seen.items()}

    def look(self) -> None:
        """Read all logs, all documents, and the newest checkpoint."""
        self.looks += 1
        for name in LOGS:
            self._look_at_log(name)
        files = storage.list_files(self._run)
        self._note("a listing", [file for file in files if file.endswith(".partial")])
        for file in files:
            if file.endswith(".json"):
                self._look_at_document(file)

    def _look_at_log(self, name: str) -> None:
        before = self._seen[name]
        try:
            now = storage.read_bytes(storage.join(self._run, name))
        except FileNotFoundError:
            now = b""
        if not now.startswith(before):
            self._note(name, f"had {len(before)} bytes, and what has {len(now)} now does not begin with them")
        elif not now.endswith(b"\n") and now:
            self._note(name, f"ends with half a line: {now[-80:]!r}")
        else:
            self._seen[name] = now
            for line in now[len(before) :].splitlines():
                json.loads(line)

    def _look_at_document(self, file: str) -> None:
        try:
            text = storage.read_text(file)
        except FileNotFoundError:
            return  # deleted since
        try:
            content = json.loads(text)
        except ValueError:
            self._note(file, text)
            return
        if file.endswith("/checkpoint.json"):
            self._look_at_checkpoint(file, text, content)

    def _look_at_checkpoint(self, file: str, text: str, content: dict[str, Any]) -> None:
        """A checkpoint that counts is whole. One that is dropped loses what makes it count first."""
        payload = storage.join(file.removesuffix("/checkpoint.json"), content["payload"])
        with tempfile.TemporaryDirectory() as folder:
            try:
                storage.download_folder(payload, Path(folder, "state"))
                wrong = content["files"].keys() ^ {
                    each.removeprefix(f"{payload}/") for each in storage.list_files(payload)
                }
            except (FileNotFoundError, DataError) as error:
                wrong = str(error)
        if wrong and self._still_there(file, text):
            self._note(file, wrong)

    def _still_there(self, file: str, text: str) -> bool:
        try:
            return storage.read_text(file) == text
        except FileNotFoundError:
            return False

    def _note(self, where: str, wrong: object) -> None:
        if wrong:
            self.half_visible.append(f"{where}: {wrong}")


def main() -> None:
    """Look until told to stop."""
    run, stop = sys.argv[1], Path(sys.argv[2])
    PATIENCE.answer, PATIENCE.first_pause, PATIENCE.longest_pause = 1.0, 0.02, 0.2
    reader = Reader(run)
    while not stop.exists():
        reader.look()
        time.sleep(0.1)
    reader.look()
    print(json.dumps({"looks": reader.looks, "half_visible": reader.half_visible, "read": reader.read}))


if __name__ == "__main__":
    main()
