"""A Hugging Face config -> `Architecture`: the numbers and switches that tell one decoder from another.

Knows no arrays. What is said here is hashable, so that an architecture can be a static argument of a jitted function.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from components.errors import WeightsError

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Rotary frequencies divided by one factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's rule: low frequencies divided by `factor`, high ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (arXiv:2104.09864), halves rotated against each other as in Hugging Face."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """One decoder-only transformer.

    `windows` holds one entry per layer: the number of positions that a query sees, itself included, or None for all.
    Layers with a window rotate by `local_rope` where there is one. `embed_scale` multiplies the embeddings,
    `query_scale` the attention scores; the soft caps squeeze scores and logits by `cap * tanh(x / cap)`.
    `unit_offset_norms` says that Hugging Face stores norm weights with 1 subtracted; in a `Base` they are whole.
    """

    family: str
    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]
    query_scale: float
    local_rope: Rope | None = None
    activation: Activation = "silu"
    tie_embeddings: bool = True
    embed_scale: float = 1.0
    qk_norm: bool = False
    sandwich_norms: bool = False
    unit_offset_norms: bool = False
    attention_bias: bool = False
    attention_softcap: float | None = None
    final_softcap: float | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    max_positions: int = 2048

    def __post_init__(self) -> None:
        if len(self.windows) != self.n_layers:
            raise WeightsError(f"windows has {len(self.windows)} entries for {self.n_layers} layers; give one each")
        if self.n_heads % self.n_kv_heads:
            raise WeightsError(f"{self.n_heads} query heads cannot share {self.n_kv_heads} key heads evenly")

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> "Architecture":
        """Read a `config.json`, of transformers 4 or 5. Keys that do not bear on the numbers are left alone.

        Raises WeightsError that names an unknown `model_type`, a missing key, or a setting that is not supported.
        """
        family = config.get("model_type")
        if family == "gemma3" and "text_config" in config:
            return cls.from_huggingface({**config["text_config"], "model_type": "gemma3_text"})
        if family not in _FAMILIES:
            raise WeightsError(f"model_type {family!r} is not supported; known: {', '.join(sorted(_FAMILIES))}")
        keys = _Keys({**_DEFAULTS.get(family, {}), **{k: v for k, v in config.items() if v is not None}})
        return cls(**_common(keys), **_FAMILIES[family](keys))

    def linear_shape(self, module: str) -> tuple[int, int]:
        """(inputs, outputs) of one linear module, by its short name such as `q_proj`."""
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        return {
            "q_proj": (self.d_model, queries),
            "k_proj": (self.d_model, keys),
            "v_proj": (self.d_model, keys),
            "o_proj": (queries, self.d_model),
            "gate_proj": (self.d_model, self.d_ff),
            "up_proj": (self.d_model, self.d_ff),
            "down_proj": (self.d_ff, self.d_model),
        }[module]

    def biased(self, module: str) -> bool:
        """Whether a linear module has a bias, by its short name."""
        return self.attention_bias and module in ("q_proj", "k_proj", "v_proj")


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


def _gemma(keys: _Keys) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common."""
    keys.refuse("attention_bias")
    activation = keys.get("hidden_activation", keys.get("hidden_act", "gelu_pytorch_tanh"))
    if activation != "gelu_pytorch_tanh":
        raise WeightsError(f"config.json sets hidden_activation to {activation!r}, not 'gelu_pytorch_tanh'")
    return {
        "activation": "gelu_tanh",
        "sandwich_norms": True,
        "unit_offset_norms": True,
        "embed_scale": math.sqrt(keys.need("hidden_size")),
        "query_scale": keys.need("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": keys.get("attn_logit_softcapping"),
        "final_softcap": keys.get("final_logit_softcapping"),
        "tie_embeddings": keys.get("tie_word_embeddings", True),
    }


def _gemma2(keys: _Keys) -> dict[str, Any]:
    windows = _windows(keys, period=2)
    return {**_gemma(keys), "windows": windows, "rope": _rope(keys.get("rope_parameters") or _old_rope(keys))}


def _gemma3(keys: _Keys) -> dict[str, Any]:
    keys.refuse("use_bidirectional_attention")
    both = keys.get("rope_parameters") or {
        "full_attention": _old_rope(keys),
        "sliding_attention": {"rope_theta": keys.get("rope_local_base_freq", 10_000.0)},
    }
    windows = _windows(keys, period=keys.get("sliding_window_pattern", 6))
    ropes = {"rope": _rope(both["full_attention"]), "local_rope": _rope(both["sliding_attention"])}
    return {**_gemma(keys), **ropes, "windows": windows, "qk_norm": True}


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
    raise WeightsError(f"rope scaling {kind!r} is not supported; known: default, linear, llama3")


_FAMILIES: dict[str, Callable[[_Keys], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
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
}
