"""What a run knows of its model -> the README.md that lies beside the weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from components.model.lora import LoraConfig

_LOADING = {
    "adapter": 'peft.PeftModel.from_pretrained(base, "{folder}")',
    "merged": 'transformers.AutoModelForCausalLM.from_pretrained("{folder}")',
}


def write_card(
    folder: Path,
    kind: Literal["adapter", "merged"],
    *,
    base: str,
    lora: LoraConfig,
    scores: Mapping[str, Any],
    proof: Mapping[str, Any],
) -> None:
    """Write the card. Only what was measured is in it: no score where evaluation has not run."""
    title = "A LoRA adapter" if kind == "adapter" else "Merged weights"
    rule = "alpha / sqrt(rank)" if lora.rslora else "alpha / rank"
    lines = [
        f"# {title}, post-trained with Headrace",
        "",
        f"- Base: {base}",
        f"- LoRA: rank {lora.rank}, alpha {lora.alpha:g}, scale {lora.scale:g} ({rule})",
        *_pattern_lines(lora),
        *_score_lines(scores),
        "",
        "Load it with",
        "",
        f"    {_LOADING[kind].format(folder=folder.name)}",
        "",
        "It was read back before this file was written. Largest difference of a logit from the trained policy:",
        "",
        *(f"- {name}: {value:.2g}" for name, value in proof.items() if name in _READERS),
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


_READERS = ("adapter", "merged", "transformers", "peft")


def _pattern_lines(lora: LoraConfig) -> list[str]:
    patterns = {"ranks": dict(lora.rank_pattern), "alphas": dict(lora.alpha_pattern)}
    return [f"- Other {name} of some modules: {found}" for name, found in patterns.items() if found]


def _score_lines(scores: Mapping[str, Any]) -> list[str]:
    if "accuracy_after" not in scores:
        return []
    lines = [f"- Accuracy on unseen tasks: {scores['accuracy_after']:.3f}"]
    if "accuracy_before" in scores:
        lines[0] += f", before training {scores['accuracy_before']:.3f}"
    return lines
