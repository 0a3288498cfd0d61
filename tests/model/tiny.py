"""Configs of random models that are small enough for a unit test, one per family."""

from typing import Any

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

# In the spelling of transformers 4, which both major versions read.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES, "rope_theta": 1e5, "tie_word_embeddings": False},
    "llama_tied": {"model_type": "llama", **_SIZES, "tie_word_embeddings": True},
    "llama_scaled": {"model_type": "llama", **_SIZES, "rope_theta": 5e5, "rope_scaling": _LLAMA3},
    "qwen2": {"model_type": "qwen2", **_SIZES, "head_dim": 8, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_SIZES, "tie_word_embeddings": False},
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
}
