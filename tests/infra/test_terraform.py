"""The Terraform of infra/: rules over its text, and what terraform itself makes of the parts that need no cloud."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("hcl2", reason="python-hcl2 (extra dev) is not installed")

from components.errors import ConfigError
from components.launcher.tpu import slice_of
from tests.infra.terraform import faults, parse, references, roles, texts

INFRA = Path(__file__).resolve().parents[2] / "infra"
FILES = texts(INFRA / "terraform")
MODULE = parse(FILES)

PURE = ("variables.tf", "tpus.tf", "queue.tf")
"""Files without resources: terraform evaluates them without a provider."""


def test_the_files_keep_every_rule() -> None:
    assert faults(MODULE) == []


@pytest.mark.parametrize(
    ("file", "right", "wrong", "said"),
    [
        ("cluster.tf", "var.zone]", "var.zones]", "names var.zones, which is nowhere"),
        ("pools.tf", "local.tpu_node_pools", "local.tpu_pools", "names local.tpu_pools, which is nowhere"),
        (
            "pools.tf",
            "google_container_cluster.headrace.id",
            "google_container_cluster.main.id",
            "google_container_cluster.main",
        ),
        ("pools.tf", "each.value.min_nodes", "each.value.least", "names each.value.least, which is nowhere"),
        ("pools.tf", "var.cpu_pool.min_nodes", "var.cpu_pool.minimum", "names var.cpu_pool.minimum, which is nowhere"),
        ("services.tf", "locals {", 'locals {\n  spare = "x"', "local.spare is not used"),
        (
            "variables.tf",
            "  type        = map(string)\n  default     = { app",
            "  default     = { app",
            "labels has no type",
        ),
        (
            "outputs.tf",
            'description = "The bucket of all runs."',
            'description = ""',
            "output bucket has no description",
        ),
        ("identity.tf", "roles/storage.objectUser", "roles/editor", "roles/editor is more than"),
        ("identity.tf", "roles/storage.objectUser", "roles/storage.admin", "roles/storage.admin is more than"),
        ("identity.tf", "[${local.namespace}/${each.value.kubernetes_account}]", "[${local.namespace}/*]", "grants to"),
        ("registry.tf", "google_service_account.nodes.member", '"allUsers"', "grants to allUsers"),
        ("bucket.tf", "google_storage_bucket_iam_member", "google_storage_bucket_iam_binding", "replaces what others"),
        (
            "identity.tf",
            "google_service_account.nodes.member",
            "google_service_account.workload[0].member",
            "whole project",
        ),
        ("bucket.tf", "uniform_bucket_level_access = true", "uniform_bucket_level_access = false", "rights on single"),
        ("bucket.tf", '"enforced"', '"inherited"', "could be made public"),
        ("bucket.tf", "    enabled = true", "    enabled = false", "keeps no versions"),
        ("bucket.tf", '"ARCHIVED"', '"ANY"', "deletes live objects"),
        ("bucket.tf", "var.destroy_data", "true", "goes with everything in it"),
        ("cluster.tf", "enable_private_nodes = true", "enable_private_nodes = false", "private_cluster_config"),
        ("cluster.tf", '"ADVANCED_DATAPATH"', '"LEGACY_DATAPATH"', "keeps no network policy"),
        ("cluster.tf", "var.deletion_protection", "false", "not protected from deletion"),
        ("pools.tf", '"GKE_METADATA"', '"GCE_METADATA"', "lets pods act as the node"),
        ("pools.tf", "total_min_node_count = 0", "total_min_node_count = 1", "keeps TPUs that nobody uses"),
        ("pools.tf", '"COMPACT"', '"SPREAD"', "no compact placement"),
        ("pools.tf", 'dynamic "taint"', 'dynamic "labels"', "has no taint"),
        ("registry.tf", "immutable_tags = true", "immutable_tags = false", "lets a tag be moved"),
        ("versions.tf", ", < 8.0", "", "no upper bound"),
    ],
)
def test_a_planted_fault_is_found(file: str, right: str, wrong: str, said: str) -> None:
    assert right in FILES[file]
    found = faults(parse(FILES | {file: FILES[file].replace(right, wrong)}))
    assert any(said in fault for fault in found), found


def test_a_block_that_is_there_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="is there twice"):
        parse({"a.tf": 'variable "x" {}', "b.tf": 'variable "x" {}'})


def test_references_are_seen_inside_templates_and_nested_blocks() -> None:
    tree = parse({"a.tf": 'resource "google_x" "y" {\n  a {\n    b = "p-${var.one}-${local.two}"\n  }\n}'})
    assert references(tree.resources) == {"var.one", "local.two"}


def test_the_roles_are_exactly_these() -> None:
    assert roles(MODULE) == {
        "roles/storage.objectUser",
        "roles/storage.objectViewer",
        "roles/iam.workloadIdentityUser",
        "roles/container.defaultNodeServiceAccount",
        "roles/artifactregistry.reader",
    }


def test_the_slices_are_those_that_recipes_may_name() -> None:
    for kind, tpu in MODULE.values["tpu_types"].items():
        for topology, shape in tpu["topologies"].items():
            known = slice_of(kind, topology)
            assert tpu["accelerator"] == known.accelerator
            assert shape["machine_type"] == known.machine_type
            assert (shape["hosts"], shape["chips_per_host"]) == (known.hosts, known.chips_per_host)
            assert shape["hosts"] * shape["chips_per_host"] == known.chips
        with pytest.raises(ConfigError) as error:
            slice_of(kind, "none")
        assert all(topology in str(error.value) or "in all" in str(error.value) for topology in tpu["topologies"])


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> "Terraform":
    """terraform over the files that need no provider."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    return Terraform(tmp_path_factory.mktemp("terraform"))


