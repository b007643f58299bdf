"""`qposterior compare`."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qposterior.cli.explore import parse_options, parse_prior
from qposterior.cli.progress import plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pandas as pd


def parse_names(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str]:
    """Return the names of a comma-separated list."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse_numbers(_context: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    """Return the whole numbers of a comma-separated list."""
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--{parameter.name} takes whole numbers separated by commas, got {text!r}") from error


def parse_agent_options(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return KEY=VALUE for all agents, and under the name of an agent what AGENT:KEY=VALUE says for it alone."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        agent, colon, rest = pair.partition(":") if ":" in pair.partition("=")[0] else ("", "", pair)
        target = settings.setdefault(agent, {}) if colon else settings
        target |= parse_options(context, parameter, (rest,))
    return settings


def read_settings(context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Take the options of a TOML file as defaults: what stands on the command line wins."""
    if path is None:
        return None
    import tomllib

    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"--settings {path}: {error}") from error
    options = {name.lstrip("-"): each for each in context.command.params for name in each.opts if name[0] == "-"}
    plain = {}
    for written, value in settings.items():
        option = options.get(written.replace("_", "-"))
        if not isinstance(option, click.Option) or option.name in (None, "settings"):
            raise click.UsageError(f"--settings {path}: there is no option {written!r}")
        if option.is_flag and not isinstance(value, bool):
            raise click.UsageError(f"--settings {path}: {written} must be true or false, got {value!r}")
        plain[option.name] = value if option.is_flag else _as_text(value, is_multiple=option.multiple)
    context.default_map = {**(context.default_map or {}), **plain}
    return path


