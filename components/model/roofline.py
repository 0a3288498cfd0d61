"""An architecture and tokens -> the arithmetic that a training step cannot do without, and what the devices could do.

Of the frozen base only activations have gradients, so a linear layer costs two products of 2 x weights operations per
token: forward, and back. What rematerialisation computes again is not counted, nor is attention itself.
"""

import math

import jax

from components.model.architecture import Architecture

PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
}
"""bfloat16 operations per second of one device by the beginning of its kind (data sheets, without sparsity)."""


def weights_per_token(architecture: Architecture) -> int:
    """Weights that one token meets in all layers; of a mixture the experts that are chosen."""
    linear = sum(
        math.prod(shape)
        for layer in range(architecture.n_layers)
        for shape in architecture.linear_shapes(layer).values()
    )
    mixture = architecture.mixture
    if mixture is None:
        return linear
    layers = sum(architecture.has_experts(layer) for layer in range(architecture.n_layers))
    return linear + layers * mixture.per_token * 3 * architecture.d_model * mixture.d_ff


def step_operations(architecture: Architecture, tokens: int, sampled: int) -> float:
    """Of a training step over so many tokens; the head sees those that predict a sampled one."""
    head = architecture.vocab_size * architecture.d_model
    return 4.0 * (weights_per_token(architecture) * tokens + head * sampled)


def peak_operations() -> float | None:
    """What all devices of this program could do in a second in bfloat16; None for a kind that is not known."""
    devices = jax.devices()
    found = [peak for kind, peak in PEAKS.items() if devices[0].device_kind.startswith(kind)]
    return found[0] * len(devices) if found else None
