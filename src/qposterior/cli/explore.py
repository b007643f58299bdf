"""`qposterior explore`."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qposterior.cli.progress import json_path, plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qposterior.experiments.explore import Run, World
    from qposterior.experiments.run_directory import RunDirectory


class Settings(dict[str, Any]):
    """KEY=VALUE options, read as numbers, booleans or text."""


def parse_options(_context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> Settings:
    """Return the dictionary of repeated KEY=VALUE options."""
    settings = Settings()
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise click.UsageError(f"--{parameter.name} takes KEY=VALUE, got {pair!r}")
        try:
            settings[key] = json.loads(text)
        except json.JSONDecodeError:
            settings[key] = text
    return settings


def parse_prior(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
    """Return the prior of NAME:KEY=VALUE,…"""
    if text is None:
        return None
    from qposterior.errors import unknown_name
    from qposterior.model.prior import PRIORS

    name, _, rest = text.partition(":")
    if name not in PRIORS:
        raise unknown_name("prior", name, PRIORS)
    pairs = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    try:
        return PRIORS[name](**{key: json.loads(value) for key, value in pairs.items()})
    except (TypeError, json.JSONDecodeError) as error:
        raise click.UsageError(f"--prior {text}: {error}") from error


@click.command("explore", short_help="Let an agent explore an environment.")
@click.argument("environment", metavar="ENV")
@click.option("--agent", "agent_name", default="abrl", show_default=True, help="See `qposterior list agents`.")
@click.option("--depth", type=int, help="Size of the environment.")
@click.option("--episodes", type=int, default=300, show_default=True, help="Episodes per seed.")
@click.option("--until", type=click.Choice(["learned"]), help="End a seed at its learning time.")
@click.option("--seeds", type=int, default=1, show_default=True, help="How many seeds.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first seed.")
@click.option(
    "--transitions", type=click.Choice(["known", "revealed", "dirichlet"]), help="What the agent is told of them."
)
@click.option("--particles", type=int, help="Particles of an agent that samples the posterior.")
@click.option("--prior", callback=parse_prior, help="NAME or NAME:KEY=VALUE,… (see `qposterior list priors`).")
@click.option("--discount", type=float, help="Discount of a Gymnasium environment (default 1).")
@click.option("--max-steps", type=int, help="Most steps of an episode; a longer one is cut off.")
@click.option("--env-option", "env_option", multiple=True, callback=parse_options, help="KEY=VALUE, repeatable.")
@click.option("--agent-option", "agent_option", multiple=True, callback=parse_options, help="KEY=VALUE, repeatable.")
@click.option("--out", type=click.Path(), help="Write settings, rows and a report (index.html) to this directory.")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard event files to DIR/tensorboard (needs --out DIR).")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run in --out; finished seeds are kept.")
@click.option("--force", is_flag=True, help="Replace an earlier run in --out, or an existing --json file.")
@click.option("--json", "json_target", metavar="FILE|-", help="Write a JSON list, one object per seed; - is stdout.")
def explore_command(environment: str, **options: Any) -> None:
    """Let an agent explore ENV, a name from `qposterior list environments` or a Gymnasium id.

    MODULE:ID is an environment of your own that is registered when Python imports MODULE. Without a table `unwrapped.P`
    there is no truth and so no regret; agents count successors instead of being shown rows.

    \b
    Examples:
      qposterior explore deep-sea --agent abrl --depth 10 --seeds 5
      qposterior explore deep-sea --agent r-max --depth 10 --seeds 5 --json -
      qposterior explore deep-sea --agent psrl-deterministic --depth 20 --until learned
      qposterior explore FrozenLake-v1 --agent q-learning --env-option is_slippery=false --env-option step_cost=0.001
      qposterior explore deep-sea --depth 10 --seeds 5 --out runs/sea
      qposterior explore deep-sea --depth 10 --seeds 5 --out runs/sea --resume

    Ctrl-C and SIGTERM keep the episodes that were finished. --resume keeps the finished seeds and runs the others: the
    files are then those of a run that was never interrupted.
    """
    from qposterior.experiments.explore import named_world
    from qposterior.storage import write_atomically

    _check(options)
    world = named_world(
        environment,
        options["env_option"],
        depth=options["depth"],
        cap=options["max_steps"],
        discount=options["discount"],
    )
    _make_agent(world, options, options["seed"])  # a bad agent or option is found before anything is written
    target = json_path(options["json_target"], force=options["force"])
    with ExitStack() as stack:
        folder = _open_folder(environment, options, stack)
        runs = [] if folder is None else folder.runs(world)
        try:
            _run_seeds(world, options, runs, folder)
        finally:
            if folder is not None and runs:
                _draw(folder, runs, world)
        if options["tensorboard"] and folder is not None:
            from qposterior.experiments.tensorboard import write_events

            for run in runs:
                write_events(folder.path, run.rows, replace=True)
    summaries = json.dumps([run.summary() for run in runs], indent=2)
    if target == "-":
        click.echo(summaries)
    elif target is not None:
        write_atomically(Path(target), summaries + "\n")
    if target != "-":
        _print_table(runs, world)
        if folder is not None:
            click.echo(f"{folder.path}")


def _open_folder(environment: str, options: dict[str, Any], stack: ExitStack) -> RunDirectory | None:
    """Return the folder of the run, held until the end, or None where none was asked for."""
    from qposterior.experiments.run_directory import RunDirectory, check_folder
    from qposterior.storage import locked

    if options["out"] is None:
        return None
    path, how = Path(options["out"]), {"force": options["force"], "resume": options["resume"]}
    settings = {"environment": environment} | {
        k: v for k, v in options.items() if k not in ("out", "json_target", *how)
    }
    check_folder(path, **how)  # no lock is left in a folder that is not ours
    stack.enter_context(locked(path, "run"))
    return RunDirectory(path, settings=settings, **how)


def _check(options: dict[str, Any]) -> None:
    for name in ("seeds", "episodes"):
        if options[name] < 1:
            raise click.UsageError(f"--{name} must be at least 1, got {options[name]}")
    if options["seed"] < 0:
        raise click.UsageError(f"--seed must be 0 or more, got {options['seed']}")
    if options["resume"] and options["out"] is None:
        raise click.UsageError("--resume goes on with the run in a directory: give it with --out DIR")
    if options["resume"] and options["force"]:
        raise click.UsageError(
            "--resume goes on with the run in --out DIR, which --force would replace: give one of the two"
        )
    if options["tensorboard"]:
        if options["out"] is None:
            raise click.UsageError("--tensorboard writes into the directory of the run: give --out DIR too")
        from qposterior.experiments.tensorboard import import_writer

        import_writer()


def _run_seeds(world: World, options: dict[str, Any], runs: list[Run], folder: RunDirectory | None) -> None:
    """Run one seed after the other; what an interruption leaves of a seed is kept too."""
    from qposterior.experiments.beliefs import Beliefs
    from qposterior.experiments.explore import explore

    with _progress(options) as report:
        for seed in range(options["seed"] + len(runs), options["seed"] + options["seeds"]):
            agent = _make_agent(world, options, seed)
            latest: list[Run] = []
            is_finished = False
            beliefs = Beliefs(space=world.space, seed=seed)

            def after_episode(
                run: Run, latest: list[Run] = latest, agent: Any = agent, beliefs: Beliefs = beliefs
            ) -> None:
                latest[:] = [run]
                if folder is not None:
                    beliefs.record(agent)
                report(run, agent)

            try:
                explore(
                    agent,
                    world,
                    episodes=options["episodes"],
                    seed=seed,
                    depth=options["depth"],
                    until_learned=options["until"] == "learned",
                    keep_transitions=folder is not None,
                    callback=after_episode,
                )
                is_finished = True
            finally:
                runs += latest
                if folder is not None and latest:
                    beliefs.finish(agent)
                    folder.add(latest[0], beliefs, is_finished=is_finished)


def _make_agent(world: World, options: dict[str, Any], seed: int) -> Any:
    from qposterior.agents.registry import find_agent, make_agent
    from qposterior.experiments.explore import spawn_seeds

    name = options["agent_name"]
    find_agent(name)
    return make_agent(
        name,
        world.problem,
        horizon=world.cap,
        transitions=options["transitions"],
        seed=spawn_seeds(seed)[1],
        **_agent_settings(options),
    )


def _agent_settings(options: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {name: options[name] for name in ("particles", "prior") if options[name] is not None}
    return given | dict(options["agent_option"])


@contextmanager
def _progress(options: dict[str, Any]) -> Iterator[Callable[[Run, Any], None]]:
    """Yield what is called after each episode and shows how learning goes: regret, pairs seen, the sampler's state."""
    words, seen = ["starting"], [0]

    def describe(run: Run, agent: Any) -> str:
        seen[:] = [run.rows[-1]["new_pairs"] + (seen[0] if len(run.rows) > 1 else 0)]
        text = f"seed {run.seed}  episode {len(run.rows)}  regret {sum(run.regret):8.2f}  pairs seen {seen[0]}"
        if hasattr(agent, "progress"):
            text += "".join(f"  {name} {value:.3g}" for name, value in agent.progress().items())
        return text

    if not sys.stderr.isatty():
        with plain_lines(lambda: words[0]):
            yield lambda run, agent: words.__setitem__(0, describe(run, agent))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=options["seeds"] * options["episodes"])

        def report(run: Run, agent: Any) -> None:
            finished = (run.seed - options["seed"]) * options["episodes"]
            bar.update(task, completed=finished + len(run.rows), description=describe(run, agent))

        yield report


def _draw(folder: RunDirectory, runs: list[Run], world: World) -> None:
    """Write the report, unless an extra is missing: the rows are worth keeping without their pictures."""
    from qposterior.errors import MissingExtraError
    from qposterior.report.explore_report import write_explore_report

    try:
        write_explore_report(folder.path, [run for run in runs if run.rows], world)
    except MissingExtraError as error:
        click.echo(f"qposterior: no report: {error}", err=True)


def _print_table(runs: list[Run], world: World) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{runs[0].agent} on {world.name}", title_justify="left")
    for column in ("seed", "episodes", "found", "learned", "regret", "updates", "cut off", "seconds"):
        table.add_column(column, justify="right")
    for run in runs:
        row = run.summary()
        table.add_row(
            str(row["seed"]),
            str(row["episodes"]),
            _or_dash(row["found_episode"]),
            _or_dash(row["learning_time"]),
            "–" if row["cumulative_regret"] is None else f"{row['cumulative_regret']:.2f}",
            str(row["posterior_updates"]),
            str(sum(not r["reached_goal"] for r in run.rows)),
            f"{row['seconds']:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
