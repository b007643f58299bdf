"""`qposterior list`."""

from __future__ import annotations

import click


@click.command("list", short_help="Name the agents, environments or priors.")
@click.argument("what", type=click.Choice(["agents", "environments", "priors"]))
def list_command(what: str) -> None:
    """Name everything of a kind, a line each.

    \b
    Examples:
      qposterior list agents
      qposterior list environments
      qposterior list priors
    """
    from qposterior.agents.registry import AGENTS
    from qposterior.environments.registry import ENVIRONMENTS
    from qposterior.model.prior import PRIORS

    summaries = {
        "agents": {name: entry.summary for name, entry in AGENTS.items()},
        "environments": {name: entry.summary for name, entry in ENVIRONMENTS.items()},
        "priors": {name: str(kind.__doc__).partition("\n")[0] for name, kind in PRIORS.items()},
    }[what]
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        click.echo(f"{name:<{width}}  {summary}")
    if what == "environments":
        click.echo("and any Gymnasium id with discrete spaces, for example FrozenLake-v1")
