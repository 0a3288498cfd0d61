"""A model small enough for a test, and what the trainer would say about its tokens."""

import asyncio
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from components.engine.engine import Engine, EngineConfig
from components.engine.sampling import SamplingConfig
from components.model.architecture import Architecture, Rope
from components.model.base import Base, random_base
from components.model.decoder import forward, logits
from components.model.lora import Adapter, LoraConfig, init_adapter
from components.types import Completion, SequenceId

ARCHITECTURE = Architecture(
    family="llama",
    vocab_size=50,
    d_model=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    d_ff=48,
    norm_eps=1e-5,
    rope=Rope(10_000.0),
    windows=(None, None),
    query_scale=8**-0.5,
    max_positions=64,
)
CAPACITY = 64
STOP = 49


def tiny_base() -> Base:
    """Weights whose distributions are far from uniform, so that greedy decoding has something to follow."""
    base = random_base(jax.random.key(0), ARCHITECTURE, jnp.float32)
    return jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim == 2 else leaf, base)


def tiny_adapter(seed: int, strength: float = 0.3) -> Adapter:
    """An adapter that changes the policy: its B matrices are random, not zero."""
    adapter = init_adapter(jax.random.key(seed), ARCHITECTURE, LoraConfig(rank=2))
    leaves, structure = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noise = [strength * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, noise)


BASE = tiny_base()


def engine(
    adapter: Adapter | None = None,
    *,
    stop_ids: tuple[int, ...] = (),
    seed: int = 0,
    reproducible: bool = True,
    **settings,
) -> Engine:
    """An engine with few slots and small chunks, so that every path is taken. Text is one letter per token."""
    defaults = {"slots": 4, "capacity": CAPACITY, "decode_steps": 3, "prefill_chunk": 16}
    config = EngineConfig(**(defaults | settings))
    return Engine(
        ARCHITECTURE,
        BASE,
        adapter,
        config=config,
        seed=seed,
        stop_ids=stop_ids,
        decode_text=text_of,
        reproducible=reproducible,
    )


def text_of(ids: Sequence[int]) -> str:
    """One character per token, from '0' on."""
    return "".join(chr(48 + each) for each in ids)


def prompt(seed: int, length: int) -> list[int]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, STOP, length).tolist()


def ask(engine: Engine, ids: Sequence[int], task: str = "task", *, max_tokens: int = 8, **where) -> Completion:
    """One turn, alone. `where` are fields of SequenceId, or `sampling`."""
    return asyncio.run(ask_async(engine, ids, task, max_tokens=max_tokens, **where))


async def ask_async(
    engine: Engine,
    ids: Sequence[int],
    task: str = "task",
    *,
    max_tokens: int = 8,
    sampling: SamplingConfig | None = None,
    **where,
) -> Completion:
    """One turn, beside others."""
    policy = engine.policy(sampling or SamplingConfig())
    return await policy(ids, sequence=SequenceId(task, **where), max_tokens=max_tokens)


def trainer_logprobs(
    adapter: Adapter | None, ids: Sequence[int], completion: Completion, temperature: float = 1.0
) -> np.ndarray:
    """Log-probs of a completion after the prompt `ids`, by the trainer's forward pass over the whole."""
    scores = trainer_logits(adapter, [*ids, *completion.token_ids])
    rows = jax.nn.log_softmax(scores / temperature, axis=-1)[len(ids) - 1 : -1]
    return np.take_along_axis(np.asarray(rows), np.array(completion.token_ids)[:, None], axis=1)[:, 0]


def trainer_logits(adapter: Adapter | None, ids: Sequence[int]) -> jax.Array:
    """Scores after every token of `ids`, padded to the capacity so that one program serves all."""
    short = CAPACITY - len(ids)
    tokens = jnp.asarray([[*ids, *[0] * short]])
    segments = jnp.asarray([[1] * len(ids) + [0] * short])
    return _logits(adapter, tokens, segments)[0, : len(ids)]


@jax.jit
def _logits(adapter: Adapter | None, tokens: jax.Array, segments: jax.Array) -> jax.Array:
    positions = jnp.arange(tokens.shape[1])[None]
    return logits(ARCHITECTURE, BASE, forward(ARCHITECTURE, BASE, adapter, tokens, positions, segments))
