"""The files of a run folder that the report is made from -> one record of the run.

    metrics.jsonl        one object per optimizer step, written by MetricsLog (see STEP_KEYS)
    tuning.jsonl         the same for the steps of supervised tuning (see TUNING_KEYS)
    evaluation.json      {"measures": [{"name": "greedy accuracy", "before": ESTIMATE, "after": ESTIMATE,
                         "paired": PAIRED}, ...]}, the headline first. ESTIMATE and PAIRED are `dataclasses.asdict` of
                         evaluation.statistics.Estimate and PairedDifference; "before" and "paired" may be absent.
    summary.json         the object that `headrace run --json` prints, and what describes the run (see SUMMARY_KEYS)
    trajectories.jsonl   a sample of trajectories, one object a line: "step", "task_id", "reward", "outcome", and where
                         they are known "reward_parts", "reward_reasons", "seconds", "cut_by", "failure"; "messages" is
                         a list of `dataclasses.asdict` of types.Message, "turns" are of training.trajectory_lines

Every file and every key may be absent: the report leaves out what it is not told.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from components import storage
from components.errors import DataError, Problem
from components.telemetry.metrics import read_metrics

METRICS = "metrics.jsonl"
TUNING = "tuning.jsonl"
EVALUATION = "evaluation.json"
SUMMARY = "summary.json"
TRAJECTORIES = "trajectories.jsonl"
REPORT = "report.html"

FAILURE = "failure"
"""The key of the summary that says what a run has failed of; it is taken out once the run goes on."""

FATES = {
    "trained": "went into an update",
    "stale": "too old when they landed",
    "filtered": "left out by a rule, such as a group that is all right or all wrong",
    "failed": "in episodes that broke at a boundary to the outside",
    "surplus": "in members that a closed group did not wait for",
    "in_flight": "in episodes that are still running",
}
"""What becomes of a generated token; generated is the sum of them all."""

STEP_KEYS = {
    "reward_mean": "mean reward of the batch",
    "reward_std": "standard deviation of its rewards",
    "accuracy": "an evaluation's score at this step, where there was one",
    "reward_min": "the lowest of them",
    "reward_max": "the highest of them",
    "advantage_mean": "mean advantage of the tokens (of the sequences, where all tokens of one have the same)",
    "advantage_std": "standard deviation of them",
    "advantage_min": "the lowest of them",
    "advantage_max": "the highest of them",
    "loss": "objective",
    "policy_loss": "its part that rewards drive",
    "kl_loss": "its part that holds the policy to the reference",
    "entropy_loss": "its part that rewards entropy",
    "value_loss": "loss of the critic, per token",
    "value_mean": "mean value that the critic gives to a state",
    "value_clipped": "share of tokens whose value has moved too far in this step to be pulled further",
    "explained_variance": "share of the returns' variance that the critic had foreseen; 1 is all, below 0 is harm",
    "return_mean": "mean return that the critic is trained towards",
    "clipped": "share of tokens that a bound holds, so that they pull on nothing",
    "clipped_low": "share of those that it holds from below",
    "clipped_high": "share of those that it holds from above",
    "masked": "share of tokens of sequences that a mask drops",
    "groups_without_signal": "groups whose rewards are all equal",
    "groups_refused": "groups that others were played in place of",
    "updates": "updates of the policy in this step, where there are several",
    "epochs": "passes over the step's tokens, where there are several updates",
    "epoch_kl_1": "behavior_kl of the first pass alone; epoch_kl_2 and so on are of later ones",
    "gradient_norm": "norm of the gradient before clipping; a mean where there are several updates",
    "critic_gradient_norm": "the same of the critic",
    "entropy": "entropy per token, in nats",
    "reference_kl": "KL to the reference policy per token, in nats",
    "behavior_kl": "KL of the policy that sampled against the one that trains, per token, in nats",
    "mismatch_kl": "the same at one version of both, where engine and trainer differ by arithmetic alone",
    "effective_sample_size": "that of the importance weights as a share of the tokens; below 0.5 few outweigh the rest",
    "importance_weight_max": "the largest importance weight of a token",
    "selection": "{measure: {trained, dispatched, ratio}}: means over what was trained and all that was played, so far",
    "staleness_mean": "policy versions between sampling and update",
    "staleness": "{staleness: trajectories} of this step",
    "queue_seconds_mean": "seconds from the end of an episode until the trainer takes it",
    "queue_seconds_max": "the longest of them in this step",
    "episode_seconds": "mean length of an episode in seconds",
    "tools": "{tool: {calls, errors: {kind: n}, p50, p95, p99, max, seconds, histogram}} of this step, in seconds; "
    "`seconds` is their sum, and `histogram` has the calls of each bucket of telemetry.latency.BOUNDS",
    "environments": "{environment: {episodes, errors: {kind: n}, acts: {reset | step | grade | close: {calls, ...}}}}: "
    "what ended while this step was made, be it trained on or not; an act has the numbers of a tool",
    "tool_seconds": "mean time that an episode waited for tools, in seconds",
    "tool_error_rate": "share of tool calls that failed",
    "tokens": "{generated, trained, ...}: tokens of this step by fate; in_flight is a level, all others are amounts",
    "rollout_tokens_per_second": "generated tokens over the seconds of this step",
    "prefix_reuse_share": "share of prompt tokens whose keys and values were in the engine's cache already",
    "rows_used_share": "share of the rows of decode dispatches that were in use",
    "model_flops_per_second": "operations of the trainer that a step cannot do without, over the seconds of this step",
    "mfu": "the same as a share of what the devices could do; absent where that is not known",
    "groups": "groups that were trained on or filtered in this step",
    "alerts": "list of the alert rules that this step broke for the first time",
    "trainer_seconds": "{state: seconds} of this step; states as in telemetry.clock",
    "engine_seconds": "the same for the engine",
}
"""Keys of a line of metrics.jsonl that the report knows. Others are kept and not shown."""

TUNING_KEYS = {
    "loss": "the method's loss over the rows of the step, before it",
    "held_out": "{name: number}: the same numbers over rows that are never trained on, where they were measured",
    "token_accuracy": "share of the assistant's tokens that the policy finds likeliest (sft)",
    "preference_accuracy": "share of pairs whose chosen answer is ahead, a tie being half of one (dpo, orpo)",
    "margin": "by how much it is ahead: beta times the log-ratios' difference, or the log odds ratio (dpo, orpo)",
    "forward_kl": "KL(teacher || policy) per token, in nats (distill)",
    "reverse_kl": "KL(policy || teacher) per token, in nats (distill)",
    "position": "rows that were learnt from since the start, over all epochs",
}
"""Keys of a line of tuning.jsonl. Step 0 holds what was measured before the first."""

SUMMARY_KEYS = {
    "run_dir": "the run folder",
    "recipe": "name of the recipe",
    "model": "name of the base model",
    "environment": "name of the environment",
    "objective": "the effective objective as a formula",
    "renderer": "the form in which the model reads conversations, why it is that one, and its settings",
    "facts": "{name: value} of whatever else describes the run",
    "versions": "{package: version}",
    "alerts": "list of texts: what a person should know before they trust the numbers",
    "steps": "optimizer steps",
    "stages": "what the run learns in, in order: tune, train",
    "tuning": "what the tune step did: method, steps, rows, and its held-out numbers before and after",
    "wall_seconds": "seconds from start to end",
    "peak_memory_gib": "peak memory in GiB",
    "reward_before": "mean reward of the first step",
    "reward_after": "mean reward of the last step",
    "accuracy_before": "score before training",
    "accuracy_after": "score after training",
    "accuracy_after_interval": "[low, high]",
    "tokens": "{generated, trained, ...} of the whole run",
    "tokens_by_version": "{environment: {policy version: {fate: tokens}}} of the whole run",
    "tools": "{tool: {calls, errors: {kind: n}, p50, p95, p99, max}} of the whole run, times in seconds",
    "trainer_seconds": "{state: seconds} of the whole run",
    "engine_seconds": "the same for the engine",
    "trainer_idle_share": "share of its time that the trainer waited",
    "engine_idle_share": "share of its time that the engine waited",
    FAILURE: "{step, message} of what the run failed of; absent where it did not, or where it goes on",
    "promotion": "what came of the gate, in words: promoted: ADAPTER, or not promoted: REASONS",
    "report_html": "path of the report",
}
"""Keys of summary.json that the report and the closing table know. Others are kept and not shown."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known of a run; see the module for the keys."""

    summary: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    measures: Sequence[Mapping[str, Any]] = ()
    trajectories: Sequence[Mapping[str, Any]] = ()
    tuning: Sequence[Mapping[str, Any]] = ()

    @property
    def tokens(self) -> dict[str, int | float]:
        """Tokens of the whole run by fate: the summary's, or else the sum of all steps."""
        return dict(self.summary.get("tokens") or _token_totals(self.metrics))

    @property
    def tokens_by_version(self) -> dict[int, dict[str, int | float]]:
        """Tokens by fate of each policy version, ascending, summed over environments; empty where it is not known."""
        parts: dict[int, list[Mapping[str, int | float]]] = {}
        for versions in self.summary.get("tokens_by_version", {}).values():
            for version, fates in versions.items():
                parts.setdefault(int(version), []).append(fates)
        return {version: _sums(parts[version]) for version in sorted(parts)}

    def seconds(self, role: str) -> dict[str, int | float]:
        """Seconds by state of `trainer` or `engine`: the summary's, or else the sum of all steps."""
        key = f"{role}_seconds"
        return dict(self.summary.get(key) or _sums(line.get(key, {}) for line in self.metrics))

    def series(self, *path: str) -> list[tuple[int, float]]:
        """(step, value) of every step that has a finite value where the keys lead: ("selection", "turns", "ratio")."""
        found = ((line["step"], _at(line, path)) for line in self.metrics)
        return [(step, float(value)) for step, value in found if value is not None]

    def across(self, axis: str) -> dict[int, int | float]:
        """{step: how far the run was at its end}, in `steps`, in `tokens` generated or in `seconds`.

        Empty where a step does not tell.
        """
        if axis == "steps":
            return {line["step"]: line["step"] for line in self.metrics}
        found: dict[int, int | float] = {}
        so_far: int | float = 0
        for line in self.metrics:
            whole, added = _tokens_at(line) if axis == "tokens" else _seconds_of(line)
            if whole is None and added is None:
                return {}
            so_far = whole if whole is not None else so_far + (added or 0)
            found[line["step"]] = so_far
        return found


