"""Claims about two disjoint sub-meshes, for a process that sees eight devices; `test_eight_devices.py` starts it."""

import asyncio
from pathlib import Path

import jax
import numpy as np
import pytest

from components.algorithms.objective import Objective, ObjectiveConfig
from components.config import load
from components.engine.engine import Engine, EngineConfig
from components.engine.sampling import SamplingConfig
from components.errors import ConfigError
from components.model.base import random_base
from components.model.lora import Adapter, module_names
from components.model.placement import HERE, MeshConfig, PlacementConfig, Placements, make_placements
from components.telemetry.metrics import read_metrics
from components.training.checkpoint import Checkpoints
from components.training.critic import CriticConfig, make_critic
from components.training.optimizer import OptimizerConfig, make_optimizer
from components.training.packing import Microbatch, Packer, PackingConfig
from components.training.run import train
from components.training.update import LOGPROBS, TrainState, init_state, make_accumulate, make_apply, zero_gradients
from components.training.weight_sync import WeightSync
from components.types import Sample, SequenceId
from tests.engine import tiny
from tests.training.test_run import arguments

OBJECTIVE = Objective.from_config(load(ObjectiveConfig, {}))
ACCUMULATE = make_accumulate(tiny.ARCHITECTURE, OBJECTIVE, temperature=1.0, chunk=16)
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1e-2), 10)
APPLY = make_apply(OPTIMIZER)
ENGINE = EngineConfig(slots=8, capacity=tiny.CAPACITY, decode_steps=3, prefill_chunk=16)
PROMPTS = [tiny.prompt(seed, 5 + 3 * seed) for seed in range(6)]
CANARIES = [tiny.prompt(7, 12)]
FOUR_AND_FOUR = {"trainer": {"data": 4}, "engine": {"data": 4}}


@pytest.fixture(scope="module")
def sides() -> Placements:
    return make_placements(placement=PlacementConfig(trainer=MeshConfig(data=4), engine=MeshConfig(data=4)))


def devices_of(tree) -> set[int]:
    return {device.id for leaf in jax.tree.leaves(tree) for device in leaf.devices()}


def microbatch() -> Microbatch:
    packer = Packer(PackingConfig(rows=8, row_length=16), OBJECTIVE.weight)
    for seed in range(12):
        length = 6 + seed % 4
        ids = tuple(tiny.prompt(seed, length))
        mask = (False, False, *(True,) * (length - 2))
        logprobs = (0.0, 0.0, *(-3.0,) * (length - 2))
        full = packer.add(Sample(ids, mask, logprobs, (0,) * length, advantage=(-1.0) ** seed, task_id=str(seed)))
        assert full is None
    return packer.flush()


def one_step(base, adapter: Adapter, batch: Microbatch) -> tuple[Adapter, dict, TrainState]:
    """Gradients of two micro-batches, their statistics, and the state after an optimizer step."""
    gradients = zero_gradients(adapter)
    for _ in range(2):
        gradients, statistics = ACCUMULATE(base, adapter, gradients, batch)
    kept = jax.tree.map(np.asarray, gradients)
    state, _ = APPLY(init_state(adapter, OPTIMIZER), gradients, 2 * 60)
    return kept, statistics, state


def test_loss_and_gradients_over_four_devices_are_those_of_one(sides):
    # Weights of usual size: with those of `tiny.BASE`, rounding alone moves a gradient by 1e-3, whatever is split.
    base, adapter, batch = random_base(jax.random.key(0), tiny.ARCHITECTURE), tiny.tiny_adapter(1, 0.1), microbatch()
    wanted, wanted_statistics, wanted_state = one_step(base, adapter, batch)
    placed = sides.trainer.split(batch)
    assert placed.tokens.addressable_shards[0].data.shape == (2, 16)
    assert placed.targets.sharding.is_fully_replicated
    found, statistics, state = one_step(sides.trainer.whole(base), sides.trainer.whole(adapter), placed)
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(one)
    for key, value in wanted_statistics.items():
        # A log-prob near 0 is the difference of two numbers that are not.
        least = 1e-5 if key == LOGPROBS else 0.0
        np.testing.assert_allclose(statistics[key], value, rtol=1e-5, atol=least, err_msg=key)
    for one, other in zip(jax.tree.leaves(wanted_state.adapter), jax.tree.leaves(state.adapter), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert devices_of(state.adapter) == {0, 1, 2, 3}
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.adapter))


