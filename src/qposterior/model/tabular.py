"""The posterior of a table of Q values, in Q coordinates and in Bellman coordinates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, Self

import numpy as np

from qposterior.errors import InvalidInputError, NoUniqueSolutionError, name_states
from qposterior.model import plain
from qposterior.model.kernels import particles, piecewise
from qposterior.model.kernels.compile import use_threads_for
from qposterior.model.kernels.density import HARD_Q, HARD_REWARD, NO_WALL, SOFT_Q, UNIFORM, LikelihoodData, PriorData
from qposterior.model.kernels.layout import Layout, build_layout
from qposterior.model.likelihood import Likelihood, Tolerance, likelihood_data, own_noise
from qposterior.model.prior import Prior, compiled_form, typical
from qposterior.model.starts import Spread
from qposterior.model.target import Target, draw_inside, leapfrog_by_gradient
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.experience import Experience
from qposterior.world.transitions import TransitionTable

SAME_THETA = 1e-6
"""Relative difference up to which the Bellman equations are taken to give θ back."""

CLIFF = 50.0
"""Nats that starting points may lie below the points that they were spread from, under a noise of one's own."""

HALVINGS = 12


def _owner(kind: type, name: str) -> type:
    """Return the class that a method comes from."""
    return next(base for base in kind.__mro__ if name in vars(base))


