import asyncio
import random

import jax
import numpy as np
import pytest

from components.engine.engine import Engine, EngineConfig
from components.engine.sampling import SamplingConfig
from components.errors import EngineFailedError
from components.model.lora import LoraConfig, init_adapter
from components.types import Completion, FinishReason
from tests.engine.tiny import (
    ARCHITECTURE,
    BASE,
    ask,
    ask_async,
    engine,
    prompt,
    text_of,
    tiny_adapter,
    trainer_logits,
    trainer_logprobs,
)

GREEDY = SamplingConfig(temperature=0)


def assert_agrees(adapter, ids: list[int], completion: Completion, temperature: float = 1.0, tolerance=1e-4) -> None:
    """The engine's log-probs are those of the trainer's forward pass on the same tokens."""
    expected = trainer_logprobs(adapter, ids, completion, temperature)
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=tolerance)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 33, 50])
def test_logprobs_equal_the_trainers_for_prompts_of_any_number_of_chunks(length):
    adapter, ids = tiny_adapter(1), prompt(length, length)
    with engine(adapter) as running:
        completion = ask(running, ids)
    assert len(completion.token_ids) == 8
    assert_agrees(adapter, ids, completion)


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_logprobs_are_of_the_temperature_scaled_distribution_on_both_sides(temperature):
    with engine() as running:
        completion = ask(running, prompt(3, 20), sampling=SamplingConfig(temperature=temperature, top_k=5, top_p=0.9))
    assert_agrees(None, prompt(3, 20), completion, temperature)


def test_a_group_prefills_its_prompt_once_and_every_member_agrees_with_the_trainer():
    ids = prompt(4, 40)

    async def group(running):
        return await asyncio.gather(*(ask_async(running, ids, member=member) for member in range(4)))

    with engine() as running:
        completions = asyncio.run(group(running))
        assert running.statistics().prefilled_tokens == 39
        assert running.statistics().reused_tokens == 3 * 39
    for completion in completions:
        assert_agrees(None, ids, completion)
    assert len({completion.token_ids for completion in completions}) > 1


@pytest.mark.parametrize("evicted", [False, True])
def test_a_later_turn_agrees_with_the_trainer_with_its_cache_kept_or_evicted(evicted):
    ids = prompt(5, 20)
    with engine(slots=1) as running:
        first = ask(running, ids)
        if evicted:
            ask(running, prompt(6, 25), "other")
        before = running.statistics()
        following = [*ids, *first.token_ids, *prompt(7, 9)]
        second = ask(running, following, turn=1)
        after = running.statistics()
    assert_agrees(None, following, second)
    prefilled = after.prefilled_tokens - before.prefilled_tokens
    # Kept are the prompt and all sampled tokens but the last, which was never fed.
    assert prefilled == (36 if evicted else 36 - 27)


def test_a_sequence_is_the_same_to_the_bit_alone_and_among_many_in_any_order():
    names = [(f"task-{number}", prompt(number, 5 + 3 * number)) for number in range(12)]
    sampling = SamplingConfig(temperature=1.3)

    async def together(running, order):
        picked = [names[place] for place in order]
        results = await asyncio.gather(*(ask_async(running, ids, name, sampling=sampling) for name, ids in picked))
        return {name: result for (name, _), result in zip(picked, results, strict=True)}

    with engine() as running:
        alone = {name: ask(running, ids, name, sampling=sampling) for name, ids in names}
    for seed in range(2):
        with engine() as running:
            many = asyncio.run(together(running, random.Random(seed).sample(range(12), 12)))
        assert many == alone
    with engine(slots=1) as running:
        single = asyncio.run(together(running, range(12)))
    assert {name: each.token_ids for name, each in single.items()} == {
        name: each.token_ids for name, each in alone.items()
    }


def test_another_seed_or_another_part_of_the_name_gives_another_sequence():
    ids = prompt(8, 10)
    with engine() as running, engine(seed=1) as other:
        completions = [
            ask(running, ids, max_tokens=20),
            ask(running, ids, "other", max_tokens=20),
            ask(running, ids, member=1, max_tokens=20),
            ask(running, ids, turn=1, max_tokens=20),
            ask(other, ids, max_tokens=20),
        ]
    assert len({completion.token_ids for completion in completions}) == 5


