"""A version serves only after it is proven; each way of going wrong stops the run with its name."""

import dataclasses
from concurrent.futures import Future

import jax
import numpy as np
import pytest

from components.errors import ProofError
from components.model.lora import Adapter, LoraPair
from components.training.weight_sync import WeightSync, delta_norm, fingerprint

WEIGHT = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


def adapter(seed: int = 0, scale: float = 2.0) -> Adapter:
    a, b = jax.random.normal(jax.random.key(seed), (4, 2)), jax.random.normal(jax.random.key(seed + 1), (2, 5))
    return Adapter(layers=({"q_proj": LoraPair(a=a, b=b, scale=scale)},))


def scored(adapter: Adapter, token_ids) -> np.ndarray:
    """A one-layer stand-in of a model: enough for the log-probs to depend on every number of the adapter."""
    pair = adapter.layers[0]["q_proj"]
    logits = np.eye(4)[list(token_ids)] @ (WEIGHT + pair.scale * np.asarray(pair.a) @ np.asarray(pair.b))
    return logits[:, 0] - np.log(np.exp(logits).sum(-1))


class FaultyEngine:
    """Serves what `fault` makes of the adapter it is handed."""

    def __init__(self, fault=lambda adapter: adapter) -> None:
        self.fault = fault
        self.version = 0

    def score(self, adapter, token_ids):
        return scored(self.fault(adapter), token_ids)

    def swap(self, adapter, version):
        self.version = version
        done = Future()
        done.set_result(None)
        return done


def changed(adapter: Adapter, **values) -> Adapter:
    pair = dataclasses.replace(adapter.layers[0]["q_proj"], **values)
    return Adapter(layers=({"q_proj": pair},))


def sync(engine, expected_modules: int = 1) -> WeightSync:
    score_all = lambda adapter, canaries: [scored(adapter, canary) for canary in canaries]  # noqa: E731
    return WeightSync(engine, score_all, [[0, 1, 2, 3]], expected_modules=expected_modules, tolerance=1e-4)


def test_a_right_adapter_is_served_and_its_proof_is_kept():
    engine = FaultyEngine()
    proof = sync(engine).publish(adapter(), version=7)
    assert engine.version == proof.version == 7
    assert proof.modules == 1
    assert proof.canary_difference <= 1e-6
    assert proof.adapter_bytes == 4 * (8 + 10)
    assert proof.fingerprint == fingerprint(adapter()) != fingerprint(adapter(seed=5))


@pytest.mark.parametrize(
    "fault",
    [
        lambda right: changed(right, scale=1.0),
        lambda right: adapter(seed=9),
        lambda right: changed(right, a=right.layers[0]["q_proj"].a[::-1]),
    ],
    ids=["wrong scale", "stale adapter", "scrambled matrix"],
)
def test_an_engine_that_holds_something_else_stops_the_run(fault):
    engine = FaultyEngine(fault)
    with pytest.raises(ProofError, match="version 1: trainer and engine differ"):
        sync(engine).publish(adapter(), version=1)
    assert engine.version == 0


def test_a_missing_module_stops_the_run_with_both_counts():
    with pytest.raises(ProofError, match="binds 1 modules and the recipe's LoRA targets bind 2"):
        sync(FaultyEngine(), expected_modules=2).publish(adapter(), version=1)


def test_numbers_that_are_not_finite_stop_the_run():
    broken = changed(adapter(), b=np.full((2, 5), np.nan, np.float32))
    with pytest.raises(ProofError, match="not finite"):
        sync(FaultyEngine()).publish(broken, version=1)


def test_the_norm_is_that_of_the_whole_product():
    pair = adapter().layers[0]["q_proj"]
    whole = 2.0 * np.asarray(pair.a, np.float64) @ np.asarray(pair.b, np.float64)
    assert delta_norm(adapter()) == pytest.approx(np.linalg.norm(whole), rel=1e-9)
