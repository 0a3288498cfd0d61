import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components import config
from components.engine.sampling import SamplingConfig, SamplingRows, sample, sequence_key
from components.errors import ConfigError
from components.types import SequenceId

MANY, FEW = 4000, 50


@functools.partial(jax.jit, static_argnames=("truncated",))
def draw(logits, positions, rows, truncated):
    return sample(logits, positions, rows, truncated=truncated)


def drawn(
    logits: list[float] | np.ndarray, sampling: SamplingConfig, draws: int = MANY
) -> tuple[np.ndarray, np.ndarray]:
    """Many draws from one distribution, at successive positions of one sequence, and their log-probs."""
    rows = SamplingRows.empty(draws)
    for row in range(draws):
        rows.set(row, sampling, sequence_key(0, SequenceId("task")))
    # Few shapes, so that little is compiled: what pads a small vocabulary has no probability.
    padded = np.pad(np.asarray(logits, np.float32), (0, max(0, 8 - len(logits))), constant_values=-np.inf)
    many = jnp.tile(padded, (draws, 1))
    tokens, logprobs = draw(many, jnp.arange(draws), rows, sampling.truncated)
    return np.asarray(tokens), np.asarray(logprobs)


def assert_distributed(tokens: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square test against what is expected; the bound is five deviations above the mean of the statistic."""
    probabilities = np.pad(probabilities, (0, max(0, 8 - len(probabilities))))
    expected = probabilities * len(tokens)
    counts = np.bincount(tokens, minlength=len(probabilities))
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    statistic = np.sum((counts - expected)[possible] ** 2 / expected[possible])
    freedom = possible.sum() - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - np.max(logits))
    return powers / powers.sum()


def test_tokens_are_drawn_in_proportion_to_their_probability():
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -np.inf])
    tokens, _ = drawn(logits, SamplingConfig())
    assert_distributed(tokens, softmax(logits))


def test_a_vocabulary_of_many_blocks_is_drawn_in_proportion_too():
    logits = np.full(700, -np.inf)
    logits[[0, 255, 256, 300, 511, 699]] = [0.0, 1.0, 2.0, 0.5, 1.5, 1.0]
    tokens, _ = drawn(logits, SamplingConfig())
    assert_distributed(tokens, softmax(logits))


def test_temperature_sharpens_the_distribution():
    logits = np.array([2.0, 1.0, 0.0])
    tokens, _ = drawn(logits, SamplingConfig(temperature=0.5))
    assert_distributed(tokens, softmax(logits / 0.5))


def test_the_logprob_is_of_the_temperature_scaled_distribution():
    tokens, logprobs = drawn([2.0, 1.0, 0.0], SamplingConfig(temperature=0.5), FEW)
    assert logprobs[tokens == 0] == pytest.approx(-0.1429, abs=1e-4)
    assert logprobs[tokens == 1] == pytest.approx(-2.1429, abs=1e-4)


@pytest.mark.parametrize("narrowed", [{"top_k": 2}, {"top_p": 0.5}])
def test_the_logprob_is_of_the_whole_vocabulary_also_where_the_draw_is_not(narrowed):
    tokens, logprobs = drawn([2.0, 1.0, 0.0], SamplingConfig(temperature=0.5, **narrowed), FEW)
    assert logprobs[tokens == 0] == pytest.approx(-0.1429, abs=1e-4)


def test_greedy_takes_the_first_maximum_and_reports_temperature_one():
    tokens, logprobs = drawn([1.0, 2.0, 2.0, 0.0], SamplingConfig(temperature=0), FEW)
    assert set(tokens) == {1}
    assert logprobs == pytest.approx(np.log(softmax(np.array([1.0, 2.0, 2.0, 0.0]))[1]), abs=1e-6)


def test_top_k_draws_from_the_k_most_probable():
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -3.0, 0.2])
    tokens, _ = drawn(logits, SamplingConfig(top_k=3))
    kept = np.where(logits >= 1.0, logits, -np.inf)
    assert_distributed(tokens, softmax(kept))


@pytest.mark.parametrize("top_k", [None, 0, -1, 8, 9, 9_999_999])
def test_top_k_that_is_off_or_not_below_the_vocabulary_changes_nothing(top_k):
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -3.0, 0.2])
    plain, _ = drawn(logits, SamplingConfig(), FEW)
    tokens, _ = drawn(logits, SamplingConfig(top_k=top_k), FEW)
    assert tokens.tolist() == plain.tolist()


def test_top_k_one_is_greedy_also_among_equals():
    assert set(drawn([1.0, 2.0, 2.0], SamplingConfig(top_k=1), FEW)[0]) == {1}


@pytest.mark.parametrize(
    "wrong", [{"top_k": 2.5}, {"top_k": -2}, {"top_p": 0.0}, {"top_p": 1.5}, {"temperature": -1.0}]
)
def test_settings_that_make_no_sense_are_refused_when_they_are_read(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SamplingConfig(**wrong)
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        config.load(SamplingConfig, wrong)


def test_top_p_draws_from_the_least_set_that_holds_the_mass():
    probabilities = np.array([0.1, 0.4, 0.05, 0.3, 0.15])
    tokens, _ = drawn(np.log(probabilities), SamplingConfig(top_p=0.6))
    assert_distributed(tokens, np.array([0, 0.4, 0, 0.3, 0]) / 0.7)


def test_top_p_is_taken_of_what_top_k_has_left():
    probabilities = np.array([0.4, 0.3, 0.2, 0.1])
    tokens, _ = drawn(np.log(probabilities), SamplingConfig(top_k=2, top_p=0.55))
    assert set(tokens) == {0}


def test_logits_of_both_signs_are_ordered_by_value_when_narrowed():
    logits = np.array([-80.0, -1.0, 80.0, 79.0, -2.0, 0.0, -0.0])
    tokens, _ = drawn(logits, SamplingConfig(top_k=2))
    assert_distributed(tokens, softmax(np.array([-np.inf, -np.inf, 80.0, 79.0, -np.inf, -np.inf, -np.inf])))


def test_a_draw_depends_on_its_key_and_position_and_not_on_its_row():
    logits = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
    rows = SamplingRows.empty(6)
    for row in range(6):
        rows.set(row, SamplingConfig(), sequence_key(0, SequenceId("task", member=row)))
    tokens, logprobs = draw(logits, np.arange(6), rows, False)
    back = slice(None, None, -1)
    turned = SamplingRows(*(each[back] for each in rows))
    tokens_back, logprobs_back = draw(logits[back], np.arange(6)[back], turned, False)
    assert tokens_back[back].tolist() == tokens.tolist()
    assert logprobs_back[back].tolist() == logprobs.tolist()


def test_every_part_of_a_sequence_name_and_the_seed_give_another_key():
    names = [SequenceId("a"), SequenceId("b")] + [
        SequenceId("a", **{part: 1}) for part in ("epoch", "member", "attempt", "turn")
    ]
    keys = [sequence_key(0, name) for name in names] + [sequence_key(1, SequenceId("a"))]
    assert len(set(keys)) == 7


def test_keys_are_the_same_in_every_process():
    assert sequence_key(7, SequenceId("gsm8k-3", epoch=1, member=2)) == (958884613, 3513112948)
