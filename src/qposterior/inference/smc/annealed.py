"""The paper's sequential sampler: new data enter at a wide tolerance, which is lowered as far as the moves keep up.

`simple_update` is alg. smcdegenerateupdatedetermined, `adaptive_update` alg. smcpseudo2, `noisy_update` the case of
stochastic rewards. All three are sequences of two operations on the tolerances, see `tolerance`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.checks import check_count, check_number, check_type
from qposterior.errors import InvalidInputError
from qposterior.inference.records import Particles
from qposterior.inference.smc.adaptation import Bounds
from qposterior.inference.smc.one_step import MoveSettings, StepRecord, resample_and_move, smc_one_step
from qposterior.inference.smc.sampler import Packed, SequentialSampler, initial_state
from qposterior.inference.smc.tolerance import PowerGain, ToleranceGain, ess_adapt
from qposterior.model.charts import Parts, QChart, QFunction
from qposterior.model.prior import Prior, typical
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealedSettings:
    """The paper's tuning constants, which it leaves open, and ours."""

    ess_factor: float = 0.7  # α
    ineffective_limit: int = 2  # N_m
    stale_limit: int = 3  # N_b
    least_tolerance: float = 0.01  # in prior scales: where stage III stops, if nothing else stops it before
    max_steps: int = 400  # of one update, a guard
    moves: MoveSettings = field(default_factory=MoveSettings)

    def __post_init__(self) -> None:
        check_number("ess_factor", self.ess_factor, "(0, 1)")
        for name in ("ineffective_limit", "stale_limit", "max_steps"):
            check_count(name, getattr(self, name))
        check_number("least_tolerance", self.least_tolerance, "(0, inf)")
        check_type("moves", self.moves, MoveSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one stage of an update did, and where it has left the tolerances: all that the next decision needs."""

    step: StepRecord
    floor: float  # ε: the tolerance of the sharpest data
    ceiling: float  # ε̃: that of the data that are not as sharp yet
    bellman_error: float  # Σ_n w_n Σ_k (g_k(θ_n) − r_k)² (paper, eq. bellmandefinition)

    @property
    def is_common(self) -> bool:
        """Whether all data stand at one tolerance."""
        return self.ceiling <= self.floor


@dataclass(kw_only=True)
class AnnealedSampler(SequentialSampler):
    """Weighted particles of the posterior at a tolerance per pair, brought up to date by `update`.

    `tolerance` is the common tolerance of old data (the floor); new data stand above it until they have been sharpened.
    With `final_tolerance` every update goes down to it and no further (`simple_update`, the paper's non-adaptive
    variant); without, the tolerance follows the mixing of the moves (`adaptive_update`). With `pilot_updates` the first
    updates are adaptive, and the sharpest common tolerance at which the moves were effective becomes the final one.
    The particles are moved in any `chart`, of a table or of another `q_function`.
    """

    chart: Callable[[Parts], Any] = QChart
    q_function: QFunction | None = None
    tolerances: FloatArray  # (K,)  of each pair, infinite where not seen
    settings: AnnealedSettings = field(default_factory=AnnealedSettings)
    final_tolerance: float | None = None
    pilot_updates: int = 0
    pilot: list[float] = field(default_factory=list)  # the sharpest tolerance of each update at which the moves worked
    sharpest: float = np.inf  # the same of the present update
    bounds: Bounds = field(default_factory=Bounds)
    power: float = 1.0  # λ of the newest noisy readings, below 1 while they are being brought in
    before: Experience | None = None  # what was known before them
    _target: Target | None = None  # of `seen`, made once per update

    @classmethod
    def start(
        cls,
        template: Experience,
        *,
        prior: Prior,
        noise: Any,
        particles: int,
        rng: np.random.Generator,
        chart: Callable[[Parts], Any] = QChart,
        q_function: QFunction | None = None,
        settings: AnnealedSettings | None = None,
        final_tolerance: float | None = None,
        pilot_updates: int = 0,
    ) -> AnnealedSampler:
        """Return particles drawn from the prior, nothing seen; `template` tells space and kinds of experience."""
        settings = settings or AnnealedSettings()
        chain = settings.moves.waste_free
        if chain is not None and particles % chain:
            raise InvalidInputError(
                f"waste_free must be at least 2 and divide the particles, got {chain} of {particles}"
            )
        space = template.space if q_function is None else q_function.space
        return cls(
            **initial_state(template, prior, noise, particles=particles, rng=rng, space=space),
            chart=chart,
            q_function=q_function,
            tolerance=typical(prior, space)[1],  # nothing is sharper than the prior before anything is seen
            tolerances=np.full(template.space.num_pairs, np.inf),
            settings=settings,
            final_tolerance=final_tolerance,
            pilot_updates=pilot_updates,
        )

    @property
    def prior_scale(self) -> float:
        """How far the values of Q lie apart under the prior."""
        return typical(self.prior, self.seen.space if self.q_function is None else self.q_function.space)[1]

    # -- what a sampler offers -----------------------------------------------------------------------------------------

    def update(self, seen: Experience, *, deadline: float | None = None) -> bool:
        """Bring the particles to `seen`, a later state of the same experience; return whether there was anything to do.

        `deadline` is a time in seconds: the update stops in time with a valid weighted approximation at the tolerances
        it has reached, and the next call goes on.
        """
        stop_at = np.inf if deadline is None else time.perf_counter() + deadline
        if self.noise.is_noisy:
            return noisy_update(self, seen, stop_at)
        changed = bool(np.any(seen.observed & ~self.seen.observed))
        if not changed and self.is_finished:
            return False
        if changed and time.perf_counter() < stop_at:
            for k in np.flatnonzero(seen.observed & ~self.seen.observed):
                self.seen.reveal(int(k), seen)
            self._target = None
        if self.final_tolerance is not None:
            self.is_finished = simple_update(self, self.final_tolerance, stop_at)
            return True
        if self.is_finished:
            self.sharpest = np.inf
        self.is_finished = adaptive_update(self, stop_at)
        if self.is_finished and self.pilot_updates > 0:
            self._follow_pilot()
        return True

    def _follow_pilot(self) -> None:
        """Take in another update of the pilot run, and settle on a tolerance after the last."""
        self.pilot.append(self.sharpest)
        if len(self.pilot) == self.pilot_updates:
            self.final_tolerance = float(min(*self.pilot, self.prior_scale))
            self.trace.append({"stage": "pilot", "tolerance": self.final_tolerance})

    def move(self, *, deadline: float | None = None) -> None:
        """Move the particles at the target they stand for, until they have mixed or the time is up."""
        started = time.perf_counter()
        stop_at = np.inf if deadline is None else started + deadline
        ess = self.particles.ess
        record = StepRecord(ess_before=ess, ess_after=ess, resampled=False, log_increment=0.0, bounds=self.bounds)
        target, moves = self.target(), self.settings.moves
        moved = resample_and_move(
            self.particles, target, record, is_uneven=False, settings=moves, rng=self.rng, stop_at=stop_at
        )
        self._take("move", moved, target, started)

    def pack(self) -> Packed:
        """Return everything that the continuation depends on."""
        arrays, facts = super().pack()
        return arrays | {"tolerances": self.tolerances}, facts | {
            "final_tolerance": self.final_tolerance,
            "pilot": self.pilot,
            "sharpest": self.sharpest,
            "bounds": [self.bounds.step, self.bounds.leapfrog],
            "power": self.power,
            "before": None if self.before is None else self.before.to_text(),
        }

    def unpack(self, arrays: dict[str, FloatArray], facts: dict[str, Any]) -> None:
        """Take over what `pack` returned."""
        super().unpack(arrays, facts)
        self.tolerances, self.final_tolerance, self.pilot = (
            arrays["tolerances"],
            facts["final_tolerance"],
            facts["pilot"],
        )
        self.bounds = Bounds(step=facts["bounds"][0], leapfrog=facts["bounds"][1])
        self.sharpest = facts["sharpest"] if "sharpest" in facts else _sharpest_of(self.trace[facts["update_start"] :])
        self.power, self._target = facts["power"], None
        self.before = None if facts["before"] is None else Experience.from_text(facts["before"], self.seen.space)

    def q_of_particles(self) -> FloatArray:
        """Return ``(N, K)`` the values of Q of the particles."""
        if self.q_function is None:
            return self.particles.parameters
        return self.q_function.to_q(self.particles.parameters)

    # -- the two operations --------------------------------------------------------------------------------------------

    @property
    def floor(self) -> float:
        """ε: the tolerance of the sharpest data."""
        return self.tolerance

    @property
    def ceiling(self) -> float:
        """ε̃: the tolerance of the data that are not as sharp yet."""
        known = self.tolerances[self.seen.observed]
        return float(known.max(initial=self.tolerance))

    def lower_ceiling(self, target_tolerance: float, stop_at: float = np.inf) -> Stage:
        """Stages I, II and III: τ ← min(τ, c), c as near to the target as the effective sample size allows.

        I from c = ∞, where new pairs may put a particle outside the reach of the chart, with weight 0; II down to the
        floor; III with all data.
        """
        ceiling = self.ceiling
        stage = "I" if np.isinf(ceiling) else "II" if ceiling > self.floor else "III"
        gain = self._gain()
        reach = self._log_reach() if stage == "I" else 0.0
        tolerance = ess_adapt(
            self.particles.log_weights + reach,
            gain.lower,
            start=ceiling,
            target=target_tolerance,
            factor=self.settings.ess_factor,
        )
        log_gain = gain.lower(tolerance) + reach
        return self._step(stage, log_gain, np.minimum(self.tolerances, tolerance), stop_at)

    def raise_floor(self, stop_at: float = np.inf, cap: float = np.inf) -> Stage:
        """Stages IVa and IVb: τ ← max(τ, c), c at most twice the floor, and the ceiling where there is one.

        Without a solution of the ESS rule the cap itself is taken; `reached_cap` in the trace says so.
        """
        ceiling = self.ceiling
        is_common = ceiling <= self.floor
        cap = min(cap, 2.0 * self.floor if is_common else min(2.0 * self.floor, ceiling))
        gain = self._gain()
        tolerance = ess_adapt(
            self.particles.log_weights, gain.lift, start=self.floor, target=cap, factor=self.settings.ess_factor
        )
        new = np.where(self.seen.observed, np.maximum(self.tolerances, tolerance), np.inf)
        stage, reached = "IVb" if is_common else "IVa", tolerance == cap
        return self._step(stage, gain.lift(tolerance), new, stop_at, reached_cap=reached)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def target(self) -> Target:
        """Return the posterior that the particles stand for, at the tolerances (or the power) reached."""
        made = self._made_target()
        readings = made.parts.readings
        if self.noise.is_noisy:
            return made if self.before is None else made.with_readings(readings.blend(self.before, self.power))
        return made.with_readings(readings.at_tolerance(self.tolerances[self.seen.observed_pairs]))

    def _made_target(self) -> Target:
        if self._target is None:
            self._target = self._make_target(self.seen)
        return self._target

    def _make_target(self, seen: Experience) -> Target:
        # Any positive tolerance will do: `target` puts the present ones in.
        return Target(seen, self.prior, self.noise.at_tolerance(1.0), chart=self.chart, q_function=self.q_function)

    def _gain(self) -> ToleranceGain:
        made = self._made_target()
        residuals = made.misfits(self.particles.parameters)
        kernel = "uniform" if made.parts.readings.has_edge else "gaussian"
        return ToleranceGain.of(residuals, self.tolerances[self.seen.observed_pairs], kernel)

    def _log_reach(self) -> FloatArray:
        """Return ``(N,)`` 0, or −inf where what is new has put a particle outside the reach of the chart."""
        return np.where(self._made_target().contains(self.particles.parameters), 0.0, -np.inf)

    def _step(self, stage: str, log_gain: FloatArray, tolerances: FloatArray, stop_at: float, **facts: Any) -> Stage:
        """Change the tolerances and take the particles along."""
        started = time.perf_counter()
        self.tolerances = np.where(self.seen.observed, tolerances, np.inf)
        self.tolerance = float(self.tolerances[self.seen.observed].min())
        return self._reweigh(stage, log_gain, started, stop_at, **facts)

    def _reweigh(self, stage: str, log_gain: FloatArray, started: float, stop_at: float, **facts: Any) -> Stage:
        target, moves = self.target(), self.settings.moves
        moved = smc_one_step(
            self.particles, target, log_gain, bounds=self.bounds, settings=moves, rng=self.rng, stop_at=stop_at
        )
        return self._take(stage, moved, target, started, **facts)

    def bellman_error(self, target: Target) -> float:
        """Return the expected squared Bellman error Σ_n w_n Σ_k (g_k(θ_n) − r_k)² (paper, eq. bellmandefinition)."""
        misfits = target.misfits(self.particles.parameters)
        return float(self.particles.weights @ np.sum(misfits**2, axis=1))

    def _take(
        self, name: str, moved: tuple[Particles, StepRecord], target: Target, started: float, **facts: Any
    ) -> Stage:
        """Take the particles of a step over, and leave a row in the trace; return what the next decision needs."""
        self.particles, step = moved
        self.bounds = step.bounds
        self.last_mixing = None if step.is_effective else step.mixing_ratio
        stage = Stage(step=step, floor=self.floor, ceiling=self.ceiling, bellman_error=self.bellman_error(target))
        if step.is_effective and stage.floor == stage.ceiling:
            self.sharpest = min(self.sharpest, stage.floor)
        row = {"stage": name, "observed": self.seen.num_observed, "tolerance": stage.floor}
        row |= {"new_tolerance": stage.ceiling} | step.to_row() | {"bellman_error": stage.bellman_error}
        self.trace.append(row | {"seconds": time.perf_counter() - started} | facts)
        return stage


def _sharpest_of(rows: list[dict[str, Any]]) -> float:
    """Return the sharpest common tolerance of effective moves, from the trace of an agent saved by version 0.1."""
    worked = [row["tolerance"] for row in rows if row.get("is_effective") and row["tolerance"] == row["new_tolerance"]]
    return min(worked, default=np.inf)


def simple_update(sampler: AnnealedSampler, final_tolerance: float, stop_at: float = np.inf) -> bool:
    """Bring new data in and everything to `final_tolerance` (paper, alg. smcdegenerateupdatedetermined).

    Stage I finds a tolerance for the new data, stage II lowers it to that of the old, stage III lowers both. Data that
    are sharper than `final_tolerance` are relaxed to it. Return whether it was reached before `stop_at`.
    """
    while sampler.ceiling > max(sampler.floor, final_tolerance):  # stages I and II
        if time.perf_counter() >= stop_at:
            return False
        sampler.lower_ceiling(max(sampler.floor, final_tolerance), stop_at)
    while sampler.floor > final_tolerance:  # stage III
        if time.perf_counter() >= stop_at:
            return False
        sampler.lower_ceiling(final_tolerance, stop_at)
    while sampler.seen.num_observed and sampler.floor < final_tolerance:
        if time.perf_counter() >= stop_at:
            return False
        sampler.raise_floor(stop_at, cap=final_tolerance)
    return True


def adaptive_update(sampler: AnnealedSampler, stop_at: float = np.inf) -> bool:
    """Bring new data in and let mixing and Bellman error decide on the tolerance (paper, alg. smcpseudo2).

    Lower the tolerances (stages I–III) until the Bellman error has not improved N_b times running; where the moves were
    ineffective N_m times running, raise them (stages IVa, IVb) until the moves are effective again. Return whether the
    update came to its end before `stop_at`.
    """
    settings = sampler.settings
    least_tolerance = settings.least_tolerance * sampler.prior_scale
    ineffective = stale = 0
    best_error = np.inf
    for _ in range(settings.max_steps):
        if time.perf_counter() >= stop_at:
            return False
        was_common = sampler.ceiling <= sampler.floor
        if was_common and sampler.floor <= least_tolerance:
            return True
        stage = sampler.lower_ceiling(least_tolerance if was_common else sampler.floor, stop_at)
        ineffective = 0 if stage.step.is_effective else ineffective + 1
        if ineffective == settings.ineffective_limit:
            restored = restore_mixing(sampler, stop_at)
            if restored is None:
                return False
            if restored.is_common:
                return True
            ineffective = 0
        elif was_common:
            stale = 0 if stage.bellman_error < best_error else stale + 1
            best_error = min(best_error, stage.bellman_error)
            if stale == settings.stale_limit:
                return True
    return True


def restore_mixing(sampler: AnnealedSampler, stop_at: float) -> Stage | None:
    """Stage IV of alg. smcpseudo2: raise the floor until the moves are effective; None if time ran out before."""
    stage = None
    for _ in range(sampler.settings.max_steps):
        if time.perf_counter() >= stop_at:
            return None
        stage = sampler.raise_floor(stop_at)
        if stage.step.is_effective:
            return stage
    return stage if time.perf_counter() < stop_at else None


def noisy_update(sampler: AnnealedSampler, seen: Experience, stop_at: float = np.inf) -> bool:
    """Bring new noisy readings in as likelihood^λ, λ from 0 to 1 (data annealing: the tolerances are the noise itself).

    An update that a deadline has cut short is finished first.
    """
    worked = False
    while time.perf_counter() < stop_at:
        if sampler.power == 1.0:
            if not np.any(seen.count != sampler.seen.count):
                break
            sampler.before, sampler.seen, sampler.power = sampler.seen, seen.copy(), 0.0
            sampler._target = None
        worked = True
        raise_power(sampler, stop_at)
    sampler.is_finished = sampler.power == 1.0
    return worked


def raise_power(sampler: AnnealedSampler, stop_at: float) -> Stage:
    """One step of data annealing, λ = τ⁻²: stage I from τ = ∞, then stage II, until τ = 1."""
    assert sampler.before is not None
    started = time.perf_counter()
    made, particles = sampler._made_target(), sampler.particles
    old = sampler._make_target(sampler.before)
    all_read, before = (t.log_likelihood(particles.parameters, particles.log_scale) for t in (made, old))
    start = np.inf if sampler.power == 0.0 else sampler.power**-0.5
    # A reading may exclude a particle whatever its power: then it has no gain but the weight 0.
    is_possible = np.isfinite(all_read)
    log_ratio = np.where(is_possible, all_read - np.where(is_possible, before, 0.0), 0.0)
    gain = PowerGain(tolerance=start, log_ratio=log_ratio)
    stage, reach = ("I", sampler._log_reach()) if np.isinf(start) else ("II", np.zeros(particles.num))
    reach = np.where(is_possible, reach, -np.inf)
    tau = ess_adapt(
        particles.log_weights + reach, gain.lower, start=start, target=1.0, factor=sampler.settings.ess_factor
    )
    sampler.power = 1.0 if tau == 1.0 else tau**-2.0
    done = sampler._reweigh(stage, gain.lower(tau) + reach, started, stop_at, new_tolerance=tau)
    if sampler.power == 1.0:
        sampler.before = None
    return done
