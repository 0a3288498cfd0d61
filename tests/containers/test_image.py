"""The images, built on Debian's packages and run: with no network, without rights, on a root that is read only.

Takes minutes (`make image-test`), and is skipped where no engine starts a container or no base image can be made.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kfp.local import subprocess_task_handler

from components.telemetry.run_files import SUMMARY
from containers.build import Built, build
from containers.debian_base import BASE, debian_base
from containers.engine import Engine, EngineError, adapted, find_engine
from pipeline.local import output_of, run_pipeline
from tests.pipeline.test_local import SHORT

pytestmark = pytest.mark.image

REPOSITORY = Path(__file__).resolve().parents[2]

HARDENED = ("--network=none", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")

FORBIDDEN = "bash curl dpkg gcc git make nc perl pip pip3 scp sh ssh su telnet wget"

PROBE = """\
import json, os, socket, stat, sys
files = [os.path.join(folder, name) for top in ("/usr", "/etc") for folder, _, names in os.walk(top) for name in names]
def writable(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return "written"
def connect():
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=5)
    except OSError as error:
        return error.strerror
    return "connected"
print(json.dumps({
    "uid": os.getuid(),
    "gid": os.getgid(),
    "folder": os.getcwd(),
    "programs": [path for path in files if "/bin/" in path or "/sbin/" in path],
    "setuid": [path for path in files if os.lstat(path).st_mode & (stat.S_ISUID | stat.S_ISGID)],
    "etc": writable("/etc/passwd"),
    "temporary": writable("/tmp/x"),
    "network": connect(),
    "variables": sorted(os.environ),
}))
"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        plain = find_engine("podman")
        return adapted(plain, debian_base(plain))
    except EngineError as error:
        pytest.skip(f"no container starts here: {error}")


@pytest.fixture(scope="module")
def runtime(engine: Engine) -> Built:
    built = build("runtime", engine, base=BASE)
    print(f"\n{json.dumps(built.figures(), indent=1)}", file=sys.stderr)
    return built


def said(engine: Engine, image: str, *command: str, stdin: str | None = None) -> str:
    """Standard output of a command in a fresh container that may do as little as possible."""
    options = (*HARDENED, "--interactive") if stdin else HARDENED
    done = subprocess.run(
        engine.run_command(image, *command, options=options), input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_runtime_image_holds_the_locked_packages_for_a_user_who_is_not_root(engine: Engine, runtime: Built) -> None:
    config = json.loads(engine.call("image", "inspect", "--format={{json .Config}}", runtime.image))
    assert config["User"] == "10001:10001"
    labels = {name.rpartition(".")[2]: value for name, value in config["Labels"].items()}
    assert labels["title"] == "headrace"
    assert len(labels["revision"].removesuffix("+changes")) == 40
    assert (
        said(engine, runtime.image, "cat", "/opt/headrace/lib/python3.11/site-packages/pipeline/COMMIT").strip()
        == (labels["revision"])
    )
    question = "import jax, kfp, os, shutil, sys; print(sys.prefix, jax.__version__, os.getuid(), shutil.which('pip'))"
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8").splitlines()
    (jax,) = (line.partition("==")[2] for line in lock if line.startswith("jax=="))
    # As the launcher starts a step: by a shell that finds python3.
    answer = said(engine, runtime.image, "sh", "-c", f'python3 -c "{question}"')
    assert answer.split() == ["/opt/headrace", jax, "10001", "None"]


def test_dependencies_are_a_layer_that_a_change_of_the_code_leaves_alone(runtime: Built) -> None:
    largest = max(runtime.layers, key=lambda layer: layer.size)
    assert "/opt/headrace" in largest.made_by
    after = runtime.layers[runtime.layers.index(largest) + 1 :]
    weights, code, *rest = (layer.size for layer in after)
    assert weights > 50e6
    assert code < 10e6
    assert sum(rest) < 1e6


def test_every_step_of_the_committed_pipeline_runs_in_a_container_of_its_own(
    engine: Engine, runtime: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kfp's local runner makes each step's command line as on a cluster; here a container gets it, not a process."""
    started: list[str] = []

    def in_a_container(full_command: list[str], new_executable: str) -> list[str]:
        started.append(full_command[full_command.index("--function_to_execute") + 1])
        mounted = (f"--volume={tmp_path}:{tmp_path}", "--tmpfs=/home/headrace:mode=1777")
        return engine.run_command(runtime.image, *full_command, options=(*HARDENED, *mounted))

    monkeypatch.setattr(subprocess_task_handler, "replace_python_executable", in_a_container)
    monkeypatch.chdir(tmp_path)
    # The container's user is not this one, and both write into the run's folder.
    tmp_path.chmod(0o777)
    before = os.umask(0)
    try:
        text = (REPOSITORY / "pipeline" / "post_training.yaml").read_text(encoding="utf-8")
        arguments = {"recipe": "smoke", "overrides": json.dumps(SHORT)}
        folder, _ = run_pipeline(text, arguments, name="inside", runs=tmp_path / "runs")
    finally:
        os.umask(before)

    assert started[:4] == ["resolve_recipe", "prepare_data", "init_model", "train"]
    assert {"evaluate", "export"} <= set(started)
    summary = json.loads((folder / SUMMARY).read_text())
    written = list((folder / "steps").glob("*/*/executor_output.json"))
    assert len(written) == len(set(started))
    assert {path.stat().st_uid for path in written} == {10001}
    assert summary["steps"] == 2
    assert summary["proofs"]["export"]["adapter"] == 0.0
    tokens = dict(summary["tokens"])
    assert tokens.pop("generated") == sum(tokens.values()) > 0
    adapter, merged = output_of(folder, "export", "adapter"), output_of(folder, "export", "merged")
    assert adapter is not None
    assert merged is not None
    assert (adapter / "adapter_model.safetensors").is_file()
    assert (merged / "model.safetensors").stat().st_size > 100_000


def test_the_sandbox_holds_python_and_no_other_program(engine: Engine) -> None:
    built = build("sandbox", engine, base=BASE)
    print(f"\n{json.dumps(built.figures(), indent=1)}", file=sys.stderr)
    found = json.loads(said(engine, built.image, "-", stdin=PROBE))
    assert (found["uid"], found["gid"], found["folder"]) == (10002, 10002, "/work")
    assert {Path(path).name for path in found["programs"]} <= {"python3", "python3.11"}
    assert not {Path(path).name for path in found["programs"]} & set(FORBIDDEN.split())
    assert found["setuid"] == []
    assert found["etc"] in ("Permission denied", "Read-only file system")
    assert found["temporary"] == "written"
    assert found["network"] == "Network is unreachable"
    assert sum(layer.size for layer in built.layers) < 100e6
