"""What can be said of the Dockerfiles without an engine."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from components.steps.image import RUNTIME_IMAGE
from containers.build import KINDS, default_base
from containers.pins import EXTRAS, pinned

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "containers"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
RUNTIME = FOLDER / "runtime.Dockerfile"

Instruction = tuple[str, str]


def instructions(path: Path) -> list[Instruction]:
    """Keyword and rest of each instruction, continued lines joined, comments left out."""
    text = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)]


def rests(path: Path, keyword: str) -> list[str]:
    return [rest for word, rest in instructions(path) if word == keyword]


def copied(path: Path) -> set[str]:
    """What is copied from the repository, not from another stage."""
    whole = (shlex.split(rest) for rest in rests(path, "COPY"))
    return {source for words in whole if not words[0].startswith("--from") for source in words[:-1]}


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_each_image_that_can_be_built_has_a_dockerfile() -> None:
    assert {path.stem for path in DOCKERFILES} == KINDS.keys()


def test_the_base_is_pinned_by_digest_and_every_stage_stands_on_it(dockerfile: Path) -> None:
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", default_base(dockerfile))
    stages = [rest.split(" AS ") for rest in rests(dockerfile, "FROM")]
    known = {"${BASE}", "scratch"}
    for base, *name in stages:
        assert base in known
        known |= set(name)
    assert len({default_base(path) for path in DOCKERFILES}) == 1


def test_nothing_floats_and_no_host_is_named(dockerfile: Path) -> None:
    text = "\n".join(f"{word} {rest}" for word, rest in instructions(dockerfile) if word != "LABEL")
    assert ":latest" not in text
    assert "://" not in text
    assert re.findall(r"\b[\w-]+\.(?:com|dev|gcr|io|net|org)\b", text) == []
    assert not {word for word, _ in instructions(dockerfile)} & {"ADD", "ONBUILD", "VOLUME"}


def test_the_last_word_on_the_user_is_a_number_that_is_not_root(dockerfile: Path) -> None:
    user, group = rests(dockerfile, "USER")[-1].split(":")
    assert int(user) == int(group) >= 10000
    after = [word for word, _ in instructions(dockerfile)]
    # What runs after it, the check of the imports, runs as that user.
    assert "RUN" in after[len(after) - after[::-1].index("USER") :]


def test_an_image_says_what_it_is_and_of_which_commit(dockerfile: Path) -> None:
    labels = " ".join(rests(dockerfile, "LABEL"))
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
    assert {"VERSION=unknown", "REVISION=unknown"} <= set(rests(dockerfile, "ARG"))


def test_the_engine_is_sent_what_the_dockerfiles_copy_and_nothing_else() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in lines
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert sent == set().union(*map(copied, DOCKERFILES))
    assert all((REPOSITORY / name).exists() for name in sent)
    assert {"**/__pycache__", "**/*.egg-info"} <= set(lines)


def test_pip_takes_the_versions_of_the_locks_and_keeps_no_cache() -> None:
    commands = [part.strip() for rest in rests(RUNTIME, "RUN") for part in rest.split("&&")]
    installs = [part for part in commands if "pip install" in part]
    locks = ("-c /build/requirements.lock", "-c /build/accelerators.lock")
    assert len(installs) == 3
    assert all("--no-deps" in part or all(lock in part for lock in locks) for part in installs)
    assert all("--mount=type=secret,id=pip," in rest for rest in rests(RUNTIME, "RUN") if "pip install" in rest)
    assert "PIP_NO_CACHE_DIR=1" in " ".join(rests(RUNTIME, "ENV"))


def test_dependencies_come_before_the_code_and_installers_stay_behind() -> None:
    last = [index for index, (word, _) in enumerate(instructions(RUNTIME)) if word == "FROM"][-1]
    final = instructions(RUNTIME)[last:]
    stages = [rest.split()[0] for word, rest in final if word == "COPY"]
    assert stages == ["--from=dependencies", "--from=weights", "--from=code"]
    assert not any(re.search(r"\bpip\b", rest) for _, rest in final)


def test_the_accelerators_are_those_that_the_first_stage_knows() -> None:
    assert EXTRAS.keys() == {"cpu", "cuda", "tpu"}
    assert rests(RUNTIME, "ARG").count("ACCELERATOR=cpu") == 1


def test_what_is_built_is_what_the_pipeline_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"{KINDS['runtime'].name}:{project['version']}" == RUNTIME_IMAGE


def test_the_weights_are_those_of_the_makefile() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    (weights,) = re.findall(r"^WEIGHTS := (\S+)$", makefile, flags=re.MULTILINE)
    assert f"WEIGHTS={weights}" in rests(RUNTIME, "ARG")


def test_the_lock_of_accelerators_adds_to_the_other_and_is_of_the_same_jax() -> None:
    main, accelerators = (
        pinned([path.read_text(encoding="utf-8")])
        for path in (REPOSITORY / "requirements.lock", FOLDER / "accelerators.lock")
    )
    assert accelerators.keys().isdisjoint(main)
    plugins = {version for name, version in accelerators.items() if name.startswith("jax-")}
    assert plugins == {main["jax"]}
    assert "libtpu" in accelerators
