"""`qposterior list`."""

from __future__ import annotations

import click


@click.command("list", short_help="Name the agents or environments.")
@click.argument("what", type=click.Choice(["agents", "environments"]))
def list_command(what: str) -> None:
    """Name everything of a kind, a line each.

    \b
    Examples:
      qposterior list agents
      qposterior list environments
    """
    from qposterior.agents.registry import AGENTS
    from qposterior.environments.registry import ENVIRONMENTS

    entries = AGENTS if what == "agents" else ENVIRONMENTS
    width = max(map(len, entries))
    for name, entry in entries.items():
        click.echo(f"{name:<{width}}  {entry.summary}")
    if what == "environments":
        click.echo("and any Gymnasium id with discrete spaces, for example FrozenLake-v1")
