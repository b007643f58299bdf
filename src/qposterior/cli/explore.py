"""`qposterior explore`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """
    from qposterior.experiments.explore import named_world
    from qposterior.experiments.run_directory import RunDirectory
    from qposterior.world.files import write_atomically

    _check(options)
    world = named_world(
        environment,
        options["env_option"],
        depth=options["depth"],
        cap=options["max_steps"],
        discount=options["discount"],
    )
    _make_agent(world, options, options["seed"])  # a bad agent or option is found before anything is written
    target = _json_target(options["json_target"], options["force"])
    folder = None
    if options["out"] is not None:
        settings = {"environment": environment} | {k: v for k, v in options.items() if k not in ("out", "force")}
        folder = RunDirectory(options["out"], settings=settings, force=options["force"])
    runs: list[Run] = []
    try:
        _run_seeds(world, options, runs, folder)
    finally:
        if folder is not None and any(run.rows for run in runs):
            _draw(folder, runs, world)
    if options["tensorboard"] and folder is not None:
        from qposterior.experiments.tensorboard import write_events

        for run in runs:
            write_events(folder.path, run.rows)
    summaries = json.dumps([run.summary() for run in runs], indent=2)
    if target == "-":
        click.echo(summaries)
    elif target is not None:
        write_atomically(target, summaries + "\n")
    if target != "-":
        _print_table(runs, world)
        if folder is not None:
            click.echo(f"{folder.path}")


def _check(options: dict[str, Any]) -> None:
    for name in ("seeds", "episodes"):
        if options[name] < 1:
            raise click.UsageError(f"--{name} must be at least 1, got {options[name]}")
    if options["seed"] < 0:
        raise click.UsageError(f"--seed must be 0 or more, got {options['seed']}")
    if options["tensorboard"]:
        if options["out"] is None:
            raise click.UsageError("--tensorboard writes into the directory of the run: give --out DIR too")
        from qposterior.experiments.tensorboard import import_writer

        import_writer()


def _json_target(target: str | None, force: bool) -> Any:
    from pathlib import Path

    if target is None or target == "-":
        return target
    path = Path(target)
    if path.exists() and not force:
        raise click.UsageError(f"{path} exists; choose another --json file or pass --force")
    if not path.parent.is_dir():
        raise click.UsageError(f"--json {path}: there is no directory {path.parent}")
    return path


def _run_seeds(world: World, options: dict[str, Any], runs: list[Run], folder: RunDirectory | None) -> None:
    """Run one seed after the other; what an interruption leaves of a seed is kept too."""
    from qposterior.experiments.beliefs import Beliefs
    from qposterior.experiments.explore import explore

    with _Progress(options) as report:
        for seed in range(options["seed"], options["seed"] + options["seeds"]):
            agent = _make_agent(world, options, seed)
            latest: list[Run] = []
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
            finally:
                runs += latest
                if folder is not None and latest:
                    beliefs.finish(agent)
                    folder.add(latest[0], beliefs)


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


class _Progress:
    """A progress bar on stderr when it is a terminal; called with the run after each episode."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.bar: Any = None
        self.seen = 0

    def __enter__(self) -> Callable[[Run, Any], None]:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("", total=self.options["seeds"] * self.options["episodes"])
        return self.report

    def report(self, run: Run, agent: Any) -> None:
        """Show the state of learning: regret so far, pairs seen, and where the sampler stands."""
        if self.bar is None:
            return
        finished = (run.seed - self.options["seed"]) * self.options["episodes"]
        self.seen = run.rows[-1]["new_pairs"] + (self.seen if len(run.rows) > 1 else 0)
        text = f"seed {run.seed}  regret {sum(run.regret):8.2f}  pairs seen {self.seen}"
        if hasattr(agent, "progress"):
            text += "".join(f"  {name} {value:.3g}" for name, value in agent.progress().items())
        self.bar.update(self.task, completed=finished + len(run.rows), description=text)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()


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
