"""`qposterior inspect`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qposterior.cli.options import parse_columns, settings_options
from qposterior.cli.output import json_path, print_table, write_json
from qposterior.logs.settings import READING, FitSettings

if TYPE_CHECKING:
    from qposterior.logs.preview import Preview

MOST_COLUMNS, MOST_LABELS = 40, 8


@click.command("inspect", short_help="What a log holds, and how fit would read it.")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--column", "columns", multiple=True, callback=parse_columns, help="OURS=THEIRS, repeatable.")
@settings_options(FitSettings, *READING)
@click.option("--force", is_flag=True, help="Replace an existing --json file.")
@click.option("--json", "json_target", metavar="FILE|-", help="Write what was found.")
def inspect_command(log: Path, columns: dict[str, str], force: bool, json_target: str | None, **options: Any) -> None:
    """Look at a LOG: its columns, the states, actions and rewards that would be read, loops, gaps and what is untried.

    Takes the options of `qposterior fit` that say how a log is read. Where it cannot be read yet, the reason stands
    there, with options that might help.

    \b
    Examples:
      qposterior inspect visits.csv
      qposterior inspect visits.csv --next-from patient_id,visited --cost --column reward=price
    """
    from qposterior.cli.fit import check_column_names
    from qposterior.logs.columns import Columns
    from qposterior.logs.preview import inspect_log

    check_column_names(columns)
    target = json_path(json_target, force=force)
    found = inspect_log(log, columns=Columns(**columns), settings=FitSettings(**options))
    write_json(found.to_dict(), target, indent=1)
    if target != "-":
        _print(found, columns, options)


def _print(found: Preview, columns: dict[str, str], options: dict[str, Any]) -> None:
    from rich.markup import escape

    files = "" if found.num_files == 1 else f"{found.num_files} files, "
    click.echo(f"{found.source}: {files}{found.num_rows:,} rows, {len(found.columns)} columns")
    rows = [
        {
            "column": escape(column.name),
            "holds": column.kind,
            "distinct": f"{column.distinct:,}",
            "missing": f"{column.missing:,}" if column.missing else "–",
            "most frequent": escape(", ".join(column.examples)),
        }
        for column in found.columns[:MOST_COLUMNS]
    ]
    print_table("Columns", rows, left=["column", "holds", "most frequent"], width=110)
    if len(found.columns) > MOST_COLUMNS:
        click.echo(f"… and {len(found.columns) - MOST_COLUMNS:,} columns more (--json has all)")
    if found.log is not None:
        _print_log(found.facts)
    for note in found.notes:
        click.echo(f"- {note}")
    given = [part for ours, theirs in columns.items() for part in ("--column", f"{ours}={theirs}")]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        given += [flag] if value is True else [flag, str(value)] if value else []
    if found.problem is None:
        click.echo(f"Fit it: qposterior fit {shlex.join([found.source, *given])} --out answer")
        return
    click.echo(f"! cannot be read yet: {found.problem}")
    if found.guess:
        click.echo(
            f"By the names of its columns: qposterior inspect {shlex.quote(found.source)} {' '.join(found.guess)}"
        )


def _print_log(facts: dict[str, Any]) -> None:
    episodes = "one episode" if facts["episodes"] == 1 else f"{facts['episodes']:,} episodes"
    click.echo(f"As a log: {facts['rows']:,} decisions in {episodes}")
    for kind in ("states", "actions"):
        labels = facts[kind]
        shown = ", ".join(f"{label} ({number:,.10g})" for label, number in list(labels.items())[:MOST_LABELS])
        more = f", … {len(labels) - MOST_LABELS:,} more" if len(labels) > MOST_LABELS else ""
        click.echo(f"  {len(labels):,} {kind} with decisions: {shown}{more}")
    low, mean, high = (facts[f"reward_{which}"] for which in ("lowest", "mean", "highest"))
    click.echo(f"  rewards from {low:g} to {high:g}" + ("" if mean is None else f", {mean:.4g} on average"))
    click.echo(
        f"  {facts['pairs_tried']:,} pairs of state and action were tried ({facts['tried_once']:,} of them once), "
        f"{facts['pairs_never_tried']:,} never"
    )
    click.echo(
        f"  {facts['pairs_with_several_successors']:,} pairs led to several states; one can come back to "
        f"{facts['states_on_loops']:,} states"
    )
    if facts["gaps"]:
        click.echo(f"  {facts['gaps']:,} gaps: a row does not begin where the row before it ended, in the same episode")
