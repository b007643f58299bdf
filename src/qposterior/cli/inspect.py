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

MOST_COLUMNS = 40


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

    from qposterior.logs.preview import options_of

    files = "" if found.num_files == 1 else f"{found.num_files} files, "
    click.echo(f"{found.source}: {files}{found.num_rows:,} rows, {len(found.columns)} columns")
    rows = [
        {
            "column": escape(column.name),
            "holds": column.kind,
            "distinct, about": f"{column.distinct:,}",
            "missing": f"{column.missing:,}" if column.missing else "–",
            "most frequent": escape(", ".join(column.examples)),
        }
        for column in found.columns[:MOST_COLUMNS]
    ]
    print_table("Columns", rows, left=["column", "holds", "most frequent"], width=110)
    if len(found.columns) > MOST_COLUMNS:
        click.echo(f"… and {len(found.columns) - MOST_COLUMNS:,} columns more (--json has all)")
    for line in found.lines:
        click.echo(line)
    for note in found.notes:
        click.echo(f"- {note}")
    if found.problem is None:
        command = shlex.join(["qposterior", "fit", found.source, *options_of(columns, options), "--out", "answer"])
        click.echo(f"Fit it: {command}")
        return
    click.echo(f"! cannot be read yet: {found.problem}")
    if found.guess is not None and found.guess.options:
        command = shlex.join(["qposterior", "inspect", found.source, *found.guess.options])
        click.echo(f"By the names of its columns: {command}")
