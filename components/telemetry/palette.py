"""What a picture shows -> its colours, in light and dark, or as CSS variables of the page around it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields

from components.telemetry.clock import STARTING, is_waiting


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by their use. Work is what a role should do, waiting is what it should not; then fates of tokens."""

    ink: str
    muted: str
    grid: str
    accent: str
    accent_soft: str
    second: str
    start: str
    work_1: str
    work_2: str
    work_3: str
    work_4: str
    wait_1: str
    wait_2: str
    wait_3: str
    wait_4: str
    wait_5: str
    wait_6: str
    stale: str
    filtered: str
    failed: str
    surplus: str
    flight: str
    page: str


LIGHT = Palette(
    ink="#14232b",
    muted="#5d6f79",
    grid="#dfe6ea",
    accent="#0b7285",
    accent_soft="#74b9c6",
    second="#c2410c",
    start="#c3ced4",
    work_1="#0b7285",
    work_2="#3a9aab",
    work_3="#7cc0cc",
    work_4="#5b7fa6",
    wait_1="#f0a13c",
    wait_2="#f6c888",
    wait_3="#d9733a",
    wait_4="#c9a227",
    wait_5="#e7885f",
    wait_6="#a65e2e",
    stale="#b98a52",
    filtered="#9fb3bd",
    failed="#c2410c",
    surplus="#7f8fc9",
    flight="#c9d5db",
    page="#ffffff",
)
DARK = Palette(
    ink="#e6eef2",
    muted="#93a5b0",
    grid="#24343e",
    accent="#4cc2d6",
    accent_soft="#2c7f90",
    second="#fb923c",
    start="#455863",
    work_1="#3bb3c8",
    work_2="#2b8294",
    work_3="#1f5c69",
    work_4="#5f86b3",
    wait_1="#e59a35",
    wait_2="#a8742f",
    wait_3="#c2602c",
    wait_4="#9c8226",
    wait_5="#cf7f5f",
    wait_6="#85512f",
    stale="#c79a62",
    filtered="#5d727d",
    failed="#ea6a34",
    surplus="#8593d6",
    flight="#33454f",
    page="#101a20",
)
_NAMES = [field.name for field in fields(Palette)]
# Colours that no picture would choose, to be told apart in the SVG and replaced by the page's own variables.
_MARKS = Palette(*(f"#0102{number:02x}" for number in range(len(_NAMES))))


def css_variables(palette: Palette) -> str:
    """The palette as CSS custom properties, which `page_svg` refers to."""
    return " ".join(
        f"--{name.replace('_', '-')}: {color};" for name, color in zip(_NAMES, astuple(palette), strict=True)
    )


PAGE = _MARKS
"""The palette of figures that are meant for a page; see `plots.page_svg`."""


def run_colors(runs: Sequence[str], palette: Palette = LIGHT) -> dict[str, str]:
    """A colour for each of several runs; after ten they come again."""
    known = (
        palette.accent,
        palette.second,
        palette.surplus,
        palette.wait_1,
        palette.ink,
        palette.stale,
        palette.work_3,
        palette.wait_3,
        palette.filtered,
        palette.muted,
    )
    return _cycled(runs, known)


def state_colors(states: Iterable[str], palette: Palette = LIGHT) -> dict[str, str]:
    """A colour for each state: one family for work, another for waiting. Work comes first, the start last."""
    known = list(dict.fromkeys(states))
    work = [state for state in known if not is_waiting(state) and state != STARTING]
    waits = [state for state in known if is_waiting(state)]
    starts = [state for state in known if state == STARTING]
    return _cycled(work, _works(palette)) | _cycled(waits, _waits(palette)) | _cycled(starts, (palette.start,))


def fate_colors(palette: Palette = LIGHT) -> dict[str, str]:
    """A colour for each fate of a token, in the order of `run_files.FATES`."""
    return {
        "trained": palette.accent,
        "stale": palette.stale,
        "filtered": palette.filtered,
        "failed": palette.failed,
        "surplus": palette.surplus,
        "in_flight": palette.flight,
    }


def page_colors(colors: Mapping[str, str]) -> dict[str, str]:
    """Colours of the page palette as CSS `var(...)`, for legends."""
    return {state: as_variables(color) for state, color in colors.items()}


def _works(palette: Palette) -> tuple[str, ...]:
    return palette.work_1, palette.work_2, palette.work_3, palette.work_4


def _waits(palette: Palette) -> tuple[str, ...]:
    return palette.wait_1, palette.wait_2, palette.wait_3, palette.wait_4, palette.wait_5, palette.wait_6


def _cycled(states: Sequence[str], colors: Sequence[str]) -> dict[str, str]:
    return {state: colors[index % len(colors)] for index, state in enumerate(states)}


def as_variables(text: str) -> str:
    """A text whose colours are those of PAGE, with the page's CSS variables in their place."""
    for name, mark in zip(_NAMES, astuple(_MARKS), strict=True):
        text = text.replace(mark, f"var(--{name.replace('_', '-')})")
    return text
