"""Whatever a reward function returned -> plain Python floats, or an error that says what it was.

Accepted: bool, int, float, Fraction, NumPy and JAX scalars, and arrays of one element. Refused: text, None, lists,
larger arrays, and anything that is no finite number, as it would poison a group's mean without a sign.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from components.errors import GraderFailedError

WHOLE = "reward"


@runtime_checkable
class _Array(Protocol):
    def item(self) -> Any: ...


def as_reward(value: Any, where: str) -> float:
    """`value` as a finite float. `where` names the function and the sample.

    Raises GraderFailedError when it is no number, not one number, or not finite.
    """
    if not isinstance(value, SupportsFloat):
        raise GraderFailedError(f"{where}: a reward must be a number, not {type(value).__name__} {_short(value)}")
    try:
        number = float(value.item() if isinstance(value, _Array) else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise GraderFailedError(f"{where}: a reward must be one number, not {_short(value)} ({error})") from error
    if not math.isfinite(number):
        raise GraderFailedError(f"{where}: a reward must be finite, not {number}")
    return number


def as_reward_parts(value: Any, where: str) -> dict[str, float]:
    """A reward, whole or in named parts, as named parts; a whole one is the part WHOLE. Their sum is the reward.

    Raises GraderFailedError for a part that `as_reward` refuses, for a name that is no text, and for no parts at all.
    """
    if not isinstance(value, Mapping):
        return {WHOLE: as_reward(value, where)}
    if not value:
        raise GraderFailedError(f"{where}: a reward in parts needs at least one part")
    for name in value:
        if not isinstance(name, str):
            raise GraderFailedError(f"{where}: a reward part's name must be text, not {_short(name)}")
    return {name: as_reward(part, f"{where}, part {name}") for name, part in value.items()}


def _short(value: Any, limit: int = 80) -> str:
    # A huge int has no repr that Python would print.
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
