import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config import load
from components.errors import ConfigError
from components.training.packing import Packer, PackingConfig, check_row_length, to_sample
from components.types import Sample
from tests.training.tiny import sample, trajectory, turn


def packer(rows: int = 2, row_length: int = 8, capacities: tuple[int, ...] = ()) -> Packer:
    config = PackingConfig(rows=rows, row_length=row_length, capacities=capacities)
    return Packer(config, weight=lambda length: 1.0 / length)


def letters(text: str, advantage: float = 1.0) -> Sample:
    """`hi|a` is the prompt "hi" with the completion "a", as bytes."""
    prompt, completion = text.encode().split(b"|")
    return to_sample(trajectory(turn(prompt, completion)), advantage)


def test_only_sampled_tokens_are_marked_whatever_their_value():
    first = turn(b"hi", b"a", versions=(3,))
    second = turn(b"hia!", b"ok", versions=(3, 4))
    laid = to_sample(trajectory(first, second), advantage=2.0)
    assert bytes(laid.token_ids) == b"hia!ok"
    assert laid.completion_mask == (False, False, True, False, True, True)
    assert laid.logprobs == (0.0, 0.0, -0.1, 0.0, -0.1, -0.2)
    assert laid.versions == (-1, -1, 3, -1, 3, 4)
    assert (laid.advantage, laid.task_id, laid.member) == (2.0, "task-7", 3)


def test_an_end_token_that_equals_the_pad_id_is_trained():
    """Eos = pad = 0: the completion [5, 0] ends with it, and the rows are padded with it."""
    laid = to_sample(trajectory(turn(bytes([9, 0]), bytes([5, 0]))), advantage=1.0)
    microbatch = next(packer().pack([laid]))
    assert microbatch.targets[microbatch.sampled.mask].tolist() == [5, 0]
    assert microbatch.index[microbatch.sampled.mask].tolist() == [1, 2]


def test_a_prompt_that_rewrites_what_was_sampled_is_refused_with_its_place():
    with pytest.raises(ValueError, match=r"task 'task-7', member 3, turn 1: .* token 33 at position 2 .* saw 97"):
        to_sample(trajectory(turn(b"hi", b"a"), turn(b"hi!", b"ok")), advantage=1.0)


def test_a_prompt_that_is_shorter_than_what_came_before_is_refused():
    with pytest.raises(ValueError, match="has 2 tokens, fewer than the 3"):
        to_sample(trajectory(turn(b"hi", b"a"), turn(b"hi", b"ok")), advantage=1.0)


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="turn 0: the prompt is empty"):
        to_sample(trajectory(turn(b"", b"a")), advantage=1.0)


def test_two_samples_share_a_row_as_the_docstring_draws_it():
    microbatch = next(packer(rows=1, capacities=(8,)).pack([letters("hi|a", 1.0), letters("yo|ok", -2.0)]))
    assert bytes(microbatch.tokens[0].tolist()) == b"hiayook\0"
    assert microbatch.positions[0].tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
    assert microbatch.segments[0].tolist() == [1, 1, 1, 2, 2, 2, 2, 0]
    assert microbatch.index.tolist() == [1, 4, 5] + [0] * 5
    assert bytes(microbatch.targets.tolist()[:3]) == b"aok"
    sampled = microbatch.sampled
    assert sampled.sequence.tolist() == [0, 1, 1] + [-1] * 5
    assert sampled.weights.tolist() == [1.0, 0.5, 0.5] + [0.0] * 5
    assert sampled.advantages.tolist() == [1.0, -2.0, -2.0] + [0.0] * 5
    np.testing.assert_allclose(sampled.behavior_logprobs, [-0.1, -0.1, -0.2] + [0.0] * 5)
    assert sampled.versions.tolist() == [0, 0, 0] + [-1] * 5
    assert microbatch.fill == 7 / 8


