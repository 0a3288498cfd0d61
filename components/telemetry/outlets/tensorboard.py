"""Numbers of a run -> an event file in the run's folder, on a disk or on gs://, that TensorBoard reads."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from components import storage
from components.telemetry.outlets.outlet import scalars

FOLDER = "tensorboard"


@contextlib.contextmanager
def _as_if_not_installed(package: str) -> Iterator[None]:
    loaded = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment]  # This is how an import is refused.
    try:
        yield
    finally:
        del sys.modules[package]
        if loaded:
            sys.modules[package] = loaded


# tensorboardX imports torch where it is installed, for tensors that are none of ours: seconds, and 180 MB a process.
with _as_if_not_installed("torch"):
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.summary_pb2 import Summary


class TensorBoard:
    """Writes `RUN/tensorboard/`. On gs:// the file is uploaded anew every `upload_every` steps and at the end."""

    name = "TensorBoard"

    def __init__(self, run_folder: str, *, upload_every: int = 10) -> None:
        self._target = storage.join(run_folder, FOLDER) if storage.is_remote(run_folder) else None
        self._folder = Path(tempfile.mkdtemp(prefix="tensorboard-") if self._target else Path(run_folder) / FOLDER)
        self._writer = SummaryWriter(str(self._folder), flush_secs=10)
        self._upload_every = upload_every

    def step(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Write every number of the step, named by its path."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(numbers) if name != "step"]
        # All in one event: one by one they take twenty times as long, and Python's lock with it.
        self._writer.file_writer.add_summary(Summary(value=values), step)
        if self._target and step % self._upload_every == 0:
            self._upload()

    def close(self) -> None:
        """Flush, and upload what there is."""
        self._writer.close()
        if self._target:
            self._upload()

    def _upload(self) -> None:
        assert self._target is not None
        self._writer.flush()
        for file in self._folder.iterdir():
            storage.upload(file, storage.join(self._target, file.name))