def _as_text(value: Any, *, is_multiple: bool) -> str | list[str]:
    """Return a TOML value as it would be written on the command line."""
    if isinstance(value, dict):
        pairs = []
        for key, one in value.items():  # a table inside is for the agent of that name
            inner = {f"{key}:{name}": each for name, each in one.items()} if isinstance(one, dict) else {key: one}
            pairs += [f"{name}={each if isinstance(each, str) else json.dumps(each)}" for name, each in inner.items()]
        return pairs
    if is_multiple:
        return [str(one) for one in (value if isinstance(value, list) else [value])]
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@click.command("compare", short_help="Run agents against each other, with intervals.")
@click.argument("environment", metavar="ENV")
@click.option("--settings", is_eager=True, callback=read_settings, help="A TOML file with any of these options.")
@click.option("--agents", callback=parse_names, required=True, help="Names, separated by commas.")
@click.option("--depths", callback=parse_numbers, help="Sizes of the environment, separated by commas.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="How many seeds.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option("--episodes", type=click.IntRange(min=1), default=1000, show_default=True, help="Most episodes a run.")
@click.option("--full", is_flag=True, help="Go on after the learning time.")
@click.option("--timeout", type=float, help="Most seconds a run; its finished episodes are kept.")
@click.option("--engine", type=click.Choice(["local", "dask"]), default="local", show_default=True)
@click.option("--scheduler", help="Address of a running Dask scheduler.")
@click.option("--workers", type=click.IntRange(min=1), help="Workers on this machine (default: one a core).")
@click.option("--transitions", type=click.Choice(["known", "revealed", "dirichlet"]), help="What agents are told.")
@click.option("--prior", callback=parse_prior, help="NAME or NAME:KEY=VALUE,… for the agents that take one.")
@click.option("--env-option", "env_option", multiple=True, callback=parse_options, help="KEY=VALUE, repeatable.")
@click.option(
    "--agent-option",
    "agent_option",
    multiple=True,
    callback=parse_agent_options,
    help="KEY=VALUE for all agents, AGENT:KEY=VALUE for one; repeatable.",
)
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard event files of every run to DIR/tensorboard.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted comparison in --out.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory of the store.")
@click.option("--json", "as_json", is_flag=True, help="Print the table of results as JSON.")
def compare_command(environment: str, **options: Any) -> None:
    """Compare agents on ENV: a grid of depths and seeds, every finished run kept in a SQLite store.

    ENV is a name, a Gymnasium id, or MODULE:ID, as in `qposterior explore`.

    \b
    Examples:
      qposterior compare deep-sea --agents abrl,psrl,rlsvi --depths 5,10,20 --seeds 20 --out runs/sweep
      qposterior compare deep-sea --agents abrl,psrl --depths 5,10 --out runs/sweep --resume
      qposterior compare river-swim --agents abrl,q-learning --engine dask --out runs/river
    """
    from qposterior.errors import QPosteriorError
    from qposterior.experiments.compare import compare
    from qposterior.experiments.statistics import measured_column, summarise_returns, summarise_runs
    from qposterior.experiments.store import run_key

    if options["tensorboard"]:
        from qposterior.experiments.tensorboard import import_writer, write_events

        import_writer()  # found missing before anything runs
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    made = set()
    with _progress() as show:

        def after_run(done: int, total: int, row: dict[str, Any]) -> None:
            made.add(run_key(row))
            show(done, total, row)

        found = compare(
            environment,
            agents=options["agents"],
            depths=options["depths"],
            seeds=seeds,
            out=options["out"],
            engine=options["engine"],
            scheduler=options["scheduler"],
            workers=options["workers"],
            resume=options["resume"],
            progress_fn=after_run,
            episodes=options["episodes"],
            full=options["full"],
            timeout=options["timeout"],
            transitions=options["transitions"],
            prior=options["prior"],
            env_options=dict(options["env_option"]),
            agent_options=dict(options["agent_option"]),
        )
    if options["tensorboard"]:
        for _, rows in found.episodes.groupby(["agent", "depth", "seed"], dropna=False, sort=False):
            records = rows.to_dict(orient="records")
            write_events(found.folder, records, replace=run_key(records[0]) in made)
    finished = found.without_failures
    is_known = measured_column(finished.episodes) == "regret"
    table = summarise_runs(found.runs) if is_known else summarise_returns(finished.episodes)
    if options["as_json"]:
        click.echo(table.to_json(orient="records", indent=2))
    else:
        title = "Learning time" if is_known else "Mean return of an episode [95 %]"
        _print(f"{title} on {environment}", table, _learning_cells if is_known else _return_cells)
        click.echo(str(found.folder))
    failed = found.runs[found.runs["status"] == "failed"]
    if finished.runs.empty:
        raise QPosteriorError(f"every run failed, the first with: {failed['error'].iloc[0]}")
    if len(failed):
        click.echo(f"qposterior: {len(failed)} runs failed, the first with: {failed['error'].iloc[0]}", err=True)


def _print(title: str, table: pd.DataFrame, cells_fn: Callable[[dict[Any, Any]], dict[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for number, row in enumerate(table.to_dict(orient="records")):
        has_depth = row["depth"] is not None and row["depth"] == row["depth"]
        cells = {"agent": str(row["agent"]), "depth": f"{row['depth']:.0f}" if has_depth else "–"}
        cells |= cells_fn(row) | {"seconds": f"{row['seconds']:.2f}"}
        if number == 0:
            for column in cells:
                shown.add_column(column, justify="left" if column == "agent" else "right")
        shown.add_row(*cells.values())
    Console(width=None if sys.stdout.isatty() else 100).print(shown)


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


@contextmanager
def _progress() -> Iterator[Callable[[int, int, dict[str, Any]], None]]:
    """Yield the function that shows on stderr how far the comparison is, and how long it will still take."""
    started, is_terminal = time.perf_counter(), sys.stderr.isatty()
    first: list[int] = []
    words = ["no run is finished yet"]

    def report(done: int, total: int, row: dict[str, Any]) -> None:
        first[:] = first or [done - 1]
        left = (time.perf_counter() - started) / max(done - first[0], 1) * (total - done)
        learned = row["status"] if row["status"] != "done" else f"learned {row.get('learning_time') or '–'}"
        depth = "" if row["depth"] is None else f" depth {row['depth']}"
        words[:] = [f"{done}/{total}  {row['agent']}{depth} seed {row['seed']}: {learned}  about {left:.0f} s left"]
        if is_terminal:
            click.echo(f"\r\x1b[K{words[0]}", err=True, nl=done == total)

    with plain_lines(lambda: words[0]):
        yield report
