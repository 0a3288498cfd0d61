"""A source or an architecture -> how many numbers and bytes it takes, before a single weight is loaded."""

from components.errors import WeightsError
from components.model.architecture import Architecture
from components.model.base import LINEAR_MODULES
from components.model.gguf import open_gguf
from components.model.huggingface import read_config
from components.model.lora import LoraConfig, bound_modules
from components.model.weights import locate

BYTES = {"float32": 4, "bfloat16": 2}


def read_architecture(source: str) -> Architecture:
    """The architecture of what `weights.load` would load. Raises WeightsError as it does."""
    path = locate(source)
    if path.is_dir():
        return Architecture.from_huggingface(read_config(path))
    if path.suffix == ".gguf":
        return Architecture.from_huggingface(open_gguf(path)[0])
    raise WeightsError(f"{source} is neither a folder nor a .gguf file")


def base_parameters(architecture: Architecture) -> int:
    """Numbers in the linear layers and the embeddings; norms and biases are too few to plan for."""
    layer = sum(inputs * outputs for inputs, outputs in map(architecture.linear_shape, LINEAR_MODULES))
    tables = 1 if architecture.tie_embeddings else 2
    return architecture.n_layers * layer + tables * architecture.vocab_size * architecture.d_model


def adapter_parameters(architecture: Architecture, config: LoraConfig) -> int:
    """Numbers that are trained. Raises ConfigError for a pattern that binds no module."""
    bound = bound_modules(architecture, config)
    return sum(config.rank_of(name) * sum(architecture.linear_shape(name.rpartition(".")[2])) for name in bound)


def cache_bytes(architecture: Architecture, *, slots: int, capacity: int, dtype: str) -> int:
    """Keys and values of all slots and layers."""
    per_token = 2 * architecture.n_layers * architecture.n_kv_heads * architecture.head_dim
    return slots * capacity * per_token * BYTES[dtype]


def activation_bytes(architecture: Architecture, *, tokens: int, row_length: int) -> int:
    """What a training step holds at its widest, with rematerialised layers: an estimate, for planning.

    One layer's inside (projections, attention scores of whole rows, MLP) for all tokens, and every layer's input.
    """
    widths = sum(outputs for _, outputs in map(architecture.linear_shape, LINEAR_MODULES))
    inside = tokens * (2 * widths + 2 * architecture.n_heads * row_length)
    return 4 * (inside + tokens * architecture.d_model * (architecture.n_layers + 1))
