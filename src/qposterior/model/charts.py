r"""Charts: coordinates for the parameters of Q, and where a point of them lies.

A target is a density over coordinates x. Its chart says which parameters, values of Q and mean rewards a point x stands
for (`locate`), carries gradients back (`pull_back`), and knows the support. The log-density of a target is then

.. math:: \log \text{prior}(\text{parameters}(x)) + \log |\det \partial\,\text{parameters} / \partial x|
          + \sum_k \log p(\text{readings}_k \mid g_k(x)),

whatever the chart. `QChart`: x are the parameters themselves (paper, eq. abcpos), for a table or any other `QFunction`.
`BellmanChart`: ψ, that is θ on the pairs not seen and ρ = g(θ) on those seen (docs/explanation/bellman-coordinates.md).
`RewardChart`: the mean rewards of all pairs, whose prior they are. A chart of one's own has the methods of `Chart`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from qposterior.errors import InvalidInputError, NoUniqueSolutionError, name_states
from qposterior.model import quadrature
from qposterior.model.kernels import particles, piecewise
from qposterior.model.kernels.bellman import new_work, solve_component
from qposterior.model.kernels.charts import BellmanCoordinates, Model, QCoordinates
from qposterior.model.kernels.compile import over_particles
from qposterior.model.kernels.density import (
    HARD_Q,
    HARD_REWARD,
    LOG_TWO_PI,
    NO_WALL,
    SOFT_Q,
    PriorData,
    with_feedback,
)
from qposterior.model.kernels.layout import Layout
from qposterior.model.noise import Readings
from qposterior.model.prior import prior_density, truncated_normal, variable_of
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace

NO_FEEDBACK = 'give a positive tolerance, or use method="hmc"'
"""What to do where feedback is not tempered."""

SAME_THETA = 1e-6
"""Relative difference up to which the Bellman equations are taken to give θ back."""


class QFunction(Protocol):
    """Q as a function of its parameters."""

    @property
    def space(self) -> Any:
        """What a prior on the parameters is asked about; `space.num_pairs` is their number."""
        ...

    def to_q(self, parameters: FloatArray) -> FloatArray:
        """Return ``(N, K)`` values of Q on the pairs of ``(N, P)`` parameters."""
        ...

    def pull_back(self, slope: FloatArray) -> FloatArray:
        """Return ``(N, P)`` slopes in the parameters of ``(N, K)`` slopes in Q."""
        ...


@dataclass(frozen=True)
class Table:
    """A value for each pair: the parameters are θ itself."""

    space: StateActionSpace

    def to_q(self, parameters: FloatArray) -> FloatArray:
        """Return θ, a copy."""
        return np.array(parameters)

    def pull_back(self, slope: FloatArray) -> FloatArray:
        """Return the slopes as they are."""
        return slope


@dataclass(frozen=True)
class Weights:
    """The index set of the weights of a linear Q, in the place of a space: a prior draws one number for each."""

    num_pairs: int


@dataclass(frozen=True, eq=False)
class LinearQ:
    """Q_w = features · w (paper, app. misspecified); `features` is ``(K, F)``, a row per pair."""

    features: FloatArray

    @property
    def space(self) -> Weights:
        """The weights."""
        return Weights(int(self.features.shape[1]))

    def to_q(self, parameters: FloatArray) -> FloatArray:
        """Return ``(N, K)`` features · w."""
        return np.ascontiguousarray(parameters @ self.features.T)

    def pull_back(self, slope: FloatArray) -> FloatArray:
        """Return ``(N, F)`` slopes in the weights: the chain rule."""
        return slope @ self.features


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a chart is bound to."""

    seen: Experience
    layout: Layout
    rows: FloatArray  # (1 or N, nnz)  transition rows, shared by all particles or of each
    prior: Any  # a `Prior` on the parameters
    prior_data: PriorData  # its compiled form; of a prior of one's own only what starting points are placed by
    readings: Readings
    is_exact: bool  # tolerance 0
    has_own_prior: bool  # without a compiled form
    q_function: QFunction
    feedback: float = 1.0  # β: the power that prior(θ_O) / det is raised to, at tolerance 0

    @property
    def layout_given(self) -> Layout:
        """The layout with the rows that were put in, where all particles share them."""
        if self.rows.shape[0] > 1:
            raise InvalidInputError("particles that have rows of their own have no conditionals in common")
        return self.layout._replace(probability=self.rows[0])

    def check_rows(self) -> None:
        """Raise unless there is a row for each pair that was seen, in the order of the readings."""
        if not np.array_equal(self.layout.observed, self.seen.observed_pairs):
            raise InvalidInputError(
                f"rows must be those of the pairs seen, {self.seen.observed_pairs.tolist()} in this order; got rows of "
                f"{self.layout.observed.tolist()}"
            )


