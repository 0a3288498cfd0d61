"""A version serves only after it is proven; each way of going wrong stops the run with its name and its module."""

import dataclasses
import re
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.errors import ProofError
from components.model.lora import Adapter, LoraPair, module_names
from components.model.manifest import Held, make_manifest
from components.training.weight_sync import WeightSync, fingerprint
from tests.engine import tiny

CANARIES = [tiny.prompt(1, 12), tiny.prompt(2, 7)]
RIGHT, BEFORE = tiny.tiny_adapter(1), tiny.tiny_adapter(2)
MODULES = module_names(RIGHT)
PLACE = (1, "o_proj")
NAME = "model.layers.1.self_attn.o_proj"


def logprobs(adapter: Adapter, token_ids) -> np.ndarray:
    scores = jax.nn.log_softmax(tiny.trainer_logits(adapter, token_ids))[:-1]
    return np.take_along_axis(np.asarray(scores), np.array(token_ids)[1:, None], axis=1)[:, 0]


def trainer_score(adapter: Adapter, canaries) -> list[np.ndarray]:
    return [logprobs(adapter, canary) for canary in canaries]


class FakeEngine:
    """Holds what `holds` makes of an adapter that it is handed, and computes with what `computes` makes of that."""

    def __init__(self) -> None:
        self.holds = self.computes = lambda adapter: adapter
        self.version = -1

    def stage(self, adapter):
        held = self.holds(adapter)
        return Held(held, make_manifest(held))

    def score(self, adapter, token_ids):
        return logprobs(self.computes(adapter), token_ids)

    def swap(self, adapter, version):
        self.version = version
        done = Future()
        done.set_result(None)
        return done


def with_pair(adapter: Adapter, change, place=PLACE) -> Adapter:
    """The adapter with another pair at one place; `change` gives None to leave it out."""
    layers = [dict(pairs) for pairs in adapter.layers]
    pair = change(layers[place[0]].pop(place[1]))
    if pair is not None:
        layers[place[0]][place[1]] = pair
    return Adapter(layers=tuple(layers))


def changed(**changes):
    """A fault: the fields of one pair, each made of the whole pair."""
    return lambda adapter: with_pair(
        adapter, lambda pair: dataclasses.replace(pair, **{key: make(pair) for key, make in changes.items()})
    )


def sync(engine, expected=MODULES) -> WeightSync:
    return WeightSync(engine, trainer_score, CANARIES, expected_modules=expected, tolerance=1e-4)


def refusal(holds=None, computes=None) -> str:
    """What is said of version 7, after a version 6 that went well; the engine stays on that one."""
    engine = FakeEngine()
    weight_sync = sync(engine)
    weight_sync.publish(BEFORE, version=6)
    engine.holds, engine.computes = holds or engine.holds, computes or engine.computes
    with pytest.raises(ProofError) as raised:
        weight_sync.publish(RIGHT, version=7)
    assert engine.version == 6
    assert str(raised.value).startswith("weight sync of version 7: ")
    return str(raised.value)


def test_a_right_adapter_is_served_and_its_proof_is_kept():
    engine = FakeEngine()
    proof = sync(engine).publish(RIGHT, version=7)
    assert engine.version == proof.version == 7
    assert proof.modules == 14
    assert proof.canary_difference <= 1e-6
    assert proof.adapter_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(RIGHT))
    assert proof.fingerprint == fingerprint(RIGHT) != fingerprint(BEFORE)
    products = [2 * pair.scale * pair.a @ pair.b for pairs in RIGHT.layers for pair in pairs.values()]
    assert proof.delta_norm == pytest.approx(np.sqrt(sum(np.sum(each**2) for each in products)) / 2, rel=1e-5)


def test_the_real_engine_gives_the_proof_and_serves_the_version():
    with tiny.engine(BEFORE) as engine:
        proof = sync(engine).publish(RIGHT, version=7)
        assert engine.statistics().version == 7
    assert proof.canary_difference <= 1e-5


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (changed(scale=lambda pair: 1.0), f"wrong scale: the engine's {NAME} has 1, the trainer's 16 (1 of 14 modules"),
        (lambda right: with_pair(right, lambda pair: None), f"missing module {NAME}: the engine holds 13 modules"),
        (lambda right: BEFORE, "stale adapter: the engine's model.layers.0.mlp.down_proj holds the numbers of "
         "version 6 (14 of 14 modules"),
        (lambda right: with_pair(right, lambda _: BEFORE.layers[1]["o_proj"]), f"stale adapter: the engine's {NAME} "
         "holds the numbers of version 6 (1 of 14"),
        (changed(a=lambda pair: pair.a.T), f"transposed matrix: the engine's A of {NAME} is the transpose"),
        (changed(a=lambda pair: pair.a.T.reshape(pair.a.shape)), f"transposed matrix: the engine's A of {NAME} is"),
        (changed(b=lambda pair: pair.b.T), f"transposed matrix: the engine's B of {NAME} is the transpose"),
        (changed(a=lambda pair: pair.a[:, :1]), f"wrong shape: the engine's A of {NAME} is (32, 1), the trainer's (32"),
        (changed(a=lambda pair: pair.a[::-1]), f"other numbers: the engine's A of {NAME} is neither"),
        (changed(b=lambda pair: pair.b * 2), f"other numbers: the engine's B of {NAME} is neither"),
    ],
    ids=["scale", "missing", "stale", "one stale", "A", "A as bytes", "B", "shape", "rows", "numbers"],
)  # fmt: skip
def test_an_engine_that_holds_something_else_is_told_what_and_where(fault, message):
    assert message in refusal(holds=fault)


