"""YAML as people write it."""

import pytest

from components.errors import ConfigError
from pipeline.document import read_document, read_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-05", 2e-05),
        ("1e5", 100000.0),
        ("3E+2", 300.0),
        (".5", 0.5),
        ("-7", -7),
        ("0.00002", 0.00002),
        ("true", True),
        ("null", None),
        ("[1, 2e3]", [1, 2000.0]),
        ('["a","b"]', ["a", "b"]),
    ],
)
def test_numbers_words_and_lists_are_read_as_they_look(text: str, value: object) -> None:
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)
    assert read_document(f"key: {text}", "a.yaml").values == {"key": value}


@pytest.mark.parametrize("text", ["yes", "off", "010", "1:30", "1o0", "1_000", ".inf", "2026-01-01", "1e"])
def test_what_only_old_yaml_takes_for_something_else_stays_text(text: str) -> None:
    assert read_value(text) == text
    assert read_document(f"key: {text}", "a.yaml").values == {"key": text}


def test_a_key_knows_its_line() -> None:
    document = read_document("a: 1\nb:\n  c:\n    d: 2\n", "a.yaml")
    assert document.where("b.c.d") == "a.yaml:4: b.c.d"
    assert document.where("b.c.missing") == "a.yaml:3: b.c.missing"
    assert document.where("missing") == "a.yaml: missing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "must hold a mapping"),
        ("just words", "must hold a mapping"),
        ("a: 1\na: 2\n", r"a.yaml:2: a: the key stands twice, first in line 1"),
        ("a:\n  b: 1\n  b: 1\n", r"a.yaml:3: a.b: the key stands twice, first in line 2"),
        ("a: &x 1\nb: *x\n", r"a.yaml:2: this is not YAML: aliases"),
        ("a: [1, 2\nb: 3\n", r"a.yaml:2: this is not YAML"),
        ("a:\n\tb: 3\n", r"a.yaml:2: this is not YAML: a tab; YAML is indented by spaces \(got '\\tb: 3'\)"),
        ("a: " + 5000 * "[", "a.yaml: lists or mappings stand in each other hundreds of levels deep"),
        ("? [1]\n: 2\n", "a key must be text"),
        ("a: !!python/object:os.system x\n", "a value with this tag is not read"),
        ("a: 1\n---\nb: 2\n", "this is not YAML"),
    ],
)
def test_what_is_no_recipe_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_document(text, "a.yaml")


def test_all_doubled_keys_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_document("a: 1\na: 2\nb: 1\nb: 2\n", "a.yaml")
    assert [problem.where for problem in caught.value.problems] == ["a.yaml:2: a", "a.yaml:4: b"]
