"""The Kubernetes objects of infra/: rules over their text, what kustomize builds, and what the house asks of them."""

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate (extra dev) is not installed")
pytest.importorskip("hcl2", reason="python-hcl2 (extra dev) is not installed")

from components.launcher.cluster import RULES
from components.launcher.platform import PlatformConfig, pod_settings
from tests.infra import terraform
from tests.infra.objects import (
    Object,
    Tree,
    invalid,
    label,
    loose_images,
    missing_files,
    open_sandboxes,
    read,
    remote_names,
    rights,
    rights_too_wide,
    undefined_names,
)

REPOSITORY = Path(__file__).resolve().parents[2]
KUBERNETES = REPOSITORY / "infra/kubernetes"
TREE = read(KUBERNETES)
MODULE = terraform.parse(terraform.texts(REPOSITORY / "infra/terraform"))
GIVEN = list(yaml.safe_load_all((Path(__file__).parent / "kfp.yaml").read_text(encoding="utf-8")))
OVERLAYS = ("overlays/gke", "overlays/local")

SETTINGS = {
    "pipeline_root": "gs://a-bucket/runs",
    "runner_email": "headrace-runner@a-project.iam.gserviceaccount.com",
    "ui_email": "headrace-ui@a-project.iam.gserviceaccount.com",
}


def everything(tree: Tree, overlay: str) -> list[Object]:
    return tree.resources(overlay) + tree.patches(overlay)


def faults(tree: Tree, overlay: str = "overlays/gke") -> list[str]:
    objects = everything(tree, overlay)
    return [
        *missing_files(tree),
        *invalid(objects),
        *undefined_names(tree.resources(overlay), GIVEN),
        *(f"{label(each)} changes nothing" for each in tree.patches(overlay) if label(each) not in map(label, GIVEN)),
        *rights_too_wide(objects),
        *loose_images(objects),
        *open_sandboxes(objects),
    ]


def named(objects: list[Object], name: str) -> Object:
    (found,) = [each for each in objects if label(each) == name]
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_objects_keep_every_rule(overlay: str) -> None:
    assert faults(TREE, overlay) == []


def change(path: str, at: tuple[Any, ...], value: Any) -> Tree:
    """The tree with one value in one file replaced (None: taken away)."""
    tree = copy.deepcopy(TREE)
    place: Any = tree.files[path]
    for step in at[:-1]:
        place = place[step]
    if value is None:
        del place[at[-1]]
    else:
        place[at[-1]] = value
    return tree


@pytest.mark.parametrize(
    ("path", "at", "value", "said"),
    [
        ("base/launcher.yaml", (0, "rules", 0, "verbs"), ["*"], "has a wildcard"),
        ("base/launcher.yaml", (0, "rules", 1, "resources"), ["pods/exec"], "may list, watch pods/exec"),
        ("base/kfp/pipeline-runner.yaml", (0, "rules", 1, "resourceNames"), None, "more secrets than it names"),
        ("base/launcher.yaml", (0, "kind"), "ClusterRole", "reaches beyond a namespace"),
        (
            "base/launcher.yaml",
            (1, "subjects", 0, "name"),
            "runner",
            "ServiceAccount kubeflow/runner, which is nowhere",
        ),
        ("base/launcher.yaml", (1, "roleRef", "name"), "launcher", "Role kubeflow/launcher, which is nowhere"),
        ("base/local-queue.yaml", (0, "spec", "clusterQueue"), "main", "ClusterQueue main, which is nowhere"),
        ("base/local-queue.yaml", (0, "spec", "queue"), "main", "'queue' was unexpected"),
        ("base/local-queue.yaml", (0, "apiVersion"), "kueue.x-k8s.io/v1beta1", "is not the served version"),
        ("overlays/gke/queue.yaml", (0, "metadata", "name"), "v5e", "ResourceFlavor tpu-v5e-2x4, which is nowhere"),
        ("overlays/gke/accounts.yaml", (0, "metadata", "name"), "runner", "kubeflow/runner changes nothing"),
        ("base/kustomization.yaml", (0, "resources", 1), "launchers.yaml", "launchers.yaml, which is not there"),
        ("base/kustomization.yaml", (0, "resources", 3), None, "sandbox.yaml is in no kustomization"),
        (
            "base/kfp/kustomization.yaml",
            (0, "resources", 0),
            "github.com/kubeflow/pipelines/manifests/kustomize/env/platform-agnostic?ref=master",
            "without a version",
        ),
        (
            "base/sandbox.yaml",
            (2, "spec", "podSelector"),
            {"matchLabels": {"a": "b"}},
            "no policy that selects every pod",
        ),
        ("base/sandbox.yaml", (2, "spec", "policyTypes"), ["Ingress"], "no policy that selects every pod, both ways"),
        ("base/sandbox.yaml", (2, "spec", "egress"), [{}], "lets some traffic through"),
        ("base/sandbox.yaml", (2, "spec", "egres"), [], "'egres' was unexpected"),
        ("base/sandbox.yaml", (1, "automountServiceAccountToken"), True, "hands out tokens"),
        ("base/sandbox.yaml", (0, "metadata", "labels"), {}, "restricted pod standard"),
        ("base/sandbox.yaml", (3, "spec", "validations", 0, "expression"), "true", "takes pods without gVisor"),
        ("base/sandbox.yaml", (4, "spec", "policyName"), "other", "ValidatingAdmissionPolicy other, which is nowhere"),
        ("base/sandbox.yaml", (5, "spec", "limits", 0, "type"), None, "'type' is a required property"),
        ("base/sandbox.yaml", (5, "spec", "image"), "busybox:latest", "busybox:latest names no version"),
        ("base/sandbox.yaml", (5, "spec", "image"), "registry:5000/busybox", "registry:5000/busybox names no version"),
    ],
)
def test_a_planted_fault_is_found(path: str, at: tuple[Any, ...], value: Any, said: str) -> None:
    found = faults(change(path, at, value))
    assert any(said in fault for fault in found), found


