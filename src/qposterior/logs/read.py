"""Reading a decision log into sums per pair: memory for the pairs, never for the rows."""

from __future__ import annotations

from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.logs.binning import learn_bins
from qposterior.logs.bins import Bins
from qposterior.logs.columns import LABELS, ColumnNames, Columns, LogError, canonical_label, folded, numbered, quoted
from qposterior.logs.query import answered
from qposterior.logs.raw import RawColumns, RawRows, as_logs
from qposterior.logs.relations import BETWEEN, AllColumns, Relation, connected, relation_of_file, relation_of_table
from qposterior.logs.sample import Sample, binned, sample_of
from qposterior.logs.scan import LONGEST_LABELS, Rows, scan
from qposterior.logs.sources import files_of, opened
from qposterior.model.noise import SAME_READING
from qposterior.world.arrays import BoolArray, FloatArray, IntArray, sum_by
from qposterior.world.moments import (
    Moments,
    Readings,
    add_readings,
    mean_by,
    merge_means,
    merge_moments,
    moments_by,
    no_moments,
    no_readings,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import duckdb

MOST_CONTEXTS = 200_000
"""Distinct (state before, pair, successor) up to which the order of the Markov chain is checked."""

MOMENTS = {
    "count": "count",
    "reward_mean": "mean",
    "reward_deviation": "second",
    "reward_third": "third",
    "reward_fourth": "fourth",
    "reward_low": "low",
    "reward_high": "high",
}
"""Which moment a sum of a log is."""


@dataclass(kw_only=True)
class Log:
    """What a log says: labels, and sums over its rows by pair, by transition and by context."""

    states: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    pairs: IntArray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))  # (P, 2) state, action
    count: FloatArray = field(default_factory=lambda: np.zeros(0))  # (P,)  rows, or the sum of their weights
    reward_mean: FloatArray = field(default_factory=lambda: np.zeros(0))
    reward_deviation: FloatArray = field(default_factory=lambda: np.zeros(0))  # Σ w (r − mean)²
    reward_third: FloatArray = field(default_factory=lambda: np.zeros(0))  # Σ w (r − mean)³, nan where not known
    reward_fourth: FloatArray = field(default_factory=lambda: np.zeros(0))  # Σ w (r − mean)⁴, nan where not known
    reward_low: FloatArray = field(default_factory=lambda: np.zeros(0))
    reward_high: FloatArray = field(default_factory=lambda: np.zeros(0))
    first_row: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (P,)  where a pair is first seen
    moves: IntArray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))  # (T, 2) pair, successor
    move_count: FloatArray = field(default_factory=lambda: np.zeros(0))  # (T,)
    move_reward: FloatArray = field(default_factory=lambda: np.zeros(0))  # (T,)  mean reward, nan where not known
    ended: dict[int, int] = field(default_factory=dict)  # state in which an episode terminated → first such row
    has_terminated: bool = False
    starts: dict[int, float] = field(default_factory=dict)  # state in which an episode began → how often
    contexts: dict[tuple[int, int, int], float] | None = field(
        default_factory=dict
    )  # (before, pair, successor) → count
    readings: dict[int, Readings] | None = None  # pair → values and weights, where they were asked for
    num_rows: int = 0
    num_episodes: int = 0
    num_gaps: int = 0  # rows that do not begin where the row before them in the same episode ended
    unread: list[str] = field(default_factory=list)  # columns of the last log that are none of ours
    notes: list[str] = field(default_factory=list)  # how the rows of the last log were made of those of its files
    bins: Bins | None = None  # the ranges of numbers that are its states, the finest of them
    sample: Sample | None = None  # rows by which bins are judged

    @property
    def is_deterministic(self) -> bool:
        """Whether every pair led to one state."""
        return bool(self.moves.shape[0] == self.pairs.shape[0])

    @property
    def has_constant_rewards(self) -> bool:
        """Whether every pair paid the same whenever it was tried."""
        scale = np.maximum(np.abs(self.reward_low), np.abs(self.reward_high))
        return bool(np.all(self.reward_high - self.reward_low <= SAME_READING * scale))

    @property
    def acting(self) -> BoolArray:
        """``(S,)`` the states in which something was decided."""
        mask = np.zeros(len(self.states), dtype=bool)
        mask[self.pairs[:, 0]] = True
        return mask


