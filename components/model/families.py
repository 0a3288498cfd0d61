"""A Hugging Face config -> the sizes and switches of an `Architecture`, one function per family.

Keys that do not bear on the numbers are left alone; a setting that does, and is not implemented, is refused by name.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from components.errors import WeightsError
from components.model.switches import (
    GlobalHeads,
    LayerEmbedding,
    LinearScaling,
    Llama3Scaling,
    Mixture,
    PartialRotation,
    Rope,
)


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `Architecture` by name. Raises WeightsError as `Architecture.from_huggingface` does."""
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise WeightsError(f"model_type {family!r} is not supported; known: {', '.join(sorted(_FAMILIES))}")
    keys = _Keys({**_DEFAULTS.get(family, {}), **{k: v for k, v in config.items() if v is not None}})
    return {**_common(keys), **_FAMILIES[family](keys)}


class _Keys:
    """A config whose missing keys are reported by name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def need(self, key: str) -> Any:
        if key not in self.values:
            raise WeightsError(f"config.json of a {self.values.get('model_type')} model lacks the key {key!r}")
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def refuse(self, key: str) -> None:
        if self.values.get(key):
            raise WeightsError(f"config.json sets {key} to {self.values[key]!r}, which this decoder does not implement")


def _common(keys: _Keys) -> dict[str, Any]:
    d_model, n_heads = keys.need("hidden_size"), keys.need("num_attention_heads")
    eos = keys.get("eos_token_id", ())
    return {
        "family": keys.need("model_type"),
        "vocab_size": keys.need("vocab_size"),
        "d_model": d_model,
        "n_layers": keys.need("num_hidden_layers"),
        "n_heads": n_heads,
        "n_kv_heads": keys.get("num_key_value_heads", n_heads),
        "head_dim": keys.get("head_dim", d_model // n_heads),
        "d_ff": keys.need("intermediate_size"),
        "norm_eps": keys.get("rms_norm_eps", 1e-6),
        "eos_token_ids": (eos,) if isinstance(eos, int) else tuple(eos),
        "bos_token_id": keys.get("bos_token_id"),
        "max_positions": keys.get("max_position_embeddings", 2048),
    }


def _plain(keys: _Keys) -> dict[str, Any]:
    """What Llama and Qwen have in common."""
    keys.refuse("mlp_bias")
    if keys.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"config.json sets hidden_act to {keys.get('hidden_act')!r}, not 'silu'")
    common = _common(keys)
    return {
        "rope": _rope(keys.get("rope_parameters") or _old_rope(keys)),
        "windows": (None,) * common["n_layers"],
        "query_scale": common["head_dim"] ** -0.5,
        "tie_embeddings": keys.get("tie_word_embeddings", False),
    }


def _llama(keys: _Keys) -> dict[str, Any]:
    keys.refuse("attention_bias")
    return _plain(keys)


def _qwen2(keys: _Keys) -> dict[str, Any]:
    keys.refuse("use_sliding_window")
    return {**_plain(keys), "attention_bias": True}


def _qwen3(keys: _Keys) -> dict[str, Any]:
    keys.refuse("use_sliding_window")
    keys.refuse("attention_bias")
    return {**_plain(keys), "qk_norm": True}


def _qwen3_moe(keys: _Keys) -> dict[str, Any]:
    step, layers = keys.get("decoder_sparse_step", 1), range(keys.need("num_hidden_layers"))
    dense = keys.get("mlp_only_layers", [])
    mixture = Mixture(
        count=keys.need("num_local_experts" if "num_local_experts" in keys.values else "num_experts"),
        per_token=keys.need("num_experts_per_tok"),
        d_ff=keys.need("moe_intermediate_size"),
        layers=tuple(layer for layer in layers if layer not in dense and (layer + 1) % step == 0),
        normalised=keys.get("norm_topk_prob", False),
    )
    return {**_qwen3(keys), "mixture": mixture if mixture.layers else None}


def _gemma(keys: _Keys) -> dict[str, Any]:
    """What every Gemma has in common."""
    keys.refuse("attention_bias")
    activation = keys.get("hidden_activation", keys.get("hidden_act", "gelu_pytorch_tanh"))
    if activation != "gelu_pytorch_tanh":
        raise WeightsError(f"config.json sets hidden_activation to {activation!r}, not 'gelu_pytorch_tanh'")
    return {
        "activation": "gelu_tanh",
        "sandwich_norms": True,
        "embed_scale": math.sqrt(keys.need("hidden_size")),
        "final_softcap": keys.get("final_logit_softcapping"),
        "tie_embeddings": keys.get("tie_word_embeddings", True),
    }


def _older_gemma(keys: _Keys) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common."""
    return {
        **_gemma(keys),
        "unit_offset_norms": True,
        "query_scale": keys.need("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": keys.get("attn_logit_softcapping"),
    }


def _gemma2(keys: _Keys) -> dict[str, Any]:
    windows = _windows(keys, period=2)
    return {**_older_gemma(keys), "windows": windows, "rope": _rope(keys.get("rope_parameters") or _old_rope(keys))}


def _gemma3(keys: _Keys) -> dict[str, Any]:
    keys.refuse("use_bidirectional_attention")
    both = keys.get("rope_parameters") or {
        "full_attention": _old_rope(keys),
        "sliding_attention": {"rope_theta": keys.get("rope_local_base_freq", 10_000.0)},
    }
    windows = _windows(keys, period=keys.get("sliding_window_pattern", 6))
    ropes = {"rope": _rope(both["full_attention"]), "local_rope": _rope(both["sliding_attention"])}
    return {**_older_gemma(keys), **ropes, "windows": windows, "qk_norm": True}


def _gemma4(keys: _Keys) -> dict[str, Any]:
    if keys.get("use_bidirectional_attention") == "all":
        keys.refuse("use_bidirectional_attention")
    both = keys.need("rope_parameters")
    borrowing, width = keys.get("num_kv_shared_layers", 0), keys.get("hidden_size_per_layer_input", 256)
    windows = (*_windows(keys, period=6)[:-1], None)
    if not {window is None for window in windows} == {window is None for window in windows[: len(windows) - borrowing]}:
        raise WeightsError(f"config.json lets {borrowing} layers share keys (num_kv_shared_layers) that no layer makes")
    return {
        **_gemma(keys),
        "windows": windows,
        "rope": _rope(both["full_attention"]),
        "local_rope": _rope(both["sliding_attention"]),
        "query_scale": 1.0,
        "qk_norm": True,
        "value_norm": True,
        "layer_scale": True,
        "global_heads": _global_heads(keys, windows),
        "borrowing": borrowing,
        "borrower_d_ff": 2 * keys.need("intermediate_size") if keys.get("use_double_wide_mlp") else None,
        "layer_embedding": LayerEmbedding(keys.need("vocab_size_per_layer_input"), width) if width else None,
        "mixture": _gemma4_mixture(keys) if keys.get("enable_moe_block") else None,
    }


def _global_heads(keys: _Keys, windows: tuple[int | None, ...]) -> GlobalHeads:
    """From `global_head_dim`, or from the `per_layer_config` that newer versions of transformers write instead."""
    alike = keys.get("attention_k_eq_v", False)
    kv_heads = keys.get("num_global_key_value_heads") if alike else None
    head_dim = keys.get("global_head_dim", 512)
    layers = keys.get("per_layer_config")
    if layers is not None:
        found = [layers.get(str(layer), layers.get(layer, {})) for layer in range(len(windows))]
        wide = [each for each, window in zip(found, windows, strict=True) if window is None]
        rest = [each for each, window in zip(found, windows, strict=True) if window is not None]
        if any(rest) or any(each != wide[0] or each.keys() - {"head_dim", "num_key_value_heads"} for each in wide):
            raise WeightsError("config.json sets per_layer_config to more than one size of heads in global layers")
        head_dim, kv_heads = wide[0].get("head_dim", keys.need("head_dim")), wide[0].get("num_key_value_heads")
    return GlobalHeads(kv_heads or keys.need("num_key_value_heads"), head_dim, values=not alike)


def _gemma4_mixture(keys: _Keys) -> Mixture:
    return Mixture(
        count=keys.need("num_experts"),
        per_token=keys.need("top_k_experts"),
        d_ff=keys.need("moe_intermediate_size"),
        layers=tuple(range(keys.need("num_hidden_layers"))),
        beside_mlp=True,
    )


def _windows(keys: _Keys, period: int) -> tuple[int | None, ...]:
    """Per layer from `layer_types`; without them every `period`-th layer sees everything."""
    layers = keys.need("num_hidden_layers")
    kinds = keys.get("layer_types") or [
        "sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)
    ]
    return tuple(keys.need("sliding_window") if kind == "sliding_attention" else None for kind in kinds)


def _old_rope(keys: _Keys) -> dict[str, Any]:
    return {"rope_theta": keys.get("rope_theta", 10_000.0), **keys.get("rope_scaling", {})}


def _rope(values: Mapping[str, Any]) -> Rope:
    theta = float(values["rope_theta"])
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, LinearScaling(float(values["factor"])))
    if kind == "llama3":
        factor, low, high = (float(values[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        return Rope(theta, Llama3Scaling(factor, low, high, values["original_max_position_embeddings"]))
    if kind == "proportional":
        fraction = float(values.get("partial_rotary_factor", 1.0))
        return Rope(theta, PartialRotation(fraction, float(values.get("factor", 1.0))))
    raise WeightsError(f"rope scaling {kind!r} is not supported; known: default, linear, llama3, proportional")


_FAMILIES: dict[str, Callable[[_Keys], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
}

# Published Gemma configs leave out what equals the default of their transformers class.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 256, "head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
    },
    "gemma4_text": {
        "head_dim": 256,
        "sliding_window": 512,
        "vocab_size_per_layer_input": 262_144,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
    },
}