def read_run(folder: str, *, trajectories: bool = True) -> RunRecord:
    """Read what there is in a run folder, its many trajectories only where they are wanted.

    Raises DataError for a file that is damaged.
    """
    return RunRecord(
        summary=_read_object(storage.join(folder, SUMMARY)),
        metrics=read_metrics(storage.join(folder, METRICS)),
        tuning=read_metrics(storage.join(folder, TUNING)),
        measures=_read_object(storage.join(folder, EVALUATION)).get("measures", []),
        trajectories=[
            _parsed(line, storage.join(folder, TRAJECTORIES))
            for line in (storage.read_lines(storage.join(folder, TRAJECTORIES)) if trajectories else ())
        ],
    )


def update_summary(folder: str, values: Mapping[str, Any], *, drop: Collection[str] = ()) -> dict[str, Any]:
    """Merge `values` into summary.json: every step of a run adds what it knows. Gives the whole summary.

    The keys of `drop` are taken out.
    Of several that do so at once each finds the others' values in it.
    """
    uri = storage.join(folder, SUMMARY)
    while True:
        try:
            found, generation = storage.read_versioned(uri)
        except FileNotFoundError:
            found, generation = b"{}", 0
        summary = {key: value for key, value in _parsed(found.decode(), uri).items() if key not in drop} | dict(values)
        with suppress(storage.ConflictError):
            text = json.dumps(summary, indent=2, default=str) + "\n"
            storage.write_text(uri, text, if_generation_match=generation)
            return summary