class TabularTarget(Target, ABC):
    """What both coordinate systems share: the data in the form of the kernels."""

    has_jumps = False

    def __init__(
        self,
        seen: Experience,
        prior: Prior,
        likelihood: Likelihood,
        *,
        table: TransitionTable | None = None,
    ) -> None:
        self.seen = seen
        self.prior = prior
        self.likelihood = likelihood
        self.layout: Layout = build_layout(seen.space, seen.observed_pairs, table or seen.table())
        self.data: LikelihoodData = likelihood_data(likelihood, seen)
        self.typical_value, self.typical_spread = typical(prior, seen.space)
        compiled = compiled_form(prior)
        self.own_noise = own_noise(likelihood)
        # By `model.plain`, for want of a compiled form of the prior or the noise.
        self.is_plain = compiled is None or self.own_noise is not None
        self.prior_data = compiled or PriorData(self.typical_value, self.typical_spread, NO_WALL, np.inf, 1.0)
        self.num_pairs = seen.space.num_pairs
        self.tables: FloatArray = np.ascontiguousarray(self.layout.probability[None])  # (1 or N, nnz)  rows by particle

    def log_likelihood(self, theta: FloatArray, log_scale: FloatArray | None = None) -> FloatArray:
        """Return ``(N,)`` log p(readings | θ), the same in both coordinate systems."""
        theta = np.ascontiguousarray(theta, dtype=float)
        if self.own_noise is not None:
            rewards = self.data.mean + self.q_residuals(theta)
            return plain.readings_and_grad(self, rewards, np.zeros(theta.shape[0]))[0]
        scales = np.zeros(theta.shape[0]) if log_scale is None else np.ascontiguousarray(log_scale)
        grad = np.empty_like(theta)
        use_threads_for(theta.size)
        return particles.q_likelihoods(self.layout, self.data, self.prior_data, theta, scales, grad)[:, 0].copy()

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
        """Run trajectories one after the other, each accepted or refused, in one compiled call; `p` is used up.

        A subclass with a density or leapfrog steps of its own runs its trajectories by them.
        """
        if not self._is_compiled("leapfrog"):
            return super().run_chains(
                x, density, p, log_uniform, step=step, num_steps=num_steps, inverse_mass=inverse_mass
            )
        path, density, gain = np.empty_like(p), density.copy(), np.empty((*log_uniform.shape, 2))
        use_threads_for(int(num_steps.sum()) * self.num_pairs)
        given = (np.ascontiguousarray(x), density, p, log_uniform, step, num_steps, inverse_mass, self.upper_walls)
        self._chains(*given, path, gain)
        return path, density, gain

    def _is_compiled(self, *others: str) -> bool:
        """Return whether the density, and any other methods named, are those that the kernels were written for.

        A prior or noise without compiled form, or a subclass with a density of its own, must not be sampled by them.
        """
        names = ("_chains", "log_density", "log_density_and_grad", *others)
        owners = {name: _owner(type(self), name) for name in names}
        written_for = owners.pop("_chains")
        if owners["log_density"] is not owners["log_density_and_grad"] and issubclass(
            owners["log_density"], owners["log_density_and_grad"]
        ):
            raise InvalidInputError(
                f"{type(self).__name__} overrides log_density but not log_density_and_grad, whose gradients would "
                "belong to another density; override log_density_and_grad (log_density follows it)"
            )
        return not self.is_plain and all(owner is written_for for owner in owners.values())

    @property
    def has_edge(self) -> bool:
        """Whether the support ends where there is no wall: a uniform kernel, a bound on rewards, loops that pay."""
        can_pay = self.layout.discount == 1.0 and bool(self.layout.has_loop.any())
        ends = self.data.kind == UNIFORM or self.prior_data.wall == HARD_REWARD
        declared = any(getattr(part, "has_edge", False) for part in (self.prior, self.likelihood))
        return can_pay or ends or declared

    @abstractmethod
    def _chains(self, *arrays: Any) -> None:
        """Call the kernel."""

    def with_data(self, data: LikelihoodData) -> Self:
        """Return the same target with other readings or tolerances of the same pairs; nothing is built anew."""
        other = copy(self)
        other.data = data
        return other

    def residuals(self, x: FloatArray) -> FloatArray:
        """Return ``(N, n)`` g_k(θ) − r_k over the observed pairs."""
        return self.q_residuals(self.to_q(x))

    def q_residuals(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, n)`` g_k(θ) − r_k over the observed pairs, of ``(N, K)`` θ."""
        value = self.seen.space.maximum(theta)
        pairs = self.layout.observed
        expected = (
            np.add.reduceat(self.tables * value[:, self.layout.successor], self.layout.row_start[:-1], axis=1)
            if pairs.size
            else np.zeros((theta.shape[0], 0))
        )
        return theta[:, pairs] - self.layout.discount * expected - self.data.mean

    def optimal_share(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, K)`` the share of each pair in being optimal."""
        return self.seen.space.optimal_share(theta)

    @property
    def most_actions(self) -> int:
        """The most actions of a state."""
        return int(np.diff(self.seen.space.first_pair).max(initial=1))

    def disperse(self, x: FloatArray, rng: np.random.Generator, *, turn: int = 0) -> FloatArray:
        """Return starting points spread over policy cells (`starts.Spread`); those outside the support stay put."""
        spread = self._spread(self.value_columns, self.to_q)
        return self._where_inside(np.minimum(spread.over_cells(x, rng, turn=turn), self.upper_walls), x)

    def _spread(self, column: IntArray, to_q_fn: Callable[[FloatArray], FloatArray]) -> Spread:
        return Spread(space=self.seen.space, layout=self.layout, prior=self.prior_data, column=column, to_q_fn=to_q_fn)

    def _where_inside(self, moved: FloatArray, x: FloatArray) -> FloatArray:
        """Return the points that were moved, those outside the support where they had been.

        The likelihood of a noise of one's own may fall off a cliff that no trajectory climbs: there half the way is
        taken, again and again, until the density is within `CLIFF` of what it was.
        """
        moved = np.where(np.isfinite(moved).all(axis=1, keepdims=True), moved, x)
        density = self.log_density(moved).sum(axis=1)
        if self.own_noise is not None:
            least = self.log_density(x).sum(axis=1) - CLIFF
            for _ in range(HALVINGS):
                moved = np.where((density < least)[:, None], 0.5 * (moved + x), moved)
                density = self.log_density(moved).sum(axis=1)
        return np.where(np.isfinite(density)[:, None], moved, x)

    @property
    @abstractmethod
    def value_columns(self) -> IntArray:
        """``(K,)`` the coordinate that is the value θ_k itself, −1 for a pair that has none."""

    @abstractmethod
    def to_q(self, x: FloatArray) -> FloatArray:
        """Return ``(N, K)`` values of Q."""

    @abstractmethod
    def from_q(self, theta: FloatArray, log_scale: FloatArray | None = None) -> FloatArray:
        """Return the coordinates of ``(N, K)`` θ (and ``(N,)`` log-scales where learned): the inverse of `to_q`."""

    @abstractmethod
    def contains(self, theta: FloatArray) -> BoolArray:
        """Return ``(N,)`` whether θ lies where these coordinates reach, whatever the readings."""


