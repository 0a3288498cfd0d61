"""A source or an architecture -> how many numbers and bytes it takes, before a single weight is loaded."""

import math

import jax

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.base import Base, random_base
from components.model.gguf import open_gguf
from components.model.head import CHUNK
from components.model.huggingface import read_config
from components.model.lora import LoraConfig, bound_modules, module_shapes
from components.model.quantise import Kind, quantise_tree
from components.model.vocabulary import BLOCK_ROWS
from components.model.weights import locate

BYTES = {"float32": 4, "bfloat16": 2}
PROCESS_BYTES = 870_000_000
"""Libraries and runtime of a local run (the command's process and that of its train step), without any model."""
PROGRAM_BYTES = 46_000_000
"""What all compiled programs of a run, and compiling them, add for each layer, as layers are unrolled."""


def read_architecture(source: str) -> Architecture:
    """The architecture of what `weights.load` would load. Raises WeightsError as it does."""
    path = locate(source)
    if path.is_dir():
        return Architecture.from_huggingface(read_config(path))
    if path.suffix == ".gguf":
        return Architecture.from_huggingface(open_gguf(path)[0])
    raise WeightsError(f"{source} is neither a folder nor a .gguf file")


def base_parameters(architecture: Architecture) -> int:
    """Numbers in the linear layers, experts and embeddings; norms and biases are too few to name."""
    base = jax.eval_shape(lambda: random_base(jax.random.key(0), architecture))
    return sum(leaf.size for leaf in jax.tree.leaves(base) if leaf.ndim > 1)


def base_bytes(architecture: Architecture, *, dtype: str, quantise: Kind = "none") -> int:
    """Bytes of the frozen weights as `weights.load` keeps them; nothing is made to find out."""

    def make() -> Base:
        stored = dtype if quantise == "none" else "float32"
        return quantise_tree(random_base(jax.random.key(0), architecture, stored), quantise, dtype)

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(make)))


def adapter_parameters(architecture: Architecture, config: LoraConfig) -> int:
    """Numbers that are trained. Raises ConfigError for a pattern that binds no module."""
    shapes = module_shapes(architecture)
    return sum(config.rank_of(name) * sum(shapes[name]) for name in bound_modules(architecture, config))


def cache_bytes(architecture: Architecture, *, slots: int, capacity: int, dtype: str) -> int:
    """Keys and values of all slots and layers; a layer that borrows its keys holds none."""
    owners = (layer for layer in range(architecture.n_layers) if architecture.kv_owner(layer) == layer)
    per_token = 2 * sum(math.prod(architecture.kv_shape(layer)) for layer in owners)
    return slots * capacity * per_token * BYTES[dtype]


def process_bytes(architecture: Architecture) -> int:
    """What a local run holds beside arrays: an estimate, fitted to the peaks of runs of 3 and of 30 layers on a CPU."""
    return PROCESS_BYTES + PROGRAM_BYTES * architecture.n_layers


def head_bytes(architecture: Architecture, *, tokens: int) -> int:
    """What reading the head holds at its widest: two arrays of the logits of one chunk of tokens and one block."""
    return 2 * 4 * min(tokens, CHUNK) * min(architecture.vocab_size, BLOCK_ROWS)


def activation_bytes(architecture: Architecture, *, tokens: int, row_length: int) -> int:
    """What a training step holds at its widest, with rematerialised layers: an estimate, for planning.

    Every layer's input, and what is larger of the head and one layer's inside (projections, attention scores of whole
    rows, MLP, and their gradients), for all tokens.
    """
    layers = map(architecture.linear_shapes, range(architecture.n_layers))
    widths = max(sum(outputs for _, outputs in shapes.values()) for shapes in layers)
    inside = 4 * tokens * (3 * widths + 4 * architecture.n_heads * row_length)
    inputs = 4 * tokens * architecture.d_model * (architecture.n_layers + 1)
    return inputs + max(inside, head_bytes(architecture, tokens=tokens))
