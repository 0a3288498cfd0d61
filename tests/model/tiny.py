"""Configs of random models that are small enough for a unit test, one per family."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from components.model.base import Base, Layer
from components.model.lora import Adapter, LoraPair
from components.model.quantise import dense, is_quantised

# Programs that run once are compiled in half the time when they are not optimised.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

_SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
    "eos_token_id": [2, 3],
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_WINDOWED = {
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
}

_GEMMA4 = {
    "model_type": "gemma4_text",
    **_SIZES,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "sliding_window": 4,
    "global_head_dim": 16,
    "final_logit_softcapping": 3.0,
}

# In the spelling of transformers 4, which both major versions read.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES, "rope_theta": 1e5, "tie_word_embeddings": False},
    "llama_tied": {"model_type": "llama", **_SIZES, "tie_word_embeddings": True},
    "llama_scaled": {"model_type": "llama", **_SIZES, "rope_theta": 5e5, "rope_scaling": _LLAMA3},
    "qwen2": {"model_type": "qwen2", **_SIZES, "head_dim": 8, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_SIZES, "tie_word_embeddings": False},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_SIZES,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
        "tie_word_embeddings": False,
    },
    "qwen3_moe_sparse_step": {
        "model_type": "qwen3_moe",
        **_SIZES,
        "num_experts": 40,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 8,
        "norm_topk_prob": False,
        "num_hidden_layers": 2,
        "decoder_sparse_step": 2,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "model_type": "gemma2",
        **_SIZES,
        **_WINDOWED,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {"model_type": "gemma3_text", **_SIZES, **_WINDOWED, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
    "gemma3_scaled": {
        "model_type": "gemma3_text",
        **_SIZES,
        **_WINDOWED,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma4_experts": {
        **_GEMMA4,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 5,
        "top_k_experts": 2,
        "moe_intermediate_size": 20,
    },
    "gemma4_shared": {
        **_GEMMA4,
        "hidden_size_per_layer_input": 6,
        "vocab_size_per_layer_input": 61,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    },
}


def dense_tree(tree: Any) -> Any:
    """The same tree with every quantised matrix as numbers."""
    return jax.tree.map(lambda leaf: dense(leaf) if is_quantised(leaf) else leaf, tree, is_leaf=is_quantised)


def merge(base: Base, adapter: Adapter) -> Base:
    """The base with the adapter added to its weights: what the two must give together."""
    layers = (_merge_layer(layer, pairs) for layer, pairs in zip(base.layers, adapter.layers, strict=True))
    return dataclasses.replace(base, layers=tuple(layers))


def _merge_layer(layer: Layer, pairs: Mapping[str, LoraPair]) -> Layer:
    merged = {}
    for module, pair in pairs.items():
        linear = vars(layer)[module]
        weight = dense(linear.weight).astype(jnp.float32) + pair.scale * jnp.matmul(pair.a, pair.b, precision="highest")
        merged[module] = dataclasses.replace(linear, weight=weight.astype(linear.weight.dtype))
    return dataclasses.replace(layer, **merged)
