"""A YAML file and overrides -> a `Recipe`: one strict config per step, each declared in the room that it configures.

    recipe = load_recipe("quickstart", {"train.optimizer.learning_rate": "2e-5"})

A recipe is the name of a shipped one, a path, or a gs:// URI. Nothing is inherited and nothing is read from the
environment: what a run does is in one file and its overrides, and `dump(recipe)` writes out every default.
"""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from components import storage
from components.algorithms.objective import Objective
from components.config import config, dump, load
from components.errors import ConfigError, Problem
from components.evaluation.gate import GateConfig
from components.evaluation.run import EvaluateConfig
from components.export.promotion import PromoteConfig
from components.export.run import ExportConfig
from components.launcher.platform import PlatformConfig
from components.rollout.player import EnvironmentConfig
from components.rollout.prepare import PrepareConfig
from components.training.initialise import InitConfig
from components.training.run import TrainConfig
from components.training.tuning.methods import describe
from components.training.tuning.settings import TuneConfig
from pipeline.document import Document, read_document, read_value

MAX_PARAMETER = 10_000
"""Characters that Kubeflow Pipelines takes in one parameter (kubeflow/pipelines#12510)."""


def _checked_name(name: str) -> str:
    """A name that folders and pipelines can have. Raises ValueError that names what they cannot."""
    allowed = "use letters a to z, digits, '-', '_' and '.', beginning with a letter or a digit"
    if not name:
        raise ValueError(f"is empty; {allowed}")
    if not name.isascii() or not name[0].isalnum() or not all(each.isalnum() or each in "-_." for each in name):
        wrong = next((each for each in name if not (each.isascii() and (each.isalnum() or each in "-_."))), name[0])
        raise ValueError(f"has {wrong!r} in place {name.index(wrong) + 1}; {allowed}")
    return name


@config
class Recipe:
    """All that a run is made of. `environment` is shared by preparation, tuning, training and evaluation.

    `tune` makes the adapter better from examples, `train` from what it tries itself; with both, `train` goes on from
    what `tune` made. One of them there must be.

    `parent` is the adapter to start from: a PEFT directory, local or gs://, or `latest-promoted` for the one that is
    promoted when the run starts (a fresh one where none is yet). `init_model.lora` then describes the fresh one only.
    """

    name: Annotated[str, AfterValidator(_checked_name)]
    environment: EnvironmentConfig
    init_model: InitConfig
    train: TrainConfig | None = None
    tune: TuneConfig | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    parent: str | None = None
    prepare_data: PrepareConfig = PrepareConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    gate: GateConfig = GateConfig()
    export: ExportConfig = ExportConfig()
    promote: PromoteConfig = PromoteConfig()
    platform: PlatformConfig = PlatformConfig()

    def __post_init__(self) -> None:
        if self.parent is not None and self.init_model.adapter is not None:
            message = (
                f"so does init_model.adapter ({self.init_model.adapter}) name what to start from; give one of both"
            )
            raise ConfigError(Problem("parent", self.parent, message))
        if self.train is None and self.tune is None:
            raise ConfigError(Problem("train", None, "give train, tune, or both: nothing would be learnt"))
        measured = self.evaluate.measure_names()
        if self.gate.measure not in measured:
            message = f"is nothing that the evaluation measures: {', '.join(measured)}"
            raise ConfigError(Problem("gate.measure", self.gate.measure, message))

    @property
    def stages(self) -> tuple[str, ...]:
        """What is learnt, in order: tune, train, or both."""
        return tuple(name for name, given in (("tune", self.tune), ("train", self.train)) if given is not None)

    @property
    def pipeline(self) -> str:
        """The name of the shipped pipeline that has these stages and no others."""
        return PIPELINE_OF[self.stages]

    @property
    def sweep_pipeline(self) -> str:
        """The name of the shipped pipeline that runs this recipe once for every trial."""
        return SWEEP_OF[self.stages]

    def objectives(self) -> str:
        """What is minimised, stage by stage, as formulas for people."""
        texts = [f"tune ({self.tune.method}): {describe(self.tune)}"] if self.tune else []
        return "\n".join(texts + ([Objective.from_config(self.train.objective).describe()] if self.train else []))


PIPELINE_OF = {("train",): "post_training", ("tune", "train"): "tuned_post_training", ("tune",): "tuning"}
"""Each has a step for every stage of a recipe, and none that would do nothing."""
SWEEP_OF = {("train",): "sweep", ("tune", "train"): "tuned_sweep", ("tune",): "tuning_sweep"}

SECTIONS = (
    "environment",
    "prepare_data",
    "init_model",
    "tune",
    "train",
    "evaluate",
    "gate",
    "export",
    "promote",
    "platform",
)


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with Headrace."""
    folder = resources.files("pipeline") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_recipe(name: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read and check a recipe. `overrides` maps paths of keys to values; text becomes the declared type of its key.

    Raises ConfigError with every problem found, each with file and line, or with the override that is wrong.
    """
    document = read_document(read_recipe_text(name), name)
    return parse_recipe(document, overrides or {})


