"""The clocks, the engine's counts and the account of tokens at two moments -> numbers of the optimizer step between."""

from dataclasses import dataclass
from typing import Any

from components.engine.statistics import EngineStatistics
from components.telemetry.clock import difference
from components.telemetry.memory import resident_bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """What counts up, at `moment` (seconds): seconds by state of both roles, tokens by fate, operations made."""

    moment: float
    trainer: dict[str, float]
    engine: EngineStatistics
    tokens: dict[str, int]
    operations: float = 0.0


def step_numbers(before: Reading, after: Reading, *, slots: int, peak: float | None = None) -> dict[str, Any]:
    """What lies between two readings. The seconds of each role are the wall time, split by state.

    `model_flops_per_second` counts what a step cannot do without (see `model.roofline`); `mfu` is its share of the
    devices' `peak`, and absent where that is not known.
    """
    seconds = after.moment - before.moment
    prefilled = after.engine.prefilled_tokens - before.engine.prefilled_tokens
    recomputed = after.engine.recomputed_tokens - before.engine.recomputed_tokens
    reused = after.engine.reused_tokens - before.engine.reused_tokens
    generated = after.engine.generated_tokens - before.engine.generated_tokens
    dispatches = after.engine.decode_dispatches - before.engine.decode_dispatches
    decoded = after.engine.decoded_rows - before.engine.decoded_rows
    speed = (after.operations - before.operations) / seconds if seconds else 0.0
    return {
        # What is in flight is a level; the others are what this step added.
        "tokens": {**difference(after.tokens, before.tokens), "in_flight": after.tokens["in_flight"]},
        "tokens_generated_so_far": after.tokens["generated"],
        "trainer_seconds": _spent(after.trainer, before.trainer),
        "engine_seconds": _spent(after.engine.seconds, before.engine.seconds),
        "rollout_tokens_per_second": generated / seconds if seconds else 0.0,
        "prefix_reuse_share": reused / max(reused + prefilled, 1),
        "recomputed_share": recomputed / max(prefilled, 1),
        "queued_share": after.engine.waiting_requests / slots,
        "rows_used_share": decoded / max(dispatches * after.engine.rows, 1),
        "model_flops_per_second": speed,
        **({"mfu": speed / peak} if peak else {}),
        "engine_compilations": after.engine.compilations - before.engine.compilations,
        "seconds": seconds,
        "resident_bytes": resident_bytes(),
    }


def _spent(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """Seconds by state, of the states in which there was any."""
    return {state: seconds for state, seconds in difference(after, before).items() if seconds}