def test_a_critic_split_over_eight_devices_expects_and_learns_what_it_does_on_one():
    mesh = make_placements(MeshConfig(fsdp=2, tensor=4)).trainer
    base, policy, batch = random_base(jax.random.key(0), tiny.ARCHITECTURE), tiny.tiny_adapter(1, 0.1), microbatch()
    flat = batch.sampled.versions.shape
    returns = np.linspace(-1, 1, flat[0], dtype=np.float32)
    batch = batch.replace(sampled=batch.sampled.replace(values=np.zeros(flat, np.float32), returns=returns))
    found = []
    for place in (HERE, mesh):
        given = {"optimizer": OptimizerConfig(learning_rate=1e-2), "steps": 10, "value_clip": 0.5, "seed": 0}
        state, programs = make_critic(CriticConfig(), tiny.ARCHITECTURE, place.weights(policy), **given)
        placed, split, zero = place.weights(base), place.split(batch), jax.numpy.int32(0)
        for _ in range(2):  # the head moves first, and the adapter by what comes through it
            gradients, statistics = programs.fit(placed, state.weights, zero_gradients(state.weights), split)
            state, _ = programs.apply(state, gradients, 60, zero)
        found.append((state, statistics, programs.judge(placed, state.weights, split)))
    (one, one_statistics, one_values), (other, statistics, values) = found
    query = other.weights.adapter.layers[0]["q_proj"]
    assert query.b.addressable_shards[0].data.shape[1] == query.b.shape[1] // 4
    assert other.weights.head.weight.sharding.is_fully_replicated
    assert np.abs(one_values[1]).max() > 0.01
    for ours, theirs in zip(
        jax.tree.leaves((values, statistics)), jax.tree.leaves((one_values, one_statistics)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(jax.tree.leaves(other.weights), jax.tree.leaves(one.weights), strict=True):
        # A gradient of nearly 0 has a sign that rounding decides, and Adam moves by signs.
        assert np.mean(np.abs(np.asarray(ours) - np.asarray(theirs)) > 1e-3) < 0.02


def test_rows_are_computed_where_they_are_and_only_gradients_and_sampled_places_travel(sides):
    base, adapter, batch = tiny.BASE, tiny.tiny_adapter(1), microbatch()
    alone = ACCUMULATE.function.lower(base, adapter, zero_gradients(adapter), batch).compile()
    base, adapter, batch = sides.trainer.whole(base), sides.trainer.whole(adapter), sides.trainer.split(batch)
    split = ACCUMULATE.function.lower(base, adapter, zero_gradients(adapter), batch).compile()
    assert split.cost_analysis()["flops"] < 0.6 * alone.cost_analysis()["flops"]


def test_steps_compile_once(sides):
    adapter = sides.trainer.whole(tiny.tiny_adapter(1))
    base, batch = sides.trainer.whole(tiny.BASE), sides.trainer.split(microbatch())
    before = ACCUMULATE.function._cache_size()
    gradients = zero_gradients(adapter)
    for _ in range(3):
        gradients, _ = ACCUMULATE(base, adapter, gradients, batch)
    assert ACCUMULATE.function._cache_size() - before <= 1


def greedy(engine: Engine) -> list[tuple[int, ...]]:
    """What the engine makes of all prompts at once."""

    async def play() -> list[tuple[int, ...]]:
        policy = engine.policy(SamplingConfig(temperature=0))
        turns = (policy(ids, sequence=SequenceId(str(n)), max_tokens=24) for n, ids in enumerate(PROMPTS))
        return [completion.token_ids for completion in await asyncio.gather(*turns)]

    return asyncio.run(play())


def test_an_adapter_moves_from_the_trainers_to_the_engines_devices_and_serves_the_same_tokens(sides):
    first, second = tiny.tiny_adapter(1), tiny.tiny_adapter(2)
    trainer_base, trained = sides.trainer.whole(tiny.BASE), sides.trainer.whole(second)
    assert devices_of(trained) | devices_of(trainer_base) == {0, 1, 2, 3}

    def trainer_score(adapter, canaries):
        assert devices_of(adapter) == {0, 1, 2, 3}
        return [scores(adapter, ids) for ids in canaries]

    arguments = {"config": ENGINE, "seed": 0}
    with Engine(tiny.ARCHITECTURE, tiny.BASE, first, **arguments) as alone:
        wanted = [greedy(alone)]
        alone.swap(second, 1)
        wanted.append(greedy(alone))
    base, adapter = sides.engine.whole(tiny.BASE), sides.engine.whole(first)
    with Engine(tiny.ARCHITECTURE, base, adapter, **arguments) as engine:
        sync = WeightSync(engine, trainer_score, CANARIES, expected_modules=module_names(first), tolerance=1e-4)
        found = [greedy(engine)]
        compilations = engine.statistics().compilations
        sync.publish(trained, version=1)
        scoring = engine.statistics().compilations - compilations
        found.append(greedy(engine))
        assert engine.statistics().compilations == compilations + scoring, "a swap compiles nothing"
        cache = engine._core._cache
    assert found == wanted
    assert wanted[0] != wanted[1]
    assert devices_of(cache) == {4, 5, 6, 7}
    assert cache.keys[0].addressable_shards[0].data.shape[0] == 2, "two of eight slots on each of four devices"


def test_an_engine_on_a_mesh_serves_the_tokens_of_one_device():
    mesh, adapter = make_placements(MeshConfig(fsdp=2, tensor=4)).engine, tiny.tiny_adapter(1)
    with Engine(tiny.ARCHITECTURE, tiny.BASE, adapter, config=ENGINE, seed=0) as alone:
        wanted = greedy(alone)
    with Engine(tiny.ARCHITECTURE, mesh.weights(tiny.BASE), mesh.weights(adapter), config=ENGINE, seed=0) as engine:
        assert greedy(engine) == wanted
        keys = engine._core._cache.keys[0]
    assert keys.addressable_shards[0].data.shape[0] == 4, "half of eight slots on each of two shares"


def scores(adapter: Adapter, ids: list[int]) -> np.ndarray:
    rows = jax.nn.log_softmax(np.asarray(tiny.trainer_logits(adapter, ids)))[:-1]
    return np.take_along_axis(np.asarray(rows), np.array(ids)[1:, None], axis=1)[:, 0]


def test_a_checkpoint_of_one_device_goes_on_over_four(sides, tmp_path: Path):
    adapter = tiny.tiny_adapter(1)
    checkpoints = Checkpoints(str(tmp_path), keep=1)
    checkpoints.save(3, init_state(adapter, OPTIMIZER), {})
    found = checkpoints.restore(sides.trainer.whole(init_state(tiny.tiny_adapter(2), OPTIMIZER)))
    assert devices_of(found.state) == {0, 1, 2, 3}
    for one, other in zip(jax.tree.leaves(adapter), jax.tree.leaves(found.state.adapter), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def alone(tiny_inputs, tmp_path_factory) -> list[dict]:
    """The lines of a run on one device."""
    folder = tmp_path_factory.mktemp("alone")
    train(**arguments(tiny_inputs, folder, steps=2))
    return read_metrics(str(folder / "run" / "metrics.jsonl"))


# A run on one mesh is in `test_two_hosts.py`.
def test_a_run_on_two_sub_meshes_is_the_run_of_one_device(alone, tiny_inputs, tmp_path: Path):
    train(**arguments(tiny_inputs, tmp_path, placement=FOUR_AND_FOUR, steps=2))
    for one, two in zip(alone, read_metrics(str(tmp_path / "run" / "metrics.jsonl")), strict=True):
        assert two["reward_mean"] == one["reward_mean"]
        assert two["tokens"] == one["tokens"]
        assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "where"),
    [({"packing": {"rows": 6, "row_length": 32}}, "packing.rows"), ({"engine": {"slots": 6}}, "engine.slots")],
)
def test_what_cannot_be_split_is_refused_before_any_work(tiny_inputs, tmp_path: Path, changes, where):
    with pytest.raises(ConfigError, match=f"{where}: must be a multiple of data x fsdp = 4"):
        train(**arguments(tiny_inputs, tmp_path, placement=FOUR_AND_FOUR, **changes))
