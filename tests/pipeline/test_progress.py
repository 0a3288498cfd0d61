"""What a person sees of a run."""

import io
from collections.abc import Iterator

from pipeline.progress import Progress

RUN = """\
19:02:34.330 - INFO - Running pipeline: \x1b[95m'post-training'\x1b[0m
----------------------------------------------------------------
19:02:34.331 - INFO - Executing task \x1b[96m'prepare-data'\x1b[0m
19:02:34.331 - INFO - Streamed logs:

    [KFP Executor 2026-11-29 19:02:35,000 INFO]: Looking for component `prepare_data`
    [KFP Executor 2026-11-29 19:02:35,001 INFO]: Got executor_input:
    {
        "inputs": {
            "section": "{}"
        }
    }
    reading tasks
    [KFP Executor 2026-11-29 19:02:36,000 INFO]: Wrote executor output file to /x/executor_output.json.


19:02:36.331 - INFO - Task \x1b[96m'prepare-data'\x1b[0m finished with status \x1b[92mSUCCESS\x1b[0m
19:02:36.332 - INFO - Task \x1b[96m'prepare-data'\x1b[0m outputs:
    tasks: Dataset( name='tasks',
----------------------------------------------------------------
"""

FAILURE = """\
19:02:36.400 - INFO - Executing task \x1b[96m'train'\x1b[0m
19:02:36.400 - INFO - Streamed logs:

    [KFP Executor 2026-11-29 19:02:37,001 INFO]: Got executor_input:
    {
        "inputs": {}
    }
    step 1/2
    Traceback (most recent call last):
      File "a.py", line 1, in inner
        work()
    ValueError: first
    
    During handling of the above exception, another exception occurred:
    
    Traceback (most recent call last):
      File "b.py", line 2, in outer
        more()
    components.errors.ConfigError: train.steps: must be less (got 3)
    train.seed: must be more (got 1)


19:02:38.400 - INFO - Task \x1b[96m'train'\x1b[0m finished with status \x1b[91mFAILURE\x1b[0m
"""


def ticking() -> Iterator[float]:
    """A clock that gains two seconds between looks."""
    seconds = 0.0
    while True:
        yield seconds
        seconds += 2.0


def shown(text: str, chunk: int) -> tuple[list[str], Progress, str]:
    lines: list[str] = []
    log = io.StringIO()
    clock = ticking()
    progress = Progress(lines.append, log, clock=lambda: next(clock))
    for start in range(0, len(text), chunk):
        progress.write(text[start : start + chunk])
    return lines, progress, log.getvalue()


def test_a_step_shows_its_name_its_lines_and_its_time() -> None:
    lines, progress, _ = shown(RUN, chunk=10_000)
    assert lines == ["== prepare-data", "   reading tasks", "   2.0 s"]
    assert progress.failed_step is None


def test_it_makes_no_difference_how_the_text_is_cut() -> None:
    assert shown(RUN + FAILURE, chunk=1)[0] == shown(RUN + FAILURE, chunk=10_000)[0]


def test_the_log_keeps_everything_but_the_colours() -> None:
    _, _, log = shown(RUN, chunk=7)
    assert '"section": "{}"' in log
    assert "Executing task 'prepare-data'" in log
    assert "\x1b" not in log


def test_of_a_failed_step_the_last_error_is_told_whole() -> None:
    lines, progress, _ = shown(RUN + FAILURE, chunk=10_000)
    assert progress.failed_step == "train"
    # An error for people needs no traceback on the screen; the log has it.
    assert lines[-2:] == ["   step 1/2", "   2.0 s, failed"]
    expected = "ConfigError: train.steps: must be less (got 3)\ntrain.seed: must be more (got 1)"
    assert progress.error_of_failed_step() == expected


def test_a_bug_is_shown_with_its_traceback_and_so_is_one_that_a_step_survives() -> None:
    bug = FAILURE.replace("components.errors.ConfigError", "KeyError")
    assert "   KeyError: train.steps: must be less (got 3)" in shown(bug, chunk=10_000)[0]
    survived = FAILURE.replace("FAILURE", "SUCCESS")
    assert "   ValueError: first" in shown(survived, chunk=10_000)[0]


def test_without_a_traceback_that_is_said_and_the_last_lines_are_told() -> None:
    killed = FAILURE.split("    Traceback")[0] + "    Killed\n" + FAILURE[FAILURE.index("19:02:38") :]
    _, progress, _ = shown(killed, chunk=10_000)
    said = progress.error_of_failed_step()
    assert said.startswith("the step ended without an error of its own: killed")
    assert said.endswith("It last said:\n  step 1/2\n  Killed")
