"""What a figure of the paper is: a claim, a function that makes it at some size, and what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from qposterior.errors import InvalidInputError
from qposterior.experiments.compare import Comparison, run_grid, show_runs
from qposterior.experiments.run_spec import RunSpec
from qposterior.experiments.store import with_keys
from qposterior.report.figures import OTHER_COLOUR, import_pyplot, save_figure, tidy
from qposterior.report.plots import Curve
from qposterior.storage import read_record, reading, write_atomically, write_record
from qposterior.versions import versions
from qposterior.world.arrays import FloatArray

Value = TypeVar("Value")
ANSWERS = {True: "holds", False: "DOES NOT HOLD", None: "not decided at this size"}
"""Whether a claim of the paper was found to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a figure is made. `quick` shrinks seeds, depths and episodes, nothing else."""

    folder: Path  # where the stores of long figures are
    quick: bool = False
    seed: int = 0
    workers: int | None = None

    def choose(self, full: Value, quick: Value) -> Value:
        """Return the one that fits."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A figure, the rows behind it, and what they say."""

    figure: Any  # of matplotlib
    rows: pd.DataFrame
    found: str  # one sentence
    holds: bool | None  # whether the paper's claim does; None: not decided at this size


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """One item of the paper."""

    name: str
    label: str  # of the paper
    claim: str  # what the paper says, in our words
    make_fn: Callable[[Size], Made]


def make_figure(item: PaperFigure, size: Size, *, force: bool = False) -> dict[str, Any]:
    """Make one figure into the folder (PNG, PDF, CSV and a JSON record) and return the record.

    One that was made before with the same size and seed is left as it is, unless forced.
    """
    path = size.folder / item.name
    record_file = path.with_suffix(".json")
    if record_file.exists() and not force:
        earlier = read_figure(record_file)
        if (earlier["quick"], earlier["seed"]) == (size.quick, size.seed):
            return earlier
        raise InvalidInputError(
            f"{record_file} was made with quick={earlier['quick']}, seed={earlier['seed']}; choose another --out, or "
            "pass --force to make it again"
        )
    size.folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    made = item.make_fn(size)
    save_figure(made.figure, path)
    write_atomically(path.with_suffix(".csv"), made.rows.to_csv(index=False, float_format="%.10g"))
    record = {
        "name": item.name,
        "label": item.label,
        "claim": item.claim,
        "found": made.found,
        "holds": None if made.holds is None else bool(made.holds),
        "quick": size.quick,
        "seed": size.seed,
        "seconds": round(time.perf_counter() - started, 1),
        "versions": versions(),
    }
    write_record(record_file, record)
    return record


def read_figure(path: Path) -> dict[str, Any]:
    """Return the record of a figure that was made."""
    record = read_record(path, "the record of a figure")
    with reading(path, "the record of a figure"):
        if record["holds"] not in ANSWERS or not isinstance(record["found"], str):
            raise InvalidInputError("it does not say what was found")
        return record | {"quick": bool(record["quick"]), "seed": int(record["seed"])}


def sweep(size: Size, name: str, specs: Sequence[RunSpec]) -> Comparison:
    """Run the runs of a long figure into a store of its own, which an interrupted figure goes on with."""
    folder = size.folder / ("stores-quick" if size.quick else "stores") / name
    with show_runs() as show_fn:
        found = run_grid(specs, out=folder, workers=size.workers, resume=True, progress_fn=show_fn)
    # A store may hold more than was asked for; the figure is of what was asked for.
    keys = [spec.key for spec in specs]
    runs, episodes = (rows[with_keys(rows, keys)] for rows in (found.runs, found.episodes))
    return Comparison(folder=found.folder, runs=runs, episodes=episodes)


def draw_panels(*shape: int, **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, one or an array of `shape`, in the look of the house."""
    figure, panels = import_pyplot().subplots(*shape, layout="constrained", **options)
    for axes in np.ravel(panels):
        tidy(axes)
    return figure, panels


def cumulative(episodes: pd.DataFrame, column: str, labels: Iterable[str]) -> dict[str, FloatArray]:
    """Return by label the running sums of a column over the episodes, a curve for each seed: ``(R, E)``."""
    runs = episodes.sort_values("episode").groupby("agent")
    return {
        label: np.array([one[column].cumsum() for _, one in runs.get_group(label).groupby("seed")]) for label in labels
    }


def draw_curves(axes: Any, curves: Mapping[str, FloatArray], colours: Mapping[str, str]) -> pd.DataFrame:
    """Draw the mean of each label's curves with its 95 % band, and return the rows of both."""
    rows = []
    for label, runs in curves.items():
        curve = Curve.mean_of(runs)
        curve.draw(axes, colour=colours.get(label, OTHER_COLOUR), label=label)
        rows += [(label, *point) for point in zip(*(column.tolist() for column in curve), strict=True)]
    return pd.DataFrame(rows, columns=["label", "episode", "cumulative_regret", "half_width"])


def describe_ends(table: pd.DataFrame, form: str) -> str:
    """Return where the curves of `draw_curves` end, with their bands."""
    ends = table.groupby("label", sort=False).last()
    return ", ".join(
        f"{label} {row['cumulative_regret']:{form}} ± {row['half_width']:{form}}" for label, row in ends.iterrows()
    )
