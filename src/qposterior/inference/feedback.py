r"""Feedback tempering: parallel tempering at tolerance 0, from values that nothing seen speaks of to the posterior.

.. math:: p_\beta(\varphi) \propto q(\varphi)^{1 - \beta} [\text{prior}(\theta(\varphi)) / \det]^\beta,
          \quad 0 = \beta_R < \dots < \beta_1 < \beta_0 = 1,

(`BellmanChart.with_feedback`). At β = 0 the free values are independent: the hottest rung is drawn exactly and afresh
at every step, so that each of these draws that travels to the coldest rung is a new start, whatever modes there are.
The derivation is in docs/explanation/tempering.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qposterior.inference.chains import Chains, Counts, HMCSettings, sample, thinned
from qposterior.inference.hmc import ChainState, DualAveraging, Tuning
from qposterior.inference.hmc import step as hmc_step
from qposterior.inference.problem import Problem
from qposterior.inference.smc.resampling import systematic
from qposterior.inference.trust import FEWEST_TRIPS
from qposterior.model.kernels.density import NO_WALL
from qposterior.model.target import LogDensity, Target, draw_inside
from qposterior.weighted_draws import Posterior
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

REJECTION = 0.35
"""Share of swaps of neighbours that the rungs are placed for to be refused."""

MOST_RUNGS = 40
SCOUTS = 32
"""Points that climb from β = 0 to 1 when the rungs are placed for the first time."""

TRIALS = 40
"""Trajectories by which the step of a rung is tuned."""

TARGET_ACCEPTANCE = 0.9
"""What it is tuned to: a step that fits the mean of several modes is too long for the narrowest of them."""

WEIGHT_BEFORE = 5.0
"""Points that the variances of the last rung count as, beside those of this one."""

TRAJECTORY = 0.5 * np.pi
"""Their length in standard deviations: from there on a normal coordinate is a fresh one."""

STAYING = 0.7
"""Acceptance that they are shortened to where the support has an edge that they leave by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The rungs: their feedbacks, cold first, their targets, and how their chains move."""

    feedback: FloatArray  # (R,)  1 … 0
    targets: tuple[Target, ...]
    tunings: tuple[Tuning, ...]
    moves_hottest: bool  # whether trajectories move the hottest rung too: fresh draws may fall outside the support

    def ends(self, x: FloatArray) -> FloatArray:
        """Return ``(R, C, 2, 2)`` log-densities, smooth and jump, at β = 0 and at β = 1 of ``(R, C, D)`` points.

        Those at any β lie between them: log p_β = (1 − β) log p_0 + β log p_1.
        """
        flat = x.reshape(-1, x.shape[2])
        both = [target.log_density(flat).stacked() for target in (self.targets[-1], self.targets[0])]
        return np.stack(both, axis=1).reshape(*x.shape[:2], 2, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rungs:
    """Where the chains of every rung are, cold first."""

    x: FloatArray  # (R, C, D)
    ends: FloatArray  # (R, C, 2, 2)  `Ladder.ends`
    is_fresh: BoolArray  # (R, C)  whether it has been drawn afresh since it was last on the coldest rung
    is_odd: bool = False  # whether the odd pairs of neighbours are the next to swap

    @property
    def gain(self) -> FloatArray:
        """``(R, C)`` log p_1 − log p_0, which swaps and the evidence depend on."""
        return np.asarray((self.ends[:, :, 1] - self.ends[:, :, 0]).sum(axis=2))

    def state(self, ladder: Ladder, r: int) -> ChainState:
        """Return the chains of one rung."""
        share = ladder.feedback[r]
        density = (1.0 - share) * self.ends[r, :, 0] + share * self.ends[r, :, 1]
        return ChainState(x=self.x[r], density=LogDensity.of(density), tuning=ladder.tunings[r])


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What swaps did over some steps: sums, and the gains of all chains after each step."""

    rejection: FloatArray  # (R − 1,)  mean probability that a swap of neighbours is refused
    arrivals: IntArray  # (C,)  fresh draws that came to the coldest rung
    gain: FloatArray  # (T, R, C)
    inside: int  # fresh draws that lay in the support


