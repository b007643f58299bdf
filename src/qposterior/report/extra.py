"""The extra `report`: what pages and figures are made with."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qposterior.errors import MissingExtraError


def import_extra(name: str, purpose: str = "writing the report") -> Any:
    """Return a module of the extra `report`, or raise with the `pip install` to run."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(purpose, "report") from error
