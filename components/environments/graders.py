"""A text and a gold answer -> 1.0 or 0.0, with a reason. The choices below hold in training and in evaluation alike.

Numbers (`grade_number`). Which one counts: the first one after the last "####" (GSM8K's mark), else the last one in the
last \\boxed{...}, else the last one in the text. A mark with no number behind it does not count. Of a text that is
longer than 20,000 characters, only so many at its end are read.

What is a number:
- digits of any script, with "," between groups of three (also "{,}" and no-break spaces): "9,500" is one number,
  "1,2,3" are three. The decimal mark is ".". A number begins and ends with a digit; ".5" is 0.5.
- a sign belongs to it where it touches it, and no digit, letter or bracket stands before: "10-5" are 10 and 5, "- 5" is
  an item of a list. The minus may be U+2212.
- money signs and units do not matter: "$29.00." is 29. Percent is a unit, too: "50%" is 50, not 0.5.
- "3/4" and \\frac{3}{4} are one number, 0.75; so is "1 3/4". "1/2/3" and "5/0" are no fractions.
- "1e3" is 1000. Exponents beyond 300 and numbers of more than 400 characters are left out.

When two are equal: within 1e-6, or within 1e-6 of the gold answer's size where that is less than 1.

Texts (`grade_exact`): equal but for white space at both ends and how characters are composed (Unicode's NFC). With
`loose`, case, punctuation, articles (a, an, the) and the amount of white space do not matter either, as in SQuAD.

Time is bounded for every text, so that these graders need no process of their own.
"""

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

from components.environments.rewards import Grade
from components.environments.sizes import short_repr
from components.errors import GraderFailedError

MARK = "####"
TOLERANCE = Fraction(1, 10**6)
_MAX_TEXT = 20_000
_MAX_CHARACTERS = 400
_MAX_EXPONENT = 300

_NUMBER = re.compile(r"\d+(?:,\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?|(?<![\w.])\.\d+", flags=re.ASCII)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!,?\d)", flags=re.ASCII)
_OVER = re.compile(r"/(\d{1,18}(?:\.\d{1,18})?)(?![\d/])", flags=re.ASCII)
_MIXED = re.compile(r" (\d{1,9})/(\d{1,9})(?![\d/.])", flags=re.ASCII)
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{(\d{1,18})\}\{(\d{1,18})\}", flags=re.ASCII)
_SPACED_GROUPS = re.compile(r"(?<=\d)[\u00a0\u202f\u2009](?=\d{3}(?!\d))", flags=re.ASCII)
_PUNCTUATION = re.compile(r"[^\w\s]|_")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MONEY = "$\\€£¥"
_PLAIN_SIGNS = str.maketrans({"\N{MINUS SIGN}": "-", "\N{FULLWIDTH HYPHEN-MINUS}": "-", "\N{FULLWIDTH COMMA}": ","})


def grade_number(text: str, gold: str) -> Grade:
    """1.0 when the number that counts in `text` equals the gold answer, else 0.0.

    Raises GraderFailedError when the gold answer is not exactly one number: then no text could be right.
    """
    expected = numbers_in(gold)
    if len(expected) != 1:
        raise GraderFailedError(f"the gold answer {gold!r} must be exactly one number")
    found = final_number(text)
    if found is None:
        return Grade(0.0, f"the answer holds no number; {_written(expected[0])} is right")
    if same_number(found, expected[0]):
        return Grade(1.0, f"{_written(found)} is right")
    return Grade(0.0, f"{_written(found)} is wrong, {_written(expected[0])} is right")


def grade_exact(text: str, gold: str | Sequence[str], *, loose: bool = False) -> Grade:
    """1.0 when `text` is the gold answer, or one of several, else 0.0.

    Raises GraderFailedError when there is no gold answer, or one that is empty: then no text could be right.
    """
    golds = [gold] if isinstance(gold, str) else list(gold)
    plain = _loosely if loose else _strictly
    expected = {plain(each) for each in golds}
    if not expected or "" in expected:
        raise GraderFailedError(f"the gold answer {short_repr(gold)} is empty")
    if plain(text[-_MAX_TEXT:]) in expected:
        return Grade(1.0, f"{short_repr(text)} is right")
    return Grade(0.0, f"{short_repr(text)} is not {' or '.join(map(short_repr, golds[:3]))}")


