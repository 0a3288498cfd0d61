"""`headrace env`: an episode in the terminal, with its tokens by mask and its reward with reasons."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from components.environments.environment import BUILT_IN, environment_factory
from components.environments.tasks.splits import Solved
from components.rollout.byte_tokenizer import ByteTokenizer
from components.rollout.tokenizer import Tokenizer
from pipeline.cli import main
from pipeline.recipe import load_recipe
from tests.test_readme import block

BYTES = ["--tokenizer", "bytes"]
FEW = ["--option", "train_tasks=5", "--option", "test_tasks=2"]
COUNTDOWN = ["countdown", *FEW]


def tried(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, dict[str, object]]:
    """Exit code, what was shown, and the figures."""
    code = main(["env", "try", *arguments, "--json"])
    shown, _, figures = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    return code, shown, json.loads(figures)


def test_the_gold_solution_is_played_through_renderer_and_tools(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, figures = tried(capsys, "arithmetic", "--option", "answer=text", "--split", "test", *BYTES)
    assert (code, figures["outcome"], figures["reward"], figures["turns"], figures["tool_calls"]) == (
        0,
        "finished",
        1.0,
        2,
        1,
    )
    assert "--- turn 2: writes" in shown
    assert "assistant calls calculator" in shown
    assert "<tool_response>" in shown
    assert shown.endswith("is right")


def test_without_colour_sampled_tokens_stand_in_brackets_and_with_it_they_are_painted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "said.txt").write_text("4é!")
    arguments = [*COUNTDOWN, "--option", "worked_examples=0", "--policy", str(tmp_path / "said.txt"), *BYTES]
    _, shown, figures = tried(capsys, *arguments)
    assert "[4][][é][!][<|im_end|>]" in shown
    assert "\x1b" not in shown
    assert figures["sampled_tokens"] == 5
    _, shown, _ = tried(capsys, *arguments, "--color", "always")
    assert "\x1b[30;42m4\x1b[0m" in shown
    assert "\x1b[2mNumbers:" in shown


def test_what_a_script_says_wrongly_is_told_with_a_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "said.jsonl"
    script.write_text('{"content": "sideways"}\n{"content": "\\u001b[2Jleft"}\n{"content": "left"}\n')
    code, shown, figures = tried(
        capsys, "frozen_lake", "--policy", str(script), *FEW, "--option", "max_moves=6", *BYTES
    )
    assert "You stay where you are: it says no direction" in shown
    assert "\x1b" not in shown
    if figures["outcome"] == "failed":
        assert (code, figures["failure"]) == (1, "the script ends after 3 messages, and the episode goes on")
    else:
        assert figures["reward_reasons"]["reward"].startswith("fell into a hole")


def test_a_person_plays_on_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("I think so:\n1+1\n\n"))
    _, shown, figures = tried(capsys, *COUNTDOWN, "--policy", "human", *BYTES)
    assert "assistant: I think so:\n1+1" in shown
    assert figures["reward"] == 0.0
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, shown, figures = tried(capsys, *COUNTDOWN, "--policy", "human", *BYTES)
    assert (code, figures["failure"]) == (1, "the person at the terminal gave up")


SCRIPT = """<tool_call>
{"name": "open_box", "arguments": {"number": 1}}
</tool_call>
---
3201
"""


def test_the_readmes_environment_is_tried(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vault.py").write_text(block("python"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "vault", raising=False)
    from importlib import import_module

    code_in_box = import_module("vault").CODES[1]
    (tmp_path / "said.txt").write_text(SCRIPT.replace("3201", code_in_box))
    code, shown, figures = tried(capsys, "vault:Vault", "--policy", "said.txt", *BYTES)
    assert (code, figures["reward_parts"]) == (0, {"code": 0.8, "brief": 0.2})
    assert f"tool open_box: the code is {code_in_box}" in shown
    assert main(["env", "try", "vault:Vault", "--policy", "gold", *BYTES]) == 2
    assert "has no method solution" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "vault")


@pytest.mark.parametrize("name", ["countdown", "multi_hop"])
def test_the_recipes_of_shipped_tasks_name_real_options_and_hold_their_episodes(name: str) -> None:
    recipe = load_recipe(name)
    environment = environment_factory(recipe.environment.use, recipe.environment.options)()
    assert isinstance(environment, Solved)
    longest = recipe.environment.limits.max_context
    held = (recipe.train.engine.capacity, recipe.evaluate.engine.capacity, recipe.train.packing.row_length)
    assert min(held) >= longest


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*COUNTDOWN, "--task", "9999"], "has 5 tasks, counted from 0"),
        (["countdown", "--option", "nmbers=3"], "numbers"),
        (["nowhere"], "module:Class"),
        (["countdown", "--isolation", "process"], "runs no code of a model"),
    ],
)
def test_what_cannot_be_tried_is_told(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main(["env", "try", *arguments, *BYTES]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("held", "told"),
    [(b"\xff\xfe", "not UTF-8 at byte 0"), (b"", "holds no message"), (b'{"contents": "4"}', "neither content nor")],
)
def test_a_file_that_is_no_script_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, held: bytes, told: str
) -> None:
    (tmp_path / "script").write_bytes(held)
    assert main(["env", "try", *COUNTDOWN, "--policy", str(tmp_path / "script"), *BYTES]) != 0
    assert told in capsys.readouterr().err


def test_every_environment_that_comes_with_headrace_is_listed_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == sorted(BUILT_IN)
    assert all(len(line.split()) > 5 for line in lines[::2])


def test_bytes_are_a_tokenizer(tmp_path: Path) -> None:
    tokenizer: Tokenizer = ByteTokenizer()
    assert isinstance(tokenizer, Tokenizer)
    text = "Zürich <|im_end|> 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    end = tokenizer.token_id("<|im_end|>")
    assert end not in tokenizer.encode(text)
    assert tokenizer.decode([end, *tokenizer.encode("a")]) == "<|im_end|>a"
    assert (tokenizer.token_id("a"), tokenizer.token_id("ü"), tokenizer.vocab_size) == (97, None, 259)
    assert tokenizer.save(tmp_path).is_file()


def test_an_id_that_stands_twice_is_told_as_a_run_would_tell_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "try", "tests.pipeline.test_doctor:OneIdArithmetic", "--option", "answer=text", *BYTES]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "the id stands twice" in line]
    assert len(told) == 3
    assert told[0].startswith("warning: a run would refuse this: tests.pipeline.test_doctor:OneIdArithmetic, task 1 of")


def test_a_pipe_gets_plain_text(tmp_path: Path) -> None:
    """As a process of its own: no colour where nobody looks, and the exit code of an episode that ended well."""
    command = [sys.executable, "-m", "pipeline.cli", "env", "try", *COUNTDOWN, *BYTES]
    played = subprocess.run(command, capture_output=True, text=True, check=False)
    assert played.returncode == 0, played.stderr
    assert "\x1b" not in played.stdout
    assert "\nreward 1\n" in played.stdout
