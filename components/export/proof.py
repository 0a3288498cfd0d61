"""What was written -> how far it is from what was trained, or an error.

Both directories are read back as anybody would read them: by this project's own readers always, by transformers and
peft where those are installed. Each must give the logits of base + adapter on a few prompts and their continuations,
and one after another they do: no two models are in memory at once.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from components.errors import ProofError, WeightsError
from components.export.weights_proof import prove_weights
from components.model import weights
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.base_artifact import BaseArtifact
from components.model.decoder import forward, logits
from components.model.lora import Adapter
from components.model.manifest import make_manifest
from components.model.peft import load_adapter
from components.model.placement import HERE, Placement
from components.model.source import Source

Reader = Callable[[Sequence[int]], Float[np.ndarray, "positions vocab"]]
"""Token ids -> the logits after each of the last of them, float32."""
Found = Sequence[Float[np.ndarray, "_ vocab"]]

PEERS = ("torch", "transformers", "peft")
LAST = 32
"""How many positions of a text are compared: the logits of a large vocabulary fill a memory."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported: `adapter` and `merged`, in `dtype`, of what was `trained` on `base`.

    This project's readers hold their models on `placement`.
    """

    base: BaseArtifact
    trained: Path
    adapter: Path
    merged: Path
    dtype: str = "float32"
    placement: Placement = HERE


def prove(
    exported: Exported, source: Source, prompts: Sequence[Sequence[int]], *, new_tokens: int, tolerance: float
) -> dict[str, Any]:
    """The largest absolute difference of a logit by reader; all of them agree on every greedy token.

    `source` is what the base's own source holds, opened.
    The policy is base + adapter in float32, whatever the run held of the base; `as_trained` says how far that is from
    what the run held, where the two differ. A merged checkpoint in bfloat16 rounds the weights themselves: how far that
    takes it from the policy is `merged` and `rounding`, and transformers is then held against this project's reader of
    the same files. Raises ProofError naming what differs by more than `tolerance`, or cannot be read.
    """
    try:
        opened = _open(exported, source)
        return {
            "base": asdict(exported.base),
            "adapter_fingerprint": _fingerprint(opened),
            "weights": prove_weights(source, exported.adapter, exported.merged, exported.dtype),
            **_prove_logits(opened, prompts, new_tokens, tolerance),
        }
    except WeightsError as error:
        raise ProofError(f"what was exported cannot be read back: {error}") from error


def own_reader(
    architecture: Architecture, base: Base, adapter: Adapter | None, length: int, last: int | None = None
) -> Reader:
    """Logits by this project's decoder, of texts of at most `length` tokens (one shape, so one compilation).

    Those of the `last` positions, or of all.
    """

    def read(text: Sequence[int]) -> Float[np.ndarray, "positions vocab"]:
        padded = np.zeros((1, length), np.int32)
        padded[0, : len(text)] = text
        count = len(text) if last is None else min(last, len(text))
        wanted = np.clip(np.arange(length if last is None else last) + len(text) - count, 0, length - 1)
        # Products of float32 are not rounded on the way, which accelerators do unless they are told.
        with jax.default_matmul_precision("highest"):
            return np.asarray(_scores(architecture, base, adapter, jnp.asarray(padded), jnp.asarray(wanted)))[:count]

    return read


@partial(jax.jit, static_argnums=0)
def _scores(
    architecture: Architecture,
    base: Base,
    adapter: Adapter | None,
    tokens: Int[Array, "1 time"],
    wanted: Int[Array, " positions"],
) -> Float[Array, "positions vocab"]:
    positions = jnp.arange(tokens.shape[1])[None]
    hidden = forward(architecture, base, adapter, tokens, positions, positions * 0 + 1)
    return logits(architecture, base, hidden[0, wanted])


def greedy(read: Reader, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """The prompt and its most likely continuation."""
    text = list(prompt)
    for _ in range(new_tokens):
        text.append(int(read(text)[-1].argmax()))
    return text


class _Window(NamedTuple):
    """How long a text may be, and at how many of its last positions logits are compared."""

    length: int
    last: int


@dataclass(frozen=True, slots=True)
class _Canaries:
    """Texts, each a prompt and what the policy makes of it, and its logits at their last positions."""

    texts: Sequence[Sequence[int]]
    logits: Found
    window: _Window
    new_tokens: int
    tolerance: float

    def read_by(self, open_reader: Callable[[], Reader]) -> Found:
        """The logits of one reader, which is gone with its model when this returns."""
        read = open_reader()
        return [read(text) for text in self.texts]

    def difference(self, name: str, found: Found) -> float:
        """The largest of a logit. Raises ProofError where it is too large, or another token would be chosen."""
        worst = max(float(np.abs(a - b).max()) for a, b in zip(found, self.logits, strict=True))
        if not worst <= self.tolerance:
            raise ProofError(
                f"the export read back as {name} differs from the trained policy by {worst:.3g} in a logit; "
                f"{self.tolerance:g} is allowed"
            )
        if self.agreement(found, ties=2 * self.tolerance) < 1.0:
            raise ProofError(
                f"the export read back as {name} continues a canary prompt by other tokens than the policy"
            )
        return worst

    def agreement(self, found: Found, ties: float = 0.0) -> float:
        """The share of continuing tokens that are chosen alike; of logits within `ties` of the largest, any will do."""
        alike = []
        for ours, theirs in zip(self.logits, found, strict=True):
            ours, theirs = (each[-self.new_tokens - 1 : -1] for each in (ours, theirs))
            chosen = np.take_along_axis(ours, theirs.argmax(-1)[:, None], axis=-1)[:, 0]
            alike += [*(chosen >= ours.max(-1) - ties)]
        return float(np.mean(alike))

    def distance(self, found: Found) -> dict[str, float]:
        """How far another policy is: the largest logit difference, KL(it || the policy) in nats per token, greedy."""
        pairs = list(zip(found, self.logits, strict=True))
        return {
            "logits": max(float(np.abs(a - b).max()) for a, b in pairs),
            "kl": float(np.mean(np.concatenate([_divergence(a, b) for a, b in pairs]))),
            "greedy_agreement": self.agreement(found),
        }


@dataclass(frozen=True, slots=True)
class _Opened:
    """What was exported, with the base's source and both adapters, the trained and the written one, read again."""

    exported: Exported
    source: Source
    trained: Adapter
    written: Adapter