@dataclass(kw_only=True)
class Location:
    """Where N points of a chart lie. Points outside the support hold anything finite and are not `inside`."""

    parameters: FloatArray  # (N, P)  what the prior speaks of
    rewards: FloatArray | None  # (N, n)  mean rewards g_k of the observed pairs; None where these are fixed
    log_volume: FloatArray  # (N,)  the smooth part of log |det ∂ parameters / ∂x| …
    jump: FloatArray  # (N,)  … and the part that is constant by pieces
    inside: BoolArray  # (N,)
    x: FloatArray  # (N, D)  the points, and what else `pull_back` needs
    psi: FloatArray | None = None
    unit: FloatArray | None = None


class Chart(Protocol):
    """Coordinates of a target, the noise parameters apart; a class that is called with the `Parts` it is bound to."""

    parts: Parts
    num_coordinates: int
    upper_walls: FloatArray  # (D,)  hard walls that a trajectory is reflected at, inf where there is none
    has_jumps: bool  # whether `Location.jump` is not constant
    exchange_states: IntArray  # states in which pairs may exchange their values, in Bellman coordinates
    fallback: Callable[[Parts], Chart] | None  # the chart to start from where few draws lie in the support

    @property
    def q_function(self) -> QFunction:
        """Q as a function of the parameters."""
        ...

    @property
    def value_columns(self) -> IntArray | None:
        """``(K,)`` the coordinate that is the value of a pair, −1 where a pair has none; None where no pair has."""
        ...

    def given(self, rows: FloatArray) -> Self:
        """Return the same chart with other transition rows."""
        ...

    def with_readings(self, readings: Readings) -> Self:
        """Return the same chart of other readings of the same pairs."""
        ...

    def model(self) -> Model | None:
        """Return the compiled form, None where there is none."""
        ...

    def rewards_of(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, n)`` mean rewards g_k(θ) of the observed pairs."""
        ...

    def locate(self, x: FloatArray, log_scale: FloatArray) -> Location:
        """Return where ``(N, D)`` points lie; `log_scale` ``(N,)`` are those of the noise, 0 where it is known."""
        ...

    def pull_back(self, at: Location, slope: FloatArray, bend: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return ``(N, D)`` slopes in x, and ``(N,)`` in the log-scale, of slopes in the parameters and rewards."""
        ...

    def to_parameters(self, x: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return ``(N, P)`` parameters, nan outside the support."""
        ...

    def from_parameters(self, parameters: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return ``(N, D)`` coordinates: the inverse."""
        ...

    def contains(self, parameters: FloatArray) -> BoolArray:
        """Return ``(N,)`` whether parameters lie where the chart reaches, whatever the readings."""
        ...

    def start(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, D)`` over-dispersed points to start chains from, of which some may lie outside the support."""
        ...

    def spread_over_readings(self, x: FloatArray, log_scale: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return starting points moved to where single readings lie, where each may be a mode."""
        ...

    def sweep(self, x: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return particles (log-scales included) redrawn in another way than by trajectories, or as given."""
        ...

    def with_feedback(self, feedback: float) -> Self:
        """Return the chart at tolerance 0 with that feedback of what was seen, or raise."""
        ...

    def reference(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log-densities and gradients without feedback."""
        ...

    def draw_reference(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return independent draws without feedback."""
        ...


class BoundChart:
    """What the charts here share, and a chart of one's own may: rows and readings put in, and what need not be said."""

    parts: Parts
    num_coordinates: int
    upper_walls: FloatArray
    has_jumps: bool = False
    exchange_states: IntArray = np.empty(0, dtype=np.int64)
    fallback: Callable[[Parts], Chart] | None = None

    @property
    def q_function(self) -> QFunction:
        """The one that the target was made with."""
        return self.parts.q_function

    def given(self, rows: FloatArray) -> Self:
        """Return the same chart with other transition rows."""
        return self._with(rows=rows)

    def with_readings(self, readings: Readings) -> Self:
        """Return the same chart of other readings of the same pairs."""
        return self._with(readings=readings)

    def _with(self, **changed: Any) -> Self:
        other = copy(self)
        other.parts = replace(self.parts, **changed)
        return other

    def model(self) -> Model | None:
        """Return the compiled form, None where there is none: then the target is evaluated part by part."""
        return None

    def sweep(self, x: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return points redrawn in another way than by trajectories, where the density jumps; else as given."""
        return x

    def with_feedback(self, feedback: float) -> Self:
        """Raise: only Bellman coordinates have it."""
        raise InvalidInputError(
            f"feedback is tempered in Bellman coordinates, not by {type(self).__name__}; {NO_FEEDBACK}"
        )

    def reference(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Not asked for without `with_feedback`."""
        raise NotImplementedError

    def draw_reference(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Not asked for without `with_feedback`."""
        raise NotImplementedError

    def rewards_of(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, n)`` g_k(θ) = θ_k − γ Σ P(s'|k) max θ(s', ·) of the observed pairs (paper, eq. abcpos)."""
        layout, space = self.parts.layout, self.parts.seen.space
        value = space.maximum(theta)
        if not layout.observed.size:
            return np.zeros((theta.shape[0], 0))
        expected = np.add.reduceat(self.parts.rows * value[:, layout.successor], layout.row_start[:-1], axis=1)
        return np.asarray(theta[:, layout.observed] - layout.discount * expected)

    @property
    def value_columns(self) -> IntArray | None:
        """No coordinate is the value of a pair."""
        return None

    def spread_over_readings(self, x: FloatArray, log_scale: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return the starting points as they are."""
        return x


class QChart(BoundChart):
    """Q coordinates: x are the parameters of Q; Θ = R^P, improper policies and all. The tolerance must be positive."""

    def __init__(self, parts: Parts) -> None:
        if parts.is_exact and parts.seen.num_observed:
            raise InvalidInputError(
                'tolerance 0 has no density in Q coordinates; use coordinates="bellman", or a positive tolerance'
            )
        parts.check_rows()
        self.parts = parts
        self.num_coordinates = int(parts.q_function.space.num_pairs)
        self.upper_walls = np.full(self.num_coordinates, wall_on(parts.prior_data, HARD_Q))
        self._order = np.argsort(parts.layout.successor, kind="stable")  # entries by the state they lead to
        self._met, self._first = np.unique(parts.layout.successor[self._order], return_index=True)
        # A uniform kernel or a wall on rewards leaves little room; Bellman coordinates know the way.
        self.fallback = BellmanChart if self.is_table else None

    @property
    def is_table(self) -> bool:
        """Whether the parameters are the values of the pairs."""
        return self.parts.q_function.space is self.parts.seen.space

    def model(self) -> Model | None:
        """Return the compiled form for a table."""
        if not self.is_table:
            return None
        parts = self.parts
        return Model(parts.layout, parts.readings.data, parts.prior_data, QCoordinates(self.num_coordinates))

    @property
    def value_columns(self) -> IntArray | None:
        """All of them, for a table."""
        return np.arange(self.num_coordinates) if self.is_table else None

    def locate(self, x: FloatArray, log_scale: FloatArray) -> Location:
        """Return the parameters x and the rewards that their Q implies; every finite point is inside."""
        nothing = np.zeros(x.shape[0])
        rewards = self.rewards_of(self.parts.q_function.to_q(x))
        inside = np.asarray(np.isfinite(x).all(axis=1))
        return Location(parameters=x, rewards=rewards, log_volume=nothing, jump=nothing, inside=inside, x=x)

    def pull_back(self, at: Location, slope: FloatArray, bend: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the slope of the prior, plus that of the readings through g and Q.

        With bend_k the slope in g_k: θ_k gets bend_k if it was observed, and less γ Σ_j P(s_k|j) bend_j if it is the
        greedy pair of its state.
        """
        assert bend is not None
        layout, space = self.parts.layout, self.parts.seen.space
        theta = self.parts.q_function.to_q(at.parameters)
        in_theta = np.zeros_like(theta)
        in_theta[:, layout.observed] = bend
        flow = np.zeros((theta.shape[0], space.num_states))
        weight = layout.discount * self.parts.rows * np.repeat(bend, np.diff(layout.row_start), axis=1)
        if self._met.size:
            flow[:, self._met] = np.add.reduceat(weight[:, self._order], self._first, axis=1)
        chosen = greedy_pairs(space, theta)
        in_theta[np.arange(theta.shape[0])[:, None], chosen] -= flow[:, space.deciding_states]
        return slope + self.parts.q_function.pull_back(in_theta), np.zeros(theta.shape[0])

    def to_parameters(self, x: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return x, a copy."""
        return np.array(x)

    def from_parameters(self, parameters: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return the parameters, a copy."""
        return np.array(parameters)

    def contains(self, parameters: FloatArray) -> BoolArray:
        """Return true for all that are finite."""
        return np.asarray(np.isfinite(parameters).all(axis=1))

    def start(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return draws from the prior, those of a Gaussian reflected at its wall."""
        x = _prior_draws(self.parts, np.arange(self.num_coordinates), num, rng)
        return reflected(x, self.upper_walls)


class BellmanChart(BoundChart):
    """Bellman coordinates: φ = θ on unobserved pairs, ρ = g(θ) on observed ones (fixed at tolerance 0).

    With discount 1 the support is the θ whose greedy policy is proper on what was seen. Coordinates: the unobserved
    pairs at tolerance 0, else all pairs, ρ in place of θ on the observed ones. Where the scale σ of the noise is
    learned an observed coordinate is z with ρ = r̄ + σ z / √n, so that its spread does not depend on the scale.
    """

    def __init__(self, parts: Parts) -> None:
        seen, layout = parts.seen, parts.layout
        if parts.q_function.space is not seen.space:
            raise InvalidInputError('Bellman coordinates are those of a table; for another Q use coordinates="q"')
        parts.check_rows()
        self.parts = parts
        free = np.flatnonzero(~seen.observed) if parts.is_exact else np.arange(seen.space.num_pairs)
        self.free: IntArray = free.astype(np.int64)
        self.fixed: FloatArray = np.where(seen.observed, seen.reward_mean, 0.0)
        self.num_coordinates = int(free.size)
        self.has_jumps = bool(layout.has_loop.any())
        # Where no seen pair leads, nothing depends on which pair is greedy.
        met = np.unique(layout.successor)
        self.exchange_states = met[~layout.is_goal[met] & (np.diff(layout.first_pair)[met] > 1)]
        self.is_reward: BoolArray = layout.row_of[free] >= 0  # the coordinates that are a ρ (or its z)
        on_rewards = np.inf if parts.readings.data.learned else wall_on(parts.prior_data, HARD_REWARD)
        self.upper_walls = np.where(self.is_reward, on_rewards, wall_on(parts.prior_data, HARD_Q))
        self._check_support()

    def model(self) -> Model:
        """Return the compiled form."""
        parts = self.parts
        coordinates = BellmanCoordinates(self.free, self.fixed, parts.feedback)
        prior = with_feedback(parts.prior_data, parts.layout.observed, parts.feedback)
        return Model(parts.layout, parts.readings.data, prior, coordinates)

    def with_feedback(self, feedback: float) -> Self:
        r"""Return the chart at tolerance 0 with the feedback β ∈ [0, 1] of what was seen on the values that are free.

        .. math:: p_\beta(\varphi) \propto q(\varphi)^{1 - \beta} [\text{prior}(\theta(\varphi)) / \det]^\beta

        on the support of the posterior, with q the product of normals `draw_reference` draws from. Where the prior is
        such a product itself q is its marginal prior(φ_U), so that :math:`p_\beta \propto \text{prior}(\varphi_U)
        [\text{prior}(\theta_O) / \det]^\beta` (docs/explanation/tempering.md).
        """
        if not self.parts.is_exact:
            raise InvalidInputError(f"the feedback of what was seen is tempered at tolerance 0; {NO_FEEDBACK}")
        return self._with(feedback=float(feedback))

    def reference(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the ``(N,)`` log-densities of q at ``(N, D)`` points, its walls aside, and the gradients."""
        prior = self.parts.prior_data
        z = (x - prior.mean[self.free]) / prior.scale[self.free]
        log_norm = np.sum(np.log(prior.scale[self.free])) + 0.5 * self.free.size * LOG_TWO_PI
        return -0.5 * np.sum(z**2, axis=1) - log_norm, -z / prior.scale[self.free]

    def draw_reference(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, D)`` independent draws of q, below the walls of the free values."""
        prior = self.parts.prior_data
        mean, scale = prior.mean[self.free], prior.scale[self.free]
        return truncated_normal(mean, scale, np.full(mean.size, -np.inf), self.upper_walls, num, rng)

    @property
    def value_columns(self) -> IntArray:
        """Those of the pairs that were not observed."""
        column = np.full(self.parts.seen.space.num_pairs, -1, dtype=np.int64)
        column[self.free] = np.arange(self.free.size)
        return np.where(self.parts.seen.observed, -1, column)

    def to_psi(self, x: FloatArray, log_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``(N, K)`` ψ and ``(N, D)`` dψ/dx: the noise of a mean where its scale is learned, else 1."""
        psi = np.tile(self.fixed, (x.shape[0], 1))
        unit = np.ones_like(x, dtype=float)
        data = self.parts.readings.data
        if not data.learned:
            psi[:, self.free] = x
            return psi, unit
        centre, row = np.zeros(self.free.size), self.parts.layout.row_of[self.free][self.is_reward]
        unit[:, self.is_reward] = np.exp(log_scale)[:, None] * (data.scale[row] / np.sqrt(data.num_readings[row]))
        centre[self.is_reward] = data.mean[row]
        psi[:, self.free] = centre + unit * x
        return psi, unit

    def solve(self, psi: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``(N, K)`` θ with θ_O = ρ + γ P_O V_θ, nan where there is none, and ``(N,)`` log det(I − γ P_π)."""
        theta, log_det, num = np.empty_like(psi), np.empty(psi.shape[0]), psi.shape[0]
        over_particles(particles.solutions, num, self.parts.rows, self.parts.layout, psi, theta, log_det, work=psi.size)
        return theta, log_det

    def locate(self, x: FloatArray, log_scale: FloatArray) -> Location:
        """Return θ of ψ(x); |det ∂θ/∂ψ| = det(I − γ P_π)⁻¹ is the jump. A ψ without solution is outside.

        At tolerance 0 no observed pair is free, and ρ = r is not a variable: its likelihood is a constant left out.
        """
        psi, unit = self.to_psi(x, log_scale)
        theta, log_det = self.solve(psi)
        inside = np.asarray(np.isfinite(theta).all(axis=1))
        theta[~inside] = self.parts.prior_data.mean
        return Location(
            parameters=theta,
            rewards=psi[:, self.parts.layout.observed] if self.is_reward.any() else None,
            log_volume=np.log(unit).sum(axis=1),
            jump=-log_det,
            inside=inside,
            x=x,
            psi=psi,
            unit=unit,
        )

    def pull_back(self, at: Location, slope: FloatArray, bend: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the adjoint of the Bellman solve, plus the slope of the readings in ρ.

        Where the scale is learned ρ depends on it, and so does the volume of z → ρ: their slopes come second.
        """
        assert at.psi is not None
        assert at.unit is not None
        slope = np.ascontiguousarray(slope)
        given = self.parts.rows, self.parts.layout, at.psi, slope
        over_particles(particles.pull_backs, slope.shape[0], *given, work=slope.size)
        if bend is not None:
            slope[:, self.parts.layout.observed] += bend
        grad = slope[:, self.free] * at.unit
        return grad, np.sum(1.0 + (grad * at.x)[:, self.is_reward], axis=1)

    def to_parameters(self, x: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return ``(N, K)`` θ, nan where ψ has no solution."""
        return self.solve(self.to_psi(x, log_scale)[0])[0]

    def from_parameters(self, parameters: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return the coordinates of ``(N, K)`` θ."""
        psi = self._psi_of(parameters)
        x = psi[:, self.free]
        data = self.parts.readings.data
        if data.learned:
            row = self.parts.layout.row_of[self.free][self.is_reward]
            unit = np.exp(log_scale)[:, None] / np.sqrt(data.num_readings[row])
            x[:, self.is_reward] = (x[:, self.is_reward] - data.mean[row]) / unit
        return x

    def contains(self, parameters: FloatArray) -> BoolArray:
        """Return whether the Bellman equations of what was seen give θ back: with discount 1, if it is proper there."""
        if not self.has_jumps:
            return np.asarray(np.isfinite(parameters).all(axis=1))
        back, _ = self.solve(self._psi_of(parameters))
        gap, size = np.abs(back - parameters).max(axis=1), np.abs(parameters).max(axis=1)
        return np.asarray(gap <= SAME_THETA * size)

    def sweep(self, x: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return particles whose unobserved coordinates have each been redrawn from their exact conditional.

        `x` ``(N, D)`` with the log-scale, where learned, as last column. Not for soft walls, whose penalty is not
        piecewise Gaussian, nor for a feedback below 1: there the particles come back as they were.
        """
        parts = self.parts
        if parts.prior_data.wall == SOFT_Q or parts.feedback < 1.0:
            return x
        x = x.copy()
        uniforms = rng.random((x.shape[0], self.free.size, 2))
        given = parts.layout_given, parts.readings.data, parts.prior_data, self.free, self.fixed, x, uniforms
        work = 3 * x.shape[0] * parts.seen.space.num_pairs * self.free.size
        over_particles(piecewise.gibbs_sweep, x.shape[0], *given, work=work)
        return x

    def log_integral(self, theta: FloatArray, k: int) -> FloatArray:
        """Return ``(N,)`` log ∫ f_O(φ', x) dx over x = θ_k of an unobserved pair: Gaussian pieces, or quadrature.

        f_O is the density at tolerance 0, φ' are the other free values of each particle. Quadrature is for a prior of
        one's own.
        """
        prior = self.parts.prior_data
        if self.parts.has_own_prior:
            x, column = np.ascontiguousarray(theta[:, self.free]), int(self.value_columns[k])
            near = {"centre": float(prior.mean[k]), "spread": float(prior.scale[k])}
            return quadrature.log_integrals(self._log_density_alone, x, column, **near)
        psi = np.where(self.parts.seen.observed, self.parts.seen.reward_mean, theta)
        log_mass, given = np.empty(psi.shape[0]), (self.parts.layout_given, prior, psi, k)
        over_particles(piecewise.log_integrals, psi.shape[0], *given, log_mass, work=3 * psi.size)
        other = np.setdiff1d(self.free, [k])
        z = (theta[:, other] - prior.mean[other]) / prior.scale[other]
        return np.asarray(log_mass - 0.5 * np.sum(z**2, axis=1) + prior.log_norm)

    def _log_density_alone(self, x: FloatArray) -> FloatArray:
        """Return the ``(N,)`` log-density at tolerance 0, without a gradient."""
        at = self.locate(x, np.zeros(x.shape[0]))
        log_prior, _ = prior_density(self.parts.prior, at.parameters, self.parts.q_function.space)
        return np.where(at.inside, log_prior + at.jump, -np.inf)

    def stands_alone(self, k: int, successors: IntArray) -> bool:
        """Return whether nothing observed depends on θ_k, and k does not return to its state: then p(θ_k) is its prior.

        Only where the pairs are independent under the prior, as in a compiled form without a wall.
        """
        state = self.parts.seen.space.pair_state[k]
        is_met = np.any(self.parts.layout.successor == state) or np.any(successors == state)
        return not is_met and not self.parts.has_own_prior and self.parts.prior_data.wall == NO_WALL

    def start(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return prior draws of φ and draws of ρ around what was read; for heavy tails around single readings."""
        data, prior = self.parts.readings.data, self.parts.prior_data
        x = _prior_draws(self.parts, self.free, num, rng)
        row = self.parts.layout.row_of[self.free][self.is_reward]
        widest = prior.scale[self.free[self.is_reward]]
        spread = np.ones(row.size) if data.learned else data.scale[row]
        spread = np.minimum(spread / np.sqrt(data.num_readings[row]), widest)
        centre = 0.0 if data.learned else data.mean[row]
        x[:, self.is_reward] = centre + 0.5 * spread * rng.uniform(-1.0, 1.0, (num, row.size))
        return x

    def spread_over_readings(self, x: FloatArray, log_scale: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Move starting points from the mean of the readings of a pair to single ones, for heavy-tailed noise.

        There each reading may be a mode, and their mean may lie at none.
        """
        data = self.parts.readings.data
        row = self.parts.layout.row_of[self.free][self.is_reward]
        if data.point_value.size and row.size:
            first, count = data.point_start[row], np.diff(data.point_start)[row]
            reading = data.point_value[first + (count * rng.random((x.shape[0], row.size))).astype(np.int64)]
            unit = np.exp(log_scale)[:, None] / np.sqrt(data.num_readings[row]) if data.learned else 1.0
            x[:, self.is_reward] += (reading - data.mean[row]) / unit
        return reflected(x, self.upper_walls)

    def _psi_of(self, theta: FloatArray) -> FloatArray:
        psi = np.array(theta)
        psi[:, self.parts.layout.observed] = self.rewards_of(theta)
        return psi

    def _check_support(self) -> None:
        """Raise where the data themselves leave no support: a trap, or at tolerance 0 a loop that pays."""
        parts, layout = self.parts, self.parts.layout
        trapped = np.flatnonzero((layout.exit_pair == -2) & ~parts.seen.space.is_goal)
        if layout.discount == 1.0 and trapped.size:
            raise NoUniqueSolutionError(
                f"all actions of {name_states(trapped)} are known and none leads on to a goal or to anything unknown; "
                "with discount 1 every state needs a way out (add a goal, or a transition that leads to one)",
                trapped,
            )
        if not parts.is_exact:
            return
        upper, mean = wall_on(parts.prior_data, HARD_REWARD), parts.readings.data.mean
        if np.any(mean > upper):
            raise InvalidInputError(f"the prior says that rewards lie below {upper:g}, but {mean.max():g} was seen")
        if layout.discount == 1.0 and self.has_jumps:
            loop = paying_loop(layout, self.fixed)
            if loop.size:
                raise NoUniqueSolutionError(
                    f"the loop through {name_states(loop)} pays on average what was seen of it; with discount 1 every "
                    "loop must lose (add a step cost)",
                    loop,
                )


class RewardChart(BoundChart):
    """The mean rewards of all K pairs, the transitions of all pairs known; θ solves the MDP of these rewards.

    The parameters are the rewards themselves, under a prior on these (`RewardPrior`, or one's own): posterior sampling
    here is PSRL. At tolerance 0 the observed rewards are fixed and the coordinates are the others.
    """

    def __init__(self, parts: Parts) -> None:
        prior, space, seen = parts.prior, parts.seen.space, parts.seen
        if variable_of(prior) != "reward":
            raise InvalidInputError(f"coordinates that are rewards take a RewardPrior, got {prior}")
        upper = getattr(prior, "upper", None)
        highest = self.highest = np.inf if upper is None else float(upper)
        if parts.layout.observed.size != space.num_pairs:
            raise InvalidInputError("RewardPrior needs the rows of all pairs: pass transitions=mdp.transitions")
        if not parts.readings.is_compiled:
            raise InvalidInputError(
                "a RewardPrior takes a Noise or a tolerance; a noise of one's own needs a prior on Q"
            )
        loops = space.discount == 1.0 and parts.layout.has_loop.any()
        if loops and not highest < 0.0:
            raise InvalidInputError(
                f"with discount 1 and loops almost every draw of rewards has a loop that pays; RewardPrior needs "
                f"upper < 0, got {upper} (or use a discount below 1)"
            )
        data = parts.readings.data
        nearest = data.mean - (data.scale if parts.readings.has_edge and not parts.is_exact else 0.0)
        if (parts.is_exact or parts.readings.has_edge) and np.any(nearest > highest):
            raise InvalidInputError(
                f"the prior says that rewards lie below {highest:g}, but {data.mean.max():g} was seen"
            )
        self.parts = parts
        self.free = np.flatnonzero(~seen.observed) if parts.is_exact else np.arange(space.num_pairs)
        self.num_coordinates = int(self.free.size)
        self.upper_walls = np.full(self.num_coordinates, highest)

    @property
    def q_function(self) -> QFunction:
        """Q solves the MDP of the rewards."""
        return SolvedQ(self.parts.seen.space, self.parts.layout)

    def rewards_of(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, n)`` the rewards of the observed pairs that ``(N, K)`` θ implies."""
        return super().rewards_of(theta)[:, self.parts.seen.observed_pairs]

    def locate(self, x: FloatArray, log_scale: FloatArray) -> Location:
        """Return the rewards, which are the parameters: there is no determinant, and nothing to solve."""
        rewards, nothing = self._all_rewards(x), np.zeros(x.shape[0])
        return Location(
            parameters=rewards,
            rewards=None if self.parts.is_exact else rewards[:, self.parts.seen.observed_pairs],
            log_volume=nothing,
            jump=nothing,
            inside=np.asarray(np.isfinite(x).all(axis=1)),
            x=x,
        )

    def pull_back(self, at: Location, slope: FloatArray, bend: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the slopes of the free rewards."""
        if bend is not None:
            slope[:, self.parts.seen.observed_pairs] += bend
        return slope[:, self.free], np.zeros(slope.shape[0])

    def to_parameters(self, x: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return ``(N, K)`` rewards."""
        return self._all_rewards(x)

    def from_parameters(self, parameters: FloatArray, log_scale: FloatArray) -> FloatArray:
        """Return the free ones."""
        return parameters[:, self.free]

    def contains(self, parameters: FloatArray) -> BoolArray:
        """Return true for all that are finite."""
        return np.asarray(np.isfinite(parameters).all(axis=1))

    def start(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return draws from the prior, below its wall."""
        return np.asarray(self.parts.prior.draw(num, self.parts.seen.space, rng)[:, self.free])

    def draw(self, num: int, rng: np.random.Generator) -> FloatArray | None:
        """Return ``(num, D)`` independent draws of the posterior, normal or truncated normal pair by pair.

        None where rewards have noise that is not Gaussian of a known scale, or a prior of one's own: that takes a
        Markov chain.
        """
        prior, data, observed = self.parts.prior, self.parts.readings.data, self.parts.seen.observed_pairs
        if data.point_value.size or data.learned or self.parts.has_own_prior:
            return None
        ones = np.ones(self.parts.seen.space.num_pairs)
        mean, sd = prior.mean * ones, prior.scale * ones
        low, high = -np.inf * ones, self.highest * ones
        if not self.parts.is_exact and self.parts.readings.has_edge:
            low[observed] = data.mean - data.scale
            high[observed] = np.minimum(high[observed], data.mean + data.scale)
        elif not self.parts.is_exact:
            precision = data.num_readings / data.scale**2
            total = precision + 1.0 / prior.scale**2
            mean[observed] = (precision * data.mean + prior.mean / prior.scale**2) / total
            sd[observed] = total**-0.5
        return truncated_normal(mean, sd, low, high, num, rng)[:, self.free]

    def _all_rewards(self, x: FloatArray) -> FloatArray:
        full = np.empty((x.shape[0], self.parts.seen.space.num_pairs))
        full[:, self.parts.seen.observed_pairs] = self.parts.readings.data.mean
        full[:, self.free] = x
        return full


@dataclass(frozen=True)
class SolvedQ:
    """Q of rewards of all pairs whose rows are known: the solution of the Bellman equations."""

    space: StateActionSpace
    layout: Layout

    def to_q(self, parameters: FloatArray) -> FloatArray:
        """Return ``(N, K)`` the optimal Q of ``(N, K)`` rewards."""
        rewards, theta = np.ascontiguousarray(parameters), np.empty_like(parameters)
        given = self.layout.probability[None], self.layout, rewards, theta, np.empty(theta.shape[0])
        over_particles(particles.solutions, theta.shape[0], *given, work=theta.size)
        return theta

    def pull_back(self, slope: FloatArray) -> FloatArray:
        """Not needed: the readings are of the rewards themselves."""
        raise NotImplementedError


CHARTS: dict[str, Callable[[Parts], Any]] = {"bellman": BellmanChart, "q": QChart}
"""Charts by the name of their coordinates."""


def _prior_draws(parts: Parts, columns: IntArray, num: int, rng: np.random.Generator) -> FloatArray:
    """Return ``(num, D)`` draws of the prior of some parameters; its normal part alone where there is a wall."""
    prior, size = parts.prior_data, columns.size
    # A column more where a scale is learned: what a seed draws does not depend on who draws the scale.
    z = rng.standard_normal((num, size + int(parts.readings.data.learned)))[:, :size]
    if parts.has_own_prior:
        return np.asarray(parts.prior.draw(num, parts.q_function.space, rng)[:, columns])
    return prior.mean[columns] + prior.scale[columns] * z


def wall_on(prior: PriorData, kind: int) -> float:
    """Return where the hard wall of that kind stands, infinite where there is none."""
    return prior.upper if prior.wall == kind else np.inf


def reflected(x: FloatArray, walls: FloatArray) -> FloatArray:
    """Return points with the coordinates beyond a wall reflected at it."""
    return np.where(x > walls, 2.0 * np.where(np.isfinite(walls), walls, 0.0) - x, x)


def greedy_pairs(space: StateActionSpace, theta: FloatArray) -> IntArray:
    """Return ``(N, states)`` the greedy pair of each deciding state, the lowest where some tie."""
    start = space.first_pair[space.deciding_states]
    size = np.diff(np.append(start, space.num_pairs))
    is_best = theta >= np.repeat(np.maximum.reduceat(theta, start, axis=1), size, axis=1)
    candidate = np.where(is_best, np.arange(space.num_pairs), space.num_pairs)
    return np.asarray(np.minimum.reduceat(candidate, start, axis=1))


def paying_loop(layout: Layout, fixed: FloatArray) -> IntArray:
    """Return the states of a looping component whose observed rewards have a loop of positive mean, or none.

    A property of the rows and rewards alone: the unobserved values are exit payoffs, and any finite ones will do.
    """
    work = new_work(layout)
    for c in np.flatnonzero(layout.has_loop):
        work.greedy[:] = -1
        fine, _ = solve_component(layout, fixed, work, int(c))
        if not fine:
            return np.sort(layout.component_state[layout.component_start[c] : layout.component_start[c + 1]])
    return np.empty(0, dtype=np.int64)
