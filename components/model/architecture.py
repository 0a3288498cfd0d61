"""What tells one decoder from another: its sizes and switches, and the shapes that follow from them.

Knows no arrays. What is said here is hashable, so that an architecture can be a static argument of a jitted function.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.errors import WeightsError
from components.model import families
from components.model.switches import Activation, GlobalHeads, LayerEmbedding, Mixture, Rope


@dataclass(frozen=True, slots=True)
class Architecture:
    """One decoder-only transformer.

    `windows` holds one entry per layer: the number of positions that a query sees, itself included, or None for all.
    Layers with a window rotate by `local_rope` where there is one. `embed_scale` multiplies the embeddings,
    `query_scale` the attention scores; the soft caps squeeze scores and logits by `cap * tanh(x / cap)`.
    `unit_offset_norms` says that Hugging Face stores norm weights with 1 subtracted; in a `Base` they are whole.
    The last `borrowing` layers have no keys and values, and use those of the last layer of their kind that does;
    `borrower_d_ff` is the width of their MLPs.
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
    value_norm: bool = False
    layer_scale: bool = False
    global_heads: GlobalHeads | None = None
    borrowing: int = 0
    borrower_d_ff: int | None = None
    layer_embedding: LayerEmbedding | None = None
    mixture: Mixture | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    max_positions: int = 2048

    def __post_init__(self) -> None:
        if len(self.windows) != self.n_layers:
            raise WeightsError(f"windows has {len(self.windows)} entries for {self.n_layers} layers; give one each")
        if self.n_heads % self.n_kv_heads:
            raise WeightsError(f"{self.n_heads} query heads cannot share {self.n_kv_heads} key heads evenly")
        if self.mixture is not None and not 1 <= self.mixture.per_token <= self.mixture.count:
            raise WeightsError(f"a token cannot go to {self.mixture.per_token} of {self.mixture.count} experts")

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> "Architecture":
        """Read a `config.json`, of transformers 4 or 5. Keys that do not bear on the numbers are left alone.

        Raises WeightsError that names an unknown `model_type`, a missing key, or a setting that is not supported.
        """
        family = config.get("model_type")
        if family in ("gemma3", "gemma4") and "text_config" in config:
            ends = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config.get(key) is not None}
            return cls.from_huggingface({**config["text_config"], **ends, "model_type": f"{family}_text"})
        return cls(**families.read(config))

    def kv_shape(self, layer: int) -> tuple[int, int]:
        """(key heads, size of a head) of one layer; a layer that borrows its keys has as many as their owner."""
        if self.global_heads is None or self.windows[layer] is not None:
            return self.n_kv_heads, self.head_dim
        return self.global_heads.n_kv_heads, self.global_heads.head_dim

    def kv_owner(self, layer: int) -> int:
        """The layer whose keys and values this one attends to: itself, or the one that it borrows from."""
        own = self.n_layers - self.borrowing
        if layer < own:
            return layer
        windowed = self.windows[layer] is not None
        return max(each for each in range(own) if (self.windows[each] is not None) == windowed)

    def has_experts(self, layer: int) -> bool:
        """Whether the layer has a mixture of experts."""
        return self.mixture is not None and layer in self.mixture.layers

    def linear_shapes(self, layer: int) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of every linear module of one layer, by short name such as `q_proj`; experts are none."""
        kv_heads, head_dim = self.kv_shape(layer)
        borrows = self.kv_owner(layer) != layer
        d_ff = self.borrower_d_ff if borrows and self.borrower_d_ff is not None else self.d_ff
        shapes = {
            "q_proj": (self.d_model, self.n_heads * head_dim),
            "k_proj": (self.d_model, kv_heads * head_dim),
            "v_proj": (self.d_model, kv_heads * head_dim),
            "o_proj": (self.n_heads * head_dim, self.d_model),
            "gate_proj": (self.d_model, d_ff),
            "up_proj": (self.d_model, d_ff),
            "down_proj": (d_ff, self.d_model),
        }
        absent = {"k_proj", "v_proj"} if borrows else set()
        if self.global_heads is not None and not self.global_heads.values and self.windows[layer] is None:
            absent.add("v_proj")
        if self.mixture is not None and self.has_experts(layer) and not self.mixture.beside_mlp:
            absent |= {"gate_proj", "up_proj", "down_proj"}
        return {module: shape for module, shape in shapes.items() if module not in absent}

    def linear_shape(self, module: str, layer: int | None = None) -> tuple[int, int]:
        """(inputs, outputs) of one linear module; `layer` can be left out where every layer has it in one shape.

        Raises WeightsError naming the layers that have no such module, or the shapes that differ.
        """
        layers = range(self.n_layers) if layer is None else (layer,)
        found = {each: self.linear_shapes(each).get(module) for each in layers}
        lacking = [str(each) for each, shape in found.items() if shape is None]
        if lacking:
            why = "; its experts take no adapter" if self.mixture is not None else ""
            where = f"{'layer' if len(lacking) == 1 else 'layers'} {', '.join(lacking)}"
            raise WeightsError(f"a {self.family} model of this config has no linear module {module} in {where}{why}")
        shapes = sorted({shape for shape in found.values() if shape is not None})
        if len(shapes) > 1:
            raise WeightsError(f"{module} of this {self.family} model has several shapes, by layer: {shapes}")
        return shapes[0]

    def biased(self, module: str) -> bool:
        """Whether a linear module has a bias, by its short name."""
        return self.attention_bias and module in ("q_proj", "k_proj", "v_proj")
