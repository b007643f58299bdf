"""What only some need: modules of the optional extras, loaded when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qposterior.errors import MissingExtraError


def import_extra(name: str, purpose: str = "writing the report", *, extra: str = "report") -> Any:
    """Return a module of an extra, or raise with the `pip install` to run."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(purpose, extra) from error
