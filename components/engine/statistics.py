"""What an engine has done so far, as numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts since the start, and the state of this moment. `seconds` is by state of the engine's clock.

    `recomputed_tokens` are those of the prefilled ones that a later turn needed because its episode's slot had been
    lent: what too few slots cost. `decoded_rows` are those in use, summed over dispatches that had place for `rows`.
    """

    version: int
    generated_tokens: int
    prefilled_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    decode_dispatches: int
    decoded_rows: int
    rows: int
    swaps: int
    compilations: int
    live_slots: int
    waiting_requests: int
    seconds: dict[str, float]
