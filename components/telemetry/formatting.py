"""Numbers -> short texts for people. A number that is not there is a dash."""

import math

ABSENT = "–"

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: int | float | None, digits: int = 3) -> str:
    """Up to `digits` significant digits, or every digit of a whole number, in groups of three: 12 480."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if float(value).is_integer() and abs(value) < 1e15:
        text = f"{int(value):,}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif abs(value) >= 1e-3:
        text = f"{value:.{digits}g}"
    else:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        text = f"{mantissa} × 10{str(int(exponent)).translate(_RAISED)}"
    return text.replace(",", "\u202f").replace("-", "−")


def percent(share: int | float | None) -> str:
    """A share of 1 as a percentage; a decimal where it says something: 9.5 %, 96 %."""
    if share is None or not math.isfinite(share):
        return ABSENT
    value = 100 * share
    text = f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"
    return f"{text.removesuffix('.0')}\u202f%"


def seconds(value: int | float | None) -> str:
    """A time as people say it: 0.42 s, 12 s, 2 min 48 s, 3 h 05 min."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value < 10:
        return f"{value:.2g} s" if value >= 0.01 or value == 0 else f"{1000 * value:.2g} ms"
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    if whole < 2 * 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def p_value(value: int | float | None) -> str:
    """`p = 0.03`, or `p < 0.001` where more digits would say no more."""
    if value is None:
        return ABSENT
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
