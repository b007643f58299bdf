"""`qposterior fit` and `qposterior act`."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qposterior.cli.explore import parse_prior
from qposterior.cli.progress import json_path, plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def parse_columns(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return {our name: theirs} of options OURS=THEIRS."""
    found = {}
    for text in given:
        ours, equals, theirs = text.partition("=")
        if not equals or not theirs:
            raise click.UsageError(f"--column takes OURS=THEIRS, for example state=position; got {text!r}")
        found[ours.strip()] = theirs.strip()
    return found


@click.command("fit", short_help="From a log of decisions to which action is best where.")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--goal", "goals", multiple=True, help="A state that ends an episode; repeatable.")
@click.option("--discount", type=float, help="In (0, 1]; chosen from the log unless given.")
@click.option("--rewards", type=click.Choice(["deterministic", "noisy"]), help="Chosen from the log unless given.")
@click.option("--transitions", type=click.Choice(["deterministic", "dirichlet", "empirical"]), help="Likewise.")
@click.option("--noise", type=click.Choice(["gaussian", "student", "laplace"]), help="Of noisy rewards; scale learned.")
@click.option("--prior", callback=parse_prior, help="gaussian:scale=… or bounded:upper=…; chosen unless given.")
@click.option("--actions", type=click.Choice(["seen", "all"]), default="seen", show_default=True)
@click.option("--column", "columns", multiple=True, callback=parse_columns, help="OURS=THEIRS, repeatable.")
@click.option("--particles", type=click.IntRange(min=100), default=4000, show_default=True, help="Draws returned.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the report (index.html), rows and draws.")
@click.option("--update", type=click.Path(path_type=Path), help="Directory of an earlier fit to add this log to.")
@click.option("--again", is_flag=True, help="With --update: count a log that has gone in already once more.")
@click.option("--force", is_flag=True, help="Replace an earlier fit in --out, or an existing --json file.")
@click.option(
    "--json", "json_target", metavar="FILE|-", help="Write {settings, rows, policy, diagnostics}; - is stdout."
)
def fit_command(log: Path, **options: Any) -> None:
    """Fit a LOG of decisions: CSV (comma, semicolon or tab; gzip) or Parquet, a row per decision.

    Columns: state, action, reward, next_state, and where there are: terminated, episode, weight.

    \b
    Examples:
      qposterior fit decisions.csv --out answer
      qposterior fit decisions.csv.gz --goal scrapped --discount 0.95 --json -
      qposterior fit march.csv --update answer

    --update adds the log to those of an earlier fit and replaces its answer, or writes the new one to --out. A log that
    has gone in already is refused, unless --again. A kill leaves the old answer or the new one, never a part of it.
    """
    from qposterior.errors import QPosteriorError
    from qposterior.logs.choices import FitSettings
    from qposterior.logs.columns import OPTIONAL, REQUIRED, Columns
    from qposterior.logs.files import add_source, check_folder, load_sums, save_fit
    from qposterior.logs.fit import fit
    from qposterior.model.likelihood import Noise
    from qposterior.world.files import locked, write_atomically

    unknown = [name for name in options["columns"] if name not in (*REQUIRED, *OPTIONAL)]
    if unknown:
        raise click.UsageError(
            f"--column: there is no column {unknown[0]!r} to name; ours are {', '.join(REQUIRED)}, …"
        )
    target = json_path(options["json_target"], force=options["force"])
    update, out = options["update"], options["out"] or options["update"]
    if update is None:
        if options["again"]:
            raise click.UsageError("--again counts a log once more that has gone in already: give --update DIR too")
        settings = FitSettings(
            goals=tuple(options["goals"]),
            rewards="noisy" if options["noise"] and options["rewards"] is None else options["rewards"],
            transitions=options["transitions"],
            discount=options["discount"],
            prior=options["prior"],
            noise=None if options["noise"] is None else Noise(kind=options["noise"]),
            actions=options["actions"],
            particles=options["particles"],
            seed=options["seed"],
        )
    else:
        _refuse_settings_of_an_update()
        load_sums(update)  # before a lock, and so a folder, is made where there is no fit
    with ExitStack() as stack:
        if out is not None:
            in_place = update is not None and out.resolve() == update.resolve()
            check_folder(out, force=options["force"] or in_place)
            stack.enter_context(locked(out, "fit"))
            check_folder(out, force=options["force"] or in_place)  # nobody else has written to it meanwhile
        before, sources = None, []
        if update is not None:
            sums = load_sums(update)
            before, settings, sources = sums.log, sums.settings, sums.sources
        sources = add_source(sources, log, again=options["again"])
        shown = stack.enter_context(_progress())
        found = fit(log, columns=Columns(**options["columns"]), settings=settings, before=before, progress_fn=shown)
        if out is not None:
            save_fit(found, out, settings, sources=sources, page_fn=lambda folder: _write_page(found, folder))
    if target == "-":
        click.echo(json.dumps(found.to_dict(), indent=1, ensure_ascii=False))
    elif target is not None:
        write_atomically(Path(target), json.dumps(found.to_dict(), indent=1, ensure_ascii=False) + "\n")
    if target != "-":
        _print(found)
        if out is not None:
            click.echo(str(out))
    if not found.is_settled:
        raise QPosteriorError(
            "the computation has not settled, so there is no policy; the line marked ! says what helps"
        )


