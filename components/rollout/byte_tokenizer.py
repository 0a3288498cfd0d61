"""Text <-> the bytes of its UTF-8, and the special tokens of ChatML: a tokenizer that needs no file."""

import json
from collections.abc import Sequence
from pathlib import Path

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


class ByteTokenizer:
    """Ids 0 to 255 are bytes, the special tokens come after them. For trying things out, not for a model."""

    @property
    def vocab_size(self) -> int:
        """Bytes and special tokens."""
        return 256 + len(SPECIAL)

    @property
    def bos_token_id(self) -> int | None:
        """There is none."""
        return None

    @property
    def chat_template(self) -> str | None:
        """There is none."""
        return None

    def encode(self, text: str) -> list[int]:
        """The bytes; special tokens that are spelled in it are text."""
        return list(text.encode(errors="replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out; bytes that are no character (yet) are U+FFFD."""
        parts = bytearray()
        for i in ids:
            parts += bytes([i]) if i < 256 else SPECIAL[i - 256].encode()
        return parts.decode(errors="replace")

    def token_id(self, token: str) -> int | None:
        """The id of a special token, or of one character of ASCII."""
        if token in SPECIAL:
            return 256 + SPECIAL.index(token)
        return ord(token) if len(token) == 1 and token.isascii() else None

    def save(self, folder: Path) -> Path:
        """Write bytes.json, which says no more than what this is."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "bytes.json"
        path.write_text(json.dumps({"special": SPECIAL}), encoding="utf-8")
        return path
