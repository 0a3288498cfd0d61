"""A policy and samples that are small enough for a unit test."""

import jax
import numpy as np

from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.lora import Adapter, LoraConfig, init_adapter
from components.types import Completion, FinishReason, Outcome, Sample, Task, Trajectory, Turn

ARCHITECTURE = Architecture.from_huggingface(
    {
        "model_type": "llama",
        "vocab_size": 23,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
)


def base() -> Base:
    return random_base(jax.random.key(0), ARCHITECTURE)


def adapter() -> Adapter:
    """An adapter that changes the policy: its B is not zero."""
    fresh = init_adapter(jax.random.key(1), ARCHITECTURE, LoraConfig(rank=2))
    leaves, structure = jax.tree.flatten(fresh)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    noisy = [leaf + 0.1 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


def sample(seed: int, pieces: tuple[int, ...], advantage: float) -> Sample:
    """`pieces` are lengths of prompt, completion, reply, completion, ...; ids and log-probs are drawn from the seed."""
    length = sum(pieces)
    random = np.random.default_rng(seed)
    ids = random.integers(0, ARCHITECTURE.vocab_size, length)
    drawn = random.uniform(-4.0, -2.0, length)
    mask = tuple(number % 2 == 1 for number, piece in enumerate(pieces) for _ in range(piece))
    return Sample(
        token_ids=tuple(int(token) for token in ids),
        completion_mask=mask,
        logprobs=tuple(float(value) if sampled else 0.0 for value, sampled in zip(drawn, mask, strict=True)),
        versions=tuple(0 if sampled else -1 for sampled in mask),
        advantage=advantage,
        task_id=str(seed),
    )


def samples() -> tuple[Sample, ...]:
    """Samples of one and of two turns, 9 to 4 tokens long."""
    shapes = [(3, 4), (2, 2, 1, 3), (5, 1), (2, 6), (1, 3), (4, 2, 2, 1), (2, 5), (3, 3)]
    advantages = [1.5, -0.5, 0.25, -1.0, 2.0, -0.75, 0.0, 0.5]
    return tuple(sample(seed, pieces, advantages[seed]) for seed, pieces in enumerate(shapes))


def turn(prompt: bytes, completion: bytes, versions: tuple[int, ...] | None = None) -> Turn:
    """A turn whose tokens are bytes; the log-probs are -0.1, -0.2, ..."""
    logprobs = tuple(-(place + 1) / 10 for place in range(len(completion)))
    versions = versions or (0,) * len(completion)
    return Turn(tuple(prompt), Completion(tuple(completion), logprobs, versions, FinishReason.STOP))


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(
        task=Task(id="task-7", prompt=""), turns=turns, messages=(), outcome=Outcome.FINISHED, reward=1.0, member=3
    )
