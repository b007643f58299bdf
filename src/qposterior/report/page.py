"""Pages: the templates that they are made of, and how numbers stand in them."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

from qposterior.report.extra import import_extra

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


def dashed(value: float | None, form: str = "") -> str:
    """Return a number in this format, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:{form}}"
