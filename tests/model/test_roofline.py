import dataclasses

import pytest

from components.model import roofline
from components.model.roofline import peak_operations, step_operations, weights_per_token
from components.model.switches import Mixture
from tests.training.tiny import ARCHITECTURE


def test_a_token_meets_each_linear_weight_once():
    # q 16x16, k and v 16x8, o 16x16, three of the MLP 16x24; one layer.
    assert weights_per_token(ARCHITECTURE) == 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24


def test_of_a_mixture_the_chosen_experts_count():
    mixture = Mixture(count=8, per_token=2, d_ff=12, layers=(0,))
    sparse = dataclasses.replace(ARCHITECTURE, mixture=mixture)
    assert weights_per_token(sparse) == 16 * 16 + 2 * 16 * 8 + 16 * 16 + 2 * 3 * 16 * 12


def test_a_step_multiplies_forward_and_back_and_the_head_sees_sampled_tokens_only():
    assert step_operations(ARCHITECTURE, 10, 4) == 4 * (weights_per_token(ARCHITECTURE) * 10 + 23 * 16 * 4)


def test_the_peak_is_that_of_all_devices_and_unknown_for_a_cpu(monkeypatch):
    assert peak_operations() is None

    class Chip:
        device_kind = "TPU v5 lite"

    monkeypatch.setattr(roofline.jax, "devices", lambda: [Chip()] * 8)
    assert peak_operations() == pytest.approx(8 * 197e12)
