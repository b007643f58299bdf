"""Hamiltonian Monte Carlo (paper, alg. hmc), several chains side by side, with a warm-up that tunes itself.

`step` is one trajectory of every chain from one state to the next, `run_hmc` the loop around it. Where greedy policies
can loop, the determinant of Bellman coordinates jumps and costs acceptance; there each trajectory is followed by a
Gibbs sweep over the free coordinates. Where transition rows are uncertain each chain has rows of its own, and a
trajectory is followed by proposals of others (app. tabmodelbased).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from qposterior.inference.chains import Chains, Counts, HMCSettings, sample, thinned
from qposterior.inference.problem import Problem
from qposterior.model.target import Density, LogDensity, Target, energy_gain
from qposterior.weighted_draws import Posterior
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

DIVERGENT = 50.0
"""An energy error beyond this is a divergence: the trajectory left where the integrator is any good."""

TRAJECTORIES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidate trajectory lengths of the warm-up, in units of π/2 standard deviations."""

TRIALS = 50
"""Trajectories by which the warm-up judges a candidate."""

MOST_SCOUTS = 16
"""Batches of further chains that look for modes, at most."""

CHAINS_OF_ROWS = 32
"""Chains run side by side where each has rows of its own: the compiled loops take them all at once."""

MOST_BLOCKS = 64
NUMBERS_AT_ONCE = 1 << 18
"""Momenta drawn for one call of the kernel: moves of small problems take less time than the way from Python to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the warm-up found: step size, trajectory length and the diagonal of the inverse mass matrix."""

    step: float
    trajectory: float
    inverse_mass: FloatArray  # (D,)

    def scaled(self, factor: float) -> Tuning:
        """Return the tuning with another step size."""
        return replace(self, step=self.step * factor)

    def num_steps(self, jitter: float, most: int) -> int:
        """Return the leapfrog steps of a trajectory of uniformly jittered length."""
        return int(self.many_steps(np.asarray(jitter), most))

    def many_steps(self, jitter: FloatArray, most: int) -> IntArray:
        """Return the same for many."""
        steps = np.ceil(2.0 * jitter * self.trajectory / self.step)
        return np.minimum(np.maximum(steps, 1.0), most).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """The transition rows of every chain, where they are not known, and how they are proposed."""

    rows: FloatArray  # (C, nnz)
    num_blocks: int = 1  # pairs whose rows are proposed together: one part in so many
    acceptance: float = 1.0  # of the last proposals

    def adapted(self, most: int) -> RowState:
        """Return smaller blocks where few proposals are taken, larger ones where most are (in the warm-up only)."""
        blocks = self.num_blocks
        if self.acceptance < 0.25:
            blocks = min(2 * blocks, MOST_BLOCKS, max(most, 1))
        elif self.acceptance > 0.7:
            blocks = max(blocks // 2, 1)
        return replace(self, num_blocks=blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """Where C chains are: all that the next step needs."""

    x: FloatArray  # (C, D)
    density: LogDensity
    tuning: Tuning
    rows: RowState | None = None

    @classmethod
    def untuned(cls, target: Target, x: FloatArray, rows: FloatArray | None = None) -> ChainState:
        """Return chains that start at x, before their warm-up."""
        return cls(
            x=x,
            density=target.log_density(x, rows),
            tuning=Tuning(step=0.1, trajectory=1.0, inverse_mass=np.ones(target.num_coordinates)),
            rows=None if rows is None else RowState(rows=rows),
        )

    def of(self, target: Target) -> Target:
        """Return the target given the rows of each chain."""
        return target if self.rows is None else target.given(self.rows.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What one or more trajectories of every chain did."""

    path: FloatArray  # (C, M, D)  where they were after each
    density: LogDensity  # at the end
    acceptance: FloatArray  # (C, M)  acceptance probability
    smooth_acceptance: FloatArray  # (C, M)  the same without the jumps of the determinant, nan beyond an edge
    divergent: BoolArray  # (C, M)
    gradients: int
    parameters: FloatArray | None = None  # (C, M, P)  where these depend on rows that are drawn along
    row_acceptance: float = 1.0

    @property
    def integrator_acceptance(self) -> float:
        """The mean of `smooth_acceptance`, by which the step is tuned; 0 where every trajectory left the support."""
        is_in = np.isfinite(self.smooth_acceptance)
        return float(self.smooth_acceptance[is_in].mean()) if is_in.any() else 0.0

    @property
    def x(self) -> FloatArray:
        """``(C, D)`` where they are at the end."""
        return np.ascontiguousarray(self.path[:, -1])

    def counts(self) -> Counts:
        """Return what is added up over a run."""
        return Counts(
            iterations=self.path.shape[1],
            acceptance=self.path.shape[1] * float(self.acceptance.mean()) if self.acceptance.size else 0.0,
            divergences=int(self.divergent.sum()),
            gradients=self.gradients,
            row_acceptance=self.path.shape[1] * self.row_acceptance,
        )


def leap(
    target: Density,
    x: FloatArray,
    density: LogDensity,
    tuning: Tuning,
    num_steps: IntArray,
    rng: np.random.Generator,
    step: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Run one trajectory of every particle from a fresh momentum, each with a step and a number of steps of its own.

    Return where they end and ``(N, 2)`` the energy they lost, without and with the jumps of the determinant.
    """
    p = rng.standard_normal(x.shape) / np.sqrt(tuning.inverse_mass)
    new_x, new_p, new_density = target.leapfrog(x, p, step=step, num_steps=num_steps, inverse_mass=tuning.inverse_mass)
    return new_x, energy_gain(density, p, new_density, new_p, tuning.inverse_mass)


def hmc_move(
    target: Density,
    x: FloatArray,
    density: LogDensity,
    tuning: Tuning,
    num_steps: IntArray | int,
    rng: np.random.Generator,
    step: FloatArray | None = None,
) -> Move:
    r"""One trajectory and its accept step for every particle (alg. hmc), or M of them with `num_steps` ``(1, M)``.

    Momenta p ~ N(0, M) with M the diagonal mass; the leapfrog steps of size `step` approximate the flow of
    H(x, p) = −log p(x) + ½ pᵀ M⁻¹ p; the end is taken with probability min(1, exp(H_start − H_end)). That leaves the
    target invariant whatever the step sizes, as long as these do not depend on x. `num_steps` may differ by particle,
    ``(N,)``, and so may `step`. The jump of the density does not push the trajectory but counts in the accept step. A
    trajectory that leaves the support is refused; where the support has an edge (`Target.has_edge`) that says nothing
    of the integrator, and its `smooth_acceptance` is nan.
    """
    num, size = x.shape
    steps = np.atleast_1d(np.asarray(num_steps, dtype=np.int64))
    if steps.ndim == 1:
        steps = steps[:, None]
    times = steps.shape[1]
    p = rng.standard_normal((num, times, size)) / np.sqrt(tuning.inverse_mass)
    path, density, gain = target.run_chains(
        x,
        density,
        p,
        np.log(rng.random((num, times))),
        step=np.full(num, tuning.step) if step is None else step,
        num_steps=np.ascontiguousarray(np.broadcast_to(steps, (num, times))),
        inverse_mass=tuning.inverse_mass,
    )
    acceptance = np.exp(np.minimum(gain, 0.0))
    is_out = np.isinf(gain[:, :, 0]) & target.has_edge
    return Move(
        path=path,
        density=density,
        acceptance=acceptance[:, :, 1],
        smooth_acceptance=np.where(is_out, np.nan, acceptance[:, :, 0]),
        divergent=(gain[:, :, 0] < -DIVERGENT) & ~is_out,
        gradients=int(steps.sum()) * (num // steps.shape[0]) + num,  # the next trajectory starts where one was taken
    )


def redraw(
    target: Target, state: ChainState, rng: np.random.Generator, *, sweeps: bool = True, exchanges: bool = False
) -> ChainState:
    """Return the chains after what follows a trajectory: proposals of rows, or exchanges, and a sweep at jumps."""
    if state.rows is not None:
        return redraw_rows(target, state, rng)
    if exchanges and target.can_exchange:
        x, density, _ = target.exchange(state.x, rng)
        state = replace(state, x=x, density=density)
    if not (sweeps and target.has_jumps):
        return state
    x = target.sweep(state.x, rng)
    return replace(state, x=x, density=target.log_density(x))


def redraw_rows(target: Target, state: ChainState, rng: np.random.Generator) -> ChainState:
    r"""Propose other rows for every chain, a block of pairs at a time; x stays (app. tabmodelbased).

    Rows are proposed from what is believed of them, Dir(α + counts), so that those of a block are taken with
    min(1, p(ψ | P') / p(ψ | P)), p(ψ | P) ∝ prior(θ(ψ, P)) det(I − γ P_π)⁻¹: the readings depend on ψ alone.
    """
    assert state.rows is not None
    uncertain, rows = target.rows.uncertain, state.rows.rows
    if not uncertain.size:
        return replace(state, density=target.log_density(state.x, rows))
    order = rng.permutation(uncertain)
    density = target.log_density(state.x, rows).total
    proposal, accepted = target.rows.propose(state.x.shape[0], rng), []
    assert proposal is not None
    for block in np.array_split(order, min(state.rows.num_blocks, order.size)):
        changed = np.where(np.isin(target.rows.row_of_entry, block), proposal, rows)
        proposed = target.log_density(state.x, changed).total
        with np.errstate(invalid="ignore"):
            taken = np.log(rng.random(density.size)) < proposed - density
        rows, density = np.where(taken[:, None], changed, rows), np.where(taken, proposed, density)
        accepted.append(float(taken.mean()))
    moved = replace(state.rows, rows=rows, acceptance=float(np.mean(accepted)))
    return replace(state, rows=moved, density=target.log_density(state.x, rows))


def step(
    target: Target, state: ChainState, rng: np.random.Generator, settings: HMCSettings, *, times: int = 1
) -> tuple[ChainState, Move]:
    """Run that many trajectories of every chain, of jittered length, each followed by a redraw where there is one.

    Return where the chains are then, and what they did. Trajectories without a redraw run in one compiled call.
    """
    is_followed = state.rows is not None or (settings.gibbs and target.has_jumps)
    is_followed = is_followed or (settings.exchange and target.can_exchange)
    at_once = 1 if is_followed else max(1, NUMBERS_AT_ONCE // max(state.x.size, 1))
    parts = list[Move]()
    while times > 0:
        together = min(times, at_once)
        state, move = _advance(target, state, rng, settings, together)
        parts.append(move)
        times -= together
    drawn = [move.parameters for move in parts if move.parameters is not None]
    return state, Move(
        path=np.concatenate([move.path for move in parts], axis=1),
        density=state.density,
        acceptance=np.concatenate([move.acceptance for move in parts], axis=1),
        smooth_acceptance=np.concatenate([move.smooth_acceptance for move in parts], axis=1),
        divergent=np.concatenate([move.divergent for move in parts], axis=1),
        gradients=sum(move.gradients for move in parts),
        parameters=np.concatenate(drawn, axis=1) if drawn else None,
        row_acceptance=float(np.mean([move.row_acceptance for move in parts])),
    )


def _advance(
    target: Target, state: ChainState, rng: np.random.Generator, settings: HMCSettings, together: int
) -> tuple[ChainState, Move]:
    if not target.num_coordinates:  # only rows are to be drawn
        still = np.ones((state.x.shape[0], together))
        move = Move(
            path=np.repeat(state.x[:, None], together, axis=1),
            density=state.density,
            acceptance=still,
            smooth_acceptance=still,
            divergent=still < 0.0,
            gradients=0,
        )
    else:
        steps = state.tuning.many_steps(rng.random((1, together)), settings.max_leapfrog)
        move = hmc_move(state.of(target), state.x, state.density, state.tuning, steps, rng)
    state = redraw(
        target, replace(state, x=move.x, density=move.density), rng, sweeps=settings.gibbs, exchanges=settings.exchange
    )
    if together > 1:
        return state, move
    move = replace(move, path=state.x[:, None], density=state.density)
    if state.rows is not None:
        drawn = state.of(target).to_parameters(state.x)
        move = replace(move, parameters=drawn[:, None], row_acceptance=state.rows.acceptance)
    return state, move


def start(target: Target, rng: np.random.Generator, settings: HMCSettings) -> tuple[ChainState, int]:
    """Return the chains, started over policy cells and warmed up, and the gradients that it took."""
    rows = target.rows.propose(settings.chains, rng)
    conditional = target.given(rows)
    x = conditional.initial(settings.chains, rng)
    if target.num_coordinates:
        x = conditional.disperse(x, rng)
    state = ChainState.untuned(target, x, rows)
    gradients = 0
    if target.num_coordinates:
        state, gradients = warm_up(target, state, rng, settings)
    if state.rows is not None:
        for _ in range(settings.warm_up // 4):
            state = redraw_rows(target, state, rng)
            assert state.rows is not None
            state = replace(state, rows=state.rows.adapted(target.rows.uncertain.size))
        state = replace(state, density=state.of(target).log_density(state.x))
    return state, gradients


def run(
    problem: Problem,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    progress_fn: Callable[[int, int], None] | None = None,
) -> Posterior:
    """Return the posterior by chains; `CHAINS_OF_ROWS` of them by default where rows are drawn along."""
    target = problem.target(rng)
    if settings is None and target.rows.draw_fn is not None:
        settings = HMCSettings(chains=CHAINS_OF_ROWS)
    chains = run_hmc(target, rng, settings, progress_fn=progress_fn, min_draws=problem.num_draws)
    return thinned(chains, target, problem, method="hmc")


def run_hmc(
    target: Target,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    stopping_fn: Callable[[FloatArray], bool] | None = None,
    progress_fn: Callable[[int, int], None] | None = None,
    min_draws: int = 0,
) -> Chains:
    """Run the chains until `stopping_fn` says of the ``(C, M, D)`` draws that they will do, or the iterations are used.

    They do not stop before `min_draws` draws. The default criterion asks for R-hat and effective sample sizes of Q.
    `progress_fn` gets (iterations, most).
    """
    settings = settings or HMCSettings()
    state, gradients = start(target, rng, settings)
    if not target.num_coordinates and state.rows is None:
        return Chains.still(state.x)

    def advance(state: ChainState, times: int) -> tuple[ChainState, FloatArray, FloatArray | None, Counts]:
        state, move = step(target, state, rng, settings, times=times)
        return state, move.path, move.parameters, move.counts()

    state, chains, counts = sample(
        advance,
        state,
        target=target,
        settings=settings,
        stopping_fn=stopping_fn,
        progress_fn=progress_fn,
        min_draws=min_draws,
    )
    facts = {"acceptance": counts.acceptance / counts.iterations, "divergences": counts.divergences}
    if state.rows is not None:
        mixing = {"row_acceptance": counts.row_acceptance / counts.iterations, "row_blocks": state.rows.num_blocks}
        return chains.told(facts | mixing)
    visited = target.optimal_share(chains.q(target)).max(axis=0) > 0.0
    return chains.told(
        {"unvisited_modes": scout(target, visited, rng, settings, tuning=state.tuning)}
        | facts
        | {"gradients": gradients + counts.gradients}
        | {"step_size": state.tuning.step, "trajectory": state.tuning.trajectory}
    )


def warm_up(
    target: Target, state: ChainState, rng: np.random.Generator, settings: HMCSettings
) -> tuple[ChainState, int]:
    r"""Return the chains with a step size, a mass and a trajectory length, and the gradients that it took.

    Four windows, each about twice as long as the one before. In each the step size follows dual averaging (Hoffman and
    Gelman 2014, section 3.2) towards `target_acceptance` of the *smooth* part of the energy: the jumps of the
    determinant cost acceptance that no smaller step would buy back. At its end the inverse mass becomes the pooled
    variance of the last three quarters of the window over all chains, and the step starts again from one that is
    accepted about four times in five. Before the last window the trajectory length is chosen from `TRAJECTORIES` by the
    effective draws per gradient of the slowest tenth of the coordinates. The draws of the warm-up are thrown away: a
    kernel that adapts to its own past does not leave the target invariant.
    """
    tuning = replace(state.tuning, inverse_mass=_regular_variance(state.x))  # the spread of the starting points
    gradients = 0
    windows = _windows(settings.warm_up)
    for number, length in enumerate(windows):
        averaging = DualAveraging(tuning.step, settings.target_acceptance)
        seen = np.empty((length, *state.x.shape))
        most = min(settings.max_leapfrog, 32 if number == 0 else 512)
        for i in range(length):
            steps = tuning.num_steps(rng.random(), most)
            move = hmc_move(state.of(target), state.x, state.density, tuning, steps, rng)
            state = redraw(
                target,
                replace(state, x=move.x, density=move.density),
                rng,
                sweeps=settings.gibbs,
                exchanges=settings.exchange,
            )
            tuning = replace(tuning, step=averaging.update(move.integrator_acceptance))
            gradients += move.gradients
            seen[i] = state.x
        tuning = replace(tuning, step=averaging.settled)
        if number < len(windows) - 1:
            variance = _regular_variance(seen[length // 4 :].reshape(-1, state.x.shape[1]))
            # Momenta now have another scale; distances are measured in standard deviations.
            tuning = replace(tuning, inverse_mass=variance)
            tuning = replace(tuning, step=_reasonable_step(state.of(target), state, tuning, rng))
        state = replace(state, tuning=tuning)
        if number == len(windows) - 2:
            state, used = _best_trajectory(target, state, rng, settings)
            tuning = state.tuning
            gradients += used
    return state, gradients


def _best_trajectory(
    target: Target, state: ChainState, rng: np.random.Generator, settings: HMCSettings
) -> tuple[ChainState, int]:
    """Return the chains after trials of all candidates, with the one of most effective draws per gradient.

    Judged by the slowest tenth of the coordinates: from the correlation r of neighbouring draws, (1 − r) / (1 + r).
    """
    tuning, best_score, gradients = state.tuning, -np.inf, 0
    best = tuning
    for factor in TRAJECTORIES:
        trial = replace(tuning, trajectory=factor * np.pi / 2)
        if trial.trajectory / trial.step > settings.max_leapfrog:
            break
        before = state.x
        state, move = step(target, replace(state, tuning=trial), rng, settings, times=TRIALS)
        gradients += move.gradients
        path = np.concatenate([before[:, None], move.path], axis=1)
        score = float(np.quantile(_effective_share(path), 0.1)) / move.gradients
        if score > best_score:
            best, best_score = trial, score
    return replace(state, tuning=best), gradients


def _effective_share(path: FloatArray) -> FloatArray:
    """Return (1 − r) / (1 + r) per coordinate of ``(C, T, D)`` draws, r the correlation of neighbours, 0 or more."""
    deviation = path - path.mean(axis=(0, 1))
    variance = np.maximum(np.mean(deviation**2, axis=(0, 1)), np.finfo(float).tiny)
    r = np.clip(np.mean(deviation[:, 1:] * deviation[:, :-1], axis=(0, 1)) / variance, 0.0, 1.0)
    return np.asarray((1.0 - r) / (1.0 + r))


def _reasonable_step(target: Target, state: ChainState, tuning: Tuning, rng: np.random.Generator) -> float:
    """Return a step at which a single leapfrog step is accepted about four times in five, found by halving."""
    size = 1.0
    for _ in range(40):
        trial = replace(tuning, step=size, trajectory=size)
        if hmc_move(target, state.x, state.density, trial, 4, rng).integrator_acceptance > 0.7:
            break
        size *= 0.7
    return size


@dataclass(slots=True)
class DualAveraging:
    """Nesterov's averaging of log step sizes (Hoffman and Gelman 2014, section 3.2)."""

    first: float
    target: float
    count: int = 0
    error: float = 0.0
    log_mean: float = 0.0

    def update(self, acceptance: float) -> float:
        """Take in an acceptance rate; return the step to try next."""
        self.count += 1
        weight = 1.0 / (self.count + 10.0)
        self.error = (1.0 - weight) * self.error + weight * (self.target - acceptance)
        log_step = np.log(10.0 * self.first) - np.sqrt(self.count) / 0.05 * self.error
        log_step = float(np.clip(log_step, np.log(self.first) - 8.0, np.log(self.first) + 5.0))
        share = self.count**-0.75
        self.log_mean = share * log_step + (1.0 - share) * self.log_mean
        return float(np.exp(log_step))

    @property
    def settled(self) -> float:
        """The averaged step."""
        return float(np.exp(self.log_mean))


def _windows(length: int) -> list[int]:
    """Return the lengths of the warm-up windows: each about twice the one before."""
    return [max(20, length // 8), max(20, length // 4), max(20, length * 3 // 8), max(20, length // 4)]


def _regular_variance(draws: FloatArray) -> FloatArray:
    """Return variances, the smallest of the others in place of 0: coordinates need not have a unit in common."""
    variance = draws.var(axis=0, ddof=1)
    positive = variance[variance > 0.0]
    return np.where(variance > 0.0, variance, positive.min() if positive.size else 1.0)


def scout(
    target: Target,
    visited: BoolArray,
    rng: np.random.Generator,
    settings: HMCSettings,
    *,
    tuning: Tuning | None = None,
) -> int:
    """Return how many pairs are optimal where dispersed chains stay and never in the draws, whose pairs are `visited`.

    Chains start with each action of each state and run for a third of a warm-up: either they leave, or there is a mode
    that the draws know nothing of. With a `tuning` the first of them have run already: those of the draws themselves,
    so that only states with more actions than there are chains leave anything to do.
    """
    batches = min(-(-target.most_actions // settings.chains), MOST_SCOUTS)
    times, stayed = max(settings.warm_up // 3, 8), np.zeros_like(visited)
    for turn in range(0 if tuning is None else 1, batches):
        x = target.disperse(target.initial(settings.chains, rng), rng, turn=turn)
        state = ChainState.untuned(target, x)
        if tuning is None:
            state, _ = warm_up(target, state, rng, settings)
            tuning = state.tuning
        state = replace(state, tuning=tuning)
        _, move = step(target, state, rng, settings, times=times)
        path = move.path[:, times // 2 :]
        share = target.optimal_share(target.to_q(path.reshape(-1, path.shape[2]))).reshape(*path.shape[:2], -1)
        stayed |= (share.mean(axis=1) > 0.5).any(axis=0)
    return int(np.sum(stayed & ~visited))
