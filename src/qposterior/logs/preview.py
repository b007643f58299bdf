"""A look at a log before it is fitted: its columns, what would be read, and what one should know of it."""

from __future__ import annotations

import csv
import io
import re
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.checks import check_path
from qposterior.logs.checks import guessed_ends
from qposterior.logs.choices import choose
from qposterior.logs.columns import Columns, LogError, folded
from qposterior.logs.join import as_shown
from qposterior.logs.raw import is_missing, is_time
from qposterior.logs.read import Log, read_log, relations_of
from qposterior.logs.relations import AllColumns, Relation, connected, union_of
from qposterior.logs.settings import READING, FitSettings
from qposterior.world.arrays import IntArray, sum_by

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import duckdb

MANY_NUMBERS = 50
"""Different numbers in a column from which on it is proposed to take bins of them."""

NUM_EXAMPLES, LONGEST_EXAMPLE, MOST_LABELS = 3, 24, 8

NAMES = {
    "state": ("state", "status", "stage", "condition", "situation", "phase", "position", "severity", "segment"),
    "action": ("action", "decision", "treatment", "arm", "choice", "intervention", "offer", "move", "channel"),
    "reward": ("reward", "revenue", "profit", "gain", "payoff", "value", "return", "score", "cost", "costs", "price"),
    "next_state": ("nextstate", "newstate", "stateafter", "successor"),
}
"""What columns are often called, folded and without `_`."""

COSTS = ("cost", "costs", "price", "expense")
IDS = ("id", "episode", "patient", "customer", "user", "machine", "case", "session", "subject", "client", "unit")
OUTCOMES = ("outcome", "closed", "discharged", "discharge", "disposition", "ended", "result")
ORDERS = (
    *("timestamp", "time", "date", "datetime", "when", "step", "t", "minute", "hour", "day", "week", "visit", "seq"),
    *("month", "year", "datum", "zeit"),
    "order",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """What is in a column of a file."""

    name: str
    kind: str  # numbers, times or labels
    distinct: int  # approximately
    missing: int
    examples: list[str]  # the most frequent


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What might make a log of a file: names of columns, and settings."""

    columns: dict[str, str]  # our name → name in the file
    settings: dict[str, str | bool]

    @property
    def options(self) -> list[str]:
        """The options of the command line that say so."""
        return options_of(self.columns, self.settings)

    def with_given(self, columns: Columns, settings: FitSettings) -> Guess:
        """Return the guess with what the user has said in place of what was guessed of it."""
        named = {name: theirs for name, theirs in asdict(columns).items() if theirs != name}
        said = {name: value for name in READING if (value := getattr(settings, name))}
        return Guess(columns=self.columns | named, settings=self.settings | said)


def options_of(columns: Mapping[str, str], settings: Mapping[str, Any]) -> list[str]:
    """Return the options of the command line that stand for columns and settings; what is not set has none."""
    options = [part for ours, theirs in columns.items() for part in ("--column", f"{ours}={theirs}")]
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        options += [flag] if value is True else [flag, str(value)] if value else []
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a look at a log has found."""

    source: str
    num_files: int
    num_rows: int
    columns: list[ColumnFacts]  # of the first file
    log: Log | None = field(repr=False)  # None: it cannot be read as it is
    problem: str | None  # why not
    notes: list[str]  # what would be inferred
    guess: Guess | None  # what might make a log of it, from the names of its columns

    @property
    def facts(self) -> dict[str, Any]:
        """What the log holds, by name."""
        return {} if self.log is None else facts_of(self.log)

    @property
    def lines(self) -> list[str]:
        """What the log holds, in sentences."""
        return [] if self.log is None else list(_lines(self.facts))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "source": self.source,
            "files": self.num_files,
            "rows": self.num_rows,
            "columns": [asdict(column) for column in self.columns],
            "log": self.facts,
            "problem": self.problem,
            "notes": self.notes,
            "guess": [] if self.guess is None else self.guess.options,
        }


