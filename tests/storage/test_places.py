"""Every claim is proven on the disk and on a GCS server (see `tests/storage/gcs_contract.py`)."""

import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from components import storage
from components.errors import ConfigError, DataError
from components.storage import folders


@pytest.fixture(params=["disk", "gcs"])
def root(request, tmp_path):
    if request.param == "disk":
        return str(tmp_path)
    return f"{request.getfixturevalue('gcs')}/{uuid.uuid4().hex}"


def test_what_is_written_is_read_back_and_its_folders_are_made(root):
    uri = storage.join(root, "a", "b.txt")
    storage.write_text(uri, "grüße")
    assert storage.read_text(uri) == "grüße"
    assert storage.size(uri) == len("grüße".encode())
    assert storage.exists(uri)
    assert storage.exists(storage.join(root, "a"))


def test_what_is_missing_is_not_found(root):
    uri = storage.join(root, "missing")
    assert not storage.exists(uri)
    assert storage.list_files(uri) == []
    storage.delete(uri)
    for look in (storage.read_bytes, storage.read_versioned, storage.size, storage.checksum):
        with pytest.raises(FileNotFoundError):
            look(uri)


def test_a_second_look_sees_what_another_process_has_written_and_deleted(root, tmp_path):
    mine, theirs = storage.join(root, "run", "200", "done"), storage.join(root, "run", "300", "done")
    storage.write_text(mine, "")
    assert storage.list_files(storage.join(root, "run")) == [mine]
    _in_another_process(f"storage.write_text({theirs!r}, '')")
    assert storage.list_files(storage.join(root, "run")) == [mine, theirs]
    assert storage.exists(theirs)
    _in_another_process(f"storage.delete({theirs!r})")
    assert storage.list_files(storage.join(root, "run")) == [mine]
    assert not storage.exists(theirs)


def test_a_folder_does_not_list_its_namesake(root):
    storage.write_text(storage.join(root, "run1", "a"), "")
    storage.write_text(storage.join(root, "run10", "a"), "")
    assert storage.list_files(storage.join(root, "run1")) == [storage.join(root, "run1", "a")]


def test_a_pointer_moves_only_from_the_generation_that_was_read(root):
    pointer = storage.join(root, "latest")
    first = storage.write_text(pointer, "1", if_generation_match=0)
    assert storage.read_versioned(pointer) == (b"1", first)
    second = storage.write_text(pointer, "2", if_generation_match=first)
    assert second > first
    with pytest.raises(storage.ConflictError, match="somebody else"):
        storage.write_text(pointer, "3", if_generation_match=first)
    with pytest.raises(storage.ConflictError):
        storage.write_text(pointer, "3", if_generation_match=0)
    assert storage.read_versioned(pointer) == (b"2", second)


def test_of_many_that_add_one_at_the_same_time_no_addition_is_lost(root):
    counter = storage.join(root, "counter")
    storage.write_text(counter, "0")

    def add_one(_: int) -> None:
        while True:
            text, generation = storage.read_versioned(counter)
            try:
                storage.write_text(counter, str(int(text) + 1), if_generation_match=generation)
            except storage.ConflictError:
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_one, range(12)))
    assert storage.read_text(counter) == "12"


def test_of_two_runs_that_claim_a_folder_exactly_one_gets_it(root):
    folder = storage.join(root, "run")
    ready = threading.Barrier(4)

    def claim(number: int) -> bool:
        ready.wait()
        try:
            storage.claim_folder(folder, f"run {number}")
        except storage.ConflictError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(claim, range(4)))
    assert sum(won) == 1
    with pytest.raises(storage.ConflictError, match=f"already in use by: run {won.index(True)}"):
        storage.claim_folder(folder, "late run")


def test_a_folder_that_headrace_did_not_make_is_never_deleted(root):
    kept = [storage.join(root, "a.txt"), storage.join(root, "100", "damaged")]
    for uri in kept:
        storage.write_text(uri, "precious")
    with pytest.raises(storage.ConflictError, match="not made by Headrace"):
        storage.delete_folder(root)
    assert storage.list_files(root) == sorted(kept)


def test_a_claimed_folder_can_be_deleted_and_claimed_again(root):
    folder = storage.join(root, "run")
    storage.claim_folder(folder, "first")
    storage.write_text(storage.join(folder, "deep", "file"), "x")
    storage.delete_folder(folder)
    assert not storage.exists(folder)
    storage.claim_folder(folder, "second")


def test_a_log_keeps_its_lines_over_reopening(root):
    uri = storage.join(root, "log.jsonl")
    assert storage.read_lines(uri) == []
    first = storage.LineLog(uri)
    first.append("a")
    assert storage.read_lines(uri) == []
    first.append("ü")
    first.sync()
    second = storage.LineLog(uri)
    second.append("c")
    second.sync()
    second.sync()
    assert storage.read_lines(uri) == ["a", "ü", "c"]
    assert storage.list_files(root) == [uri]


def test_a_line_cut_by_a_crash_is_not_read_and_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"whole\ncut of")
    assert storage.read_lines(path) == ["whole"]
    log = storage.LineLog(path)
    log.append("next")
    log.sync()
    assert storage.read_lines(path) == ["whole", "next"]


