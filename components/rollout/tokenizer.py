"""Text <-> token ids, whatever file the vocabulary lies in.

`encode` never yields a token with a meaning of its own, be it flagged as special or not: what a user or a tool wrote
cannot open or close a turn, a call or a thinking block. A renderer puts such tokens in by id, with `token_id`. Nothing
here adds a begin-of-sequence token; `bos_token_id` says whether the model wants one.
"""

import importlib.util
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import tokenizers

from components.errors import WeightsError
from components.rollout import gguf_tokenizer

FILE = "tokenizer.json"
CHARACTERS_FILE = "characters.json"
TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@runtime_checkable
class Tokenizer(Protocol):
    """What a renderer and an engine need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The token that opens every sequence of this model, or None when it has no such token."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that the checkpoint brings for its conversations, where it brings one. It is never run."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Special tokens that are spelled in it are text like any other."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out. Bytes that are no UTF-8 character (yet) become U+FFFD."""
        ...

    def token_id(self, token: str) -> int | None:
        """The id of one token as the vocabulary spells it, special ones too; None when there is no such token."""
        ...

    def save(self, folder: Path) -> Path:
        """Write the tokenizer into a folder, so that `load_tokenizer(folder)` reads it back; the file's path."""
        ...


_MARKUP = re.compile(
    r"</?(?:a|b|i|u|s|p|br|hr|em|strong|sub|sup|code|pre|table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|"
    r"html|body|img|span|bbox|ul|ol|li|div|iframe|footer)>"
)
"""Tags of texts that vocabularies hold as tokens of their own (Gemma's does): text like any other."""


class FastTokenizer:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, inner: tokenizers.Tokenizer, chat_template: str | None = None) -> None:
        self._inner = inner
        self._chat_template = chat_template
        # Kept for the life of the object, as a switch in between would race with other episodes.
        self._inner.encode_special_tokens = True
        # The post-processor knows which token opens a sequence: it is all that an empty text is given.
        opening = inner.encode("", add_special_tokens=True).ids
        self._bos_token_id: int | None = opening[0] if opening else None
        self._controls = _one_of(
            token.content
            for token in inner.get_added_tokens_decoder().values()
            if not token.special and _has_meaning(token.content)
        )

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        """The token that opens every sequence of this model."""
        return self._bos_token_id

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that the checkpoint brings."""
        return self._chat_template

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        ids: list[int] = []
        for part in self._harmless(text):
            # A batch of one: unlike `encode` it lets other threads run meanwhile, which a long text makes them need.
            ids += self._inner.encode_batch_fast([part], add_special_tokens=False)[0].ids
        return ids

    def _harmless(self, text: str) -> list[str]:
        """The text, cut behind the first character of whatever would be a token with a meaning."""
        if self._controls is None:
            return [text]
        cuts = [match.start() + 1 for match in self._controls.finditer(text)]
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=False)
        return text

    def token_id(self, token: str) -> int | None:
        """The id of one token, or None."""
        found: int | None = self._inner.token_to_id(token)
        return found

    def save(self, folder: Path) -> Path:
        """Write tokenizer.json."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        self._inner.save(str(path))
        return path


def _has_meaning(token: str) -> bool:
    """Whether an added token says something to a model, as `<tool_call>` does, and is no blank space or markup."""
    return any(character.isalnum() for character in token) and not _MARKUP.fullmatch(token)


def _one_of(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of the tokens, longer ones first."""
    ordered = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


class CharacterTokenizer:
    """One token per character of a small alphabet; id 0 is no character.

    A model ends a text with it, and a character that the alphabet lacks becomes it, as nobody knows what a tool will
    write. The alphabet's order is the ids' order, so it is part of the model.
    """

    END = "<end>"

    def __init__(self, alphabet: str) -> None:
        if len(set(alphabet)) != len(alphabet) or not alphabet:
            raise WeightsError(f"an alphabet must hold each of its characters once, not {alphabet!r}")
        self.alphabet = alphabet
        self._tokens = (self.END, *alphabet)
        self._ids = {token: i for i, token in enumerate(self._tokens)}

    @property
    def vocab_size(self) -> int:
        """The characters and END."""
        return len(self._tokens)

    @property
    def bos_token_id(self) -> int | None:
        """There is none."""
        return None

    @property
    def chat_template(self) -> str | None:
        """There is none."""
        return None

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return [self._ids.get(character, 0) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; END is spelled out, an id out of range is U+FFFD."""
        return "".join(self._tokens[i] if 0 <= i < len(self._tokens) else REPLACEMENT for i in ids)

    def token_id(self, token: str) -> int | None:
        """The id of one character, or of END."""
        return self._ids.get(token)

    def save(self, folder: Path) -> Path:
        """Write characters.json."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / CHARACTERS_FILE
        path.write_text(json.dumps({"alphabet": self.alphabet}, ensure_ascii=False), encoding="utf-8")
        return path


def load_tokenizer(source: str | Path) -> Tokenizer:
    """A tokenizer from a folder (tokenizer.json or characters.json), a .gguf file, or `package:NAME`.

    `package:NAME` is a GGUF file that an installed package carries; its code is not run. Raises WeightsError.
    """
    path = _package_file(str(source)[len("package:") :]) if str(source).startswith("package:") else Path(source)
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise WeightsError(f"no tokenizer at {source}: it is neither a folder nor a file")
    if path.suffix == ".json":
        return _from_folder(path.parent)
    return FastTokenizer(*gguf_tokenizer.load(path))


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / FILE).is_file():
        return FastTokenizer(tokenizers.Tokenizer.from_file(str(folder / FILE)), _template_in(folder))
    if (folder / CHARACTERS_FILE).is_file():
        return CharacterTokenizer(json.loads((folder / CHARACTERS_FILE).read_text(encoding="utf-8"))["alphabet"])
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return load_tokenizer(ggufs[0])
    raise WeightsError(f"no tokenizer in {folder}: it holds neither {FILE} nor {CHARACTERS_FILE} nor one .gguf file")


def _template_in(folder: Path) -> str | None:
    """The chat template beside a tokenizer: a file of its own, or a key of its config, the default one of several."""
    if (folder / TEMPLATE_FILE).is_file():
        return (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    if not (folder / CONFIG_FILE).is_file():
        return None
    try:
        template = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise WeightsError(f"{folder / CONFIG_FILE} is no JSON object: {error}") from error
    if isinstance(template, list):
        named = {str(each.get("name")): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _package_file(name: str) -> Path:
    """The GGUF inside a package; of one that is split over several files the first, which holds the vocabulary."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(f"the package {name} is not installed")
    for folder in spec.submodule_search_locations:
        for pattern in ("*.gguf", "*.gguf.part00"):
            files = sorted(Path(folder).rglob(pattern))
            if files:
                return files[0]
    raise WeightsError(f"the package {name} holds no .gguf file")