def _open(exported: Exported, source: Source) -> _Opened:
    trained, written = (load_adapter(folder, source.architecture) for folder in (exported.trained, exported.adapter))
    return _Opened(exported, source, trained, written)


def _fingerprint(opened: _Opened) -> str:
    """That of both adapters. Raises ProofError naming the first module in which they differ."""
    wanted, found = make_manifest(opened.trained), make_manifest(opened.written)
    if wanted != found:
        names = dict.fromkeys([*wanted.modules, *found.modules])
        name = next(each for each in names if wanted.modules.get(each) != found.modules.get(each))
        raise ProofError(
            f"{name} in {opened.exported.adapter} is not what was trained, in {opened.exported.trained}: "
            f"{found.modules.get(name)} instead of {wanted.modules.get(name)}"
        )
    return found.fingerprint


def _prove_logits(
    opened: _Opened, prompts: Sequence[Sequence[int]], new_tokens: int, tolerance: float
) -> dict[str, Any]:
    canaries, proof = _canaries(opened, prompts, new_tokens, tolerance)
    exported, window = opened.exported, canaries.window
    missing = [peer for peer in PEERS if importlib.util.find_spec(peer) is None]
    if not missing:
        from components.export import peers

        found = canaries.read_by(partial(peers.adapter_reader, opened.source, exported.adapter, window.last))
        proof["peft"] = canaries.difference("peft", found)
    merged = canaries.read_by(partial(_merged_reader, exported, window))
    if exported.dtype == "float32":
        proof["merged"] = canaries.difference("merged", merged)
    else:
        proof["rounding"] = canaries.distance(merged)
        proof["merged"] = proof["rounding"]["logits"]
        canaries = replace(canaries, logits=merged)
    if not missing:
        found = canaries.read_by(partial(peers.merged_reader, exported.merged, window.last))
        proof["transformers"] = canaries.difference("transformers", found)
    skipped = {"skipped": f"not installed: {', '.join(missing)}"} if missing else {}
    counts = {"prompts": len(prompts), "tokens": len(prompts) * new_tokens}
    return {**proof, "greedy_equal": True, "tolerance": tolerance, **counts, **skipped}