def final_number(text: str) -> Fraction | None:
    """The number that counts as the answer of a text; None when it holds none."""
    text = text[-_MAX_TEXT:]
    marked = numbers_in(text.rsplit(MARK, 1)[1]) if MARK in text else []
    if marked:
        return marked[0]
    found = numbers_in(last_boxed(text)) or numbers_in(text)
    return found[-1] if found else None


def same_number(found: Fraction, gold: Fraction) -> bool:
    """Equal up to what rounding leaves."""
    return abs(found - gold) <= TOLERANCE * min(Fraction(1), abs(gold))


def numbers_in(text: str) -> list[Fraction]:
    """Every number of a text, in order."""
    text = _plain(text)
    found: list[Fraction] = []
    at = 0
    while (match := _NUMBER.search(text, at)) is not None:
        at = match.end()
        # What is no group of thousands is a list: its first items stand alone, the last one may be part of a fraction.
        *items, last = [match.group()] if _is_one_number(match.group()) else match.group().split(",")
        sign = _sign_before(text, match.start())
        for item in items:
            found += _values(item, sign)
            sign = 1
        value, at = _with_fraction(_values(last, 1), text, match)
        found += [sign * part for part in value]
    return found


def _with_fraction(value: list[Fraction], text: str, match: re.Match[str]) -> tuple[list[Fraction], int]:
    """The value with what follows it, "/4" or " 3/4", and the place behind."""
    at = match.end()
    if text[match.start() - 1 : match.start()] == "/" or not value:
        return value, at
    over, mixed = _OVER.match(text, at), _MIXED.match(text, at)
    if over is not None and Fraction(over.group(1)) != 0:
        return [value[0] / Fraction(over.group(1))], over.end()
    if mixed is not None and match.group().isdigit() and int(mixed.group(1)) < int(mixed.group(2)):
        return [value[0] + Fraction(int(mixed.group(1)), int(mixed.group(2)))], mixed.end()
    return value, at


def _is_one_number(text: str) -> bool:
    return "," not in text or _GROUPED.match(text) is not None


def _values(text: str, sign: int) -> list[Fraction]:
    """The value of one matched number; none when it is out of bounds."""
    exponent = re.split("[eE]", text)[1:]
    if len(text) > _MAX_CHARACTERS or any(abs(int(e)) > _MAX_EXPONENT for e in exponent):
        return []
    return [sign * Fraction(text.replace(",", ""))]


def _sign_before(text: str, start: int) -> int:
    """-1 when a minus touches the number (money signs may stand between) and is no minus between two things."""
    at = start - 1
    while at >= 0 and text[at] in _MONEY:
        at -= 1
    if at < 0 or text[at] != "-":
        return 1
    before = text[at - 1] if at > 0 else " "
    return 1 if before.isalnum() or before in ")]}" else -1


def _plain(text: str) -> str:
    text = text.replace("{,}", ",")
    text = _LATEX_FRACTION.sub(r" \1/\2 ", text)
    if text.isascii():
        return text
    text = text.translate(_PLAIN_SIGNS)
    text = "".join(str(unicodedata.decimal(character)) if character.isdecimal() else character for character in text)
    return _SPACED_GROUPS.sub("", text)


def last_boxed(text: str) -> str:
    r"""What stands between the braces of the last \boxed{...}; empty when there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    start += len("\\boxed{")
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[start:at]
    return text[start:]


def _written(number: Fraction) -> str:
    """A number as a reason shows it."""
    text = str(number) if number.denominator <= 1000 else f"{float(number):.12g}"
    return text if len(text) <= 60 else f"{text[:60]}..."


def _strictly(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _loosely(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub(" ", text)).split())
