"""A PEFT directory is read whole or refused by name, and written so that peft itself reads it."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from components import storage
from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.huggingface import huggingface_config
from components.model.lora import LoraConfig, init_adapter, named_pairs
from components.model.peft import CONFIG_FILE, load_adapter, open_adapter, read_config, save_adapter

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
        ("use_dora", True),
        ("bias", "all"),
        ("kasa_config", {"beta": 1}),
        ("init_lora_weights", "pissa_niter_4"),
        ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 1]]),
        ("something_new", 3),
        ("r", None),
        ("r", 0),
        ("lora_alpha", 0),
        ("rank_pattern", {"q_proj": "4"}),
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


def test_another_method_is_refused(tmp_path):
    (tmp_path / CONFIG_FILE).write_text(json.dumps({"peft_type": "ADALORA"}))
    with pytest.raises(WeightsError, match="ADALORA"):
        read_config(tmp_path)


def test_an_adapter_of_another_shape_names_the_tensor(tmp_path):
    save_adapter(tmp_path, random_adapter(LoraConfig(rank=2)), LoraConfig(rank=3), base_name="tiny")
    with pytest.raises(WeightsError, match=r"q_proj\.lora_A\.weight has shape \(2, 8\), and this model needs \(3, 8\)"):
        load_adapter(tmp_path, ARCHITECTURE)


@pytest.mark.filterwarnings("ignore")  # what the two libraries deprecate in each other
def test_peft_gives_each_module_the_rank_and_scale_that_we_gave_it_and_what_it_saves_is_the_same_adapter(tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = LoraConfig(
        rank=4, alpha=8.0, rank_pattern={"layers.0.*q_proj": 2, "mlp.*": 1}, alpha_pattern={"q_proj": 3.0}
    )
    adapter = random_adapter(config)
    save_adapter(tmp_path, adapter, config, base_name="tiny")
    settings = {key: value for key, value in huggingface_config(ARCHITECTURE).items() if key != "model_type"}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("llama", **settings))
    wrapped = peft.PeftModel.from_pretrained(model, tmp_path)
    modules = {name.removeprefix("base_model.model."): module for name, module in wrapped.named_modules()}
    for name, pair in named_pairs(adapter).items():
        delta = modules[name].get_delta_weight("default").numpy()
        np.testing.assert_allclose(delta, pair.scale * np.asarray(pair.a @ pair.b).T, rtol=1e-5, atol=1e-5)
    wrapped.save_pretrained(tmp_path / "again")
    again, settings = open_adapter(str(tmp_path / "again"), ARCHITECTURE)
    assert settings == config
    assert jax.tree.structure(again) == jax.tree.structure(adapter)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(adapter), jax.tree.leaves(again), strict=True))