def inspect_log(source: str | Path, *, columns: Columns | None = None, settings: FitSettings | None = None) -> Preview:
    """Return what a log holds and how it would be read; what is wrong with it is a finding, not an error."""
    path, settings = check_path("source", source), settings or FitSettings()
    with connected(path) as connection:
        relations = relations_of(connection, path, AllColumns())
        numbers = [_number_of_rows(connection, relation) for relation in relations]
        facts = _columns(connection, union_of(relations))
    log, problem, notes = None, None, list[str]()
    try:
        log = read_log(path, columns=columns, raw=settings.raw)
        log = as_shown(log)
        unsure = guessed_ends(log)
        notes = [] if unsure is None else [unsure.note]
        notes += [*_too_many_states(facts, columns or Columns(), settings), *choose(log, settings, path=path).notes]
    except LogError as error:
        problem = str(error)
    return Preview(
        source=str(path),
        num_files=len(numbers),
        num_rows=sum(numbers),
        columns=facts,
        log=log,
        problem=problem,
        notes=notes,
        guess=_guess(facts).with_given(columns or Columns(), settings) if log is None else None,
    )


def facts_of(log: Log) -> dict[str, Any]:
    """Return what a log holds, as plain data: states and actions by how often, what is untried, loops, gaps."""
    acting = np.flatnonzero(log.acting)
    tried, possible = log.pairs.shape[0], acting.size * len(log.actions)
    weight = float(log.count.sum())
    successors = np.bincount(log.moves[:, 0], minlength=tried)
    return {
        "rows": log.num_rows,
        "episodes": log.num_episodes,
        "states": _counted(log.states, log.pairs[:, 0], log.count),
        "actions": _counted(log.actions, log.pairs[:, 1], log.count),
        "pairs_tried": tried,
        "pairs_never_tried": possible - tried,
        "tried_once": int(np.sum(log.count == 1)),
        "reward_lowest": float(log.reward_low.min()),
        "reward_mean": float(log.count @ log.reward_mean / weight) if weight else None,
        "reward_highest": float(log.reward_high.max()),
        "pairs_with_several_successors": int(np.sum(successors > 1)),
        "states_on_loops": _num_looping(log),
        "never_decided_in": [log.states[s] for s in np.flatnonzero(~log.acting)],
        "gaps": log.num_gaps,
    }


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    episodes = "one episode" if facts["episodes"] == 1 else f"{facts['episodes']:,} episodes"
    yield f"As a log: {facts['rows']:,} decisions in {episodes}"
    for kind in ("states", "actions"):
        labels = facts[kind]
        shown = ", ".join(f"{label} ({number:,.10g})" for label, number in list(labels.items())[:MOST_LABELS])
        more = f", … {len(labels) - MOST_LABELS:,} more" if len(labels) > MOST_LABELS else ""
        yield f"{len(labels):,} {kind} with decisions: {shown}{more}"
    low, mean, high = (facts[f"reward_{which}"] for which in ("lowest", "mean", "highest"))
    yield f"Rewards from {low:g} to {high:g}" + ("" if mean is None else f", {mean:.4g} on average")
    yield (
        f"{facts['pairs_tried']:,} pairs of state and action were tried ({facts['tried_once']:,} of them once), "
        f"{facts['pairs_never_tried']:,} never; {facts['pairs_with_several_successors']:,} led to several states"
    )
    yield f"One can come back to {facts['states_on_loops']:,} states"


def _counted(labels: list[str], codes: IntArray, count: Any) -> dict[str, float]:
    """Return how often each label occurs, the most frequent first."""
    total = sum_by(codes, count, len(labels))
    return {labels[i]: float(total[i]) for i in np.argsort(-total, kind="stable") if total[i] > 0.0}


def _num_looping(log: Log) -> int:
    """Return how many states one can come back to."""
    import scipy.sparse as sp
    from scipy.sparse.csgraph import connected_components

    source, target, size = log.pairs[log.moves[:, 0], 0], log.moves[:, 1], len(log.states)
    graph = sp.coo_array((np.ones(source.size), (source, target)), shape=(size, size)).tocsr()
    _, component = connected_components(graph, connection="strong")
    return int(np.sum((np.bincount(component)[component] > 1) | (graph.diagonal() > 0.0)))


def _number_of_rows(connection: duckdb.DuckDBPyConnection, relation: Relation) -> int:
    [(number,)] = connection.execute(f"SELECT count(*) FROM {relation.table}", relation.parameters).fetchall()
    return int(number)


