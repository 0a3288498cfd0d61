"""A state and its small facts -> a step directory that is whole or does not count, and back.

    RUN/checkpoints/200/checkpoint.json       written last: facts, names and shapes of the leaves, sizes of all files
    RUN/checkpoints/200/state-1f0c9a7e/...    the leaves, written by Orbax

A step directory without `checkpoint.json`, or whose files do not have the sizes that stand in it, is passed over with a
line in the log and left as it is. Nothing is deleted but the files that a `checkpoint.json` of ours names, and names
that are no step number are never looked into. All looks at the storage are fresh.
"""

import json
import logging
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import orbax.checkpoint as ocp

from components import storage
from components.errors import CheckpointError
from components.model.lockstep import on_host
from components.model.placement import put_beside
from components.storage.files import place_of

T = TypeVar("T")

MANIFEST = "checkpoint.json"
_FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored(Generic[T]):
    """What came back: the optimizer step, the state, and the facts that were saved beside it."""

    step: int
    state: T
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints below one folder, a local path or a gs:// URI. Keeps the `keep` newest good ones."""

    folder: storage.Uri
    keep: int = 2

    def save(self, step: int, state: Any, facts: Mapping[str, Any]) -> None:
        """Write a pytree of arrays (typed random keys among them) and JSON facts, then drop checkpoints beyond `keep`.

        When it returns the step is complete; a kill before that leaves a directory that does not count.
        Raises ValueError when `facts` is not plain JSON.
        """
        content = json.dumps(dict(facts), allow_nan=False)
        replaced = self._readable_manifest(step)
        payload = f"state-{uuid.uuid4().hex[:8]}"
        target = storage.join(self.folder, str(step), payload)
        leaves = _named(on_host(state))
        with _written(target) as folder, _checkpointer() as checkpointer:
            checkpointer.save(folder, args=ocp.args.StandardSave(leaves))
        manifest = _Manifest(
            payload=payload,
            facts=json.loads(content),
            leaves={name: _signature(leaf) for name, leaf in leaves.items()},
            files={file[len(target) + 1 :]: size for file, size in storage.list_sizes(target).items()},
        )
        storage.write_text(self._manifest_path(step), manifest.to_json())
        if replaced is not None:
            self._delete_payload(step, replaced)
        for old in self.steps()[: -self.keep]:
            self._delete(old)

    def steps(self) -> list[int]:
        """Steps with a good checkpoint, ascending. Directories that do not count are named in the log, once a look."""
        good = []
        for step in self._candidates():
            fault = self._fault(step)
            if fault is None:
                good.append(step)
            else:
                _log.warning("checkpoint %s is skipped: %s", storage.join(self.folder, str(step)), fault)
        return good

    def restore(self, like: T) -> Restored[T] | None:
        """The newest good checkpoint in the structure of `like` (its arrays give shapes and devices, not values).

        None when there is no checkpoint at all. Raises CheckpointError when the newest good one holds another state
        than `like`, when none is good though one was complete once, or when the storage cannot be read.
        """
        try:
            steps = self.steps()
            if not steps:
                self._refuse_damaged()
                return None
            manifest = self._manifest(steps[-1])
            return Restored(steps[-1], self._load(steps[-1], manifest, like), manifest.facts)
        except PermissionError as error:
            message = f"checkpoints in {self.folder} cannot be read ({error}); nothing was changed"
            raise CheckpointError(message) from error

    def _load(self, step: int, manifest: "_Manifest", like: T) -> T:
        leaves = _named(like)
        _check_leaves(storage.join(self.folder, str(step)), manifest.leaves, leaves)
        source = storage.join(self.folder, str(step), manifest.payload)
        targets = {name: _target(leaf) for name, leaf in leaves.items()}
        with _read(source) as folder, _checkpointer() as checkpointer:
            found = checkpointer.restore(folder, args=ocp.args.StandardRestore(targets))
        placed = [put_beside(found[name], leaf) for name, leaf in leaves.items()]
        return jax.tree.unflatten(jax.tree.structure(like), placed)

    def _candidates(self) -> list[int]:
        """Every name below the folder that is a step number; empty directories too, which only a disk can hold."""
        base = str(self.folder).rstrip("/")
        names = {file[len(base) + 1 :].split("/")[0] for file in storage.list_files(base)}
        if not storage.is_remote(base) and Path(base).is_dir():
            names |= {path.name for path in Path(base).iterdir() if path.is_dir()}
        return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)

    def _fault(self, step: int) -> str | None:
        """Why a step directory does not count; None when it is good."""
        try:
            manifest = self._manifest(step)
        except FileNotFoundError:
            return f"it has no {MANIFEST}, so it was not finished or is not ours"
        except ValueError as error:
            return f"its {MANIFEST} is unusable: {error}"
        payload = storage.join(self.folder, str(step), manifest.payload)
        found = storage.list_sizes(payload)
        for name, size in manifest.files.items():
            there = found.get(storage.join(payload, name))
            if there is None:
                return f"file {name} is missing"
            if there != size:
                return f"file {name} has {there} bytes, not {size}"
        return None

    def _refuse_damaged(self) -> None:
        """A manifest is written last, so a crash of ours damages none: starting over would hide a loss."""
        damaged = [str(step) for step in self._candidates() if storage.exists(self._manifest_path(step))]
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.folder} is whole, but {', '.join(damaged)} was complete once; "
                "mend it, or remove its folder: its steps are then computed again from the journal"
            )

    def _manifest_path(self, step: int) -> str:
        return storage.join(self.folder, str(step), MANIFEST)

    def _manifest(self, step: int) -> "_Manifest":
        return _Manifest.from_json(storage.read_text(self._manifest_path(step)))

    def _readable_manifest(self, step: int) -> "_Manifest | None":
        try:
            return self._manifest(step)
        except (FileNotFoundError, ValueError):
            return None

    def _delete(self, step: int) -> None:
        manifest = self._manifest(step)
        _log.info("checkpoint %s is dropped, %d newer ones are kept", storage.join(self.folder, str(step)), self.keep)
        storage.delete(self._manifest_path(step))
        self._delete_payload(step, manifest)

    def _delete_payload(self, step: int, manifest: "_Manifest") -> None:
        payload = storage.join(self.folder, str(step), manifest.payload)
        for name in manifest.files:
            storage.delete(storage.join(payload, name))
        folder = storage.join(self.folder, str(step))
        place_of(folder).remove_empty_folders(folder)


