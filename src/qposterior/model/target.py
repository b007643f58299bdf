r"""A target: what was seen, under a prior, a noise and a belief of the rows, as a density over a chart.

.. math:: \log p(x \mid D) = \log \text{prior}(w(x)) + \log |\det \partial w / \partial x|
          + \sum_k \log p(\text{readings}_k \mid g_k(x)), \quad w \text{ the parameters of } Q,

(paper, eq. abcpos and llhpstarnoisy). Where all parts have a compiled form one kernel evaluates the sum; else each part
is asked for its own, which is slower and the same to rounding. A target is never changed: `given` rows, or with other
readings, it is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np

from qposterior.checks import check_type
from qposterior.errors import InvalidInputError
from qposterior.model.charts import BellmanChart, Chart, Parts, QFunction, Table
from qposterior.model.kernels import particles
from qposterior.model.kernels.charts import Model
from qposterior.model.kernels.compile import over_particles
from qposterior.model.kernels.density import HARD_Q, HARD_REWARD, LOG_TWO_PI, LikelihoodData, gaussian_data
from qposterior.model.kernels.exchange import exchange_sweep
from qposterior.model.kernels.layout import build_layout
from qposterior.model.noise import Readings, as_likelihood
from qposterior.model.prior import compiled_form, has_edge, prior_density, typical
from qposterior.model.rows import BoundRows, KnownRows, Rows
from qposterior.model.starts import Spread
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.experience import Experience

START_TRIES = 200
CLIFF = 50.0
"""Nats that starting points may lie below the points that they were spread from, under a noise of one's own."""

HALVINGS = 12

EXCHANGES = 16
"""Exchanges proposed in one sweep, at most: one for each state where there are fewer."""


class LogDensity(NamedTuple):
    """Log-densities of N points: the smooth part, which the gradient belongs to, and a piecewise constant rest."""

    smooth: FloatArray  # (N,)  −inf outside the support
    jump: FloatArray  # (N,)  −log det in Bellman coordinates, 0 elsewhere

    @property
    def total(self) -> FloatArray:
        """``(N,)`` the log-density."""
        return self.smooth + self.jump

    @classmethod
    def of(cls, both: FloatArray) -> LogDensity:
        """Return the columns of an ``(N, 2)`` array."""
        return cls(both[:, 0], both[:, 1])

    def stacked(self) -> FloatArray:
        """Return an ``(N, 2)`` array, a copy."""
        return np.stack(self, axis=1)

    def where(self, chosen: BoolArray, other: LogDensity) -> LogDensity:
        """Return these log-densities where `chosen`, the others elsewhere."""
        return LogDensity(*(np.where(chosen, one, two) for one, two in zip(self, other, strict=True)))


class Density:
    """A density over R^D with its gradient: all that a trajectory needs. Nothing here knows of Q."""

    @property
    def num_coordinates(self) -> int:
        """D."""
        raise NotImplementedError

    @property
    def upper_walls(self) -> FloatArray:
        """``(D,)`` hard walls that a trajectory is reflected at, infinite where there is none."""
        return np.full(self.num_coordinates, np.inf)

    @property
    def has_edge(self) -> bool:
        """Whether the support ends where there is no wall, so that a good trajectory may leave it."""
        return False

    def log_density(self, x: FloatArray, rows: FloatArray | None = None) -> LogDensity:
        """Return the log-densities of ``(N, D)`` points."""
        return self.log_density_and_grad(x)[0]

    def log_density_and_grad(self, x: FloatArray) -> tuple[LogDensity, FloatArray]:
        """Return the log-densities, and the ``(N, D)`` gradients of their smooth part."""
        raise NotImplementedError

    def particles(self, chosen: BoolArray) -> Density:
        """Return the density of some of the particles, where it depends on which they are."""
        return self

    def leapfrog(
        self, x: FloatArray, p: FloatArray, *, step: FloatArray, num_steps: IntArray, inverse_mass: FloatArray
    ) -> tuple[FloatArray, FloatArray, LogDensity]:
        """Return position, momentum and log-densities after the leapfrog steps; `step`, `num_steps` are ``(N,)``."""
        return leapfrog_by_gradient(self, x, p, step, num_steps, inverse_mass)

    def run_chains(
        self,
        x: FloatArray,
        density: LogDensity,
        p: FloatArray,
        log_uniform: FloatArray,
        *,
        step: FloatArray,
        num_steps: IntArray,
        inverse_mass: FloatArray,
    ) -> tuple[FloatArray, LogDensity, FloatArray]:
        """Run M trajectories of every particle one after the other, each accepted or refused (paper, alg. hmc).

        `p` ``(N, M, D)`` are their momenta, which are used up, `num_steps` ``(N, M)`` their lengths, `log_uniform`
        ``(N, M)`` what the energy gains must exceed. Return the path ``(N, M, D)``, the log-densities at its end and
        the energy gains ``(N, M, 2)`` without and with the jumps, −inf for a trajectory that has diverged.
        """
        return chains_by_leapfrog(self, x, density, p, log_uniform, step, num_steps, inverse_mass)


