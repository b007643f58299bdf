"""Targets by the names of their charts."""

from __future__ import annotations

from functools import partial

from qposterior.model.charts import LinearQ, QChart, RewardChart
from qposterior.model.rows import TableRows
from qposterior.model.target import Target

BellmanTarget = Target
QTarget = partial(Target, chart=QChart)


def LinearQTarget(seen, features, prior, noise):
    """Q = features · w."""
    return Target(seen, prior, noise, chart=QChart, q_function=LinearQ(features))


def RewardTarget(seen, table, prior, noise):
    """A prior on rewards, the rows of all pairs known."""
    return Target(seen, prior, noise, chart=RewardChart, rows=TableRows(table))


def UncertainTarget(seen, prior, noise, rows, *, chains, rng):
    """Rows drawn from what is believed of them, others for each chain."""
    target = Target(seen, prior, noise, rows=rows, rng=rng)
    return target.given(target.rows.propose(chains, rng))
