"""Kubernetes objects and kustomizations -> what is wrong with them, as sentences. Parsed, never applied.

A rule takes a `Tree` (all files of a folder) or a list of objects and yields one sentence a fault.
"""

import functools
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

Object = dict[str, Any]

KUBERNETES = "1.34"
"""The version of the API that objects are checked against; GKE's regular channel has it or a later one."""

_PINNED = re.compile(r"\?ref=v?\d+\.\d+\.\d+(&|$)|/download/v\d+\.\d+\.\d+/")
_REMOTE = re.compile(r"^(https://|github\.com/)")

_NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
_TAINT = {
    "type": "object",
    "required": ["key", "effect"],
    "properties": {
        "key": {"type": "string"},
        "value": {"type": "string"},
        "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    },
    "additionalProperties": False,
}
_QUOTA = {
    "type": "object",
    "required": ["name", "nominalQuota"],
    "properties": {"name": {"type": "string"}, "nominalQuota": {"type": ["integer", "string"]}},
    "additionalProperties": False,
}
_FLAVOR = {
    "type": "object",
    "required": ["name", "resources"],
    "properties": {"name": {"type": "string"}, "resources": {"type": "array", "minItems": 1, "items": _QUOTA}},
    "additionalProperties": False,
}
_GROUP = {
    "type": "object",
    "required": ["coveredResources", "flavors"],
    "properties": {
        "coveredResources": {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string"}},
        "flavors": {"type": "array", "minItems": 1, "maxItems": 64, "items": _FLAVOR},
    },
    "additionalProperties": False,
}
_QUEUE_SPECS: Mapping[str, Mapping[str, Any]] = {
    "ResourceFlavor": {"nodeLabels": _NAMES, "nodeTaints": {"type": "array", "maxItems": 8, "items": _TAINT}},
    "LocalQueue": {"clusterQueue": {"type": "string", "minLength": 1}},
    "ClusterQueue": {
        "namespaceSelector": {"type": "object", "properties": {"matchLabels": _NAMES}, "additionalProperties": False},
        "queueingStrategy": {"enum": ["BestEffortFIFO", "StrictFIFO"]},
        "resourceGroups": {"type": "array", "maxItems": 16, "items": _GROUP},
    },
}
"""The fields of Kueue's kinds (kueue.x-k8s.io/v1beta2, release 0.19) that are used here."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder of YAML files: path below it to the documents inside."""

    files: dict[str, list[Object]]

    @property
    def kustomizations(self) -> dict[str, Object]:
        """By folder."""
        return {
            posixpath.dirname(path): documents[0]
            for path, documents in self.files.items()
            if posixpath.basename(path) == "kustomization.yaml"
        }

    @property
    def objects(self) -> list[Object]:
        """All that could be applied."""
        return [
            each
            for path, documents in self.files.items()
            for each in documents
            if posixpath.basename(path) != "kustomization.yaml" and each["kind"] != "Cluster"
        ]

    def resources(self, folder: str) -> list[Object]:
        """What a kustomization makes, and those that it stands on; nothing fetched."""
        return self._gathered(folder, "resources")

    def patches(self, folder: str) -> list[Object]:
        """What a kustomization, and those that it stands on, change of what others made."""
        return self._gathered(folder, "patches")

    def _gathered(self, folder: str, wanted: str) -> list[Object]:
        found: list[Object] = []
        for field in ("resources", "patches"):
            for name in local_names(self.kustomizations[folder], field):
                path = posixpath.normpath(posixpath.join(folder, name))
                if path in self.kustomizations:
                    found += self._gathered(path, wanted)
                elif field == wanted:
                    found += self.files.get(path, [])
        return found


def read(folder: Path) -> Tree:
    """Every YAML file below a folder."""
    return Tree(
        {
            path.relative_to(folder).as_posix(): [
                each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each is not None
            ]
            for path in sorted(folder.rglob("*.yaml"))
        }
    )


def local_names(kustomization: Object, field: str) -> list[str]:
    """The files and folders here that a kustomization names as `resources` or `patches`."""
    names = [each["path"] if field == "patches" else each for each in kustomization.get(field, [])]
    return [name for name in names if not _REMOTE.match(name)]


def remote_names(kustomization: Object) -> list[str]:
    """Resources that are fetched."""
    return [name for name in kustomization.get("resources", []) if _REMOTE.match(name)]


def missing_files(tree: Tree) -> Iterator[str]:
    """Files that a kustomization names and are not there, files that none names, and fetched ones without a version."""
    named = set()
    for folder, kustomization in tree.kustomizations.items():
        for name in (*local_names(kustomization, "resources"), *local_names(kustomization, "patches")):
            path = posixpath.normpath(posixpath.join(folder, name))
            named.add(path)
            if path not in tree.files and path not in tree.kustomizations:
                yield f"{folder} names {name}, which is not there"
        for name in remote_names(kustomization):
            if not _PINNED.search(name):
                yield f"{folder} fetches {name} without a version"
    for path, documents in tree.files.items():
        is_kind = [each["kind"] for each in documents] == ["Cluster"]
        if path not in named and posixpath.basename(path) != "kustomization.yaml" and not is_kind:
            yield f"{path} is in no kustomization"


def invalid(objects: Sequence[Object]) -> Iterator[str]:
    """Objects that the API would refuse: against Kubernetes' schemas, and Kueue's."""
    for each in objects:
        if each["apiVersion"].startswith("kueue.x-k8s.io/"):
            yield from _invalid_queue(each)
        elif message := _refusal(json.dumps(each)):
            yield f"{label(each)}: {message}"


@functools.cache
def _refusal(text: str) -> str:
    """What is wrong with an object of Kubernetes' own; empty where it is right. Schemas take long to load."""
    try:
        kubernetes_validate.validate(json.loads(text), KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return error.message
    return ""


def _invalid_queue(each: Object) -> Iterator[str]:
    if each["apiVersion"] != "kueue.x-k8s.io/v1beta2":
        yield f"{label(each)}: {each['apiVersion']} is not the served version"
    schema = {"type": "object", "properties": _QUEUE_SPECS[each["kind"]], "additionalProperties": False}
    for error in jsonschema.Draft202012Validator(schema).iter_errors(each.get("spec", {})):
        yield f"{label(each)}: {error.message}"


def label(each: Object) -> str:
    """ "Kind namespace/name"."""
    metadata = each["metadata"]
    return f"{each['kind']} {metadata.get('namespace', '')}/{metadata['name']}".replace(" /", " ")


def undefined_names(objects: Sequence[Object], given: Sequence[Object] = ()) -> Iterator[str]:
    """Names that objects use and that neither they nor `given` (what others install) define."""
    known = {label(each) for each in (*objects, *given)}
    for each in objects:
        for wanted in _names_used(each):
            if wanted not in known:
                yield f"{label(each)} names {wanted}, which is nowhere"


def _names_used(each: Object) -> Iterator[str]:
    namespace, spec = each["metadata"].get("namespace", ""), each.get("spec", {})
    if namespace:
        yield f"Namespace {namespace}"
    match each["kind"]:
        case "RoleBinding" | "ClusterRoleBinding":
            role = each["roleRef"]
            yield (
                f"{role['kind']} {namespace}/{role['name']}"
                if role["kind"] == "Role"
                else f"ClusterRole {role['name']}"
            )
            for subject in each["subjects"]:
                yield f"{subject['kind']} {subject['namespace']}/{subject['name']}"
        case "LocalQueue":
            yield f"ClusterQueue {spec['clusterQueue']}"
        case "ClusterQueue":
            yield f"Namespace {spec['namespaceSelector']['matchLabels']['kubernetes.io/metadata.name']}"
            for group in spec["resourceGroups"]:
                yield from (f"ResourceFlavor {flavor['name']}" for flavor in group["flavors"])
        case "ValidatingAdmissionPolicyBinding":
            yield f"ValidatingAdmissionPolicy {spec['policyName']}"
            labels = spec["matchResources"]["namespaceSelector"]["matchLabels"]
            yield f"Namespace {labels['kubernetes.io/metadata.name']}"


def rights(role: Object) -> set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """(API group, resource, verbs, names that they are bounded to) of a Role."""
    return {
        (group, resource, tuple(sorted(rule["verbs"])), tuple(rule.get("resourceNames", [])))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def rights_too_wide(objects: Sequence[Object]) -> Iterator[str]:
    """Wildcards, and verbs or resources that lead to every other right; rights beyond a namespace."""
    for each in objects:
        if each["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            yield f"{label(each)} reaches beyond a namespace"
        if each["kind"] not in ("ClusterRole", "Role"):
            continue
        for group, resource, verbs, names in sorted(rights(each)):
            if "*" in (group, resource, *verbs):
                yield f"{label(each)} has a wildcard"
            if {"escalate", "bind", "impersonate"} & set(verbs) or resource in ("pods/exec", "pods/attach"):
                yield f"{label(each)} may {', '.join(verbs)} {resource}"
            if resource == "secrets" and (not names or set(verbs) != {"get"}):
                yield f"{label(each)} may read more secrets than it names"


def loose_images(tree: Any) -> Iterator[str]:
    """Images that are named by no version."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == "image" and isinstance(value, str):
                tag = value.rpartition("/")[2].partition(":")[2]
                if "@sha256:" not in value and tag in ("", "latest"):
                    yield f"{value} names no version"
            else:
                yield from loose_images(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from loose_images(value)


def open_sandboxes(objects: Sequence[Object]) -> Iterator[str]:
    """A sandbox namespace that lacks one of its walls."""
    for namespace in (
        each for each in objects if each["kind"] == "Namespace" and "sandbox" in each["metadata"]["name"]
    ):
        name = namespace["metadata"]["name"]
        inside = [each for each in objects if each["metadata"].get("namespace") == name]
        if namespace["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{name} does not enforce the restricted pod standard"
        wall = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
        policies = [each["spec"] for each in inside if each["kind"] == "NetworkPolicy"]
        if not any(all(policy.get(field) == value for field, value in wall.items()) for policy in policies):
            yield f"{name} has no policy that selects every pod, both ways"
        if any(policy.get("ingress") or policy.get("egress") for policy in policies):
            yield f"{name} lets some traffic through"
        if any(
            each.get("automountServiceAccountToken") is not False for each in inside if each["kind"] == "ServiceAccount"
        ):
            yield f"{name} hands out tokens"
        rules = [each["spec"] for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
        if not any("runtimeClassName == 'gvisor'" in str(rule) and rule["failurePolicy"] == "Fail" for rule in rules):
            yield f"{name} takes pods without gVisor"
        if any(each["kind"] == "RoleBinding" for each in inside):
            yield f"{name} gives its pods rights"
