"""`isolation: process` ends what runs too long or too wide, and says by name what it makes no claim about."""

import asyncio
from collections.abc import Iterator

import pytest

from components.environments.sandbox.pool import Sandbox
from tests.environments.escapes import ALL, NOT_STOPPED_BY_PROCESS, Escape
from tests.environments.outside import Outside, outside, tried

NOT_STOPPED = {name for names in NOT_STOPPED_BY_PROCESS.values() for name in names}
STOPPED = [escape for escape in ALL if escape.name not in NOT_STOPPED]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox("process", workers=1) as opened:
        asyncio.run(opened.run("'warm'"))
        yield opened


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with outside(tmp_path_factory.mktemp("outside")) as made:
        yield made


@pytest.mark.parametrize("escape", STOPPED, ids=lambda escape: escape.name)
def test_limits_and_a_clean_start_hold(escape: Escape, sandbox: Sandbox, world: Outside) -> None:
    assert asyncio.run(tried(world, sandbox, escape)) == []


def test_what_is_not_stopped_is_named() -> None:
    assert {escape.name for escape in ALL} > NOT_STOPPED
    assert len(STOPPED) >= 40
