"""The decoder against `transformers`, an independent implementation, on the same weights."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from components.model import huggingface, weights
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.cache import init_cache
from components.model.decoder import forward, forward_cached, logits
from tests.model.tiny import CONFIGS, quick_jit

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = np.arange(3, 40).reshape(1, -1) * 7 % 59


def reference_model(config: dict[str, Any]) -> Any:
    """A random model of transformers in which no norm weight and no bias stands at its trivial start."""
    torch.manual_seed(0)
    kind = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(kind, attn_implementation="eager").float().eval()
    scales = {name: buffer for name, buffer in model.named_buffers() if name.endswith("layer_scalar")}
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *scales.items()]:
            parameter += (0.3 if parameter.ndim == 1 or "proj" in name else 0.05) * torch.randn_like(parameter)
    return model


def reference_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.as_tensor(tokens)).logits.float().numpy()


def reference_gradient(model: Any, folder: Path) -> dict[str, np.ndarray]:
    """The gradient of the loss of predicting each next token, in the names and layouts of a checkpoint."""
    tokens = torch.as_tensor(TOKENS)
    scores = model(input_ids=tokens).logits
    torch.nn.functional.cross_entropy(scores[0, :-1], tokens[0, 1:]).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def our_logits(architecture: Architecture, base: Base, tokens: np.ndarray) -> np.ndarray:
    ids = jnp.asarray(tokens)
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden = jax.jit(forward, static_argnums=0)(architecture, base, None, ids, positions, jnp.ones_like(ids))
    return np.asarray(logits(architecture, base, hidden))


@functools.partial(quick_jit, static_argnums=0)
def gradient_and_logits(architecture: Architecture, base: Base) -> tuple[Base, Any]:
    ids = jnp.asarray(TOKENS)

    def loss(base: Base) -> Any:
        hidden = forward(architecture, base, None, ids, jnp.arange(ids.shape[1])[None], jnp.ones_like(ids))
        scores = logits(architecture, base, hidden)
        logprobs = jax.nn.log_softmax(scores[0, :-1])
        return -jnp.mean(jnp.take_along_axis(logprobs, ids[0, 1:, None], axis=-1)), scores

    return jax.grad(loss, has_aux=True)(base)


def cached_logits(architecture: Architecture, base: Base) -> np.ndarray:
    """Prefill in chunks that no window divides, the last one padded, then one token at a time, in slot 1 of 2."""
    run = quick_jit(forward_cached, static_argnums=0)
    cache, hidden = init_cache(architecture, slots=2, capacity=40), []
    for start, stop in [(0, 11), (11, 22), (22, 27)]:
        chunk = jnp.asarray(np.pad(TOKENS[:, start:stop], ((0, 0), (0, 11 - (stop - start)))))
        out, cache = run(architecture, base, None, chunk, cache, slots=jnp.asarray([1]), starts=jnp.asarray([start]))
        hidden.append(out[0, : stop - start])
    for position in range(27, TOKENS.shape[1]):
        column = jnp.asarray([[0], [TOKENS[0, position]]])
        out, cache = run(architecture, base, None, column, cache, slots=None, starts=jnp.asarray([40, position]))
        hidden.append(out[1])
    return np.asarray(logits(architecture, base, jnp.concatenate(hidden)[None]))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_random_checkpoint_has_the_logits_and_the_gradient_that_it_has_in_transformers(
    name: str, tmp_path: Path, record_property: Any
) -> None:
    model = reference_model(CONFIGS[name])
    model.save_pretrained(tmp_path)
    loaded = weights.load(str(tmp_path))
    expected = reference_logits(model, TOKENS)
    gradient, scores = gradient_and_logits(loaded.architecture, loaded.base)
    assert np.abs(np.asarray(scores) - expected).max() < 1e-4
    assert np.abs(cached_logits(loaded.architecture, loaded.base) - expected).max() < 1e-4
    # Derivatives have no 1 subtracted, whatever the weights have.
    plain = dataclasses.replace(loaded.architecture, unit_offset_norms=False)
    ours, theirs = huggingface.to_huggingface_tensors(plain, gradient), reference_gradient(model, tmp_path)
    assert ours.keys() - theirs.keys() == set()
    for key, tensor in ours.items():
        if not key.endswith("layer_scalar"):
            np.testing.assert_allclose(tensor, theirs[key], atol=1e-4, rtol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_back_is_the_same_model_in_transformers(name: str, tmp_path: Path) -> None:
    model = reference_model(CONFIGS[name])
    model.save_pretrained(tmp_path)
    loaded = weights.load(str(tmp_path))
    config = huggingface.huggingface_config(loaded.architecture)
    assert Architecture.from_huggingface(config) == loaded.architecture
    written, stored = (
        huggingface.to_huggingface_tensors(loaded.architecture, loaded.base),
        load_file(tmp_path / "model.safetensors"),
    )
    assert written.keys() == stored.keys()
    for key, tensor in written.items():
        np.testing.assert_allclose(tensor, stored[key], atol=1e-6, err_msg=key)
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, config=transformers.AutoConfig.for_model(**config), attn_implementation="eager"
    )
    np.testing.assert_array_equal(reference_logits(again, TOKENS), reference_logits(model, TOKENS))
