"""What commands print and write: tables, JSON, and pages that need an extra."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def print_table(
    title: str, rows: list[dict[str, Any]], *, left: Collection[str] = (), dim: str | None = None, width: int = 100
) -> None:
    """Print rows of {column: cell}, the columns of `left` to the left.

    A row with a cell `dim` is printed faintly. Where stdout is no terminal the table is at most `width` wide.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in rows[0] if rows else ():
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*map(str, row.values()), style="dim" if dim in row.values() else None)
    Console(width=None if sys.stdout.isatty() else width).print(table)


def json_path(target: str | None, *, force: bool) -> str | None:
    """Return where JSON goes (`-` is stdout), or refuse before the work what could not be written after it."""
    if target is not None and target != "-":
        check_writable(Path(target), "--json", force=force)
    return target


def check_writable(path: Path, option: str, *, force: bool) -> None:
    """Refuse before the work a file that could not be written after it, or that is there and would be lost."""
    if path.is_dir():
        raise click.UsageError(
            f"{option} {path} is a directory; give a file" + ", or - for stdout" * (option == "--json")
        )
    if path.exists() and not force:
        raise click.UsageError(f"{path} exists; choose another {option} file or pass --force")
    if not path.parent.is_dir():
        raise click.UsageError(f"{option} {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise click.UsageError(f"{option} {path}: cannot write to {path.parent}")


def write_json(answer: Any, target: str | None, *, indent: int) -> None:
    """Write JSON to where `json_path` says."""
    from qposterior.storage import write_atomically

    text = json.dumps(answer, indent=indent, ensure_ascii=False)
    if target == "-":
        click.echo(text)
    elif target is not None:
        write_atomically(Path(target), text + "\n")


@contextmanager
def unless_missing(what: str) -> Iterator[None]:
    """Say that there is no such page where an extra is missing: the answer is worth keeping without its pictures."""
    from qposterior.errors import MissingExtraError

    try:
        yield
    except MissingExtraError as error:
        click.echo(f"qposterior: no {what}: {error}", err=True)
