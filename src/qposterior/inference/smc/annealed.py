"""The paper's sequential sampler: new data enter at a wide tolerance, which is lowered as far as the moves keep up.

`simple_update` is alg. smcdegenerateupdatedetermined, `adaptive_update` alg. smcpseudo2, `noisy_update` the case of
stochastic rewards. All three are sequences of two operations on the tolerances, see `tolerance`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.checks import check_count, check_number, check_type
from qposterior.errors import InvalidInputError
from qposterior.inference.smc.adaptation import Bounds
from qposterior.inference.smc.one_step import MoveSettings, StepRecord, move_cloud, smc_one_step, weighted_variance
from qposterior.inference.smc.sampler import Packed, SequentialSampler, nothing_seen
from qposterior.inference.smc.tolerance import PowerGain, ToleranceGain, ess_adapt
from qposterior.model.likelihood import (
    BlendedNoise,
    Likelihood,
    Tolerance,
    blend,
    has_noise,
    likelihood_data,
    with_tolerance,
)
from qposterior.model.prior import Prior, typical
from qposterior.model.tabular import BellmanTarget, QTarget, TabularTarget
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


@dataclass(kw_only=True)
class AnnealedSampler(SequentialSampler):
    """Weighted particles of the posterior at a tolerance per pair, brought up to date by `update`.

    `tolerance` is the common tolerance of old data (the floor); new data stand above it until they have been sharpened.
    With `final_tolerance` every update goes down to it and no further (`simple_update`, the paper's non-adaptive
    variant); without, the tolerance follows the mixing of the moves (`adaptive_update`). With `pilot_updates` the first
    updates are adaptive, and the sharpest common tolerance at which the moves were effective becomes the final one.
    """

    coordinates: str
    tolerances: FloatArray  # (K,)  of each pair, infinite where not seen
    settings: AnnealedSettings = field(default_factory=AnnealedSettings)
    final_tolerance: float | None = None
    pilot_updates: int = 0
    pilot: list[float] = field(default_factory=list)  # the sharpest tolerance of each update at which the moves worked
    bounds: Bounds = field(default_factory=Bounds)
    update_start: int = 0  # where in the trace the present update began
    power: float = 1.0  # λ of the newest noisy readings, below 1 while they are being brought in
    before: Experience | None = None  # what was known before them
    _target: TabularTarget | None = None  # of `seen`, made once per update

    @classmethod
    def start(
        cls,
        space_of: Experience,
        *,
        prior: Prior,
        likelihood: Likelihood,
        particles: int,
        rng: np.random.Generator,
        coordinates: str = "q",
        settings: AnnealedSettings | None = None,
        final_tolerance: float | None = None,
        pilot_updates: int = 0,
    ) -> AnnealedSampler:
        """Return particles drawn from the prior, nothing seen; `space_of` tells space and kinds of experience."""
        settings = settings or AnnealedSettings()
        chain = settings.moves.waste_free
        if chain is not None and particles % chain:
            raise InvalidInputError(
                f"waste_free must be at least 2 and divide the particles, got {chain} of {particles}"
            )
        return cls(
            **nothing_seen(space_of, prior, likelihood, particles, rng),
            coordinates=coordinates,
            tolerance=typical(prior, space_of.space)[1],  # nothing is sharper than the prior before anything is seen
            tolerances=np.full(space_of.space.num_pairs, np.inf),
            settings=settings,
            final_tolerance=final_tolerance,
            pilot_updates=pilot_updates,
        )

    @property
    def prior_scale(self) -> float:
        """How far the values of Q lie apart under the prior."""
        return typical(self.prior, self.seen.space)[1]

    # -- what a sampler offers -----------------------------------------------------------------------------------------

    def update(self, seen: Experience, *, deadline: float | None = None) -> bool:
        """Bring the particles to `seen`, a later state of the same experience; return whether there was anything to do.

        `deadline` is a time in seconds: the update stops in time with a valid weighted approximation at the tolerances
        it has reached, and the next call goes on.
        """
        stop_at = np.inf if deadline is None else time.perf_counter() + deadline
        if has_noise(self.likelihood):
            return noisy_update(self, seen, stop_at)
        changed = bool(np.any(seen.observed & ~self.seen.observed))
        if not changed and self.is_finished:
            return False
        if changed and time.perf_counter() < stop_at:
            for k in np.flatnonzero(seen.observed & ~self.seen.observed):
                self.seen.reveal(int(k), seen)
            self._target = self._make_target()
        if self.final_tolerance is not None:
            self.is_finished = simple_update(self, self.final_tolerance, stop_at)
            return True
        if self.is_finished:
            self.update_start = len(self.trace)
        self.is_finished = adaptive_update(self, stop_at)
        if self.is_finished and self.pilot_updates > 0:
            self._follow_pilot(self.trace[self.update_start :])
        return True

    def _follow_pilot(self, rows: list[dict[str, Any]]) -> None:
        """Take in the steps of another update of the pilot run, and settle on a tolerance after the last."""
        worked = [r["tolerance"] for r in rows if r["is_effective"] and r["tolerance"] == r["new_tolerance"]]
        self.pilot.append(min(worked, default=np.inf))
        if len(self.pilot) == self.pilot_updates:
            self.final_tolerance = float(min(*self.pilot, self.prior_scale))
            self.trace.append({"stage": "pilot", "tolerance": self.final_tolerance})

    def move(self, *, deadline: float | None = None) -> None:
        """Move the particles at the target they stand for, until they have mixed or the time is up."""
        stop_at = np.inf if deadline is None else time.perf_counter() + deadline
        target = self.target()
        x = target.from_q(self.cloud.theta, self.cloud.log_scale)
        record = {"ess_before": self.cloud.ess, "ess_after": self.cloud.ess, "resampled": False, "log_increment": 0.0}
        settings = self.settings.moves
        if settings.waste_free is not None:
            record["resampled"] = True
            size = self.cloud.log_weights.size
            self.cloud.select(self.rng.choice(size, size=size // settings.waste_free, p=self.cloud.weights))
            x = target.from_q(self.cloud.theta, self.cloud.log_scale)
        started = time.perf_counter()
        variance = weighted_variance(x, self.cloud.weights)
        step = move_cloud(
            self.cloud,
            target,
            x,
            variance,
            record,
            bounds=self.bounds,
            settings=settings,
            rng=self.rng,
            stop_at=stop_at,
        )
        self._note("move", step, target, started)

    def pack(self) -> Packed:
        """Return everything that the continuation depends on."""
        arrays, facts = super().pack()
        return arrays | {"tolerances": self.tolerances}, facts | {
            "final_tolerance": self.final_tolerance,
            "pilot": self.pilot,
            "update_start": self.update_start,
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
        self.power, self._target, self.update_start = facts["power"], None, facts["update_start"]
        self.before = None if facts["before"] is None else Experience.from_text(facts["before"], self.seen.space)

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

    def lower_ceiling(self, target_tolerance: float, stop_at: float = np.inf) -> StepRecord:
        """Stages I, II and III: τ ← min(τ, c), c as near to the target as the effective sample size allows."""
        ceiling = self.ceiling
        stage = "I" if np.isinf(ceiling) else "II" if ceiling > self.floor else "III"
        gain = self._gain()
        weights = self._supported_weights() if stage == "I" else self.cloud.log_weights
        found = ess_adapt(weights, gain.lower, start=ceiling, target=target_tolerance, factor=self.settings.ess_factor)
        return self._step(stage, gain.lower(found), np.minimum(self.tolerances, found), stop_at)

    def raise_floor(self, stop_at: float = np.inf, cap: float = np.inf) -> StepRecord:
        """Stages IVa and IVb: τ ← max(τ, c), c at most twice the floor, and the ceiling where there is one."""
        ceiling = self.ceiling
        is_common = ceiling <= self.floor
        cap = min(cap, 2.0 * self.floor if is_common else min(2.0 * self.floor, ceiling))
        gain = self._gain()
        # Without a solution of the ESS rule the cap itself is taken; `reached_cap` in the trace says so.
        found = ess_adapt(
            self.cloud.log_weights, gain.lift, start=self.floor, target=cap, factor=self.settings.ess_factor
        )
        new = np.where(self.seen.observed, np.maximum(self.tolerances, found), np.inf)
        return self._step("IVb" if is_common else "IVa", gain.lift(found), new, stop_at, reached_cap=found == cap)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def target(self) -> TabularTarget:
        """Return the posterior that the particles stand for, at the tolerances reached."""
        if has_noise(self.likelihood):
            return self._noisy_target(self.power)
        made = self._made_target()
        return made.with_data(with_tolerance(made.data, self.tolerances[self.seen.observed_pairs]))

    def _made_target(self) -> TabularTarget:
        if self._target is None:
            self._target = self._make_target()
        return self._target

    def _make_target(self) -> TabularTarget:
        kind = BellmanTarget if self.coordinates == "bellman" else QTarget
        if has_noise(self.likelihood):
            return kind(self.seen, self.prior, self.likelihood)
        # Any positive tolerance will do: `target` puts the present ones in.
        assert isinstance(self.likelihood, Tolerance)
        return kind(self.seen, self.prior, Tolerance(tolerance=1.0, kernel=self.likelihood.kernel))

    def _gain(self) -> ToleranceGain:
        assert isinstance(self.likelihood, Tolerance)
        residuals = self._made_target().q_residuals(self.cloud.theta)
        return ToleranceGain.of(residuals, self.tolerances[self.seen.observed_pairs], self.likelihood.kernel)

    def _supported_weights(self) -> FloatArray:
        """Return the log-weights, −inf where new pairs have put a particle outside the coordinates' reach."""
        return np.where(self._made_target().contains(self.cloud.theta), self.cloud.log_weights, -np.inf)

    def _step(
        self, stage: str, log_gain: FloatArray, tolerances: FloatArray, stop_at: float, **facts: Any
    ) -> StepRecord:
        """Change the tolerances, take the particles along, and leave a row in the trace."""
        started = time.perf_counter()
        if stage == "I":
            log_gain = log_gain + np.where(self._made_target().contains(self.cloud.theta), 0.0, -np.inf)
        self.tolerances = np.where(self.seen.observed, tolerances, np.inf)
        self.tolerance = float(self.tolerances[self.seen.observed].min())
        target = self.target()
        step = smc_one_step(
            self.cloud,
            target,
            log_gain,
            bounds=self.bounds,
            settings=self.settings.moves,
            rng=self.rng,
            stop_at=stop_at,
        )
        self._note(stage, step, target, started, **facts)
        return step

    def bellman_error(self, target: TabularTarget) -> float:
        """Return the expected squared Bellman error Σ_n w_n Σ_k (g_k(θ_n) − r_k)² (paper, eq. bellmandefinition)."""
        return float(self.cloud.weights @ np.sum(target.q_residuals(self.cloud.theta) ** 2, axis=1))

    def _note(self, stage: str, step: StepRecord, target: TabularTarget, started: float, **facts: Any) -> None:
        self.bounds = step.bounds
        self.trace.append(
            {"stage": stage, "observed": self.seen.num_observed, "tolerance": self.floor, "new_tolerance": self.ceiling}
            | step.to_row()
            | {"bellman_error": self.bellman_error(target), "seconds": time.perf_counter() - started}
            | facts
        )

    def _noisy_target(self, power: float) -> TabularTarget:
        made = self._made_target()
        if self.before is None:
            return made
        if made.own_noise is not None:
            blended = BlendedNoise(noise=made.own_noise, before=self.before, share=power)
            return type(made)(self.seen, self.prior, blended)
        old = likelihood_data(self.likelihood, self.before)
        rows = np.searchsorted(self.seen.observed_pairs, self.before.observed_pairs)
        return made.with_data(blend(old, rows, made.data, power))


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
        step = sampler.lower_ceiling(least_tolerance if was_common else sampler.floor, stop_at)
        ineffective = 0 if step.is_effective else ineffective + 1
        if ineffective == settings.ineffective_limit:
            if not _restore_mixing(sampler, stop_at):
                return False
            if sampler.ceiling <= sampler.floor:
                return True
            ineffective = 0
            continue
        if was_common:
            error = float(sampler.trace[-1]["bellman_error"])
            stale = 0 if error < best_error else stale + 1
            best_error = min(best_error, error)
            if stale == settings.stale_limit:
                return True
    return True


