"""`qposterior report`."""

from __future__ import annotations

import click


@click.command("report", short_help="Write the page of a comparison.")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
def report_command(folder: str) -> None:
    """Write report.html, and figures as PNG and PDF, into DIR, a folder of `qposterior compare`.

    \b
    Example:
      qposterior report runs/sweep
    """
    from qposterior.experiments.compare import read_comparison
    from qposterior.report.compare_report import write_compare_report

    click.echo(str(write_compare_report(read_comparison(folder))))
