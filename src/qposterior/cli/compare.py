"""`qposterior compare`."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import click

from qposterior.cli.options import (
    parse_agent_options,
    parse_names,
    parse_numbers,
    parse_options,
    parse_prior,
    read_settings,
    settings_options,
)
from qposterior.cli.output import print_table
from qposterior.cluster import ENGINES
from qposterior.experiments.run_spec import RunSpec


@click.command("compare", short_help="Run agents against each other, with intervals.")
@click.argument("environment", metavar="ENV")
@click.option(
    "--settings",
    is_eager=True,
    expose_value=False,
    callback=read_settings,
    help="A TOML file with any of these options.",
)
@click.option("--agents", callback=parse_names, required=True, help="Names, separated by commas.")
@click.option("--depths", callback=parse_numbers, help="Sizes of the environment, separated by commas.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="How many seeds.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@settings_options(RunSpec, "episodes", "full", "timeout")
@click.option("--engine", type=click.Choice(ENGINES), default="local", show_default=True)
@click.option("--scheduler", help="Address of a running Dask scheduler.")
@click.option("--workers", type=click.IntRange(min=1), help="Workers on this machine (default: one a core).")
@settings_options(
    RunSpec, "transitions", prior=parse_prior, env_options=parse_options, agent_options=parse_agent_options
)
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard event files of every run to DIR/tensorboard.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted comparison in --out.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory of the store.")
@click.option("--json", "as_json", is_flag=True, help="Print the table of results as JSON.")
def compare_command(
    environment: str, *, seed: int, seeds: int, tensorboard: bool, as_json: bool, **options: Any
) -> None:
    """Compare agents on ENV: a grid of depths and seeds, every finished run kept in a SQLite store.

    ENV is a name, a Gymnasium id, or MODULE:ID, as in `qposterior explore`.

    \b
    Examples:
      qposterior compare deep-sea --agents abrl,psrl,rlsvi --depths 5,10,20 --seeds 20 --out runs/sweep
      qposterior compare deep-sea --agents abrl,psrl --depths 5,10 --out runs/sweep --resume
      qposterior compare river-swim --agents abrl,q-learning --engine dask --out runs/river
    """
    from qposterior.errors import QPosteriorError
    from qposterior.experiments.compare import compare, show_runs
    from qposterior.experiments.statistics import measured_column, summarise_returns, summarise_runs
    from qposterior.experiments.store import run_key

    if tensorboard:
        from qposterior.experiments.tensorboard import import_writer, write_events

        import_writer()  # found missing before anything runs
    made = set()
    with show_runs() as show_fn:

        def after_run(done: int, total: int, row: dict[str, Any]) -> None:
            made.add(run_key(row))
            show_fn(done, total, row)

        comparison = compare(environment, seeds=range(seed, seed + seeds), progress_fn=after_run, **options)
    if tensorboard:
        for _, rows in comparison.episodes.groupby(["agent", "depth", "seed"], dropna=False, sort=False):
            records = rows.to_dict(orient="records")
            write_events(comparison.folder, records, replace=run_key(records[0]) in made)
    finished = comparison.without_failures
    is_known = measured_column(finished.episodes) == "regret"
    table = summarise_runs(comparison.runs) if is_known else summarise_returns(finished.episodes)
    if as_json:
        click.echo(table.to_json(orient="records", indent=2))
    else:
        title = "Learning time" if is_known else "Mean return of an episode [95 %]"
        cells_fn = _learning_cells if is_known else _return_cells
        cells = [_cells(row, cells_fn(row)) for row in table.to_dict(orient="records")]
        print_table(f"{title} on {environment}", cells, left=["agent"])
        click.echo(str(comparison.folder))
    failed = comparison.runs[comparison.runs["status"] == "failed"]
    if finished.runs.empty:
        raise QPosteriorError(f"every run failed, the first with: {failed['error'].iloc[0]}")
    if len(failed):
        click.echo(f"qposterior: {len(failed)} runs failed, the first with: {failed['error'].iloc[0]}", err=True)


def _cells(row: dict[Any, Any], measured: dict[str, str]) -> dict[str, str]:
    has_depth = row["depth"] is not None and row["depth"] == row["depth"]
    cells = {"agent": str(row["agent"]), "depth": f"{row['depth']:.0f}" if has_depth else "–"}
    return cells | measured | {"seconds": f"{row['seconds']:.2f}"}


def _learning_cells(row: dict[Any, Any]) -> dict[str, str]:
    from qposterior.experiments.statistics import bounded_mean

    return {
        "solved": f"{row['solved']}/{row['runs']}",
        "mean [95 %]": bounded_mean(row),
        "median": f"{row['median']:.0f}" if isfinite(row["median"]) else "–",
    }


def _return_cells(row: dict[Any, Any]) -> dict[str, str]:
    """Without a table of transitions there is no truth, and so neither regret nor learning time."""
    from qposterior.experiments.statistics import interval

    return {"runs": str(row["runs"])} | {
        heading: f"{row[name]:.3g}{interval(row[f'{name}_low'], row[f'{name}_high'], '.3g')}"
        for heading, name in (("all episodes", "mean_return"), ("last quarter", "late_return"))
    }
