"""A base's source -> what a serving engine needs beside the weights: the tokenizer's files and a generation config."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from components.engine.sampling import SamplingConfig
from components.model.architecture import Architecture
from components.model.checkpoint_folder import ends_of_text, own_ends, own_generation, write_json
from components.rollout import gguf_tokenizer
from components.rollout.tokenizer import FILE, Tokenizer

CONFIG_FILE = "tokenizer_config.json"
TOKENIZER_FILES = (
    FILE,
    CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
_NO_RULE = ("transformers_version", "_from_model_config", "bos_token_id", "eos_token_id")
"""What a generation config holds that says nothing of how to sample."""


def write_tokenizer(folder: Path, source: Path, architecture: Architecture, tokenizer: Tokenizer) -> None:
    """Copy the tokenizer's files, chat template and all, or write those that a GGUF file stands for."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if source.is_dir() and (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if not (folder / FILE).is_file():
        tokenizer.save(folder)
    if (folder / FILE).is_file() and not (folder / CONFIG_FILE).is_file():
        write_json(folder / CONFIG_FILE, _tokenizer_config(source, architecture, tokenizer))


def generation_config(
    source: Path, architecture: Architecture, *, stops: Iterable[int] = (), sampling: SamplingConfig | None = None
) -> dict[str, Any]:
    """Every token that ends a text, and how to sample.

    The ends are those of the base's own generation config, of its config, and `stops`, where the renderer of the run
    ends a turn: an engine that knows one of them less would not stop where the policy does. The rule of sampling is
    `sampling`, or else the base's own.
    """
    own = own_generation(source)
    ends = list(dict.fromkeys([*own_ends(source, architecture), *stops]))
    rule = {key: value for key, value in own.items() if key not in _NO_RULE}
    if sampling is not None:
        padding = {key: rule[key] for key in ("pad_token_id",) if key in rule}
        rule = {**padding, **_rule(sampling)}
    return {**ends_of_text(architecture), **({"eos_token_id": ends} if ends else {}), **rule}


def _rule(sampling: SamplingConfig) -> dict[str, Any]:
    if sampling.greedy:
        return {"do_sample": False}
    rule: dict[str, Any] = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
    # Where top_k is not said, transformers takes 50.
    return {**rule, "top_k": max(sampling.top_k or 0, 0)}


def _tokenizer_config(source: Path, architecture: Architecture, tokenizer: Tokenizer) -> dict[str, Any]:
    ends = {
        "bos_token": architecture.bos_token_id,
        "eos_token": architecture.eos_token_ids[0] if architecture.eos_token_ids else None,
    }
    header = gguf_tokenizer.read_header(source) if source.is_file() else {}
    template = header.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": architecture.max_positions,
        "clean_up_tokenization_spaces": False,
        **{key: tokenizer.decode([token]) for key, token in ends.items() if token is not None},
        **({} if template is None else {"chat_template": template}),
    }
