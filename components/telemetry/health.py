"""Numbers of a run -> whether it is correct and loses nothing: proofs, trends, tokens by fate, and its environments."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from components.telemetry import formatting, plots
from components.telemetry.busy import times
from components.telemetry.charts import pictures, trend
from components.telemetry.palette import PAGE, fate_colors
from components.telemetry.run_files import FATES, RunRecord, tokens_unaccounted
from components.telemetry.tool_calls import ACTS, merged_calls, summed_errors

_EPISODES = {
    "turns": "turns",
    "completion_tokens": "tokens",
    "episode_seconds": "seconds",
    "tool_seconds": "seconds in tools",
    "tool_calls": "tool calls",
    "tool_error_rate": "tool calls that failed",
    "malformed_calls": "malformed calls",
    "truncated_share": "cut by a limit",
}
_SHARES = frozenset({"tool_error_rate", "truncated_share"})


def correctness(run: RunRecord) -> dict[str, Any]:
    """Trends that say whether what is trained on is what was sampled, and the proofs of the weight syncs."""
    ratios = {"tokens": "sampled tokens", "turns": "turns", "seconds": "seconds"}
    trends = (
        _tuning(run),
        trend(
            "Mismatch KL",
            "Engine against trainer at one version, per token, in nats: arithmetic alone. A jump is a fault.",
            # Rounding makes the estimate of what is nearly 0 negative, too.
            {"mismatch KL": [(step, abs(value)) for step, value in run.series("mismatch_kl")]},
            decades=True,
        ),
        trend(
            "Effective sample size",
            "As many evenly weighed tokens would say as much, as a share of all. Below 0.5, few outweigh the rest.",
            {"share": run.series("effective_sample_size")},
            level=0.5,
        ),
        trend(
            "Staleness",
            "Policy versions between sampling and update, of the batch.",
            {"mean": run.series("staleness_mean"), "largest": run.series("staleness_max")},
        ),
        trend(
            "Canary difference",
            "Worst log-prob of the canaries, trainer against engine, when a version was proven; in nats.",
            {"canary difference": run.series("canary_difference")},
            decades=True,
        ),
        trend(
            "Trained against played",
            "Mean of the episodes trained over that of all played, so far. Below 1, long or slow ones are starved.",
            {text: run.series("selection", key, "ratio") for key, text in ratios.items()},
            level=1.0,
        ),
    )
    return {"trends": [each for each in trends if each], "proofs": _proofs(run)}


def _tuning(run: RunRecord) -> dict[str, Any] | None:
    """The loss of tuning on examples, of the rows that are learnt from and of those held out."""
    learnt = [(line["step"], float(line["loss"])) for line in run.tuning if line.get("loss") is not None]
    held_out = [(line["step"], float(line["held_out"]["loss"])) for line in run.tuning if line.get("held_out")]
    meaning = str(run.summary.get("tuning", {}).get("objective", "By optimizer step of the tune step."))
    return trend("Loss of tuning", meaning, {"learnt from": learnt, "held out": held_out})


def tokens(run: RunRecord) -> dict[str, Any] | None:
    """Generated tokens by fate, and by the policy version that sampled them."""
    amounts = run.tokens
    if not amounts:
        return None
    generated = amounts.get("generated", 0)
    return {
        "generated": formatting.number(generated),
        "balanced": tokens_unaccounted(amounts) == 0,
        "by_version": _by_version(list(run.tokens_by_version.items())),
        "rows": [
            {
                "name": fate.replace("_", " "),
                "fate": fate,
                "meaning": meaning,
                "amount": formatting.number(amounts.get(fate, 0)),
                "share": formatting.percent(amounts.get(fate, 0) / generated if generated else None),
                "width": 100 * amounts.get(fate, 0) / generated if generated else 0,
            }
            for fate, meaning in FATES.items()
        ],
    }


def environments(run: RunRecord) -> dict[str, Any] | None:
    """What was played: tokens of each environment by fate, means of the first and the last step, failures by kind."""
    tables = run.summary.get("tokens_by_version", {})
    rows = [(str(name), _environment(versions)) for name, versions in tables.items()]
    episodes = [
        row for key, name in _EPISODES.items() if (row := _first_and_last(name, run.series(key), key in _SHARES))
    ]
    parts = sorted({name for line in run.metrics for name in line.get("reward_parts") or {}})
    rewards = [row for name in parts if (row := _first_and_last(name, run.series("reward_parts", name), False))]
    failures: Counter[str] = Counter()
    for line in run.metrics:
        failures.update(line.get("failures") or {})
    acts, endings = _acts(run)
    if not rows and not episodes and not rewards and not acts:
        return None
    return {
        "rows": rows,
        "acts": acts,
        "endings": endings,
        "fates": [fate.replace("_", " ") for fate in ("generated", *FATES)],
        "episodes": episodes,
        "rewards": rewards,
        "failures": [(str(kind), formatting.number(count)) for kind, count in failures.most_common()],
    }


def _environment(versions: Mapping[str, Mapping[str, int | float]]) -> list[str]:
    sums: Counter[str] = Counter()
    for fates in versions.values():
        sums.update({fate: int(amount) for fate, amount in fates.items() if fate in FATES})
    amounts = [sum(sums.values()), *(sums[fate] for fate in FATES)]
    return [formatting.number(amount) for amount in amounts]


def _acts(run: RunRecord) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """How long each environment took for each act, and how its episodes ended, over all steps."""
    told: dict[str, list[Mapping[str, Any]]] = {}
    for line in run.metrics:
        for name, numbers in (line.get("environments") or {}).items():
            told.setdefault(name, []).append(numbers)
    acts = []
    for name, lines in told.items():
        for act in ACTS.values():
            if parts := [line["acts"][act] for line in lines if act in line["acts"]]:
                sums = merged_calls(parts)
                acts.append({"name": name, "act": act, "calls": formatting.number(sums["calls"]), "times": times(sums)})
    return acts, [_ending(name, lines) for name, lines in told.items()]


def _ending(name: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    episodes, errors = sum(line["episodes"] for line in lines), summed_errors(lines)
    return {
        "name": name,
        "episodes": formatting.number(episodes),
        "failed": formatting.percent(sum(errors.values()) / episodes if episodes else None),
        "kinds": ", ".join(f"{kind} {formatting.number(count)}" for kind, count in sorted(errors.items())),
    }


def _first_and_last(
    name: str, series: Sequence[tuple[int, int | float]], is_share: bool
) -> tuple[str, str, str] | None:
    if not series:
        return None
    text = formatting.percent if is_share else formatting.number
    return name, text(series[0][1]), text(series[-1][1])


def _proofs(run: RunRecord) -> list[tuple[str, str]]:
    """What the weight syncs proved: the summary's, or while the run goes on what its steps say."""
    sync = (run.summary.get("proofs") or {}).get("sync") or {}
    canaries = [value for _, value in run.series("canary_difference")]
    last = sync.get("last") or {}
    found = {
        "versions proven": sync.get("versions", len(canaries) or None),
        "worst canary difference": sync.get("worst_canary_difference", max(canaries, default=None)),
        "last version": last.get("version"),
        "bound modules": last.get("bound_modules", last.get("modules")),
        "norm of what was learned": last.get("delta_norm", _last(run.series("delta_norm"))),
        "weight sync, last": _last(run.series("sync_seconds")),
    }
    rows = [
        (name, formatting.seconds(value) if name.startswith("weight sync") else formatting.number(value))
        for name, value in found.items()
        if isinstance(value, int | float)
    ]
    if last.get("fingerprint") or last.get("hash"):
        rows.append(("adapter", str(last.get("fingerprint") or last.get("hash"))))
    return rows


def _last(series: Sequence[tuple[int, int | float]]) -> float | None:
    return series[-1][1] if series else None


def _by_version(amounts: Sequence[tuple[int, Mapping[str, int | float]]]) -> dict[str, Markup] | None:
    if not amounts:
        return None
    colors = fate_colors(PAGE)
    return pictures(
        "versions",
        "Tokens by fate of each policy version",
        lambda size: plots.stacked_bars(
            amounts, colors, unit="tokens", across="policy version", palette=PAGE, size=size
        ),
        height=2.0,
    )