@click.command("act", short_help="The action of a fitted policy in a state.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--state", required=True, help="The label of the state, as in the log.")
@click.option("--explore", is_flag=True, help="Draw the action by the probability that it is optimal.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the draw; a fresh one at every call unless given.")
def act_command(folder: Path, state: str, explore: bool, seed: int | None) -> None:
    """Print the action to take in a state, by the fit in FOLDER.

    \b
    Examples:
      qposterior act answer --state worn
      qposterior act answer --state worn --explore
    """
    from qposterior.logs.files import Policy

    click.echo(Policy.load(folder).act(state, explore=explore, seed=seed))


def _refuse_settings_of_an_update() -> None:
    """An update goes on with the settings of the fit that it is added to; others would be ignored without a word."""
    kept = {"goals", "discount", "rewards", "transitions", "noise", "prior", "actions", "particles", "seed"}
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(str(option.name)) == click.core.ParameterSource.COMMANDLINE
        if given and option.name in kept:
            raise click.UsageError(f"{option.opts[0]} cannot change in an update; fit all logs anew to change it")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Yield the function that shows how far the chains are."""
    words = ["reading the log"]

    def report(done: int, most: int) -> None:
        words[:] = [f"drawing: {done} of at most {most} rounds"]
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{words[0]}", err=True, nl=done >= most)

    with plain_lines(lambda: words[0]):
        yield report


def _write_page(found: Any, out: Path) -> None:
    from qposterior.errors import MissingExtraError
    from qposterior.report.fit_report import write_fit_report

    try:
        write_fit_report(found, out)
    except MissingExtraError as error:
        click.echo(f"qposterior: no report page: {error}", err=True)


def _print(found: Any) -> None:
    for words in found.chosen.words:
        click.echo(f"- {words}")
    if found.is_settled:
        _print_table(found)
    for check in found.checks:
        if not check.fits:
            click.echo(f"! {check.words}")


def _print_table(found: Any) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="What to do where", title_justify="left")
    for column in ("state", "action", "tried", "value", "90 % interval", "P(best)", "loss"):
        table.add_column(column, justify="left" if column in ("state", "action") else "right")
    for row in found.table.head(40).to_dict(orient="records"):
        mark = " *" if found.policy.get(row["state"]) == row["action"] else ""
        table.add_row(
            escape(str(row["state"])),
            escape(str(row["action"])) + mark,
            str(row["count"]),
            f"{row['mean']:.4g}",
            f"{row['lower']:.4g} to {row['upper']:.4g}",
            "only action tried" if row["only_action"] else f"{row['prob_optimal']:.2f}",
            f"{row['expected_loss']:.3g}",
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    if len(found.table) > 40:
        click.echo(f"… and {len(found.table) - 40} rows more (--out or --json has all)")
    if not found.table["only_action"].all():
        click.echo(
            f"P(all marked actions are optimal) = {found.prob_policy:.2f} (*: the action of least expected loss)"
        )