def failure_of(summary: Mapping[str, Any]) -> Mapping[str, str] | None:
    """{step, message} of what a run has failed of; None where it has not."""
    found: Mapping[str, str] | None = summary.get(FAILURE)
    return found


def tokens_unaccounted(tokens: Mapping[str, int | float]) -> int | float:
    """Generated tokens without a fate; 0 when the books balance."""
    return tokens.get("generated", 0) - sum(tokens.get(fate, 0) for fate in FATES)


def _tokens_at(line: Mapping[str, Any]) -> tuple[Any, Any]:
    """Tokens that were generated up to a step, and in it; None where it does not tell."""
    return line.get("tokens_generated_so_far"), (line.get("tokens") or {}).get("generated")


def _seconds_of(line: Mapping[str, Any]) -> tuple[None, Any]:
    """The same of seconds: what the trainer did in a step makes up its time, too."""
    return None, line.get("seconds", sum((line.get("trainer_seconds") or {}).values()) or None)


def _token_totals(metrics: Sequence[Mapping[str, Any]]) -> dict[str, int | float]:
    totals = _sums(line.get("tokens", {}) for line in metrics)
    if "in_flight" in totals:
        totals["in_flight"] = metrics[-1].get("tokens", {}).get("in_flight", 0)
    return totals


def _sums(parts: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
    totals: dict[str, int | float] = {}
    for part in parts:
        for key, amount in part.items():
            totals[key] = totals.get(key, 0) + amount
    return totals


def _at(line: Any, path: Iterable[str]) -> Any:
    for key in path:
        line = line.get(key) if isinstance(line, Mapping) else None
    return line


def _read_object(uri: str) -> dict[str, Any]:
    try:
        text = storage.read_text(uri)
    except FileNotFoundError:
        return {}
    return _parsed(text, uri)


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(Problem(where=where, value=text, message=f"is no JSON: {error}")) from None
    if not isinstance(value, dict):
        raise DataError(Problem(where=where, value=value, message="must be a JSON object"))
    return value