def test_greedy_follows_the_argmax_of_the_trainers_forward_pass():
    ids = prompt(9, 12)
    with engine() as running:
        completion = ask(running, ids, sampling=GREEDY, max_tokens=20)
    context = list(ids)
    for token in completion.token_ids:
        assert token == int(np.argmax(trainer_logits(None, context)[-1]))
        context.append(token)


def test_nothing_is_compiled_after_the_first_of_each_shape():
    with engine(capacity=48) as running:
        for length in (5, 17):
            ask(running, prompt(length, length))
            ask(running, prompt(length, length), sampling=SamplingConfig(top_k=3), member=1)
        warm = running.statistics().compilations
        assert warm > 0
        for length in range(1, 40):
            ask(running, prompt(length, length), f"again-{length}", sampling=SamplingConfig(temperature=0.1 * length))
        running.swap(None, 1)
        ask(running, prompt(1, 1))
        assert running.statistics().compilations == warm


def swapped(running, adapter, ids, **settings) -> tuple[Completion, Completion]:
    """A completion across a swap that happens when it has begun, and one of a new episode after it."""

    async def play():
        long = asyncio.ensure_future(ask_async(running, ids, "long", max_tokens=40, **settings))
        while running.statistics().generated_tokens < 4:
            await asyncio.sleep(0)
        running.swap(adapter, 1)
        return await long, await ask_async(running, ids, "new", max_tokens=8, **settings)

    return asyncio.run(play())


def test_a_completion_that_spans_a_swap_records_both_versions_and_its_cache_is_kept():
    before, after, ids = tiny_adapter(1), tiny_adapter(2), prompt(10, 18)
    with engine(before) as running:
        completion, _ = swapped(running, after, ids)
    assert set(completion.versions) == {0, 1}
    assert list(completion.versions) == sorted(completion.versions)
    old = completion.versions.count(0)
    expected = trainer_logprobs(before, ids, completion)
    assert completion.logprobs[:old] == pytest.approx(expected[:old].tolist(), abs=1e-4)
    mixed = trainer_logprobs(after, ids, completion)[old:]
    assert np.max(np.abs(np.array(completion.logprobs[old:]) - mixed)) > 1e-3


def test_with_recompute_the_tokens_after_a_swap_are_of_the_new_weights_alone():
    before, after, ids = tiny_adapter(1), tiny_adapter(2), prompt(10, 18)
    with engine(before, kv_on_update="recompute") as running:
        completion, _ = swapped(running, after, ids)
    old = completion.versions.count(0)
    assert 0 < old < 40
    expected = trainer_logprobs(after, ids, completion)
    assert completion.logprobs[old:] == pytest.approx(expected[old:].tolist(), abs=1e-4)


@pytest.mark.parametrize("kv_on_update", ["keep", "recompute"])
def test_after_a_swap_a_new_episode_equals_one_of_a_fresh_engine(kv_on_update):
    after, ids = tiny_adapter(2), prompt(11, 30)
    with engine(tiny_adapter(1), kv_on_update=kv_on_update) as running:
        old = ask(running, ids, "new", sampling=GREEDY)
        running.swap(after, 1)
        # The same name again and another one: neither may find what the old weights have left.
        again = ask(running, ids, "new", sampling=GREEDY)
        other = ask(running, ids, "other", sampling=GREEDY)
    with engine(after) as fresh:
        expected = ask(fresh, ids, "new", sampling=GREEDY)
    assert again.token_ids == other.token_ids == expected.token_ids
    assert again.logprobs == other.logprobs == expected.logprobs
    assert again.logprobs != old.logprobs
    assert again.versions == (1,) * 8
    assert_agrees(after, ids, again)


def test_a_request_that_is_sent_after_a_swap_is_served_with_the_new_weights():
    with engine(tiny_adapter(1)) as running:
        for version in range(1, 6):
            running.swap(tiny_adapter(version), version)
            assert set(ask(running, prompt(1, 5), f"task-{version}").versions) == {version}
        assert running.statistics().swaps == 5


def test_an_adapter_of_other_shapes_is_refused():
    with engine(tiny_adapter(1)) as running:
        wrong = init_adapter(jax.random.key(0), ARCHITECTURE, LoraConfig(rank=3))
        with pytest.raises(ValueError, match="version 1 binds other"):
            running.swap(wrong, 1)