class QTarget(TabularTarget):
    """p(θ | D) in Q coordinates (paper, eq. abcpos and llhpstarnoisy); Θ = R^K, improper policies and all.

    Coordinates: θ, then the log-scale where it is learned. The tolerance must be positive.
    """

    def __init__(self, seen: Experience, prior: Prior, likelihood: Likelihood) -> None:
        if isinstance(likelihood, Tolerance) and likelihood.is_exact and seen.num_observed:
            raise InvalidInputError(
                'tolerance 0 has no density in Q coordinates; use coordinates="bellman", or a positive tolerance'
            )
        super().__init__(seen, prior, likelihood)
        self.num_coordinates = self.num_pairs + int(self.data.learned)
        self.upper_walls = np.full(self.num_coordinates, np.inf)
        if self.prior_data.wall == HARD_Q:
            self.upper_walls[: self.num_pairs] = self.prior_data.upper

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return ``(N, 2)`` log-densities; the second column is 0."""
        return self.log_density_and_grad(x)[0]

    def log_density_and_grad(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log-densities and gradients."""
        x = np.ascontiguousarray(x, dtype=float)
        if self.is_plain:
            return plain.q_density_and_grad(self, x)
        grad = np.zeros_like(x)
        use_threads_for(x.shape[0] * self.num_pairs)
        smooth = particles.q_densities(self.layout, self.data, self.prior_data, x, grad)
        return np.stack([smooth, np.zeros_like(smooth)], axis=1), grad

    def leapfrog(
        self, x: FloatArray, p: FloatArray, *, step: FloatArray, num_steps: IntArray, inverse_mass: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return position, momentum and log-densities after the leapfrog steps."""
        if not self._is_compiled():
            return leapfrog_by_gradient(self, x, p, step, num_steps, inverse_mass)
        x, p = x.copy(), p.copy()
        model = (self.layout, self.data, self.prior_data)
        use_threads_for(int(num_steps.sum()) * self.num_pairs)
        density = particles.q_leapfrog(*model, x, p, step, num_steps, inverse_mass, self.upper_walls)
        return x, p, density

    def _chains(self, *arrays: Any) -> None:
        particles.q_chains(self.layout, self.data, self.prior_data, *arrays)

    @property
    def value_columns(self) -> IntArray:
        """All of them."""
        return np.arange(self.num_pairs)

    def to_q(self, x: FloatArray) -> FloatArray:
        """Return ``(N, K)`` θ, a copy."""
        return x[:, : self.num_pairs].copy()

    def from_q(self, theta: FloatArray, log_scale: FloatArray | None = None) -> FloatArray:
        """Return θ, with the log-scale where it is learned."""
        return theta.copy() if log_scale is None else np.concatenate([theta, log_scale[:, None]], axis=1)

    def contains(self, theta: FloatArray) -> BoolArray:
        """Return true for every finite θ."""
        return np.asarray(np.isfinite(theta).all(axis=1))

    def initial(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return draws from the prior, below its wall."""
        return _prior_draws(self, num, rng)


class BellmanTarget(TabularTarget):
    """p(ψ | D) in Bellman coordinates: φ = θ on unobserved pairs, ρ = g(θ) on observed ones (fixed at tolerance 0).

    With discount 1 the support is the θ whose greedy policy is proper on what was seen. Coordinates: the unobserved
    pairs at tolerance 0, else all pairs (ρ in place of θ on the observed ones), then the log-scale where it is learned.
    """

    def __init__(
        self,
        seen: Experience,
        prior: Prior,
        likelihood: Likelihood,
        *,
        table: TransitionTable | None = None,
    ) -> None:
        super().__init__(seen, prior, likelihood, table=table)
        exact = isinstance(likelihood, Tolerance) and likelihood.is_exact
        free = np.flatnonzero(~seen.observed) if exact else np.arange(self.num_pairs)
        self.free: IntArray = free.astype(np.int64)
        self.fixed: FloatArray = np.where(seen.observed, seen.reward_mean, 0.0)
        self.num_coordinates = int(free.size) + int(self.data.learned)
        self.has_jumps = bool(self.layout.has_loop.any())
        self.upper_walls = np.full(self.num_coordinates, np.inf)
        is_reward = self.layout.row_of[free] >= 0
        if self.prior_data.wall == HARD_Q:
            self.upper_walls[: free.size][~is_reward] = self.prior_data.upper
        elif self.prior_data.wall == HARD_REWARD and not self.data.learned:
            self.upper_walls[: free.size][is_reward] = self.prior_data.upper
        self._check(exact)

    @property
    def _model(self) -> tuple[Layout, LikelihoodData, PriorData, IntArray, FloatArray]:
        return self.layout, self.data, self.prior_data, self.free, self.fixed

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return ``(N, 2)`` the smooth part and −log det."""
        return self.log_density_and_grad(x)[0]

    def log_density_and_grad(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log-densities and gradients of the smooth part."""
        x = np.ascontiguousarray(x, dtype=float)
        if self.is_plain:
            return plain.bellman_density_and_grad(self, x)
        grad = np.zeros_like(x)
        use_threads_for(x.shape[0] * self.num_pairs)
        return particles.bellman_densities(self.tables, *self._model, x, grad), grad

    def leapfrog(
        self, x: FloatArray, p: FloatArray, *, step: FloatArray, num_steps: IntArray, inverse_mass: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return position, momentum and log-densities after the leapfrog steps."""
        if not self._is_compiled():
            return leapfrog_by_gradient(self, x, p, step, num_steps, inverse_mass)
        x, p = x.copy(), p.copy()
        use_threads_for(2 * int(num_steps.sum()) * self.num_pairs)
        model = (self.tables, *self._model)
        density = particles.bellman_leapfrog(*model, x, p, step, num_steps, inverse_mass, self.upper_walls)
        return x, p, density

    def _chains(self, *arrays: Any) -> None:
        particles.bellman_chains(self.tables, *self._model, *arrays)

    def disperse(self, x: FloatArray, rng: np.random.Generator, *, turn: int = 0) -> FloatArray:
        """Return starting points spread over policy cells; where rewards are free, the values of seen pairs are too."""
        spread = super().disperse(x, rng, turn=turn)
        if self.free.size < self.num_pairs or self.seen.num_observed == 0:
            return spread
        log_scale = spread[:, -1].copy() if self.data.learned else None
        everywhere = self._spread(np.arange(self.num_pairs), lambda theta: theta)
        theta = everywhere.over_cells(self.to_q(spread), rng, turn=turn)
        return self._where_inside(np.minimum(self.from_q(theta, log_scale), self.upper_walls), spread)

    @property
    def value_columns(self) -> IntArray:
        """Those of the pairs that were not observed."""
        column = np.full(self.num_pairs, -1, dtype=np.int64)
        column[self.free] = np.arange(self.free.size)
        return np.where(self.seen.observed, -1, column)

    def to_q(self, x: FloatArray) -> FloatArray:
        """Return ``(N, K)`` θ, nan where ψ has no solution."""
        model = (self.tables, self.layout, self.data, self.free, self.fixed)
        use_threads_for(x.shape[0] * self.num_pairs)
        return particles.bellman_to_q(*model, np.ascontiguousarray(x, dtype=float))

    def to_psi(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``(N, K)`` ψ of the coordinates and ``(N, free)`` dψ/dx: the noise of a mean where it is learned."""
        psi = np.tile(self.fixed, (x.shape[0], 1))
        unit = np.ones((x.shape[0], self.free.size))
        centre = np.zeros(self.free.size)
        if self.data.learned:
            rows = self.layout.row_of[self.free]
            rewards = np.flatnonzero(rows >= 0)
            spread = self.data.scale[rows[rewards]] / np.sqrt(self.data.num_readings[rows[rewards]])
            unit[:, rewards] = np.exp(x[:, -1:]) * spread
            centre[rewards] = self.data.mean[rows[rewards]]
        psi[:, self.free] = centre + unit * x[:, : self.free.size]
        return psi, unit

    def log_integral(self, theta: FloatArray, k: int) -> FloatArray:
        """Return ``(N,)`` log ∫ f_O(φ', x) dx over x = θ_k at tolerance 0: a sum of Gaussian pieces, or quadrature."""
        if self.is_plain:
            return plain.log_integral(self, theta, k)
        psi = np.where(self.seen.observed, self.seen.reward_mean, theta)
        use_threads_for(3 * psi.size)
        log_mass = piecewise.log_integrals(self.layout, self.prior_data, psi, k)
        other = np.setdiff1d(self.free, [k])
        mean, scale = self.prior_data.mean, self.prior_data.scale
        z = (theta[:, other] - mean) / scale
        constant = self.num_pairs * (np.log(scale) + 0.5 * np.log(2.0 * np.pi))
        return np.asarray(log_mass - 0.5 * np.sum(z**2, axis=1) - constant)

    def gibbs_sweep(self, x: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return particles whose unobserved coordinates have each been redrawn from their exact conditional.

        Not for soft walls, whose penalty is not piecewise Gaussian, nor for a subclass with a density of its own: there
        the particles come back as they were.
        """
        if self.prior_data.wall == SOFT_Q or not self._is_compiled():
            return x
        x = x.copy()
        uniforms = rng.random((x.shape[0], self.free.size, 2))
        use_threads_for(3 * x.shape[0] * self.num_pairs * self.free.size)
        piecewise.gibbs_sweep(*self._model, x, uniforms)
        return x

    def from_q(self, theta: FloatArray, log_scale: FloatArray | None = None) -> FloatArray:
        """Return the coordinates of ``(N, K)`` θ (and ``(N,)`` log-scales where learned): the inverse of `to_q`."""
        psi = theta.copy()
        psi[:, self.layout.observed] = self.data.mean + self.q_residuals(theta)
        x = psi[:, self.free]
        if not self.data.learned:
            return x
        assert log_scale is not None
        rows = self.layout.row_of[self.free]
        rewards = np.flatnonzero(rows >= 0)
        unit = np.exp(log_scale)[:, None] / np.sqrt(self.data.num_readings[rows[rewards]])
        x[:, rewards] = (x[:, rewards] - self.data.mean[rows[rewards]]) / unit
        return np.concatenate([x, log_scale[:, None]], axis=1)

    def contains(self, theta: FloatArray) -> BoolArray:
        """Return whether the Bellman equations of what was seen give θ back: with discount 1, if it is proper there."""
        if not self.has_jumps:
            return np.asarray(np.isfinite(theta).all(axis=1))
        psi = theta.copy()
        psi[:, self.layout.observed] = self.data.mean + self.q_residuals(theta)
        everything = np.arange(self.num_pairs)
        plain = self.data._replace(learned=False)
        use_threads_for(psi.size)
        back = particles.bellman_to_q(self.tables, self.layout, plain, everything, self.fixed, psi)
        return np.asarray(np.abs(back - theta).max(axis=1) <= SAME_THETA * np.abs(theta).max(axis=1))

    def initial(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return prior draws of φ and readings-centred draws of ρ, redrawn until they lie in the support."""
        return draw_inside(self, self._draw_start, num, rng)

    def _draw_start(self, num: int, rng: np.random.Generator) -> FloatArray:
        prior = self.prior_data
        x = rng.normal(prior.mean, prior.scale, (num, self.num_coordinates))
        if compiled_form(self.prior) is None:
            x[:, : self.free.size] = self.prior.draw(num, self.seen.space, rng)[:, self.free]
        rows = self.layout.row_of[self.free]
        rewards = np.flatnonzero(rows >= 0)
        spread = np.ones(rewards.size) if self.data.learned else self.data.scale[rows[rewards]]
        spread = np.minimum(spread / np.sqrt(self.data.num_readings[rows[rewards]]), prior.scale)
        centre = 0.0 if self.data.learned else self.data.mean[rows[rewards]]
        x[:, rewards] = centre + 0.5 * spread * rng.uniform(-1.0, 1.0, (num, rewards.size))
        if self.data.learned:
            x[:, -1] = self.data.log_scale_mean + 0.5 * self.data.log_scale_sd * rng.standard_normal(num)
        if self.data.point_value.size and rewards.size:
            # Heavy-tailed noise may have a mode at any of the readings, and their mean may lie at none.
            row = rows[rewards]
            first, count = self.data.point_start[row], np.diff(self.data.point_start)[row]
            reading = self.data.point_value[first + (count * rng.random((num, rewards.size))).astype(np.int64)]
            unit = np.exp(x[:, -1:]) / np.sqrt(self.data.num_readings[row]) if self.data.learned else 1.0
            x[:, rewards] += (reading - self.data.mean[row]) / unit
        walls = self.upper_walls
        return np.where(x > walls, 2.0 * np.where(np.isfinite(walls), walls, 0.0) - x, x)

    def _check(self, exact: bool) -> None:
        """Raise where the data themselves leave no support: a trap, or at tolerance 0 a loop that pays."""
        trapped = np.flatnonzero((self.layout.exit_pair == -2) & ~self.seen.space.is_goal)
        if self.layout.discount == 1.0 and trapped.size:
            raise NoUniqueSolutionError(
                f"all actions of {name_states(trapped)} are known and none leads on to a goal or to anything unknown; "
                "with discount 1 every state needs a way out (add a goal, or a transition that leads to one)",
                trapped,
            )
        if not exact:
            return
        wall = self.prior_data
        if wall.wall == HARD_REWARD and np.any(self.data.mean > wall.upper):
            worst = float(self.data.mean.max())
            raise InvalidInputError(f"the prior says that rewards lie below {wall.upper:g}, but {worst:g} was seen")
        if self.layout.discount == 1.0 and self.has_jumps:
            loop = paying_loop(self.layout, self.fixed)
            if loop.size:
                raise NoUniqueSolutionError(
                    f"the loop through {name_states(loop)} pays on average what was seen of it; with discount 1 every "
                    "loop must lose (add a step cost)",
                    loop,
                )


def paying_loop(layout: Layout, fixed: FloatArray) -> IntArray:
    """Return the states of a looping component whose observed rewards have a loop of positive mean, or none.

    A property of the rows and rewards alone: the unobserved values are exit payoffs, and any finite ones will do.
    """
    from qposterior.model.kernels.bellman import new_work, solve_component

    work = new_work(layout)
    for c in np.flatnonzero(layout.has_loop):
        work.greedy[:] = -1
        fine, _ = solve_component(layout, fixed, work, int(c))
        if not fine:
            return np.sort(layout.component_state[layout.component_start[c] : layout.component_start[c + 1]])
    return np.empty(0, dtype=np.int64)


def _prior_draws(target: QTarget, num: int, rng: np.random.Generator) -> FloatArray:
    prior, data = target.prior_data, target.data
    x = rng.normal(prior.mean, prior.scale, (num, target.num_coordinates))
    if compiled_form(target.prior) is None:
        x[:, : target.num_pairs] = target.prior.draw(num, target.seen.space, rng)
    if data.learned:
        x[:, -1] = data.log_scale_mean + 0.5 * data.log_scale_sd * rng.standard_normal(num)
    walls = target.upper_walls
    x = np.where(x > walls, 2.0 * np.where(np.isfinite(walls), walls, 0.0) - x, x)
    if np.isfinite(target.log_density(x).sum(axis=1)).all():
        return x
    # A uniform kernel or a wall on rewards leaves little room: start from Bellman coordinates, which know the way.
    inside = BellmanTarget(target.seen, target.prior, target.likelihood)
    start = inside.initial(num, rng)
    return np.concatenate([inside.to_q(start), start[:, inside.free.size :]], axis=1)
