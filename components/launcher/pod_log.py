"""The log of one pod -> lines, each once, however often the stream breaks.

The API cannot be asked for a log from a certain line on. So every line comes with its time, a stream that broke is
opened again from a little before, and lines that have been seen are left out.
"""

import math
import threading
import time
from collections.abc import Callable

import urllib3
from kubernetes import client
from kubernetes.watch.watch import iter_resp_lines

from components.launcher.cluster import Cluster

_OVERLAP_SECONDS = 60
_SHORTEST_WAIT = 0.1
_LONGEST_WAIT = 5.0
_NO_LONGER_THERE = 404


class PodLog:
    """Follows a pod's log and gives each line to `show`, in a thread that ends with its process.

    `tail` starts with so many of the last lines, 0 with the first one.
    """

    def __init__(self, cluster: Cluster, pod: str, show: Callable[[str], None], *, tail: int = 0) -> None:
        self._cluster = cluster
        self._pod = pod
        self._show = show
        self._tail = tail
        self._ended = threading.Event()
        self._patience = 0.0
        self._last = ""
        self._shown_at_last = 0
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._follow, name=f"log of {pod}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self, patience: float) -> None:
        """The pod has ended: read what is left, for at most `patience` seconds."""
        self._patience = patience
        self._ended.set()
        self._thread.join(patience)

    def _follow(self) -> None:
        wait, deadline = _SHORTEST_WAIT, math.inf
        while time.monotonic() < deadline:
            # Looked at before the stream is opened: one that was opened after the end of the pod holds all of it.
            ended, before = self._ended.is_set(), self._last
            if ended and deadline == math.inf:
                deadline = time.monotonic() + self._patience
            try:
                self._read()
                if ended:
                    return
            except client.ApiException as error:
                if error.status == _NO_LONGER_THERE:
                    return
            except urllib3.exceptions.HTTPError:
                pass
            wait = _SHORTEST_WAIT if self._last != before else min(2 * wait, _LONGEST_WAIT)
            if ended:
                time.sleep(wait)
            else:
                self._ended.wait(wait)

    def _read(self) -> None:
        options = {"tail_lines": self._tail} if self._tail and not self._last else {}
        if self._last:
            options["since_seconds"] = int(time.monotonic() - self._heard) + _OVERLAP_SECONDS
        stream = self._cluster.open_log(self._pod, follow=True, timestamps=True, **options)
        at_last = 0
        try:
            for line in iter_resp_lines(stream):
                moment, _, text = line.partition(" ")
                key = _sortable(moment)
                if key < self._last:
                    continue
                if key == self._last:
                    at_last += 1
                    if at_last <= self._shown_at_last:
                        continue
                    self._shown_at_last += 1
                else:
                    self._last, self._shown_at_last, at_last = key, 1, 1
                self._heard = time.monotonic()
                self._show(text)
        finally:
            stream.close()
            stream.release_conn()


def _sortable(moment: str) -> str:
    """Times of one zone as texts in their order: Kubernetes leaves out zeros at the end of the fraction."""
    seconds, _, fraction = moment.rstrip("Z").partition(".")
    return f"{seconds}.{fraction:0<9}"
