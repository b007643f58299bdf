"""What a sampler sees: a density over R^D with its gradient. Nothing here knows that Q is a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.world.arrays import FloatArray, IntArray

START_TRIES = 200


class Target(Protocol):
    """An unnormalised posterior over coordinates x ∈ R^D; every method takes ``(N, D)`` particles.

    Log-densities come as ``(N, 2)``: the smooth part, which the gradient belongs to, and a piecewise constant rest
    (the log determinant of Bellman coordinates; 0 elsewhere). Their sum is the log-density.
    """

    num_coordinates: int
    upper_walls: FloatArray  # (D,)  hard walls that a trajectory is reflected at, inf where there is none
    has_jumps: bool  # whether the rest is not constant

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return ``(N, 2)`` smooth part and rest; −inf outside the support."""
        ...

    def log_density_and_grad(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log-densities and the ``(N, D)`` gradients of the smooth part."""
        ...

    def leapfrog(
        self, x: FloatArray, p: FloatArray, *, step: FloatArray, num_steps: IntArray, inverse_mass: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return position, momentum and log-densities after the leapfrog steps; `step`, `num_steps` are ``(N,)``."""
        ...

    def residuals(self, x: FloatArray) -> FloatArray:
        """Return ``(N, n)`` Bellman residuals g_k(θ) − r_k of the observed pairs."""
        ...

    def to_q(self, x: FloatArray) -> FloatArray:
        """Return ``(N, K)`` values of Q on the pairs."""
        ...

    def initial(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, D)`` over-dispersed points of the support to start chains from."""
        ...


def draw_inside(
    target: Target, draw_fn: Callable[[int, np.random.Generator], FloatArray], num: int, rng: np.random.Generator
) -> FloatArray:
    """Return ``(num, D)`` points of `draw_fn`, those outside the support drawn again."""
    x = draw_fn(num, rng)
    for _ in range(START_TRIES):
        outside = np.flatnonzero(~np.isfinite(target.log_density(x).sum(axis=1)))
        if outside.size == 0:
            return x
        x[outside] = draw_fn(outside.size, rng)
    raise InvalidInputError(
        f"no point of the support found in {START_TRIES} tries; the prior and the data hardly agree"
    )


def leapfrog_by_gradient(
    target: Target, x: FloatArray, p: FloatArray, step: FloatArray, num_steps: IntArray, inverse_mass: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The leapfrog steps of alg. hmc for a target without a compiled loop of its own; particles may differ in steps."""
    x, p = x.copy(), p.copy()
    density, grad = target.log_density_and_grad(x)
    for taken in range(int(num_steps.max(initial=0))):
        moving = (taken < num_steps) & np.isfinite(density[:, 0])
        if not moving.any():
            break
        half = 0.5 * step[moving, None]
        p[moving] += half * grad[moving]
        x[moving] += step[moving, None] * inverse_mass * p[moving]
        beyond = x > target.upper_walls
        x = np.where(beyond, 2.0 * np.where(beyond, target.upper_walls, 0.0) - x, x)
        p = np.where(beyond, -p, p)
        density[moving], grad[moving] = target.log_density_and_grad(x[moving])
        p[moving] += np.where(np.isfinite(density[moving, :1]), half * grad[moving], 0.0)
    return x, p, density
