"""The one-look update: exact incremental weights at tolerance 0, no tolerance and no annealing.

When pair k is seen for the first time its value stops being free. With f_O the tolerance-0 density given what was seen,

    w(φ') = f_{O∪k}(φ') / ∫ f_O(φ', x) dx,      x in the place of θ_k,

is the conditional density, given a particle's other free values, of the reward that was read. The integral is a sum of
Gaussian pieces (`kernels.piecewise`). Noisy rewards need no integral: the first look changes the coordinate θ_k into
ρ_k = g_k(θ) and leaves θ where it is; every reading multiplies its likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from qposterior.errors import InvalidInputError, QPosteriorError
from qposterior.inference.diagnostics import weighted_ess
from qposterior.inference.hmc import Tuning, hmc_move
from qposterior.inference.smc.resampling import find_resampling
from qposterior.model.kernels import piecewise
from qposterior.model.kernels.compile import use_threads_for
from qposterior.model.likelihood import Likelihood, Noise, Tolerance
from qposterior.model.prior import BoundedPrior, GaussianPrior
from qposterior.model.tabular import BellmanTarget
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace

FIRST_STEP = 0.5
TARGET_ACCEPTANCE = 0.8
MOST_LEAPFROG = 32
"""Moves are many and short: what one update leaves to be mixed the next one takes on."""

FORGETTING = 100.0
"""Over how many particles the variances of the mass matrix are averaged."""


@cache
def load_kernels(rewards: str = "deterministic") -> None:
    """Run every kernel of an update once on a toy problem, so that no update pays for compiling or loading them."""
    space = StateActionSpace.from_mask(np.ones((3, 2), dtype=bool), [False, False, True])
    seen = Experience(space, rewards=rewards)
    for state, following in ((0, 1), (1, 0)):
        seen.record(state, 0, -1.0, following, row=(np.array([following, 2]), np.array([0.5, 0.5])))
    likelihood: Likelihood = Tolerance() if rewards == "deterministic" else Noise()
    sampler = OneLookSampler.start(
        seen, prior=GaussianPrior(), likelihood=likelihood, particles=4, rng=np.random.default_rng(0)
    )
    sampler.update(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLookSettings:
    """How the particles are resampled and moved."""

    moves: int = 3  # trajectories after each update
    resampling: str = "systematic"
    resample_below: float = 0.5  # share of N


@dataclass(kw_only=True)
class OneLookSampler:
    """Weighted particles of the exact posterior, brought up to date by `update` whenever something new was seen."""

    prior: GaussianPrior | BoundedPrior
    likelihood: Likelihood
    theta: FloatArray  # (N, K)
    log_weights: FloatArray  # (N,)  normalised: logsumexp == 0
    seen: Experience  # what the particles know
    rng: np.random.Generator
    settings: OneLookSettings = field(default_factory=OneLookSettings)
    log_evidence: float = 0.0
    step: float = FIRST_STEP
    trace: list[dict[str, float | str]] = field(default_factory=list)
    log_scale: FloatArray | None = None  # (N,)  where the noise scale is learned
    _current: BellmanTarget | None = None  # the target of `seen`, kept until something new is seen
    _current_size: int = -1
    _spread: FloatArray | None = None  # (K + 1,)  running variances of the coordinates, the last for the log-scale

    @classmethod
    def start(
        cls,
        space_of: Experience,
        *,
        prior: GaussianPrior | BoundedPrior,
        likelihood: Likelihood,
        particles: int,
        rng: np.random.Generator,
        settings: OneLookSettings | None = None,
    ) -> OneLookSampler:
        """Return particles drawn from the prior, nothing seen; `space_of` tells space and kinds of experience."""
        if isinstance(likelihood, Tolerance) and not likelihood.is_exact:
            raise InvalidInputError("the one-look update is exact: it takes tolerance 0 (or noise), not a tolerance")
        if isinstance(prior, BoundedPrior) and (prior.softness is not None or prior.on == "reward"):
            raise InvalidInputError('the one-look update takes a GaussianPrior or a hard wall on Q; use method="hmc"')
        nothing = Experience(space_of.space, transitions=space_of.transitions, rewards=space_of.rewards)
        target = BellmanTarget(nothing, prior, likelihood)
        x = target.initial(particles, rng)
        learned = isinstance(likelihood, Noise) and likelihood.is_learned
        log_scale = None
        if learned:
            assert isinstance(likelihood, Noise)
            log_scale = rng.normal(likelihood.log_scale_mean, likelihood.log_scale_sd, particles)
        return cls(
            prior=prior,
            likelihood=likelihood,
            theta=x[:, : nothing.space.num_pairs].copy(),
            log_weights=np.full(particles, -np.log(particles)),
            seen=nothing,
            rng=rng,
            settings=settings or OneLookSettings(),
            log_scale=log_scale,
        )

    @property
    def weights(self) -> FloatArray:
        """``(N,)`` normalised weights."""
        return np.exp(self.log_weights)

    def update(self, seen: Experience) -> bool:
        """Bring the particles from what they know to `seen`, a later state of the same experience; return if new.

        Pairs are added last seen first: most then have no observed predecessor, where the weight is one normal density.
        """
        fresh = np.flatnonzero(seen.observed & ~self.seen.observed)
        if isinstance(self.likelihood, Noise):
            changed = bool(np.any(seen.count != self.seen.count))
            if changed:
                self._reweight_noisy(seen)
        else:
            changed = fresh.size > 0
            for k in self._order(fresh, seen):
                self._add_pair(int(k), seen)
        if changed:
            self.move(self.settings.moves)
        return changed

    def move(self, times: int = 1) -> None:
        """Move every particle at the exact target, `times` trajectories each, with a sweep where policies can loop."""
        target = self._target(self.seen)
        if target.num_coordinates == 0 or times == 0:
            return
        x = self._coordinates(target)
        density = target.log_density(x)
        tuning = Tuning(step=self.step, trajectory=np.pi / 2, inverse_mass=self._variances(target, x))
        accepted = []
        for _ in range(times):
            steps = tuning.num_steps(self.rng.random(), MOST_LEAPFROG)
            move = hmc_move(target, x, density, tuning, steps, self.rng)
            x, density = move.x, move.density
            accepted.append(float(move.smooth_acceptance.mean()))
            # A slow stochastic approximation: one step size serves the whole run.
            tuning.step = float(np.clip(tuning.step * np.exp(0.3 * (accepted[-1] - TARGET_ACCEPTANCE)), 1e-3, 2.0))
            if target.has_jumps:
                x = target.gibbs_sweep(x, self.rng)
                density = target.log_density(x)
        self.step = tuning.step
        self._set(target, x)
        self._note("move", acceptance=float(np.mean(accepted)), step=self.step, moves=float(times))

    # -- weights -------------------------------------------------------------------------------------------------------

    def _add_pair(self, k: int, seen: Experience) -> None:
        """Reweight by the exact density of the reward of pair k, and resample where the weights have become uneven."""
        before = self._target(self.seen)
        alone = self._stands_alone(before, k, seen)
        log_integral = np.zeros(0) if alone else self._log_integral(before, k)
        self.seen.reveal(k, seen)
        after = self._target(self.seen)
        x = np.ascontiguousarray(self.theta[:, after.free])
        self.theta = after.to_q(x)
        if alone:
            z = (self.theta[:, k] - self.prior.mean) / self.prior.scale
            log_weight = -0.5 * z**2 - np.log(self.prior.scale) - 0.5 * np.log(2.0 * np.pi)
        else:
            log_weight = after.log_density(x).sum(axis=1) - log_integral
        self._absorb(np.where(np.isfinite(log_weight), log_weight, -np.inf), "look")

    def _stands_alone(self, target: BellmanTarget, k: int, seen: Experience) -> bool:
        """Return whether nothing observed depends on θ_k and k cannot return to its state: w is then prior(c)."""
        state = seen.space.pair_state[k]
        led_to = np.any(target.layout.successor == state) or np.any(seen.row(k)[0] == state)
        return not led_to and self.prior == GaussianPrior(mean=self.prior.mean, scale=self.prior.scale)

    def _log_integral(self, target: BellmanTarget, k: int) -> FloatArray:
        """Return ``(N,)`` log ∫ f_O(φ', x) dx over x = θ_k."""
        psi = np.where(self.seen.observed, self.seen.reward_mean, self.theta)
        use_threads_for(3 * psi.size)
        log_mass = piecewise.log_integrals(target.layout, target.prior_data, psi, k)
        other = np.setdiff1d(target.free, [k])
        z = (self.theta[:, other] - self.prior.mean) / self.prior.scale
        constant = target.num_pairs * (np.log(self.prior.scale) + 0.5 * np.log(2.0 * np.pi))
        return np.asarray(log_mass - 0.5 * np.sum(z**2, axis=1) - constant)

    def _reweight_noisy(self, seen: Experience) -> None:
        """Multiply the likelihood of the new readings at ρ = g(θ); θ without a proper policy gets weight 0."""
        before, after = self._target(self.seen), BellmanTarget(seen, self.prior, self.likelihood)
        gain = after.log_likelihood(self.theta, self.log_scale) - before.log_likelihood(self.theta, self.log_scale)
        x = after.from_q(self.theta, self.log_scale)
        fine = np.isfinite(after.log_density(x).sum(axis=1))
        if after.has_jumps:
            fine &= np.abs(after.to_q(x) - self.theta).max(axis=1) < 1e-6
        self.seen = seen.copy()
        self._absorb(np.where(fine, gain, -np.inf), "readings")

    def _absorb(self, log_weight: FloatArray, stage: str) -> None:
        total = self.log_weights + log_weight
        top = total.max()
        if not np.isfinite(top):
            raise QPosteriorError("every particle has weight 0: prior and data hardly agree; use more particles")
        increment = top + np.log(np.sum(np.exp(total - top)))
        self.log_evidence += float(increment)
        self.log_weights = total - increment
        ess = weighted_ess(self.log_weights)
        resampled = ess < self.settings.resample_below * self.log_weights.size
        if resampled:
            index = find_resampling(self.settings.resampling)(self.weights, self.rng)
            self.theta = self.theta[index]
            self.log_scale = None if self.log_scale is None else self.log_scale[index]
            self.log_weights = np.full(index.size, -np.log(index.size))
        self._note(stage, ess_before=ess, resampled=float(resampled), log_increment=float(increment))

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _target(self, seen: Experience) -> BellmanTarget:
        if self._current is not None and seen is self.seen and self._current_size == int(seen.count.sum()):
            return self._current
        self._current, self._current_size = BellmanTarget(seen, self.prior, self.likelihood), int(seen.count.sum())
        return self._current

    def _coordinates(self, target: BellmanTarget) -> FloatArray:
        if isinstance(self.likelihood, Noise):
            return target.from_q(self.theta, self.log_scale)
        return np.ascontiguousarray(self.theta[:, target.free])

    def _set(self, target: BellmanTarget, x: FloatArray) -> None:
        self.theta = target.to_q(x)
        if self.log_scale is not None:
            self.log_scale = x[:, -1].copy()

    def _variances(self, target: BellmanTarget, x: FloatArray) -> FloatArray:
        """Return the running variances of the coordinates: few particles, but many updates."""
        if self._spread is None:
            self._spread = np.full(self.seen.space.num_pairs + 1, float(self.prior.scale) ** 2)
        weights = self.weights
        sample = weights @ (x - weights @ x) ** 2 + 1e-6 * self.prior.scale**2
        where = np.append(target.free, self.seen.space.num_pairs)[: x.shape[1]]
        share = min(0.5, weighted_ess(self.log_weights) / FORGETTING)
        self._spread[where] += share * (sample - self._spread[where])
        return np.asarray(self._spread[where])

    def _order(self, fresh: IntArray, seen: Experience) -> list[int]:
        """Return new pairs, the last seen first."""
        return sorted((int(k) for k in fresh), key=lambda k: seen.first_seen(k), reverse=True)

    def _note(self, stage: str, **facts: float) -> None:
        self.trace.append({"stage": stage, "observed": float(self.seen.num_observed), **facts})