def test_an_image_by_tag_or_digest_is_no_fault() -> None:
    digest = "a/b@sha256:" + "0" * 64
    assert list(loose_images([{"image": "registry:5000/a/b:1.2"}, {"image": digest}])) == []


def test_steps_may_do_what_the_launcher_does_and_what_kubeflow_needs() -> None:
    objects = everything(TREE, "overlays/gke")
    wanted = {(group, resource, tuple(sorted(verbs)), ()) for group, resource, verbs in RULES}
    assert rights(named(objects, "Role kubeflow/headrace-launcher")) == wanted
    assert rights(named(objects, "Role kubeflow/pipeline-runner")) == {
        ("", "configmaps", ("get",), ("kfp-launcher",)),
        ("", "secrets", ("get",), ("mlpipeline-minio-artifact",)),
        ("", "pods", ("get",), ()),
        ("argoproj.io", "workflowtaskresults", ("create", "patch"), ()),
    }
    bindings = [each for each in objects if each["kind"] == "RoleBinding"]
    assert [(each["roleRef"]["name"], each["subjects"][0]["name"]) for each in bindings] == [
        ("headrace-launcher", "pipeline-runner")
    ]


def test_google_accounts_are_for_the_kubernetes_accounts_that_the_overlay_names() -> None:
    trusted = {each["kubernetes_account"] for each in MODULE.values["workloads"].values()}
    namespace = MODULE.values["namespace"]
    accounts = [each for each in TREE.patches("overlays/gke") if each["kind"] == "ServiceAccount"]
    assert {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in accounts} == {
        (namespace, account) for account in trusted
    }


def test_the_overlay_asks_for_the_settings_that_terraform_writes() -> None:
    written = set(re.findall(r"^\s*(\w+)=", MODULE.outputs["settings"]["value"], re.MULTILINE))
    asked = {
        each["source"]["fieldPath"].removeprefix("data.")
        for each in TREE.kustomizations["overlays/gke"]["replacements"]
    }
    assert written == asked == set(SETTINGS)


def test_kubeflow_is_of_the_release_whose_sdk_compiles_the_pipelines() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    (sdk,) = re.findall(r"^kfp==(\d+\.\d+)\.", lock, re.MULTILINE)
    fetched = [name for each in TREE.kustomizations.values() for name in remote_names(each) if "kubeflow" in name]
    assert len(fetched) == 2
    assert all(f"?ref={sdk}." in name for name in fetched)