class Terraform:
    """Evaluates PURE for values of variables."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in PURE:
            (folder / name).write_text(FILES[name], encoding="utf-8")
        (folder / "shown.tf").write_text('output "pools" {\n  value = local.tpu_node_pools\n}\n', encoding="utf-8")

    def run(self, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """`terraform ARGUMENTS` here, with a project."""
        values = {"project_id": "my-project", **variables}
        given = {
            f"TF_VAR_{name}": value if isinstance(value, str) else json.dumps(value) for name, value in values.items()
        }
        # No configuration of the person who runs the tests, and no look for newer versions.
        own = {"TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1", **given}
        command = ["terraform", *arguments]
        return subprocess.run(
            command, cwd=self._folder, env=os.environ | own, capture_output=True, text=True, check=False, timeout=60
        )

    def outputs(self, **variables: Any) -> dict[str, Any]:
        """The values of all outputs."""
        done = self.run("apply", "-auto-approve", "-input=false", "-no-color", **variables)
        assert done.returncode == 0, done.stderr
        return {name: each["value"] for name, each in json.loads(self.run("output", "-json").stdout).items()}

    def refusal(self, **variables: Any) -> str:
        """What it says to variables that it refuses, in one line."""
        done = self.run("plan", "-input=false", "-no-color", **variables)
        assert done.returncode != 0, done.stdout
        return " ".join(done.stderr.replace("│", " ").split())


def test_the_files_are_formatted(terraform: Terraform) -> None:
    done = terraform.run("fmt", "-check", "-diff", str(INFRA / "terraform"))
    assert done.returncode == 0, done.stdout


def test_a_slice_of_one_host_is_a_node_and_one_of_several_a_pool(terraform: Terraform) -> None:
    pools = terraform.outputs(
        tpu_pools={
            "small": {"type": "v5e", "topology": "2x4", "slices": 3},
            "large": {"type": "v6e", "topology": "4x8", "slices": 2, "zone": "us-central1-b"},
        }
    )["pools"]
    assert sorted(pools) == ["large-0", "large-1", "small"]
    assert (pools["small"]["max_nodes"], pools["small"]["hosts"], pools["small"]["zone"]) == (3, 1, "us-central1-a")
    assert (pools["large-1"]["max_nodes"], pools["large-1"]["hosts"]) == (8, 8)
    assert (pools["large-1"]["machine_type"], pools["large-1"]["zone"]) == ("ct6e-standard-4t", "us-central1-b")


def test_the_queue_that_is_shipped_fits_the_pools_that_are_shipped(terraform: Terraform) -> None:
    shipped = (INFRA / "kubernetes/overlays/gke/queue.yaml").read_text(encoding="utf-8")
    assert terraform.outputs()["queue"] == shipped


def test_quotas_add_up_over_pools_of_one_kind(terraform: Terraform) -> None:
    queue = terraform.outputs(
        tpu_pools={
            "one": {"type": "v5e", "topology": "4x4", "slices": 2},
            "two": {"type": "v5e", "topology": "4x4", "capacity": "reservation", "reservation": "mine"},
        }
    )["queue"]
    flavor, cluster_queue = yaml.safe_load_all(queue)
    assert flavor["metadata"]["name"] == "tpu-v5e-4x4"
    (group,) = cluster_queue["spec"]["resourceGroups"]
    amounts = {each["name"]: each["nominalQuota"] for each in group["flavors"][0]["resources"]}
    assert amounts == {"google.com/tpu": 48, "cpu": 3 * 4 * 112, "memory": f"{3 * 4 * 192}Gi"}


def test_a_cluster_without_tpus_has_a_queue_without_them(terraform: Terraform) -> None:
    outputs = terraform.outputs(tpu_pools={})
    assert outputs["pools"] == {}
    (cluster_queue,) = yaml.safe_load_all(outputs["queue"])
    assert cluster_queue["spec"]["resourceGroups"] == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"tpu_pools": {"odd": {"type": "v5e", "topology": "3x3"}}}, "no such TPU slice: odd (v5e 3x3). There are v5e"),
        ({"tpu_pools": {"odd": {"type": "v9", "topology": "2x4"}}}, "no such TPU slice: odd (v9 2x4)"),
        (
            {"tpu_pools": {"ok": {"type": "v5e", "topology": "2x4", "capacity": "cheap"}}},
            "on_demand, spot or reservation",
        ),
        ({"tpu_pools": {"ok": {"type": "v5e", "topology": "2x4", "capacity": "reservation"}}}, "names a reservation"),
        ({"tpu_pools": {"ok": {"type": "v5e", "topology": "2x4", "slices": 0}}}, "1 slice or more"),
        ({"tpu_pools": {"ok": {"type": "v5e", "topology": "2x4", "zone": "us-east5-a"}}}, "lies in region us-central1"),
        ({"tpu_pools": {"cpu": {"type": "v5e", "topology": "2x4"}}}, "not that of another pool"),
        ({"project_id": "My Project"}, "My Project is no project id"),
        ({"zone": "europe-west4-a"}, "zone europe-west4-a does not lie in region us-central1"),
        ({"cpu_pool": {"min_nodes": 0}}, "1 <= min_nodes <= max_nodes"),
        ({"sandbox_pool": {"machine_type": "e2-small"}}, "e2-small is too small for gVisor"),
        ({"authorized_networks": {"all": "0.0.0.0/0"}}, "not the whole internet"),
        ({"release_channel": "NONE"}, "RAPID, REGULAR or STABLE, not NONE"),
        ({"replaced_days": 0}, "replaced_days must be 1 or more"),
    ],
)
def test_what_cannot_be_is_refused_by_name(terraform: Terraform, variables: dict[str, Any], said: str) -> None:
    assert said in terraform.refusal(**variables)
