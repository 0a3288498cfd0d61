import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.config import load
from components.errors import ConfigError
from components.model.lora import Adapter, LoraPair
from components.training.optimizer import OptimizerConfig, make_optimizer, optimizer_steps


def rates(total_steps: int, **values) -> list[float]:
    made = make_optimizer(load(OptimizerConfig, {"learning_rate": 1.0, **values}), total_steps)
    return [float(made.learning_rate(jnp.int32(step))) for step in range(total_steps + 1)]


def test_each_schedule_by_hand():
    assert rates(4) == [1.0] * 5
    assert rates(4, schedule="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    half_root_2 = 2**0.5 / 2
    cosine = [1.0, (1 + half_root_2) / 2, 0.5, (1 - half_root_2) / 2, 0.0]
    assert rates(4, schedule="cosine") == pytest.approx(cosine, abs=1e-6)


def test_the_warm_up_rises_to_the_full_rate_and_the_first_step_moves():
    assert rates(6, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0])
    assert rates(4, warmup_steps=2, schedule="linear") == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5, 0.0])


@pytest.mark.parametrize("warmup_steps", [10, 11])
def test_a_warm_up_that_is_not_shorter_than_the_run_is_refused_with_both_numbers(warmup_steps):
    with pytest.raises(ConfigError, match=rf"only 10 optimizer steps.*got {warmup_steps}"):
        make_optimizer(OptimizerConfig(warmup_steps=warmup_steps), total_steps=10)


def test_a_run_without_steps_is_refused():
    with pytest.raises(ConfigError, match="no optimizer step"):
        make_optimizer(OptimizerConfig(), total_steps=0)


def test_gradients_are_clipped_by_their_global_norm():
    made = make_optimizer(OptimizerConfig(clip_norm=1.0, b1=0.0, b2=0.0, epsilon=1.0), total_steps=1)
    gradients = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    weights = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    direction, _ = made.direction.update(gradients, made.direction.init(weights), weights)
    # Clipped to (0.6, 0.8); with b1 = b2 = 0 and epsilon 1 Adam makes g / (|g| + 1) of it.
    np.testing.assert_allclose([direction["a"][0], direction["b"][0]], [0.6 / 1.6, 0.8 / 1.8], rtol=1e-6)


def test_weight_decay_is_decoupled_from_the_gradient():
    made = make_optimizer(OptimizerConfig(weight_decay=0.1), total_steps=1)
    weights = {"a": jnp.array([2.0])}
    direction, _ = made.direction.update({"a": jnp.zeros(1)}, made.direction.init(weights), weights)
    assert float(direction["a"][0]) == pytest.approx(0.2)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lora_plus_moves_b_faster_than_a_and_a_ratio_of_one_is_off(weight_decay):
    pair = LoraPair(a=jnp.full((3, 2), 0.5), b=jnp.full((2, 4), 0.25), scale=2.0)
    weights = Adapter(layers=({"q_proj": pair},))
    gradients = jax.tree.map(lambda leaf: jnp.full_like(leaf, -3.0), weights)

    def moved(ratio: float) -> LoraPair:
        config = OptimizerConfig(lora_plus_ratio=ratio, clip_norm=None, weight_decay=weight_decay)
        made = make_optimizer(config, total_steps=1)
        direction, _ = made.direction.update(gradients, made.direction.init(weights), weights)
        return direction.layers[0]["q_proj"]

    # Adam's first direction is the gradient's sign; decay adds a share of the weight.
    np.testing.assert_allclose(moved(1.0).b, -1.0 + weight_decay * 0.25, rtol=1e-5)
    np.testing.assert_allclose(moved(16.0).a, -1.0 + weight_decay * 0.5, rtol=1e-5)
    np.testing.assert_allclose(moved(16.0).b, 16 * (-1.0 + weight_decay * 0.25), rtol=1e-5)


@pytest.mark.parametrize(
    ("tasks_per_step", "epochs", "max_steps", "drop_last", "steps"),
    [
        (8, 1, None, True, 934),
        (8, 1, None, False, 935),
        (16, 1, None, True, 467),
        (16, 1, None, False, 468),
        (8, 3, 100, True, 100),
        (8, 3, None, True, 2802),
        (8, 3, 5000, False, 2803),
    ],
)
def test_optimizer_steps_of_7473_rows(tasks_per_step, epochs, max_steps, drop_last, steps):
    assert optimizer_steps(7473, tasks_per_step, epochs, max_steps, drop_last) == steps
