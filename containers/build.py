"""A Dockerfile of this folder -> an image that was seen to work, its figures, and, when pushed, its digest.

    python3 -m containers.build runtime --accelerator tpu --push REGISTRY/PROJECT/REPOSITORY/headrace-python:0.1.0
    python3 -m containers.build sandbox --base debian     # no registry of images needed, only Debian's packages

Any Python 3.11 can run it, without Headrace's dependencies. What an index of packages needs is taken from the pip
configuration of who calls it, and handed to the build as a secret.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from components.errors import HeadraceError
from containers.debian_base import debian_base
from containers.engine import Engine, EngineError, Layer, adapted, find_engine
from containers.pins import EXTRAS

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).resolve().parent

SECRETS = {
    "pip": (Path("~/.config/pip/pip.conf"), Path("~/.pip/pip.conf"), Path("/etc/pip.conf")),
    "certificates": (Path("/etc/ssl/certs/ca-certificates.crt"),),
}
"""What a build may read of this machine, and where it lies: the first that exists."""

HELD = ("components", "containers", "pipeline", "pyproject.toml", "requirements.lock")
"""Where what an image holds comes from."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the images: what it is called without its version, and what it must be able to do with no network."""

    name: str
    check: tuple[str, ...]


KINDS = {
    "runtime": Kind("headrace-python", ("headrace", "doctor", "smoke")),
    "sandbox": Kind("headrace-sandbox", ("-c", "print(sum(range(10)))")),
}


@dataclass(frozen=True, slots=True)
class Built:
    """An image and its figures: seconds of its build and of its check, and bytes by layer."""

    image: str
    base: str
    build_seconds: float
    check_seconds: float
    layers: tuple[Layer, ...]

    def figures(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "bytes": sum(layer.size for layer in self.layers)}


def build(
    kind: str,
    engine: Engine,
    *,
    accelerator: str = "cpu",
    base: str | None = None,
    weights: str | None = None,
    platform: str | None = None,
) -> Built:
    """Build and check an image. Of `base`, `weights` and `platform`, None is the Dockerfile's or the machine's own.

    `engine` is one that `adapted` gave; `weights` "" is none. Raises EngineError.
    """
    dockerfile = FOLDER / f"{kind}.Dockerfile"
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    arguments = {"VERSION": version, "REVISION": _revision()}
    arguments |= {"BASE": base} if base else {}
    if kind == "runtime":
        arguments |= {"ACCELERATOR": accelerator} | ({} if weights is None else {"WEIGHTS": weights})
    image = f"{KINDS[kind].name}:{version}{'' if accelerator == 'cpu' else f'-{accelerator}'}"
    started = time.monotonic()
    engine.build(dockerfile, REPOSITORY, image, arguments=arguments, secrets=_secrets(), platform=platform)
    built = time.monotonic()
    checked = engine.run_command(image, *KINDS[kind].check, options=("--network=none",))
    if subprocess.run(checked, stdout=sys.stderr, check=False).returncode:
        raise EngineError(f"{image} was built, but does not work; the reason stands above")
    return Built(
        image=image,
        base=base or default_base(dockerfile),
        build_seconds=round(built - started, 1),
        check_seconds=round(time.monotonic() - built, 1),
        layers=tuple(engine.layers(image)),
    )


def default_base(dockerfile: Path) -> str:
    """The base that a Dockerfile names for itself."""
    return re.findall(r"^ARG BASE=(\S+)$", dockerfile.read_text(encoding="utf-8"), flags=re.MULTILINE)[0]


def _secrets() -> dict[str, Path]:
    found = {
        name: next((path.expanduser() for path in places if path.expanduser().is_file()), None)
        for name, places in SECRETS.items()
    }
    return {name: path for name, path in found.items() if path is not None}


def _revision() -> str:
    """The commit that is checked out, with `+changes` when something that an image may hold differs from it."""
    commit, changes = (
        subprocess.run(["git", *question], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        for question in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", *HELD))
    )
    return f"{commit.stdout.strip()}{'+changes' if changes.stdout else ''}" if commit.returncode == 0 else "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line names; figures go to standard output, everything else to standard error."""
    options = _parser().parse_args(arguments)
    try:
        engine = find_engine(options.engine)
        base = debian_base(engine, mirror=options.mirror) if options.base == "debian" else options.base
        engine = adapted(engine, base or default_base(FOLDER / f"{options.kind}.Dockerfile"))
        built = build(
            options.kind,
            engine,
            accelerator=options.accelerator,
            base=base,
            weights=options.weights,
            platform=options.platform,
        )
        pushed = engine.push(built.image, options.push) if options.push else None
    except HeadraceError as error:
        print(f"containers.build: {error}", file=sys.stderr)
        return 1
    figures = built.figures() | {"pushed": pushed}
    print(json.dumps(figures) if options.json else _table(built, pushed))
    return 0


def _table(built: Built, pushed: str | None) -> str:
    lines = [f"{layer.size / 1e6:10.2f} MB  {layer.made_by[:90]}" for layer in built.layers]
    total = sum(layer.size for layer in built.layers) / 1e6
    lines += [f"{total:10.2f} MB  {built.image}: {built.build_seconds} s to build, {built.check_seconds} s to check"]
    return "\n".join([*lines, *([pushed] if pushed else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m containers.build", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--accelerator", choices=EXTRAS, default="cpu", help="default: cpu")
    parser.add_argument("--base", help="an image, or `debian` for one that is made here; default: the Dockerfile's")
    parser.add_argument("--mirror", help="of Debian, for --base debian")
    parser.add_argument("--weights", help="a package of weights for the runtime image, or '' for none")
    parser.add_argument("--platform", help="such as linux/amd64, for a cluster of other processors than this machine's")
    parser.add_argument("--engine", help="docker or podman; default: the first that runs")
    parser.add_argument("--push", metavar="NAME", help="push under this name, and print it with its digest")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
