"""The switches by which decoders differ beyond plain sizes: rotation, heads, experts, a second embedding.

Hashable, and without arrays, as the `Architecture` that holds them is.
"""

from dataclasses import dataclass
from typing import Literal

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
class PartialRotation:
    """Gemma 4's rule: only the first `fraction` of a head's planes turn, at frequencies divided by `factor`."""

    fraction: float
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (arXiv:2104.09864), halves rotated against each other as in Hugging Face."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | PartialRotation | None = None


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts in the MLP's place, or beside it: a router gives each token to `per_token` of `count` MLPs, `d_ff` wide.

    Chosen weights are probabilities over all experts; `normalised` scales those of a token to sum to 1.
    """

    count: int
    per_token: int
    d_ff: int
    layers: tuple[int, ...]
    normalised: bool = True
    beside_mlp: bool = False


@dataclass(frozen=True, slots=True)
class GlobalHeads:
    """Key heads and their size in layers without a window, where they differ; without `values`, keys serve as such."""

    n_kv_heads: int
    head_dim: int
    values: bool = True


@dataclass(frozen=True, slots=True)
class LayerEmbedding:
    """A second embedding with `width` numbers per token and layer, which every layer adds behind its MLP."""

    vocab_size: int
    width: int
