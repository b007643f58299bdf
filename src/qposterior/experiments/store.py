"""Runs of a comparison in one SQLite file: every finished run is one transaction, so a kill loses none of them.

A checksum of each run is kept with it and compared whenever the store is read.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.errors import InvalidInputError, QPosteriorError
from qposterior.experiments.explore import EPISODE_COLUMNS
from qposterior.world.arrays import BoolArray

if TYPE_CHECKING:
    import pandas as pd

STORE_FILE = "runs.sqlite"
RUN_KEY = ("agent", "environment", "depth", "seed")
RUN_COLUMNS = (
    *RUN_KEY,
    "status",  # done, failed or timeout
    "error",
    "episodes",
    "found_episode",
    "learning_time",
    "cumulative_regret",
    "posterior_updates",
    "seconds",
)
NO_DEPTH = -1
"""Stands for an environment without a depth: SQLite takes two missing values for different keys."""

TABLES = {
    "runs": (RUN_COLUMNS, RUN_KEY),
    "episodes": (EPISODE_COLUMNS, (*RUN_KEY, "episode")),
    "checksums": ((*RUN_KEY, "checksum"), RUN_KEY),
}
"""Columns and primary key."""

CHECKED = 1
"""`user_version` of a store in which every run has a checksum; runs of older ones may be without."""


class Store:
    """The tables `runs` (a row per run, with status and error), `episodes` (a row per episode) and `checksums`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STORE_FILE
        with self._reading("open"):
            self._connection = sqlite3.connect(self.path, timeout=30.0)
        try:
            with self._reading("open"), self._connection:
                self._make_tables()
        except BaseException:
            self.close()
            raise

    def _make_tables(self) -> None:
        self._connection.text_factory = lambda text: text.decode(errors="replace")  # damaged text is a value, too
        self._connection.execute("PRAGMA journal_mode=WAL")
        for name, (columns, key) in TABLES.items():
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(map(_quoted, columns))}, "
                f"PRIMARY KEY ({', '.join(key)}))"
            )
            stored = [row[1] for row in self._connection.execute(f"PRAGMA table_info({name})")]
            if stored != list(columns):
                raise InvalidInputError(f"the table {name} has other columns than were written")
        if not self._connection.execute("SELECT 1 FROM runs NOT INDEXED LIMIT 1").fetchone():
            self._connection.execute(f"PRAGMA user_version = {CHECKED}")

    def add(self, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Write one run with its episodes, whole or not at all; an earlier try of the same run is replaced."""
        run = dict.fromkeys(RUN_COLUMNS) | run | {"depth": _key_depth(run["depth"])}
        key = {name: _plain(run[name]) for name in RUN_KEY}
        where = " AND ".join(f"{name} = ?" for name in RUN_KEY)
        try:
            with self._connection:
                for name in TABLES:
                    self._connection.execute(f"DELETE FROM {name} WHERE {where}", [*key.values()])
                self._insert("runs", [run])
                self._insert("episodes", [row | key for row in rows])
                # Of what the store gives back: it has no nan, for one.
                stored = [
                    self._connection.execute(
                        f"SELECT * FROM {name} WHERE {where} ORDER BY {_order(name)}", [*key.values()]
                    ).fetchall()
                    for name in ("runs", "episodes")
                ]
                self._insert("checksums", [key | {"checksum": _checksum(*stored)}])
        except sqlite3.Error as error:
            raise QPosteriorError(f"cannot write to the store {self.path}: {error}; finished runs are kept") from error

    def _insert(self, name: str, rows: list[dict[str, Any]]) -> None:
        columns, _ = TABLES[name]
        values = [[_plain(row[column]) for column in columns] for row in rows]
        self._connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' for _ in columns)})", values)

    def finished(self) -> set[tuple[Any, ...]]:
        """Return the keys of the runs that need not be run again: done, or past their time."""
        query = f"SELECT {', '.join(RUN_KEY)} FROM runs NOT INDEXED WHERE status IN ('done', 'timeout')"
        with self._reading():
            return {tuple(row) for row in self._connection.execute(query)}

    def damaged(self) -> list[tuple[Any, ...]]:
        """Return the keys of the runs of which anything is not as it was written."""
        keys, size = ", ".join(RUN_KEY), len(RUN_KEY)
        with self._reading():
            runs = {row[:size]: row for row in self._connection.execute("SELECT * FROM runs NOT INDEXED")}
            known = {row[:size]: row[-1] for row in self._connection.execute("SELECT * FROM checksums NOT INDEXED")}
            is_checked = self._connection.execute("PRAGMA user_version").fetchone()[0] >= CHECKED
            checksums = {key: _checksum([row], []) for key, row in runs.items()}  # a run that failed has no episodes
            rows = self._connection.execute(f"SELECT {keys}, * FROM episodes NOT INDEXED ORDER BY {keys}, episode")
            for key, group in groupby(rows, key=lambda row: row[:size]):
                checksums[key] = _checksum([runs[key]] if key in runs else [], [row[size:] for row in group])
        wrong = [
            key
            for key in {*runs, *known, *checksums}
            if key not in runs or known.get(key, None if is_checked else checksums[key]) != checksums[key]
        ]
        return sorted(wrong, key=repr)

    def drop(self, keys: Collection[tuple[Any, ...]]) -> None:
        """Remove what there is of damaged runs; the row itself is looked at, for an index may be damaged as well."""
        where = " AND ".join(f"{name} IS ?" for name in RUN_KEY)
        with self._reading("mend"), self._connection:
            self._connection.execute("REINDEX")
            for name in TABLES:
                self._connection.executemany(
                    f"DELETE FROM {name} WHERE rowid IN (SELECT rowid FROM {name} NOT INDEXED WHERE {where})", keys
                )

    @contextmanager
    def _reading(self, verb: str = "read") -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a damaged file may lead to
            raise InvalidInputError(f"cannot {verb} the store {self.path}: {' '.join(str(error).split())}") from error

    def runs(self) -> pd.DataFrame:
        """Return the table of runs, in the order of their keys."""
        return self._table("runs")

    def episodes(self) -> pd.DataFrame:
        """Return the table of episodes, in the order of their keys."""
        return self._table("episodes")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _table(self, name: str) -> pd.DataFrame:
        import pandas as pd

        with self._reading():
            table = pd.read_sql_query(f"SELECT * FROM {name} NOT INDEXED ORDER BY {_order(name)}", self._connection)
            table["depth"] = table["depth"].where(table["depth"] != NO_DEPTH, None)
            for column in table.columns.intersection(["regret", "policy_regret", "cumulative_regret"]):
                table[column] = table[column].astype(float)  # nothing but NULL where the truth is not known
            return table


def run_key(run: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return what tells a run from all others in a store."""
    return run["agent"], run["environment"], _key_depth(run["depth"]), run["seed"]


def with_keys(rows: pd.DataFrame, keys: Iterable[tuple[Any, ...]]) -> BoolArray:
    """Return which rows of runs or episodes belong to the runs of these keys."""
    import pandas as pd

    keyed = rows[list(RUN_KEY)].assign(depth=rows["depth"].astype(float).fillna(NO_DEPTH).astype(int))
    return np.asarray(pd.MultiIndex.from_frame(keyed).isin(list(keys)))


def name_run(key: tuple[Any, ...]) -> str:
    """Return what a run is called in a message."""
    agent, environment, depth, seed = key
    return f"{agent} on {environment}{'' if depth == NO_DEPTH else f', depth {depth}'}, seed {seed}"


def _checksum(runs: list[Any], episodes: list[Any]) -> str:
    return hashlib.sha256(json.dumps([runs, episodes], default=repr).encode()).hexdigest()


def _key_depth(depth: float | None) -> int:
    return NO_DEPTH if depth is None or depth != depth else int(depth)


def _plain(value: Any) -> Any:
    """Return what SQLite takes for a value: numbers of NumPy are no numbers to it."""
    return value.item() if hasattr(value, "item") else value


def _order(name: str) -> str:
    return ", ".join(TABLES[name][1])


def _quoted(name: str) -> str:
    return f'"{name}"'
