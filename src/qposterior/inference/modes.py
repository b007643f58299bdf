"""Whether there is more than one mode to fear: points of different policy cells climb, and lines between them are seen.

Cheap, before anything is sampled: it decides which sampler `posterior` runs, never whether its answer is trusted.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from qposterior.inference.problem import Problem
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray

FEARED = 2.0
"""Nats that the density must fall on the line between two points, below the lower one, for chains not to pass."""

CLIMBERS, MOST_CLIMBERS = 8, 32
CLIMBS = 100
"""Steps uphill, each half or twice as long as the last."""

PLACES = 17
"""Places on a line at which the density is looked at."""

HIGHEST = 12
"""Climbers, the highest, between which lines are drawn."""

NEGLIGIBLE = 20.0
"""Nats below the highest at which a climber is on no mode that matters."""


def can_temper(problem: Problem) -> bool:
    """Return whether feedback can be tempered: tolerance 0, a table in Bellman coordinates, rows that are known."""
    return problem.noise.is_exact and problem.is_bellman and problem.rows is None and problem.q_function is None


def choose_method(problem: Problem) -> tuple[str, dict[str, Any]]:
    """Return "tempering" where there is more than one mode to fear, else "hmc", and the facts of a choice."""
    if not can_temper(problem):
        return "hmc", {}
    barrier = find_barrier(problem.target())
    return ("tempering" if barrier > FEARED else "hmc"), {"barrier": barrier}


def find_barrier(target: Target) -> float:
    """Return the largest fall of the log-density on a line between two high points of different policy cells.

    Below the lower of its ends, 0 or more. Under a log-concave density there is none, wherever the points lie: so an
    easy problem raises no alarm however badly it was climbed. A line that is no way through a valley may be beside one:
    the barrier is bounded from above. Modes in cells that no climber starts in are not found. The random numbers are of
    a stream of its own: draws do not depend on it.
    """
    if target.num_coordinates == 0:
        return 0.0
    rng = np.random.default_rng(0)
    num = int(np.clip(target.most_actions, CLIMBERS, MOST_CLIMBERS))
    x = climb(target, target.disperse(target.initial(num, rng), rng))
    height = target.log_density(x).total
    high = np.argsort(-height, kind="stable")[:HIGHEST]
    high = high[height[high] > height.max() - NEGLIGIBLE]
    pairs = np.array(list(combinations(high.tolist(), 2)), dtype=np.int64).reshape(-1, 2)
    if pairs.size == 0:
        return 0.0
    share = np.linspace(0.0, 1.0, PLACES)[1:-1, None, None]
    line = (1.0 - share) * x[pairs[:, 0]] + share * x[pairs[:, 1]]
    on_line = target.log_density(line.reshape(-1, x.shape[1])).total.reshape(line.shape[:2])
    return float(max(np.max(height[pairs].min(axis=1) - on_line.min(axis=0)), 0.0))


def climb(target: Target, x: FloatArray) -> FloatArray:
    """Return points uphill of ``(N, D)`` ones: steps along the gradient, taken where the density grows.

    In units of the prior's scales; the step of a point is doubled where it was taken, and quartered where it was not.
    """
    unit = target.typical_spread**2
    density, grad = target.log_density_and_grad(x)
    height, step = density.total, np.full(x.shape[0], 0.1)
    for _ in range(CLIMBS):
        moved = np.minimum(x + (step * unit)[:, None] * grad, target.upper_walls)
        density, slope = target.log_density_and_grad(moved)
        is_higher = density.total > height
        x, grad = np.where(is_higher[:, None], moved, x), np.where(is_higher[:, None], slope, grad)
        height, step = np.where(is_higher, density.total, height), np.where(is_higher, 2.0 * step, 0.25 * step)
    return x