def run(
    problem: Problem,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    progress_fn: Callable[[int, int], None] | None = None,
) -> Posterior:
    """Return the posterior at tolerance 0 by feedback tempering."""
    target = problem.target(rng)
    chains = run_feedback(target, rng, settings, progress_fn=progress_fn, min_draws=problem.num_draws)
    post = thinned(chains, target, problem, method="tempering")
    return replace(post, log_evidence=chains.diagnostics.get("log_evidence", np.nan))


def run_feedback(
    target: Target,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    progress_fn: Callable[[int, int], None] | None = None,
    min_draws: int = 0,
) -> Chains:
    """Place the rungs in a warm-up, freeze them, then run the chains; return those of β = 1.

    The evidence is that of stepping stones, Σ_r log E_r exp((β_{r−1} − β_r) gain), plus the log of the share of fresh
    draws that fall into the support; it is left out for a prior with a wall, whose density is not normalised.
    """
    settings = replace(settings or HMCSettings(warm_up=300, target_acceptance=TARGET_ACCEPTANCE), exchange=True)
    if not target.num_coordinates:
        return Chains.still(target.initial(settings.chains, rng))
    ladder, rungs, used = start(target, rng, settings)
    gains, rejections, inside = list[FloatArray](), list[FloatArray](), 0
    arrivals = np.zeros(settings.chains, dtype=np.int64)

    def advance(rungs: Rungs, times: int) -> tuple[Rungs, FloatArray, None, Counts]:
        nonlocal arrivals, inside
        rungs, path, counts, passage = steps(ladder, rungs, rng, settings, times=times)
        gains.append(passage.gain)
        rejections.append(times * passage.rejection)
        arrivals, inside = arrivals + passage.arrivals, inside + passage.inside
        return rungs, path, None, counts

    rungs, chains, counts = sample(
        advance,
        rungs,
        target=target,
        settings=settings,
        progress_fn=progress_fn,
        ready_fn=lambda: bool(arrivals.sum() >= FEWEST_TRIPS),
        min_draws=min_draws,
    )
    facts: dict[str, Any] = {
        "acceptance": counts.acceptance / counts.iterations,
        "divergences": counts.divergences,
        "gradients": used + counts.gradients,
        "feedback": ladder.feedback.tolist(),
        "swap_acceptance": (1.0 - np.sum(rejections, axis=0) / counts.iterations).tolist(),
        "round_trips": int(arrivals.sum()),
        "fresh_acceptance": inside / (settings.chains * counts.iterations),
    }
    if target.parts.prior_data.wall == NO_WALL and facts["fresh_acceptance"] > 0.0:
        facts |= stepping_stones(np.concatenate(gains), ladder.feedback)
        share = facts["fresh_acceptance"]
        of_share = np.sqrt((1.0 - share) / (share * settings.chains * counts.iterations))
        facts["log_evidence"] += np.log(share)
        facts["log_evidence_error"] = float(np.hypot(facts["log_evidence_error"], of_share))
    return chains.told(facts)


def stepping_stones(gain: FloatArray, feedback: FloatArray) -> dict[str, float]:
    """Return the log-evidence of ``(T, R, C)`` gains, and its standard error by the spread of the C chains.

    Swaps are between rungs, so that a chain's rungs depend on each other, and chains do not.
    """
    step = feedback[:-1] - feedback[1:]
    weight = step[:, None] * gain[:, 1:]  # of the next colder rung, at draws of each but the coldest
    top = weight.max(axis=(0, 2), keepdims=True)
    by_chain = np.exp(weight - top).mean(axis=0)  # (R − 1, C)
    log_evidence = float(np.sum(np.log(by_chain.mean(axis=1)) + top[0, :, 0]))
    relative = by_chain / by_chain.mean(axis=1, keepdims=True)
    error = np.sqrt(relative.sum(axis=0).var(ddof=1) / gain.shape[2]) if gain.shape[2] > 1 else np.inf
    return {"log_evidence": log_evidence, "log_evidence_error": float(error)}


