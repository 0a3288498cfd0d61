"""The tasks of a run -> a card that says what they are: counts, what was left out and why, lengths, and a hash."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from components.types import Task

CARD = "card.json"
READABLE = "README.md"
_PERCENTILES = (0, 50, 90, 99, 100)


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """A split's tasks, the tasks that were dropped by reason, and the prompts' lengths in tokens (0 if unmeasured)."""

    tasks: Sequence[Task]
    dropped: Counter[str]
    tokens: Sequence[int]


def content_hash(folder: Path | str, splits: Sequence[str]) -> str:
    """SHA-256 over the files of the splits, by name."""
    digest = hashlib.sha256()
    for split in splits:
        content = Path(folder, f"{split}.jsonl").read_bytes()
        digest.update(f"{split} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def write_card(
    folder: Path | str, source: Mapping[str, Any], facts: Mapping[str, Any], splits: Mapping[str, SplitFacts]
) -> None:
    """Write both cards beside the tasks. `source` is the environment, its options and the seed of the run."""
    card = {"source": dict(source), **facts, "splits": {name: _split(each) for name, each in sorted(splits.items())}}
    Path(folder, CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    Path(folder, READABLE).write_text(_readable(card), encoding="utf-8")


def _split(facts: SplitFacts) -> dict[str, Any]:
    prompts = Counter(task.prompt for task in facts.tasks)
    described: dict[str, Any] = {
        "tasks": len(facts.tasks),
        "with_answer": sum(task.answer is not None for task in facts.tasks),
        "repeated_prompts": len(facts.tasks) - len(prompts),
        "dropped": dict(facts.dropped.most_common()),
        "prompt_characters": _percentiles([len(task.prompt) for task in facts.tasks]),
    }
    if any(facts.tokens):
        described["prompt_tokens"] = _percentiles(facts.tokens)
    return described


def _percentiles(lengths: Sequence[int]) -> dict[str, int]:
    """The lengths that so many percent of the prompts do not exceed; each is the length of one of them."""
    found = np.percentile(np.asarray(lengths), _PERCENTILES, method="inverted_cdf")
    return {f"p{share}": int(value) for share, value in zip(_PERCENTILES, found, strict=True)}


def _readable(card: Mapping[str, Any]) -> str:
    source = card["source"]
    lines = [
        "# Tasks of a run",
        "",
        f"Environment `{source['use']}`, seed {source['seed']}, with the options",
        "",
        "```json",
        json.dumps(source["options"], indent=1, ensure_ascii=False, default=str),
        "```",
        "",
        f"SHA-256 over both splits: `{card['sha256']}`. Prompts that stand in both: {card['prompts_in_both_splits']}.",
        "",
        "| split | tasks | with a gold answer | repeated prompts | dropped |",
        "|---|---|---|---|---|",
    ]
    for name, split in card["splits"].items():
        counts = (split["tasks"], split["with_answer"], split["repeated_prompts"], sum(split["dropped"].values()))
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    lines += ["", "| length of a prompt | " + " | ".join(f"p{share}" for share in _PERCENTILES) + " |"]
    lines.append("|---|" + "---|" * len(_PERCENTILES))
    for name, split in card["splits"].items():
        for unit in ("characters", "tokens"):
            if f"prompt_{unit}" in split:
                lines.append(f"| {name}, {unit} | {' | '.join(map(str, split[f'prompt_{unit}'].values()))} |")
    reasons = [(name, why, count) for name, split in card["splits"].items() for why, count in split["dropped"].items()]
    if reasons:
        lines += ["", "Dropped:", "", *(f"- {name}: {count} because {_inline(why)}" for name, why, count in reasons)]
    return "\n".join(lines) + "\n"


def _inline(text: str) -> str:
    return " ".join(text.split())[:300]
