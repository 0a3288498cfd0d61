"""A PEFT directory is read whole or refused by name, and written so that peft itself reads it."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from components import storage
from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.huggingface import huggingface_config
from components.model.lora import LoraConfig, init_adapter, named_pairs
from components.model.peft import CONFIG_FILE, WEIGHTS_FILE, load_adapter, open_adapter, read_config, save_adapter

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "files" / "adapter_configs"

ARCHITECTURE = Architecture.from_huggingface(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 17,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 12,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "eos_token_id": 2,
    }
)


def random_adapter(config: LoraConfig):
    adapter = init_adapter(jax.random.key(0), ARCHITECTURE, config)
    leaves, tree = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(
        tree, [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    )


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(rank=3, alpha=6.0),
        LoraConfig(rank=4, alpha=8.0, rslora=True),
        LoraConfig(rank=2, targets=(r"model\.layers\.1\..*",)),
        LoraConfig(rank=4, alpha=8.0, rank_pattern={"q_proj": 2, "layers.1.mlp.*": 1}, alpha_pattern={"q_proj": 2.0}),
        LoraConfig(rank=4, alpha=8.0, rslora=True, rank_pattern={"^model.layers.0.*q_proj": 1}),
    ],
)
def test_an_adapter_survives_the_disk_bit_for_bit_with_its_scale(tmp_path, config):
    adapter = random_adapter(config)
    save_adapter(tmp_path, adapter, config, base_name="tiny")
    again = load_adapter(tmp_path, ARCHITECTURE)
    assert replace(read_config(tmp_path), targets=config.targets) == config
    assert jax.tree.structure(again) == jax.tree.structure(adapter)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(adapter), jax.tree.leaves(again), strict=True))


@pytest.mark.parametrize(("name", "scale"), [("rank64-rslora", 8.0), ("rank64", 2.0)])
def test_the_scale_of_a_real_configuration_is_read(tmp_path, name, scale):
    source = CASES / f"peft__lora__llama-3.2-3B-{name}.json"
    if not source.exists():
        pytest.skip("the shared case bank does not lie beside this clone")
    (tmp_path / CONFIG_FILE).write_text(source.read_text())
    assert read_config(tmp_path).scale == scale


def test_the_real_configurations_load_or_are_refused_by_the_field_that_makes_them_another_method(tmp_path):
    sources = sorted(CASES.glob("*.json"))
    if not sources:
        pytest.skip("the shared case bank does not lie beside this clone")
    refused = {"rank32-kasa": "kasa_config", "rank32-mica": "init_lora_weights = 'mica'"}
    for source in sources:
        (tmp_path / CONFIG_FILE).write_text(source.read_text())
        name = source.stem.partition("3B-")[2]
        if name in refused:
            with pytest.raises(WeightsError, match=refused[name]):
                read_config(tmp_path)
        else:
            settings = json.loads(source.read_text())
            config = read_config(tmp_path)
            assert (config.rank, config.alpha) == (settings["r"], settings["lora_alpha"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "ADALORA"),
        ("peft_type", None),
        ("use_dora", True),
        ("use_qalora", True),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("alora_invocation_tokens", [1]),
        ("loftq_config", {"loftq_bits": 4}),
        ("init_lora_weights", "olora"),
        ("eva_config", {"rho": 2.0}),
        ("kasa_config", {"beta": 1}),
        ("init_lora_weights", "pissa_niter_4"),
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 1]]),
        ("something_new", 3),
        ("r", None),
        ("r", 0),
        ("lora_alpha", 0),
        ("lora_alpha", "32"),
        ("rank_pattern", {"q_proj": "4"}),
        ("alpha_pattern", {"q_proj": 0}),
        ("target_modules", "(q_proj"),
    ],
)
def test_what_would_be_half_read_is_refused_by_field_name(tmp_path, field, value):
    save_adapter(tmp_path, random_adapter(LoraConfig(rank=2)), LoraConfig(rank=2), base_name="tiny")
    settings = json.loads((tmp_path / CONFIG_FILE).read_text())
    settings[field] = value
    if value is None:
        del settings[field]
    (tmp_path / CONFIG_FILE).write_text(json.dumps(settings))
    with pytest.raises(WeightsError, match=f"{field}"):
        load_adapter(tmp_path, ARCHITECTURE)


def test_a_configuration_as_peft_writes_it_today_is_read(tmp_path):
    peft = pytest.importorskip("peft")
    written = peft.LoraConfig(r=16, lora_alpha=32, rank_pattern={"q_proj": 4}, alpha_pattern={"q_proj": 4})
    written.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert [config.rank_of(name) for name in ("x.q_proj", "x.v_proj")] == [4, 16]
    assert [config.scale_of(name) for name in ("x.q_proj", "x.v_proj")] == [1.0, 2.0]


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_an_adapter_is_opened_wherever_it_lies(tmp_path, where, request):
    config = LoraConfig(rank=4, rank_pattern={"q_proj": 2})
    adapter = random_adapter(config)
    save_adapter(tmp_path, adapter, config, base_name="tiny")
    place = str(tmp_path) if where == "folder" else request.getfixturevalue("gcs") + "/adapter"
    if where == "bucket":
        storage.upload_folder(tmp_path, place)
    opened, settings = open_adapter(place, ARCHITECTURE)
    assert settings == config
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(adapter), jax.tree.leaves(opened), strict=True))


def test_an_adapter_that_is_not_there_is_named(tmp_path, gcs):
    with pytest.raises(WeightsError, match=r"nowhere/adapter_config\.json does not exist"):
        open_adapter(f"{gcs}/nowhere", ARCHITECTURE)
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    with pytest.raises(WeightsError, match="only safetensors are read"):
        open_adapter(str(tmp_path), ARCHITECTURE)


def test_every_field_that_peft_knows_today_is_either_understood_or_refused(tmp_path):
    peft = pytest.importorskip("peft")
    save_adapter(tmp_path, random_adapter(LoraConfig(rank=2)), LoraConfig(rank=2), base_name="tiny")
    settings = json.loads((tmp_path / CONFIG_FILE).read_text())
    unread = {"corda_config", "lora_ga_config", "velora_config", "monteclora_config", "use_bdlora", "arrow_config"}
    for field in unread | {"kasa_config", "ensure_weight_tying", "trainable_token_indices", "layer_replication"}:
        assert field in peft.LoraConfig.__dataclass_fields__
        (tmp_path / CONFIG_FILE).write_text(json.dumps({**settings, field: {"on": True}}))
        with pytest.raises(WeightsError, match=field):
            read_config(tmp_path)


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        ({}, r"model\.layers\.1\.mlp\.up_proj and 0 more"),
        ({"target_modules": "all-linear"}, r"model\.layers\.1\.mlp\.up_proj and 0 more"),
        ({"target_modules": r".*\.(q|up)_proj"}, r"model\.layers\.1\.mlp\.up_proj and 0 more"),
        ({"target_modules": ["q_proj"]}, None),
        ({"target_modules": ["proj"]}, None),  # the end of a name, from a dot on
        ({"target_modules": None}, None),
        ({"exclude_modules": ["layers.1.mlp.up_proj"]}, None),
        ({"exclude_modules": r".*\.up_proj"}, None),
        ({"layers_to_transform": 0}, None),
        ({"layers_to_transform": [0, 1]}, r"model\.layers\.1\.mlp\.up_proj and 0 more"),
    ],
)
def test_a_module_that_the_configuration_targets_and_the_weights_lack_is_named(tmp_path, settings, lost):
    config = LoraConfig(rank=2)
    save_adapter(tmp_path, random_adapter(config), config, base_name="tiny")
    tensors = load_file(tmp_path / WEIGHTS_FILE)
    save_file(
        {key: each for key, each in tensors.items() if "layers.1.mlp.up_proj" not in key}, tmp_path / WEIGHTS_FILE
    )
    change(tmp_path, **settings)
    if lost is None:
        assert "up_proj" not in load_adapter(tmp_path, ARCHITECTURE).layers[1]
    else:
        with pytest.raises(WeightsError, match=rf"target_modules names {lost}"):
            load_adapter(tmp_path, ARCHITECTURE)


def change(folder, **settings):
    path = folder / CONFIG_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.mark.parametrize("prefix", ["model.language_model", "language_model.model"])
def test_an_adapter_of_the_language_model_inside_a_multimodal_one_is_read(tmp_path, prefix):
    config = LoraConfig(rank=2)
    adapter = random_adapter(config)
    save_adapter(tmp_path, adapter, config, base_name="tiny")
    tensors = load_file(tmp_path / WEIGHTS_FILE)
    renamed = {key.replace("model.model.layers", f"model.{prefix}.layers"): each for key, each in tensors.items()}
    assert renamed.keys().isdisjoint(tensors)
    save_file(renamed, tmp_path / WEIGHTS_FILE)
    same(load_adapter(tmp_path, ARCHITECTURE), adapter)
    save_file({**renamed, **tensors}, tmp_path / WEIGHTS_FILE)
    for _ in range(10):
        with pytest.raises(
            WeightsError, match=rf"'base_model\.model\.{prefix}.* are both the lora_A of model\.layers\.0"
        ):
            load_adapter(tmp_path, ARCHITECTURE)


@pytest.mark.parametrize(
    "key", ["base_model.model.lm_head.lora_A.weight", "base_model.model.model.layers.9.mlp.up_proj.lora_B.weight"]
)
def test_a_module_that_this_model_does_not_adapt_is_named(tmp_path, key):
    config = LoraConfig(rank=2)
    save_adapter(tmp_path, random_adapter(config), config, base_name="tiny")
    save_file({**load_file(tmp_path / WEIGHTS_FILE), key: np.zeros((2, 8), np.float32)}, tmp_path / WEIGHTS_FILE)
    with pytest.raises(WeightsError, match=f"no module of this llama model is named '{key[17:].split('.lora')[0]}'"):
        load_adapter(tmp_path, ARCHITECTURE)


@pytest.mark.parametrize(
    "key", ["base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "base_model.model.lm_head.weight"]
)
def test_a_tensor_of_another_method_is_named_even_where_the_configuration_hides_it(tmp_path, key):
    config = LoraConfig(rank=2)
    save_adapter(tmp_path, random_adapter(config), config, base_name="tiny")
    save_file({**load_file(tmp_path / WEIGHTS_FILE), key: np.zeros(8, np.float32)}, tmp_path / WEIGHTS_FILE)
    with pytest.raises(WeightsError, match=f"unexpected tensor '{key}'"):
        load_adapter(tmp_path, ARCHITECTURE)


def test_an_adapter_in_16_bits_is_read_as_the_numbers_that_it_holds(tmp_path):
    config = LoraConfig(rank=2)
    save_adapter(tmp_path, random_adapter(config), config, base_name="tiny")
    halved = {key: each.astype(jnp.bfloat16) for key, each in load_file(tmp_path / WEIGHTS_FILE).items()}
    save_file(halved, tmp_path / WEIGHTS_FILE)
    pair = load_adapter(tmp_path, ARCHITECTURE).layers[0]["q_proj"]
    assert pair.a.dtype == jnp.float32
    stored = halved["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
    np.testing.assert_array_equal(pair.a, stored.astype(np.float32).T)


def test_an_adapter_of_another_shape_names_the_tensor(tmp_path):
    save_adapter(tmp_path, random_adapter(LoraConfig(rank=2)), LoraConfig(rank=3), base_name="tiny")
    with pytest.raises(WeightsError, match=r"q_proj\.lora_A\.weight has shape \(2, 8\), and this model needs \(3, 8\)"):
        load_adapter(tmp_path, ARCHITECTURE)


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def random_model():
    transformers = pytest.importorskip("transformers")
    settings = {key: value for key, value in huggingface_config(ARCHITECTURE).items() if key != "model_type"}
    return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("llama", **settings))


@pytest.mark.filterwarnings("ignore")  # what the two libraries deprecate in each other
@pytest.mark.parametrize(
    "settings",
    [
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]},
        {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "use_rslora": True},
        {"r": 3, "target_modules": r".*\.[qv]_proj", "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 5}},
        {"r": 2, "target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1], "exclude_modules": ["up_proj"]},
    ],
)
def test_an_adapter_that_peft_made_is_the_same_here_and_when_it_comes_back(tmp_path, settings):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    torch.manual_seed(0)
    wrapped = peft.get_peft_model(random_model(), peft.LoraConfig(init_lora_weights=False, **settings)).eval()
    wrapped.save_pretrained(tmp_path / "theirs")
    adapter, config = open_adapter(str(tmp_path / "theirs"), ARCHITECTURE)
    modules = {name.removeprefix("base_model.model."): module for name, module in wrapped.named_modules()}
    for name, pair in named_pairs(adapter).items():
        assert modules[name].scaling["default"] == pytest.approx(pair.scale)
        np.testing.assert_array_equal(modules[name].lora_B["default"].weight.detach().numpy(), np.asarray(pair.b).T)
    assert len(named_pairs(adapter)) == sum(name.endswith("lora_A") for name in modules)
    # Out again, into peft, and back.
    save_adapter(tmp_path / "ours", adapter, config, base_name="tiny")
    again = peft.PeftModel.from_pretrained(random_model(), tmp_path / "ours")
    again.save_pretrained(tmp_path / "theirs again")
    theirs, back = (load_file(tmp_path / name / WEIGHTS_FILE) for name in ("theirs", "theirs again"))
    assert theirs.keys() == back.keys()
    assert all(theirs[key].tobytes() == back[key].tobytes() for key in theirs)
    same(load_adapter(tmp_path / "theirs again", ARCHITECTURE), adapter)


@pytest.mark.filterwarnings("ignore")  # what the two libraries deprecate in each other
def test_peft_gives_each_module_the_rank_and_scale_that_we_gave_it_and_what_it_saves_is_the_same_adapter(tmp_path):
    peft = pytest.importorskip("peft")
    config = LoraConfig(
        rank=4, alpha=8.0, rank_pattern={"layers.0.*q_proj": 2, "mlp.*": 1}, alpha_pattern={"q_proj": 3.0}
    )
    adapter = random_adapter(config)
    save_adapter(tmp_path, adapter, config, base_name="tiny")
    wrapped = peft.PeftModel.from_pretrained(random_model(), tmp_path)
    modules = {name.removeprefix("base_model.model."): module for name, module in wrapped.named_modules()}
    for name, pair in named_pairs(adapter).items():
        delta = modules[name].get_delta_weight("default").numpy()
        np.testing.assert_allclose(delta, pair.scale * np.asarray(pair.a @ pair.b).T, rtol=1e-5, atol=1e-5)
    wrapped.save_pretrained(tmp_path / "again")
    again, settings = open_adapter(str(tmp_path / "again"), ARCHITECTURE)
    assert settings == config
    same(again, adapter)