@pytest.mark.parametrize(
    ("flavor", "kind", "topology", "spot"),
    [
        ("tpu-v5e-2x4", "v5e", "2x4", False),
        ("tpu-v5e-2x4-spot", "v5e", "2x4", True),
        ("tpu-v5e-4x4-spot", "v5e", "4x4", True),
        ("tpu-v6e-4x4-spot", "v6e", "4x4", True),
    ],
)
def test_a_job_of_the_house_fits_the_flavor_of_its_slice_and_no_other(
    flavor: str, kind: str, topology: str, spot: bool
) -> None:
    objects = TREE.resources("overlays/gke")
    platform = PlatformConfig(
        accelerator=kind, topology=topology, launcher="jobset", image="a/b:1", spot=spot, cpu="8", memory="64Gi"
    )
    pod = pod_settings(platform)
    tolerated = {each.key for each in pod.tolerations}
    fitting = [
        each["metadata"]["name"]
        for each in objects
        if each["kind"] == "ResourceFlavor"
        and each["spec"]["nodeLabels"] == pod.node_selector
        and {taint["key"] for taint in each["spec"]["nodeTaints"]} <= tolerated
    ]
    assert fitting == [flavor]
    (group,) = named(objects, "ClusterQueue headrace")["spec"]["resourceGroups"]
    assert set(pod.requests) <= set(group["coveredResources"])
    (quotas,) = [each["resources"] for each in group["flavors"] if each["name"] == flavor]
    tpus = {each["name"]: each["nominalQuota"] for each in quotas}["google.com/tpu"]
    assert platform.tpu is not None
    assert tpus % platform.tpu.chips == 0
    assert tpus >= platform.tpu.chips


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Object]]:
    """Each overlay as kustomize builds it, with `kfp.yaml` for what it would fetch."""
    programs = [["kustomize", "build"], ["kubectl", "kustomize"]]
    program = next((each for each in programs if shutil.which(each[0])), None)
    if program is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    folder = tmp_path_factory.mktemp("kustomize") / "kubernetes"
    shutil.copytree(KUBERNETES, folder)
    shutil.copy(Path(__file__).parent / "kfp.yaml", folder / "base/kfp/kfp.yaml")
    kustomization = folder / "base/kfp/kustomization.yaml"
    text = kustomization.read_text(encoding="utf-8")
    kustomization.write_text(re.sub(r"- github\.com/\S+", "- kfp.yaml", text), encoding="utf-8")
    settings = "".join(f"{name}={value}\n" for name, value in SETTINGS.items())
    (folder / "overlays/gke/settings.env").write_text(settings, encoding="utf-8")
    found = {}
    for overlay in OVERLAYS:
        done = subprocess.run([*program, folder / overlay], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        found[overlay] = list(yaml.safe_load_all(done.stdout))
    return found


def test_on_google_cloud_artifacts_go_to_the_bucket_by_the_account_of_the_pod(built: dict[str, list[Object]]) -> None:
    objects = built["overlays/gke"]
    launcher = named(objects, "ConfigMap kubeflow/kfp-launcher")["data"]
    assert launcher["defaultPipelineRoot"] == SETTINGS["pipeline_root"]
    assert yaml.safe_load(launcher["providers"]) == {"gs": {"default": {"credentials": {"fromEnv": True}}}}
    accounts = {
        each["metadata"]["name"]: each["metadata"]["annotations"]["iam.gke.io/gcp-service-account"]
        for each in objects
        if each["kind"] == "ServiceAccount" and each["metadata"]["namespace"] == "kubeflow"
    }
    assert accounts == {"pipeline-runner": SETTINGS["runner_email"], "ml-pipeline-ui": SETTINGS["ui_email"]}
    assert not any("settings" in label(each) or "from settings.env" in str(each) for each in objects)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_kustomize_builds_is_valid_and_has_lost_the_wide_rights(
    built: dict[str, list[Object]], overlay: str
) -> None:
    objects = built[overlay]
    assert [*invalid(objects), *undefined_names(objects), *rights_too_wide(objects), *open_sandboxes(objects)] == []
    assert rights(named(objects, "Role kubeflow/pipeline-runner")) == rights(
        named(TREE.patches(overlay), "Role kubeflow/pipeline-runner")
    )


def test_only_the_local_overlay_brings_a_class_for_gvisor(built: dict[str, list[Object]]) -> None:
    """GKE makes its own with the sandbox pool, and would fight over it."""
    classes = {
        overlay: [each["metadata"]["name"] for each in objects if each["kind"] == "RuntimeClass"]
        for overlay, objects in built.items()
    }
    assert classes == {"overlays/gke": [], "overlays/local": ["gvisor"]}
    assert "sandbox_config" in str(MODULE.resources["google_container_node_pool.cpu"])