# -- one step ----------------------------------------------------------------------------------------------------------


def steps(
    ladder: Ladder, rungs: Rungs, rng: np.random.Generator, settings: HMCSettings, *, times: int
) -> tuple[Rungs, FloatArray, Counts, Passage]:
    """Run that many steps; return the rungs, the ``(C, times, D)`` path of the coldest, counts, and what swaps did."""
    num_rungs, num_chains, size = rungs.x.shape
    path, gain = np.empty((num_chains, times, size)), np.empty((times, num_rungs, num_chains))
    counts, inside, rejection, arrivals = Counts(), 0, np.zeros(num_rungs - 1), np.zeros(num_chains, dtype=np.int64)
    for t in range(times):
        rungs, moved, fresh = move(ladder, rungs, rng, settings)
        inside += fresh
        gain[t] = rungs.gain
        rungs, refused = swap(ladder, rungs, rng)
        path[:, t] = rungs.x[0]
        counts, rejection = counts + moved, rejection + refused
        arrivals += rungs.is_fresh[0]
        rungs.is_fresh[0] = False
    return rungs, path, counts, Passage(rejection=rejection / times, arrivals=arrivals, gain=gain, inside=inside)


def move(ladder: Ladder, rungs: Rungs, rng: np.random.Generator, settings: HMCSettings) -> tuple[Rungs, Counts, int]:
    """Move the chains of every rung: by trajectories, each followed by exchanges, the hottest by fresh draws.

    Each leaves the density of its rung invariant. A fresh draw outside the support is refused: q is that of the
    reference cut off there, for which the independent draws are a Metropolis proposal of ratio 1 or 0. The number
    of fresh draws inside comes last; acceptance and divergences are those of the coldest rung.
    """
    x, is_fresh, counts = rungs.x.copy(), rungs.is_fresh.copy(), list[Counts]()
    for r in range(len(ladder.targets) - 1 + int(ladder.moves_hottest)):
        state, moved = hmc_step(ladder.targets[r], rungs.state(ladder, r), rng, settings)
        x[r] = state.x
        counts.append(moved.counts())
    kept, x[-1] = x[-1].copy(), ladder.targets[-1].chart.draw_reference(x.shape[1], rng)
    ends = ladder.ends(x)
    inside = np.isfinite(ends[-1]).all(axis=(1, 2))
    is_fresh[-1] |= inside
    if not inside.all():
        x[-1] = np.where(inside[:, None], x[-1], kept)
        ends = ladder.ends(x)
    gradients = sum(each.gradients for each in counts)
    moved_rungs = replace(rungs, x=x, ends=ends, is_fresh=is_fresh)
    return moved_rungs, replace(counts[0], gradients=gradients), int(inside.sum())


def swap(ladder: Ladder, rungs: Rungs, rng: np.random.Generator) -> tuple[Rungs, FloatArray]:
    r"""Propose swaps of neighbours, even pairs and odd ones in turns; return the rungs and the refusals expected.

    x on rung β and y on rung β′ swap with min(1, p_β(y) p_β′(x) / (p_β(x) p_β′(y))), which is
    exp((β − β′)(gain(y) − gain(x))). The ``(R − 1,)`` refusal probabilities are of all neighbours, also those whose
    turn it is not.
    """
    gain, feedback = rungs.gain, ladder.feedback
    log_ratio = (feedback[:-1] - feedback[1:])[:, None] * (gain[1:] - gain[:-1])
    probability = np.exp(np.minimum(log_ratio, 0.0))
    is_taken = rng.random(probability.shape) < probability
    is_taken[int(not rungs.is_odd) :: 2] = False
    origin = np.repeat(np.arange(gain.shape[0])[:, None], gain.shape[1], axis=1)
    origin[:-1] += is_taken
    origin[1:] -= is_taken
    column = np.arange(gain.shape[1])
    after = Rungs(
        x=rungs.x[origin, column],
        ends=rungs.ends[origin, column],
        is_fresh=rungs.is_fresh[origin, column],
        is_odd=not rungs.is_odd,
    )
    return after, 1.0 - probability.mean(axis=1)


