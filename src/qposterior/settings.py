"""Settings that say what they may be: one place for default, rule and help, in Python and on the command line.

A field of a dataclass that is made by `setting` carries a `Rule`. `check_settings` holds the values of an instance to
their rules, and `cli/options.py` makes options of the same rules. Nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a setting may be, and how it is told to a user."""

    help: str | None = None
    called: str | None = None  # in an error, unless it is the name of the field
    choices: tuple[str, ...] = ()
    least: int | None = None  # of a whole number
    interval: str | None = None  # of a number, as in "(0, 1]"
    flag: str | None = None  # of the command line, unless it is that of the name
    metavar: str | None = None

    def check(self, name: str, value: Any) -> None:
        """Raise unless the value is what the rule says."""
        from qposterior.checks import check_choice, check_count, check_number

        called = self.called or name
        if self.choices:
            check_choice(called, value, self.choices)
        if self.least is not None:
            check_count(called, value, self.least)
        if self.interval is not None:
            check_number(called, value, self.interval)


def setting(default: Any, help: str | None = None, **rule: Any) -> Any:
    """Return a field with this default (what can be called makes it anew each time) and a `Rule` of the others."""
    metadata = {"rule": Rule(help=help, **rule)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_settings(settings: Any) -> None:
    """Raise unless every setting is what its rule says; None is right where it is the default."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        if "rule" in item.metadata and not (value is None and item.default is None):
            item.metadata["rule"].check(item.name, value)
