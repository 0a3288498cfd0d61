"""The trajectories of a run -> a bounded sample of them as the report's viewer reads it, and points that lead to it.

The sample holds the extremes of the run (reward, staleness, seconds, the least likely token), failures of every kind,
what had tool errors, and for the rest it is spread evenly over the steps. Texts are cut; what is left out is counted.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from components.telemetry import formatting
from components.telemetry.plots import smoothed

MOST = 240
"""Trajectories in the page."""

MOST_BYTES = 1_400_000
"""Bytes of all trajectories in the page, so that it stays under 3 MB."""

_LONGEST_TEXT = 4_000  # characters of one text of a message
LONGEST_TALK = 20_000
"""Characters of the messages of one trajectory."""

_MOST_TOKENS = 1_500  # of one trajectory
_OF_EACH_KIND = 8  # extremes on each side, failures of a kind
_SHARED = 60  # a text of so many characters that comes again is written once

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a trajectory that a plot shows; `lowest` says that low ones are worth a link, not high ones."""

    key: str
    name: str
    meaning: str
    value: Callable[[Record], int | float | None]
    lowest: bool = False


def _least_likely(record: Record) -> int | float | None:
    found = [
        value for turn in record.get("turns", ()) for value in turn.get("logprobs", ()) if _finite(value) is not None
    ]
    return min(found, default=None)


def _largest_mismatch(record: Record) -> int | float | None:
    """How far trainer and engine are apart at most on a token that the trainer's own version sampled; None if unknown.

    On an older token the trainer differs for what it has learned since, too: see `_largest_drift`.
    """
    return max((abs(gap) for gap, behind in _known_gaps(record) if not behind), default=None)


def _largest_drift(record: Record) -> int | float | None:
    """The same of tokens that an older version sampled."""
    return max((abs(gap) for gap, behind in _known_gaps(record) if behind), default=None)


def _known_gaps(record: Record) -> Iterator[tuple[int | float, int]]:
    """(gap, versions from its sampling to the update) of each token of which both are known."""
    trainer = (record.get("step") or 0) - 1
    for turn in record.get("turns", ()):
        versions = [version for version, length in turn.get("versions", ()) for _ in range(length)]
        for gap, version in zip(_gaps(turn), versions, strict=False):
            if gap is not None:
                yield gap, trainer - version