def read_log(
    source: Any,
    *,
    columns: Columns | None = None,
    keep_readings: bool = False,
    before: Log | None = None,
    raw: RawRows | None = None,
) -> Log:
    """Return the sums of a log, read in one pass.

    A pandas or Polars frame, a file (CSV with commas, semicolons or tabs; gzip; Parquet), the files of a folder or
    of a pattern such as ``logs/2024-*.csv``, in the order of their names, or ``minari:NAME``, a local Minari dataset.
    `keep_readings`: also the single rewards, at most 256 weighted ones a pair, which heavy-tailed noise needs.
    `before`: the sums of an earlier log, to which this one is added. `raw`: how rows become those of a log.
    """
    builder = LogBuilder(keep_readings=keep_readings, before=before, raw=raw or RawRows())
    builder.read(source, columns=columns)
    return builder.built(source if isinstance(source, str | Path) else "table")


def relations_of(connection: duckdb.DuckDBPyConnection, source: Any, columns: ColumnNames) -> list[Relation]:
    """Return what is scanned of a source, file by file."""
    source = opened(source)
    if isinstance(source, str | Path):
        return [relation_of_file(connection, file, columns) for file in files_of(Path(source))]
    return [relation_of_table(connection, source, columns)]


class LogBuilder:
    """Adds chunks of rows to a log, and whole logs."""

    def __init__(self, *, keep_readings: bool = False, before: Log | None = None, raw: RawRows) -> None:
        self.log = Log(readings={} if keep_readings else None) if before is None else deepcopy(before)
        self.raw = raw
        self._num_rows_before = self.log.num_rows
        self._state_code, self._action_code = numbered(self.log.states), numbered(self.log.actions)
        self._pair_code = numbered(map(tuple, self.log.pairs.tolist()))
        self._move_code = numbered(map(tuple, self.log.moves.tolist()))
        self._codes = np.empty((0, 4), dtype=np.int64)  # of each text of labels: state, successor, pair, move
        self._before = (-1, None, True, -1)  # state, episode, whether it had ended, successor of the last row
        self._spelt = {kind: {folded(label): label for label in reversed(labels)} for kind, labels in self._labels()}
        self._texts = list[str]()  # which the codes are of
        self.respelt: dict[str, str] = {}  # spelling → the one that it was taken for

    def _labels(self) -> tuple[tuple[str, list[str]], tuple[str, list[str]]]:
        return ("state", self.log.states), ("action", self.log.actions)

    def read(self, source: Any, *, columns: Columns | None = None) -> None:
        """Add the rows of a source (`read_log`)."""
        wanted = RawColumns(columns=columns or Columns(), raw=self.raw)
        names = wanted if self.raw.sql is None else AllColumns()
        name = source if isinstance(source, str | Path) else "table"
        with connected(name, may_spill=not self.raw.is_plain) as connection:
            relations = relations_of(connection, source, names)
            if self.raw.sql is not None:
                relations = [answered(connection, relations, self.raw.sql, wanted)]
            self._read_all(connection, relations)

    def join(self, other: Log) -> None:
        """Add the sums of another log: whatever was seen here first keeps its place and its spelling."""
        log = self.log
        states = np.array([self._numbered("state", label) for label in other.states], dtype=np.int64)
        actions = np.array([self._numbered("action", label) for label in other.actions], dtype=np.int64)
        pairs = np.stack([states[other.pairs[:, 0]], actions[other.pairs[:, 1]]], axis=1)
        pair = _places(self._pair_code, pairs)
        move = _places(self._move_code, np.stack([pair[other.moves[:, 0]], states[other.moves[:, 1]]], axis=1))
        log.first_row = np.concatenate([log.first_row, other.first_row[pair >= log.first_row.size]])
        moments = no_moments(len(self._pair_code))
        moments.put(pair, _moments_of(other))
        self._merge_moments(moments)
        count, reward = np.zeros(len(self._move_code)), np.full(len(self._move_code), np.nan)
        count[move], reward[move] = other.move_count, other.move_reward
        self._merge_moves(count, reward)
        log.has_terminated |= other.has_terminated
        for code, row in other.ended.items():
            log.ended.setdefault(int(states[code]), row)
        for code, number in other.starts.items():
            log.starts[int(states[code])] = log.starts.get(int(states[code]), 0.0) + number
        self._merge_contexts(
            None
            if other.contexts is None
            else {(int(states[s]), int(pair[k]), int(states[t])): n for (s, k, t), n in other.contexts.items()}
        )
        log.num_rows += other.num_rows
        log.num_gaps += other.num_gaps

    def built(self, name: object) -> Log:
        """Return the log; one without rows is refused."""
        log = self.log
        if log.num_rows == self._num_rows_before:
            raise LogError(name, "there are no rows; a log has a row per decision")
        if self.respelt:
            example = " for ".join(map(quoted, next(iter(self.respelt.items()))))
            log.notes.append(
                f"{len(self.respelt):,} labels that differ only in case or blanks from another were taken for it "
                f"(--normalise), such as {example}"
            )
        return self.labelled()

    def labelled(self) -> Log:
        """Return the log as far as it goes, with its labels, pairs and moves in place."""
        log = self.log
        log.states, log.actions = list(self._state_code), list(self._action_code)
        log.pairs = np.array(list(self._pair_code), dtype=np.int64).reshape(-1, 2)
        log.moves = np.array(list(self._move_code), dtype=np.int64).reshape(-1, 2)
        log.num_episodes = round(sum(log.starts.values()))
        return log

    def _read_all(self, connection: duckdb.DuckDBPyConnection, files: Sequence[Relation]) -> None:
        relations, self.log.notes = as_logs(connection, files, self.raw)
        self.log.unread = relations[0].unread
        if self.raw.numeric is not None:
            relations = self._in_bins(connection, relations)
        for relation in relations:
            with closing(scan(connection, relation)) as scanned:
                for rows in scanned:
                    self._add(rows, relation)
            self._before = (-1, None, True, -1)  # nothing in one file follows what stands in another

    def _in_bins(self, connection: duckdb.DuckDBPyConnection, relations: Sequence[Relation]) -> list[Relation]:
        """Return the relations with bins for states, learned from a sample of all rows unless they are known."""
        log, numeric = self.log, self.raw.numeric
        assert numeric is not None
        sample = sample_of(connection, replace(relations[0], table="raw"), self.raw)
        if log.states and (log.bins is None or log.bins.columns != numeric.columns):
            raise LogError(relations[0].name, "the earlier log has other states than bins of these columns")
        log.bins = log.bins or learn_bins(sample, numeric)
        log.sample = sample if log.sample is None else log.sample.with_rows_of(sample)
        return [binned(relation, log.bins) for relation in relations]

    def _add(self, rows: Rows, relation: Relation) -> None:
        if rows.labels is not self._texts:  # each relation numbers its texts anew
            self._texts, self._codes = rows.labels, self._codes[:0]
        codes = []
        for code in range(len(self._codes), int(rows.code.max()) + 1):  # labels are numbered in the order of the file
            try:
                codes.append(self._code(rows.labels[code], relation.words))
            except InvalidInputError as error:
                raise relation.error(str(error), int(rows.line[np.argmax(rows.code == code)])) from None
        self._codes = np.concatenate([self._codes, np.array(codes, dtype=np.int64).reshape(-1, 4)])
        state, following, pair, move = (self._codes[:, j][rows.code] for j in range(4))
        self._add_rewards(pair, rows)
        self._add_moves(move, rows)
        if rows.ended is not None:
            self.log.has_terminated = True
            at = np.flatnonzero(rows.ended)
            for code, first in zip(*np.unique(following[at], return_index=True), strict=True):
                self.log.ended.setdefault(int(code), int(rows.line[at[first]]))
        came_from, begins = self._episodes(state, following, rows)
        self._count_contexts(np.stack([came_from, pair, following], axis=1)[~begins], rows.weight[~begins])
        self.log.num_rows += rows.code.size

    def _code(self, labels: str, words: dict[str, str]) -> tuple[int, int, int, int]:
        """Return the codes of a row's labels, new ones numbered in the order of the file.

        `words` are the labels of states that are given as something else.
        """
        if len(labels) > LONGEST_LABELS:
            raise InvalidInputError(f"the labels have more than {LONGEST_LABELS} characters; give short names")
        cells = labels.split(BETWEEN)
        if len(cells) != len(LABELS):
            raise InvalidInputError("a label has a control character; give it a printable name")
        label_of = {name: words.get(cell) or canonical_label(cell) for name, cell in zip(LABELS, cells, strict=True)}
        for name, label in label_of.items():
            if not label.isprintable() or not label:
                what = f"has a control character: {quoted(label)}" if label else "is empty"
                hint = "" if label else ", or leave such rows out with --missing drop"
                raise InvalidInputError(f"{name} {what}; give every {name} a printable name{hint}")
        state = self._numbered("state", label_of["state"], words.values())
        action = self._numbered("action", label_of["action"])
        following = self._numbered("state", label_of["next_state"], words.values())
        pair = self._pair_code.setdefault((state, action), len(self._pair_code))
        return state, following, pair, self._move_code.setdefault((pair, following), len(self._move_code))

    def _numbered(self, kind: str, label: str, words: Collection[str] = ()) -> int:
        """Return the code of a label, as it was spelt first where slips are taken for one; our own words stay."""
        if self.raw.normalise and label not in words:
            first = self._spelt[kind].setdefault(folded(label), label)
            if first != label:
                self.respelt[label] = first
            label = first
        codes = self._state_code if kind == "state" else self._action_code
        return codes.setdefault(label, len(codes))

    def _add_rewards(self, pair: IntArray, rows: Rows) -> None:
        """Merge the moments of a chunk, and keep its readings where they were asked for."""
        log, size = self.log, len(self._pair_code)
        old = log.count.size
        log.first_row = np.concatenate([log.first_row, rows.line[_first_places(pair, size)[old:]]])
        if log.readings is not None:
            order = np.argsort(pair, kind="stable")
            present, start = np.unique(pair[order], return_index=True)
            for k, places in zip(present.tolist(), np.split(order, start[1:]), strict=True):
                new = _thinned(rows.reward[places], rows.weight[places])
                log.readings[k] = add_readings(log.readings.get(k, no_readings()), new)
        self._merge_moments(moments_by(pair, rows.reward, rows.weight, size))

    def _merge_moments(self, new: Moments) -> None:
        """Merge moments of all pairs that have a code by now."""
        known = no_moments(new.count.size)
        known.put(slice(self.log.count.size), _moments_of(self.log))
        both = merge_moments(known, new)
        for ours, theirs in MOMENTS.items():
            setattr(self.log, ours, getattr(both, theirs))

    def _add_moves(self, move: IntArray, rows: Rows) -> None:
        size = len(self._move_code)
        self._merge_moves(sum_by(move, rows.weight, size), mean_by(move, rows.reward, rows.weight, size))

    def _merge_moves(self, count: FloatArray, reward: FloatArray) -> None:
        """Merge how often each move was made, and the mean reward of it."""
        log, size = self.log, count.size
        known, mean = (np.pad(values, (0, size - values.size)) for values in (log.move_count, log.move_reward))
        log.move_reward = merge_means(known, mean, count, reward)
        log.move_count = known + count

    def _episodes(self, state: IntArray, following: IntArray, rows: Rows) -> tuple[IntArray, BoolArray]:
        """Count where episodes begin; return the state before each row, and whether an episode begins with it."""
        last_state, last_episode, last_ended, last_following = self._before
        episode, ended = rows.episode, rows.ended
        continues = np.concatenate([[last_following], following[:-1]]) == state
        goes_on = np.ones(state.size, dtype=bool)
        if episode is not None:
            same = last_episode == episode[0] and last_state >= 0
            goes_on &= np.concatenate([[same], episode[1:] == episode[:-1]])
        if ended is not None:
            goes_on &= ~np.concatenate([[last_ended], ended[:-1]])
        if episode is not None and rows.begins is None:
            self.log.num_gaps += int(np.sum(goes_on & ~continues))
        continues &= goes_on
        begun = np.bincount(state[~continues if rows.begins is None else rows.begins])
        for code in np.flatnonzero(begun).tolist():
            self.log.starts[code] = self.log.starts.get(code, 0.0) + float(begun[code])
        self._before = (
            int(state[-1]),
            None if episode is None else episode[-1],
            ended is not None and bool(ended[-1]),
            int(following[-1]),
        )
        return np.concatenate([[last_state], state[:-1]]), ~continues

    def _count_contexts(self, rows: IntArray, weight: FloatArray) -> None:
        """Count how often each transition was made after each state: rows of state before, pair and successor."""
        if self.log.contexts is None or not weight.size:
            return
        key = (rows[:, 0] * (len(self._pair_code) + 1) + rows[:, 1]) * (len(self._state_code) + 1) + rows[:, 2]
        local, keys = _factorize(key)
        distinct = map(tuple, rows[_first_places(local, keys.size)].tolist())
        self._merge_contexts(dict(zip(distinct, np.bincount(local, weight).tolist(), strict=True)))

    def _merge_contexts(self, new: dict[tuple[int, int, int], float] | None) -> None:
        """Merge counts of contexts, which are given up where there are too many."""
        contexts = self.log.contexts
        if contexts is None or new is None:
            self.log.contexts = None
            return
        for where, total in new.items():
            contexts[where] = contexts.get(where, 0.0) + total
        if len(contexts) > MOST_CONTEXTS:
            self.log.contexts = None


