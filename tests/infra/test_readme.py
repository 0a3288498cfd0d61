"""The way that infra/README.md describes: what it names exists, and its examples are valid."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate (extra dev) is not installed")
pytest.importorskip("hcl2", reason="python-hcl2 (extra dev) is not installed")

import hcl2

from components.config import load
from components.launcher.platform import PlatformConfig
from components.launcher.tpu import slice_of
from containers import build as containers_build
from pipeline import cli
from pipeline.connection import Connection
from tests.infra import terraform
from tests.infra.objects import invalid, loose_images, read, remote_names, undefined_names

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "infra/README.md").read_text(encoding="utf-8")
MODULE = terraform.parse(terraform.texts(REPOSITORY / "infra/terraform"))
TREE = read(REPOSITORY / "infra/kubernetes")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


COMMANDS = "\n".join(blocks("sh"))


def test_every_file_and_folder_that_is_named_exists_or_is_made_on_the_way() -> None:
    named = set(re.findall(r"(?<![\w/.])(?:infra|containers|components|tests)/[\w./-]+[\w]", README))
    written = set(re.findall(r"> (infra/\S+)", COMMANDS))
    assert written == {
        "infra/terraform/terraform.tfvars",
        "infra/kubernetes/overlays/gke/settings.env",
        "infra/kubernetes/overlays/gke/queue.yaml",
    }
    assert [name for name in sorted(named - written) if not (REPOSITORY / name).exists()] == []


def test_outputs_and_variables_that_are_named_exist() -> None:
    assert set(re.findall(r"terraform(?: -chdir=\S+)? output (?:-raw )?(\w+)", README)) <= MODULE.outputs.keys()
    assert set(re.findall(r"-var (\w+)=", COMMANDS)) <= MODULE.variables.keys()
    assert {"tpu_pools", "authorized_networks"} <= MODULE.variables.keys()
    assert "replaced in the last 7 days" in README
    assert MODULE.variables["replaced_days"]["default"] == 7


def test_what_each_role_is_for_is_told() -> None:
    (table,) = re.findall(r"## Who may do what.*?(?=\n## )", README, flags=re.DOTALL)
    assert set(re.findall(r"roles/[\w.]+", table)) == terraform.roles(MODULE) | {"roles/container.developer"}


def test_versions_are_those_that_are_fetched() -> None:
    fetched = " ".join(name for each in TREE.kustomizations.values() for name in remote_names(each))
    told = re.search(r"Kubeflow Pipelines ([\d.]+\d), JobSet ([\d.]+\d), Kueue ([\d.]+\d)", README)
    assert told is not None
    kubeflow, jobset, kueue = told.groups()
    assert set(re.findall(r"ref=([\d.]+)", fetched)) == {kubeflow}
    assert f"jobset/releases/download/v{jobset}/" in fetched
    assert f"kueue/releases/download/v{kueue}/" in fetched


def test_machines_and_disks_of_the_formula_are_the_defaults() -> None:
    defaults = {
        name: dict(re.findall(r"(machine_type|disk_gb) += optional\(\w+, \"?([\w-]+)\"?\)", body["type"]))
        for name, body in MODULE.variables.items()
        if name.endswith("_pool")
    }
    assert defaults["cpu_pool"] == defaults["spot_pool"] == {"machine_type": "e2-standard-8", "disk_gb": "100"}
    assert defaults["sandbox_pool"] == {"machine_type": "e2-standard-4", "disk_gb": "50"}
    assert "disk_gb = optional(number, 200)" in MODULE.variables["tpu_pools"]["type"]
    (formula,) = blocks("text")
    for part in ("e2-standard-8", "e2-standard-4", "140 GB", "200 GB", "100 GB or 50 GB"):
        assert part in formula


def test_the_pools_of_the_example_exist() -> None:
    (example,) = blocks("hcl")
    pools = hcl2.loads(example, serialization_options=hcl2.SerializationOptions(strip_string_quotes=True))["tpu_pools"]
    shapes = {name: slice_of(pool["type"], pool["topology"]) for name, pool in pools.items()}
    assert {name: found.chips for name, found in shapes.items()} == {"v5e-8": 8, "v5e-64-spot": 64, "v6e-32": 32}


def test_the_platform_of_the_example_is_valid_and_its_queue_is_there() -> None:
    (example,) = (yaml.safe_load(each) for each in blocks("yaml") if each.startswith("platform:"))
    digest = "sha256:" + "0" * 64
    image = example["platform"]["image"].replace("sha256:...", digest).replace("REGION", "eu").replace("PROJECT", "p")
    platform = load(PlatformConfig, example["platform"] | {"image": image})
    assert platform.hosts == 4
    queues = [each["metadata"]["name"] for each in TREE.objects if each["kind"] == "LocalQueue"]
    assert queues == [platform.queue]


def test_the_pod_of_the_example_is_one_that_the_sandbox_lets_in() -> None:
    (pod,) = (yaml.safe_load(each) for each in blocks("yaml") if "kind: Pod" in each)
    assert [*invalid([pod]), *loose_images(pod), *undefined_names([pod], TREE.objects)] == []
    accounts = [
        each["metadata"]["name"]
        for each in TREE.objects
        if each["kind"] == "ServiceAccount" and each["metadata"]["namespace"] == pod["metadata"]["namespace"]
    ]
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert (spec["runtimeClassName"], spec["automountServiceAccountToken"]) == ("gvisor", False)
    assert [spec["serviceAccountName"]] == accounts
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_house_s_commands_are_as_they_are_written() -> None:
    """Each is taken apart by the command line's own parser; `$IMAGE` and RUN stand for an image and an id."""
    written = re.findall(r"^\.venv/bin/headrace ([^#\n]+)", COMMANDS, flags=re.MULTILINE)
    names = {command.name for command in cli.COMMANDS}
    parsed = [cli._parser().parse_args(shlex.split(each)) for each in written]
    assert {each.split()[0] for each in written} == {"compile", "submit", "doctor", "schedule", "compare"} <= names
    assert all(callable(each.command) for each in parsed)
    options = containers_build._parser().parse_args(["runtime", "--accelerator", "tpu", "--push", "a/b:1"])
    assert "containers.build runtime --accelerator tpu \\\n  --push" in COMMANDS
    assert options.accelerator == "tpu"
    (connection,) = re.findall(r"cat > cluster.yaml <<EOF\n(.*?)EOF", COMMANDS, flags=re.DOTALL)
    values = yaml.safe_load(re.sub(r"\$\(.*?\)", "gs://bucket/runs", connection).replace("$IMAGE", "a/b:1"))
    assert load(Connection, values).pipeline_root == "gs://bucket/runs"
