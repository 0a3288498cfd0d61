"""The platform that runs the model -> the few choices that differ between platforms, each one measured.

Everything else in this room is the same on a laptop and on an accelerator.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from components.model.remat import KEEP_NAMED, Remat, rematerialise


@dataclass(frozen=True, slots=True)
class Platform:
    """What is decided by platform.

    `bfloat16_rows`: the least number of rows with which a bfloat16 weight is multiplied. A CPU has no fast path for
    fewer than four: one row takes ten times as long as four.
    `checkpoint`: whether `jax.checkpoint` makes a function compute its insides again in the backward pass. On a CPU it
    does not.
    `ragged_products`: whether rows sorted by expert are multiplied in one product. A CPU pads it for every expert: 64
    of them take 70 times as long as blocks of rows one after another.
    `packed_attention`: what computes attention over packed rows. `splash` is a kernel for TPUs that never holds the
    scores; `interpreted` is the same anywhere, slowly, for tests.
    """

    bfloat16_rows: int
    checkpoint: bool
    ragged_products: bool
    packed_attention: Literal["plain", "splash", "interpreted"] = "plain"

    def least_rows(self, dtype: DTypeLike) -> int:
        """To how many rows the left side of a product with a weight of this dtype is padded."""
        return self.bfloat16_rows if dtype == jnp.bfloat16 else 1

    def rematerialise(self, function: Callable[..., Array], remat: Remat) -> Callable[..., Array]:
        """`function`, of which a gradient keeps what `remat` says."""
        if remat == "none":
            return function
        if self.checkpoint:
            return jax.checkpoint(function, policy=KEEP_NAMED if remat == "linear_outputs" else None)
        return rematerialise(function, keep_named=remat == "linear_outputs")


CPU = Platform(bfloat16_rows=4, checkpoint=False, ragged_products=False)
GPU = Platform(bfloat16_rows=1, checkpoint=True, ragged_products=True)
TPU = replace(GPU, packed_attention="splash")

COMPILED = Path.home() / ".cache" / "headrace" / "compiled"


@functools.cache
def current() -> Platform:
    """The choices for the default backend."""
    return {"cpu": CPU, "tpu": TPU}.get(jax.default_backend(), GPU)


def hardware() -> dict[str, str | int]:
    """What this program runs on, over all its hosts: backend, kind and number of devices, and number of hosts."""
    return {
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "hosts": jax.process_count(),
    }


def use_compilation_cache(folder: Path = COMPILED) -> None:
    """Keep every compiled program on the disk: the next step, and the next run, start without compiling again."""
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
