"""Google's storage client, its buckets, and its errors as the ones that this house promises."""

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests.exceptions
from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, PreconditionFailed, Unauthorized
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from components.errors import ConfigError, Problem
from components.storage.patience import PATIENCE
from components.storage.place import AccessError, StorageError
from components.storage.trying import in_short, patiently

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_ERRORS = (GoogleAPIError, GoogleAuthError, requests.exceptions.RequestException, DataCorruption, InvalidResponse)


@functools.cache
def client() -> storage.Client:
    """The client of this process. It finds an emulator by STORAGE_EMULATOR_HOST itself."""
    try:
        return storage.Client()
    except DefaultCredentialsError as error:
        raise ConfigError(
            f"gs:// needs Google credentials and none were found; run `gcloud auth application-default login`: {error}"
        ) from None


def bucket_and_name(uri: str) -> tuple[Any, str]:
    """The bucket (not looked for) and the name in it. Raises ConfigError for what cannot be a bucket."""
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not _BUCKET_NAME.fullmatch(bucket):
        raise ConfigError(Problem("storage", uri, f"{bucket!r} is no name of a bucket; write gs://BUCKET/NAME"))
    return client().bucket(bucket), name


def blob_of(uri: str) -> Any:
    """The object, not looked at."""
    bucket, name = bucket_and_name(uri)
    return bucket.blob(name)


def uri_of(blob: Any) -> str:
    """Where an object is."""
    return f"gs://{blob.bucket.name}/{blob.name}"


def options(uri: str) -> dict[str, Any]:
    """What each request of the client is given."""
    return {"retry": patiently(uri), "timeout": PATIENCE.answer}


def look(uri: str) -> Any:
    """The object as it is now. Raises FileNotFoundError."""
    blob = blob_of(uri)
    with explained(uri):
        blob.reload(**options(uri))
    return blob


def find(uri: str) -> Any:
    """The object as it is now, or None."""
    try:
        return look(uri)
    except FileNotFoundError:
        return None


@contextmanager
def explained(uri: str, *, unless: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns the client's errors into words: FileNotFoundError, AccessError, StorageError.

    A failed precondition (412) is for the caller, as are those of `unless`.
    """
    passed: tuple[type[Exception], ...] = (PreconditionFailed, *unless)
    try:
        yield
    except passed:
        raise
    except NotFound:
        require_bucket(uri)
        raise FileNotFoundError(uri) from None
    except _ERRORS as error:
        raise _in_words(uri, error) from error


def require_bucket(uri: str) -> None:
    """Raises StorageError where the bucket of `uri` does not exist: a missing file would be missed in vain."""
    bucket, _ = bucket_and_name(uri)
    if bucket.name in _SEEN:
        return
    try:
        # To look into a bucket takes fewer rights than to look at it.
        next(iter(bucket.list_blobs(max_results=1, **options(uri))), None)
    except NotFound:
        raise StorageError(
            f"{uri}: there is no bucket {bucket.name}; correct the URI, or make it with "
            f"`gcloud storage buckets create gs://{bucket.name}`"
        ) from None
    except _ERRORS as error:
        raise _in_words(uri, error) from error
    _SEEN.add(bucket.name)


_SEEN: set[str] = set()


def _in_words(uri: str, error: Exception) -> StorageError:
    if isinstance(error, Forbidden | Unauthorized):
        return AccessError(
            f"{uri}: access is refused ({in_short(error)}). Give the account that runs this the role "
            "roles/storage.objectUser on the bucket, or run it as another one"
        )
    if isinstance(error, GoogleAuthError):
        return AccessError(
            f"{uri}: no credentials to go there with ({in_short(error)}). Run `gcloud auth application-default login`, "
            "or on a cluster bind the service account of the pod"
        )
    return StorageError(f"{uri}: {in_short(error)}")
