"""The platform that runs the model -> the few choices that differ between platforms, each one measured.

Everything else in this room is the same on a laptop and on an accelerator.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import jax


@dataclass(frozen=True, slots=True)
class Platform:
    """What is decided by platform.

    `decode_by_sum`: attention of one query by multiply-and-sum instead of matrix products; on a CPU a batch of
    matrix-vector products is slower than one fused pass over the cache.
    `head_rows`: the least number of rows with which the LM head is multiplied; a CPU has no fast path for a bfloat16
    matrix times fewer than four vectors.
    """

    decode_by_sum: bool
    head_rows: int


CPU = Platform(decode_by_sum=True, head_rows=4)
ACCELERATOR = Platform(decode_by_sum=False, head_rows=1)


@functools.cache
def current() -> Platform:
    """The choices for the default backend."""
    return CPU if jax.default_backend() == "cpu" else ACCELERATOR


def use_compilation_cache(folder: Path = Path.home() / ".cache" / "headrace" / "compiled") -> None:
    """Keep every compiled program on the disk: the next step, and the next run, start without compiling again."""
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