def test_a_line_with_a_newline_is_refused(tmp_path):
    with pytest.raises(ValueError, match="newline"):
        storage.LineLog(tmp_path / "log").append("a\nb")


def test_a_folder_comes_back_as_it_went(root, tmp_path):
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "weights.bin").write_bytes(bytes(range(256)) * 100)
    (source / "empty").write_bytes(b"")
    uri = storage.join(root, "copy")
    storage.upload_folder(source, uri)
    target = tmp_path / "target"
    storage.download_folder(uri, target)
    assert (target / "deep" / "weights.bin").read_bytes() == bytes(range(256)) * 100
    assert sorted(path.name for path in target.iterdir()) == ["deep", "empty"]
    with pytest.raises(storage.ConflictError, match="there already"):
        storage.download_folder(uri, target)


def test_a_changed_or_missing_file_of_a_folder_is_found_and_nothing_is_left_behind(root, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("right")
    uri = storage.join(root, "copy")
    storage.upload_folder(source, uri)
    storage.write_text(storage.join(uri, "a"), "wrong")
    with pytest.raises(DataError, match="has changed"):
        storage.download_folder(uri, tmp_path / "target")
    storage.delete(storage.join(uri, "a"))
    with pytest.raises(DataError, match="missing"):
        storage.download_folder(uri, tmp_path / "target")
    assert not any(path.name.startswith((".target", "target")) for path in tmp_path.iterdir())


def test_a_copy_that_was_cut_short_is_not_taken_for_whole(root, tmp_path):
    storage.write_text(storage.join(root, "copy", "a"), "first of two")
    with pytest.raises(FileNotFoundError):
        storage.download_folder(storage.join(root, "copy"), tmp_path / "target")


def test_a_checksum_is_sha256(root):
    uri = storage.join(root, "abc")
    storage.write_text(uri, "abc")
    assert storage.checksum(uri) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    storage.write_text(path, "old")

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match="No space"):
        storage.write_text(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_full_is_said_with_the_file_that_found_no_room(tmp_path):
    program = """
import resource, signal, sys
from components import storage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
folder = sys.argv[1]
for write in (lambda: storage.write_bytes(f"{folder}/file", bytes(2000)), lambda: log.sync()):
    log = storage.LineLog(f"{folder}/log")
    log.append("x" * 2000)
    try:
        write()
    except storage.StorageError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    file, log = done.stdout.splitlines()
    assert file.startswith(f"{tmp_path}/file cannot be written: File too large (")
    assert log.startswith(f"{tmp_path}/log cannot be written: File too large (")
    assert log.endswith("make room and run the same command again")
    assert storage.read_lines(tmp_path / "log") == []
    assert not (tmp_path / "file").exists()


def test_a_claim_that_its_owner_gives_up_while_one_looks_is_free(root, monkeypatch):
    folder = storage.join(root, "run")
    storage.claim_folder(folder, "first")
    read = folders.read_text

    def vanished(uri):
        monkeypatch.setattr(folders, "read_text", read)
        storage.delete_folder(folder)
        return read(uri)

    monkeypatch.setattr(folders, "read_text", vanished)
    storage.claim_folder(folder, "second")
    assert storage.read_text(storage.join(folder, storage.OWN_MARKER)) == "second"


def test_a_copy_over_another_one_is_not_whole_until_its_end(root, tmp_path, monkeypatch):
    source, uri = tmp_path / "source", storage.join(root, "copy")
    source.mkdir()
    (source / "a").write_text("old")
    storage.upload_folder(source, uri)
    (source / "a").write_text("new")

    def look_before(path, target):
        with pytest.raises(FileNotFoundError):
            storage.read_checksums(uri)
        storage.upload(path, target)

    monkeypatch.setattr(folders, "upload", look_before)
    storage.upload_folder(source, uri)
    storage.download_folder(uri, tmp_path / "target")
    assert (tmp_path / "target" / "a").read_text() == "new"


def test_a_file_still_being_written_is_not_listed(tmp_path):
    (tmp_path / ".a.0123.partial").write_text("half")
    (tmp_path / "a").write_text("whole")
    assert storage.list_files(tmp_path) == [str(tmp_path / "a")]


def test_join_stays_below_its_base():
    assert storage.join("gs://bucket/run/", "a/b", "c") == "gs://bucket/run/a/b/c"
    assert storage.join("/", "tmp") == "/tmp"
    for part in ("../other", "/etc/passwd"):
        with pytest.raises(ValueError, match="must not"):
            storage.join("gs://bucket/run", part)


def test_another_scheme_is_named():
    with pytest.raises(ConfigError, match="s3://bucket/run"):
        storage.read_bytes("s3://bucket/run")


def test_local_work_does_not_import_the_google_client():
    script = (
        "import sys; from components import storage; storage.exists('/'); print('google.cloud.storage' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def _in_another_process(statement: str) -> None:
    subprocess.run([sys.executable, "-c", f"from components import storage; {statement}"], check=True)
