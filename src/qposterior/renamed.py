"""Attributes that have a new name: under the old one they are found for one release more, with a warning."""

from __future__ import annotations

import warnings
from typing import Any


def renamed(old: str, new: str) -> property:
    """Return the property that stands for an attribute under its old name."""

    def read(self: Any) -> Any:
        warnings.warn(
            f"{type(self).__name__}.{old} is called {new} now, and the old name goes with version 0.3; write .{new}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(self, new)

    return property(read)