def test_a_sample_goes_into_the_first_row_with_room():
    microbatch = next(packer().pack([letters("aaaa|bb"), letters("cccc|d"), letters("e|f"), letters("gg|h")]))
    assert [bytes(row) for row in np.asarray(microbatch.tokens, np.uint8)] == [b"aaaabbef", b"ccccdggh"]


def test_a_full_micro_batch_comes_back_when_the_next_sample_has_no_room():
    open_packer = packer(rows=1)
    assert open_packer.add(letters("aaa|bb")) is None
    full = open_packer.add(letters("ccc|dd"))
    assert full is not None
    assert bytes(full.tokens[0].tolist()) == b"aaabb\0\0\0"
    last = open_packer.flush()
    assert last is not None
    assert bytes(last.tokens[0].tolist()) == b"cccdd\0\0\0"
    assert open_packer.flush() is None


def test_the_flat_arrays_take_the_smallest_size_that_fits():
    sizes = (2, 4, 7)
    for completion, size in [("b", 2), ("bb", 2), ("bbb", 4), ("bbbbb", 7)]:
        microbatch = next(packer(rows=1, capacities=sizes).pack([letters(f"a|{completion}")]))
        assert microbatch.targets.shape == (size,)
    assert PackingConfig(rows=2, row_length=8).sizes == (4, 8, 16)


def test_a_full_flat_array_closes_a_micro_batch_though_its_rows_have_room():
    batches = list(packer(rows=2, row_length=4, capacities=(3,)).pack([letters("a|bb"), letters("c|dd")]))
    assert [int(batch.sampled.mask.sum()) for batch in batches] == [2, 2]


def test_a_sample_longer_than_a_row_names_both_numbers():
    with pytest.raises(ValueError, match=r"has 9 tokens, more than packing\.row_length = 8"):
        packer().add(letters("aaaaaaaa|b"))
    with pytest.raises(ConfigError, match="512 tokens long"):
        check_row_length(PackingConfig(row_length=256), context_length=512)
    check_row_length(PackingConfig(row_length=512), context_length=512)


@pytest.mark.parametrize("capacities", [[3], [17]])
def test_capacities_that_cannot_work_are_refused(capacities):
    with pytest.raises(ConfigError, match=r"packing\.capacities"):
        load(PackingConfig, {"rows": 2, "row_length": 8, "capacities": capacities})


def test_lists_out_of_step_are_refused():
    broken = Sample(
        token_ids=(1, 2, 3),
        completion_mask=(False, True, True),
        logprobs=(0.0, -1.0),
        versions=(-1, 0, 0),
        advantage=1.0,
    )
    with pytest.raises(ValueError, match=r"lengths \[2, 3\], not one"):
        packer().add(broken)


def test_a_sample_in_which_nothing_was_sampled_is_passed_over():
    open_packer = packer()
    assert open_packer.add(to_sample(trajectory(), advantage=1.0)) is None
    assert open_packer.flush() is None


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=4), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(16, 24),
)
def test_every_sampled_token_is_laid_exactly_once_behind_its_own_context(shapes, rows, row_length):
    given_samples = [sample(seed % 3, tuple(pieces), float(seed)) for seed, pieces in enumerate(shapes)]
    found = []
    for microbatch in packer(rows, row_length).pack(given_samples):
        tokens = np.asarray(microbatch.tokens).ravel()
        positions = np.asarray(microbatch.positions).ravel()
        for place in np.flatnonzero(microbatch.sampled.mask):
            index = int(microbatch.index[place])
            context = tokens[index - positions[index] : index + 1].tolist()
            found.append((float(microbatch.sampled.advantages[place]), context, int(microbatch.targets[place])))
    expected = [
        (each.advantage, list(each.token_ids[:place]), each.token_ids[place])
        for each in given_samples
        for place in range(len(each.token_ids))
        if each.completion_mask[place]
    ]
    assert sorted(found) == sorted(expected)