def test_score_gives_the_trainers_logprobs_for_a_candidate_adapter():
    candidate, ids = tiny_adapter(3), prompt(12, 41)
    completion = Completion(tuple(ids[1:]), (0.0,) * 40, (0,) * 40, FinishReason.STOP)
    with engine() as running:
        scored = running.score(candidate, ids)
    assert scored == pytest.approx(trainer_logprobs(candidate, ids[:1], completion), abs=1e-4)


def stopping(decode_steps: int) -> list[Completion]:
    """Sequences that end by a stop id at many places within a dispatch."""

    async def play(running):
        return await asyncio.gather(
            *(ask_async(running, prompt(seed, 6), f"task-{seed}", max_tokens=25) for seed in range(12))
        )

    with engine(stop_ids=(3, 7, 11, 19, 23), decode_steps=decode_steps) as running:
        return asyncio.run(play(running))


def test_stops_that_are_found_on_the_device_equal_those_of_single_steps():
    single, several = stopping(1), stopping(7)
    assert [each.token_ids for each in several] == [each.token_ids for each in single]
    assert [each.finish_reason for each in several] == [each.finish_reason for each in single]
    assert len({len(each.token_ids) for each in single}) > 3
    stopped = [each for each in single if each.finish_reason is FinishReason.STOP]
    assert stopped
    assert all(each.token_ids[-1] in (3, 7, 11, 19, 23) for each in stopped)


@pytest.mark.parametrize("decode_steps", [1, 7])
@pytest.mark.parametrize("max_tokens", [1, 6, 7, 8])
def test_a_turn_ends_at_its_own_limit_of_tokens(decode_steps, max_tokens):
    with engine(decode_steps=decode_steps) as running:
        completion = ask(running, prompt(13, 10), max_tokens=max_tokens)
    assert len(completion.token_ids) == max_tokens
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_turn_without_room_ends_with_the_context():
    with engine(capacity=64) as running:
        completion = ask(running, prompt(14, 62), max_tokens=16)
    assert len(completion.token_ids) == 2
    assert completion.finish_reason is FinishReason.CONTEXT
    assert_agrees(None, prompt(14, 62), completion)


def test_a_turn_that_stops_by_itself_at_the_last_place_is_not_flagged():
    ids = prompt(14, 62)
    with engine(capacity=64) as running:
        last = ask(running, ids, max_tokens=16).token_ids[-1]
    with engine(capacity=64, stop_ids=(last,)) as running:
        completion = ask(running, ids, max_tokens=16)
    assert completion.token_ids[-1] == last
    assert len(ids) + len(completion.token_ids) == 64
    assert completion.finish_reason is FinishReason.STOP


def test_a_prompt_that_leaves_no_room_names_both_numbers():
    with engine(capacity=64) as running, pytest.raises(EngineFailedError, match=r"70 tokens.*capacity 64"):
        ask(running, prompt(15, 70))


@pytest.mark.parametrize(("ids", "max_tokens"), [([], 5), ([1], 0), ([50], 5), ([-1], 5)])
def test_arguments_that_no_engine_could_serve_are_a_bug_and_not_data(ids, max_tokens):
    with engine() as running, pytest.raises(ValueError, match=r"token"):
        ask(running, ids, max_tokens=max_tokens)


@pytest.mark.parametrize("decode_steps", [1, 7])
def test_tokens_after_a_stop_string_are_cut_together_with_their_logprobs(decode_steps):
    ids = prompt(16, 8)
    with engine(decode_steps=decode_steps) as running:
        free = ask(running, ids, max_tokens=20)
        stop = text_of(free.token_ids[7:9])
        held = ask(running, ids, max_tokens=20, sampling=SamplingConfig(stop_strings=("never", stop)))
        place = text_of(free.token_ids).index(stop) + 2
        following = [*ids, *held.token_ids, 1, 2]
        second = ask(running, following, turn=1)
    assert held.token_ids == free.token_ids[:place]
    assert held.logprobs == free.logprobs[:place]
    assert held.finish_reason is FinishReason.STOP
    assert_agrees(None, following, second)


def test_stop_strings_without_a_way_to_read_tokens_are_refused():
    silent = Engine(ARCHITECTURE, BASE, None, config=EngineConfig(slots=1, capacity=8), seed=0)
    with pytest.raises(ValueError, match="decode_text"):
        silent.policy(SamplingConfig(stop_strings=("x",)))
