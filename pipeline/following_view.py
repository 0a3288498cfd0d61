"""A look at a run's folder -> a live picture of it in a terminal, drawn with rich."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from components.telemetry import formatting
from components.telemetry.clock import is_waiting
from components.telemetry.run_files import FATES
from pipeline.following import Look, State, shares

_BARS = "▁▂▃▄▅▆▇█"
_STEPS = 8  # rows of the table
_WIDTH = 48  # characters of the bars
_STYLES = {
    State.STARTING: "cyan",
    State.RUNNING: "green",
    State.SILENT: "yellow",
    State.FINISHED: "bold green",
    State.FAILED: "bold red",
    State.DEAD: "bold red",
}
_COLUMNS = {
    "step": "step",
    "reward_mean": "reward",
    "loss": "loss",
    "entropy": "entropy",
    "mismatch_kl": "mismatch KL",
    "staleness_mean": "staleness",
    "seconds": "seconds",
}


class Picture:
    """What is on the screen; `show` replaces it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, seen: Look) -> None:
        """Draw a look."""
        self._live.update(picture(seen), refresh=True)


@contextmanager
def on_screen(console: Console) -> Iterator[Picture]:
    """A picture that stays where it is while it changes, and remains when the block ends."""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        yield Picture(live)


def picture(seen: Look) -> RenderableType:
    """All of it. Names are shown as they are, and never read as rich's markup."""
    record = seen.record
    parts: list[RenderableType] = [_head(seen)]
    losses = [float(line["loss"]) for line in record.tuning if line.get("loss") is not None]
    if losses:
        parts.append(Text.assemble(("tuning     ", "dim"), sparkline(losses), f"  loss {_number(losses[-1])}"))
    rewards = [value for _, value in record.series("reward_mean")]
    if rewards:
        parts.append(Text.assemble(("reward     ", "dim"), sparkline(rewards), f"  {_number(rewards[-1])}"))
        parts.append(_steps(record.metrics))
    for role in ("trainer", "engine"):
        if found := shares(record.metrics, role):
            parts.append(_shares(role, found))
    if record.tokens:
        parts.append(_tokens(record.tokens))
    alerts = [*record.summary.get("alerts", ()), *([seen.alert] if seen.alert else [])]
    parts += [Text(f"! {alert}", style="bold yellow") for alert in alerts]
    title = Text(f"{record.summary.get('recipe', 'run')}  {seen.folder}", overflow="ellipsis", no_wrap=True)
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """A line of blocks, each the mean of its neighbours: from the lowest to the highest value."""
    count = min(width, len(values))
    groups = [values[at * len(values) // count : (at + 1) * len(values) // count] for at in range(count)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def _head(seen: Look) -> RenderableType:
    facts = [Text(str(seen.state), style=_STYLES[seen.state])]
    if seen.step or seen.tuned is None:
        facts.append(Text(f"step {seen.step}" + (f" of {seen.planned}" if seen.planned else "")))
    else:
        facts.append(Text(f"step {seen.tuned} of tuning"))
    if seen.seconds_left:
        facts.append(Text(f"about {formatting.seconds(seen.seconds_left)} left"))
    if seen.age is not None and seen.state is not State.FINISHED:
        facts.append(Text(f"last heard of {formatting.seconds(seen.age)} ago"))
    line = Text("  ").join(facts)
    if not seen.planned:
        return line
    bar = Table.grid()  # a bar alone does not end its line
    bar.add_row(ProgressBar(total=seen.planned, completed=min(seen.step, seen.planned), width=_WIDTH + 11))
    return Group(line, bar)


def _steps(metrics: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown = [key for key in _COLUMNS if any(line.get(key) is not None for line in metrics[-_STEPS:])]
    for key in shown:
        table.add_column(_COLUMNS[key], justify="right")
    for line in metrics[-_STEPS:]:
        table.add_row(*(_number(line.get(key)) for key in shown))
    return table


def _shares(role: str, found: Sequence[tuple[str, float]]) -> Text:
    text = Text.assemble((f"{role:<11}", "dim"))
    for state, share in found:
        style = "yellow" if is_waiting(state) else "cyan"
        text.append("█" * round(share * 20), style=style)
        text.append(f" {state} {_plain(formatting.percent(share))}  ", style="default")
    return text


def _tokens(tokens: Mapping[str, int | float]) -> Text:
    amounts = [f"{fate.replace('_', ' ')} {_number(tokens[fate])}" for fate in FATES if tokens.get(fate)]
    return Text.assemble(("tokens     ", "dim"), f"generated {_number(tokens.get('generated'))}: {', '.join(amounts)}")


def _number(value: Any) -> str:
    return _plain(formatting.number(value if isinstance(value, int | float) else None))


def _plain(text: str) -> str:
    return text.replace("\u202f", " ")
