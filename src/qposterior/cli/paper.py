"""`qposterior paper`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("paper", short_help="Make the figures, examples and theorems of the paper.")
@click.argument("figures", nargs=-1, metavar="[FIGURE]...")
@click.option("--list", "list_all", is_flag=True, help="Name every figure with what the paper says.")
@click.option("--all", "make_all", is_flag=True, help="Make all of them.")
@click.option("--quick", is_flag=True, help="Fewer seeds, smaller depths, fewer episodes: seconds instead of hours.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Workers of the long figures (default: one a core).")
@click.option("--force", is_flag=True, help="Make again what is there already.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the pictures (PNG, PDF) and rows (CSV).")
def paper_command(figures: tuple[str, ...], **options: Any) -> None:
    """Make FIGUREs of the paper, and say in a line what was found beside what the paper says.

    \b
    Examples:
      qposterior paper --list
      qposterior paper contour five-state --out figures
      qposterior paper --all --quick --out figures-quick

    Long figures keep their runs in a store under --out and go on where they were stopped.
    """
    from qposterior_paper.registry import FIGURES, find_figure

    if options["list_all"]:
        for item in FIGURES.values():
            click.echo(f"{item.name:20} {item.label}: {item.claim}")
        return
    chosen = list(FIGURES) if options["make_all"] else list(figures)
    if not chosen:
        raise click.UsageError("name a figure, or give --all or --list")
    if options["out"] is None:
        raise click.UsageError("give --out DIR, where the figures are to go")
    from qposterior_paper.figure import ANSWERS, Size, make_figure

    items = [find_figure(name) for name in chosen]
    size = Size(folder=options["out"], quick=options["quick"], seed=options["seed"], workers=options["workers"])
    for item in items:
        record = make_figure(item, size, force=options["force"])
        answer = ANSWERS[record["holds"]]
        click.echo(f"{item.name}: {record['found']}.  The paper ({item.label}): {item.claim} [{answer}]")
    click.echo(str(options["out"]))
