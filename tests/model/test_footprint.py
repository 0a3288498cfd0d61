"""Bytes that are known before anything is loaded, against bytes that are held."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from components.algorithms.objective import Objective, ObjectiveConfig
from components.model.architecture import Architecture
from components.model.base import random_base
from components.model.cache import init_cache
from components.model.footprint import activation_bytes, cache_bytes, head_bytes
from components.model.lora import LoraConfig, init_adapter
from components.model.remat import Remat
from components.training.packing import Packer, PackingConfig
from components.training.update import make_accumulate, zero_gradients
from components.types import Sample
from tests.model.tiny import CONFIGS

SMALL = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "tie_word_embeddings": True,
}


def test_cache_activations_and_head_by_hand() -> None:
    architecture = Architecture.from_huggingface(SMALL)
    # Keys and values, 2 layers, 1 head of 4, 3 slots of 10, 2 bytes.
    assert cache_bytes(architecture, slots=3, capacity=10, dtype="bfloat16") == 2 * 2 * 4 * 3 * 10 * 2
    # Outputs of all seven projections are 8+4+4+8+16+16+8 = 64 wide, scores 2 heads x row of 10; inputs 8 x 3 layers.
    assert activation_bytes(architecture, tokens=20, row_length=10) == 4 * 20 * (3 * 64 + 4 * 2 * 10 + 8 * 3)
    assert head_bytes(architecture, tokens=20) == 2 * 4 * 20 * 100
    assert head_bytes(architecture, tokens=20_000) == 2 * 4 * 1024 * 100


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4_shared", "gemma4_experts"])
def test_the_bytes_of_a_cache_are_those_that_it_holds(family: str) -> None:
    architecture = Architecture.from_huggingface(CONFIGS[family])
    cache = jax.eval_shape(lambda: init_cache(architecture, 3, 10, jnp.bfloat16))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    assert cache_bytes(architecture, slots=3, capacity=10, dtype="bfloat16") == held


@pytest.mark.parametrize(
    ("changes", "rows", "row_length", "remat"),
    [
        ({"num_hidden_layers": 3}, 64, 32, "full"),
        ({"num_hidden_layers": 6, "num_key_value_heads": 2}, 4, 256, "full"),
        ({"num_hidden_layers": 3, "vocab_size": 8192}, 8, 64, "full"),
        ({"num_hidden_layers": 3, "model_type": "qwen3", "head_dim": 16}, 64, 32, "full"),
        ({"num_hidden_layers": 3}, 64, 32, "linear_outputs"),
        ({"num_hidden_layers": 3}, 64, 32, "none"),
    ],
    ids=["wide", "long rows", "large vocabulary", "normed queries and keys", "outputs kept", "all kept"],
)
def test_a_training_step_is_predicted_within_a_fifth(
    changes: dict[str, Any], rows: int, row_length: int, remat: Remat
) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    architecture = Architecture.from_huggingface({**SMALL, **sizes, "intermediate_size": 256, **changes})
    base = random_base(jax.random.key(0), architecture)
    adapter = init_adapter(jax.random.key(0), architecture, LoraConfig(rank=8))
    objective = Objective.from_config(ObjectiveConfig())
    packer = Packer(PackingConfig(rows=rows, row_length=row_length), objective.weight)
    mask = (False,) + (True,) * (row_length - 1)
    for _ in range(rows):
        packer.add(Sample((1,) * row_length, mask, (-1.0,) * row_length, (0,) * row_length, 1.0))
    accumulate = make_accumulate(architecture, objective, temperature=1.0, remat=remat)
    step = jax.jit(accumulate).lower(base, adapter, zero_gradients(adapter), packer.flush()).compile()
    gradient = sum(leaf.nbytes for leaf in jax.tree.leaves(adapter))
    predicted = gradient + activation_bytes(architecture, tokens=rows * row_length, row_length=row_length, remat=remat)
    measured = step.memory_analysis().temp_size_in_bytes
    print(f"predicted {predicted:,}, measured {measured:,}")
    assert abs(predicted - measured) < 0.2 * measured
