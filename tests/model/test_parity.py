"""The decoder against `transformers`, an independent implementation, on the same weights."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.model import huggingface, weights
from components.model.architecture import Architecture
from components.model.base import Base
from components.model.decoder import forward, logits
from tests.model.tiny import CONFIGS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = np.arange(3, 40).reshape(1, -1) * 7 % 59


def reference_model(config: dict[str, Any]) -> Any:
    """A random model of transformers in which no norm weight and no bias stands at its trivial start."""
    torch.manual_seed(0)
    kind = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(kind, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += (0.3 if parameter.ndim == 1 or "proj" in name else 0.05) * torch.randn_like(parameter)
    return model


def reference_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.as_tensor(tokens)).logits.float().numpy()


def our_logits(architecture: Architecture, base: Base, tokens: np.ndarray) -> np.ndarray:
    ids = jnp.asarray(tokens)
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden = jax.jit(forward, static_argnums=0)(architecture, base, None, ids, positions, jnp.ones_like(ids))
    return np.asarray(logits(architecture, base, hidden))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_a_random_checkpoint_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = reference_model(CONFIGS[name])
    model.save_pretrained(tmp_path)
    loaded = weights.load(str(tmp_path))
    difference = np.abs(our_logits(loaded.architecture, loaded.base, TOKENS) - reference_logits(model, TOKENS))
    assert difference.max() < 1e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_tensors_and_config_written_back_make_the_same_model_in_transformers(name: str, tmp_path: Path) -> None:
    architecture = Architecture.from_huggingface(CONFIGS[name])
    base = weights.random_base(jax.random.key(0), architecture)
    config = huggingface.huggingface_config(architecture)
    assert Architecture.from_huggingface(config) == architecture
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).float().eval()
    tensors = {
        key: torch.tensor(value) for key, value in huggingface.to_huggingface_tensors(architecture, base).items()
    }
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert unexpected == []
    assert missing == (["lm_head.weight"] if architecture.tie_embeddings else [])
    model.tie_weights()
    difference = np.abs(our_logits(architecture, base, TOKENS) - reference_logits(model, TOKENS))
    assert difference.max() < 1e-4
