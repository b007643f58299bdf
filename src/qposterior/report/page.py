"""Pages: the templates that they are made of, and how numbers stand in them."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

from qposterior.report.extra import import_extra
from qposterior.storage import write_atomically

TEMPLATES = Path(__file__).parent / "templates"
HEAD = (TEMPLATES / "head.html").read_text(encoding="utf-8")
"""How a page begins, with the look that all share, up to the end of its style."""


def page_templates() -> Any:
    """Return the templates of pages, by name; what is put into them is data, never markup, unless they say `safe`.

    A template from elsewhere may extend `base.html` and use the parts of `parts.html`. Bytes, such as pictures, are
    put into a page by the filter `base64`.
    """
    jinja2 = import_extra("jinja2")
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return pages


def write_page(path: Path, template: str, **parts: Any) -> Path:
    """Write the page that a template makes of its parts, and return its path."""
    write_atomically(path, page_templates().get_template(template).render(parts))
    return path


def dashed(value: float | None, form: str = "") -> str:
    """Return a number in this format, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:{form}}"


def shortened(label: str, most: int) -> str:
    """Return a label, which comes from a log and may be of any length, in so many characters."""
    return label if len(label) <= most else f"{label[: most - 1]}…"
