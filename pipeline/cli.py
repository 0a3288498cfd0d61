"""`headrace`: every command by name. Results on standard output, everything else on standard error.

Exit codes: 0 it worked, 1 a run failed, 2 what was asked for cannot work, 141 whoever read the results has gone.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from components.errors import ConfigError, DataError, HeadraceError, WeightsError
from components.telemetry.progress import say
from pipeline.commands import (
    cluster,
    comparing,
    compiling,
    doctor,
    environments,
    evaluating,
    promoting,
    reporting,
    rerunning,
    run,
    sweeping,
)
from pipeline.commands.command import BAD_INPUT, FAILED, UNREAD

COMMANDS = (
    run.COMMAND,
    doctor.COMMAND,
    environments.COMMAND,
    compiling.COMMAND,
    reporting.REPORT,
    reporting.REPLAY,
    reporting.PROFILE,
    rerunning.COMMAND,
    sweeping.COMMAND,
    evaluating.COMMAND,
    promoting.COMMAND,
    comparing.COMMAND,
    cluster.SUBMIT,
    cluster.SCHEDULE,
    cluster.WATCH,
    cluster.CANCEL,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit code."""
    # A user's own environment lies in the folder that the command is called in.
    sys.path.insert(0, str(Path.cwd()))
    options = _parser().parse_args(arguments)
    try:
        code = int(options.command(options))
        sys.stdout.flush()  # a pipe that is closed is told here, and not when Python ends
        return code
    except BrokenPipeError:
        # As in `headrace doctor X | head`. What is left has to go somewhere, or Python complains as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except (ConfigError, DataError) as error:
        say(f"headrace: {error}" if len(error.problems) == 1 else f"headrace: {len(error.problems)} problems\n{error}")
        return BAD_INPUT
    except HeadraceError as error:
        say(f"headrace: {error}")
        # What a step of a run raises comes as the failure of that step.
        return BAD_INPUT if isinstance(error, WeightsError) else FAILED
    except OSError as error:
        say(f"headrace: {error.filename or 'a file'}: {error.strerror or error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        say("headrace: stopped")
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="Post-training of agents, as Kubeflow pipelines.")
    parser.add_argument("--version", action="version", version=f"headrace {version('headrace')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        added = commands.add_parser(command.name, help=command.run.__doc__, description=command.run.__doc__)
        added.set_defaults(command=command.run)
        command.add_arguments(added)
    return parser


if __name__ == "__main__":
    sys.exit(main())