# -- the rungs ---------------------------------------------------------------------------------------------------------


def start(target: Target, rng: np.random.Generator, settings: HMCSettings) -> tuple[Ladder, Rungs, int]:
    """Return the rungs, placed so that neighbours swap at equal rates, with their chains, and the gradients used.

    First a cloud of points climbs from β = 0 to 1, each rung as far from the last as its gains allow. Then the chains
    run, twice, and the rungs are placed anew by the refusals that they have met.
    """
    ladder, x, gradients = climb(target, rng, settings)
    rungs = Rungs(x=x, ends=ladder.ends(x), is_fresh=np.zeros(x.shape[:2], dtype=bool))
    for share in (4, 2):
        rungs, _, counts, passage = steps(ladder, rungs, rng, settings, times=max(settings.warm_up // share, 16))
        ladder, rungs = placed_anew(ladder, rungs, passage.rejection)
        tuned = [tune(ladder.targets[r], rungs.state(ladder, r), rng, settings) for r in range(len(ladder.targets))]
        ladder = replace(ladder, tunings=tuple(state.tuning for state, _ in tuned))
        x = np.stack([state.x for state, _ in tuned])
        rungs = replace(rungs, x=x, ends=ladder.ends(x))
        gradients += counts.gradients + sum(used for _, used in tuned)
    rungs, _, counts, _ = steps(ladder, rungs, rng, settings, times=max(settings.warm_up // 4, 16))
    return ladder, rungs, gradients + counts.gradients


def tune(target: Target, state: ChainState, rng: np.random.Generator, settings: HMCSettings) -> tuple[ChainState, int]:
    """Return the chains with step and trajectory of their rung by dual averaging, and the gradients that it took.

    The step by the acceptance of trajectories that stay in the support. The length, at most `TRAJECTORY`, by that of
    all: one that leaves is refused, however short its steps are. Jumps of the determinant count for neither.
    """
    steps = DualAveraging(state.tuning.step, settings.target_acceptance)
    lengths, gradients = DualAveraging(state.tuning.trajectory, STAYING), 0
    for _ in range(TRIALS):
        state, moved = hmc_step(target, state, rng, settings)
        is_in, step = np.isfinite(moved.smooth_acceptance), state.tuning.step
        if is_in.any():
            step = steps.update(moved.integrator_acceptance)
        length = lengths.update(float(moved.smooth_acceptance[is_in].sum() / is_in.size))
        state = replace(state, tuning=bounded(state.tuning, step, length))
        gradients += moved.gradients
    return replace(state, tuning=bounded(state.tuning, steps.settled, lengths.settled)), gradients


def bounded(tuning: Tuning, step: float, length: float) -> Tuning:
    """Return the tuning with a trajectory of at most `TRAJECTORY`, and a step of at most that."""
    length = min(length, TRAJECTORY)
    return replace(tuning, step=min(step, length), trajectory=length)


def climb(target: Target, rng: np.random.Generator, settings: HMCSettings) -> tuple[Ladder, FloatArray, int]:
    """Return first rungs, with ``(R, C, D)`` points on them, and the gradients that it took.

    `SCOUTS` points, or as many as there are chains, are drawn at β = 0, and weighted, resampled and moved from rung to
    rung. The next rung lies where a swap would be refused with probability `REJECTION`, judged by the gains here.
    """
    num, hottest = max(SCOUTS, settings.chains), target.with_feedback(0.0)
    drawn = hottest.chart.draw_reference(num, rng)
    is_exact = bool(np.isfinite(hottest.log_density(drawn).total).all())
    x = drawn if is_exact else draw_inside(hottest, hottest.chart.draw_reference, num, rng)
    tuning = Tuning(step=0.5, trajectory=TRAJECTORY, inverse_mass=x.var(axis=0))
    state = replace(ChainState.untuned(hottest, x), tuning=tuning)
    gradients, share = 0, 0.0
    feedback, targets, states = [share], [hottest], [state]
    while share < 1.0:
        gain = target.log_density(state.x).total - hottest.log_density(state.x).total
        before, share = share, next_feedback(gain, share) if len(feedback) < MOST_RUNGS - 1 else 1.0
        weight = (share - before) * gain
        weight = np.exp(weight - weight.max())
        here, kept = target.with_feedback(share), systematic(weight / weight.sum(), rng, num)
        x = state.x[kept]
        variance = (num * x.var(axis=0) + WEIGHT_BEFORE * state.tuning.inverse_mass) / (num + WEIGHT_BEFORE)
        tuning = replace(state.tuning, inverse_mass=variance)
        state, used = tune(here, ChainState(x=x, density=here.log_density(x), tuning=tuning), rng, settings)
        gradients += used
        feedback, targets, states = [*feedback, share], [*targets, here], [*states, state]
    ladder = Ladder(
        feedback=np.array(feedback[::-1]),
        targets=tuple(targets[::-1]),
        tunings=tuple(each.tuning for each in states[::-1]),
        moves_hottest=not is_exact,
    )
    return ladder, np.stack([each.x[: settings.chains] for each in states[::-1]]), gradients


def next_feedback(gain: FloatArray, feedback: float) -> float:
    """Return the next colder feedback, at most 1: where swaps of points of these gains are refused as often as wanted.

    Points of both rungs are taken to have the same ``(N,)`` gains, so that it errs on the bold side.
    """
    gap = np.minimum(gain[None, :] - gain[:, None], 0.0)

    def refusal(step: float) -> float:
        return float(1.0 - np.exp(step * gap).mean())

    low, high = 0.0, 1.0 - feedback
    if refusal(high) <= REJECTION:
        return 1.0
    for _ in range(60):
        middle = 0.5 * (low + high) if low > 0.1 * high else max(np.sqrt(low * high), 0.01 * high)
        low, high = (middle, high) if refusal(middle) <= REJECTION else (low, middle)
    return feedback + high


def placed_anew(ladder: Ladder, rungs: Rungs, rejection: FloatArray) -> tuple[Ladder, Rungs]:
    """Return rungs between which swaps are refused equally often, as many as bring that to `REJECTION`.

    The ``(R − 1,)`` refusals between neighbours add up along the ladder to a barrier that hardly depends on where the
    rungs lie (Syed et al. 2022); new rungs divide it evenly. Each starts from the chains of the old rung next to it.
    """
    barrier = np.concatenate([[0.0], np.cumsum(np.maximum(rejection, 1e-3))])
    num = int(np.clip(np.ceil(barrier[-1] / REJECTION), 1, MOST_RUNGS - 1)) + 1
    place = np.linspace(0.0, barrier[-1], num)
    feedback = np.interp(place, barrier, ladder.feedback)
    feedback[0], feedback[-1] = 1.0, 0.0
    nearest = np.abs(barrier[:, None] - place).argmin(axis=0)
    target = ladder.targets[0]
    placed = Ladder(
        feedback=feedback,
        targets=tuple(target.with_feedback(share) for share in feedback),
        tunings=tuple(ladder.tunings[r] for r in nearest),
        moves_hottest=ladder.moves_hottest,
    )
    return placed, replace(rungs, x=rungs.x[nearest], ends=rungs.ends[nearest], is_fresh=rungs.is_fresh[nearest])