@dataclass(frozen=True)
class _Manifest:
    """The content of `checkpoint.json`: `leaves` maps names to shape and dtype, `files` maps names to bytes."""

    payload: str
    facts: Mapping[str, Any]
    leaves: Mapping[str, list[Any]]
    files: Mapping[str, int]

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "_Manifest":
        """Raises ValueError for anything that `to_json` did not write."""
        values = json.loads(text)
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or values.keys() != names | {"format"}:
            raise ValueError("it was not written by this program")
        if values.pop("format") != _FORMAT:
            raise ValueError(f"it is of another format than {_FORMAT}, which this version reads")
        return cls(**values)


def _named(state: Any) -> dict[str, jax.Array]:
    """The leaves by name: independent of the classes that hold them, so that a class can move between files."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _checkpointer() -> ocp.Checkpointer:
    """Orbax, for this process alone: where a model is spread over hosts, one of them writes what it has gathered."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"headrace-{me}"
    )
    return ocp.Checkpointer(ocp.StandardCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone)


def _signature(leaf: jax.Array) -> list[Any]:
    return [list(leaf.shape), str(leaf.dtype)]


def _target(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    sharding = leaf.sharding if leaf.is_fully_addressable else here
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _check_leaves(where: str, saved: Mapping[str, Any], wanted: Mapping[str, jax.Array]) -> None:
    signatures = {name: _signature(leaf) for name, leaf in wanted.items()}
    differing = [name for name in sorted(saved.keys() | signatures) if saved.get(name) != signatures.get(name)]
    if differing:
        name = differing[0]
        raise CheckpointError(
            f"{where} holds another state than this run's: {len(differing)} arrays differ, the first is {name!r}: "
            f"saved {saved.get(name, 'not at all')}, needed {signatures.get(name, 'not at all')}; "
            "resume with the settings that it was made with, or give another folder"
        )


@contextmanager
def _written(target: str) -> Iterator[Path]:
    """A local folder for Orbax to make, whose content is at `target` after the block."""
    if not storage.is_remote(target):
        yield Path(target).absolute()
        return
    # Whole files go up with checksums, by the client that retries: Orbax's own driver speaks to Google's servers only.
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        folder = Path(temporary, "state")
        yield folder
        storage.upload_folder(folder, target)


@contextmanager
def _read(source: str) -> Iterator[Path]:
    """A local folder with the content of `source`, for a block."""
    if not storage.is_remote(source):
        yield Path(source).absolute()
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        folder = Path(temporary, "state")
        storage.download_folder(source, folder)
        yield folder
