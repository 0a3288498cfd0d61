"""How many rows a dispatch runs, and when requests are held: neither may show in what is sampled."""

import asyncio
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.engine.engine import HOLDING, EngineConfig
from components.errors import ConfigError
from components.model.cache import init_cache, put_back, take_rows
from components.telemetry import spans
from tests.engine.tiny import ARCHITECTURE, ask, ask_async, engine, prompt, tiny_adapter, trainer_logprobs

NAMES = [(f"task-{number}", prompt(number, 5 + 3 * number)) for number in range(12)]


async def together(running, names=NAMES):
    results = await asyncio.gather(*(ask_async(running, ids, name, max_tokens=9) for name, ids in names))
    return {name: result for (name, _), result in zip(names, results, strict=True)}


def test_with_more_slots_than_rows_a_sequence_is_still_the_same_to_the_bit_alone_and_among_many():
    with engine(slots=7, rows=3) as running:
        alone = {name: ask(running, ids, name, max_tokens=9) for name, ids in NAMES}
    with engine(slots=12, rows=3) as running:
        many = asyncio.run(together(running, NAMES[::-1]))
    assert many == alone


def test_rows_that_are_taken_out_of_the_cache_give_the_bits_of_rows_that_lie_in_it():
    with engine(slots=4) as whole, engine(slots=9, rows=4) as taken:
        assert asyncio.run(together(whole)) == asyncio.run(together(taken))


@pytest.mark.parametrize("slots", [4, 40])
def test_an_engine_that_need_not_be_reproducible_decodes_only_what_lives_and_agrees_with_the_trainer(slots):
    adapter = tiny_adapter(1)
    with engine(adapter, slots=slots, reproducible=False, decode_steps=5) as running:
        many = asyncio.run(together(running))
        later = [*NAMES[3][1], *many["task-3"].token_ids, 4, 5]
        many["later"] = ask(running, later, "task-3", turn=1)
    for name, ids in [*NAMES, ("later", later)]:
        expected = trainer_logprobs(adapter, ids, many[name])
        assert many[name].logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_the_last_positions_of_a_slot_survive_being_taken_out_and_put_back():
    with engine(capacity=48, slots=6, reproducible=False, decode_steps=7) as running:
        completion = ask(running, prompt(1, 40), max_tokens=50)
    assert len(completion.token_ids) == 8
    assert completion.logprobs == pytest.approx(trainer_logprobs(None, prompt(1, 40), completion).tolist(), abs=1e-4)


def test_rows_are_put_back_where_they_came_from_and_nowhere_else():
    cache = init_cache(ARCHITECTURE, 5, 16)
    slots, starts = jnp.array([3, 1, 0]), jnp.array([2, 15, 0])
    rows = jax.tree.map(lambda buffer: buffer + 1, take_rows(cache, slots))
    after = put_back(cache, rows, slots, starts, jnp.array(2), length=4)
    written = np.zeros((5, 16))
    written[3, 2:6] = 1
    written[1, 12:16] = 1  # moved back, so that four positions fit
    np.testing.assert_array_equal(after.values[0][:, 0, :, 0], written)
    np.testing.assert_array_equal(after.keys[1][:, 1, 3, :], written)


def decoded_rows() -> list[int]:
    return [each.attributes["rows"] for each in spans.spans() if each.name == "decode"]


def scattered(running, waits: bool, count: int = 3) -> None:
    """Requests that come one after the other, with the trainer at work or not."""

    async def play():
        running.trainer_waits(waits)
        turns = []
        for name, ids in NAMES[:count]:
            turns.append(asyncio.ensure_future(ask_async(running, ids, name, max_tokens=3)))
            await asyncio.sleep(0.15)
        await asyncio.gather(*turns)

    asyncio.run(play())


@pytest.fixture(scope="module")
def compiled():
    """So that no compilation stretches what the tests below time."""
    with engine() as running:
        asyncio.run(together(running))


def test_while_the_trainer_works_requests_are_held_and_start_together(compiled):
    with engine(patience=0.6) as running:
        spans.clear()
        scattered(running, waits=False)
        assert decoded_rows() == [3]
        assert running.statistics().seconds[HOLDING] > 0.3


def test_while_the_trainer_waits_each_request_starts_at_once(compiled):
    with engine(patience=60.0) as running:
        spans.clear()
        scattered(running, waits=True)
        assert decoded_rows() == [1, 1, 1]
        assert HOLDING not in running.statistics().seconds


def test_a_full_batch_is_not_held(compiled):
    with engine(patience=60.0) as running:
        running.trainer_waits(False)
        asyncio.run(together(running, NAMES[:4]))
        assert HOLDING not in running.statistics().seconds


def test_held_requests_start_the_moment_the_trainer_waits(compiled):
    async def play(running):
        turn = asyncio.ensure_future(ask_async(running, [1, 2], max_tokens=1))
        await asyncio.sleep(0.2)
        assert not turn.done()
        running.trainer_waits(True)
        await turn

    with engine(patience=60.0) as running:
        running.trainer_waits(False)
        started = time.perf_counter()
        asyncio.run(play(running))
        assert time.perf_counter() - started < 30


def test_a_swap_and_an_end_do_not_wait_for_held_requests(compiled):
    async def play(running):
        turn = asyncio.ensure_future(ask_async(running, [1, 2], max_tokens=1))
        await asyncio.sleep(0.1)
        await asyncio.wrap_future(running.swap(tiny_adapter(1), 1))
        turn.cancel()

    with engine(tiny_adapter(2), patience=60.0) as running:
        running.trainer_waits(False)
        asyncio.run(play(running))
        assert running.statistics().version == 1


def test_more_rows_than_slots_are_refused():
    with pytest.raises(ConfigError, match=r"rows: must not exceed slots \(8\).*got 9"):
        EngineConfig(slots=8, rows=9)


def test_statistics_count_what_lent_slots_cost():
    with engine(slots=1) as running:
        first = ask(running, prompt(1, 20), "one")
        ask(running, prompt(2, 5), "two")
        assert running.statistics().recomputed_tokens == 0
        ask(running, [*prompt(1, 20), *first.token_ids, 3], "one", turn=1)
        assert running.statistics().recomputed_tokens == 28
