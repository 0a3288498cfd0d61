"""A recipe that is sent to a server: checked first, sent once, and with all of its parameters."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.errors import ConfigError, DataError, Problem
from pipeline.cli import main
from pipeline.cluster import Order, Submission, make_order, run_folders, submit
from pipeline.connection import Connection, ServerError, connect
from pipeline.recipe import Recipe, read_recipe_text
from tests.pipeline.kfp_server import KfpServer

IMAGE = "registry/headrace@sha256:00"


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer().serve() as running:
        yield running


def connection(server: KfpServer, **changes: Any) -> Connection:
    return Connection(host=server.url, **{"image": IMAGE, **changes})


def order(server: KfpServer, recipe: str = "smoke", **given: Any) -> Order:
    return make_order(recipe, connection=connection(server), **{"unchecked": True, **given})


def send(server: KfpServer, ordered: Order, **changes: Any) -> Submission:
    link = connection(server, **changes)
    return submit(connect(link), link, ordered)


def test_all_parameters_are_sent_with_a_run(server: KfpServer) -> None:
    given = {"parameters": {"seed": "7"}, "overrides": {"train.steps": "3"}}
    ordered = order(server, **given)
    sent = send(server, ordered, pipeline_root="gs://bucket/root", service_account="runner")
    (run,) = server.runs.values()
    parameters = run["runtime_config"]["parameters"]
    assert parameters.keys() == ordered.pipeline.parameters.keys()
    assert parameters["recipe"] == "smoke"
    assert parameters["seed"] == 7
    assert json.loads(parameters["overrides"]) == {"train.steps": "3"}
    assert run["runtime_config"]["pipeline_root"] == "gs://bucket/root"
    assert run["service_account"] == "runner"
    assert sent.run_id == run["run_id"]
    assert sent.parameters == parameters
    assert sent.url == f"{server.url}/#/runs/details/{run['run_id']}"
    assert server.experiments[run["experiment_id"]]["display_name"] == "headrace"


def test_the_same_pipeline_is_uploaded_once_under_a_name_made_of_its_content(server: KfpServer) -> None:
    ordered = order(server)
    send(server, ordered)
    send(server, ordered)
    assert len(server.made("POST", "/pipelines/upload_version")) == 1
    (pipeline,) = server.pipelines.values()
    (version,) = server.versions.values()
    assert pipeline["name"] == "post-training"
    assert version["name"] == f"post-training-{hashlib.sha256(ordered.pipeline.text.encode()).hexdigest()[:12]}"
    executors = version["pipeline_spec"]["deploymentSpec"]["executors"].values()
    assert {each["container"]["image"] for each in executors} == {IMAGE}
    versions = {run["pipeline_version_reference"]["pipeline_version_id"] for run in server.runs.values()}
    assert versions == {version["pipeline_version_id"]}


def test_another_image_is_another_version_of_the_same_pipeline(server: KfpServer) -> None:
    send(server, order(server))
    other = make_order("smoke", connection=connection(server, image="other@sha256:11"), unchecked=True)
    send(server, other)
    assert len(server.versions) == 2
    assert len(server.pipelines) == 1


def test_a_version_that_somebody_uploads_at_the_same_moment_is_used(server: KfpServer) -> None:
    ordered = order(server)
    first = send(server, ordered)
    (version,) = server.versions.values()
    name, hidden = version["display_name"], "appears later"
    version["display_name"] = hidden
    answer = server.answer

    def answer_late(call: Any, headers: Any) -> Any:
        try:
            return answer(call, headers)
        finally:
            if call.path.endswith("upload_version"):
                version["display_name"] = name

    server.answer = answer_late  # type: ignore[method-assign]
    second = send(server, ordered)
    assert len(server.versions) == 1
    assert first.run_id != second.run_id


def test_a_local_recipe_travels_through_the_bucket_by_its_content(server: KfpServer, tmp_path: Path, gcs: str) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(read_recipe_text("smoke"))
    root = f"{gcs}/{tmp_path.name}"
    link = connection(server, pipeline_root=root)
    ordered = make_order(str(recipe), connection=link, unchecked=True)
    uri = ordered.parameters["recipe"]
    assert uri.startswith(f"{root}/recipes/mine-")
    assert not storage.exists(uri), "nothing is sent while it is only checked"
    submit(connect(link), link, ordered)
    submit(connect(link), link, ordered)
    assert storage.read_text(uri) == recipe.read_text()
    assert [run["runtime_config"]["parameters"]["recipe"] for run in server.runs.values()] == [uri, uri]
    assert len(storage.list_files(f"{root}/recipes")) == 1


def test_a_sweep_is_that_of_the_recipes_stages(server: KfpServer) -> None:
    trials = [{"tune.optimizer.learning_rate": 1e-4}, {"tune.optimizer.learning_rate": 1e-3}]
    only = {"train": None}
    for recipe, changes, name in (
        ("smoke", {}, "sweep"), ("sft_then_grpo", {}, "tuned-sweep"), ("sft_then_grpo", only, "tuning-sweep"),
    ):  # fmt: skip
        given = {"overrides": changes, "parameters": {"trials": trials}, "pipeline": "sweep", "unchecked": True}
        ordered = make_order(recipe, connection=connection(server), **given)
        assert (ordered.pipeline.name, ordered.parameters["trials"]) == (name, trials)


def test_a_local_recipe_without_a_bucket_is_refused(server: KfpServer, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(read_recipe_text("smoke"))
    with pytest.raises(ConfigError, match="travels through the bucket: name one with --pipeline-root"):
        order(server, str(tmp_path / "mine.yaml"))
    with pytest.raises(ConfigError, match="is neither a shipped recipe"):
        order(server, "smokey")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "train.stepz=3"], "--set train.stepz: unknown key; did you mean steps?"),
        (["--set", "train.optimizer.warmup_steps=99"], "train.optimizer.warmup_steps"),
        (["--param", "seed=1o0"], "seed: must be a number of type int"),
        (["--param", "sead=1"], "sead: is no parameter of post-training"),
        (["--param", "recipe=x"], "recipe: is given by RECIPE and --set"),
        (["--set", f"train.objective.preset={'x' * 10_001}"], "overrides: has 10,0"),
    ],
)
def test_what_cannot_work_is_told_before_the_server_is_asked(
    server: KfpServer, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["submit", "smoke", "--host", server.url, *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert server.calls == []


def test_what_this_machine_alone_lacks_can_be_left_to_the_run(
    server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = ["submit", "smollm2_gsm8k", "--host", server.url, "--set", "environment.options.data=nowhere"]
    assert main(lacking) == 2
    said = capsys.readouterr().err
    assert "nowhere/train.jsonl: there is no such file" in said
    assert "with --unchecked" in said
    assert main([*lacking, "--unchecked"]) == 0
    assert len(server.runs) == 1


def test_files_that_are_no_pipelines_create_nothing(
    server: KfpServer, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty_file.yaml", "invalid_yaml.yaml", "no_name.yaml"):
        file = shared / "cases" / "files" / "kfp" / "invalid" / name
        assert main(["submit", "smoke", "--host", server.url, "--pipeline", str(file)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert name in said
    assert server.calls == []


@pytest.mark.parametrize("denied", ["/experiments", "/pipelines", "/runs"])
def test_a_server_that_does_not_permit_it_is_told_and_the_exit_code_is_1(
    server: KfpServer, capsys: pytest.CaptureFixture[str], denied: str
) -> None:
    server.denied = denied
    assert main(["submit", "smoke", "--host", server.url, "--unchecked"]) == 1
    assert "does not permit it (403)" in capsys.readouterr().err
    assert server.runs == {}


def test_nothing_is_uploaded_where_we_are_not_let_in(server: KfpServer, tmp_path: Path, gcs: str) -> None:
    server.denied = "/experiments"
    link = connection(server, pipeline_root=f"{gcs}/{tmp_path.name}")
    (tmp_path / "mine.yaml").write_text(read_recipe_text("smoke"))
    ordered = make_order(str(tmp_path / "mine.yaml"), connection=link, unchecked=True)
    with pytest.raises(ServerError):
        submit(connect(link), link, ordered)
    assert storage.list_files(f"{gcs}/{tmp_path.name}") == []
    assert all(call.method == "GET" for call in server.calls)


def test_the_command_prints_the_id_alone_and_the_rest_to_people(
    server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "smoke", "--host", server.url]) == 0
    printed = capsys.readouterr()
    (run,) = server.runs
    assert printed.out == f"{run}\n"
    assert "is not named by its digest" in printed.err
    assert f"{server.url}/#/runs/details/{run}" in printed.err
    assert main(["submit", "smoke", "--host", server.url, "--unchecked", "--json", "--image", IMAGE]) == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    assert list(json.loads(line)) == ["run_id", "name", "url", "version", "parameters"]
    assert "digest" not in printed.err


def test_a_module_of_this_folder_is_not_on_the_cluster(
    server: KfpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_world.py").write_text("from components.environments.arithmetic import Arithmetic as Mine\n")
    monkeypatch.chdir(tmp_path)
    order(server, overrides={"environment.use": "my_world:Mine"})
    assert "my_world:Mine is a module of this folder; the image" in capsys.readouterr().err


def test_the_folder_of_a_run_is_found_from_its_pipeline_root_and_its_id(
    server: KfpServer, tmp_path: Path, gcs: str
) -> None:
    link = connection(server, pipeline_root=f"{gcs}/{tmp_path.name}")
    client = connect(link)
    sent = submit(client, link, order(server))
    run = client.get_run(sent.run_id)
    assert run_folders(client, link, run) == []
    folder = f"{gcs}/{tmp_path.name}/post-training/runs/{sent.run_id}"
    storage.write_text(f"{folder}/trials/trial-1/manifest.json", "{}")
    assert run_folders(client, link, run) == [f"{folder}/trials/trial-1"]
    storage.write_text(f"{folder}/manifest.json", "{}")
    assert run_folders(client, link, run) == [folder, f"{folder}/trials/trial-1"]
    assert run_folders(client, connection(server), run) == run_folders(client, link, run), "the run tells its root"


def test_the_newest_data_of_now_is_what_the_recipe_is_checked_with(
    server: KfpServer, tmp_path: Path, gcs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def examine(recipe: Recipe) -> list[Problem]:
        seen.append(str(recipe.environment.options["data"]))
        assert recipe.parent is None
        return []

    monkeypatch.setattr("pipeline.cluster.examine", examine)
    prefix = f"{gcs}/{tmp_path.name}/tasks"
    given = {"data": f"newest:{prefix}", "parent": "latest-promoted"}
    with pytest.raises(DataError, match="there is no folder with files below this prefix"):
        order(server, "smollm2_gsm8k", parameters=given, unchecked=False)
    for day in ("2026-11-29", "2026-11-30"):
        storage.write_text(f"{prefix}/{day}/train.jsonl", "{}")
    ordered = order(server, "smollm2_gsm8k", parameters=given, unchecked=False)
    assert seen == [f"{prefix}/2026-11-30"]
    assert ordered.parameters["data"] == f"newest:{prefix}", "what is newest is looked up again by every run"
