"""A request to Google's storage that fails for reasons of the moment -> the same request again, for as long as is fit.

Google's client takes a `Retry` and uses it for each request, part of an upload, and rest of a download that was cut.
The one made here pauses longer and longer, each pause drawn at random so that many clients do not come back together,
and at least as long as the server asks for (Retry-After); see `patience.py`. It does not count the time in which data
flows, as the client's own limit of two minutes does: a download of an hour may be cut at its end, too.
"""

import http.client
import logging
import math
import time

import requests.exceptions
import urllib3.exceptions
from google.api_core.exceptions import GoogleAPICallError
from google.api_core.retry import Retry
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage.exceptions import InvalidResponse

from components.storage.patience import PATIENCE
from components.storage.place import StorageError

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 5.0
_SECONDS_BETWEEN_LINES = 60.0

_CODES = frozenset({408, 429, 500, 502, 503, 504})
_BROKEN_STREAMS = (
    ConnectionError,
    http.client.HTTPException,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ConnectionError,
    requests.exceptions.ContentDecodingError,
    requests.exceptions.Timeout,
    urllib3.exceptions.HTTPError,
)


def patiently(uri: str) -> Retry:
    """For one operation on `uri`. It ends with StorageError when the storage has failed for too long."""
    return Retry(
        predicate=is_passing,
        initial=PATIENCE.first_pause,
        maximum=PATIENCE.longest_pause,
        timeout=None,
        on_error=_Struggle(uri),
    )


def is_passing(error: Exception) -> bool:
    """Whether the same request may well succeed a moment later."""
    if isinstance(error, InvalidResponse):
        return error.response.status_code in _CODES
    if isinstance(error, GoogleAPICallError):
        return error.code in _CODES
    if isinstance(error, GoogleAuthError):
        return bool(error.retryable) or any(isinstance(cause, _BROKEN_STREAMS) for cause in error.args)
    return isinstance(error, _BROKEN_STREAMS)


class _Struggle:
    """Called with each failure of one operation: waits as long as the server asks for, tells a person, gives up."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._since = self._told = -math.inf
        self._last = -math.inf

    def __call__(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._last > PATIENCE.answer + 2 * PATIENCE.longest_pause:
            # It has gone well in between: a try without success does not take so long.
            self._since, self._told = now, now - _SECONDS_BETWEEN_LINES
        failed = now - self._since
        if failed > PATIENCE.total:
            raise StorageError(
                f"{self._uri}: the storage has failed for {failed:.0f} s, last with: {in_short(error)}. What is on it "
                "is whole; when it answers again, the same command goes on from there"
            ) from error
        if failed > _QUIET_SECONDS and now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            left = PATIENCE.total - failed
            _log.warning("%s: the storage fails (%s); trying for %.0f s more", self._uri, in_short(error), left)
        time.sleep(min(_asked_for(error), PATIENCE.total - failed))
        self._last = time.monotonic()


def in_short(error: Exception) -> str:
    """An error of the client on one line."""
    said = f"{error.response.status_code} {error.response.text}" if isinstance(error, InvalidResponse) else str(error)
    text = " ".join(said.split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."


def _asked_for(error: Exception) -> float:
    """Seconds of the answer's Retry-After, which Google's storage gives as a number; 0 without one."""
    response = error.response if isinstance(error, InvalidResponse | GoogleAPICallError) else None
    after = response.headers.get("retry-after", "") if isinstance(response, requests.Response) else ""
    return float(after) if after.isdecimal() else 0.0
