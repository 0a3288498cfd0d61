"""The model that a run starts from: found, or made here and shown what calls look like."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from components.config import dump, load
from components.errors import ConfigError, WeightsError
from components.export.proof import own_reader
from components.model import weights
from components.model.base import Base
from components.model.base_artifact import read_base
from components.model.lora import LoraConfig, module_names
from components.model.peft import load_adapter, read_config
from components.rollout.player import EnvironmentConfig, Player, make_player
from components.rollout.prepare import write_tasks
from components.rollout.tokenizer import CharacterTokenizer, load_tokenizer
from components.training.initialise import InitConfig, TinyConfig, initialise
from components.training.tuning.demonstrations import demonstrate
from components.training.tuning.examples import Example
from components.training.tuning.warm_start import SupervisedConfig

ALPHABET = "0123456789+-*=[]\n"
OPTIONS = {"low": 2, "high": 9, "operators": ["+"], "train_tasks": 20, "test_tasks": 5, "worked_examples": 0}
WORLD = EnvironmentConfig(use="arithmetic", options=OPTIONS, renderer="compact")
TINY = TinyConfig(
    alphabet=ALPHABET,
    d_model=16,
    n_layers=1,
    n_heads=2,
    d_ff=32,
    max_positions=32,
    warm_start=SupervisedConfig(steps=25, rows=4, row_length=32),
)
SETTINGS = InitConfig(tiny=TINY, lora=LoraConfig(rank=2, alpha=4.0, targets=(".*q_proj",)))


def player(world: EnvironmentConfig = WORLD) -> Player:
    return make_player(world, CharacterTokenizer(ALPHABET))


def turns_of(example: Example) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, completion ids) of each turn."""
    ((ids, said),) = [(laid.ids.tolist(), laid.said.tolist()) for laid in example.laid]
    starts = [i for i in range(1, len(ids)) if said[i] and not said[i - 1]]
    ends = [next((i for i in range(start, len(ids)) if not said[i]), len(ids)) for start in starts]
    return [(ids[:start], ids[start:end]) for start, end in zip(starts, ends, strict=True)]


def text_of(example: Example) -> list[tuple[str, str]]:
    decode = CharacterTokenizer(ALPHABET).decode
    return [(decode(prompt), decode(completion)) for prompt, completion in turns_of(example)]


def start(folder: Path, settings: InitConfig, seed: int = 0) -> dict[str, object]:
    environment = json.dumps(dump(WORLD))
    write_tasks(section="{}", environment=environment, seed=seed, folder=str(folder / "tasks"))
    return initialise(
        section=json.dumps(dump(settings)),
        environment=environment,
        seed=seed,
        tasks=str(folder / "tasks"),
        base=str(folder / "base"),
        adapter=str(folder / "adapter"),
    )


def test_a_demonstration_is_what_the_policy_would_read_and_write() -> None:
    environment = player().make_environment()
    task = next(iter(environment.tasks("train")))
    called = asyncio.run(demonstrate(player(), task, with_tool=True))
    assert text_of(called) == [(f"{task.prompt}=", f"[{task.prompt}]\n")]
    at_once = asyncio.run(demonstrate(player(), task, with_tool=False))
    assert text_of(at_once) == [(f"{task.prompt}=", f"{task.answer}\n")]


def test_a_demonstration_goes_on_after_the_tool_where_the_environment_does() -> None:
    world = EnvironmentConfig(use="arithmetic", options={**OPTIONS, "answer": "text"}, renderer="compact")
    task = next(iter(player(world).make_environment().tasks("train")))
    call, answer = text_of(asyncio.run(demonstrate(player(world), task, with_tool=True)))
    assert call == (f"{task.prompt}=", f"[{task.prompt}]\n")
    assert answer == (f"{task.prompt}=[{task.prompt}]\n{task.answer}=", f"{task.answer}\n")


def test_a_tiny_model_is_made_with_its_tokenizer_and_a_fresh_adapter(tmp_path: Path) -> None:
    facts = start(tmp_path, SETTINGS)
    artifact = read_base(tmp_path / "base")
    model = weights.load(artifact.source)
    assert (model.architecture.d_model, model.architecture.vocab_size) == (16, 18)
    assert load_tokenizer(artifact.source).decode([1, 11, 12]) == "0+-"
    adapter = load_adapter(tmp_path / "adapter", model.architecture)
    assert module_names(adapter) == ("model.layers.0.self_attn.q_proj",)
    assert not np.any(adapter.layers[0]["q_proj"].b)
    assert read_config(tmp_path / "adapter").scale == 2.0
    assert facts["adapter_modules"] == 1
    assert facts["adapter_parameters"] == 2 * (16 + 16)
    assert facts["parameters"] == 18 * 16 + 4 * 16 * 16 + 3 * 16 * 32


