"""Whatever a reward function returned -> plain Python floats, or an error that says what it was.

Accepted: bool, int, float, Fraction, NumPy and JAX scalars, and arrays of one element. Refused: text, None, lists,
larger arrays, and anything that is no finite number, as it would poison a group's mean without a sign. A `Grade` is one
of these with a reason beside it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from components.environments.sizes import cut, encodable, short_repr
from components.errors import GraderFailedError

WHOLE = "reward"
_MAX_PARTS = 100
_MAX_NAME = 200
_MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class Grade:
    """A reward, and why it is that: the reason is for people, and stands in the record of the trajectory."""

    reward: SupportsFloat
    reason: str = ""


Reward = float | Grade | Mapping[str, float | Grade]
"""What an environment may return: one reward or several named parts, each with a reason or without."""


@runtime_checkable
class _Array(Protocol):
    def item(self) -> Any: ...


def as_reward(value: Any, where: str) -> float:
    """`value` as a finite float. `where` names the function and the sample.

    Of a Grade, the reward. Raises GraderFailedError when it is no number, not one number, or not finite.
    """
    if isinstance(value, Grade):
        value = value.reward
    if type(value) is float and math.isfinite(value):
        return value
    if not isinstance(value, SupportsFloat):
        raise GraderFailedError(f"{where}: a reward must be a number, not {type(value).__name__} {short_repr(value)}")
    try:
        number = float(value.item() if isinstance(value, _Array) else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise GraderFailedError(f"{where}: a reward must be one number, not {short_repr(value)} ({error})") from error
    if not math.isfinite(number):
        raise GraderFailedError(f"{where}: a reward must be finite, not {number}")
    return number


def as_reward_parts(value: Any, where: str) -> dict[str, float]:
    """A reward, whole or in named parts, as named parts; a whole one is the part WHOLE. Their sum is the reward.

    Raises GraderFailedError for a part that `as_reward` refuses, for a name that is no short text, and for no parts or
    more than a hundred.
    """
    if not isinstance(value, Mapping):
        return {WHOLE: as_reward(value, where)}
    if not value:
        raise GraderFailedError(f"{where}: a reward in parts needs at least one part")
    if len(value) > _MAX_PARTS:
        raise GraderFailedError(f"{where}: a reward may have {_MAX_PARTS} parts, not {len(value)}")
    for name in value:
        if not isinstance(name, str) or len(name) > _MAX_NAME or name != encodable(name):
            raise GraderFailedError(
                f"{where}: a reward part's name must be text of at most {_MAX_NAME} characters, not {short_repr(name)}"
            )
    parts = {name: as_reward(part, f"{where}, part {name}") for name, part in value.items()}
    as_reward(sum(parts.values()), f"{where}, sum of the parts")
    return parts


def as_reward_reasons(value: Any, where: str) -> dict[str, str]:
    """The reasons that a reward came with, by the part's name as `as_reward_parts` gives it; empty ones are left out.

    Raises GraderFailedError for a reason that is no text. A long one is cut.
    """
    grades = value if isinstance(value, Mapping) else {WHOLE: value}
    reasons: dict[str, str] = {}
    for name, grade in grades.items():
        if not isinstance(grade, Grade):
            continue
        if not isinstance(grade.reason, str):
            raise GraderFailedError(f"{where}: a grade's reason must be text, not {short_repr(grade.reason)}")
        if grade.reason:
            reasons[name] = cut(encodable(grade.reason), _MAX_REASON)
    return reasons