MEASURES = (
    Measure("reward", "Reward", "Of each trajectory that was kept.", lambda each: each.get("reward"), lowest=True),
    Measure(
        "stale", "Staleness", "Policy versions from its oldest token to the update.", lambda each: each.get("staleness")
    ),
    Measure("seconds", "Seconds", "From reset to reward.", lambda each: each.get("seconds")),
    Measure("lowest", "Least likely token", "Its log-prob when it was sampled, in nats.", _least_likely, lowest=True),
    Measure(
        "gap",
        "Largest mismatch",
        "Log-prob of the trainer against the engine at one version, on the worst token: arithmetic alone.",
        _largest_mismatch,
    ),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The trajectories of the page in order of steps, as they were recorded and as the viewer reads them.

    `written` are those of the run folder, `played` all of them.
    """

    records: tuple[Record, ...]
    talks: tuple[dict[str, Any], ...]
    written: int
    played: int | None = None


def choose(
    records: Sequence[Record], *, most: int = MOST, most_bytes: int = MOST_BYTES, played: int | None = None
) -> Sample:
    """At most `most` trajectories of at most so many bytes: what is odd, then an even spread over the run.

    The last fifth of the bytes goes to trajectories without their tokens.
    """
    ordered = sorted(range(len(records)), key=lambda at: (records[at].get("step") or 0, at))
    kept: dict[int, dict[str, Any]] = {}
    spent = 0
    for at in dict.fromkeys([*_odd(records), *_in_turn(_spread(ordered, most))]):
        talk = _trajectory(records[at])
        size = len(_as_script(talk))
        if spent + size > 0.8 * most_bytes:
            talk["turns"] = []
            size = len(_as_script(talk))
        if len(kept) < most and spent + size <= most_bytes:
            kept[at] = talk
            spent += size
    shown = [at for at in ordered if at in kept]
    talks = tuple({"id": number, **kept[at]} for number, at in enumerate(shown))
    return Sample(tuple(records[at] for at in shown), talks, written=len(records), played=played)


def viewer_json(sample: Sample) -> Markup:
    """The sample as the text of a `<script type="application/json">`, which no text in it can end."""
    texts, talks = _shared_texts(sample.talks)
    scales = {f"{key}Scale": _scale([each[key] for each in talks if each[key]]) for key in ("gap", "drift")}
    return Markup(_as_script({"texts": texts, **scales, "list": talks}))


def _scale(values: Sequence[float]) -> float:
    """What is coloured most; the few that are larger do not fade the others."""
    return max(float(np.quantile(values, 0.9)), 1e-3) if values else 1.0


def points(sample: Sample, measure: Measure) -> list[tuple[int, float, str, str]]:
    """(step, value, link, label) of every trajectory of the page of which the measure is known."""
    found = ((at, record, measure.value(record)) for at, record in enumerate(sample.records))
    return [
        (record.get("step") or 0, float(value), f"#trajectory-{at}", _label(record, measure, value))
        for at, record, value in found
        if value is not None and math.isfinite(value)
    ]


def extremes(found: Sequence[tuple[int, float, str, str]], measure: Measure, most: int = 3) -> list[tuple[str, str]]:
    """(link, label) of the points that stand out most from those around them; none where all are the same."""
    values = np.array([value for _, value, _, _ in found])
    if len(set(values.tolist())) < 2:
        return []
    away = values - smoothed(values, np.arange(len(values), dtype=np.float64))
    ordered = np.argsort(away if measure.lowest else -away, kind="stable")
    return [found[at][2:] for at in ordered[:most]]


def _label(record: Record, measure: Measure, value: int | float) -> str:
    return f"step {record.get('step')}, {record.get('task_id', '')}: {measure.name.lower()} {formatting.number(value)}"


def _odd(records: Sequence[Record]) -> list[int]:
    """The extremes of every measure, failures of each kind, and tool errors, spread over the run."""
    found: list[int] = []
    for measure in MEASURES:
        values = [(value, at) for at, record in enumerate(records) if (value := measure.value(record)) is not None]
        ranked = [at for _, at in sorted(values)]
        found += ranked[:_OF_EACH_KIND] + ranked[-_OF_EACH_KIND:]
    kinds: dict[str, list[int]] = {}
    for at, record in enumerate(records):
        if record.get("failure"):
            kinds.setdefault(str(record["failure"].get("kind")), []).append(at)
        if record.get("tool_errors") or record.get("malformed_calls"):
            kinds.setdefault("\0tool errors", []).append(at)
    for members in kinds.values():
        found += _spread(members, 2 * _OF_EACH_KIND)
    return found


def _spread(items: Sequence[int], most: int) -> list[int]:
    """At most so many, evenly, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, most)]


def _in_turn(items: Sequence[int]) -> list[int]:
    """The same in an order of which every beginning is spread over the whole."""
    return [items[at] for at in sorted(range(len(items)), key=lambda at: at * 0.618034 % 1)]


