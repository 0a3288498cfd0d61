import asyncio
import random
import threading

import jax
import pytest

from components.engine import core
from components.engine.engine import EngineConfig
from components.errors import ConfigError, EngineFailedError
from components.types import Completion
from tests.engine.tiny import ask, ask_async, engine, prompt, tiny_adapter


def test_a_cancelled_request_frees_its_slot():
    async def play(running):
        hanging = asyncio.ensure_future(ask_async(running, prompt(1, 5), "one", max_tokens=50))
        while running.statistics().live_slots == 0:
            await asyncio.sleep(0)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        return await ask_async(running, prompt(2, 5), "two", max_tokens=2)

    with engine(slots=1) as running:
        assert len(asyncio.run(play(running)).token_ids) == 2
        assert running.statistics().live_slots == 0


def test_two_hundred_requests_with_random_cancellations_leave_all_slots_free():
    dice = random.Random(0)

    async def one(running, number):
        task = asyncio.ensure_future(
            ask_async(running, prompt(number % 7, 3 + number % 40), f"task-{number}", max_tokens=dice.randint(1, 20))
        )
        if dice.random() < 0.4:
            await asyncio.sleep(dice.random() * 0.3)
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    async def play(running):
        results = await asyncio.gather(*(one(running, number) for number in range(200)))
        await ask_async(running, [1], "last", max_tokens=1)
        return results

    with engine() as running:
        results = asyncio.run(play(running))
        statistics = running.statistics()
    assert (statistics.live_slots, statistics.waiting_requests) == (0, 0)
    cancelled = sum(isinstance(each, asyncio.CancelledError) for each in results)
    assert 0 < cancelled < 200
    assert sum(isinstance(each, Completion) for each in results) == 200 - cancelled


class BrokenDeviceError(Exception):
    pass


def test_what_the_thread_dies_of_reaches_every_waiter_every_later_caller_and_the_owner(monkeypatch):
    def broken(self):
        raise BrokenDeviceError("no device")

    async def play(running):
        waiting = [ask_async(running, [1, 2], f"task-{number}") for number in range(3)]
        return await asyncio.gather(*waiting, return_exceptions=True)

    monkeypatch.setattr(core.Core, "step", broken)
    running = engine().start()
    assert [type(each) for each in asyncio.run(play(running))] == [BrokenDeviceError] * 3
    with pytest.raises(BrokenDeviceError):
        ask(running, [1, 2])
    with pytest.raises(BrokenDeviceError):
        running.swap(None, 1)
    with pytest.raises(BrokenDeviceError):
        running.close()


def test_a_policy_that_has_become_not_a_number_ends_the_engine_loudly():
    adapter = jax.tree.map(lambda leaf: leaf * float("nan"), tiny_adapter(1))
    running = engine(adapter).start()
    with pytest.raises(FloatingPointError, match=r"task.*version 0"):
        ask(running, [1, 2])
    with pytest.raises(FloatingPointError):
        running.close()


def test_closing_fails_what_still_waits():
    async def play(running):
        waiting = asyncio.ensure_future(ask_async(running, [1, 2], max_tokens=60))
        await asyncio.sleep(0)
        threading.Thread(target=running.close).start()
        with pytest.raises(EngineFailedError, match="closed"):
            await waiting

    running = engine(decode_steps=1).start()
    asyncio.run(play(running))
    with pytest.raises(EngineFailedError, match="closed"):
        ask(running, [1, 2])


def test_the_event_loop_is_never_blocked_for_long_by_the_engine():
    async def play(running):
        beats = 0
        turn = asyncio.ensure_future(ask_async(running, prompt(1, 30), max_tokens=30))
        while not turn.done():
            beats += 1
            await asyncio.sleep(0)
        return beats, await turn

    with engine(decode_steps=7) as running:
        beats, completion = asyncio.run(play(running))
    assert beats > len(completion.token_ids)


def test_the_clock_tells_work_from_waiting():
    with engine() as running:
        ask(running, [1, 2])
        seconds = running.statistics().seconds
    assert seconds["busy"] > 0
    assert seconds["waiting for requests"] > 0


def test_a_prefill_chunk_that_is_no_power_of_two_is_refused():
    with pytest.raises(ConfigError, match=r"prefill_chunk: must be a power of two.*48"):
        EngineConfig(prefill_chunk=48)
