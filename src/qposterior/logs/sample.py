"""Rows whose states are lists of numbers: some of them to learn bins from, and all of them with bins in their place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.checks import check_floats, check_indices
from qposterior.logs.bins import MARK, Bins
from qposterior.logs.columns import canonical_label, folded, numbered
from qposterior.logs.raw import RawRows
from qposterior.logs.relations import Relation
from qposterior.logs.scan import LARGEST
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

MOST_SAMPLED = 20_000
"""Rows from which bins are learned, and by which they are judged; all rows are summed up."""

DIGITS = 13
"""Of a digest, in base 16: as many as a float can hold."""

ARRAYS = ("digest", "x", "action", "reward", "following", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Some rows of a log, drawn evenly: those of smallest digest, so that the samples of two logs make one of both."""

    labels: list[str]  # of actions
    digest: FloatArray  # (N,)  of the number of a row and the seed
    x: FloatArray  # (N, columns)
    action: IntArray  # (N,)
    reward: FloatArray  # (N,)
    following: FloatArray  # (N, columns)  0 where an episode ended
    ended: BoolArray  # (N,)

    def part(self, rows: Any) -> Sample:
        """Return some of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ARRAYS})

    def with_rows_of(self, other: Sample) -> Sample:
        """Return the sample of the rows of both logs."""
        labels = list(dict.fromkeys([*self.labels, *other.labels]))
        code = np.array([labels.index(label) for label in other.labels], dtype=np.int64)
        new = replace(other, action=code[other.action])
        both = {name: np.concatenate([getattr(self, name), getattr(new, name)]) for name in ARRAYS}
        return replace(self, labels=labels, **both).part(np.argsort(both["digest"], kind="stable")[:MOST_SAMPLED])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"labels": self.labels} | {name: getattr(self, name).tolist() for name in ARRAYS}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], num_columns: int) -> Sample:
        """Return the sample of plain data, found to be one."""
        labels, size = list(map(str, stored["labels"])), len(stored["digest"])
        return cls(
            labels=labels,
            digest=check_floats("digest", stored["digest"], (size,)),
            x=check_floats("x", stored["x"], (size, num_columns)),
            action=check_indices("action", stored["action"], len(labels), shape=(size,)),
            reward=check_floats("reward", stored["reward"], (size,)),
            following=check_floats("following", stored["following"], (size, num_columns)),
            ended=np.array(stored["ended"], dtype=bool).reshape(size),
        )


def sample_of(connection: duckdb.DuckDBPyConnection, relation: Relation, raw: RawRows) -> Sample:
    """Return at most `MOST_SAMPLED` rows, the same on any number of threads."""
    assert raw.numeric is not None
    places = range(1, len(raw.numeric.columns) + 1)
    numbers = [f"{name}[{i}] AS {name}_{i}" for name in ("state", "following") for i in places]
    reward = f"{'-' if relation.is_cost else ''}{relation.number('reward')}"
    frame = connection.execute(
        f"""SELECT {", ".join(numbers)}, action, {reward} AS gain, next_state IS NOT NULL AS ended,
               left(md5(concat(line, ' {raw.numeric.seed}')), {DIGITS}) AS digest
        FROM {relation.table} WHERE abs(gain) <= {LARGEST} ORDER BY digest, line LIMIT {MOST_SAMPLED}""",
        relation.parameters,
    ).df()
    label_fn = folded if raw.normalise else canonical_label
    texts = [label_fn(text) for text in frame["action"].fillna("")]
    labels = numbered(sorted(set(texts)))
    return Sample(
        labels=list(labels),
        digest=np.array([int(text, 16) / 16.0**DIGITS for text in frame["digest"]]),
        x=frame[[f"state_{i}" for i in places]].to_numpy(dtype=float),
        action=np.array([labels[text] for text in texts], dtype=np.int64),
        reward=frame["gain"].to_numpy(dtype=float),
        following=frame[[f"following_{i}" for i in places]].fillna(0.0).to_numpy(dtype=float),
        ended=frame["ended"].to_numpy(dtype=bool),
    )


def binned(relation: Relation, bins: Bins) -> Relation:
    """Return the relation whose states are the finest bins of lists of numbers; a successor may have a name instead."""
    mark = f"chr({ord(MARK)}) || "
    places = {
        "state": f"({mark}({bins.sql('state')}))",
        "next_state": f"coalesce(next_state, {mark}({bins.sql('following')}))",
    }
    return replace(relation, places=relation.places | places, words=bins.words)
