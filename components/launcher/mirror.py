"""A list request of the Kubernetes API -> a copy of its objects that follows every change, and the changes themselves.

List once, then watch from the list's resource version. A watch that ends or breaks is opened again from the last
version seen, so that no change is missed; when the API has forgotten that version (410 Gone), the list is taken again.
"""

import json
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import urllib3
from kubernetes import client, watch

from components.errors import ClusterError
from components.launcher.cluster import explained

Listing = Callable[..., urllib3.HTTPResponse]

WATCH_SECONDS = 240
"""After so long the API ends a watch, and the next one begins."""

_GONE = 410
_REFUSED = frozenset({401, 403, 404})
_LONGEST_WAIT = 15.0


class Mirror:
    """A copy of what `listing` gives. `changed` is set with every change, and when there will be no more of them.

    `what` names it in errors, as in "watch pods". The thread ends with its process.
    """

    def __init__(self, what: str, listing: Listing, namespace: str, changed: threading.Event) -> None:
        self._what = what
        self._listing = listing
        self._namespace = namespace
        self._changed = changed
        self._objects: dict[str, dict[str, Any]] = {}
        self._changes: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._listed = threading.Event()
        self._stopped = threading.Event()
        self._refusal: ClusterError | None = None
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)

    def start(self) -> None:
        """Begin. Returns when the first list is there. Raises ClusterError where the API refuses."""
        self._thread.start()
        while not self._listed.wait(0.1):
            self.check()

    def stop(self) -> None:
        """Follow no more changes. The request that is under way is left to end by itself."""
        self._stopped.set()

    def check(self) -> None:
        """Raises ClusterError where the API refuses, and RuntimeError where a fault of ours has ended the thread."""
        if self._refusal is not None:
            raise self._refusal
        if not self._thread.is_alive() and not self._stopped.is_set():
            raise RuntimeError(f"the thread to {self._what} has died; its traceback stands above")

    def objects(self) -> list[dict[str, Any]]:
        """The objects as they are now, by name."""
        with self._lock:
            return [self._objects[name] for name in sorted(self._objects)]

    def changes(self) -> list[dict[str, Any]]:
        """Every state of every object that was seen since the last call; also that of one that has gone since."""
        with self._lock:
            taken, self._changes = self._changes, []
        return taken

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._changed.set()

    def _follow(self) -> None:
        version: str | None = None
        wait = 0.0
        while not self._stopped.wait(wait * random.uniform(0.5, 1.0)):
            # After a fault, and never after a watch that simply ended.
            wait = min(max(2 * wait, 0.25), _LONGEST_WAIT)
            try:
                if version is None:
                    version = self._list()
                for seen in self._watch(version):
                    version, wait = seen, 0.0
                wait = 0.0
            except client.ApiException as error:
                if error.status == _GONE:
                    version = None
                elif error.status in _REFUSED:
                    self._refusal = explained(error, self._what, self._namespace)
                    return
            except (urllib3.exceptions.HTTPError, json.JSONDecodeError):
                continue

    def _list(self) -> str:
        answer = json.loads(self._listing().data)
        with self._lock:
            self._objects = {each["metadata"]["name"]: each for each in answer["items"]}
            self._changes.extend(answer["items"])
        self._listed.set()
        self._changed.set()
        return answer["metadata"]["resourceVersion"]

    def _watch(self, version: str) -> Iterator[str]:
        """Yields the version of each event after it was taken in."""
        events = watch.Watch(return_type="object").stream(
            self._listing, resource_version=version, timeout_seconds=WATCH_SECONDS, allow_watch_bookmarks=True
        )
        for event in events:
            if self._stopped.is_set():
                return
            found = event["raw_object"]
            self._take(event["type"], found)
            yield found["metadata"]["resourceVersion"]

    def _take(self, kind: str, found: dict[str, Any]) -> None:
        if kind == "BOOKMARK":
            return
        with self._lock:
            self._changes.append(found)
            if kind == "DELETED":
                self._objects.pop(found["metadata"]["name"], None)
            else:
                self._objects[found["metadata"]["name"]] = found
        self._changed.set()
