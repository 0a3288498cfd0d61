"""The recipe for eight TPU chips: what it is, what it asks a cluster for, and a whole run of it with a small model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from components.launcher.platform import pod_settings
from components.model.architecture import Architecture
from components.model.base import random_base
from components.model.checkpoint_folder import write_checkpoint
from components.telemetry.run_files import read_run
from pipeline.recipe import load_recipe
from tests.model.tiny import CONFIGS
from tests.rollout.tokenizers_for_tests import byte_tokenizer

RECIPE = "gemma2_2b_gsm8k_v5e8"
REPOSITORY = Path(__file__).resolve().parents[2]
GEMMA2 = CONFIGS["gemma2"] | {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 64,
    "max_position_embeddings": 512,
}
SMALL = {
    "prepare_data.train_tasks": 8,
    "prepare_data.test_tasks": 2,
    "environment.options.worked_example": "false",
    "environment.limits.max_new_tokens": 8,
    "environment.limits.max_context": 384,
    "train.steps": 2,
    "train.optimizer.warmup_steps": 1,
    "train.engine.capacity": 384,
    "train.engine.slots": 4,
    "train.rollout.max_concurrency": 4,
    "train.packing": "{rows: 2, row_length: 384}",
    "evaluate.tasks": 2,
    "evaluate.engine.capacity": 384,
    "evaluate.engine.slots": 2,
    "init_model.lora.rank": 4,
}


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, str]:
    """A Gemma-2-shaped checkpoint of 50,000 parameters with a tokenizer of bytes, and ten problems."""
    tokenizer = byte_tokenizer(bos=True)
    architecture = Architecture.from_huggingface(GEMMA2 | {"vocab_size": tokenizer.vocab_size})
    model, data = tmp_path / "model", tmp_path / "data"
    write_checkpoint(model, architecture, random_base(jax.random.key(0), architecture, jnp.float32), dtype="float32")
    tokenizer.save(model)
    data.mkdir()
    for split, count in (("train", 8), ("test", 2)):
        rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(count)]
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"init_model.source": str(model), "environment.options.data": str(data)}


def test_it_has_the_settings_of_the_demo():
    train = load_recipe(RECIPE).train
    assert train.mesh is not None
    assert (train.mesh.fsdp, train.mesh.tensor) == (2, 4)
    assert (train.sampling.temperature, train.sampling.top_k, train.rollout.group_size) == (0.9, 50, 2)
    assert train.optimizer.warmup_steps == pytest.approx(0.1 * train.steps, abs=1)
    assert train.steps * train.rollout.tasks_per_step == pytest.approx(7473, abs=2)


def test_its_train_step_asks_for_one_host_of_eight_chips():
    settings = pod_settings(load_recipe(RECIPE).platform)
    assert settings.node_selector["cloud.google.com/gke-tpu-topology"] == "2x4"
    assert settings.limits["google.com/tpu"] == "8"


@pytest.mark.long
def test_the_very_same_recipe_runs_to_its_end_with_a_small_model_on_eight_devices(inputs, tmp_path: Path):
    given = [part for key, value in (SMALL | inputs).items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "pipeline.cli", "run", RECIPE, "--json", *given]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    tokens = dict(figures["tokens"])
    assert tokens.pop("generated") == sum(tokens.values()) > 0
    assert figures["steps"] == 2
    assert figures["proofs"]["sync"]["worst_canary_difference"] < 0.05
    assert read_run(figures["run_dir"]).summary["steps"] == 2
