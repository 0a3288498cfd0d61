"""Terraform files -> what is wrong with them, as sentences. Parsed, never run: no cloud and no provider is needed.

A rule takes a `Module` and yields one sentence a fault, with the name of the block that has it.
"""

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hcl2

Block = dict[str, Any]

_REFERENCE = re.compile(r"(?<![\w.\"-])(?:(var|local)\.(\w+)|(google_\w+)\.(\w+))")
_EXPRESSION = re.compile(r"\$\{")
_OPTIONS = hcl2.SerializationOptions(with_comments=False, strip_string_quotes=True)
_PRIMITIVE = ("roles/owner", "roles/editor", "roles/viewer")
_ANYONE = ("allUsers", "allAuthenticatedUsers")


@dataclass(frozen=True, slots=True)
class Module:
    """A folder of Terraform: blocks by kind and name. Resources are by "type.name"."""

    terraform: Block
    variables: dict[str, Block]
    values: dict[str, Any]
    resources: dict[str, Block]
    outputs: dict[str, Block]

    def of_type(self, kind: str) -> dict[str, Block]:
        """The resources of a type, by name."""
        return {name: block for name, block in self.resources.items() if name.split(".")[0] == kind}


def texts(folder: Path) -> dict[str, str]:
    """The Terraform files of a folder, by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.tf"))}


def parse(files: dict[str, str]) -> Module:
    """Raises what the parser raises for a text that is no HCL, and ValueError for a block that exists twice."""
    module = Module({}, {}, {}, {}, {})
    for text in files.values():
        tree = _parsed(text)
        for block in tree.get("terraform", []):
            module.terraform.update(block)
        for block in tree.get("locals", []):
            _add(module.values, {name: value for name, value in block.items() if name != "__is_block__"})
        for block in tree.get("variable", []):
            _add(module.variables, block)
        for block in tree.get("output", []):
            _add(module.outputs, block)
        for block in tree.get("resource", []):
            for kind, named in block.items():
                _add(module.resources, {f"{kind}.{name}": body for name, body in named.items()})
    return module


@functools.cache
def _parsed(text: str) -> Block:
    return hcl2.loads(text, serialization_options=_OPTIONS)


def _add(known: dict[str, Any], new: dict[str, Any]) -> None:
    for name, body in new.items():
        if name in known:
            raise ValueError(f"{name} is there twice")
        known[name] = body


def strings(tree: Any) -> Iterator[str]:
    """Every text in a parsed block, expressions among them."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from strings(name)
            yield from strings(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from strings(value)


def references(tree: Any) -> set[str]:
    """The variables, locals and resources that a block's expressions name: "var.zone", "google_x.y"."""
    found = set()
    for text in strings(tree):
        if _EXPRESSION.search(text):
            for kind, name, resource, instance in _REFERENCE.findall(text):
                found.add(f"{kind}.{name}" if kind else f"{resource}.{instance}")
    return found


def undefined_names(module: Module) -> Iterator[str]:
    """Names that are used and not defined, or defined and not used."""
    defined = {f"var.{name}" for name in module.variables} | {f"local.{name}" for name in module.values}
    used: set[str] = set()
    places: dict[str, Any] = module.resources | module.outputs | module.variables | module.values
    for place, body in places.items():
        found = references(body)
        used |= found if place not in module.variables else found - {f"var.{place}"}
        for name in sorted(found - defined - set(module.resources)):
            yield f"{place} names {name}, which is nowhere"
    for name in sorted(defined - used):
        yield f"{name} is not used"


def undefined_fields(module: Module) -> Iterator[str]:
    """Fields of an object variable, or of what a resource is made for each of, that are not there."""
    for place, body in (module.resources | module.values).items():
        for text in strings(body):
            for name, field in re.findall(r"\bvar\.(\w+)\.(\w+)", text):
                if f"{field} = " not in module.variables[name]["type"]:
                    yield f"{place} names var.{name}.{field}, which is nowhere"
    for place, body in module.resources.items():
        made_of = re.fullmatch(r"\$\{local\.(\w+)\}", str(body.get("for_each")))
        items = module.values.get(made_of[1]) if made_of else None
        if not isinstance(items, dict):
            continue
        for text in strings(body):
            for field in re.findall(r"\beach\.value\.(\w+)", text):
                if not all(field in item for item in items.values()):
                    yield f"{place} names each.value.{field}, which is nowhere"


def unexplained(module: Module) -> Iterator[str]:
    """Variables without a description or a type, and outputs without a description."""
    for name, body in module.variables.items():
        for field in ("description", "type"):
            if not body.get(field):
                yield f"variable {name} has no {field}"
    for name, body in module.outputs.items():
        if not body.get("description"):
            yield f"output {name} has no description"


def roles(module: Module) -> set[str]:
    """Every Google role that is named anywhere."""
    return {text for text in strings([module.resources, module.values]) if text.startswith("roles/")}


def rights_too_wide(module: Module) -> Iterator[str]:
    """Primitive and administrator roles, wildcards, the public, keys, and grants that take others' away."""
    for role in sorted(roles(module)):
        if role in _PRIMITIVE or re.search(r"admin$|[*]", role, re.IGNORECASE):
            yield f"{role} is more than anything here needs"
    for name, body in module.resources.items():
        kind = name.split(".")[0]
        if re.search(r"_iam_(policy|binding)$", kind):
            yield f"{name} replaces what others were granted"
        if kind == "google_service_account_key":
            yield f"{name} is a key that somebody has to keep"
        if kind == "google_project_iam_member" and "nodes" not in str(body.get("member")):
            yield f"{name} is a right over the whole project"
        if "_iam_" in kind:
            for text in strings(body):
                if "*" in text or text in _ANYONE:
                    yield f"{name} grants to {text}"


def bucket_faults(module: Module) -> Iterator[str]:
    """A bucket that is public, forgets at once, or deletes what is live."""
    for name, body in module.of_type("google_storage_bucket").items():
        if body.get("uniform_bucket_level_access") is not True:
            yield f"{name} has rights on single objects"
        if body.get("public_access_prevention") != "enforced":
            yield f"{name} could be made public"
        if [block.get("enabled") for block in body.get("versioning", [])] != [True]:
            yield f"{name} keeps no versions"
        if body.get("force_destroy") not in (None, False, "${var.destroy_data}"):
            yield f"{name} goes with everything in it"
        actions = []
        for rule in body.get("lifecycle_rule", []):
            action, condition = rule["action"][0]["type"], rule["condition"][0]
            actions.append(action)
            if action == "Delete" and condition.get("with_state") != "ARCHIVED":
                yield f"{name} deletes live objects"
        for action in ("Delete", "AbortIncompleteMultipartUpload"):
            if action not in actions:
                yield f"{name} has no rule that does {action}"


def cluster_faults(module: Module) -> Iterator[str]:
    """A cluster that is open, outdated, or whose pods could act as its nodes."""
    wanted = {
        "private_cluster_config": {"enable_private_nodes": True},
        "release_channel": {"channel": "${var.release_channel}"},
        "workload_identity_config": {"workload_pool": "${var.project_id}.svc.id.goog"},
    }
    for name, body in module.of_type("google_container_cluster").items():
        for block, fields in wanted.items():
            if [_own(each) for each in body.get(block, [])] != [fields]:
                yield f"{name} has not {block} {json.dumps(fields)}"
        if body.get("datapath_provider") != "ADVANCED_DATAPATH":
            yield f"{name} keeps no network policy"
        if body.get("remove_default_node_pool") is not True:
            yield f"{name} keeps the default pool"
        if body.get("deletion_protection") != "${var.deletion_protection}":
            yield f"{name} is not protected from deletion"


def pool_faults(module: Module) -> Iterator[str]:
    """Pools that anybody may fill, that cost when idle, whose pods act as the node, or whose chips are far apart."""
    for name, body in module.of_type("google_container_node_pool").items():
        node = body["node_config"][0]
        if node.get("service_account") != "${google_service_account.nodes.email}":
            yield f"{name} runs as the project's default account"
        if [_own(each) for each in node.get("workload_metadata_config", [])] != [{"mode": "GKE_METADATA"}]:
            yield f"{name} lets pods act as the node"
        if [_own(each) for each in body.get("management", [])] != [{"auto_repair": True, "auto_upgrade": True}]:
            yield f"{name} is neither repaired nor kept up to date"
        limits = [_own(each) for each in body.get("autoscaling", [])]
        if not limits or "total_min_node_count" not in limits[0] or "total_max_node_count" not in limits[0]:
            yield f"{name} does not scale"
        if not any("taint" in block for block in node.get("dynamic", [])):
            yield f"{name} has no taint for spot nodes"
        if "tpu" in str(body.get("for_each")):
            yield from _tpu_faults(name, body, limits)


def _tpu_faults(name: str, body: Block, limits: list[Block]) -> Iterator[str]:
    if limits and limits[0].get("total_min_node_count") != 0:
        yield f"{name} keeps TPUs that nobody uses"
    placed = [block["placement_policy"] for block in body.get("dynamic", []) if "placement_policy" in block]
    content = [_own(each["content"][0]) for each in placed]
    if content != [{"type": "COMPACT", "tpu_topology": "${placement_policy.value}"}]:
        yield f"{name} has no compact placement by topology"


def registry_faults(module: Module) -> Iterator[str]:
    """An image repository whose tags can be moved."""
    for name, body in module.of_type("google_artifact_registry_repository").items():
        if [_own(each) for each in body.get("docker_config", [])] != [{"immutable_tags": True}]:
            yield f"{name} lets a tag be moved"


def unpinned(module: Module) -> Iterator[str]:
    """No bound on Terraform's version, or none above on a provider's."""
    if not module.terraform.get("required_version"):
        yield "terraform has no required_version"
    for block in module.terraform.get("required_providers", []):
        for name, wanted in _own(block).items():
            if "<" not in str(wanted.get("version")):
                yield f"provider {name} has no upper bound"


def _own(block: Block) -> Block:
    return {name: value for name, value in block.items() if name != "__is_block__"}


RULES = (
    undefined_names,
    undefined_fields,
    unexplained,
    rights_too_wide,
    bucket_faults,
    cluster_faults,
    pool_faults,
    registry_faults,
    unpinned,
)


def faults(module: Module) -> list[str]:
    """What all rules say."""
    return [fault for rule in RULES for fault in rule(module)]
