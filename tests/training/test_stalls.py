"""A stall that is planted is the first cause that the run's own account names."""

import json
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from components.telemetry.run_files import read_run
from components.telemetry.why import explained, losses, unaccounted_share
from components.training.learner import Learner
from components.training.run import train
from tests.tiny_run import ENGINE, ENVIRONMENT, TRAIN
from tests.training.planted import SECONDS

PLANTED = {"SlowTool": "step", "SlowGrader": "grade", "SlowReset": "reset"}
"""Which act each of them is slow in."""


def first_cause(tiny_inputs, folder: Path, *, environment: str = "arithmetic", **changes) -> str:
    settings = {**TRAIN, "steps": 3, "checkpoint_every": 3, **changes}
    train(
        section=json.dumps(settings),
        environment=json.dumps(ENVIRONMENT | {"use": environment}),
        seed=0,
        run_folder=str(folder / "run"),
        trained=str(folder / "trained"),
        **tiny_inputs,
    )
    run = read_run(str(folder / "run"))
    # Earlier steps compile, whatever is planted.
    later = type(run)(metrics=run.metrics[-1:])
    assert unaccounted_share(later) < 0.02
    assert f"first cause: {losses(later)[0].cause}." in explained(later)
    for line in run.metrics:
        # The seconds of each act are there, of what is slow and of what is not.
        acts = line["environments"][environment]["acts"]
        assert set(acts) == {"reset", "step", "grade", "close"}
        planted = PLANTED.get(environment.rpartition(":")[2])
        assert {act for act, told in acts.items() if told["p50"] >= SECONDS} == ({planted} if planted else set())
    return losses(later)[0].cause


@pytest.mark.parametrize(
    ("environment", "cause"), [("SlowTool", "tools"), ("SlowGrader", "graders"), ("SlowReset", "environments")]
)
def test_what_answers_late_is_named(tiny_inputs, tmp_path, environment, cause):
    assert first_cause(tiny_inputs, tmp_path, environment=f"tests.training.planted:{environment}") == cause


def test_room_for_too_few_episodes_is_named(tiny_inputs, tmp_path):
    changes = {"engine": ENGINE | {"slots": 64, "decode_steps": 1}}
    changes["rollout"] = TRAIN["rollout"] | {"max_concurrency": 4, "tasks_per_step": 8}
    assert first_cause(tiny_inputs, tmp_path, **changes) == "admission"


def test_compiling_in_every_step_is_named(tiny_inputs, tmp_path, monkeypatch):
    finish = Learner.finish

    def finish_with_a_new_program(learner: Learner) -> dict[str, float]:
        # Other numbers each time: nothing that was compiled before fits, in memory or in the cache on the disk.
        start = random.randrange(10**6)
        numbers = range(start, start + 1500)
        jax.jit(lambda x: sum(jnp.sin(x + number) for number in numbers))(jnp.ones(3))
        return finish(learner)

    monkeypatch.setattr(Learner, "finish", finish_with_a_new_program)
    assert first_cause(tiny_inputs, tmp_path) == "compiling"
