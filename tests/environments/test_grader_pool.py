"""Graders that hang, raise or die cost one grade, and no worker."""

import asyncio
import os

import pytest

from components.environments.grader_pool import GraderPool
from components.errors import GraderFailedError
from tests.environments import graders_that_misbehave as graders


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_graders_that_hang_end_at_their_time_out_and_the_next_ones_are_graded():
    async def play(pool):
        hung = await asyncio.gather(*(pool.grade(graders.never_ends, "x") for _ in range(6)), return_exceptions=True)
        return hung, await asyncio.gather(*(pool.grade(graders.length, "x" * n) for n in range(4)))

    with GraderPool(workers=4, timeout=1.0) as pool:
        hung, graded = asyncio.run(play(pool))
    assert [str(error).split(" timed out")[1] for error in hung] == [" after 1 seconds"] * 6
    assert all(isinstance(error, GraderFailedError) for error in hung)
    assert graded == [0.0, 1.0, 2.0, 3.0]


def test_no_worker_is_left_after_close_even_one_at_work():
    async def play(pool):
        worker = await pool.grade(graders.process_id)
        at_work = asyncio.create_task(pool.grade(graders.never_ends, "x"))
        await asyncio.sleep(0.1)
        assert is_running(worker)
        await asyncio.to_thread(pool.close)
        with pytest.raises(GraderFailedError, match="took its process down"):
            await at_work
        return worker

    assert not is_running(asyncio.run(play(GraderPool(workers=1, timeout=30.0))))


def test_a_worker_is_used_again_after_a_grade_and_after_an_error_but_not_after_a_crash():
    async def play(pool):
        first = await pool.grade(graders.process_id)
        with pytest.raises(GraderFailedError, match="raises raised ValueError: cannot grade x"):
            await pool.grade(graders.raises, "x")
        with pytest.raises(GraderFailedError, match="cannot be sent back"):
            await pool.grade(graders.gives_what_cannot_be_sent)
        second = await pool.grade(graders.process_id)
        with pytest.raises(GraderFailedError, match=r"took its process down \(exit code 3\)"):
            await pool.grade(graders.dies, "x")
        return first, second, await pool.grade(graders.process_id)

    with GraderPool(workers=1, timeout=30.0) as pool:
        first, second, third = asyncio.run(play(pool))
    assert first == second != third


def test_a_worker_does_not_load_jax():
    import jax  # noqa: F401 - this process holds it

    async def play(pool):
        return await pool.grade(graders.loaded_modules)

    with GraderPool(workers=1, timeout=30.0) as pool:
        loaded = asyncio.run(play(pool))
    assert graders.__name__ in loaded
    assert not [name for name in loaded if name.split(".")[0] in ("jax", "jaxlib", "numpy", "flax")]


def test_a_closed_pool_refuses():
    async def play(pool):
        await pool.grade(graders.length, "x")

    pool = GraderPool(workers=1)
    pool.close()
    with pytest.raises((GraderFailedError, RuntimeError)):
        asyncio.run(play(pool))
