"""A source or an architecture -> how many numbers and bytes it takes, before a single weight is loaded."""

import math
from typing import Any

import jax
from jax.sharding import AbstractMesh

from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.head import CHUNK
from components.model.quantise import Kind, quantise_tree
from components.model.remat import Remat
from components.model.sharding import MESH_AXES, ROWS, Axes, logical_axes, parts
from components.model.source import open_source
from components.model.vocabulary import BLOCK_ROWS

ONE_DEVICE = AbstractMesh((1, 1, 1), MESH_AXES)
BYTES = {"float32": 4, "bfloat16": 2}
PROCESS_BYTES = 1_030_000_000
"""Libraries and runtime of a local run (the command's process and that of its train step), without any model.

Fitted with PROGRAM_BYTES to the peaks of both processes on x86-64 Linux, JAX on a CPU, with nothing compiled before:
`smoke` (3 layers) 0.33 + 0.81 GiB and `quickstart` (30 layers) 0.33 + 2.99 GiB, less the arrays of their plans. Of the
0.33 GiB a third is jaxlib's, and the rest kfp, orbax, the cluster's and the storage's clients, and the report's plots.
"""
PROGRAM_BYTES = 52_000_000
"""What all compiled programs of a run, and compiling them, add for each layer, as layers are unrolled."""


def read_architecture(source: str) -> Architecture:
    """The architecture of what `weights.load` would load. Raises WeightsError as it does."""
    return open_source(source).architecture


def base_parameters(architecture: Architecture) -> int:
    """Numbers in the linear layers, experts and embeddings; norms and biases are too few to name."""
    base = jax.eval_shape(lambda: random_base(jax.random.key(0), architecture))
    return sum(leaf.size for leaf in jax.tree.leaves(base) if leaf.ndim > 1)


def base_bytes(
    architecture: Architecture, *, dtype: str, quantise: Kind = "none", mesh: AbstractMesh = ONE_DEVICE
) -> int:
    """Bytes of the frozen weights as a device of `mesh` keeps them; nothing is made to find out."""

    def make() -> Base:
        stored = dtype if quantise == "none" else "float32"
        return quantise_tree(random_base(jax.random.key(0), architecture, stored), quantise, dtype)

    return bytes_of(jax.eval_shape(make), mesh)


def bytes_of(tree: Any, mesh: AbstractMesh = ONE_DEVICE) -> int:
    """Bytes that a device of `mesh` holds of a base, an adapter, or of their shapes."""
    total = 0
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        total += _part_bytes(mesh, logical_axes(name, leaf.ndim), leaf.shape, leaf.dtype.itemsize)
    return total


def _part_bytes(mesh: AbstractMesh, axes: Axes, shape: tuple[int, ...], item: int) -> int:
    """Bytes on each device of an array of this shape."""
    return math.prod(shape) * item // parts(mesh, axes, shape)


def cache_bytes(
    architecture: Architecture, *, slots: int, capacity: int, dtype: str, mesh: AbstractMesh = ONE_DEVICE
) -> int:
    """Keys and values of all slots and layers on a device; a layer that borrows its keys holds none."""
    owners = (layer for layer in range(architecture.n_layers) if architecture.kv_owner(layer) == layer)
    shapes = ((slots, *architecture.kv_shape(layer), capacity) for layer in owners)
    return 2 * sum(_part_bytes(mesh, (ROWS, "heads", None, None), shape, BYTES[dtype]) for shape in shapes)


def process_bytes(architecture: Architecture) -> int:
    """What a local run holds beside arrays: an estimate."""
    return PROCESS_BYTES + PROGRAM_BYTES * architecture.n_layers


def head_bytes(architecture: Architecture, *, tokens: int) -> int:
    """What reading the head holds at its widest: two arrays of the logits of one chunk of tokens and one block."""
    return 2 * 4 * min(tokens, CHUNK) * min(architecture.vocab_size, BLOCK_ROWS)


def activation_bytes(
    architecture: Architecture, *, tokens: int, row_length: int, tensor: int = 1, remat: Remat = "full"
) -> int:
    """What a training step holds at its widest: an estimate, for planning.

    Every layer's input, and what is larger of the head and one layer's inside (projections, norms behind them,
    attention scores of whole rows, MLP, and their gradients), for all tokens that a device computes; `tensor` devices
    share a layer's inside. What `remat` keeps of the other layers comes on top.
    """
    widths = [_widths(architecture, index) for index in range(architecture.n_layers)]
    normed = max(_normed_widths(architecture, index) for index in range(architecture.n_layers))
    scores = architecture.n_heads * row_length
    inside = 3 * (max(widths) + normed) + 4 * scores
    others = sum(widths) - max(widths)
    kept = {"full": 0, "linear_outputs": others, "none": 3 * others + 3 * (architecture.n_layers - 1) * scores}
    inputs = 4 * tokens * architecture.d_model * (architecture.n_layers + 1)
    within = max(4 * tokens * inside // tensor, head_bytes(architecture, tokens=tokens))
    return inputs + 4 * tokens * kept[remat] // tensor + within


def _widths(architecture: Architecture, layer: int) -> int:
    """Outputs of all linear modules of a layer together."""
    return sum(outputs for _, outputs in architecture.linear_shapes(layer).values())


def _normed_widths(architecture: Architecture, layer: int) -> int:
    """Of those outputs, how many are normed right behind their module."""
    shapes = architecture.linear_shapes(layer)
    heads = sum(shapes[module][1] for module in ("q_proj", "k_proj") if module in shapes) if architecture.qk_norm else 0
    return heads + (2 * architecture.d_model if architecture.sandwich_norms else 0)
