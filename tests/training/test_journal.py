"""Every event comes back as it was; what has survived a kill is a beginning of the story; a second writer is told."""

import json
from pathlib import Path

import pytest

from components import storage
from components.errors import CheckpointError
from components.training.history import (
    Closed,
    Consumed,
    Ended,
    Opened,
    Rejected,
    Resumed,
    Sampled,
    Stepped,
)
from components.training.journal import JOURNAL, Journal, read_journal
from components.training.journal_lines import from_line, to_line, version_runs
from components.training.ledger import Fate
from tests.training.stories import TASKS, sequence, trajectory

EVENTS = [
    Opened({"train": {"steps": 3, "x": None, "list": [1, "a"]}}, {"base": "/somewhere"}, {"base": "f00"}),
    Sampled(sequence("a", 1, attempt=2, turn=3), ((4, 10), (5, 1))),
    Ended(0, trajectory("a")),
    Ended(1, trajectory("b", 3, failed=True)),
    Closed(0, "a", 2),
    Rejected(1, ((0, 1),)),
    Consumed(0, ((0, 0), (1, 1)), Fate.TRAINED, ((2, 0),)),
    Stepped(7, "abc"),
    Resumed(7),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_as_it_was(event):
    line = to_line(event)
    assert "\n" not in line
    assert from_line(line, TASKS) == event


def test_a_prompt_that_repeats_what_came_before_is_not_written_again():
    first, second = json.loads(to_line(EVENTS[2]))["turns"]
    assert first["added_ids"] == [1, 2]
    assert second["added_ids"] == [9]


def test_versions_are_written_as_runs():
    assert version_runs((3, 3, 4, 3)) == ((3, 2), (4, 1), (3, 1))
    assert version_runs(()) == ()


def test_events_are_on_the_storage_in_their_order_after_a_flush(tmp_path):
    with Journal(str(tmp_path)) as journal:
        for event in EVENTS:
            journal.append(event)
        journal.flush()
        assert list(read_journal(str(tmp_path), TASKS)) == EVENTS


def test_a_line_that_a_kill_has_cut_does_not_count_and_the_next_process_goes_on_after_it(tmp_path):
    with Journal(str(tmp_path)) as journal:
        for event in EVENTS[:3]:
            journal.append(event)
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    for cut in range(len(whole) - 200, len(whole)):
        path.write_bytes(whole[:cut])
        assert list(read_journal(str(tmp_path), TASKS)) == EVENTS[:2]
    with Journal(str(tmp_path)) as journal:
        journal.append(EVENTS[8])
    assert list(read_journal(str(tmp_path), TASKS)) == [*EVENTS[:2], EVENTS[8]]


@pytest.mark.parametrize(
    "damage", ["{", "{}", '{"event": "flew"}', '{"event": "stepped", "version": "7"}', '{"event": "ended"}', "[]"]
)
def test_a_damaged_line_is_named_and_nothing_is_changed(tmp_path, damage):
    path = tmp_path / JOURNAL
    path.write_text(f"{to_line(EVENTS[0])}\n{damage}\n{to_line(EVENTS[8])}\n")
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=rf"{JOURNAL}:2 is no event"):
        list(read_journal(str(tmp_path), TASKS))
    assert path.read_bytes() == before


def test_a_task_that_is_gone_is_named(tmp_path):
    (tmp_path / JOURNAL).write_text(to_line(EVENTS[2]) + "\n")
    with pytest.raises(CheckpointError, match="KeyError: 'a'"):
        list(read_journal(str(tmp_path), {}))


def overtake(folder: str) -> None:
    """One process writes, another takes over, and the first writes again."""
    with Journal(folder) as old:
        old.append(EVENTS[0])
        old.flush()
        with Journal(folder) as new:
            new.append(EVENTS[8])
        old.append(EVENTS[7])
        old.flush()


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_writer_that_was_overtaken_is_told_and_adds_nothing(tmp_path, place, request):
    folder = str(tmp_path) if place == "disk" else f"{request.getfixturevalue('gcs')}/journal-run"
    with pytest.raises(storage.ConflictError, match="somebody else"):
        overtake(folder)
    assert list(read_journal(folder, TASKS)) == [EVENTS[0], EVENTS[8]]


def write_where_nothing_can_be_written(folder: Path) -> None:
    with Journal(str(folder)) as journal:
        (folder / JOURNAL).mkdir()
        journal.append(EVENTS[0])
        with pytest.raises(IsADirectoryError):
            journal.flush()
        journal.append(EVENTS[1])


def test_what_the_writer_died_of_is_raised_by_the_next_append(tmp_path):
    with pytest.raises(IsADirectoryError):
        write_where_nothing_can_be_written(tmp_path)
