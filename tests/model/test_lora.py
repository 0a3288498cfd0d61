"""What an adapter binds, how strong it is, and how it is merged."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.errors import ConfigError
from components.model.architecture import Architecture
from components.model.lora import (
    LoraConfig,
    LoraPair,
    bound_modules,
    delta,
    init_adapter,
    module_names,
    target_counts,
)
from components.model.lora import parameter_count as count
from tests.model.tiny import CONFIGS

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "files" / "adapter_configs"
QWEN = Architecture.from_huggingface(CONFIGS["qwen3"])


@pytest.mark.parametrize(("name", "scale"), [("rank64-rslora", 8.0), ("rank64", None)])
def test_rslora_divides_alpha_by_the_root_of_the_rank(name: str, scale: float | None) -> None:
    path = SHARED / f"peft__lora__llama-3.2-3B-{name}.json"
    if not path.is_file():
        pytest.skip(f"the case bank is not beside the repository: no {path.name}")
    peft = json.loads(path.read_text())
    config = LoraConfig(rank=peft["r"], alpha=float(peft["lora_alpha"]), rslora=peft["use_rslora"])
    assert config.scale == (peft["lora_alpha"] / 64 if scale is None else scale)


def test_an_adapter_on_everything_binds_seven_modules_per_layer_under_their_huggingface_names() -> None:
    adapter = init_adapter(jax.random.key(0), QWEN, LoraConfig(rank=2))
    names = module_names(adapter)
    assert len(names) == 7 * QWEN.n_layers
    assert names[0] == "model.layers.0.self_attn.q_proj"
    assert names[-1] == "model.layers.2.mlp.down_proj"
    # q 32->48, k and v 32->24, o 48->32, gate and up 32->48, down 48->32; rank 2, three layers.
    assert count(adapter) == 3 * 2 * (80 + 56 + 56 + 80 + 80 + 80 + 80)


def test_patterns_give_a_module_its_own_rank_and_alpha_and_the_rest_keep_the_default() -> None:
    config = LoraConfig(
        rank=16, alpha=32.0, targets=(r".*\.(q|v)_proj",), rank_pattern={"q_proj": 4}, alpha_pattern={"q_proj": 4.0}
    )
    pairs = init_adapter(jax.random.key(0), QWEN, config).layers[1]
    q_proj, v_proj = pairs["q_proj"], pairs["v_proj"]
    assert (q_proj.a.shape, q_proj.b.shape, q_proj.scale) == ((32, 4), (4, 48), 1.0)
    assert (v_proj.a.shape, v_proj.b.shape, v_proj.scale) == ((32, 16), (16, 24), 2.0)


@pytest.mark.parametrize(
    ("key", "bound"),
    [
        ("q_proj", True),
        ("self_attn.q_proj", True),
        ("^model.layers.0.*q_proj", True),
        ("(k|q)_proj", True),
        ("k_proj|q_proj", True),
        ("_proj", False),  # a suffix starts after a dot
        ("layers.1.*q_proj", False),
        ("model.layers.0", False),
    ],
)
def test_a_pattern_matches_the_end_of_a_name_as_in_peft(key: str, bound: bool) -> None:
    config = LoraConfig(rank=16, alpha=32.0, rslora=True, rank_pattern={key: 4})
    assert config.rank_of("model.layers.0.self_attn.q_proj") == (4 if bound else 16)
    assert config.scale_of("model.layers.0.self_attn.q_proj") == (16.0 if bound else 8.0)


def test_of_the_patterns_that_match_the_first_counts() -> None:
    config = LoraConfig(alpha_pattern={"v_proj": 1.0, "layers.0.self_attn.q_proj": 2.0, "q_proj": 3.0}, rank=1)
    scales = [config.scale_of(f"model.layers.{layer}.self_attn.q_proj") for layer in (0, 1)]
    assert scales == [2.0, 3.0]


@pytest.mark.parametrize("pattern", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize("key", ["q_einsum", "k_proj"])
def test_a_rank_or_alpha_pattern_that_no_bound_module_has_is_an_error(pattern: str, key: str) -> None:
    config = LoraConfig(targets=(".*q_proj",), **{pattern: {"q_proj": 4, key: 8}})
    with pytest.raises(ConfigError) as raised:
        init_adapter(jax.random.key(0), QWEN, config)
    assert [(problem.where, problem.value) for problem in raised.value.problems] == [(pattern, key)]


def test_a_pattern_that_is_no_regular_expression_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigError, match="rank_pattern"):
        LoraConfig(rank_pattern={"(q_proj": 4})


def test_every_alternative_of_a_target_counts_its_modules() -> None:
    config = LoraConfig(targets=(".*gate_proj|.*layers.0.mlp.*_proj", ".*q_proj"))
    assert target_counts(QWEN, config) == {".*gate_proj": 3, ".*layers.0.mlp.*_proj": 3, ".*q_proj": 3}


def test_a_starts_uniform_within_one_by_the_root_of_its_inputs_and_b_at_zero() -> None:
    pair = init_adapter(jax.random.key(0), QWEN, LoraConfig(rank=8)).layers[0]["down_proj"]
    assert pair.a.shape == (48, 8)
    assert 0.95 * 48**-0.5 < jnp.abs(pair.a).max() <= 48**-0.5
    assert pair.b.shape == (8, 32)
    assert not pair.b.any()


def test_a_bound_module_starts_the_same_whatever_else_is_bound() -> None:
    everything = init_adapter(jax.random.key(0), QWEN, LoraConfig(rank=2))
    some = init_adapter(jax.random.key(0), QWEN, LoraConfig(rank=2, targets=(r".*layers\.1\..*v_proj",)))
    assert module_names(some) == ("model.layers.1.self_attn.v_proj",)
    np.testing.assert_array_equal(some.layers[1]["v_proj"].a, everything.layers[1]["v_proj"].a)


def test_alternatives_that_bind_nothing_are_each_named() -> None:
    target = ".*q_einsum|.*kv_einsum|.*gate_proj|.*down_proj|.*up_proj|.*attn_vec_einsum"
    with pytest.raises(ConfigError) as raised:
        init_adapter(jax.random.key(0), QWEN, LoraConfig(targets=(target,)))
    assert [problem.value for problem in raised.value.problems] == [".*q_einsum", ".*kv_einsum", ".*attn_vec_einsum"]
    assert "model.layers.0.self_attn.q_proj" in str(raised.value)


@pytest.mark.parametrize("targets", [(".*does_not_exist",), (".*", ".*does_not_exist"), (), ("(",)])
def test_a_pattern_that_cannot_work_is_an_error_before_training(targets: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="targets"):
        init_adapter(jax.random.key(0), QWEN, LoraConfig(targets=targets))


def test_bars_inside_brackets_do_not_split_a_pattern() -> None:
    pattern = r".*\.(q_proj|v_proj)|.*[k|x]_proj"
    bound = bound_modules(QWEN, LoraConfig(targets=(pattern,)))
    assert len(bound) == 3 * QWEN.n_layers
    assert bound["model.layers.0.self_attn.q_proj"] == (r".*\.(q_proj|v_proj)",)
    assert bound["model.layers.0.self_attn.k_proj"] == (".*[k|x]_proj",)


@pytest.mark.parametrize(
    ("pattern", "idle"),
    [
        (r".*\.(q_proj|q_einsum)", "q_einsum"),
        (r".*\.self_attn\.(?:k_proj|kv_einsum)|.*gate_proj", "kv_einsum"),
        (r".*layers\.(0|1|7)\.mlp\.(gate|up)_proj", "7"),
        (r".*((q|einsum)_proj|o_proj)", "einsum"),
        (r".*(q_proj|lm_head)", "lm_head"),
    ],
)
def test_an_alternative_inside_brackets_that_binds_nothing_is_named(pattern: str, idle: str) -> None:
    with pytest.raises(ConfigError, match=rf"has an alternative that binds no module of .*: {idle};"):
        init_adapter(jax.random.key(0), QWEN, LoraConfig(targets=(pattern,)))


@pytest.mark.parametrize(
    "pattern", [r".*\.(?!x|q_proj|gate_proj)\w+", r".*[|q]_proj", r".*\.(q|k)_proj", r"(.*\.)?(up|down)_proj"]
)
def test_an_exclusion_a_set_and_alternatives_that_all_bind_are_left_alone(pattern: str) -> None:
    assert bound_modules(QWEN, LoraConfig(targets=(pattern,)))


def test_a_rank_pattern_of_which_one_half_matches_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"rank_pattern: matches the end of no module .*\(kv_einsum\)"):
        init_adapter(jax.random.key(0), QWEN, LoraConfig(rank_pattern={"(q_proj|kv_einsum)": 4}))


@pytest.mark.parametrize(
    ("family", "target", "named"),
    [
        ("qwen3_moe", ".*", r"model\.layers\.0\.mlp\.gate and 37 more"),
        ("qwen3_moe", r".*(q|gate|up|down)_proj", r"model\.layers\.0\.mlp\.experts\.0\.gate_proj and 35 more"),
        ("qwen3_moe", r".*\.experts\..*", r"model\.layers\.0\.mlp\.experts\.0\.gate_proj and 35 more"),
        ("qwen3_moe", r".*\.(q_proj|mlp\.gate)", r"model\.layers\.0\.mlp\.gate and 1 more"),
        ("gemma4_experts", ".*_proj", r"model\.layers\.0\.experts\.gate_up_proj and 3 more"),
        ("gemma4_experts", r".*(q_proj|router\.proj)", r"model\.layers\.0\.router\.proj and 1 more"),
    ],
)
def test_a_target_that_names_experts_beside_others_is_an_error(family: str, target: str, named: str) -> None:
    architecture = Architecture.from_huggingface(CONFIGS[family])
    with pytest.raises(ConfigError, match=rf"names experts or routers, which take no adapter \({named}\)"):
        bound_modules(architecture, LoraConfig(targets=(target,)))


def test_what_is_no_expert_is_bound_in_a_model_that_has_them() -> None:
    architecture = Architecture.from_huggingface(CONFIGS["qwen3_moe"])
    names = bound_modules(architecture, LoraConfig(targets=(r".*self_attn.*", r".*\.mlp\.(gate|up|down)_proj")))
    assert len(names) == 4 * 3 + 3  # the attention of three layers, and the MLP of the one without experts
    assert [name for name in names if ".mlp." in name] == [
        f"model.layers.1.mlp.{part}_proj" for part in ("gate", "up", "down")
    ]


def test_a_pair_adds_scale_times_a_times_b() -> None:
    pair = LoraPair(
        a=jnp.asarray([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]]), b=jnp.asarray([[1.0, 0.0], [0.0, 2.0]]), scale=0.5
    )
    np.testing.assert_array_equal(delta(pair), [[0.5, 2.0], [0.0, 1.0], [1.5, 0.0]])
    assert delta(pair).dtype == np.float32
