"""`qposterior explore`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qposterior.agents.knowledge import TRANSITION_KNOWLEDGE
from qposterior.cli.options import parse_options, parse_prior
from qposterior.cli.output import json_path, print_table, unless_missing, write_json
from qposterior.progress import show_progress

if TYPE_CHECKING:
    from qposterior.agents.protocol import Agent
    from qposterior.experiments.explore import Run, World
    from qposterior.experiments.run_directory import RunDirectory
    from qposterior.progress import Progress


@click.command("explore", short_help="Let an agent explore an environment.")
@click.argument("environment", metavar="ENV")
@click.option("--agent", "agent_name", default="abrl", show_default=True, help="See `qposterior list agents`.")
@click.option("--depth", type=int, help="Size of the environment.")
@click.option("--episodes", type=int, default=300, show_default=True, help="Episodes per seed.")
@click.option("--until", type=click.Choice(["learned"]), help="End a seed at its learning time.")
@click.option("--seeds", type=int, default=1, show_default=True, help="How many seeds.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--transitions", type=click.Choice(TRANSITION_KNOWLEDGE), help="What the agent is told of them.")
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
    from qposterior.experiments.explore import stored_world

    _check(options)
    world = stored_world({"environment": environment} | options)
    _make_agent(world, options, options["seed"])  # a bad agent or option is found before anything is written
    target = json_path(options["json_target"], force=options["force"])
    with ExitStack() as stack:
        folder = _open_folder(environment, options, stack)
        runs = [] if folder is None else folder.runs(world)
        try:
            with show_progress("starting") as progress:
                for seed in range(options["seed"] + len(runs), options["seed"] + options["seeds"]):
                    _run_seed(world, options, seed=seed, runs=runs, folder=folder, progress=progress)
        finally:
            if folder is not None and runs:
                _draw(folder, runs, world)
        if options["tensorboard"] and folder is not None:
            from qposterior.experiments.tensorboard import write_events

            for run in runs:
                write_events(folder.path, run.rows, replace=True)
    write_json([run.summary() for run in runs], target, indent=2)
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
    from qposterior.checks import check_count

    for name, least in (("seeds", 1), ("episodes", 1), ("seed", 0)):
        check_count(f"--{name}", options[name], least)
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


def _run_seed(
    world: World,
    options: dict[str, Any],
    *,
    seed: int,
    runs: list[Run],
    folder: RunDirectory | None,
    progress: Progress,
) -> None:
    """Run one seed and add it to the others; what an interruption leaves of it is kept too."""
    from qposterior.experiments.beliefs import Beliefs
    from qposterior.experiments.explore import explore

    agent, beliefs = _make_agent(world, options, seed), Beliefs(space=world.space, seed=seed)
    latest: list[Run] = []
    is_finished = False

    def after_episode(run: Run) -> None:
        latest[:] = [run]
        if folder is not None:
            beliefs.record(agent)
        done = (seed - options["seed"]) * options["episodes"] + len(run.rows)
        progress.show(_describe(run, agent), done, options["seeds"] * options["episodes"], with_time=True)

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


def _make_agent(world: World, options: dict[str, Any], seed: int) -> Agent:
    given = {name: options[name] for name in ("particles", "prior") if options[name] is not None}
    given |= options["agent_option"]
    return world.make_agent(options["agent_name"], seed=seed, transitions=options["transitions"], **given)


def _describe(run: Run, agent: Any) -> str:
    """Return how learning goes: regret, pairs seen, the sampler's state."""
    seen = 0 if run.seen is None else run.seen.sum()
    text = f"seed {run.seed}  episode {len(run.rows)}  regret {sum(run.regret):8.2f}  pairs seen {seen}"
    numbers = agent.progress() if hasattr(agent, "progress") else {}
    return text + "".join(f"  {name} {value:.3g}" for name, value in numbers.items())


def _draw(folder: RunDirectory, runs: list[Run], world: World) -> None:
    from qposterior.report.explore_report import write_explore_report

    with unless_missing("report"):
        write_explore_report(folder.path, [run for run in runs if run.rows], world)


def _print_table(runs: list[Run], world: World) -> None:
    rows = []
    for run in runs:
        row = run.summary()
        rows.append(
            {
                "seed": row["seed"],
                "episodes": row["episodes"],
                "found": _or_dash(row["found_episode"]),
                "learned": _or_dash(row["learning_time"]),
                "regret": "–" if row["cumulative_regret"] is None else f"{row['cumulative_regret']:.2f}",
                "updates": row["posterior_updates"],
                "cut off": sum(not one["reached_goal"] for one in run.rows),
                "seconds": f"{row['seconds']:.2f}",
            }
        )
    print_table(f"{runs[0].agent} on {world.name}", rows)


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
