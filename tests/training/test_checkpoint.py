import logging
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components import storage
from components.errors import CheckpointError
from components.training.checkpoint import MANIFEST, Checkpoints
from components.training.optimizer import OptimizerConfig, Schedule, make_optimizer
from components.training.update import TrainState, init_state, make_apply
from tests.training import tiny


def state(value: float) -> dict[str, jax.Array]:
    return {"weights": jnp.full((2, 3), float(value)), "step": jnp.int32(value)}


def saved(folder: Path, *steps: int, keep: int = 9) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=keep)
    for step in steps:
        checkpoints.save(step, state(step), {"cursor": step * 8})
    return checkpoints


def listing(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def test_the_newest_state_and_its_facts_come_back(tmp_path):
    restored = saved(tmp_path, 9, 100, 20).restore(like=state(0))
    assert restored is not None
    assert (restored.step, restored.facts) == (100, {"cursor": 800})
    np.testing.assert_array_equal(restored.state["weights"], np.full((2, 3), 100.0))
    assert restored.state["step"].dtype == jnp.int32


def test_no_checkpoint_at_all_is_none(tmp_path):
    assert Checkpoints(tmp_path / "never").restore(like=state(0)) is None


def test_left_over_directories_are_skipped_with_a_line_and_left_alone(tmp_path, caplog):
    checkpoints = saved(tmp_path, 100, 200)
    (tmp_path / "400").mkdir()
    (tmp_path / "300.orbax-checkpoint-tmp-0" / "default").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep me")
    before = listing(tmp_path)
    with caplog.at_level(logging.WARNING):
        restored = checkpoints.restore(like=state(0))
    assert restored is not None
    assert restored.step == 200
    assert [record.getMessage() for record in caplog.records] == [
        f"checkpoint {tmp_path}/400 is skipped: it has no checkpoint.json, so it was not finished or is not ours"
    ]
    assert listing(tmp_path) == before
    saved(tmp_path, 300, 400)
    assert checkpoints.steps() == [100, 200, 300, 400]
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep me"


def test_a_kill_before_the_manifest_leaves_the_step_before(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)

    def killed(*args: object, **keys: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(2, state(2), {})
    restored = checkpoints.restore(like=state(0))
    assert restored is not None
    assert restored.step == 1
    checkpoints.save(2, state(2), {})
    assert checkpoints.steps() == [1, 2]


@pytest.mark.parametrize("damage", ["cut", "missing", "manifest"])
def test_a_damaged_checkpoint_is_skipped_and_kept(tmp_path, damage, caplog):
    checkpoints = saved(tmp_path, 1, 2)
    payload = max((path for path in (tmp_path / "2").rglob("*") if path.is_file()), key=os.path.getsize)
    match damage:
        case "cut":
            payload.write_bytes(payload.read_bytes()[:-1])
        case "missing":
            payload.unlink()
        case "manifest":
            (tmp_path / "2" / MANIFEST).write_text('{"mine": 1}')
    before = listing(tmp_path)
    restored = checkpoints.restore(like=state(0))
    assert restored is not None
    assert restored.step == 1
    assert "/2 is skipped" in caplog.text
    assert listing(tmp_path) == before


def test_only_damaged_checkpoints_stop_the_run_instead_of_starting_over(tmp_path):
    checkpoints = saved(tmp_path, 1)
    next((tmp_path / "1").rglob("manifest.ocdbt")).unlink()
    with pytest.raises(CheckpointError, match="1 was complete once"):
        checkpoints.restore(like=state(0))


def test_a_folder_of_the_users_is_never_touched(tmp_path, monkeypatch):
    (tmp_path / "100").mkdir()
    (tmp_path / "100" / "damaged").write_text("?")
    (tmp_path / "a.txt").write_text("a")
    before = listing(tmp_path)
    assert Checkpoints(tmp_path).restore(like=state(0)) is None
    assert listing(tmp_path) == before

    def denied(uri: storage.Uri) -> str:
        raise PermissionError(13, "Permission denied", str(uri))

    monkeypatch.setattr(storage, "read_text", denied)
    with pytest.raises(CheckpointError, match=r"cannot be read .* nothing was changed"):
        Checkpoints(tmp_path).restore(like=state(0))
    assert listing(tmp_path) == before


def test_the_last_k_are_kept_and_files_of_the_users_stay(tmp_path):
    checkpoints = saved(tmp_path, 1, keep=2)
    (tmp_path / "1" / "mine.txt").write_text("keep me")
    (tmp_path / "0").mkdir()
    saved(tmp_path, 2, 3, 4, keep=2)
    assert checkpoints.steps() == [3, 4]
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["mine.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "3", "4"]


def test_a_step_that_is_saved_again_holds_the_new_state_only(tmp_path):
    checkpoints = saved(tmp_path, 1)
    checkpoints.save(1, state(7), {"again": True})
    restored = checkpoints.restore(like=state(0))
    assert restored is not None
    assert float(restored.state["weights"][0, 0]) == 7.0
    assert restored.facts == {"again": True}
    assert len(list((tmp_path / "1").iterdir())) == 2


def test_another_state_is_refused_by_the_name_and_shape_of_its_first_array(tmp_path):
    checkpoints = saved(tmp_path, 1)
    with pytest.raises(
        CheckpointError, match=r"'weights': saved \[\[2, 3\], 'float32'\], needed \[\[2, 4\], 'float32'\]"
    ):
        checkpoints.restore(like={**state(0), "weights": jnp.zeros((2, 4))})
    with pytest.raises(CheckpointError, match="'extra': saved not at all"):
        checkpoints.restore(like={**state(0), "extra": jnp.zeros(1)})


def test_facts_that_are_no_json_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Checkpoints(tmp_path / "run").save(1, state(1), {"loss": float("nan")})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_random_keys_come_back_with_their_type_and_their_stream(tmp_path, implementation):
    key = jax.random.key(5, impl=implementation)
    Checkpoints(tmp_path).save(1, {"key": key}, {})
    restored = Checkpoints(tmp_path).restore(like={"key": jax.random.key(0, impl=implementation)})
    assert restored is not None
    found = restored.state["key"]
    assert found.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.uniform(found, (4,)), jax.random.uniform(key, (4,)))


def test_a_resumed_run_gives_the_same_bits_as_an_uninterrupted_one(tmp_path):
    config = OptimizerConfig(learning_rate=0.01, schedule=Schedule.COSINE, warmup_steps=1, weight_decay=0.1)
    optimizer = make_optimizer(config, total_steps=4)
    apply = make_apply(optimizer)

    def steps(current: TrainState, numbers: range) -> TrainState:
        for number in numbers:
            noise = jax.random.key(number)
            gradients = jax.tree.map(lambda leaf, noise=noise: jax.random.normal(noise, leaf.shape), current.adapter)
            current, _ = apply(current, gradients, 3)
        return current

    whole = steps(init_state(tiny.adapter(), optimizer), range(4))
    Checkpoints(tmp_path).save(2, steps(init_state(tiny.adapter(), optimizer), range(2)), {"seed": 1})
    fresh = jax.tree.map(jnp.zeros_like, init_state(tiny.adapter(), optimizer))
    restored = Checkpoints(tmp_path).restore(like=fresh)
    assert restored is not None
    resumed = steps(restored.state, range(2, 4))
    assert jax.tree.structure(resumed) == jax.tree.structure(whole)
    for ours, theirs in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
