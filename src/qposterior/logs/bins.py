"""Bins: ranges of numbers that stand for the states of a log, as a tree of splits whose first ones matter most.

The tree with the first K − 1 splits has K bins, so that coarser bins are joined from finer ones, and so are their sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from qposterior.errors import InvalidInputError, unknown_name
from qposterior.logs.columns import quoted
from qposterior.world.arrays import FloatArray, IntArray

MARK = "\x1e"
"""Stands before the number of a bin where rows are read: no label may have it."""

LONGEST_NAME = 40
"""Characters of the name of a column in the label of a bin."""

MOST_BINS, MOST_COLUMNS = 4096, 64
"""Of bins that are read from a file."""


@dataclass(frozen=True, slots=True)
class Split:
    """The bin that is split, by which column, and where: up to the threshold, or above it."""

    node: int
    column: int
    threshold: float


@dataclass(frozen=True, kw_only=True)
class Bins:
    """Split j makes the nodes 2j + 1 (at most the threshold) and 2j + 2 (above it) of a node that was there before."""

    columns: tuple[str, ...]
    splits: tuple[Split, ...]
    coarser: int  # numbers of bins: of those that are compared with the ones that are shown
    shown: int
    low: tuple[float, ...] = ()  # between which nearly all numbers of a column lie
    high: tuple[float, ...] = ()

    @property
    def finer(self) -> int:
        """The number of the finest bins, in which rows are summed up."""
        return len(self.splits) + 1

    def nodes(self, number: int) -> list[int]:
        """Return the nodes that are the bins of the tree with so many of them, in the order of the numbers."""
        at = {split.node: j for j, split in enumerate(self.splits[: number - 1])}

        def below(node: int) -> list[int]:
            j = at.get(node)
            return [node] if j is None else [*below(2 * j + 1), *below(2 * j + 2)]

        return below(0)

    def above(self, node: int, number: int) -> int:
        """Return the bin among so many in which a node lies."""
        while node > 2 * (number - 1):
            node = self.splits[(node - 1) // 2].node
        return node

    def find(self, x: FloatArray, number: int | None = None) -> IntArray:
        """Return ``(N,)`` the bins, as nodes, of ``(N, columns)`` numbers."""
        node = np.zeros(len(x), dtype=np.int64)
        for j, split in enumerate(self.splits[: (number or self.finer) - 1]):
            at = np.flatnonzero(node == split.node)
            node[at] = np.where(x[at, split.column] <= split.threshold, 2 * j + 1, 2 * j + 2)
        return node

    def sql(self, numbers: str) -> str:
        """Return the expression for the finest bin of a list of numbers; names of columns are no part of it."""
        at = {split.node: j for j, split in enumerate(self.splits)}

        def below(node: int) -> str:
            if node not in at:
                return str(node)
            split, j = self.splits[at[node]], at[node]
            is_left = f"{numbers}[{split.column + 1}] <= '{split.threshold!r}'::DOUBLE"
            return f"CASE WHEN {is_left} THEN {below(2 * j + 1)} ELSE {below(2 * j + 2)} END"

        return below(0)

    def ranges(self, node: int) -> dict[int, tuple[float, float]]:
        """Return {column: (above, at most)} of a bin; what is not bounded is infinite."""
        found: dict[int, tuple[float, float]] = {}
        while node:
            j = (node - 1) // 2
            split = self.splits[j]
            low, high = found.get(split.column, (-math.inf, math.inf))
            if node == 2 * j + 1:
                found[split.column] = low, min(high, split.threshold)
            else:
                found[split.column] = max(low, split.threshold), high
            node = split.node
        return dict(sorted(found.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns as they are printed."""
        return _short(self.columns)

    def label(self, node: int) -> str:
        """Return the ranges of a bin as they are read: ``temperature ≤ 71.5, 0.2 < load ≤ 0.4``."""
        names, parts = self.names, []
        for column, (low, high) in self.ranges(node).items():
            name = names[column]
            if low == -math.inf:
                parts.append(f"{name} ≤ {number_text(high)}")
            elif high == math.inf:
                parts.append(f"{name} > {number_text(low)}")
            else:
                parts.append(f"{number_text(low)} < {name} ≤ {number_text(high)}")
        return ", ".join(parts) or "any " + " and ".join(names)

    def labels(self, number: int) -> list[str]:
        """Return the labels of so many bins, in the order of `nodes`."""
        return [self.label(node) for node in self.nodes(number)]

    @property
    def words(self) -> dict[str, str]:
        """What stands in a row → the label of its finest bin."""
        return {f"{MARK}{node}": self.label(node) for node in self.nodes(self.finer)}

    def joined(self, number: int) -> dict[str, str]:
        """Return {label of a finest bin: label of the bin among so many in which it lies}."""
        return {self.label(node): self.label(self.above(node, number)) for node in self.nodes(self.finer)}

    def label_of(self, numbers: Mapping[str, Any]) -> str:
        """Return the label of the shown bin in which a state lies, given as {column: number}."""
        for name in numbers:
            if name not in self.columns:
                raise unknown_name("column of the state", name, self.columns)
        missing = [name for name in self.columns if name not in numbers]
        if missing:
            raise InvalidInputError(f"a state has a number for each of its columns; {quoted(missing[0])} is missing")
        x = np.array([[_number(name, numbers[name]) for name in self.columns]])
        return self.label(int(self.find(x, self.shown)[0]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        ranges = [
            {
                "label": self.label(node),
                "ranges": {
                    self.columns[c]: [None if math.isinf(end) else end for end in ends]
                    for c, ends in self.ranges(node).items()
                },
            }
            for node in self.nodes(self.shown)
        ]
        return {
            "columns": list(self.columns),
            "bins": ranges,
            "splits": [asdict(split) for split in self.splits],
            "coarser": self.coarser,
            "shown": self.shown,
            "finer": self.finer,
            "low": list(self.low),
            "high": list(self.high),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Bins:
        """Return the bins of plain data, found to be a tree."""
        columns = tuple(map(str, stored["columns"]))
        splits = tuple(Split(int(s["node"]), int(s["column"]), float(s["threshold"])) for s in stored["splits"])
        bins = cls(
            columns=columns,
            splits=splits,
            coarser=int(stored["coarser"]),
            shown=int(stored["shown"]),
            low=tuple(map(float, stored["low"])),
            high=tuple(map(float, stored["high"])),
        )
        leaves = {0}
        for j, split in enumerate(splits):
            if split.node not in leaves or not 0 <= split.column < len(columns) or not math.isfinite(split.threshold):
                raise InvalidInputError("its bins are no tree")
            leaves = leaves - {split.node} | {2 * j + 1, 2 * j + 2}
        if not 1 <= bins.coarser <= bins.shown <= bins.finer <= MOST_BINS or len(columns) > MOST_COLUMNS:
            raise InvalidInputError("its bins are not as many as it says")
        if len(set(bins.labels(bins.finer))) != bins.finer or {len(bins.low), len(bins.high)} != {len(columns)}:
            raise InvalidInputError("its bins are damaged")
        return bins


@lru_cache(maxsize=16)
def _short(columns: Sequence[str]) -> tuple[str, ...]:
    """Return names that can be printed, cut where they are long and still differ."""
    plain = ["".join(c if c.isprintable() else repr(c)[1:-1] for c in name) for name in columns]
    short = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in plain]
    return tuple(short if len(set(short)) == len(set(columns)) else plain)


def number_text(number: float) -> str:
    """Return the shortest text that is this number and no other."""
    return repr(number).removesuffix(".0")


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInputError(f"{quoted(name)} of a state must be a finite number, got {quoted(str(value))}")
    return number


def parse_state(text: str) -> dict[str, str]:
    """Return {column: number as text} of ``temperature=80,load=0.4``; names may contain ``=`` but no comma."""
    return {name.strip(): number.strip() for name, _, number in (part.rpartition("=") for part in text.split(","))}
