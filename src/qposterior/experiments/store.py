"""Runs of a comparison in one SQLite file: every finished run is one transaction, so a kill loses none of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.errors import InvalidInputError, QPosteriorError
from qposterior.experiments.explore import EPISODE_COLUMNS
from qposterior.world.arrays import BoolArray

if TYPE_CHECKING:
    import pandas as pd

STORE_FILE = "runs.sqlite"
LOCK_FILE = "lock"
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


class Store:
    """The tables `runs` (a row per run, with status and error) and `episodes` (a row per episode)."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STORE_FILE
        try:
            self._connection = sqlite3.connect(self.path, timeout=30.0)
            self._connection.execute("PRAGMA journal_mode=WAL")
            keys = ", ".join(RUN_KEY)
            with self._connection:
                self._connection.execute(
                    f"CREATE TABLE IF NOT EXISTS runs ({', '.join(RUN_COLUMNS)}, PRIMARY KEY ({keys}))"
                )
                self._connection.execute(
                    f"CREATE TABLE IF NOT EXISTS episodes ({', '.join(map(_quoted, EPISODE_COLUMNS))}, "
                    f"PRIMARY KEY ({keys}, episode))"
                )
        except sqlite3.Error as error:
            raise QPosteriorError(f"cannot open the store {self.path}: {error}") from error

    def add(self, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Write one run with its episodes, whole or not at all; an earlier try of the same run is replaced."""
        run = run | {"depth": _key_depth(run["depth"])}
        key = [_plain(run[name]) for name in RUN_KEY]
        where = " AND ".join(f"{name} = ?" for name in RUN_KEY)
        try:
            with self._connection:
                self._connection.execute(f"DELETE FROM episodes WHERE {where}", key)
                self._connection.execute(f"INSERT OR REPLACE INTO runs VALUES ({_marks(RUN_COLUMNS)})", _values(run))
                self._connection.executemany(
                    f"INSERT INTO episodes VALUES ({_marks(EPISODE_COLUMNS)})",
                    [[_plain(row[name]) for name in EPISODE_COLUMNS] for row in _with_key(rows, run)],
                )
        except sqlite3.Error as error:
            raise QPosteriorError(f"cannot write to the store {self.path}: {error}; finished runs are kept") from error

    def finished(self) -> set[tuple[Any, ...]]:
        """Return the keys of the runs that need not be run again: done, or past their time."""
        query = f"SELECT {', '.join(RUN_KEY)} FROM runs WHERE status IN ('done', 'timeout')"
        with self._reading():
            return {tuple(row) for row in self._connection.execute(query)}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        import pandas as pd

        try:
            yield
        except (sqlite3.Error, pd.errors.DatabaseError) as error:
            raise QPosteriorError(f"cannot read the store {self.path}: {' '.join(str(error).split())}") from error

    def runs(self) -> pd.DataFrame:
        """Return the table of runs, in the order of their keys."""
        return self._table("runs", ", ".join(RUN_KEY))

    def episodes(self) -> pd.DataFrame:
        """Return the table of episodes, in the order of their keys."""
        return self._table("episodes", f"{', '.join(RUN_KEY)}, episode")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _table(self, name: str, order: str) -> pd.DataFrame:
        import pandas as pd

        with self._reading():
            table = pd.read_sql_query(f"SELECT * FROM {name} ORDER BY {order}", self._connection)
        table["depth"] = table["depth"].where(table["depth"] != NO_DEPTH, None)
        for column in table.columns.intersection(["regret", "policy_regret", "cumulative_regret"]):
            table[column] = table[column].astype(float)  # nothing but NULL where the truth is not known
        return table


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the lock dies with it. A second sweep into the same folder is refused."""
    import fcntl  # not on every system; nothing but a comparison needs it

    with (folder / LOCK_FILE).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInputError(
                f"another comparison is writing to {folder}; wait for it or choose another"
            ) from error
        yield


def run_key(run: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return what tells a run from all others in a store."""
    return run["agent"], run["environment"], _key_depth(run["depth"]), run["seed"]


def with_keys(rows: pd.DataFrame, keys: Iterable[tuple[Any, ...]]) -> BoolArray:
    """Return which rows of runs or episodes belong to the runs of these keys."""
    import pandas as pd

    found = rows[list(RUN_KEY)].assign(depth=rows["depth"].astype(float).fillna(NO_DEPTH).astype(int))
    return np.asarray(pd.MultiIndex.from_frame(found).isin(list(keys)))


def _key_depth(depth: float | None) -> int:
    return NO_DEPTH if depth is None or depth != depth else int(depth)


def _with_key(rows: list[dict[str, Any]], run: dict[str, Any]) -> list[dict[str, Any]]:
    return [row | {name: run[name] for name in RUN_KEY} for row in rows]


def _values(run: dict[str, Any]) -> list[Any]:
    return [_plain(run.get(name)) for name in RUN_COLUMNS]


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if hasattr(value, "item"):
        return value.item()
    return json.dumps(value) if isinstance(value, dict | list) else value


def _marks(columns: tuple[str, ...]) -> str:
    return ", ".join("?" for _ in columns)


def _quoted(name: str) -> str:
    return f'"{name}"'
