"""A policy of the user's own: a CSV or Parquet file with the columns state, action and, optionally, probability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qposterior.errors import unknown_name
from qposterior.logs.choices import UNKNOWN_ACTION
from qposterior.logs.columns import LogError, canonical_label, check_that_columns_differ, numbered, quoted
from qposterior.logs.relations import Relation, connected, relation_of_file
from qposterior.logs.scan import LONGEST_LABELS
from qposterior.world.arrays import FloatArray, sum_by
from qposterior.world.space import StateActionSpace

if TYPE_CHECKING:
    import duckdb

LABELS = ("state", "action")
CHUNK = 10_000
SUM_TOLERANCE = 0.002
"""By which the probabilities of a state may miss 1: three times 0.333 is meant to be 1. They are normalised."""

MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class PolicyColumns:
    """The columns of a policy."""

    @property
    def required(self) -> set[str]:
        """Those that every policy has."""
        return set(LABELS)

    def present(self, path: object, header: list[str]) -> dict[str, str]:
        """Return the columns that are there under their own names, or say which is missing."""
        check_that_columns_differ(path, header)
        for name in LABELS:
            if name not in header:
                known = ", ".join(quoted(column) for column in header[:12])
                raise LogError(
                    path, f"there is no column {name!r} (columns are {known}); a policy has state and action", 1
                )
        return {name: name for name in (*LABELS, "probability") if name in header}


def read_policy(path: str | Path, states: Sequence[str], actions: Sequence[str], space: StateActionSpace) -> FloatArray:
    """Return the ``(K,)`` probabilities of a policy file, its labels matched to those of the log.

    Without a column `probability` every state has one row, the action that is taken there. With it, actions that are
    not listed are not taken. Every state in which something is decided must be there; nothing is assumed of the others.
    """
    path = Path(path)
    with connected(path) as connection:
        relation = relation_of_file(connection, path, PolicyColumns())
        policy = _Policy(path, states, actions, space=space)
        for row in _rows(connection, relation):
            policy.add(row)
    return policy.normalised(has_column="probability" in relation.names)


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    state: str
    action: str
    probability: float

    def __str__(self) -> str:
        return f"state {quoted(self.state)}, action {quoted(self.action)}"


def _rows(connection: duckdb.DuckDBPyConnection, relation: Relation) -> Iterator[_Row]:
    """Yield the rows in the order of the file, cells checked; a file need not fit into memory."""
    labels = ", ".join(f"left(coalesce({relation.label(name)}, ''), {LONGEST_LABELS + 1})" for name in LABELS)
    chance = ("1.0", "''")
    if "probability" in relation.names:
        chance = (relation.number("probability"), f"left({relation.label('probability')}, 50)")
    query = f"SELECT {labels}, {', '.join(chance)}, {relation.is_ragged} FROM {relation.table}"
    result, number = connection.execute(query, relation.parameters), relation.first_row
    while cells := result.fetchmany(CHUNK):
        for state, action, probability, text, is_ragged in cells:
            if is_ragged:
                most = len(relation.header)
                raise LogError(relation.name, f"must have {most} cells like the header; correct the row", number)
            if probability is None or not 0.0 <= probability <= 1.0:
                rule = "probability must be a number from 0 to 1"
                raise LogError(relation.name, f"{rule}, got {quoted(text or '')}", number)
            yield _Row(number, canonical_label(state), canonical_label(action), float(probability))
            number += 1
    if relation.text is not None:
        relation.text.check_number_of_rows(number - relation.first_row)


class _Policy:
    """Probabilities of the pairs of a space under the labels of a log, row by row."""

    def __init__(self, path: Path, states: Sequence[str], actions: Sequence[str], *, space: StateActionSpace) -> None:
        self.path, self.states, self.actions, self.space = path, states, actions, space
        self._codes = {"state": numbered(states), "action": numbered(actions)}
        self._probability = np.full(space.num_pairs, np.nan)

    def add(self, row: _Row) -> None:
        """Take in a row."""
        k = self._pair(row)
        if not np.isnan(self._probability[k]):
            raise self._error(f"{row} stands there twice; delete one of the rows", row.number)
        self._probability[k] = row.probability

    def normalised(self, *, has_column: bool) -> FloatArray:
        """Return probabilities that sum to 1 in every state, or name one where they do not, or that is missing."""
        space, policy = self.space, self._probability
        if UNKNOWN_ACTION in self.actions:  # of states in which nothing was ever tried: no file could name it
            policy[space.pair_action == self._codes["action"][UNKNOWN_ACTION]] = 1.0
        self._check_that_no_state_is_missing()
        policy = np.nan_to_num(policy)
        total = sum_by(space.pair_state, policy, space.num_states)
        wrong = np.flatnonzero(~space.is_goal & ~(np.abs(total - 1.0) <= SUM_TOLERANCE))
        if wrong.size:
            label, rule = quoted(self.states[wrong[0]]), "the probabilities of a state must sum to 1"
            if not has_column:
                raise self._error(
                    f"state {label} has {total[wrong[0]]:g} actions; keep one, or add a column probability"
                )
            raise self._error(f"{rule}, those of state {label} sum to {total[wrong[0]]:.6g}; correct them")
        return np.asarray(policy / total[space.pair_state])

    def _error(self, message: str, row: int | None = None) -> LogError:
        return LogError(self.path, message, row)

    def _pair(self, row: _Row) -> int:
        """Return the flat index of a row's pair, or say why there is none."""
        for kind, label in (("state", row.state), ("action", row.action)):
            if label not in self._codes[kind]:
                unknown = unknown_name(kind, label, self._codes[kind])
                raise self._error(f"{unknown} (labels are those of the log)", row.number)
        state, space = self._codes["state"][row.state], self.space
        if space.is_goal[state]:
            rule = f"state {quoted(row.state)} is a goal, where nothing is decided; delete the row"
            raise self._error(rule, row.number)
        k = int(space.pair_index[state, self._codes["action"][row.action]])
        if k < 0:
            tried = ", ".join(quoted(self.actions[a]) for a in space.actions(state)[:MOST_NAMED])
            raise self._error(
                f"{row}: that action was never tried there, so nothing is known of it; tried are {tried} "
                "(or allow all actions everywhere with --actions all)",
                row.number,
            )
        return k

    def _check_that_no_state_is_missing(self) -> None:
        listed = np.zeros(self.space.num_states, dtype=bool)
        listed[self.space.pair_state[~np.isnan(self._probability)]] = True
        missing = np.flatnonzero(~listed & ~self.space.is_goal)
        if missing.size:
            names = ", ".join(quoted(self.states[s]) for s in missing[:MOST_NAMED])
            more = f", … ({missing.size} in all)" if missing.size > MOST_NAMED else ""
            raise self._error(
                f"a policy says what to do in every state; add a row for each of those that are missing: {names}{more}"
            )
