"""What the runtime image installs, and the proof that it installs nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from containers import pins

PROJECT = '[project]\nname = "x"\ndependencies = ["jax>=0.10", "kfp>=2.17"]\n'
LOCK = """\
# exact versions
jax==0.10.2
kfp-pipeline-spec==2.17.3
ml-dtypes==0.6.0 ; python_version < '4'
"""


def test_each_accelerator_adds_its_own_jax_to_the_dependencies() -> None:
    assert pins.wanted(PROJECT, "cpu") == ["jax>=0.10", "kfp>=2.17", "jax"]
    assert pins.wanted(PROJECT, "cuda")[-1] == "jax[cuda13]"
    assert pins.wanted(PROJECT, "tpu")[-1] == "jax[tpu]"


def test_another_accelerator_is_refused_with_the_possible_ones() -> None:
    with pytest.raises(ValueError, match="one of cpu, cuda, tpu, not 'gpu'"):
        pins.wanted(PROJECT, "gpu")


def test_names_are_compared_as_packaging_compares_them() -> None:
    locked = pins.pinned([LOCK])
    assert locked == {"jax": "0.10.2", "kfp-pipeline-spec": "2.17.3", "ml-dtypes": "0.6.0"}
    assert pins.unpinned({"JAX": "0.10.2", "kfp_pipeline.spec": "2.17.3", "ml_dtypes": "0.6.0"}, locked) == []


def test_what_is_in_no_lock_or_of_another_version_is_named() -> None:
    installed = {"jax": "0.10.1", "left-pad": "1.0", "ml_dtypes": "0.6.0"}
    assert pins.unpinned(installed, pins.pinned([LOCK])) == ["jax==0.10.1", "left-pad==1.0"]


def test_the_build_stops_where_an_environment_is_not_that_of_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("pytest==0.0.1\n")
    done = subprocess.run([sys.executable, pins.__file__, "check", lock], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"pytest=={pytest.__version__}" in done.stderr
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    command = [sys.executable, pins.__file__, "wanted", tmp_path / "pyproject.toml", "gpu"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