class Target(Density):
    """An unnormalised posterior over coordinates x ∈ R^D; every method takes ``(N, D)`` particles.

    The coordinates are those of the chart, then the log-scale of the noise where it is learned. With uncertain rows the
    density is that given `rows`: those given, or the mean of what is believed of them.
    """

    def __init__(
        self,
        seen: Experience,
        prior: Any,
        noise: Any,
        *,
        chart: Callable[[Parts], Any] = BellmanChart,
        rows: Rows | None = None,
        q_function: QFunction | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.seen, self.prior, self.noise = seen, prior, as_likelihood(noise)
        self.rows: BoundRows = (KnownRows() if rows is None else rows).bind(seen, rng)
        check_type("what rows.bind(seen, rng) returns", self.rows, BoundRows)
        self.layout = build_layout(seen.space, self.rows.pairs, self.rows.table)
        function = Table(seen.space) if q_function is None else q_function
        self.typical_value, self.typical_spread = typical(prior, function.space)
        size = int(function.space.num_pairs)
        self._prior_ends = False
        compiled = compiled_form(prior, size)
        numbers = compiled
        if numbers is None:  # by which starting points are placed
            numbers = gaussian_data(np.full(size, self.typical_value), np.full(size, self.typical_spread))
            self._prior_ends = has_edge(prior, function.space, self.typical_value, self.typical_spread)
        parts = Parts(
            seen=seen,
            layout=self.layout,
            rows=self.rows.shared,
            prior=prior,
            prior_data=numbers,
            readings=self.noise.bind(seen),
            is_exact=self.noise.is_exact,
            has_own_prior=compiled is None,
            q_function=function,
        )
        self.chart: Chart = chart(parts)
        self._is_own = compiled is None or not parts.readings.is_compiled
        self._compiled: Model | None = None if self._is_own else self.chart.model()

    # -- what it is made of --------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Parts:
        """What the chart is bound to."""
        return self.chart.parts

    @property
    def data(self) -> LikelihoodData:
        """The numbers of the readings."""
        return self.parts.readings.data

    @property
    def num_pairs(self) -> int:
        """K."""
        return self.seen.space.num_pairs

    @property
    def learns_scale(self) -> bool:
        """Whether the last coordinate is the log-scale of the noise."""
        return bool(self.data.learned)

    @property
    def num_coordinates(self) -> int:
        """D."""
        return self.chart.num_coordinates + int(self.learns_scale)

    @property
    def upper_walls(self) -> FloatArray:
        """``(D,)`` hard walls that a trajectory is reflected at, infinite where there is none."""
        return np.append(self.chart.upper_walls, [np.inf] * int(self.learns_scale))

    @property
    def has_jumps(self) -> bool:
        """Whether trajectories want to be followed by a redraw: the density jumps, or rows are to be drawn."""
        return self.chart.has_jumps or self.rows.draw_fn is not None

    @property
    def has_edge(self) -> bool:
        """Whether the support ends where there is no wall, so that a good trajectory may leave it.

        A uniform kernel, a bound on rewards or on values of Q that are no coordinates, loops that pay, or a part of
        one's own that says so.
        """
        can_pay = self.layout.discount == 1.0 and bool(self.layout.has_loop.any())
        columns, wall = self.chart.value_columns, self.parts.prior_data.wall
        is_walled = wall == HARD_Q and (columns is None or bool((columns < 0).any()))
        ends = self.parts.readings.has_edge or wall == HARD_REWARD or is_walled
        return can_pay or ends or self._prior_ends

    @property
    def is_compiled(self) -> bool:
        """Whether the kernels evaluate this density: all parts have a compiled form, no subclass another density."""
        own = type(self)
        if own.log_density is not Target.log_density and own.log_density_and_grad is Target.log_density_and_grad:
            raise InvalidInputError(
                f"{own.__name__} overrides log_density but not log_density_and_grad, whose gradients would "
                "belong to another density; override log_density_and_grad (log_density follows it)"
            )
        is_ours = own.log_density_and_grad is Target.log_density_and_grad and own.leapfrog is Target.leapfrog
        return is_ours and self._compiled is not None

    def _model(self) -> Model:
        assert self._compiled is not None  # asked only where `is_compiled`
        return self._compiled

    def given(self, rows: FloatArray | None) -> Self:
        """Return the target given ``(1 or N, nnz)`` transition rows; None: as it is."""
        return self if rows is None else self._with(self.chart.given(rows))

    def particles(self, chosen: BoolArray) -> Self:
        """Return the target of some of the particles: with the rows of these, where each has its own."""
        return self if self.parts.rows.shape[0] == 1 else self.given(self.parts.rows[chosen])

    def with_readings(self, readings: Readings) -> Self:
        """Return the same target with other readings or tolerances of the same pairs; nothing is built anew."""
        return self._with(self.chart.with_readings(readings))

    def _with(self, chart: Chart) -> Self:
        other = copy(self)
        other.chart = chart
        other._compiled = None if self._is_own else chart.model()
        return other

    # -- the density ---------------------------------------------------------------------------------------------------

    def log_density(self, x: FloatArray, rows: FloatArray | None = None) -> LogDensity:
        """Return the log-densities, given `rows` where they are."""
        return self.given(rows).log_density_and_grad(x)[0]

    def log_density_and_grad(self, x: FloatArray) -> tuple[LogDensity, FloatArray]:
        """Return the log-densities, and the ``(N, D)`` gradients of their smooth part."""
        x = np.ascontiguousarray(x, dtype=float)
        model = self._compiled
        if model is None:
            return self._by_parts(x)
        grad, out = np.zeros_like(x), np.empty((x.shape[0], 2))
        work = x.shape[0] * self.num_pairs
        over_particles(particles.densities, x.shape[0], self.parts.rows, *model, x, grad, out, work=work)
        return LogDensity.of(out), grad

    def _by_parts(self, x: FloatArray) -> tuple[LogDensity, FloatArray]:
        """Return the same from what each part says: the sum in the docstring of this module, and its chain rule."""
        point, log_scale = self.split(x)
        at = self.chart.locate(point, log_scale)
        smooth, slope = prior_density(self.prior, at.parameters, self.parts.q_function.space)
        smooth = smooth + at.log_volume
        bend, pull = None, np.zeros(x.shape[0])
        if at.rewards is not None:
            if self.parts.is_exact and self.seen.num_observed:
                raise InvalidInputError(
                    "tolerance 0 has no density in coordinates in which mean rewards are free; give a positive "
                    'tolerance, or use coordinates="bellman"'
                )
            part, bend, pull = self.parts.readings.log_density_and_grad(at.rewards, log_scale)
            smooth = smooth + part
        grad, stretch = self.chart.pull_back(at, slope, bend)
        if self.learns_scale:
            sd = self.data.log_scale_sd
            z = (log_scale - self.data.log_scale_mean) / sd
            smooth = smooth - 0.5 * z**2 - np.log(sd) - 0.5 * LOG_TWO_PI
            grad = np.column_stack([grad, pull + stretch - z / sd])
        inside = at.inside & np.isfinite(smooth)
        if self.parts.feedback < 1.0:
            share, (reference, push) = self.parts.feedback, self.chart.reference(x)
            smooth = share * np.where(inside, smooth, 0.0) + (1.0 - share) * reference
            grad, at.jump = share * grad + (1.0 - share) * push, share * at.jump
        outside = LogDensity(np.full(x.shape[0], -np.inf), np.zeros(x.shape[0]))
        return LogDensity(smooth, at.jump).where(inside, outside), np.where(inside[:, None], grad, 0.0)

    def log_likelihood(self, parameters: FloatArray, log_scale: FloatArray | None = None) -> FloatArray:
        """Return ``(N,)`` log p(readings | parameters), the same in every chart."""
        scales = np.zeros(parameters.shape[0]) if log_scale is None else np.ascontiguousarray(log_scale)
        rewards = self.chart.rewards_of(self.chart.q_function.to_q(parameters))
        return self.parts.readings.log_density_and_grad(rewards, scales)[0]

    def residuals(self, x: FloatArray) -> FloatArray:
        """Return ``(N, n)`` Bellman residuals g_k − r_k of the observed pairs (paper, eq. abcpos)."""
        return self.misfits(self.to_parameters(x))

    def misfits(self, parameters: FloatArray) -> FloatArray:
        """Return the same of parameters."""
        return np.asarray(self.chart.rewards_of(self.chart.q_function.to_q(parameters)) - self.data.mean)

    def leapfrog(
        self, x: FloatArray, p: FloatArray, *, step: FloatArray, num_steps: IntArray, inverse_mass: FloatArray
    ) -> tuple[FloatArray, FloatArray, LogDensity]:
        """Return position, momentum and log-densities after the leapfrog steps, compiled where that is possible."""
        if not self.is_compiled:
            return super().leapfrog(x, p, step=step, num_steps=num_steps, inverse_mass=inverse_mass)
        x, p, out = np.array(x), np.array(p), np.empty((x.shape[0], 2))
        moving: tuple[Any, ...] = (x, p, step, num_steps, inverse_mass, self.upper_walls, out)
        work = 2 * int(num_steps.sum()) * self.num_pairs
        over_particles(particles.leapfrog, x.shape[0], self.parts.rows, *self._model(), *moving, work=work)
        return x, p, LogDensity.of(out)

    def run_chains(
        self,
        x: FloatArray,
        density: LogDensity,
        p: FloatArray,
        log_uniform: FloatArray,
        *,
        step: FloatArray,
        num_steps: IntArray,
        inverse_mass: FloatArray,
    ) -> tuple[FloatArray, LogDensity, FloatArray]:
        """Run the trajectories in one compiled call where there is one (`Density.run_chains`)."""
        if not self.is_compiled:
            return chains_by_leapfrog(self, x, density, p, log_uniform, step, num_steps, inverse_mass)
        path, here, gain = np.empty_like(p), density.stacked(), np.empty((*log_uniform.shape, 2))
        start: tuple[Any, ...] = (np.ascontiguousarray(x), here, p, log_uniform)
        moving: tuple[Any, ...] = (step, num_steps, inverse_mass, self.upper_walls, path, gain)
        work = int(num_steps.sum()) * self.num_pairs
        over_particles(particles.chains, x.shape[0], self.parts.rows, *self._model(), *start, *moving, work=work)
        return path, LogDensity.of(here), gain

    def sweep(self, x: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return particles redrawn from exact conditionals where the density jumps and these are known."""
        return self.chart.sweep(x, rng) if self.is_compiled else x

    # -- along the feedback --------------------------------------------------------------------------------------------

    def with_feedback(self, feedback: float) -> Self:
        """Return the target at tolerance 0 with that feedback of what was seen (`BellmanChart.with_feedback`)."""
        return self._with(self.chart.with_feedback(feedback))

    @property
    def can_exchange(self) -> bool:
        """Whether there are states whose pairs may exchange their values."""
        return self.is_compiled and self.chart.exchange_states.size > 0

    def exchange(self, x: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, LogDensity, FloatArray]:
        """Return particles after proposals that two pairs of a state exchange their values, so that V stays.

        Their points, log-densities, and the ``(N,)`` numbers of proposals taken, of `EXCHANGES` or one a state
        (`kernels.exchange`). Only along rows of one successor: where a way meets another row it is refused.
        """
        x, here, taken = np.array(x), np.empty((x.shape[0], 2)), np.empty(x.shape[0])
        states = self.chart.exchange_states
        uniforms = rng.random((x.shape[0], min(states.size, EXCHANGES), 3))
        given: tuple[Any, ...] = (x, here, states, uniforms, taken)
        work = uniforms.size * self.num_pairs
        over_particles(exchange_sweep, x.shape[0], self.parts.rows, *self._model(), *given, work=work)
        return x, LogDensity.of(here), taken

    # -- from and to parameters ----------------------------------------------------------------------------------------

    def split(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the ``(N, D)`` coordinates of the chart and the ``(N,)`` log-scales, 0 where the noise is known."""
        if not self.learns_scale:
            return x, np.zeros(x.shape[0])
        return x[:, :-1], np.ascontiguousarray(x[:, -1])

    def log_scale_of(self, x: FloatArray) -> FloatArray | None:
        """Return the ``(N,)`` log-scales where they are learned."""
        return x[:, -1].copy() if self.learns_scale else None

    def to_parameters(self, x: FloatArray) -> FloatArray:
        """Return ``(N, P)`` parameters of Q, nan outside the support."""
        return self.chart.to_parameters(*self.split(np.ascontiguousarray(x, dtype=float)))

    def from_parameters(self, parameters: FloatArray, log_scale: FloatArray | None = None) -> FloatArray:
        """Return the coordinates of parameters (and of log-scales where learned): the inverse."""
        if not self.learns_scale:
            return self.chart.from_parameters(parameters, np.zeros(parameters.shape[0]))
        assert log_scale is not None
        return np.column_stack([self.chart.from_parameters(parameters, log_scale), log_scale])

    def to_q(self, x: FloatArray) -> FloatArray:
        """Return ``(N, K)`` values of Q on the pairs, nan outside the support."""
        return self.chart.q_function.to_q(self.to_parameters(x))

    def contains(self, parameters: FloatArray) -> BoolArray:
        """Return ``(N,)`` whether parameters lie where the chart reaches, whatever the readings."""
        return self.chart.contains(parameters)

    def optimal_share(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, K)`` the share of each pair in being optimal: what chains must agree on beside Q."""
        return self.seen.space.optimal_share(theta)

    # -- where chains start --------------------------------------------------------------------------------------------

    def initial(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, D)`` over-dispersed points of the support to start chains from."""
        fallback = self.chart.fallback
        if fallback is None:
            return draw_inside(self, self._draw_start, num, rng)
        x = self._draw_start(num, rng)
        if np.isfinite(self.log_density(x).total).all():
            return x
        elsewhere = self._with(fallback(self.parts))
        start = elsewhere.initial(num, rng)
        return self.from_parameters(elsewhere.to_parameters(start), elsewhere.log_scale_of(start))

    def _draw_start(self, num: int, rng: np.random.Generator) -> FloatArray:
        x = self.chart.start(num, rng)
        log_scale = np.zeros(num)
        if self.learns_scale:
            log_scale = self.data.log_scale_mean + 0.5 * self.data.log_scale_sd * rng.standard_normal(num)
        x = self.chart.spread_over_readings(x, log_scale, rng)
        return np.column_stack([x, log_scale]) if self.learns_scale else x

    @property
    def most_actions(self) -> int:
        """How many starting points it takes for every action of every state to be greedy in one of them."""
        return int(np.diff(self.seen.space.first_pair).max(initial=1))

    def disperse(self, x: FloatArray, rng: np.random.Generator, *, turn: int = 0) -> FloatArray:
        """Return starting points spread over policy cells, another set for each `turn`; else as given.

        Over the coordinates that are values of Q; where rewards are coordinates too, over the values of seen pairs.
        """
        columns = self.chart.value_columns
        if columns is None:
            return x
        x = self._over_cells(columns, x, self.to_q, rng, turn)
        if not (columns < 0).any() or self.chart.num_coordinates < columns.size:
            return x
        every, log_scale = np.arange(columns.size), self.log_scale_of(x)
        spread = self._spread(every, lambda theta: theta)
        theta = spread.over_cells(self.to_q(x), rng, turn=turn)
        return self._inside_or_back(np.minimum(self.from_parameters(theta, log_scale), self.upper_walls), x)

    def _over_cells(
        self,
        columns: IntArray,
        x: FloatArray,
        to_q_fn: Callable[[FloatArray], FloatArray],
        rng: np.random.Generator,
        turn: int,
    ) -> FloatArray:
        moved = self._spread(columns, to_q_fn).over_cells(x, rng, turn=turn)
        return self._inside_or_back(np.minimum(moved, self.upper_walls), x)

    def _spread(self, columns: IntArray, to_q_fn: Callable[[FloatArray], FloatArray]) -> Spread:
        prior, space = self.parts.prior_data, self.seen.space
        return Spread(space=space, layout=self.layout, prior=prior, column=columns, to_q_fn=to_q_fn)

    def _inside_or_back(self, moved: FloatArray, x: FloatArray) -> FloatArray:
        """Return the points that were moved, those outside the support where they had been.

        The likelihood of a noise of one's own may fall off a cliff that no trajectory climbs: there half the way is
        taken, again and again, until the density is within `CLIFF` of what it was.
        """
        moved = np.where(np.isfinite(moved).all(axis=1, keepdims=True), moved, x)
        density = self.log_density(moved).total
        if not self.parts.readings.is_compiled:
            least = self.log_density(x).total - CLIFF
            for _ in range(HALVINGS):
                moved = np.where((density < least)[:, None], 0.5 * (moved + x), moved)
                density = self.log_density(moved).total
        return np.where(np.isfinite(density)[:, None], moved, x)


def draw_inside(
    target: Target, draw_fn: Callable[[int, np.random.Generator], FloatArray], num: int, rng: np.random.Generator
) -> FloatArray:
    """Return ``(num, D)`` points of `draw_fn`, those outside the support drawn again."""
    x = draw_fn(num, rng)
    for _ in range(START_TRIES):
        outside = np.flatnonzero(~np.isfinite(target.log_density(x).total))
        if outside.size == 0:
            return x
        x[outside] = draw_fn(outside.size, rng)
    raise InvalidInputError(
        f"no point of the support found in {START_TRIES} tries; the prior assigns almost no mass to what was seen"
    )


def energy_gain(
    density: LogDensity, p: FloatArray, new_density: LogDensity, new_p: FloatArray, inverse_mass: FloatArray
) -> FloatArray:
    """Return ``(N, 2)`` the energy that trajectories lost, without and with the jumps; −inf for those that diverged."""
    with np.errstate(invalid="ignore", over="ignore"):
        kinetic = 0.5 * np.sum((p**2 - new_p**2) * inverse_mass, axis=1)
        smooth = new_density.smooth - density.smooth
        gain = np.stack([smooth, smooth + (new_density.jump - density.jump)], axis=1) + kinetic[:, None]
    return np.where(np.isfinite(gain[:, 1:]), gain, -np.inf)


def leapfrog_by_gradient(
    target: Density, x: FloatArray, p: FloatArray, step: FloatArray, num_steps: IntArray, inverse_mass: FloatArray
) -> tuple[FloatArray, FloatArray, LogDensity]:
    """The leapfrog steps of alg. hmc for a target without a compiled form; particles may differ in their steps."""
    x, p = x.copy(), p.copy()
    density, grad = target.log_density_and_grad(x)
    smooth, jump, walls = density.smooth.copy(), density.jump.copy(), target.upper_walls
    for taken in range(int(num_steps.max(initial=0))):
        moving = (taken < num_steps) & np.isfinite(smooth)
        if not moving.any():
            break
        half = 0.5 * step[moving, None]
        p[moving] += half * grad[moving]
        x[moving] += step[moving, None] * inverse_mass * p[moving]
        beyond = x > walls
        x = np.where(beyond, 2.0 * np.where(beyond, walls, 0.0) - x, x)
        p = np.where(beyond, -p, p)
        density, grad[moving] = target.particles(moving).log_density_and_grad(x[moving])
        smooth[moving], jump[moving] = density
        p[moving] += np.where(np.isfinite(density.smooth)[:, None], half * grad[moving], 0.0)
    return x, p, LogDensity(smooth, jump)


def chains_by_leapfrog(
    target: Density,
    x: FloatArray,
    density: LogDensity,
    p: FloatArray,
    log_uniform: FloatArray,
    step: FloatArray,
    num_steps: IntArray,
    inverse_mass: FloatArray,
) -> tuple[FloatArray, LogDensity, FloatArray]:
    """`Target.run_chains` for a target without a compiled form."""
    path, gain = np.empty_like(p), np.empty((*log_uniform.shape, 2))
    for m in range(p.shape[1]):
        lengths = np.ascontiguousarray(num_steps[:, m])
        new_x, new_p, new_density = target.leapfrog(x, p[:, m], step=step, num_steps=lengths, inverse_mass=inverse_mass)
        gain[:, m] = energy_gain(density, p[:, m], new_density, new_p, inverse_mass)
        accepted = log_uniform[:, m] < gain[:, m, 1]
        x, density = np.where(accepted[:, None], new_x, x), new_density.where(accepted, density)
        path[:, m] = x
    return path, density, gain
