"""The proof of an export: each way in which a written model can be another one is found, and named."""

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from components.errors import ProofError
from components.export import proof as export_proof
from components.export import run as export_run
from components.export.proof import prove
from components.model import weights
from components.model.lora import delta, named_pairs
from components.model.peft import load_adapter
from components.model.source import open_source
from components.telemetry.run_files import read_run
from tests.export.made import LLAMA, Run, make_run

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
"""A square matrix: its shape does not tell that it is turned."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make_run(tmp_path_factory.mktemp("exported"))
    run.export(max_shard_bytes=4000)
    return run


@pytest.fixture
def run(exported: Run, tmp_path: Path) -> Run:
    """A copy of an exported run, to be spoilt."""
    shutil.copytree(exported.folder, tmp_path / "copy")
    return Run(tmp_path / "copy", exported.architecture)


def prove_again(run: Run, dtype: str = "float32") -> dict[str, Any]:
    exported = export_proof.replace(run.exported, dtype=dtype)
    return prove(exported, open_source(exported.base.source), [[1, 2, 3], [4, 5]], new_tokens=2, tolerance=1e-3)


def change(run: Run, name: str, new: Callable[[np.ndarray], np.ndarray]) -> None:
    """Write one tensor of the merged checkpoint again."""
    path = next(path for path in run.merged.glob("*.safetensors") if name in load_file(path))
    tensors = load_file(path)
    save_file({**tensors, name: np.ascontiguousarray(new(tensors[name]))}, path, metadata={"format": "pt"})


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_what_was_not_spoilt_is_proven(run: Run) -> None:
    assert prove_again(run)["adapter"] == 0.0


@pytest.mark.parametrize(
    "new",
    [
        np.transpose,
        lambda tensor: tensor * 1.001,
        lambda tensor: np.where(np.arange(tensor.size).reshape(tensor.shape) == 7, tensor + 1e-3, tensor),
        lambda tensor: np.full_like(tensor, np.nan),
        lambda tensor: tensor.astype(ml_dtypes.bfloat16).astype(np.float32),
    ],
    ids=["transposed", "scaled", "one number", "nan", "rounded on the way"],
)
def test_a_matrix_that_is_not_base_and_adapter_is_named(run: Run, new: Callable[[np.ndarray], np.ndarray]) -> None:
    change(run, Q_PROJ, new)
    with pytest.raises(ProofError, match=rf"{Q_PROJ} of the merged checkpoint is not base \+ scale \* B @ A"):
        prove_again(run)


def test_a_tied_embedding_that_was_touched_is_named(run: Run) -> None:
    change(run, "model.embed_tokens.weight", lambda tensor: np.nextafter(tensor, np.float32(1)))
    with pytest.raises(ProofError, match=r"model\.embed_tokens\.weight is not that of the base"):
        prove_again(run)


def test_a_head_that_came_from_nowhere_is_named(run: Run) -> None:
    shutil.rmtree(run.merged)
    run.export()
    path = run.merged / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, path)
    with pytest.raises(ProofError, match=r"holds other tensors than the base: lm_head\.weight"):
        prove_again(run)


def test_a_shard_that_is_missing_is_named(run: Run) -> None:
    shard = sorted(run.merged.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ProofError, match=rf"cannot be read back: .* lacks {shard.name}"):
        prove_again(run)


def test_a_sum_that_was_rounded_on_the_way_is_found_in_a_checkpoint_that_rounds(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.export(dtype="bfloat16")
    prove_again(run, dtype="bfloat16")
    pair = named_pairs(load_adapter(run.adapter, run.architecture))[Q_PROJ.removesuffix(".weight")]
    base = load_file(run.folder / "base" / "model.safetensors")[Q_PROJ].astype(ml_dtypes.bfloat16)
    change(run, Q_PROJ, lambda _: base + delta(pair).T.astype(ml_dtypes.bfloat16))
    with pytest.raises(ProofError, match="summed in float32 and rounded once to bfloat16"):
        prove_again(run, dtype="bfloat16")


@pytest.mark.parametrize("spoilt", [{"lora_alpha": 16.0}, {"use_rslora": False}, {"alpha_pattern": {"q_proj": 1.0}}])
def test_another_scale_in_the_configuration_is_named(run: Run, spoilt: dict[str, object]) -> None:
    change_json(run.adapter / "adapter_config.json", **spoilt)
    with pytest.raises(ProofError, match=r"self_attn\.q_proj in .* is not what was trained"):
        prove_again(run)


def test_a_module_that_the_written_adapter_lacks_is_named(run: Run) -> None:
    path = run.adapter / "adapter_model.safetensors"
    save_file({key: tensor for key, tensor in load_file(path).items() if "layers.1.mlp.up_proj" not in key}, path)
    with pytest.raises(
        ProofError, match=r"cannot be read back: .* target_modules names model\.layers\.1\.mlp\.up_proj"
    ):
        prove_again(run)


def test_the_right_tensors_under_a_wrong_config_do_not_give_the_logits(run: Run) -> None:
    change_json(run.merged / "config.json", rope_theta=99.0)
    with pytest.raises(
        ProofError, match=r"read back as merged differs from the trained policy by .* 0\.001 is allowed"
    ):
        prove_again(run)


def test_a_reader_that_gives_no_numbers_or_chooses_another_token_fails() -> None:
    logits = [np.asarray([[1.0, 0.5], [0.0, 0.1], [0.0, 0.0]], np.float32)]
    canaries = export_proof._Canaries([[0, 0, 0]], logits, export_proof._Window(3, 3), new_tokens=2, tolerance=0.2)
    nudged = [logits[0] + np.asarray([[0.0, 0.1], [0.0, 0.1], [0.0, 0.0]], np.float32)]
    assert canaries.difference("peft", nudged) == pytest.approx(0.1)
    with pytest.raises(ProofError, match="peft differs from the trained policy by nan"):
        canaries.difference("peft", [np.full_like(logits[0], np.nan)])
    # The second choice is the other one, but the two are closer than twice the tolerance.
    other = [np.asarray([[1.0, 0.5], [0.1, 0.0], [0.0, 0.0]], np.float32)]
    assert canaries.difference("peft", other) == pytest.approx(0.1)
    assert canaries.agreement(other) == 0.5


def test_the_distance_of_two_policies_is_the_mean_kl_and_the_share_of_like_choices() -> None:
    first, second = np.log([[0.6, 0.4]]), np.log([[0.2, 0.8]])
    expected = [np.concatenate([first, second, first]).astype(np.float32)]
    found = [np.concatenate([second, second, first]).astype(np.float32)]
    canaries = export_proof._Canaries([[0, 0, 0]], expected, export_proof._Window(3, 3), new_tokens=2, tolerance=1.0)
    distance = canaries.distance(found)
    # KL((.2, .8) || (.6, .4)) = .2 ln 1/3 + .8 ln 2 = .33479, at one of three positions.
    assert distance["kl"] == pytest.approx(0.33479 / 3, abs=1e-5)
    assert distance["greedy_agreement"] == 0.5  # the token after the last position is nobody's
    assert distance["logits"] == pytest.approx(np.log(3.0), rel=1e-6)


def test_a_tokenizer_that_was_changed_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(folder: Path, *rest: object) -> None:
        folder.mkdir()
        (folder / "characters.json").write_text(json.dumps({"alphabet": "1234567890+-="}))

    monkeypatch.setattr(export_run, "write_tokenizer", spoil)
    with pytest.raises(ProofError, match="gives other ids for a canary prompt"):
        make_run(tmp_path).export()


def test_a_step_whose_proof_fails_leaves_no_card_and_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = export_run.write_tensors

    def transposed(folder: Path, architecture: Any, tensors: Any, **settings: Any) -> None:
        write(folder, architecture, {**tensors, Q_PROJ: lambda: tensors[Q_PROJ]().T}, **settings)

    monkeypatch.setattr(export_run, "write_tensors", transposed)
    run = make_run(tmp_path, LLAMA)
    with pytest.raises(ProofError, match=Q_PROJ):
        run.export()
    assert read_run(str(tmp_path / "run")).summary["proofs"] == {"sync": 1}
    assert [*run.merged.glob("README.md"), *run.adapter.glob("proof.json")] == []


def test_no_two_models_are_in_memory_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref[Any]] = []
    load = weights.load

    def counting(*arguments: Any, **settings: Any) -> Any:
        gc.collect()
        assert [each for each in seen if each() is not None] == []
        model = load(*arguments, **settings)
        seen.append(weakref.ref(model))
        return model

    monkeypatch.setattr(weights, "load", counting)
    prove_again(run)
    assert len(seen) == 2
