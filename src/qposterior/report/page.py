"""Pages: the templates that they are made of, and how numbers stand in them."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

from qposterior.extra import import_extra
from qposterior.storage import write_atomically

TEMPLATES = Path(__file__).parent / "templates"


def page_templates(folder: Path = TEMPLATES) -> Any:
    """Return the templates of a folder, and ours, by name; what is put into them is data unless they say `safe`.

    One from elsewhere may extend `base.html` and use the parts of `parts.html`. Bytes, such as pictures, are put into a
    page by the filter `base64`.
    """
    jinja2 = import_extra("jinja2")
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return pages


def write_page(path: Path, template: str | Path, **parts: Any) -> Path:
    """Write the page that a template, by its name here or its file elsewhere, makes of its parts; return the path."""
    file = TEMPLATES / template
    write_atomically(path, page_templates(file.parent).get_template(file.name).render(parts))
    return path


def dashed(value: float | None, form: str = "") -> str:
    """Return a number in this format, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:{form}}"


def shortened(label: str, most: int) -> str:
    """Return a label, which comes from a log and may be of any length, in so many characters."""
    return label if len(label) <= most else f"{label[: most - 1]}…"
