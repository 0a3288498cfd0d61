"""docker or podman, as it has to be called on this machine: images are built, listed, run and pushed.

On most machines that is the plain command. On a locked-down one (limits that root cannot raise, a mix of cgroup
versions) podman still works when builds use a chroot, and when containers start in a private mount namespace, without
cgroups, under the limits that this process has. Which it is, is found by starting a container.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from components.errors import HeadraceError

ENGINES = ("docker", "podman")

WITHOUT_CGROUP2 = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
"""crun refuses to start beside cgroups of both versions; only the namespace that this runs in loses the second."""

MOST = 16384
"""Open files, and processes with their threads, of a container that starts under this machine's limits."""


class EngineError(HeadraceError):
    """A container engine is not here, does not run, or failed at what it was asked for."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image: bytes as stored, not compressed, and the line of the Dockerfile that made it."""

    size: int
    made_by: str


@dataclass(frozen=True, slots=True)
class Engine:
    """How an engine is called: its name, what goes before it, and options that every build or run needs here."""

    name: str
    before: tuple[str, ...] = ()
    build_options: tuple[str, ...] = ()
    run_options: tuple[str, ...] = ()

    def call(self, *arguments: str) -> str:
        """Run a command of the engine that starts no container; gives its output, or raises EngineError."""
        done = subprocess.run([self.name, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
            raise EngineError(f"{self.name} {arguments[0]} ended with {done.returncode}:\n{tail}")
        return done.stdout

    def has(self, image: str) -> bool:
        """Whether the image is on this machine."""
        command = [self.name, "image", "inspect", image]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def build(
        self,
        dockerfile: Path,
        context: Path,
        tag: str,
        *,
        arguments: Mapping[str, str],
        secrets: Mapping[str, Path],
        platform: str | None = None,
    ) -> None:
        """Build an image; what the build says goes to standard error. Raises EngineError when it fails.

        `platform` is one such as linux/amd64, None this machine's own.
        """
        options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        options += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
        options += [f"--platform={platform}"] if platform else []
        options += [f"--file={dockerfile}", f"--tag={tag}"]
        command = [self.name, "build", *self.build_options, *options, str(context)]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise EngineError(f"{self.name} could not build {dockerfile.name}; the reason stands above")

    def run_command(self, image: str, *command: str, options: Sequence[str] = ()) -> list[str]:
        """The whole command line that runs something in a fresh container and removes it."""
        return [*self.before, self.name, "run", "--rm", *self.run_options, *options, image, *command]

    def layers(self, image: str) -> list[Layer]:
        """The layers of an image, the first one first; those that hold nothing are left out."""
        history = ("history", "--no-trunc", "--human=false")
        if self.name == "podman":
            listed = json.loads(self.call(*history, "--format=json", image))
            found = [Layer(each["size"], each["CreatedBy"]) for each in listed]
        else:
            lines = self.call(*history, "--format={{.Size}}\t{{.CreatedBy}}", image).splitlines()
            found = [Layer(int(size), made_by) for size, _, made_by in (line.partition("\t") for line in lines)]
        return [layer for layer in reversed(found) if layer.size]

    def push(self, image: str, target: str, *, options: Sequence[str] = ()) -> str:
        """Push an image under the name `target`; gives `REPOSITORY@sha256:...`, the one name that never moves."""
        repository = _without_tag(target)
        self.call("tag", image, target)
        if self.name == "podman":
            with tempfile.NamedTemporaryFile(mode="r", encoding="utf-8") as digest:
                self.call("push", *options, f"--digestfile={digest.name}", target)
                return f"{repository}@{digest.read().strip()}"
        self.call("push", *options, target)
        names = json.loads(self.call("image", "inspect", "--format={{json .RepoDigests}}", target))
        return next(name for name in names if name.startswith(f"{repository}@"))


def find_engine(name: str | None = None) -> Engine:
    """The engine of this name, or the first of ENGINES that answers. Raises EngineError where there is none."""
    for each in [name] if name else ENGINES:
        if shutil.which(each) and subprocess.run([each, "info"], capture_output=True, check=False).returncode == 0:
            return Engine(each)
    raise EngineError(
        f"{name or 'neither docker nor podman'} runs here; podman needs no service: apt-get install podman crun"
    )


def adapted(engine: Engine, image: str) -> Engine:
    """The engine with the options under which a container of this image starts here.

    Raises EngineError with what was said of each try when none does.
    """
    refusals = []
    for candidate in (engine, _confined(engine)) if engine.name == "podman" else (engine,):
        command = candidate.run_command(image, "true")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return candidate
        refusals.append(done.stderr.strip())
    raise EngineError(f"{engine.name} starts no container here:\n" + "\n".join(refusals))


def _confined(engine: Engine) -> Engine:
    limits = {"nofile": _limit(resource.RLIMIT_NOFILE), "nproc": _limit(resource.RLIMIT_NPROC)}
    return replace(
        engine,
        before=("unshare", "--mount", "sh", "-c", WITHOUT_CGROUP2, "sh"),
        build_options=("--isolation=chroot",),
        run_options=("--cgroups=disabled", *(f"--ulimit={name}={most}:{most}" for name, most in limits.items())),
    )


def _limit(which: int) -> int:
    """What a container may get: half of what this process may at most have, as podman lowers that for itself."""
    hard = resource.getrlimit(which)[1]
    return MOST if hard == resource.RLIM_INFINITY else min(hard // 2, MOST)


def _without_tag(name: str) -> str:
    """`registry:5000/a/b:tag` -> `registry:5000/a/b`."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"
