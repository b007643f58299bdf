"""`qposterior report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report", short_help="Write the page of a folder again.")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def report_command(folder: Path) -> None:
    """Write the page of DIR, a folder that `compare`, `fit`, `explore` or `paper` has written, and print its path.

    A comparison gets report.html and figures as PNG and PDF; the others get index.html.

    \b
    Examples:
      qposterior report runs/sweep
      qposterior report answer
    """
    from qposterior.errors import InvalidInputError

    for write_fn in (_comparison, _fit, _exploration, _figures):
        page = write_fn(folder)
        if page is not None:
            click.echo(str(page))
            return
    raise InvalidInputError(
        f"{folder} holds no comparison, fit, exploration or figures of the paper; make one with `qposterior compare`, "
        "`fit`, `explore` or `paper` and --out"
    )


def _comparison(folder: Path) -> Path | None:
    from qposterior.experiments.compare import read_comparison
    from qposterior.experiments.store import STORE_FILE
    from qposterior.report.compare_report import write_compare_report

    return write_compare_report(read_comparison(folder)) if (folder / STORE_FILE).exists() else None


def _fit(folder: Path) -> Path | None:
    from qposterior.logs.files import holds_fit, load_fit, replace_page
    from qposterior.report.fit_report import write_fit_report
    from qposterior.storage import locked

    if not holds_fit(folder):
        return None
    with locked(folder, "fit"):
        fitted = load_fit(folder)
        return replace_page(folder, lambda where: write_fit_report(fitted, where))


def _exploration(folder: Path) -> Path | None:
    from qposterior.experiments.explore import stored_world
    from qposterior.experiments.run_directory import EPISODES_FILE, SETTINGS_FILE, RunDirectory
    from qposterior.report.explore_report import write_explore_report
    from qposterior.storage import locked, reading

    if not (folder / EPISODES_FILE).exists():
        return None
    with locked(folder, "run"):
        run = RunDirectory.open(folder)
        settings = run.settings
        with reading(folder / SETTINGS_FILE, "the settings of a run"):
            world = stored_world(settings)
        return write_explore_report(folder, run.runs(world), world)


def _figures(folder: Path) -> Path | None:
    from qposterior_paper.page import write_paper_page

    return write_paper_page(folder)
