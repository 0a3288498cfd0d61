"""What was written -> how far it is from what was trained, or an error.

Both directories are read back as anybody would read them: by this project's own readers always, by transformers and
peft where those are installed. Each must give the logits of base + adapter on a few prompts and their continuations.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from components.errors import ProofError
from components.model import weights
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import forward, logits
from components.model.lora import Adapter
from components.model.peft import load_adapter

Reader = Callable[[Sequence[int]], Float[np.ndarray, "time vocab"]]
"""Token ids -> the logits after each of them, float32."""

PEERS = ("torch", "transformers", "peft")


def prove(
    architecture: Architecture,
    base: Base,
    adapter: Adapter,
    adapter_folder: Path,
    merged_folder: Path,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    tolerance: float,
    merged_dtype: str = "float32",
) -> dict[str, Any]:
    """The largest absolute difference of a logit by reader, and whether all agree on every greedy token.

    A merged checkpoint in bfloat16 rounds the weights themselves: how far that is from the policy is reported as
    `merged`, and transformers is then held against this project's reader of the same files.
    Raises ProofError naming the reader that differs by more than `tolerance`, and by how much.
    """
    length = max(map(len, prompts)) + new_tokens
    policy = own_reader(architecture, base, adapter, length)
    texts = [greedy(policy, prompt, new_tokens) for prompt in prompts]
    expected = [policy(text) for text in texts]
    proof: dict[str, Any] = {}
    agree = True
    for name, read in _readers(architecture, base, adapter_folder, merged_folder, length):
        found = [read(text) for text in texts]
        proof[name] = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
        agree &= all(np.array_equal(a.argmax(-1), b.argmax(-1)) for a, b in zip(found, expected, strict=True))
        if name == "merged" and merged_dtype != "float32":
            expected, agree = found, True
        elif not proof[name] <= tolerance:
            raise ProofError(
                f"the export read back as {name} differs from the trained policy by {proof[name]:.3g} in a logit; "
                f"{tolerance:g} is allowed. The files are in {adapter_folder} and {merged_folder}"
            )
    missing = [peer for peer in PEERS if importlib.util.find_spec(peer) is None]
    skipped = {"skipped": f"not installed: {', '.join(missing)}"} if missing else {}
    return {**proof, "greedy_equal": bool(agree), "tolerance": tolerance, "prompts": len(texts), **skipped}


def own_reader(architecture: Architecture, base: Base, adapter: Adapter | None, length: int) -> Reader:
    """Logits by this project's decoder, of texts of at most `length` tokens (one shape, so one compilation)."""

    @jax.jit
    def run(base: Base, adapter: Adapter | None, tokens: Int[Array, "1 time"]) -> Float[Array, "1 time vocab"]:
        positions = jnp.arange(tokens.shape[1])[None]
        return logits(architecture, base, forward(architecture, base, adapter, tokens, positions, positions * 0 + 1))

    def read(text: Sequence[int]) -> Float[np.ndarray, "time vocab"]:
        padded = jnp.zeros((1, length), jnp.int32).at[0, : len(text)].set(jnp.asarray(text))
        return np.asarray(run(base, adapter, padded)[0, : len(text)])

    return read


def greedy(read: Reader, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """The prompt and its most likely continuation."""
    text = list(prompt)
    for _ in range(new_tokens):
        text.append(int(read(text)[-1].argmax()))
    return text


def _readers(
    architecture: Architecture, base: Base, adapter_folder: Path, merged_folder: Path, length: int
) -> Iterator[tuple[str, Reader]]:
    """One at a time, as each holds a copy of the weights; those of the merged checkpoint come last."""
    with_peers = all(importlib.util.find_spec(peer) for peer in PEERS)
    yield "adapter", own_reader(architecture, base, load_adapter(adapter_folder, architecture), length)
    if with_peers:
        from components.export import peers

        yield "peft", peers.adapter_reader(architecture, base, adapter_folder)
    merged = weights.load(str(merged_folder), dtype=jnp.float32)
    yield "merged", own_reader(merged.architecture, merged.base, None, length)
    if with_peers:
        yield "transformers", peers.merged_reader(merged_folder)
