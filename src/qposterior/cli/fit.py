"""`qposterior fit` and `qposterior act`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qposterior.cli.options import parse_columns, parse_policies, parse_prior, settings_options
from qposterior.cli.output import check_writable, json_path, print_table, unless_missing, write_json
from qposterior.cluster import ENGINES
from qposterior.logs.settings import READING, FitSettings
from qposterior.progress import show_progress

if TYPE_CHECKING:
    from qposterior.progress import Progress

MOST_ROWS = 40
"""Rows of the table on the terminal."""

POLICY = "A policy of your own to value: CSV or Parquet; repeatable."
ENGINE = "dask: the files of LOG are summed on a cluster, each where it lies."
NOISES = click.Choice(["gaussian", "student", "laplace"])


@click.command("fit", short_help="From a log of decisions to which action is best where.")
@click.argument("log", type=click.Path(path_type=Path))
@settings_options(FitSettings, "goals", "discount")
@click.option("--policy", "policies", multiple=True, metavar="FILE|NAME=FILE", callback=parse_policies, help=POLICY)
@settings_options(FitSettings, "risk", "cautious", "actions", "method", "rewards", "transitions")
@click.option("--noise", type=NOISES, help="Of noisy rewards, method q.")
@settings_options(FitSettings, prior=partial(parse_prior, also_of_models=True))
@click.option("--column", "columns", multiple=True, callback=parse_columns, help="OURS=THEIRS, repeatable.")
@settings_options(FitSettings, *READING, "particles", "seed")
@click.option("--engine", type=click.Choice(ENGINES), default="local", show_default=True, help=ENGINE)
@click.option("--scheduler", help="Address of a running Dask scheduler.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the report (index.html), rows and draws.")
@click.option("--update", type=click.Path(path_type=Path), help="Directory of an earlier fit to add this log to.")
@click.option("--again", is_flag=True, help="With --update: count a log that has gone in already once more.")
@click.option("--force", is_flag=True, help="Replace an earlier fit in --out, or an existing --json or --xlsx file.")
@click.option("--json", "json_target", metavar="FILE|-", help="Write {settings, policies, rows, policy, diagnostics}.")
@click.option("--xlsx", type=click.Path(path_type=Path), metavar="FILE", help="Write the answer as an Excel workbook.")
def fit_command(log: Path, **options: Any) -> None:
    """Fit a LOG of decisions, a row per decision: CSV (comma, semicolon or tab; gzip) or Parquet, a folder of these, or
    minari:NAME.

    Columns: state, action, reward, next_state, and where there are: terminated, episode, weight. Rows that have no
    next_state but an order (--next-from), costs, missing cells and slips in labels are read as they are: `qposterior
    inspect LOG` shows what is there.

    \b
    Examples:
      qposterior fit decisions.csv --out answer
      qposterior fit decisions.csv --policy plan.csv --cautious 0.95
      qposterior fit decisions.csv.gz --goal scrapped --discount 0.95 --json -
      qposterior fit visits.csv --next-from patient_id,visited --outcome discharged_to --missing drop
      qposterior fit machines.csv --numeric temperature,load --next-from machine,time
      qposterior fit march.csv --update answer

    First comes what the recommended policy is worth, what the logged one is, and how sure the gain is; then what to do
    where. A policy of your own (--policy: columns state, action and, where actions are mixed, probability) is valued
    beside them.

    --update adds the log to those of an earlier fit and replaces its answer, or writes the new one to --out; settings
    stay those of the earlier fit. A log that has gone in already is refused, unless --again. A kill leaves the old
    answer or the new one, never a part of it.
    """
    from qposterior.errors import QPosteriorError
    from qposterior.extra import import_extra
    from qposterior.logs.columns import Columns
    from qposterior.logs.files import add_source, check_folder, load_sums, save_fit
    from qposterior.logs.fit import fit
    from qposterior.report.fit_workbook import write_fit_workbook
    from qposterior.storage import locked

    check_column_names(options["columns"])
    target, workbook = json_path(options["json_target"], force=options["force"]), options["xlsx"]
    if workbook is not None:
        import_extra("xlsxwriter", "writing an Excel workbook", extra="xlsx")
        check_writable(workbook, "--xlsx", force=options["force"])
    update, out = options["update"], options["out"] or options["update"]
    if update is None:
        if options["again"]:
            raise click.UsageError("--again counts a log once more that has gone in already: give --update DIR too")
        settings = _settings(options)
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
        progress = stack.enter_context(show_progress("reading the log"))
        fitted = fit(
            log,
            columns=Columns(**options["columns"]),
            settings=settings,
            before=before,
            policies=options["policies"],
            engine=options["engine"],
            scheduler=options["scheduler"],
            progress_fn=partial(_show_rounds if settings.chosen_method == "q" else _show_models, progress),
        )
        if out is not None:
            save_fit(fitted, out, settings, sources=sources, page_fn=partial(_write_page, fitted))
        answer = fitted.to_dict()  # policies are chosen and valued here, under the sign of life
    if workbook is not None:
        write_fit_workbook(fitted, workbook)
    write_json(answer, target, indent=1)
    if target != "-":
        _print(fitted)
        if out is not None:
            click.echo(str(out))
    if not fitted.is_settled:
        raise QPosteriorError(
            "the answer is not to be trusted, so there is no policy; the line marked ! says what helps"
        )


@click.command("act", short_help="The action of a fitted policy in a state.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--state", required=True, help="The label of the state, as in the log, or COLUMN=NUMBER,….")
@click.option("--explore", is_flag=True, help="Draw the action by the probability that it is optimal.")
@click.option("--seed", type=click.IntRange(min=0), help="Of the draw; a fresh one at every call unless given.")
def act_command(folder: Path, state: str, explore: bool, seed: int | None) -> None:
    """Print the action to take in a state, by the fit in FOLDER.

    \b
    Examples:
      qposterior act answer --state worn
      qposterior act answer --state worn --explore
      qposterior act answer --state temperature=80,load=0.4
    """
    from qposterior.logs.files import Policy

    click.echo(Policy.load(folder).act(state, explore=explore, seed=seed))


def check_column_names(columns: dict[str, str]) -> None:
    """Raise for the name of a column that is none of ours."""
    from qposterior.logs.columns import OPTIONAL, REQUIRED

    unknown = [name for name in columns if name not in (*REQUIRED, *OPTIONAL)]
    if unknown:
        raise click.UsageError(
            f"--column: there is no column {unknown[0]!r} to name; ours are {', '.join(REQUIRED)}, …"
        )


def _settings(options: dict[str, Any]) -> FitSettings:
    """Return the settings of a fit that is no update."""
    from qposterior.logs.settings import FitSettings
    from qposterior.model.noise import Noise

    given = {item.name: options[item.name] for item in fields(FitSettings)}
    if given["noise"] is not None:
        given |= {"noise": Noise(kind=given["noise"]), "rewards": given["rewards"] or "noisy"}
    return FitSettings(**given)


def _refuse_settings_of_an_update() -> None:
    """An update goes on with the settings of the fit that it is added to; others would be ignored without a word."""
    context, kept = click.get_current_context(), {item.name for item in fields(FitSettings)}
    for option in context.command.params:
        given = context.get_parameter_source(str(option.name)) == click.core.ParameterSource.COMMANDLINE
        if given and option.name in kept:
            raise click.UsageError(f"{option.opts[0]} cannot change in an update; fit all logs anew to change it")


def _show_rounds(progress: Progress, done: int, most: int) -> None:
    progress.show(f"drawing: {done} of at most {most} rounds", done, most)


def _show_models(progress: Progress, done: int, most: int) -> None:
    words = f"drawing models and solving them: {done / most:.0%}"
    progress.show("choosing a policy, and valuing it" if done == most else words, done, most)


def _write_page(fitted: Any, folder: Path) -> None:
    from qposterior.report.fit_report import write_fit_report

    with unless_missing("report page"):
        write_fit_report(fitted, folder)


def _print(fitted: Any) -> None:
    from qposterior.logs.words import how_recommended

    if fitted.is_settled:
        if fitted.policies is None:
            mean, low, high = fitted.start_value
            click.echo(f"An episode that is decided best is worth {mean:.4g} (90 % interval {low:.4g} to {high:.4g}).")
        else:
            _print_policies(fitted)
        _print_table(fitted)
    for check in fitted.checks:
        if not check.fits:
            click.echo(f"! {check.note}")
    for note in (*fitted.chosen.notes, *(how_recommended(fitted) if fitted.is_settled else ())):
        click.echo(f"- {note}")


def _print_policies(fitted: Any) -> None:
    from rich.markup import escape

    from qposterior.logs.words import UPPER_BOUND, policy_lines, verdict

    click.echo(verdict(fitted))
    rows = [
        {
            "policy": escape(line.name),
            "value": line.value,
            "90 % interval": line.interval,
            "P(better than logged)": line.prob_better,
        }
        for line in policy_lines(fitted.policies)
    ]
    print_table("What policies are worth", rows, left=["policy"], dim=UPPER_BOUND, width=110)


def _print_table(fitted: Any) -> None:
    from rich.markup import escape

    from qposterior.logs.words import interval_words, prob_best_words, tried_words, widths

    rows = []
    for row, width in zip(fitted.table.head(MOST_ROWS).to_dict(orient="records"), widths(fitted.table), strict=False):
        value, interval = interval_words(row, width)
        rows.append(
            {
                "state": escape(row["state"]),
                "action": escape(row["action"]) + (" *" if fitted.policy.get(row["state"]) == row["action"] else ""),
                "P(best)": prob_best_words(row),
                "tried": tried_words(row),
                "value": value,
                "90 % interval": interval,
                "loss": f"{row['expected_loss']:.3g}",
            }
        )
    print_table("What to do where", rows, left=["state", "action"], width=110)
    if len(fitted.table) > MOST_ROWS:
        click.echo(f"… and {len(fitted.table) - MOST_ROWS:,} rows more (--out or --json has all)")
    which = "the action of largest mean Q"
    if fitted.policies is not None:
        which = "what the recommended policy does, most often where it mixes actions"
    click.echo(f"*: {which}. P(all marked actions are optimal) = {fitted.prob_policy:.2f}")