def _restore_mixing(sampler: AnnealedSampler, stop_at: float) -> bool:
    """Stage IV of alg. smcpseudo2: raise the floor until the moves are effective; return False if time ran out."""
    for _ in range(sampler.settings.max_steps):
        if time.perf_counter() >= stop_at:
            return False
        if sampler.raise_floor(stop_at).is_effective:
            return True
    return time.perf_counter() < stop_at


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
            sampler._target = sampler._make_target()
        worked = True
        _raise_power(sampler, stop_at)
    sampler.is_finished = sampler.power == 1.0
    return worked


def _raise_power(sampler: AnnealedSampler, stop_at: float) -> None:
    """One step of data annealing, λ = τ⁻²: stage I from τ = ∞, then stage II, until τ = 1."""
    assert sampler.before is not None
    started = time.perf_counter()
    made, cloud = sampler._made_target(), sampler.cloud
    kind = type(made)
    old = kind(sampler.before, sampler.prior, sampler.likelihood)
    log_ratio = made.log_likelihood(cloud.theta, cloud.log_scale) - old.log_likelihood(cloud.theta, cloud.log_scale)
    start = np.inf if sampler.power == 0.0 else sampler.power**-0.5
    gain = PowerGain(tolerance=start, log_ratio=log_ratio)
    entering = np.isinf(start)
    support = np.where(made.contains(cloud.theta), 0.0, -np.inf) if entering else 0.0
    found = ess_adapt(
        cloud.log_weights + support, gain.lower, start=start, target=1.0, factor=sampler.settings.ess_factor
    )
    sampler.power = 1.0 if found == 1.0 else found**-2.0
    target = sampler._noisy_target(sampler.power)
    step = smc_one_step(
        cloud,
        target,
        gain.lower(found) + support,
        bounds=sampler.bounds,
        settings=sampler.settings.moves,
        rng=sampler.rng,
        stop_at=stop_at,
    )
    if sampler.power == 1.0:
        sampler.before = None
    sampler._note("I" if entering else "II", step, target, started, new_tolerance=found)
