"""A corpus becomes an index once, whole, and is only read; queries of any form give passages or a short reason."""

import asyncio
import json

import pytest

from components.environments import search
from components.environments.search import Passage, document_tool, open_index, search_tool
from components.environments.tools import ToolError
from components.errors import DataError

DOCUMENTS = [
    {"title": "Rhine", "text": "The Rhine is a river that rises in the Alps and ends in the North Sea."},
    {"title": "Alps", "text": "The Alps are mountains; several rivers of Europe rise there."},
    {"title": "Zürich", "text": "Zürich lies at a lake.\u2028It has a harbour."},
    {"text": "A document without a title speaks of volcanoes."},
    {"title": "Long", "text": f"{'filler ' * 300} the needle lies here {'filler ' * 300}"},
]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(each, ensure_ascii=False) for each in DOCUMENTS) + "\n\n", encoding="utf-8")
    return str(path)


def test_the_best_documents_come_first_and_words_match_by_their_stems(corpus):
    index = open_index(corpus)
    assert [hit.title for hit in index.search("Which river is rising?")] == ["Rhine", "Alps"]
    assert [hit.title for hit in index.search("ZURICH harbours")] == ["Zürich"]
    assert index.search("volcano") == [Passage("", DOCUMENTS[3]["text"])]
    assert index.search("dinosaur") == []
    assert len(index.search("rise", 1)) == 1


def test_of_a_long_document_the_part_around_the_words_is_shown(corpus):
    (hit,) = open_index(corpus).search("needle")
    assert "the needle lies here" in hit.text
    assert len(hit.text.split()) < 70


def test_the_tools_show_titles_passages_and_whole_documents(corpus):
    index = open_index(corpus)
    find, read = search_tool(index, results=2), document_tool(index)
    text = asyncio.run(find.call({"query": "rhine river"})).text
    assert text == f"[1] Rhine\n{DOCUMENTS[0]['text']}\n\n[2] Alps\n{DOCUMENTS[1]['text']}"
    assert asyncio.run(find.call({"query": "dinosaur"})).text == "nothing found"
    assert asyncio.run(read.call({"title": " rhine"})).text == DOCUMENTS[0]["text"]
    missing = asyncio.run(read.call({"title": "River Rhine"}))
    assert missing.text.startswith('error: no document is called "River Rhine"; there are: Rhine')
    assert missing.is_error


@pytest.mark.parametrize(
    "query",
    ['"', "river OR", "NEAR(river, 2", "title:", "^river*", "river AND NOT (", "{a b}:", "_", "\x00", "😀 river"],
)
def test_no_query_is_read_as_a_language_of_its_own(corpus, query):
    index = open_index(corpus)
    if any(character.isalnum() or character == "_" for character in query):
        assert isinstance(index.search(query), list)
    else:
        with pytest.raises(ToolError, match="the query has no words"):
            index.search(query)


def test_a_query_of_a_megabyte_takes_no_longer_than_a_short_one(corpus):
    assert open_index(corpus).search("rhine " * 200_000)[0].title == "Rhine"


def test_an_index_is_built_once_for_its_content(corpus, tmp_path, monkeypatch):
    folder = tmp_path / "indexes"
    first = open_index(corpus, str(folder))
    assert [path.name for path in folder.iterdir()] == [first.path.name]
    monkeypatch.setattr(search, "_build", lambda *arguments: pytest.fail("built again"))
    open_index.cache_clear()
    assert open_index(corpus, str(folder)).path == first.path


def test_another_content_is_another_index(corpus, tmp_path):
    first = open_index(corpus, str(tmp_path / "indexes"))
    with open(corpus, "a", encoding="utf-8") as file:
        file.write(json.dumps({"title": "New", "text": "dinosaur"}) + "\n")
    open_index.cache_clear()
    second = open_index(corpus, str(tmp_path / "indexes"))
    assert second.path != first.path
    assert [hit.title for hit in second.search("dinosaur")] == ["New"]
    assert first.search("dinosaur") == []


def test_rows_that_cannot_be_used_are_all_named_and_leave_no_index(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"title": "a"}\n[1]\n{"text": "ok"}\nnot json\n{"text": "\xff"}\n{"text": "b", "title": 7}\n')
    folder = tmp_path / "indexes"
    with pytest.raises(DataError) as caught:
        open_index(str(path), str(folder))
    places = [problem.where.removeprefix(str(path)) for problem in caught.value.problems]
    assert places == [":1: text", ":2", ":4", ":5", ":6: title"]
    assert list(folder.iterdir()) == []


def test_an_empty_or_missing_corpus_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no documents"):
        open_index(str(tmp_path / "empty.jsonl"))
    with pytest.raises(DataError, match="no such file"):
        open_index(str(tmp_path / "none.jsonl"))


def test_other_names_of_fields_can_be_given(tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"name": "Rhine", "contents": "A river."}) + "\n")
    assert open_index(str(path), title="name", text="contents").search("river") == [Passage("Rhine", "A river.")]
