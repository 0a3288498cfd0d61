"""The objects of a small Kubernetes API server: versions, history, conflicts, cascading deletion, strict schemas.

Every write gives the object a resource version from one counter and becomes an event of the history, from which watches
are served; compaction forgets the history up to a version. All of it is guarded by one condition that every write
notifies.
"""

import copy
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.launcher.schemas import faults_of

Object = dict[str, Any]
Key = tuple[str, str, str]
"""(plural, namespace, name)"""


class ApiError(Exception):
    """A refusal, as the API puts it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    @property
    def body(self) -> Object:
        kind = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        return kind | {"message": self.message, "reason": self.reason, "code": self.status}


@dataclass(frozen=True, slots=True)
class Change:
    """An event of the history. `before` is the object that it replaces."""

    version: int
    kind: str
    plural: str
    found: Object
    before: Object | None


class Store:
    """All objects of all namespaces."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self.forgotten = 1000
        self._objects: dict[Key, Object] = {}
        self._history: list[Change] = []

    def get(self, plural: str, namespace: str, name: str) -> Object:
        with self.changed:
            key = (plural, namespace, name)
            if key not in self._objects:
                raise ApiError(404, "NotFound", f'{plural} "{name}" not found')
            return copy.deepcopy(self._objects[key])

    def all_of(self, plural: str, namespace: str) -> list[Object]:
        with self.changed:
            found = [self._objects[key] for key in sorted(self._objects) if key[:2] == (plural, namespace)]
            return copy.deepcopy(found)

    def create(self, plural: str, namespace: str, body: Object) -> Object:
        """Raises 409 AlreadyExists, and 422 or 400 for an object that its schema does not know."""
        with self.changed:
            body = copy.deepcopy(body)
            name = body["metadata"]["name"]
            for status, message in faults_of(plural, body):
                raise ApiError(status, "BadRequest" if status == 400 else "Invalid", message)
            if (plural, namespace, name) in self._objects:
                raise ApiError(409, "AlreadyExists", f'{plural} "{name}" already exists')
            body["metadata"] |= {
                "namespace": namespace,
                "uid": str(uuid.uuid4()),
                "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "generation": 1,
            }
            return self._write("ADDED", plural, body, None)

    def update(self, plural: str, body: Object) -> Object:
        """Replace an object. Raises 404, and 409 Conflict where it is not the version that `body` was made from."""
        with self.changed:
            metadata = body["metadata"]
            before = self.get(plural, metadata["namespace"], metadata["name"])
            if metadata["resourceVersion"] != before["metadata"]["resourceVersion"]:
                message = f'the object "{metadata["name"]}" has been modified; apply your changes to the latest version'
                raise ApiError(409, "Conflict", message)
            return self._write("MODIFIED", plural, copy.deepcopy(body), before)

    def delete(self, plural: str, namespace: str, name: str, options: Object | None = None) -> Object:
        """Mark it, and what it owns; it is gone when nothing holds it. Raises 404, and 409 for another uid."""
        with self.changed:
            found = self.get(plural, namespace, name)
            wanted = (options or {}).get("preconditions", {}).get("uid")
            if wanted is not None and wanted != found["metadata"]["uid"]:
                message = f"Precondition failed: UID in precondition: {wanted}, UID in object meta differs"
                raise ApiError(409, "Conflict", message)
            if "deletionTimestamp" not in found["metadata"]:
                found["metadata"]["deletionTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                found = self.update(plural, found)
            for owned_plural, owned in self._owned_by(found["metadata"]["uid"]):
                if "deletionTimestamp" not in owned["metadata"]:
                    self.delete(owned_plural, namespace, owned["metadata"]["name"])
            self._remove_if_free(plural, found)
            return found

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Take an object out at once, as a kubelet does that has stopped its pod; its owner may go then, too."""
        with self.changed:
            before = self._objects.pop((plural, namespace, name), None)
            if before is None:
                return
            self._write("DELETED", plural, copy.deepcopy(before), before, keep=False)
            for owner in before["metadata"].get("ownerReferences", []):
                for other_plural, other in self._all():
                    if other["metadata"]["uid"] == owner["uid"] and "deletionTimestamp" in other["metadata"]:
                        self._remove_if_free(other_plural, other)

    def compact(self) -> None:
        """Forget all history: a watch from any version that a client holds now is answered 410."""
        with self.changed:
            self.version += 1
            self.forgotten = self.version
            self._history.clear()
            self.changed.notify_all()

    def since(self, version: int) -> list[Change]:
        """Changes after a version. Raises 410 where some of them are forgotten."""
        with self.changed:
            if version < self.forgotten:
                raise ApiError(410, "Expired", f"too old resource version: {version} ({self.forgotten})")
            return [change for change in self._history if change.version > version]

    def _write(self, kind: str, plural: str, body: Object, before: Object | None, *, keep: bool = True) -> Object:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        if keep:
            self._objects[plural, body["metadata"]["namespace"], body["metadata"]["name"]] = body
        self._history.append(Change(self.version, kind, plural, copy.deepcopy(body), before))
        self.changed.notify_all()
        return copy.deepcopy(body)

    def _remove_if_free(self, plural: str, found: Object) -> None:
        # A pod is removed by its kubelet, an owner after what it owns.
        if plural != "pods" and not list(self._owned_by(found["metadata"]["uid"])):
            self.remove(plural, found["metadata"]["namespace"], found["metadata"]["name"])

    def _owned_by(self, uid: str) -> Iterator[tuple[str, Object]]:
        for plural, found in self._all():
            if any(owner["uid"] == uid for owner in found["metadata"].get("ownerReferences", [])):
                yield plural, found

    def _all(self) -> list[tuple[str, Object]]:
        return [(key[0], found) for key, found in list(self._objects.items())]
