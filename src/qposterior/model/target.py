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

    @property
    def has_edge(self) -> bool:
        """Whether a good trajectory may leave the support, which is then no sign of a step that is too large."""
        return False

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
        return leapfrog_by_gradient(self, x, p, step, num_steps, inverse_mass)

    def run_chains(
        self,
        x: FloatArray,
        density: FloatArray,
        p: FloatArray,
        log_uniform: FloatArray,
        *,
        step: FloatArray,
        num_steps: IntArray,
        inverse_mass: FloatArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Run M trajectories of every particle one after the other, each accepted or refused (paper, alg. hmc).

        `p` ``(N, M, D)`` are their momenta, `num_steps` ``(N, M)`` their lengths, `log_uniform` ``(N, M)`` what the
        energy gains must exceed. Return the path ``(N, M, D)``, the log-densities ``(N, 2)`` at its end and the energy
        gains ``(N, M, 2)`` without and with the jumps, −inf for a trajectory that has run off.
        """
        path, gain = np.empty_like(p), np.empty((*log_uniform.shape, 2))
        for m in range(p.shape[1]):
            lengths = np.ascontiguousarray(num_steps[:, m])
            new_x, new_p, new_density = self.leapfrog(
                x, p[:, m], step=step, num_steps=lengths, inverse_mass=inverse_mass
            )
            gain[:, m] = energy_gain(density, p[:, m], new_density, new_p, inverse_mass)
            accepted = (log_uniform[:, m] < gain[:, m, 1])[:, None]
            x, density = np.where(accepted, new_x, x), np.where(accepted, new_density, density)
            path[:, m] = x
        return path, density, gain

    def gibbs_sweep(self, x: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return particles redrawn in another way than by trajectories, where the target has jumps; else as given."""
        return x

    def residuals(self, x: FloatArray) -> FloatArray:
        """Return ``(N, n)`` Bellman residuals g_k(θ) − r_k of the observed pairs."""
        ...

    def to_q(self, x: FloatArray) -> FloatArray:
        """Return ``(N, K)`` values of Q on the pairs."""
        ...

    def optimal_share(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, K')`` the indicators that chains must agree on beside Q: shares in being optimal, if any."""
        return np.empty((theta.shape[0], 0))

    def initial(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, D)`` over-dispersed points of the support to start chains from."""
        ...

    def disperse(self, x: FloatArray, rng: np.random.Generator, *, turn: int = 0) -> FloatArray:
        """Return starting points ``(N, D)`` spread over policy cells, another set for each `turn`; else as given."""
        return x

    @property
    def most_actions(self) -> int:
        """How many starting points it takes for every action of every state to be greedy in one of them."""
        return 1


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


def energy_gain(
    density: FloatArray, p: FloatArray, new_density: FloatArray, new_p: FloatArray, inverse_mass: FloatArray
) -> FloatArray:
    """Return ``(N, 2)`` the energy that trajectories lost, without and with the jumps; −inf for those that ran off."""
    with np.errstate(invalid="ignore", over="ignore"):
        kinetic = 0.5 * np.sum((p**2 - new_p**2) * inverse_mass, axis=1, keepdims=True)
        gain = np.cumsum(new_density - density, axis=1) + kinetic
    return np.where(np.isfinite(gain[:, 1:]), gain, -np.inf)


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