def _canaries(
    opened: _Opened, prompts: Sequence[Sequence[int]], new_tokens: int, tolerance: float
) -> tuple[_Canaries, dict[str, Any]]:
    """What the policy makes of the prompts, and what is proven while its base is in memory."""
    artifact = opened.exported.base
    _refuse_unknown_tokens(prompts, opened.source.architecture)
    window = _Window(max(map(len, prompts)) + new_tokens, max(LAST, new_tokens + 1))
    model = weights.load(artifact.source, dtype=jnp.float32, placement=opened.exported.placement)
    policy = _reader(model, opened.trained, window)
    texts = [greedy(policy, prompt, new_tokens) for prompt in prompts]
    canaries = _Canaries(texts, [policy(text) for text in texts], window, new_tokens, tolerance)
    found = canaries.read_by(partial(_reader, model, opened.written, window))
    proof: dict[str, Any] = {"adapter": canaries.difference("adapter", found)}
    del model, policy
    if artifact.quantise != "none" or artifact.dtype != "float32":
        held = canaries.read_by(partial(_held_reader, opened, window))
        proof["as_trained"] = {"quantise": artifact.quantise, "dtype": artifact.dtype, **canaries.distance(held)}
    return canaries, proof


def _reader(model: weights.Model, adapter: Adapter | None, window: _Window) -> Reader:
    return own_reader(model.architecture, model.base, adapter, window.length, window.last)


def _held_reader(opened: _Opened, window: _Window) -> Reader:
    """The policy as the run held it."""
    base, placement = opened.exported.base, opened.exported.placement
    model = weights.load(base.source, dtype=base.dtype, quantise=base.quantise, placement=placement)
    return _reader(model, opened.trained, window)


def _merged_reader(exported: Exported, window: _Window) -> Reader:
    return _reader(weights.load(str(exported.merged), dtype=jnp.float32, placement=exported.placement), None, window)


def _refuse_unknown_tokens(prompts: Sequence[Sequence[int]], architecture: Architecture) -> None:
    largest = max(max(prompt) for prompt in prompts)
    if largest >= architecture.vocab_size:
        raise WeightsError(
            f"the tokenizer gives token {largest}, and the embedding has {architecture.vocab_size} rows; the tokenizer "
            "is that of another model"
        )


def _divergence(
    of: Float[np.ndarray, "positions vocab"], to: Float[np.ndarray, "positions vocab"]
) -> Float[np.ndarray, " positions"]:
    """KL(of || to) at each position, of logits."""
    of, to = (each - np.logaddexp.reduce(each, axis=-1, keepdims=True) for each in (of, to))
    return np.sum(np.exp(of) * (of - to), axis=-1)


def in_words(proof: Mapping[str, Any]) -> str:
    """One line for a person."""
    readers = [f"{name} {proof[name]:.2g}" for name in ("adapter", "peft", "merged", "transformers") if name in proof]
    text = f"largest difference of a logit from the trained policy: {', '.join(readers)}"
    if "as_trained" in proof:
        held = proof["as_trained"]
        base = held["dtype"] if held["quantise"] == "none" else held["quantise"]
        text += (
            f"; the run's own {base} base: logits {held['logits']:.2g}, KL {held['kl']:.2g} nats per token, "
            f"{held['greedy_agreement']:.0%} of greedy tokens alike"
        )
    return text
