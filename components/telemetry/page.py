"""Values for a template -> one HTML page that holds everything it shows.

No network, so that it opens from a disk, on a phone and in the sandboxed frame of a pipeline's user interface. What a
model or an environment wrote is escaped, and beside the page's own script, known by its hash, the browser runs none.
"""

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from components.telemetry.palette import DARK, LIGHT, css_variables

_TEMPLATES = Path(__file__).parent / "templates"


def render_page(template: str, *, script: str | None = None, **values: Any) -> str:
    """The page that `template` makes of `values`, in light and dark colours; it extends `page.html`.

    `script` is a file beside the templates that the page holds and may run.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    code = (_TEMPLATES / script).read_text(encoding="utf-8") if script else ""
    return environment.get_template(template).render(
        palettes={name: Markup(css_variables(palette)) for name, palette in (("light", LIGHT), ("dark", DARK))},
        script=Markup(code),
        script_hash=Markup(base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() if code else ""),
        **values,
    )