def _columns(connection: duckdb.DuckDBPyConnection, relation: Relation) -> list[ColumnFacts]:
    """Return what is in each column of the files, in one scan."""
    queries = ["count(*)"]
    for place in relation.places.values():
        text = f"trim({place}::VARCHAR, ' \t')"
        there = f"NOT {is_missing(text)}"
        queries += [
            f"count(*) FILTER ({is_missing(text)})",
            f"approx_count_distinct({text}) FILTER ({there})",
            f"approx_top_k(left({text}, {LONGEST_EXAMPLE + 1}), {NUM_EXAMPLES}) FILTER ({there})",
            f"bool_and(TRY_CAST({text} AS DOUBLE) IS NOT NULL) FILTER ({there})",
            f"bool_and({is_time(text)}) FILTER ({there})",
        ]
    [(num_rows, *numbers)] = connection.execute(
        f"SELECT {', '.join(queries)} FROM {relation.table}", relation.parameters
    ).fetchall()
    facts = []
    for j, name in enumerate(relation.places):
        missing, distinct, examples, are_numbers, are_times = numbers[5 * j : 5 * j + 5]
        facts.append(
            ColumnFacts(
                name=name,
                kind="numbers" if are_numbers else "times" if are_times else "labels",
                distinct=min(int(distinct), num_rows - int(missing)),
                missing=int(missing),
                examples=[
                    one if len(one) <= LONGEST_EXAMPLE else f"{one[:LONGEST_EXAMPLE]}…" for one in examples or []
                ],
            )
        )
    return facts


def _guess(columns: list[ColumnFacts]) -> Guess:
    """Return what the columns of a log are, as far as their names tell."""

    def called(names: tuple[str, ...], kinds: tuple[str, ...] = ("numbers", "times", "labels")) -> str | None:
        plain = {column.name: _words(column.name) for column in columns if column.kind in kinds}
        exact = [name for wanted in names for name, text in plain.items() if text.replace("_", "") == wanted]
        parts = [name for wanted in names for name, text in plain.items() if wanted in text.split("_")]
        return next(iter([*exact, *parts]), None)

    kinds = {"reward": ("numbers",)}
    ours = {name: called(names, kinds.get(name, ("labels", "numbers"))) for name, names in NAMES.items()}
    settings: dict[str, str | bool] = {}
    if ours["reward"] is not None and set(_words(ours["reward"]).split("_")) & set(COSTS):
        settings["cost"] = True
    if ours["next_state"] is None and (key := called(IDS)) is not None:
        times = [column.name for column in columns if column.kind == "times"]
        order = called(ORDERS, ("times",)) or next(iter(times), called(ORDERS, ("numbers",)))
        settings["next_from"] = key if order is None else f"{key},{order}"
        if (outcome := called(OUTCOMES, ("labels",))) is not None:
            settings["outcome"] = outcome
    if any(column.missing for column in columns if column.name in ours.values()):
        settings["missing"] = "drop"
    if ours["state"] is None or ours["state"] in _many_numbers(columns):
        taken = {theirs for name, theirs in ours.items() if name != "state"}
        if numbers := _in_one_line(_free(columns, {*taken, *str(settings.get("next_from", "")).split(",")})):
            settings["numeric"] = numbers
            ours |= {"state": None, "next_state": None}
    named = {name: theirs for name, theirs in ours.items() if theirs is not None and theirs != name}
    return Guess(columns=named, settings=settings)


def _words(name: str) -> str:
    """Return the words of the name of a column, with `_` between them."""
    return re.sub(r"[\W_]+", "_", name.strip()).casefold()


def _many_numbers(columns: list[ColumnFacts]) -> list[str]:
    """Return the columns of so many different numbers that hardly any occurs twice."""
    return [column.name for column in columns if column.kind == "numbers" and column.distinct > MANY_NUMBERS]


def _free(columns: list[ColumnFacts], taken: Collection[str | None]) -> list[str]:
    """Return the columns of many different numbers that are no other part of a log, by their names."""
    names = _many_numbers(columns)
    after = {f"next_{name}" for name in names}
    others = {*IDS, *ORDERS, *NAMES["reward"], "weight"}
    return [name for name in names if name not in taken and name not in after and folded(name) not in others]


def _in_one_line(names: list[str]) -> str:
    """Return names as ``--numeric`` takes them."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def _too_many_states(facts: list[ColumnFacts], columns: Columns, settings: FitSettings) -> Iterator[str]:
    """Yield the proposal to take bins where the column of the state has many different numbers."""
    if settings.numeric is None and columns.state in _many_numbers(facts):
        [distinct] = [column.distinct for column in facts if column.name == columns.state]
        yield (
            f"{columns.state!r} is a number with about {distinct:,} different values, each a state of its own: "
            f"--numeric {shlex.quote(_in_one_line([columns.state]))} takes bins of it for states (next values in "
            f"{'next_' + columns.state!r}, or --next-from)"
        )
