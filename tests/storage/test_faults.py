"""Google's storage on a bad day: what is written is there, once; what is read is whole; what cannot be is said."""

import itertools
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from components import storage
from components.errors import ConfigError
from components.export import promotion
from components.storage import bucket, patience, sending, trying
from tests.storage.fault_proxy import KINDS, Faults, only
from tests.storage.gcs_contract import Answer, Request

CHUNK = 256 * 1024
CONTENT = bytes(range(256)) * 10 * 1024
FEW = {"work done, answer late": 1, "429 with Retry-After": 1, "connections refused": 1}
FEW |= {"upload damaged": 3, "upload forgotten": 3, "download damaged": 3}


@pytest.fixture
def proxy(google_storage, monkeypatch):
    """The server, of which each test makes a bad day of its own; nobody waits long."""
    short = patience.Patience(total=30.0, answer=0.5, first_pause=0.01, longest_pause=0.05)
    for name, value in vars(short).items():
        monkeypatch.setattr(patience.PATIENCE, name, value)
    yield google_storage
    google_storage.faults = Faults()


@pytest.fixture
def root(proxy) -> str:
    return f"gs://headrace/{uuid.uuid4().hex}"


@pytest.fixture
def chunked(monkeypatch):
    """Files go up in chunks of 512 KiB, as large files do in larger ones."""
    monkeypatch.setattr(sending, "CHUNK_BYTES", 2 * CHUNK)


def interfere(proxy, monkeypatch, when, what, *, at):
    """Do `what` before the server sees the request for which `when` holds for the `at`-th time."""
    perform, done, seen = proxy.contract.perform, threading.Event(), itertools.count(1)

    def interfered(request: Request) -> Answer:
        if not done.is_set() and when(request) and next(seen) == at:
            done.set()
            what()
        return perform(request)

    monkeypatch.setattr(proxy.contract, "perform", interfered)
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_a_run_does_survives_each_kind_of_fault(kind, proxy, root, tmp_path, chunked):
    large = tmp_path / "large"
    large.write_bytes(CONTENT)
    uri = {name: storage.join(root, name) for name in ("large", "small", "pointer", "log")}
    injected = 0
    for seed in range(2):
        proxy.faults = only(kind, seed=seed, most=FEW.get(kind, 100), rate=0.3, slow=0.01, late=0.6, away=0.1)
        storage.upload(large, uri["large"])
        storage.write_text(uri["small"], "whole")
        first = storage.write_text(uri["pointer"], "1", if_generation_match=0)
        second = storage.write_text(uri["pointer"], "2", if_generation_match=first)
        log = storage.LineLog(uri["log"])
        for number in range(4):
            log.append(f"line {number}")
            log.sync()
        assert storage.read_lines(uri["log"]) == [f"line {number}" for number in range(4)]
        assert storage.read_versioned(uri["pointer"]) == (b"2", second)
        assert storage.read_text(uri["small"]) == "whole"
        storage.download(uri["large"], tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == CONTENT
        assert storage.list_sizes(root) == {
            uri["large"]: len(CONTENT),
            uri["log"]: 28,
            uri["pointer"]: 1,
            uri["small"]: 5,
        }
        for each in uri.values():
            storage.delete(each)
        assert storage.list_files(root) == []
        injected += proxy.faults.counted[kind]
    assert injected > 0


def test_a_write_whose_answer_was_lost_is_known_for_ones_own_though_another_has_followed(proxy, root, monkeypatch):
    pointer = storage.join(root, "promoted")
    first = storage.write_text(pointer, "nobody", if_generation_match=0)
    followed: list[int] = []

    def follow() -> None:
        proxy.faults = Faults()
        _, mine = storage.read_versioned(pointer)
        followed.extend((mine, storage.write_text(pointer, "the other after me", if_generation_match=mine)))

    interfere(proxy, monkeypatch, lambda request: request.is_upload, follow, at=2)
    proxy.faults = only("work done, answer lost", when=lambda request: request.is_upload)
    assert storage.write_text(pointer, "me", if_generation_match=first) == followed[0]
    assert storage.read_versioned(pointer) == (b"the other after me", followed[1])


def test_of_two_that_move_a_pointer_at_once_one_is_told_who_was_faster(proxy, root):
    pointer = storage.join(root, "promoted")
    first = storage.write_text(pointer, "nobody", if_generation_match=0)
    ready = threading.Barrier(4)

    def move(number: int) -> str | None:
        ready.wait()
        try:
            storage.write_text(pointer, f"run {number}", if_generation_match=first)
        except storage.ConflictError as conflict:
            return str(conflict)
        return None

    for round_of in range(5):
        proxy.faults = Faults(seed=round_of, rate=0.3, late=0.6, away=0.05)
        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(move, range(4)))
        assert told.count(None) == 1
        winner, first = storage.read_versioned(pointer)
        assert winner.decode() == f"run {told.index(None)}"
        assert all("process" in each and f"wrote generation {first}" in each for each in told if each)


