"""All that a run was made of, in one JSON object: enough to start it again, and to say what has changed since.

    recipe        every value, defaults written out, as it was asked for
    exact         the same with parent, data and promotion folder looked up: what the steps took
    source, parameters, overrides, seed, image, code, packages, environment_module
    start         the parent with its hash, the data, the promotion pointer's generation
    data, base, hardware     what the steps found; absent for a step that never ran

`image` is the one that the steps ran in, best by digest, or `none: local`.
"""

import json
from collections.abc import Mapping
from typing import Any

from components import storage
from components.errors import DataError, Problem
from components.telemetry.run_files import read_run
from pipeline import provenance
from pipeline.start import Start, from_record, to_record

MANIFEST = "manifest.json"
EXACT_RECIPE = "recipe.yaml"
"""The recipe with everything looked up, as a file that a run can be started from."""

LOCAL_IMAGE = "none: local"
FOUND = ("data", "base", "hardware")
"""What steps add to the run's summary, and the manifest takes from there."""


def compose(recipe: Mapping[str, Any], exact: Mapping[str, Any], start: Start, **named: Any) -> dict[str, Any]:
    """The manifest as the first step knows it; `named` are image, source, parameters and overrides."""
    return {
        **named,
        "seed": recipe["seed"],
        **made_by(recipe),
        "start": to_record(start),
        "recipe": recipe,
        "exact": exact,
    }


def made_by(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The code, packages and module of the user that are here now."""
    return {
        "code": provenance.code(),
        "environment_module": provenance.module_hash(recipe["environment"]["use"]),
        "packages": provenance.packages(),
    }


def write(run_folder: str, manifest: Mapping[str, Any]) -> str:
    """Put the manifest and its exact recipe into the run's folder; gives the manifest's text."""
    text = json.dumps(manifest, indent=2) + "\n"
    # JSON is YAML as long as no character is written as half of a surrogate pair.
    recipe = json.dumps(manifest["exact"], indent=2, ensure_ascii=False) + "\n"
    storage.write_text(storage.join(run_folder, EXACT_RECIPE), recipe)
    storage.write_text(storage.join(run_folder, MANIFEST), text)
    return text


def read(run_folder: str) -> dict[str, Any]:
    """The manifest of a run, with what its steps have found. Raises DataError where there is none."""
    uri = storage.join(run_folder, MANIFEST)
    try:
        manifest: dict[str, Any] = json.loads(storage.read_text(uri))
    except FileNotFoundError:
        raise DataError(Problem(uri, run_folder, "does not exist; name the folder of a run")) from None
    except json.JSONDecodeError as error:
        raise DataError(Problem(uri, run_folder, f"is no JSON: {error}")) from None
    summary = read_run(run_folder, trajectories=False).summary
    return manifest | {name: summary[name] for name in FOUND if name in summary}


def start_of(run_folder: str) -> Start | None:
    """What an earlier try of this run started from; None where this is the first."""
    if not storage.exists(storage.join(run_folder, MANIFEST)):
        return None
    return from_record(read(run_folder)["start"])


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Problem]:
    """What is not as it was, by name, of all that can change what a run computes; `now` has the same keys."""
    old, new = _compared(before), _compared(now)
    return [
        Problem(name, new.get(name), f"was {old[name]!r} in the run")
        for name in sorted(old)
        if old[name] and old[name] != new.get(name)
    ]


def _compared(manifest: Mapping[str, Any]) -> dict[str, Any]:
    code = manifest.get("code", {})
    parent = manifest.get("start", {}).get("parent") or {}
    # A base that is made in the run cannot be looked at before.
    is_made = manifest["exact"]["init_model"]["source"] is None
    return {
        # One name for both: the commit is for people, the hash decides.
        "code": (code.get("commit"), code.get("sha256")) if code else None,
        "environment module": manifest.get("environment_module"),
        "data": manifest.get("data", {}).get("sha256"),
        "parent": parent.get("fingerprint"),
        "base": None if is_made else manifest.get("base", {}).get("fingerprint"),
        **{f"package {name}": version for name, version in manifest.get("packages", {}).items()},
    }
