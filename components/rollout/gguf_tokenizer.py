"""The vocabulary in a GGUF file -> a tokenizer of the `tokenizers` library.

Two kinds are read: "gpt2", byte-level BPE with its merges (SmolLM2, Qwen, Llama 3), and "llama", SentencePiece BPE with
scores (Gemma 3). Only the header of the file is read, so the first part of a split file is enough.
"""

import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from components.errors import WeightsError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


# What splits text into words before the merges, of the families of Llama 3 and Qwen 2: they differ in the digits.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLITS = ("llama-bpe", "llama3", "llama-v3")


def load(path: Path) -> tuple[Tokenizer, str | None]:
    """The tokenizer in the header of a GGUF file, and the chat template where there is one.

    Raises WeightsError when there is none that can be read.
    """
    header = read_header(path)
    kind = header.get("tokenizer.ggml.model")
    builders: dict[Any, Callable[[Mapping[str, Any], Path], Tokenizer]] = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise WeightsError(f"{path}: cannot read a tokenizer of kind {kind!r}; known: {', '.join(builders)}")
    tokenizer = builders[kind](header, path)
    _add_special_tokens(tokenizer, header)
    template = header.get("tokenizer.chat_template")
    return tokenizer, template if isinstance(template, str) else None


def read_header(path: Path) -> dict[str, Any]:
    """The key-value pairs of a GGUF file (format versions 2 and 3). Raises WeightsError when it is no such file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise WeightsError(f"{path} is no GGUF file: it starts with {data[:4]!r}")
        version, _, n_pairs = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise WeightsError(f"{path} has GGUF version {version}; versions 2 and 3 can be read")
        try:
            return _read_pairs(data, n_pairs)
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise WeightsError(f"{path}: the header is damaged or cut off ({error})") from error


def _read_pairs(data: mmap.mmap, n_pairs: int) -> dict[str, Any]:
    pairs, at = {}, 24
    for _ in range(n_pairs):
        key, at = _read_value(data, at, _STRING)
        (kind,) = struct.unpack_from("<I", data, at)
        pairs[key], at = _read_value(data, at + 4, kind)
    return pairs


def _read_value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    """A value of a kind at a place, and the place behind it."""
    if kind == _STRING:
        (length,) = struct.unpack_from("<Q", data, at)
        return data[at + 8 : at + 8 + length].decode("utf-8"), at + 8 + length
    if kind == _ARRAY:
        inner, count = struct.unpack_from("<IQ", data, at)
        at += 12
        if inner in _SCALARS:
            layout = f"<{count}{_SCALARS[inner]}"
            return struct.unpack_from(layout, data, at), at + struct.calcsize(layout)
        values = []
        for _ in range(count):
            value, at = _read_value(data, at, inner)
            values.append(value)
        return values, at
    layout = f"<{_SCALARS[kind]}"
    return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)


def _byte_level(header: Mapping[str, Any], path: Path) -> Tokenizer:
    """GPT-2's BPE over bytes. What splits the text before it is named by tokenizer.ggml.pre."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    llama3 = _split_by(_WORDS % "{1,3}")
    splitters: dict[Any, pre_tokenizers.PreTokenizer] = {
        "gpt-2": byte_level,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
        "qwen2": _split_by(_WORDS % ""),
        **dict.fromkeys(_LLAMA3_SPLITS, llama3),
    }
    name = header.get("tokenizer.ggml.pre", "gpt-2")
    if name not in splitters:
        raise WeightsError(f"{path}: cannot split text the way {name!r} does; known: {', '.join(splitters)}")
    merges = [tuple(merge.split(" ", 1)) for merge in header["tokenizer.ggml.merges"]]
    # Llama 3 takes a word that is a token whole, whatever the merges would make of it.
    tokenizer = Tokenizer(BPE(vocab=_vocabulary(header), merges=merges, ignore_merges=name in _LLAMA3_SPLITS))
    tokenizer.pre_tokenizer = splitters[name]
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(header: Mapping[str, Any], path: Path) -> Tokenizer:
    """SentencePiece BPE: spaces are U+2581, what the vocabulary lacks is spelled in bytes."""
    vocabulary = _vocabulary(header)
    merges = merges_of_scores(header["tokenizer.ggml.tokens"], header["tokenizer.ggml.scores"])
    unknown = header["tokenizer.ggml.tokens"][header["tokenizer.ggml.unknown_token_id"]]
    model = BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    decoding: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if header.get("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(_SPACE))
        decoding.append(decoders.Strip(" ", left=1))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def merges_of_scores(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece vocabulary, first the one that is done first.

    SentencePiece joins the neighbours whose joined piece has the highest score. So every way of splitting a piece into
    two pieces is a merge, as early as the piece's score is high; splits of one piece go by the ids of their parts.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        for i in range(1, len(token)):
            left, right = ids.get(token[:i]), ids.get(token[i:])
            if left is not None and right is not None:
                merges.append((-score, left, right))
    merges.sort()
    return [(tokens[left], tokens[right]) for _, left, right in merges]


def _add_special_tokens(tokenizer: Tokenizer, header: Mapping[str, Any]) -> None:
    tokens, types = header["tokenizer.ggml.tokens"], header["tokenizer.ggml.token_type"]
    control = [tokens[i] for i, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    defined = [tokens[i] for i, kind in enumerate(types) if kind == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in defined])
    wants_bos = header["tokenizer.ggml.model"] == "llama" or header.get("tokenizer.ggml.pre") in _LLAMA3_SPLITS
    if header.get("tokenizer.ggml.add_bos_token", wants_bos):
        bos_id = header["tokenizer.ggml.bos_token_id"]
        bos = tokens[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, bos_id)])


def _vocabulary(header: Mapping[str, Any]) -> dict[str, int]:
    return {token: i for i, token in enumerate(header["tokenizer.ggml.tokens"])}
