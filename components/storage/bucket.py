"""Google Cloud Storage as a place: single uploads and preconditions on generations."""

import functools
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.errors import ConfigError
from components.storage.place import PARTIAL, ConflictError, LogEnd


class Bucket:
    """Google Cloud Storage. Generations are its own."""

    def read(self, uri: str) -> bytes:
        with _google_errors(uri):
            return _blob(uri).download_as_bytes()

    def read_versioned(self, uri: str) -> tuple[bytes, int]:
        blob = _blob(uri)
        while True:
            with _google_errors(uri):
                blob.reload()
            try:
                with _google_errors(uri):
                    return blob.download_as_bytes(if_generation_match=blob.generation), blob.generation
            except ConflictError:
                continue  # written again between the two requests: look again

    def write(self, uri: str, data: bytes, expected: int | None) -> int:
        blob = _blob(uri)
        token = uuid.uuid4().hex
        blob.metadata = {"write": token}
        try:
            with _google_errors(uri):
                blob.upload_from_string(data, if_generation_match=expected)
        except ConflictError:
            # The answer to a write may be lost and the client's second try find the first one's work.
            with _google_errors(uri):
                blob.reload()
            if (blob.metadata or {}).get("write") != token:
                raise
        return blob.generation

    def upload(self, source: Path, uri: str) -> None:
        with _google_errors(uri):
            _blob(uri).upload_from_filename(source)

    def download(self, uri: str, target: Path) -> None:
        with _google_errors(uri):
            _blob(uri).download_to_filename(target)

    def open_log(self, uri: str) -> LogEnd:
        """Where it ends. There is nothing to mend: an object is whole."""
        bucket, name = _bucket_and_name(uri)
        found = bucket.get_blob(name)
        return (found.generation, found.size) if found else (0, 0)

    def append(self, uri: str, data: bytes, end: LogEnd) -> LogEnd:
        generation, size = end
        if not generation:
            return self.write(uri, data, 0), len(data)
        log, part = _blob(uri), _blob(f"{uri}.{uuid.uuid4().hex}{PARTIAL}")
        part.upload_from_string(data)
        try:
            # Looked at and demanded: the look also tells a writer whose server does not know the precondition here.
            log.reload()
            if log.generation != generation:
                raise ConflictError(f"{uri}: somebody else writes it")
            with _google_errors(uri):
                log.compose([log, part], if_generation_match=generation)
        except ConflictError:
            log.reload()
            # Otherwise the answer was lost, and the second try found the first one's work.
            if log.size != size + len(data):
                raise
        finally:
            part.delete()
        return log.generation, size + len(data)

    def size(self, uri: str) -> int | None:
        bucket, name = _bucket_and_name(uri)
        found = bucket.get_blob(name) if name else None
        return found.size if found else None

    def walk(self, folder: str) -> Iterable[str]:
        bucket, name = _bucket_and_name(folder)
        prefix = f"{name.rstrip('/')}/" if name else ""
        for blob in bucket.list_blobs(prefix=prefix):
            if not blob.name.endswith("/"):  # an empty object that a console made to show a folder
                yield f"gs://{bucket.name}/{blob.name}"

    def delete(self, uri: str) -> None:
        try:
            with _google_errors(uri):
                _blob(uri).delete()
        except FileNotFoundError:
            return

    def remove_empty_folders(self, folder: str) -> None:
        """Nothing to do: there are no folders."""


@functools.cache
def _client() -> Any:
    """The Google client, imported when first needed. It finds an emulator by STORAGE_EMULATOR_HOST itself."""
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage as google_storage

    try:
        return google_storage.Client()
    except DefaultCredentialsError as error:
        raise ConfigError(
            f"gs:// needs Google credentials and none were found; run `gcloud auth application-default login`: {error}"
        ) from None


def _bucket_and_name(uri: str) -> tuple[Any, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return _client().bucket(bucket), name


def _blob(uri: str) -> Any:
    bucket, name = _bucket_and_name(uri)
    return bucket.blob(name)


@contextmanager
def _google_errors(uri: str) -> Iterator[None]:
    """Google's errors of a missing object and of a failed precondition, as the ones that this module promises."""
    from google.api_core.exceptions import NotFound, PreconditionFailed

    try:
        yield
    except NotFound:
        raise FileNotFoundError(uri) from None
    except PreconditionFailed:
        raise ConflictError(f"{uri}: somebody else wrote it") from None
