"""TensorBoard event files: a folder per run, a scalar per column and episode."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from qposterior.errors import MissingExtraError

FOLDER = "tensorboard"
SCALARS = ("return", "regret", "policy_regret", "new_pairs", "steps", "seconds")


def import_writer() -> Any:
    """Return tensorboardX's writer class, or raise with the `pip install` to run."""
    try:
        return import_module("tensorboardX").SummaryWriter
    except ImportError as error:
        raise MissingExtraError("--tensorboard", "tensorboard") from error


def run_name(row: Mapping[Any, Any]) -> str:
    """Return the name of a run's folder: agent, depth and seed."""
    depth = row.get("depth")
    size = "" if depth is None or depth != depth else f"-depth-{int(depth)}"
    return f"{row['agent']}{size}-seed-{row['seed']}"


def write_events(folder: str | Path, rows: Iterable[Mapping[Any, Any]], *, replace: bool = False) -> Path | None:
    """Write the episodes of one run as event files into a folder of its own and return it.

    If it has them already nothing is written and None returned, unless they are to be replaced: the run was made again.
    The step is the episode, and the clock starts at 0 with the run: files of equal runs differ in seconds alone.
    """
    rows = list(rows)
    target = Path(folder) / FOLDER / run_name(rows[0])
    if target.exists() and not replace:
        return None
    shutil.rmtree(target, ignore_errors=True)
    clock = regret = 0.0
    with import_writer()(logdir=str(target)) as writer:
        for row in rows:
            clock += row["seconds"]
            regret += row["regret"]
            for name in SCALARS:
                if row[name] is not None and not math.isnan(row[name]):
                    writer.add_scalar(f"episode/{name}", row[name], row["episode"], walltime=clock)
            if not math.isnan(regret):
                writer.add_scalar("run/cumulative_regret", regret, row["episode"], walltime=clock)
    return target
