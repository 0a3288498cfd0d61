"""Programs that try to get out of the sandbox do not; each is looked at from outside.

`isolation: process` ends what runs too long or too wide, and says by name what it makes no claim about. Both are tried
in this one file: what one of them leaves on the machine, the look for the other would see.
"""

import asyncio
from collections.abc import Iterator

import pytest

from components.environments.sandbox.detection import reason_against
from components.environments.sandbox.pool import Sandbox
from tests.environments.escapes import ALL, NOT_STOPPED_BY_PROCESS, Escape
from tests.environments.outside import Outside, outside, tried

REASON = reason_against("sandbox")
NOT_STOPPED = {name for names in NOT_STOPPED_BY_PROCESS.values() for name in names}
STOPPED = [escape for escape in ALL if escape.name not in NOT_STOPPED]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox("sandbox", workers=1) as opened:
        asyncio.run(opened.run("'warm'"))
        yield opened


@pytest.fixture(scope="module")
def limited() -> Iterator[Sandbox]:
    with Sandbox("process", workers=1) as opened:
        asyncio.run(opened.run("'warm'"))
        yield opened


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with outside(tmp_path_factory.mktemp("outside")) as made:
        yield made


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("escape", ALL, ids=lambda escape: escape.name)
def test_it_does_not_get_out(escape: Escape, sandbox: Sandbox, world: Outside) -> None:
    assert asyncio.run(tried(world, sandbox, escape)) == []


@pytest.mark.parametrize("escape", STOPPED, ids=lambda escape: escape.name)
def test_limits_and_a_clean_start_hold_for_a_process(escape: Escape, limited: Sandbox, world: Outside) -> None:
    assert asyncio.run(tried(world, limited, escape)) == []


def test_what_a_process_does_not_stop_is_named() -> None:
    assert {escape.name for escape in ALL} > NOT_STOPPED
    assert len(STOPPED) >= 40


def test_the_look_from_outside_sees_what_gets_out(world: Outside) -> None:
    """Seen with a program that runs with no isolation but its process: it reads, writes and calls home."""
    program = Escape(
        "all_at_once",
        "import socket\nprint(open('@HOST@/secret').read())\nopen('@HOST@/written', 'w').write('x')\n"
        "socket.create_connection(('127.0.0.1', @TCP@)).recv(1)\nimport os\nos.kill(@PARENT@, 10)\n"
        "open('/tmp/headrace_escape', 'w').close()\nwhile True: pass",
        at_limit=True,
    )
    with Sandbox("process", workers=1) as open_house:
        found = asyncio.run(tried(world, open_house, program))
    words = ("processes are left", "read the secret", "a server heard", "got signal 10", "files of the host", "it left")
    missing = [word for word in words if not any(word in each for each in found)]
    assert missing == [], found
