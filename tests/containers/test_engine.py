"""How an engine is called: against programs that write down what they are asked for."""

import os
from pathlib import Path

import pytest

from containers.build import default_base
from containers.debian_base import debian_base
from containers.engine import Engine, EngineError, Layer, adapted, find_engine

PODMAN = """\
#!/bin/sh
echo "$@" >> "$0.log"
case "$*" in
  info) ;;
  history*) echo '[{"size":0, "CreatedBy":"CMD"}, {"size":7, "CreatedBy":"RUN"}, {"size":9, "CreatedBy":"ADD"}]' ;;
  push*) for word; do case "$word" in --digestfile=*) echo sha256:12ab > "${word#--digestfile=}" ;; esac; done ;;
  "image inspect"*) exit 1 ;;
  run*--cgroups=disabled*) ;;
  run*) echo "setrlimit: not permitted" >&2; exit 126 ;;
esac
"""
DOCKER = """\
#!/bin/sh
case "$*" in
  history*) printf '0\\tCMD\\n7\\tRUN a\\tb\\n' ;;
  "image inspect"*) echo '["other/x@sha256:00", "registry:5000/x@sha256:34cd"]' ;;
  run*) echo "no runtime" >&2; exit 125 ;;
esac
"""
UNSHARE = '#!/bin/sh\nwhile [ "$1" != podman ]; do shift; done\nexec "$@"\n'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is looked through first, with an engine of each name and the command for mount namespaces."""
    for name, text in (("podman", PODMAN), ("docker", DOCKER), ("unshare", UNSHARE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def asked(programs: Path) -> list[str]:
    return (programs / "podman.log").read_text().splitlines()


def test_where_no_container_starts_it_is_tried_within_this_machines_limits(programs: Path) -> None:
    engine = adapted(find_engine("podman"), "base")
    assert engine.build_options == ("--isolation=chroot",)
    plain, confined = (line for line in asked(programs) if line.startswith("run"))
    assert plain == "run --rm base true"
    assert confined.startswith("run --rm --cgroups=disabled --ulimit=nofile=")
    # Nothing but the command itself goes through the namespace that has lost a mount.
    assert engine.run_command("image", "id", options=("--network=none",))[:4] == ["unshare", "--mount", "sh", "-c"]


def test_an_engine_that_starts_nothing_is_refused_with_its_own_words(programs: Path) -> None:
    with pytest.raises(EngineError, match="docker starts no container here:\nno runtime"):
        adapted(find_engine("docker"), "base")


def test_no_engine_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"neither docker nor podman runs here; .*apt-get install podman"):
        find_engine()


def test_layers_come_first_to_last_and_those_without_bytes_are_left_out(programs: Path) -> None:
    assert Engine("podman").layers("x") == [Layer(9, "ADD"), Layer(7, "RUN")]
    assert Engine("docker").layers("x") == [Layer(7, "RUN a\tb")]


def test_what_is_pushed_is_named_by_the_digest_that_the_registry_has(programs: Path) -> None:
    assert Engine("podman").push("x:1", "registry:5000/x:1") == "registry:5000/x@sha256:12ab"
    assert asked(programs)[0] == "tag x:1 registry:5000/x:1"
    assert Engine("docker").push("x:1", "registry:5000/x:1") == "registry:5000/x@sha256:34cd"


def test_a_build_gets_its_arguments_and_secrets(programs: Path, tmp_path: Path) -> None:
    engine = Engine("podman", build_options=("--isolation=chroot",))
    engine.build(Path("a.Dockerfile"), tmp_path, "x:1", arguments={"A": "b c"}, secrets={"pip": Path("/pip.conf")})
    expected = "--isolation=chroot --build-arg=A=b c --secret=id=pip,src=/pip.conf --file=a.Dockerfile --tag=x:1"
    engine.build(Path("a"), tmp_path, "x:1", arguments={}, secrets={}, platform="linux/amd64")
    assert asked(programs) == [
        f"build {expected} {tmp_path}",
        f"build --isolation=chroot --platform=linux/amd64 --file=a --tag=x:1 {tmp_path}",
    ]


def test_a_failing_command_is_told_with_its_end(programs: Path) -> None:
    with pytest.raises(EngineError, match="podman image ended with 1"):
        Engine("podman").call("image", "inspect", "x")


def test_a_base_that_cannot_be_made_is_refused_before_anything_is_downloaded(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EngineError, match="needs root and debootstrap"):
        debian_base(Engine("podman"))


def test_the_base_of_a_dockerfile_is_read_from_it(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("# ARG BASE=x\nARG BASE=python:3.11\nFROM ${BASE}\n")
    assert default_base(tmp_path / "Dockerfile") == "python:3.11"