def test_of_two_runs_that_promote_at_once_one_is_promoted_and_the_other_is_told_by_whom(proxy, root, tmp_path):
    ready = threading.Barrier(2)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for file in promotion.ADAPTER_FILES:
            (tmp_path / name / file).write_text(f"{file} of {name}")

    def promote(name: str) -> str:
        ready.wait()
        try:
            return promotion.move_pointer(root, tmp_path / name, f"{root}/runs/{name}", expected=before).run
        except promotion.OvertakenError as overtaken:
            return f"overtaken: {overtaken}"

    for seed in range(3):
        proxy.faults = Faults(seed=seed, rate=0.25, weights=dict.fromkeys(FEW, 0.1), late=0.6, away=0.05)
        before = promotion.read_promotions(root)[1]
        with ThreadPoolExecutor(2) as pool:
            said = dict(zip(("one", "two"), pool.map(promote, ("one", "two")), strict=True))
        proxy.faults = Faults()
        history, _ = promotion.read_promotions(root)
        winner = history[0].run.rpartition("/")[2]
        loser = "two" if winner == "one" else "one"
        assert said[winner] == history[0].run
        assert said[loser].startswith(f"overtaken: since this run started, {history[0].run} was promoted")
        assert promotion.fingerprint_of(history[0].adapter) == promotion.fingerprint_of(tmp_path / winner)
        storage.delete(storage.join(root, promotion.POINTER))


def test_of_many_that_add_one_over_a_bad_network_no_addition_is_lost_or_made_twice(proxy, root):
    counter = storage.join(root, "counter")
    storage.write_text(counter, "0")
    proxy.faults = Faults(
        seed=1, rate=0.2, weights={"work done, answer late": 0.2, "connections refused": 0.2}, late=0.6
    )

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
    proxy.faults = Faults()
    assert storage.read_text(counter) == "12"


def test_a_read_that_was_cut_is_never_put_together_from_two_contents(proxy, root, monkeypatch):
    uri = storage.join(root, "file")
    storage.write_bytes(uri, b"a" * 100_000)
    rest = interfere(
        proxy,
        monkeypatch,
        lambda request: "range" in request.headers,
        lambda: storage.write_bytes(uri, b"b" * 100_000),
        at=1,
    )
    proxy.faults = only("answer cut")
    assert storage.read_bytes(uri) == b"b" * 100_000
    assert rest.is_set()


def test_a_read_that_was_cut_and_then_damaged_is_read_again(proxy, root, monkeypatch):
    uri = storage.join(root, "file")
    storage.write_bytes(uri, CONTENT)
    perform, damaged = proxy.contract.perform, []

    def damage_the_rest(request: Request) -> Answer:
        answer = perform(request)
        if "range" in request.headers:
            damaged.append(request)
            return Answer(answer.status, answer.body[:-1] + b"?", answer.headers)
        return answer

    monkeypatch.setattr(proxy.contract, "perform", damage_the_rest)
    proxy.faults = only("answer cut")
    assert storage.read_bytes(uri) == CONTENT
    assert damaged


