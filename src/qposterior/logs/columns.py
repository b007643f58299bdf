"""The columns and labels of a decision log; what is wrong with it is said in one line: file, row, remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from qposterior.errors import InvalidInputError

REQUIRED = ("state", "action", "reward", "next_state")
OPTIONAL = ("terminated", "episode", "weight")
LABELS = ("state", "action", "next_state")
Label = TypeVar("Label", bound=Hashable)
WHOLE_NUMBER = re.compile(r"(0|-?[1-9][0-9]*)\.0+")


class LogError(InvalidInputError):
    """A log cannot be read; the message names the file, the row where there is one, and the remedy."""

    def __init__(self, path: object, message: str, row: int | None = None) -> None:
        where = f"{path}" if row is None else f"{path}, row {row}"
        super().__init__(_one_line(f"{where}: {message}"))
        self._given = path, message, row

    def __reduce__(self) -> tuple[type[LogError], tuple[object, str, int | None]]:
        return LogError, self._given  # so that it comes back whole from another process


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def quoted(text: str, most: int = 40) -> str:
    """Return what a user wrote in quotes, cut where it is long."""
    return repr(text if len(text) <= most else text[: most - 1] + "…")


def canonical_label(text: str) -> str:
    """Return a label without blanks around it; `1.0` is the whole number `1`, while `01` and `1.5` stay themselves."""
    label = text.strip(" \t")
    number = WHOLE_NUMBER.fullmatch(label)
    return number[1] if number else label


def folded(label: str) -> str:
    """Return what labels have in common that differ only in case or blanks."""
    return "".join(label.split()).casefold()


def numbered(labels: Iterable[Label]) -> dict[Label, int]:
    """Return the place of each label."""
    return {label: i for i, label in enumerate(labels)}


class ColumnNames(Protocol):
    """The columns that some kind of table has, and what they are called in the file."""

    @property
    def required(self) -> set[str]:
        """The names in the file of the columns without which nothing can be read."""
        ...

    def present(self, path: object, header: list[str]) -> dict[str, str]:
        """Return {our name: name in the file} of the columns that are there, or say what is wrong with them."""
        ...


def check_that_columns_differ(path: object, header: list[str]) -> None:
    """Raise where two columns have the same name."""
    doubled = sorted(name for name, times in Counter(header).items() if times > 1)
    if doubled:
        raise LogError(path, f"the header has the column {quoted(doubled[0])} twice; rename one of them", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the columns are called in the file."""

    state: str = "state"
    action: str = "action"
    reward: str = "reward"
    next_state: str = "next_state"
    terminated: str = "terminated"
    episode: str = "episode"
    weight: str = "weight"

    def __post_init__(self) -> None:
        for ours in (*REQUIRED, *OPTIONAL):
            if not isinstance(getattr(self, ours), str) or not getattr(self, ours):
                raise InvalidInputError(f"the name of the column {ours} must be text, got {getattr(self, ours)!r}")

    @property
    def required(self) -> set[str]:
        """The names in the file of the columns that every log has."""
        return {getattr(self, name) for name in REQUIRED}

    def present(self, path: object, header: list[str], *, built: Collection[str] = ()) -> dict[str, str]:
        """Return {our name: name in the file} of the columns that are there, or say what is wrong with them.

        Those that are `built` from other columns need not be there, and are not read.
        """
        asked = {name: getattr(self, name) for name in REQUIRED if name not in built}
        asked |= {name: getattr(self, name) for name in OPTIONAL if getattr(self, name) != name}
        for name, theirs in asked.items():
            other = next(ours for ours in asked if asked[ours] == theirs)
            if other != name:
                raise LogError(
                    path,
                    f"{other} and {name} are both read from the column {quoted(theirs)}; "
                    f"name another with --column {name}=NAME",
                )
        check_that_columns_differ(path, header)
        for name, theirs in asked.items():
            if theirs not in header:
                raise missing_column(
                    path, header, theirs, f"name yours with --column {name}=NAME" + HINTS.get(name, "")
                )
        # A name that was given to another of our columns is no longer the default of an optional one.
        free = {name: name for name in OPTIONAL if name not in asked and name not in asked.values()}
        return {name: theirs for name, theirs in (asked | free).items() if theirs in header}


HINTS = {
    "reward": "; larger rewards are better (--cost if they are costs)",
    "next_state": ", or build it from ordered rows with --next-from ID,ORDER",
}
"""What else helps where a column is missing."""


def missing_column(path: object, header: list[str], name: str, remedy: str) -> LogError:
    """Return the error that there is no such column, with those that there are."""
    known = ", ".join(column if len(column) <= 40 else column[:39] + "…" for column in header[:12])
    return LogError(path, f"there is no column {quoted(name)} (columns are {known}); {remedy}", 1)
