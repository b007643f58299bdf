"""The few exceptions of qposterior, a sentence each.

Each one states the rule, the value received and the remedy. All of them are a `ValueError` or an `ImportError`
too, so that code which does not know this package still catches what it expects.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ContradictionError",
    "InvalidInputError",
    "MissingExtraError",
    "NoUniqueSolutionError",
    "QPosteriorError",
    "name_states",
    "unknown_name",
]


MOST_NAMES = 16
"""Names that a message lists: of more than these the first ones."""


class QPosteriorError(Exception):
    """Anything that went wrong for a reason the caller can do something about."""


class InvalidInputError(QPosteriorError, ValueError):
    """A value breaks a rule; the message names the rule, the value and the remedy."""

    exit_code = 2  # of the command line: it was used wrongly


class ContradictionError(QPosteriorError, ValueError):
    """Two observations cannot both be true under the model that was asked for."""


class NoUniqueSolutionError(QPosteriorError, ValueError):
    """The Bellman optimality equations have no unique solution (paper, ass. boeunique); `states` are the culprits."""

    def __init__(self, message: str, states: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.states = tuple(int(s) for s in states)


class MissingExtraError(QPosteriorError, ImportError):
    """An optional dependency is not installed; the message is the `pip install` to run."""

    exit_code = 2

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f'{purpose} needs an optional dependency: pip install "qposterior[{extra}]"')


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InvalidInputError:
    """Return the error for a `name` that is not among the `known` ones, with the nearest name as a suggestion."""
    known = list(known)
    close = get_close_matches(name, known, n=1, cutoff=0.4) if isinstance(name, str) else []
    listed = ", ".join(sorted(known) if len(known) <= MOST_NAMES else [*known[:MOST_NAMES], "…"])
    hint = f"did you mean {close[0]!r}?" if close else f"known are {listed}"
    return InvalidInputError(f"unknown {kind} {repr(name)[:60]}; {hint}")


def name_states(states: Iterable[int], limit: int = 8) -> str:
    """Return "state 3" or "states 1, 2, 5, … (40 in all)" for use in a message."""
    states = [int(s) for s in states]
    if len(states) == 1:
        return f"state {states[0]}"
    shown = ", ".join(map(str, states[:limit]))
    return f"states {shown}" + (f", … ({len(states)} in all)" if len(states) > limit else "")