def test_what_always_arrives_damaged_is_refused_and_leaves_no_file(proxy, root, tmp_path):
    uri = storage.join(root, "file")
    storage.write_text(uri, "precious")
    proxy.faults = only("download damaged", most=100)
    with pytest.raises(storage.StorageError, match="arrived damaged 4 times in a row"):
        storage.read_text(uri)
    with pytest.raises(storage.StorageError, match="arrived damaged"):
        storage.download(uri, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_a_deletion_whose_answer_was_lost_leaves_what_somebody_has_put_in_its_place(proxy, root, monkeypatch):
    uri = storage.join(root, "marker")
    storage.write_text(uri, "old")
    interfere(
        proxy,
        monkeypatch,
        lambda request: request.method == "DELETE",
        lambda: storage.write_text(uri, "of the next owner"),
        at=2,
    )
    proxy.faults = only("work done, answer lost", when=lambda request: request.method == "DELETE")
    storage.delete(uri)
    assert storage.read_text(uri) == "of the next owner"


def test_a_log_tells_a_lost_answer_from_another_writer(proxy, root, monkeypatch):
    uri = storage.join(root, "log")
    mine, other = storage.LineLog(uri), storage.LineLog(uri)
    mine.append("mine")
    mine.sync()
    composes = lambda request: request.path.endswith("/compose")  # noqa: E731
    proxy.faults = only("work done, answer lost", when=composes)
    mine.append("mine, once")
    mine.sync()
    assert proxy.faults.total == 1
    other.append("other")
    with pytest.raises(storage.ConflictError, match="is there already: somebody else"):
        other.sync()
    other = storage.LineLog(uri)
    other.append("other")
    other.sync()
    mine.append("mine, too late")
    with pytest.raises(storage.ConflictError, match=r"has 22 bytes, not 16: somebody else \(process \d+ on"):
        mine.sync()
    assert storage.read_lines(uri) == ["mine", "mine, once", "other"]
    assert storage.list_files(root) == [uri]


def test_a_bucket_that_is_away_for_a_while_is_waited_for(proxy, root):
    uri = storage.join(root, "file")
    proxy.go_away(0.7)
    storage.write_text(uri, "there")
    assert not proxy.is_away
    assert storage.read_text(uri) == "there"


@pytest.mark.parametrize("hurried", [False, True])
def test_a_bucket_that_stays_away_is_given_up_in_words(proxy, root, hurried, caplog):
    if hurried:
        threading.Timer(0.2, patience.hurry, (0.3,)).start()
    else:
        patience.PATIENCE.total = 0.3
    proxy.faults = only("503", most=100_000)
    with pytest.raises(
        storage.StorageError, match=r"file: the storage has failed for 0 s, last with: 503.*goes on from"
    ):
        storage.write_text(storage.join(root, "file"), "x")


def test_a_person_is_told_that_a_storage_fails(proxy, root, monkeypatch, caplog):
    monkeypatch.setattr(trying, "_QUIET_SECONDS", 0.1)
    proxy.go_away(0.4)
    storage.write_text(storage.join(root, "file"), "x")
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"{storage.join(root, 'file')}: the storage fails"
    ]


def test_the_server_is_given_the_time_that_it_asks_for(proxy, root, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(trying.time, "sleep", slept.append)
    proxy.faults = only("429 with Retry-After", retry_after=7)
    storage.write_text(storage.join(root, "file"), "x")
    assert 7.0 in slept


def test_a_bucket_that_does_not_exist_is_named_before_a_file_is_missed(proxy):
    uri = "gs://nobody-has-made-this/run"
    for work in (storage.read_bytes, storage.list_files, storage.LineLog, storage.delete, storage.exists):
        with pytest.raises(storage.StorageError, match="no bucket nobody-has-made-this; correct the URI, or make it"):
            work(uri)
    with pytest.raises(storage.StorageError, match="no bucket nobody-has-made-this"):
        storage.write_text(uri, "x")


@pytest.mark.parametrize("uri", ["gs://", "gs:///run", "gs://Bucket/run", "gs://a/run"])
def test_what_cannot_be_a_bucket_is_named(uri):
    with pytest.raises(ConfigError, match="is no name of a bucket"):
        storage.read_bytes(uri)


def test_missing_rights_are_named_with_what_to_do(proxy, root, monkeypatch):
    text = "trainer@project.iam.gserviceaccount.com does not have storage.objects.get access"
    body = json.dumps({"error": {"code": 403, "message": text}}).encode()
    refused = Answer(403, body, {"Content-Type": "application/json"})
    monkeypatch.setattr(proxy.contract, "perform", lambda request: refused)
    uri = storage.join(root, "file")
    for work in (storage.read_bytes, storage.list_files, storage.LineLog, storage.delete, storage.size):
        with pytest.raises(storage.AccessError, match=r"trainer@project.*roles/storage.objectUser") as told:
            work(uri)
        assert uri in str(told.value)
        assert isinstance(told.value, PermissionError)
    with pytest.raises(storage.AccessError, match="objectUser"):
        storage.write_text(uri, "x")


def test_parts_that_a_kill_has_left_are_removed_once_nobody_can_need_them(proxy, root, monkeypatch):
    uri = storage.join(root, "log")
    part = f"{uri}.0123.partial"
    storage.write_text(part, "half")
    storage.LineLog(uri)
    assert storage.size(part) == 4
    monkeypatch.setattr(bucket, "_ABANDONED", -bucket._ABANDONED)
    storage.LineLog(uri)
    with pytest.raises(FileNotFoundError):
        storage.size(part)
