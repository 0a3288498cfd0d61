"""Local paths and gs:// URIs -> one face. A write appears whole or not at all, and nothing is remembered between looks.

Locally a file is written under a temporary name, flushed and renamed; on GCS it is one upload. Every look (`exists`,
`list_files`, `read_bytes`) asks the storage anew, so that it sees what another process has written or deleted.

A file has a generation, a number that changes with every write. `write_bytes(..., if_generation_match=n)` writes only
where the generation still is `n`, and 0 means "where no file is": that makes pointers and locks safe between processes.

A storage that fails is waited for, and a person is told; see `patience.py`. What is damaged on the way is noticed.

A folder of a run is claimed with a marker, and only a folder that holds one is ever deleted.
"""

from components.storage.files import (
    checksum,
    delete,
    download,
    exists,
    is_remote,
    join,
    list_files,
    list_sizes,
    read_bytes,
    read_text,
    read_versioned,
    size,
    upload,
    write_bytes,
    write_text,
)
from components.storage.folders import (
    OWN_MARKER,
    claim_folder,
    delete_folder,
    download_folder,
    read_checksums,
    upload_folder,
)
from components.storage.lines import LineLog, read_lines
from components.storage.lock import is_held, sole_process
from components.storage.patience import hurry
from components.storage.place import AccessError, ConflictError, StorageError, Uri

__all__ = [
    "OWN_MARKER",
    "AccessError",
    "ConflictError",
    "LineLog",
    "StorageError",
    "Uri",
    "checksum",
    "claim_folder",
    "delete",
    "delete_folder",
    "download",
    "download_folder",
    "exists",
    "hurry",
    "is_held",
    "is_remote",
    "join",
    "list_files",
    "list_sizes",
    "read_bytes",
    "read_checksums",
    "read_lines",
    "read_text",
    "read_versioned",
    "size",
    "sole_process",
    "upload",
    "upload_folder",
    "write_bytes",
    "write_text",
]
