"""A loop that stands still is measured, and who held it up is named once."""

import asyncio
import inspect
import json
import threading
import time

from components.telemetry.loop_lag import LoopLag


def watch(main, **settings) -> tuple[LoopLag, list[str]]:
    told: list[str] = []

    async def run():
        async with LoopLag(tell=told.append, **settings) as lag:
            await main()
        return lag

    return asyncio.run(run()), told


async def sleeps_on_the_loop(seconds: float) -> None:
    time.sleep(seconds)


def test_a_loop_that_nobody_blocks_is_hardly_late_and_nothing_is_told():
    lag, told = watch(lambda: asyncio.sleep(0.3))
    assert told == []
    assert lag.blocked_by == {}
    assert lag.totals()["beats"] > 10


def test_a_block_is_measured_up_to_one_beat():
    async def main():
        await asyncio.sleep(0.02)
        await sleeps_on_the_loop(0.2)
        await asyncio.sleep(0.02)

    lag, _ = watch(main)
    assert lag.worst_seconds >= 0.18
    assert lag.totals()["late"] >= 1
    assert lag.totals()["late_seconds"] >= 0.18
    json.dumps(lag.totals())


def test_a_block_that_lasts_until_the_end_is_measured_too():
    lag, _ = watch(lambda: sleeps_on_the_loop(0.2))
    assert lag.worst_seconds >= 0.18


def test_the_code_that_blocks_is_named_once_by_file_and_line_while_it_does():
    async def main():
        for _ in range(3):
            await sleeps_on_the_loop(0.3)
            await asyncio.sleep(0.02)

    lag, told = watch(main, bound=0.1)
    line = inspect.getsourcelines(sleeps_on_the_loop)[1] + 1
    assert len(told) == 1
    assert f"{__file__}:{line} (sleeps_on_the_loop)" in told[0]
    assert "asyncio.to_thread" in told[0]
    (place,) = lag.blocked_by
    assert lag.blocked_by[place] >= 0.1


def test_code_of_a_library_is_named_by_who_called_it():
    def busy(_):
        time.sleep(0.15)
        return 0

    async def main():
        json.dumps({"a": {object()}}, default=lambda value: sorted(value, key=busy) and [])
        await asyncio.sleep(0)

    _, told = watch(main, bound=0.05)
    assert all(f"at {__file__}:" in line for line in told)
    assert told


def test_a_silence_while_the_loop_waits_blames_nobody():
    async def run():
        told: list[str] = []
        async with LoopLag(bound=0.05, tell=told.append) as lag:
            # As when another thread, or another program, does not let the beat come.
            lag._next.cancel()
            await asyncio.sleep(0.3)
        return lag, told

    lag, told = asyncio.run(run())
    assert (lag.blocked_by, told) == ({}, [])
    assert lag.worst_seconds >= 0.2


def test_no_thread_is_left_behind():
    watch(lambda: asyncio.sleep(0))
    assert "loop lag" not in {thread.name for thread in threading.enumerate()}