def _trajectory(record: Record) -> dict[str, Any]:
    """What the viewer shows of one; see templates/viewer.js."""
    messages = list(record.get("messages", ()))
    shown = up_to(LONGEST_TALK, messages)
    failure = record.get("failure")
    prompt = next((str(each.get("content")) for each in messages if each.get("role") == "user"), "")
    turns = _turns(record.get("turns", ()))
    return {
        "step": record.get("step") or 0,
        "task": str(record.get("task_id", "")),
        "member": record.get("member") or 0,
        "attempt": record.get("attempt") or 0,
        "title": " ".join(prompt.split())[:160],
        "outcome": str(record.get("outcome", "")),
        "cut": str(record.get("cut_by") or ""),
        "failure": [str(failure.get("kind")), shortened(str(failure.get("message")))] if failure else None,
        "reward": _finite(record.get("reward")),
        "parts": [[str(name), _finite(value)] for name, value in record.get("reward_parts", {}).items()],
        "reasons": [[str(name), shortened(str(why))] for name, why in record.get("reward_reasons", {}).items()],
        "tokens": record.get("tokens"),
        "seconds": _finite(record.get("seconds")),
        "toolSeconds": _finite(record.get("tool_seconds")),
        "calls": record.get("tool_calls") or 0,
        "used": [
            f"{tool} {'' if outcome == 'ok' else f'{outcome} '}{formatting.seconds(seconds)}"
            for _, tool, outcome, seconds in record.get("calls", ())
        ],
        "errors": record.get("tool_errors") or 0,
        "malformed": record.get("malformed_calls") or 0,
        "stale": record.get("staleness"),
        "lowest": _least_likely(record),
        "gap": _largest_mismatch(record),
        "drift": _largest_drift(record),
        "messages": shown,
        "more": len(messages) - len(shown),
        "turns": turns,
    }


def message(said: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its texts cut, and what was thought before its answer; calls and malformed calls as pairs."""
    thought = f"<think>\n{said['thinking']}\n</think>\n\n" if said.get("thinking") else ""
    return {
        "role": str(said["role"]),
        "name": str(said.get("name") or ""),
        "content": shortened(thought + str(said.get("content") or "")),
        "calls": [
            [str(call["name"]), shortened(json.dumps(call["arguments"], ensure_ascii=False))]
            for call in said.get("tool_calls", ())
        ],
        "bad": [[shortened(str(call["text"])), str(call["reason"])] for call in said.get("malformed_calls", ())],
    }


def up_to(characters: int, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first messages, cut, that together hold at most so many characters."""
    shown = []
    for said in messages:
        cut = message(said)
        characters -= len(json.dumps(cut, ensure_ascii=False))
        if characters < 0:
            break
        shown.append(cut)
    return shown


def shortened(text: str, longest: int = _LONGEST_TEXT) -> str:
    """A text of at most so many characters, and how many more there were."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({formatting.number(len(text) - longest)} more characters)"


def _turns(turns: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    room = _MOST_TOKENS
    found = []
    for turn in turns:
        tokens = list(turn.get("tokens", ()))
        kept = max(0, min(room, len(tokens)))
        room -= kept
        found.append(
            {
                "prompt": shortened(str(turn.get("prompt", ""))),
                "promptTokens": turn.get("prompt_tokens"),
                "tokens": tokens[:kept],
                "more": len(tokens) - kept,
                "logprobs": [_finite(value) for value in turn.get("logprobs", ())][:kept],
                "gaps": _gaps(turn)[:kept],
                "versions": list(turn.get("versions", ())),
                "finish": str(turn.get("finish", "")),
                "reward": _finite(turn.get("reward")),
            }
        )
    return found


def _gaps(turn: Mapping[str, Any]) -> list[int | float | None]:
    return [_finite(value) for value in turn.get("gaps", ())]


def _shared_texts(talks: Sequence[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Long texts that come again, such as system prompts; in the messages and turns each becomes its number."""
    places = [(said, "content") for each in talks for said in each["messages"]]
    places += [(turn, "prompt") for each in talks for turn in each["turns"]]
    counts = Counter(place[key] for place, key in places if len(place[key]) >= _SHARED)
    numbers = {text: at for at, text in enumerate(text for text, count in counts.items() if count > 1)}

    def shared(parts: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        return [part | {key: numbers.get(part[key], part[key])} for part in parts]

    return list(numbers), [
        each | {"messages": shared(each["messages"], "content"), "turns": shared(each["turns"], "prompt")}
        for each in talks
    ]


def _as_script(value: Any) -> str:
    """JSON that no `</script>` or `<!--` can be found in. A half of a surrogate pair stays an escape of JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    return text.encode("utf-8", "backslashreplace").decode()


def _finite(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None
