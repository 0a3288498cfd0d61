"""The card says where a model comes from and what was measured, and nothing else."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from components.model.lora import LoraConfig
from components.steps.export import export as door
from components.telemetry.run_files import update_summary
from tests.export.made import LLAMA, make_run


def estimate(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.125, "high": value + 0.125}


MEASURE = {
    "name": "greedy accuracy",
    "before": estimate(0.125),
    "after": estimate(0.875),
    "paired": {"difference": estimate(0.75), "p_value": 0.0001},
}
MANIFEST = {
    "exact": {"name": "mine", "seed": 7, "environment": {"renderer": "compact"}},
    "seed": 7,
    "code": {"commit": "c0ffee", "sha256": "ab12"},
    "packages": {"headrace": "1.2", "jax": "0.10"},
    "start": {"data": "gs://x/day", "data_content": "cd34", "parent": None},
}


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both cards, and what the step says of its artifacts, of a run that has everything."""
    folder = tmp_path_factory.mktemp("cards")
    lora = LoraConfig(rank=4, alpha=8.0, rslora=True, rank_pattern={"q_proj": 2})
    run = make_run(folder, {**LLAMA, "eos_token_id": [0, 3]}, lora, quantise="int8")
    (folder / "run" / "evaluation.json").write_text(json.dumps({"measures": [MEASURE]}))
    (folder / "run" / "manifest.json").write_text(json.dumps(MANIFEST))
    facts = {
        "recipe": "mine",
        "environment": "arithmetic",
        "objective": "J = x",
        "tokens": {"trained": 123},
        "steps": 9,
    }
    update_summary(str(folder / "run"), facts)
    inputs = {name: dsl.Model(uri=str(folder / name)) for name in ("base", "trained")}
    outputs = {name: dsl.Model(uri=str(folder / name)) for name in ("adapter", "merged")}
    tasks = dsl.Dataset(uri=str(folder / "tasks"))
    door.python_func(section="{}", run_folder=str(folder / "run"), tasks=tasks, **inputs, **outputs)
    texts = {name: (folder / name / "README.md").read_text() for name in outputs}
    return {**texts, "metadata": {name: output.metadata for name, output in outputs.items()}, "run": run}


def test_the_proof_is_in_the_metadata_of_both_artifacts(cards: dict[str, Any]) -> None:
    proof = json.loads((cards["run"].merged / "proof.json").read_text())
    assert cards["metadata"] == {"adapter": proof, "merged": proof}
    assert proof["base"]["quantise"] == proof["as_trained"]["quantise"] == "int8"


@pytest.mark.parametrize("kind", ["adapter", "merged"])
def test_a_card_holds_evaluation_proof_recipe_versions_and_where_the_base_is(cards: dict[str, Any], kind: str) -> None:
    card, base = cards[kind], cards["run"].exported.base
    for text in (
        f"- Base: {base.source} (fingerprint {base.fingerprint}; the run held it quantised to int8)",
        "rank 4, alpha 8, scale 4 (alpha / sqrt(rank))",
        "- Other ranks of some modules: {'q_proj': 2}",
        "| greedy accuracy | 0.125 (0.000 to 0.250) | 0.875 (0.750 to 1.000) | 0.750 (0.625 to 0.875) | 0.0001 |",
        "- the adapter, by Headrace: 0",
        "The policy as the run held it differs by ",
        "- Objective: J = x",
        "- Tokens trained on: 123",
        "- Seed: 7",
        "- Versions: headrace 1.2, jax 0.10",
        "- Code: c0ffee (fingerprint ab12)",
        "- Data: gs://x/day (fingerprint cd34)",
        f"- Adapter: this one (fingerprint {cards['metadata'][kind]['adapter_fingerprint']})",
        '"renderer": "compact"',
    ):
        assert text in card
    assert ("Not every serving engine reads these" in card) == (kind == "adapter")
    assert card.startswith(f"---\nlibrary_name: {'peft' if kind == 'adapter' else 'transformers'}\n")


def test_a_card_holds_the_hashes_of_its_files(cards: dict[str, Any]) -> None:
    path = cards["run"].adapter / "adapter_model.safetensors"
    assert f"| adapter_model.safetensors | {hashlib.sha256(path.read_bytes()).hexdigest()} |" in cards["adapter"]


def test_ends_of_the_run_s_renderer_are_in_the_generation_config(cards: dict[str, Any]) -> None:
    """The compact form ends a turn with one of the characters that the tokenizer here lacks, and with token 0."""
    found = json.loads((cards["run"].merged / "generation_config.json").read_text())
    assert found["eos_token_id"] == [0, 3]


def test_nothing_is_said_that_was_not_measured(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "run" / "summary.json").unlink()
    run.export()
    card = (run.merged / "README.md").read_text()
    for heading in ("## Evaluation", "## Recipe", "Objective", "Versions", "Started from", "Code"):
        assert heading not in card