def test_the_same_seed_makes_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    prints = [start(tmp_path / name, SETTINGS, seed)["fingerprint"] for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert prints[0] == prints[1] != prints[2]


def test_an_adapter_from_elsewhere_is_gone_on_with_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lora = LoraConfig(rank=4, alpha=8.0, rank_pattern={"q_proj": 2}, alpha_pattern={"q_proj": 3.0})
    first = start(tmp_path / "first", replace(SETTINGS, lora=lora))
    there = tmp_path / "first" / "adapter"
    second = start(tmp_path / "second", InitConfig(tiny=TINY, adapter=str(there)), seed=5)
    assert second["adapter_parameters"] == first["adapter_parameters"]
    assert replace(read_config(tmp_path / "second" / "adapter"), targets=lora.targets) == lora
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        ours, theirs = ((folder / name).read_text("latin-1") for folder in (tmp_path / "second" / "adapter", there))
        assert ours.replace("second", "first") == theirs
    assert f"goes on from {there}" in capsys.readouterr().err


def test_a_run_says_how_many_modules_each_target_binds_and_how_much_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path, replace(SETTINGS, lora=LoraConfig(rank=2, targets=(".*q_proj|.*mlp.*",))))
    said = capsys.readouterr().err
    assert "the LoRA target .*q_proj binds 1 modules" in said
    assert "the LoRA target .*mlp.* binds 3 modules" in said
    assert "binds 4 modules and trains 352 parameters" in said  # 2 x (16 + 16) and three times 2 x (16 + 32)


def test_an_adapter_and_settings_for_a_fresh_one_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="leave out lora, or adapter"):
        InitConfig(source="x", adapter="y", lora=LoraConfig(rank=2))


def test_a_demonstration_longer_than_a_row_is_told_with_its_task_and_the_key_to_raise(tmp_path: Path) -> None:
    short = replace(TINY, warm_start=SupervisedConfig(steps=25, rows=4, row_length=6))
    told = r"init_model.tiny.warm_start.row_length: is less than the 10 tokens of the demonstration of task \d\+\d, "
    with pytest.raises(ConfigError, match=told + "the longest; .* of the 40 played do not fit a row; raise it to 10"):
        start(tmp_path, replace(SETTINGS, tiny=short))


def test_without_a_warm_start_the_weights_are_random_and_no_demonstration_is_asked_for(tmp_path: Path) -> None:
    world = EnvironmentConfig(use="countdown", renderer="compact")  # It has none.
    section = {"tiny": {**dump(TINY), "warm_start": None, "alphabet": "".join(map(chr, range(32, 127))) + "\n"}}
    folders = {name: str(tmp_path / name) for name in ("tasks", "base", "adapter")}
    limits = json.dumps({"train_tasks": 2, "test_tasks": 2})
    write_tasks(section=limits, environment=json.dumps(dump(world)), seed=0, folder=folders["tasks"])
    initialise(section=json.dumps(section), environment=json.dumps(dump(world)), seed=0, **folders)
    spread = np.std(np.asarray(weights.load(read_base(tmp_path / "base").source).base.embedding))
    assert 0.01 < spread < 0.1


def test_weights_that_lie_elsewhere_are_pointed_to_and_not_copied(tmp_path: Path) -> None:
    start(tmp_path, SETTINGS)
    there = tmp_path / "base"
    start(tmp_path / "second", InitConfig(source=str(there), dtype="bfloat16"))
    assert [path.name for path in (tmp_path / "second" / "base").iterdir()] == ["base.json"]
    artifact = read_base(tmp_path / "second" / "base")
    assert (artifact.source, artifact.dtype) == (str(there), "bfloat16")


def test_weights_that_change_after_the_start_are_noticed(tmp_path: Path) -> None:
    start(tmp_path, SETTINGS)
    with (tmp_path / "base" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(WeightsError, match="are not those that init_model saw"):
        read_base(tmp_path / "base")


def test_an_output_that_is_gone_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="the output of init_model is gone"):
        read_base(tmp_path)


@pytest.mark.parametrize("given", [{}, {"source": "x", "tiny": dump(TINY)}])
def test_exactly_one_origin_is_given(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="give either source"):
        load(InitConfig, given)


def test_warm_starting_makes_what_was_shown_likelier(tmp_path: Path) -> None:
    longer = replace(TINY, warm_start=SupervisedConfig(steps=120, rows=8, row_length=32))
    start(tmp_path, replace(SETTINGS, tiny=longer))
    tuned = weights.load(str(tmp_path / "base"))
    fresh = weights.random_base(jax.random.key(0), tuned.architecture)
    task = next(iter(player().make_environment().tasks("train")))
    ((prompt, completion),) = turns_of(asyncio.run(demonstrate(player(), task, with_tool=True)))
    text, places = [*prompt, *completion], np.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)

    def surprise(base: Base) -> float:
        scores = own_reader(tuned.architecture, base, None, len(text))(text)[places]
        return float(np.mean(np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(places)), completion]))

    # A fresh model is as surprised as by a guess among 18 tokens.
    assert surprise(fresh) == pytest.approx(np.log(18), abs=0.1)
    assert surprise(tuned.base) < 0.8 * surprise(fresh)