def read_recipe_text(name: str) -> str:
    """The text of a shipped recipe, or of a file. Raises ConfigError where there is none."""
    shipped = resources.files("pipeline") / "recipes" / f"{name}.yaml"
    if "/" not in name and shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    try:
        return storage.read_text(name)
    except (FileNotFoundError, IsADirectoryError):
        names = shipped_recipes()
        close = difflib.get_close_matches(name.strip().lower().removesuffix(".yaml"), names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        message = f"is neither a shipped recipe ({', '.join(names)}) nor a file{hint}"
    except UnicodeDecodeError:
        message = "is no text file"
    raise ConfigError(Problem("recipe", name, message))


def parse_recipe(document: Document, overrides: Mapping[str, Any]) -> Recipe:
    """Check a document with its overrides. Raises ConfigError as `load_recipe` does."""
    values = document.values
    for path, value in overrides.items():
        values = _with(values, path.split("."), _typed(Recipe, path, value), path)
    try:
        return load(Recipe, values)
    except ConfigError as error:
        raise ConfigError([_placed(problem, document, overrides) for problem in error.problems]) from None


def parse_assignments(assignments: list[str], option: str = "--set", example: str = "train.steps=3") -> dict[str, str]:
    """`["train.steps=3"]` -> `{"train.steps": "3"}`. `option` is what they were given by.

    Raises ConfigError for one without a key or an equals sign.
    """
    pairs = [assignment.partition("=") for assignment in assignments]
    problems = [
        Problem(option, assignment, f"write it as KEY=VALUE, for example {example}")
        for assignment, (key, equals, _) in zip(assignments, pairs, strict=True)
        if not all(key.strip().split(".")) or not equals
    ]
    if problems:
        raise ConfigError(problems)
    return {key.strip(): value for key, _, value in pairs}


def parse_overrides(text: str, where: str = "overrides") -> dict[str, Any]:
    """Overrides as they travel in the pipeline's parameter `where`: a JSON object of paths to values, or an empty text.

    Raises ConfigError for anything else.
    """
    try:
        overrides = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(Problem(where, text, f"is no JSON: {error}")) from None
    if not isinstance(overrides, dict):
        raise ConfigError(Problem(where, text, 'must be a JSON object such as {"train.steps": 3}'))
    return overrides


def section_texts(recipe: Recipe) -> dict[str, str]:
    """Each section as the JSON text that travels to its step, an empty one where the recipe has no such section.

    Raises ConfigError for one that KFP would refuse.
    """
    sections = {name: section for name, section in dump(recipe).items() if name in SECTIONS}
    prepare = sections["prepare_data"]
    if prepare["max_prompt_tokens"] is not None and prepare["tokenizer"] is None:
        prepare["tokenizer"] = recipe.init_model.source
    texts = {name: "" if section is None else json.dumps(section) for name, section in sections.items()}
    check_parameter_sizes(texts)
    return texts


def check_parameter_sizes(parameters: Mapping[str, str]) -> None:
    """Raises ConfigError naming every text that Kubeflow Pipelines would refuse as a parameter."""
    problems = [
        Problem(name, text, f"has {len(text):,} characters, a pipeline parameter at most {MAX_PARAMETER:,}; use a file")
        for name, text in parameters.items()
        if len(text) > MAX_PARAMETER
    ]
    if problems:
        raise ConfigError(problems)


def _with(values: Any, keys: list[str], value: Any, path: str) -> dict[str, Any]:
    """A copy of nested mappings with one value put in."""
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(Problem(f"--set {path}", value, f"{keys[0]} stands below a value that is no mapping"))
    below = dict(values or {})
    below[keys[0]] = _with(below.get(keys[0]), keys[1:], value, path) if keys[1:] else value
    return below


def _typed(kind: Any, path: str, value: Any) -> Any:
    """Text for a key that holds text stays as it is; for any other key it is read as a recipe would read it."""
    if not isinstance(value, str):
        return value
    for key in path.split("."):
        kind = next((each for each in _variants(kind) if dataclasses.is_dataclass(each)), None)
        kind = typing.get_type_hints(kind).get(key) if kind else None
    return value if str in _variants(kind) and value not in ("null", "~") else read_value(value)


def _variants(kind: Any) -> tuple[Any, ...]:
    """The types that a declared type may be: the members of a union, each without its Annotated."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(each for member in typing.get_args(kind) for each in _variants(member))
    return (kind,)


def _placed(problem: Problem, document: Document, overrides: Mapping[str, Any]) -> Problem:
    """The problem with its place: the override that brought the value, or the line of the file."""
    path = problem.where
    for override in overrides:
        if path == override:
            return Problem(f"--set {override}", problem.value, problem.message)
        missing_above = override.startswith(f"{path}.") and path not in document.lines
        if missing_above or path.startswith(f"{override}."):
            return Problem(f"--set {override}: {path}", problem.value, problem.message)
    return Problem(document.where(path), problem.value, problem.message)
