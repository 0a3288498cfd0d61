"""What a run knows of its model -> the README.md that lies beside the weights.

Only what was measured or written down is in it: no score where evaluation has not run, no recipe where there is none.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from components.model.base_artifact import BaseArtifact
from components.model.lora import LoraConfig
from components.telemetry.run_files import RunRecord

CARD = "README.md"

Kind = Literal["adapter", "merged"]

_TITLES = {"adapter": "A LoRA adapter", "merged": "Merged weights"}
_LIBRARIES = {"adapter": "peft", "merged": "transformers"}
_LOADING = {
    "adapter": 'peft.PeftModel.from_pretrained(base, "{folder}")',
    "merged": 'transformers.AutoModelForCausalLM.from_pretrained("{folder}")',
}
_READERS = {
    "adapter": "the adapter, by Headrace",
    "peft": "the adapter, by peft",
    "merged": "the merged weights, by Headrace",
    "transformers": "the merged weights, by transformers",
}
_HASHED = ("*.safetensors", "adapter_config.json", "config.json", "generation_config.json", "tokenizer*.json")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the card is made of. `record` is the run's manifest, which its first step wrote."""

    base: BaseArtifact
    lora: LoraConfig
    proof: Mapping[str, Any]
    record: Mapping[str, Any]
    run: RunRecord


def write_card(folder: Path, kind: Kind, manifest: Manifest) -> None:
    """Write the card of one of the two directories."""
    parts = [
        _heading(folder, kind, manifest),
        _scores(manifest.run),
        _proof(kind, manifest),
        _making(manifest),
        _files(folder),
        _recipe(manifest.record),
    ]
    text = "\n".join(line for part in parts for line in part)
    (folder / CARD).write_text(text.rstrip() + "\n", encoding="utf-8")


def _heading(folder: Path, kind: Kind, manifest: Manifest) -> Iterator[str]:
    lora, base = manifest.lora, manifest.base
    rule = "alpha / sqrt(rank)" if lora.rslora else "alpha / rank"
    yield from ("---", f"library_name: {_LIBRARIES[kind]}", "pipeline_tag: text-generation")
    yield from ("tags: [headrace, lora, reinforcement-learning]", "---", "")
    yield from (f"# {_TITLES[kind]}, post-trained with Headrace", "")
    quantised = "" if base.quantise == "none" else f"; the run held it quantised to {base.quantise}"
    yield f"- Base: {base.source} (fingerprint {base.fingerprint}{quantised})"
    yield f"- LoRA: rank {lora.rank}, alpha {lora.alpha:g}, scale {lora.scale:g} ({rule})"
    patterns = {"ranks": dict(lora.rank_pattern), "alphas": dict(lora.alpha_pattern)}
    yield from (f"- Other {name} of some modules: {found}" for name, found in patterns.items() if found)
    if any(patterns.values()) and kind == "adapter":
        yield "- Not every serving engine reads these: one that does not serves another model. Merged weights are safe."
    yield from ("", "Load it with", "", f"    {_LOADING[kind].format(folder=folder.name)}", "")


def _scores(run: RunRecord) -> Iterator[str]:
    if not run.measures:
        return
    yield from ("## Evaluation", "", "On unseen tasks; intervals of 95 %.", "")
    yield from ("| measure | before | after | difference | p |", "|---|---|---|---|---|")
    for measure in run.measures:
        paired = measure.get("paired", {})
        difference, p_value = paired.get("difference"), paired.get("p_value")
        before, after = (_interval(measure.get(when)) for when in ("before", "after"))
        chance = "" if p_value is None else f"{p_value:.2g}"
        yield f"| {measure['name']} | {before} | {after} | {_interval(difference)} | {chance} |"
    yield ""


def _interval(estimate: Mapping[str, Any] | None) -> str:
    if not estimate:
        return ""
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"


def _proof(kind: Kind, manifest: Manifest) -> Iterator[str]:
    proof, numbers = manifest.proof, manifest.proof["weights"]
    yield from ("## Proof", "", "Both directories were read back before this file was written. Largest difference of a")
    yield f"logit from the policy, over {proof['prompts']} prompts and {proof['tokens']} greedy tokens, all alike:"
    yield ""
    yield from (f"- {words}: {proof[name]:.2g}" for name, words in _READERS.items() if name in proof)
    if "skipped" in proof:
        yield f"- others: {proof['skipped']}"
    yield from (
        "",
        f"The adapter changes {numbers['changed']} of the {numbers['tensors']} merged tensors, each the sum in",
    )
    yield f"float32, rounded once (largest error {numbers['largest_error']:.2g}); the others are the base's own."
    yield ""
    if kind == "merged" and "rounding" in proof:
        yield from (f"Rounding the weights takes them from the policy by {_distance(proof['rounding'])}.", "")
    if "as_trained" in proof:
        held = proof["as_trained"]
        base = f"quantised to {held['quantise']}" if held["quantise"] != "none" else f"in {held['dtype']}"
        yield f"The run held its base {base}; the adapter leaves on the base that this was made of."
        yield from (f"The policy as the run held it differs by {_distance(held)}.", "")


def _distance(found: Mapping[str, Any]) -> str:
    return (
        f"{found['logits']:.2g} in a logit, {found['kl']:.2g} nats per token (KL), and chooses "
        f"{found['greedy_agreement']:.0%} of the greedy tokens alike"
    )


def _making(manifest: Manifest) -> Iterator[str]:
    summary, record = manifest.run.summary, manifest.record
    start, code = record.get("start", {}), record.get("code", {})
    facts = {
        "Recipe": summary.get("recipe"),
        "Environment": summary.get("environment"),
        "Objective": summary.get("objective"),
        "Optimizer steps": summary.get("steps"),
        "Tokens trained on": summary.get("tokens", {}).get("trained"),
        "Seed": record.get("seed"),
        "Data": _named(start.get("data"), start.get("data_content")),
        "Started from": _named(*((start.get("parent") or {}).get(key) for key in ("uri", "fingerprint"))),
        "Adapter": _named("this one", manifest.proof["adapter_fingerprint"]),
        "Gate": summary.get("gate", {}).get("measured"),
        "Code": _named(code.get("commit"), code.get("sha256")),
        "Image": record.get("image"),
        "Versions": ", ".join(f"{name} {version}" for name, version in record.get("packages", {}).items()),
    }
    yield from ("## How it was made", "")
    yield from (f"- {name}: {value}" for name, value in facts.items() if value not in (None, ""))
    yield ""


def _named(name: str | None, fingerprint: str | None) -> str:
    return f"{name} (fingerprint {fingerprint})" if name and fingerprint else name or ""


def _files(folder: Path) -> Iterator[str]:
    yield from ("## Files", "", "| file | SHA-256 |", "|---|---|")
    for path in sorted({path for pattern in _HASHED for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            yield f"| {path.name} | {hashlib.file_digest(file, 'sha256').hexdigest()} |"
    yield ""


def _recipe(record: Mapping[str, Any]) -> Iterator[str]:
    recipe = record.get("exact")
    if recipe:
        text = json.dumps(recipe, indent=2, ensure_ascii=False)
        yield from ("## Recipe", "", "Every value, defaults written out.", "", "```json", text, "```", "")
