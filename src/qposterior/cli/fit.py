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

MOST_ROWS = 40
"""Rows of the table on the terminal."""

METHOD = """model (default): draw rewards and transitions and solve each draw; q: draw Q itself under a prior on Q (what
--noise or such a prior asks for); bootstrap: for comparison."""
RISK = "What the recommended policy is best at: its mean value, or that of the worst SHARE of the draws."
CAUTIOUS = "Leave the usual action of a state only where another is better with probability P, such as 0.95."
POLICY = "A policy of your own to value: CSV or Parquet; repeatable."
ACTIONS = """seen: those tried in the state; all: also those tried elsewhere, predicted and never recommended. all for
method model, else seen."""
PRIOR = """model:alike=… (method model), gaussian:scale=… or bounded:upper=… (method q); chosen unless given."""


def parse_columns(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return {our name: theirs} of options OURS=THEIRS."""
    found = {}
    for text in given:
        ours, equals, theirs = text.partition("=")
        if not equals or not theirs:
            raise click.UsageError(f"--column takes OURS=THEIRS, for example state=position; got {text!r}")
        found[ours.strip()] = theirs.strip()
    return found


def parse_policies(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Path]:
    """Return {name: file} of options FILE or NAME=FILE; a file is called by its stem."""
    from qposterior.inference.policies import check_name

    found: dict[str, Path] = {}
    for text in given:
        name, equals, rest = text.partition("=")
        is_named = bool(equals and rest) and not Path(text).exists()
        path = Path(rest if is_named else text)
        name = check_name(name.strip() if is_named else path.stem)
        if not path.is_file():
            raise click.UsageError(f"--policy {text}: there is no file {path}")
        if name in found:
            raise click.UsageError(f"--policy: two policies are called {name!r}; give one of them as NAME=FILE")
        found[name] = path
    return found


def parse_fit_prior(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """Return the prior on the model of model:KEY=VALUE,…, or a prior on Q."""
    from qposterior.model.model_prior import ModelPrior

    if text is None or text.partition(":")[0] != "model":
        return parse_prior(context, parameter, text)
    pairs = dict(part.partition("=")[::2] for part in text.partition(":")[2].split(",") if part)
    try:
        return ModelPrior(**{key: json.loads(value) for key, value in pairs.items()})
    except (TypeError, json.JSONDecodeError) as error:
        raise click.UsageError(f"--prior {text}: {error}") from error


@click.command("fit", short_help="From a log of decisions to which action is best where.")
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--goal", "goals", multiple=True, help="A state that ends an episode; repeatable.")
@click.option("--discount", type=float, help="In (0, 1]; chosen from the log unless given.")
@click.option("--policy", "policies", multiple=True, metavar="FILE|NAME=FILE", callback=parse_policies, help=POLICY)
@click.option("--risk", default="mean", show_default=True, metavar="mean|cvar:SHARE", help=RISK)
@click.option("--cautious", type=float, metavar="P", help=CAUTIOUS)
@click.option("--actions", type=click.Choice(["seen", "all"]), help=ACTIONS)
@click.option("--method", type=click.Choice(["model", "q", "bootstrap"]), help=METHOD)
@click.option("--rewards", type=click.Choice(["deterministic", "noisy"]), help="Chosen from the log unless given.")
@click.option("--transitions", type=click.Choice(["deterministic", "dirichlet", "empirical"]), help="Likewise.")
@click.option("--noise", type=click.Choice(["gaussian", "student", "laplace"]), help="Of noisy rewards, method q.")
@click.option("--prior", callback=parse_fit_prior, metavar="NAME:KEY=VALUE,…", help=PRIOR)
@click.option("--column", "columns", multiple=True, callback=parse_columns, help="OURS=THEIRS, repeatable.")
@click.option("--particles", type=click.IntRange(min=100), help="Draws; 2,000 models or 4,000 of Q unless given.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the report (index.html), rows and draws.")
@click.option("--update", type=click.Path(path_type=Path), help="Directory of an earlier fit to add this log to.")
@click.option("--again", is_flag=True, help="With --update: count a log that has gone in already once more.")
@click.option("--force", is_flag=True, help="Replace an earlier fit in --out, or an existing --json file.")
@click.option("--json", "json_target", metavar="FILE|-", help="Write {settings, policies, rows, policy, diagnostics}.")
def fit_command(log: Path, **options: Any) -> None:
    """Fit a LOG of decisions: CSV (comma, semicolon or tab; gzip) or Parquet, a row per decision.

    Columns: state, action, reward, next_state, and where there are: terminated, episode, weight.

    \b
    Examples:
      qposterior fit decisions.csv --out answer
      qposterior fit decisions.csv --policy plan.csv --cautious 0.95
      qposterior fit decisions.csv.gz --goal scrapped --discount 0.95 --json -
      qposterior fit march.csv --update answer

    First comes what the recommended policy is worth, what the logged one is, and how sure the gain is; then what to do
    where. A policy of your own (--policy: columns state, action and, where actions are mixed, probability) is valued
    beside them.

    --update adds the log to those of an earlier fit and replaces its answer, or writes the new one to --out; settings
    stay those of the earlier fit. A log that has gone in already is refused, unless --again. A kill leaves the old
    answer or the new one, never a part of it.
    """
    from qposterior.errors import QPosteriorError
    from qposterior.logs.columns import Columns
    from qposterior.logs.files import add_source, check_folder, load_sums, save_fit
    from qposterior.logs.fit import fit
    from qposterior.world.files import locked

    _check_column_names(options["columns"])
    target = json_path(options["json_target"], force=options["force"])
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
        shown = stack.enter_context(_progress(settings.chosen_method))
        found = fit(
            log,
            columns=Columns(**options["columns"]),
            settings=settings,
            before=before,
            policies=options["policies"],
            progress_fn=shown,
        )
        if out is not None:
            save_fit(found, out, settings, sources=sources, page_fn=lambda folder: _write_page(found, folder))
        answer = found.to_dict()  # policies are chosen and valued here, under the sign of life
    _write_json(answer, target)
    if target != "-":
        _print(found)
        if out is not None:
            click.echo(str(out))
    if not found.is_settled:
        raise QPosteriorError(
            "the answer is not to be trusted, so there is no policy; the line marked ! says what helps"
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


def _check_column_names(columns: dict[str, str]) -> None:
    from qposterior.logs.columns import OPTIONAL, REQUIRED

    unknown = [name for name in columns if name not in (*REQUIRED, *OPTIONAL)]
    if unknown:
        raise click.UsageError(
            f"--column: there is no column {unknown[0]!r} to name; ours are {', '.join(REQUIRED)}, …"
        )


def _settings(options: dict[str, Any]) -> Any:
    """Return the settings of a fit that is no update."""
    from qposterior.logs.settings import FitSettings
    from qposterior.model.likelihood import Noise

    as_given = ("method", "transitions", "discount", "prior", "actions", "particles", "risk", "cautious", "seed")
    return FitSettings(
        goals=tuple(options["goals"]),
        rewards="noisy" if options["noise"] and options["rewards"] is None else options["rewards"],
        noise=None if options["noise"] is None else Noise(kind=options["noise"]),
        **{name: options[name] for name in as_given},
    )


KEPT = {
    "goals", "discount", "risk", "cautious", "actions", "method", "rewards", "transitions", "noise", "prior",
    "particles", "seed",
}  # fmt: skip


def _refuse_settings_of_an_update() -> None:
    """An update goes on with the settings of the fit that it is added to; others would be ignored without a word."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(str(option.name)) == click.core.ParameterSource.COMMANDLINE
        if given and option.name in KEPT:
            raise click.UsageError(f"{option.opts[0]} cannot change in an update; fit all logs anew to change it")


@contextmanager
def _progress(method: str) -> Iterator[Callable[[int, int], None]]:
    """Yield the function that shows how far the work is: rounds of chains, or models that are drawn and solved."""
    words = ["reading the log"]
    on_terminal = sys.stderr.isatty()

    def show() -> None:
        if on_terminal:
            click.echo(f"\r\x1b[K{words[0]}", err=True, nl=False)

    def report(done: int, most: int) -> None:
        words[:] = [f"drawing: {done} of at most {most} rounds"]
        if method != "q":
            words[:] = [f"drawing models and solving them: {done / most:.0%}"]
            if done == most:
                words[:] = ["choosing a policy, and valuing it"]
        show()

    show()
    try:
        with plain_lines(lambda: words[0]):
            yield report
    finally:
        if on_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


def _write_json(answer: dict[str, Any], target: str | None) -> None:
    from qposterior.world.files import write_atomically

    text = json.dumps(answer, indent=1, ensure_ascii=False)
    if target == "-":
        click.echo(text)
    elif target is not None:
        write_atomically(Path(target), text + "\n")


def _write_page(found: Any, out: Path) -> None:
    from qposterior.errors import MissingExtraError
    from qposterior.report.fit_report import write_fit_report

    try:
        write_fit_report(found, out)
    except MissingExtraError as error:
        click.echo(f"qposterior: no report page: {error}", err=True)


def _print(found: Any) -> None:
    from qposterior.logs.words import how_recommended

    if found.is_settled:
        if found.policies is None:
            mean, low, high = found.start_value
            click.echo(f"An episode that is decided best is worth {mean:.4g} (90 % interval {low:.4g} to {high:.4g}).")
        else:
            _print_policies(found)
        _print_table(found)
    for check in found.checks:
        if not check.fits:
            click.echo(f"! {check.words}")
    for words in (*found.chosen.words, *(how_recommended(found) if found.is_settled else ())):
        click.echo(f"- {words}")


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def _print_policies(found: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    from qposterior.logs.words import UPPER_BOUND, policy_lines, verdict

    click.echo(verdict(found))
    table = Table(title="What policies are worth", title_justify="left")
    for column in ("policy", "value", "90 % interval", "P(better than logged)"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for line in policy_lines(found.policies):
        style = "dim" if line.name == UPPER_BOUND else None
        table.add_row(escape(line.name), line.value, line.interval, line.prob_better, style=style)
    _console().print(table)


def _print_table(found: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    from qposterior.logs.words import interval_words, prob_best_words, tried_words, widths

    table = Table(title="What to do where", title_justify="left")
    for column in ("state", "action", "P(best)", "tried", "value", "90 % interval", "loss"):
        table.add_column(column, justify="left" if column in ("state", "action") else "right")
    for row, width in zip(found.table.head(MOST_ROWS).to_dict(orient="records"), widths(found.table), strict=False):
        mark = " *" if found.policy.get(row["state"]) == row["action"] else ""
        cells = prob_best_words(row), tried_words(row), *interval_words(row, width), f"{row['expected_loss']:.3g}"
        table.add_row(escape(row["state"]), escape(row["action"]) + mark, *cells)
    _console().print(table)
    if len(found.table) > MOST_ROWS:
        click.echo(f"… and {len(found.table) - MOST_ROWS:,} rows more (--out or --json has all)")
    which = "the action of largest mean Q"
    if found.policies is not None:
        which = "what the recommended policy does, most often where it mixes actions"
    click.echo(f"*: {which}. P(all marked actions are optimal) = {found.prob_policy:.2f}")
