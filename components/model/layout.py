"""An architecture -> every tensor of its Hugging Face checkpoint, and the array of a `Base` that it is."""

from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

from components.model.architecture import Architecture
from components.model.base import module_name

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"

Kind = Literal["table", "matrix", "experts", "norm", "vector"]


class Place(NamedTuple):
    """One array.

    `field` is its path in a `Layer` (or a `Base`), such as `q_proj.weight`; `names` are the tensors that a checkpoint
    keeps it in, each of `shape`. What kind it is says how the two differ: a `table` does not, a `matrix` is turned,
    `experts` are matrices behind each other, a `norm` may have 1 subtracted; `norm` and `vector` are always float32.
    """

    field: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    kind: Kind


def top_places(architecture: Architecture) -> Iterator[Place]:
    """The arrays that belong to no layer."""
    table = (architecture.vocab_size, architecture.d_model)
    yield Place("embedding", (EMBEDDING,), table, "table")
    yield Place("final_norm", (FINAL_NORM,), (architecture.d_model,), "norm")
    if not architecture.tie_embeddings:
        yield Place("head", (HEAD,), table, "table")
    if (second := architecture.layer_embedding) is not None:
        across = architecture.n_layers * second.width
        yield Place(
            "second_embedding.table",
            ("model.embed_tokens_per_layer.weight",),
            (second.vocab_size, across),
            "table",
        )
        projection = ("model.per_layer_model_projection.weight",)
        yield Place("second_embedding.projection.weight", projection, (across, architecture.d_model), "matrix")
        yield Place("second_embedding.norm", ("model.per_layer_projection_norm.weight",), (second.width,), "norm")


def layer_places(architecture: Architecture, index: int) -> Iterator[Place]:
    """The arrays of one layer."""
    layer, width = f"model.layers.{index}", (architecture.d_model,)
    yield from (Place(field, (f"{layer}.{name}.weight",), width, "norm") for field, name in _norms(architecture))
    for module, (inputs, outputs) in architecture.linear_shapes(index).items():
        name = module_name(index, module)
        yield Place(f"{module}.weight", (f"{name}.weight",), (outputs, inputs), "matrix")
        if architecture.biased(module):
            yield Place(f"{module}.bias", (f"{name}.bias",), (outputs,), "vector")
    if architecture.qk_norm:
        head_dim = (architecture.kv_shape(index)[1],)
        for part in "q" if architecture.kv_owner(index) != index else "qk":
            yield Place(f"{part}_norm", (f"{layer}.self_attn.{part}_norm.weight",), head_dim, "norm")
    if architecture.has_experts(index):
        yield from _expert_places(architecture, layer)
    if (second := architecture.layer_embedding) is not None:
        into, out = (second.width, architecture.d_model), (architecture.d_model, second.width)
        yield Place("layer_input.gate.weight", (f"{layer}.per_layer_input_gate.weight",), into, "matrix")
        yield Place("layer_input.projection.weight", (f"{layer}.per_layer_projection.weight",), out, "matrix")
        yield Place("layer_input.post_norm", (f"{layer}.post_per_layer_input_norm.weight",), width, "norm")
    if architecture.layer_scale:
        yield Place("scale", (f"{layer}.layer_scalar",), (1,), "vector")


def stored_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the checkpoint by its name, in the order in which it is written."""
    layers = (layer_places(architecture, index) for index in range(architecture.n_layers))
    return {name: place.shape for place in chain(top_places(architecture), *layers) for name in place.names}


def _norms(architecture: Architecture) -> Iterator[tuple[str, str]]:
    yield "attention_norm", "input_layernorm"
    if architecture.sandwich_norms:
        yield "post_attention_norm", "post_attention_layernorm"
        yield "mlp_norm", "pre_feedforward_layernorm"
        yield "post_mlp_norm", "post_feedforward_layernorm"
    else:
        yield "mlp_norm", "post_attention_layernorm"
    if architecture.mixture is not None and architecture.mixture.beside_mlp:
        yield "experts.beside.mlp_post_norm", "post_feedforward_layernorm_1"
        yield "experts.beside.norm", "pre_feedforward_layernorm_2"
        yield "experts.beside.post_norm", "post_feedforward_layernorm_2"


def _expert_places(architecture: Architecture, layer: str) -> Iterator[Place]:
    """One tensor per expert and projection where experts take the MLP's place, all in one where they are beside it."""
    mixture, width = architecture.mixture, architecture.d_model
    assert mixture is not None
    if mixture.beside_mlp:
        experts = f"{layer}.experts"
        yield Place("experts.router", (f"{layer}.router.proj.weight",), (mixture.count, width), "matrix")
        yield Place("experts.beside.router_scale", (f"{layer}.router.scale",), (width,), "vector")
        yield Place("experts.beside.output_scale", (f"{layer}.router.per_expert_scale",), (mixture.count,), "vector")
        gate_up = (mixture.count, 2 * mixture.d_ff, width)
        yield Place("experts.gate_up", (f"{experts}.gate_up_proj",), gate_up, "experts")
        yield Place("experts.down", (f"{experts}.down_proj",), (mixture.count, width, mixture.d_ff), "experts")
        return
    each = [f"{layer}.mlp.experts.{expert}" for expert in range(mixture.count)]
    pairs = tuple(f"{expert}.{part}_proj.weight" for expert in each for part in ("gate", "up"))
    yield Place("experts.router", (f"{layer}.mlp.gate.weight",), (mixture.count, width), "matrix")
    yield Place("experts.gate_up", pairs, (mixture.d_ff, width), "experts")
    downs = tuple(f"{expert}.down_proj.weight" for expert in each)
    yield Place("experts.down", downs, (width, mixture.d_ff), "experts")