def _moments_of(log: Log) -> Moments:
    return Moments(**{theirs: getattr(log, ours) for ours, theirs in MOMENTS.items()})


def _places(codes: dict[Any, int], rows: IntArray) -> IntArray:
    """Return the codes of rows; new ones are numbered on."""
    return np.array([codes.setdefault(row, len(codes)) for row in map(tuple, rows.tolist())], dtype=np.int64)


def _factorize(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Return codes and distinct keys in the order in which they first appear; nothing long is sorted."""
    import pandas as pd

    codes, distinct = pd.factorize(keys)
    return np.asarray(codes), np.asarray(distinct)


def _first_places(codes: IntArray, size: int) -> IntArray:
    """Return ``(size,)`` where each code first stands; −1 where it does not."""
    first = np.full(size, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(codes.size)[::-1]  # the last one written is the first
    return first


def _thinned(values: FloatArray, weights: FloatArray) -> Readings:
    """Return at most 512 weighted values: neighbours of a longer list are joined at their mean."""
    if values.size <= 512:
        return values, weights
    order = np.argsort(values)
    group = np.arange(values.size) * 512 // values.size
    total = np.bincount(group, weights[order])
    kept = total > 0.0
    return np.bincount(group, (values * weights)[order])[kept] / total[kept], total[kept].astype(float)
