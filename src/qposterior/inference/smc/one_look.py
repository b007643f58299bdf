"""The one-look update: exact incremental weights at tolerance 0, no tolerance and no annealing.

When pair k is seen for the first time its value stops being free. With f_O the tolerance-0 density given what was seen,

    w(φ') = f_{O∪k}(φ') / ∫ f_O(φ', x) dx,      x in the place of θ_k,

is the conditional density, given a particle's other free values, of the reward that was read. The integral is a sum of
Gaussian pieces (`kernels.piecewise`). Noisy rewards need no integral: the first look changes the coordinate θ_k into
ρ_k = g_k(θ) and leaves θ where it is; every reading multiplies its likelihood.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from qposterior.checks import check_count, check_number
from qposterior.errors import InvalidInputError
from qposterior.inference.hmc import ChainState, Tuning, hmc_move, redraw
from qposterior.inference.records import Particles
from qposterior.inference.smc.blocks import Blocks, Moves
from qposterior.inference.smc.resampling import find_resampling
from qposterior.inference.smc.sampler import Packed, SequentialSampler, initial_state
from qposterior.model.charts import BellmanChart
from qposterior.model.kernels.density import NO_WALL
from qposterior.model.noise import Noise, Tolerance, as_likelihood
from qposterior.model.prior import GaussianPrior, Prior, compiled_form
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace

FIRST_STEP = 0.5
TARGET_ACCEPTANCE = 0.8
MOST_LEAPFROG = 64
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
    noise: Tolerance | Noise = Tolerance() if rewards == "deterministic" else Noise()
    sampler = OneLookSampler.start(seen, prior=GaussianPrior(), noise=noise, particles=4, rng=np.random.default_rng(0))
    sampler.update(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLookSettings:
    """How the particles are resampled and moved."""

    moves: int = 3  # trajectories after each update
    moves_between: int = 3  # after each resampling within one, so that copies part before the next weights
    resampling: str = "systematic"
    resample_below: float = 0.5  # share of N

    def __post_init__(self) -> None:
        check_count("moves", self.moves, 0)
        check_count("moves_between", self.moves_between, 0)
        find_resampling(self.resampling)
        check_number("resample_below", self.resample_below, "[0, 1]")


class BellmanTarget(Target):
    """A target in Bellman coordinates, in which first looks are weighed."""

    chart: BellmanChart


@dataclass(kw_only=True)
class OneLookSampler(SequentialSampler):
    """Weighted particles of the exact posterior, tolerance 0, brought up to date whenever something new was seen."""

    settings: OneLookSettings = field(default_factory=OneLookSettings)
    step: float = FIRST_STEP
    spread: FloatArray | None = None  # (K + 1,)  running variances of the coordinates, the last for the log-scale
    _current: BellmanTarget | None = None  # the target of `seen`, kept until something new is seen
    _current_size: int = -1
    _blocks: Blocks | None = None  # the particles, where the problem is one for blocks
    _is_stale: bool = False  # the blocks have gone on since the particles were written
    _is_for_blocks: bool = True  # as far as is known
    _particles: Particles = field(init=False, repr=False)

    @property  # type: ignore[misc]  # a field that is written when it is asked for
    def particles(self) -> Particles:
        """The particles, with θ of all pairs."""
        if self._blocks is not None and self._is_stale:
            self._particles = self._particles.at(self._blocks.parameters(), None)
            self._is_stale = False
        return self._particles

    @particles.setter
    def particles(self, particles: Particles) -> None:
        self._particles, self._blocks, self._is_stale = particles, None, False

    @classmethod
    def start(
        cls,
        template: Experience,
        *,
        prior: Prior,
        noise: Any,
        particles: int,
        rng: np.random.Generator,
        settings: OneLookSettings | None = None,
    ) -> OneLookSampler:
        """Return particles drawn from the prior, nothing seen; `template` tells space and kinds of experience."""
        likelihood = as_likelihood(noise)
        if not likelihood.is_noisy and not likelihood.is_exact:
            raise InvalidInputError("the one-look update is exact: it takes tolerance 0 (or noise), not a tolerance")
        return cls(
            **initial_state(template, prior, noise, particles=particles, rng=rng),
            settings=settings or OneLookSettings(),
        )

    def update(self, seen: Experience, *, deadline: float | None = None) -> bool:
        """Bring the particles from what they know to `seen`, a later state of the same experience; return if new.

        Pairs are added last seen first: most then have no observed predecessor, where the weight is one normal density.
        With a `deadline` in seconds, pairs that there is no time for wait for the next call: until then the particles
        are a valid approximation of the posterior given the others.
        """
        stop_at = np.inf if deadline is None else time.perf_counter() + deadline
        fresh = np.flatnonzero(seen.observed & ~self.seen.observed)
        if self.noise.is_noisy:
            changed = bool(np.any(seen.count != self.seen.count))
            if changed:
                self._reweight_noisy(seen)
        else:
            changed = fresh.size > 0
            if np.any(self.seen.observed & (seen.reward_mean != self.seen.reward_mean)):
                self._restate(seen)
            last_first = sorted((int(k) for k in fresh), key=seen.first_seen, reverse=True)
            while last_first and time.perf_counter() < stop_at:
                has_copies = self._add_pair(last_first.pop(0), seen)
                if has_copies and last_first:
                    self.move(self.settings.moves_between, deadline=stop_at - time.perf_counter())
            self.is_finished = not last_first
        if changed:
            self.move(self.settings.moves, deadline=stop_at - time.perf_counter())
        return changed

    def move(self, times: int = 1, *, deadline: float | None = None) -> None:
        """Move every particle at the exact target, `times` trajectories each, with a sweep where policies can loop."""
        stop_at = np.inf if deadline is None else time.perf_counter() + deadline
        if times == 0 or (self.seen.num_observed == self.seen.space.num_pairs and not self.noise.is_noisy):
            return
        if time.perf_counter() >= stop_at:
            return
        started = time.perf_counter()
        blocks = self._as_blocks()
        moves: Moves | TargetMoves = TargetMoves(self) if blocks is None else blocks.begin_moves()
        accepted: list[float] = []
        leapfrog = 0
        while len(accepted) < times and (not accepted or time.perf_counter() < stop_at):
            tuning = Tuning(step=self.step, trajectory=np.pi / 2, inverse_mass=np.ones(0))
            num_steps = tuning.num_steps(self.rng.random(), MOST_LEAPFROG)
            accepted.append(moves.run(step=self.step, num_steps=num_steps, rng=self.rng))
            leapfrog += num_steps
            # A slow stochastic approximation: one step size serves the whole run.
            self.step = float(np.clip(self.step * np.exp(0.3 * (accepted[-1] - TARGET_ACCEPTANCE)), 1e-3, 2.0))
        moves.end(self.rng)
        self._is_stale = blocks is not None
        self._note(
            "move",
            started,
            ess_before=self.ess,
            moves=len(accepted),
            acceptance=float(np.mean(accepted)),
            step_size=self.step,
            trajectory=leapfrog / len(accepted),
        )

    @property
    def ess(self) -> float:
        """The effective number of particles."""
        return self._particles.ess

    def draw_q(self) -> FloatArray:
        """Return ``(K,)`` the values of Q of one particle, drawn by its weight."""
        chosen = int(self.rng.choice(self._particles.num, p=self._particles.weights))
        blocks = self._as_blocks()
        return self.particles.parameters[chosen] if blocks is None else blocks.parameters_of(chosen)

    def pack(self) -> Packed:
        """Return everything that the continuation depends on."""
        arrays, facts = super().pack()
        arrays |= {} if self.spread is None else {"spread": self.spread}
        arrays |= {} if self._blocks is None else {"curvature": self._blocks.curvature}
        return arrays, facts | {"step": self.step}

    def unpack(self, arrays: dict[str, FloatArray], facts: dict[str, Any]) -> None:
        """Take over what `pack` returned."""
        super().unpack(arrays, facts)
        self.spread, self.step, self._current = arrays.get("spread"), float(facts["step"]), None
        self._is_for_blocks = True
        if (blocks := self._as_blocks()) is not None and "curvature" in arrays:
            blocks.curvature[:] = arrays["curvature"]

    # -- weights -------------------------------------------------------------------------------------------------------

    def _add_pair(self, k: int, seen: Experience) -> bool:
        """Reweight by the exact density of the reward of pair k; return whether uneven weights had it resample.

        w(φ') = f_{O∪k}(φ') / ∫ f_O(φ', x) dx; where nothing observed depends on θ_k that is the prior at θ_k = c, the
        value that the reward implies.
        """
        started = time.perf_counter()
        blocks = self._as_blocks()
        if blocks is not None and blocks.takes(k, seen):
            log_weight = blocks.add(k, seen, self.rng)
            self.seen.reveal(k, seen)
            self._is_stale = True
            return self._absorb(log_weight, "look", started)
        if blocks is not None:  # from now on it is not
            self.particles, self._is_for_blocks = self.particles, False
        before = self._target(self.seen)
        alone = before.chart.stands_alone(k, seen.row(k)[0])
        log_integral = np.zeros(0) if alone else before.chart.log_integral(self.particles.parameters, k)
        self.seen.reveal(k, seen)
        after = self._target(self.seen)
        x = self._coordinates(after)
        theta = after.to_parameters(x)
        if alone:
            mean, scale = after.parts.prior_data.mean[k], after.parts.prior_data.scale[k]
            log_weight = -0.5 * ((theta[:, k] - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2.0 * np.pi)
        else:
            log_weight = after.log_density(x).total - log_integral
        self.particles = self.particles.at(theta, None)
        return self._absorb(log_weight, "look", started)

    def _reweight_noisy(self, seen: Experience) -> None:
        """Multiply the likelihood of the new readings at ρ = g(θ); θ without a proper policy gets weight 0."""
        started = time.perf_counter()
        theta, log_scale = self.particles.parameters, self.particles.log_scale
        before, after = self._target(self.seen), Target(seen, self.prior, self.noise)
        gain = after.log_likelihood(theta, log_scale) - before.log_likelihood(theta, log_scale)
        self.seen = seen.copy()
        self._absorb(np.where(after.contains(theta), gain, -np.inf), "readings", started)

    def _restate(self, seen: Experience) -> None:
        """Take over the same pairs with other rewards (another unit), in place of those that the particles know.

        The free values stay, reweighted by f_new / f_old, the densities at tolerance 0 given the one and the other.
        """
        started, before = time.perf_counter(), self._target(self.seen)
        x = self._coordinates(before)
        density = before.log_density(x).total
        known = Experience(seen.space, transitions=seen.transitions, rewards=seen.rewards)
        for k in sorted(self.seen.observed_pairs.tolist(), key=seen.first_seen):
            known.reveal(k, seen)
        self.seen, self._current = known, None
        after = self._target(known)
        self.particles = self.particles.at(after.to_parameters(x), None)
        self._absorb(after.log_density(x).total - density, "unit", started)

    def _absorb(self, log_weight: FloatArray, stage: str, started: float) -> bool:
        ess_before = self.ess
        log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
        self._particles, increment = self._particles.reweighted(log_weight)
        ess_after, num = self.ess, self._particles.num
        resampled = ess_after < self.settings.resample_below * num
        if resampled:
            chosen = find_resampling(self.settings.resampling)(self._particles.weights, self.rng, num)
            if self._blocks is None:
                self._particles = self._particles.select(chosen)
            else:
                self._blocks.select(chosen)
                self._particles = self._particles.descended(chosen)
        facts = {"ess_before": ess_before, "ess_after": ess_after, "log_increment": increment}
        self._note(stage, started, **facts, resampled=resampled, ancestors=self._particles.num_ancestors)
        return bool(resampled)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _as_blocks(self) -> Blocks | None:
        """Return the particles in blocks, None where what was seen, the prior or the noise is not for them."""
        if self._blocks is None and self._is_for_blocks:
            prior = compiled_form(self.prior, self.seen.space.num_pairs) if self.noise.is_exact else None
            if prior is not None and prior.wall == NO_WALL and self.seen.transitions == "revealed":
                self._blocks = Blocks.of(self.seen, prior, self._particles.parameters)
            self._is_for_blocks = self._blocks is not None
        return self._blocks

    def _target(self, seen: Experience) -> BellmanTarget:
        if self._current is not None and seen is self.seen and self._current_size == int(seen.count.sum()):
            return self._current
        self._current, self._current_size = BellmanTarget(seen, self.prior, self.noise), int(seen.count.sum())
        return self._current

    def _coordinates(self, target: BellmanTarget) -> FloatArray:
        """Return where the particles stand; at tolerance 0 their free values, whatever θ they had on seen pairs."""
        if self.noise.is_noisy:
            return target.from_parameters(self.particles.parameters, self.particles.log_scale)
        return np.ascontiguousarray(self.particles.parameters[:, target.chart.free])

    def _variances(self, target: BellmanTarget, x: FloatArray) -> FloatArray:
        """Return the running variances of the coordinates: few particles, but many updates."""
        variance = target.typical_spread**2
        if self.spread is None:
            self.spread = np.full(self.seen.space.num_pairs + 1, variance)
        weights = self.particles.weights
        sample = weights @ (x - weights @ x) ** 2 + 1e-6 * variance
        where = np.append(target.chart.free, self.seen.space.num_pairs)[: x.shape[1]]
        share = min(0.5, self.particles.ess / FORGETTING)
        self.spread[where] += share * (sample - self.spread[where])
        return np.asarray(self.spread[where])

    def _note(self, stage: str, started: float, **facts: Any) -> None:
        row = {"stage": stage, "observed": self.seen.num_observed, "tolerance": 0.0, "new_tolerance": 0.0}
        self.trace.append(row | facts | {"bellman_error": 0.0, "seconds": time.perf_counter() - started})


class TargetMoves:
    """Trajectories of all particles of a sampler at the exact target, whatever the problem."""

    def __init__(self, sampler: OneLookSampler) -> None:
        self.sampler, self.target = sampler, sampler._target(sampler.seen)
        x = sampler._coordinates(self.target)
        tuning = Tuning(step=sampler.step, trajectory=1.0, inverse_mass=sampler._variances(self.target, x))
        self.state = ChainState(x=x, density=self.target.log_density(x), tuning=tuning)

    def run(self, *, step: float, num_steps: int, rng: np.random.Generator) -> float:
        """Run one trajectory of every particle (paper, alg. hmc); return the mean acceptance probability."""
        tuning = replace(self.state.tuning, step=step)
        move = hmc_move(self.target, self.state.x, self.state.density, tuning, num_steps, rng)
        self.state = ChainState(x=move.x, density=move.density, tuning=tuning)
        return float(np.nan_to_num(move.smooth_acceptance).mean())

    def end(self, rng: np.random.Generator) -> None:
        """Draw once more what trajectories do not move, and write the particles."""
        state, sampler = redraw(self.target, self.state, rng), self.sampler
        moved = self.target.to_parameters(state.x), self.target.log_scale_of(state.x)
        sampler.particles = sampler.particles.at(*moved)