def test_a_module_too_many_is_named():
    held = lambda right: with_pair(right, lambda pair: pair)  # noqa: E731
    engine = FakeEngine()
    engine.holds = lambda _: held(RIGHT)
    less = with_pair(RIGHT, lambda pair: None)
    with pytest.raises(ProofError, match=f"unexpected module {NAME}: the engine holds 14 modules, the trainer 13"):
        sync(engine, expected=module_names(less)).publish(less, version=0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (changed(b=lambda pair: pair.b / 4), f"wrong scale: the engine computes {NAME} with 4, the trainer with 16"),
        (changed(b=lambda pair: 0 * pair.b), f"missing module: the engine computes without {NAME}"),
        (lambda _: BEFORE, "stale adapter: the engine computes with version 6"),
        (changed(a=lambda pair: pair.a.T.reshape(pair.a.shape)), f"transposed matrix: the engine takes A of {NAME}"),
        (changed(b=lambda pair: pair.b.T.reshape(pair.b.shape)), f"transposed matrix: the engine takes B of {NAME}"),
        (changed(a=lambda pair: pair.b.T, b=lambda pair: pair.a.T), "with the transpose of A @ B in " + NAME),
        (changed(a=lambda pair: pair.a[::-1]), "other numbers: of all modules, trainer and engine disagree most about "
         + NAME),
        (lambda right: jax.tree.map(jnp.zeros_like, right), "missing modules: the engine computes without any of them"),
    ],
    ids=["scale", "missing", "stale", "A", "B", "product", "rows", "everything missing"],
)  # fmt: skip
def test_an_engine_that_computes_otherwise_is_told_what_and_where(fault, message):
    refused = refusal(computes=fault)
    assert message in refused
    assert "The engine holds the right adapter" in refused


def test_one_module_that_stays_behind_in_the_computation_is_stale():
    # What stays behind does so whatever part of an adapter is asked for, unless it is switched off.
    def fault(adapter: Adapter) -> Adapter:
        return with_pair(adapter, lambda pair: BEFORE.layers[1]["o_proj"] if np.any(pair.b) else pair)

    assert f"stale adapter: the engine computes {NAME} with version 6" in refusal(computes=fault)


def test_the_kinds_of_modules_are_compared_one_by_one():
    listed = re.search(r"alone they differ by: (.*?)\)", refusal(computes=changed(b=lambda pair: pair.b / 4)))
    differences = dict(each.split() for each in listed[1].split(", "))
    assert list(differences) == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert float(differences.pop("o_proj")) > 1e-2
    assert all(float(each) < 1e-4 for each in differences.values())


def test_a_difference_without_any_adapter_is_not_put_on_a_module():
    class OtherBase(FakeEngine):
        def score(self, adapter, token_ids):
            return logprobs(adapter, token_ids) + 0.5

    with pytest.raises(ProofError, match=r"they differ by 0\.5 without any adapter already: base or forward pass"):
        sync(OtherBase()).publish(RIGHT, version=0)


def test_log_probs_that_are_no_numbers_do_not_pass():
    class Broken(FakeEngine):
        def score(self, adapter, token_ids):
            return np.full(len(token_ids) - 1, np.nan)

    with pytest.raises(ProofError, match="differs from the trainer by inf"):
        sync(Broken()).publish(RIGHT, version=0)


def test_a_module_that_the_trainer_itself_lacks_is_named_with_both_counts():
    less = with_pair(RIGHT, lambda pair: None)
    with pytest.raises(ProofError, match=f"missing module {NAME}: the adapter binds 13 modules and .* bind 14"):
        sync(FakeEngine()).publish(less, version=1)
    with pytest.raises(ProofError, match=r"missing module: the adapter binds 13 modules and .* bind 14"):
        sync(FakeEngine(), expected=14).publish(less, version=1)


def test_numbers_that_are_not_finite_stop_the_run_with_their_module():
    broken = changed(b=lambda pair: pair.b.at[0, 0].set(np.nan))(RIGHT)
    with pytest.raises(ProofError, match=f"the adapter's {NAME} holds numbers that are not finite"):
        sync(FakeEngine()).publish(broken, version=1)


def test_the_hashes_are_of_the_numbers_and_not_of_their_layout():
    pair = LoraPair(a=np.ones((4, 2), np.float32), b=np.ones((2, 3), np.float32, order="F"), scale=1.0)
    same = LoraPair(a=jnp.ones((4, 2)), b=jnp.ones((2, 3)), scale=1.0)
    one, other = (Adapter(layers=({"q_proj": each},)) for each in (pair, same))
    assert make_manifest(one) == make_manifest(other)
    assert fingerprint(one) == fingerprint(other)
