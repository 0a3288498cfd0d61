"""A run small enough for a test: sums, a compact form, a model of 20,000 parameters that is tuned for a moment."""

import json
from pathlib import Path

from components.rollout.prepare import write_tasks
from components.training.initialise import initialise

ENVIRONMENT = {
    "use": "arithmetic",
    "options": {"low": 10, "high": 40, "operators": ["+"], "train_tasks": 40, "test_tasks": 8, "worked_examples": 0},
    "renderer": "compact",
    "limits": {"max_turns": 1, "max_new_tokens": 8, "max_context": 24},
}
INIT = {
    "tiny": {
        "alphabet": "0123456789+-*=[]\n",
        "d_model": 32,
        "n_layers": 2,
        "d_ff": 64,
        "warm_start": {"steps": 60, "rows": 32, "row_length": 32},
    },
    "lora": {"rank": 4, "alpha": 8.0},
}
ENGINE = {"slots": 16, "capacity": 32, "decode_steps": 4, "prefill_chunk": 16}
TRAIN = {
    "steps": 4,
    "rollout": {"tasks_per_step": 4, "group_size": 4, "max_concurrency": 16},
    "engine": ENGINE,
    "optimizer": {"learning_rate": 3e-3},
    "packing": {"rows": 8, "row_length": 32},
    "checkpoint_every": 1,
}


def make_inputs(folder: Path) -> dict[str, str]:
    """Tasks, a base and an adapter, each a folder: what the train and evaluate steps take."""
    places = {name: str(folder / name) for name in ("tasks", "base", "adapter")}
    world = json.dumps(ENVIRONMENT)
    write_tasks(section="{}", environment=world, seed=0, folder=places["tasks"])
    initialise(section=json.dumps(INIT), environment=world, seed=0, **places)
    return places
