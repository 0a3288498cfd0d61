"""Merged weights and a tokenizer -> a Hugging Face folder that transformers and serving engines load."""

from pathlib import Path

from components.model.architecture import Architecture
from components.model.base import Base
from components.model.checkpoint_folder import MAX_SHARD_BYTES, write_checkpoint, write_json
from components.rollout.tokenizer import Tokenizer


def write_merged(
    folder: Path,
    architecture: Architecture,
    base: Base,
    tokenizer: Tokenizer,
    *,
    dtype: str,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write tokenizer and weights; see `write_checkpoint`."""
    tokenizer.save(folder)
    ends = {
        "bos_token": architecture.bos_token_id,
        "eos_token": architecture.eos_token_ids[0] if architecture.eos_token_ids else None,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": architecture.max_positions,
        "clean_up_tokenization_spaces": False,
        **{key: tokenizer.decode([token]) for key, token in ends.items() if token is not None},
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_checkpoint(folder, architecture, base, dtype=dtype, max_shard_bytes=max_shard_bytes)
