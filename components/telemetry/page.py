"""Values for a template -> one HTML page that holds everything it shows.

No network and no scripts, so that it opens from a disk, on a phone and in the sandboxed frame of a pipeline's user
interface. Whatever a model or an environment wrote is escaped.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from components.telemetry import plots

_TEMPLATES = Path(__file__).parent / "templates"


def render_page(template: str, **values: Any) -> str:
    """The page that `template` makes of `values`, in light and dark colours; it extends `page.html`."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    palettes = {"light": plots.css_variables(plots.LIGHT), "dark": plots.css_variables(plots.DARK)}
    return environment.get_template(template).render(
        palettes={name: Markup(text) for name, text in palettes.items()}, **values
    )
