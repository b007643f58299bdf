"""The posterior under a prior on rewards, the transitions of all pairs known: posterior sampling here is PSRL."""

from __future__ import annotations

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.model.kernels import particles
from qposterior.model.kernels.compile import use_threads_for
from qposterior.model.kernels.density import HARD_Q, NO_WALL, PriorData
from qposterior.model.kernels.layout import build_layout
from qposterior.model.likelihood import Likelihood, Noise, Tolerance, likelihood_data, own_noise
from qposterior.model.prior import RewardPrior
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior.world.transitions import TransitionTable


class RewardTarget(Target):
    """p(ρ | D) over the rewards of all K pairs, ρ_k ~ N(mean, scale²) cut off above `upper`; θ solves the MDP of ρ.

    At tolerance 0 the observed rewards are fixed and the coordinates are the others. `draw` needs no Markov chain where
    rewards are deterministic or their Gaussian noise has a known scale.
    """

    has_jumps = False

    def __init__(self, seen: Experience, table: TransitionTable, prior: RewardPrior, likelihood: Likelihood) -> None:
        space = seen.space
        if table.num_rows != space.num_pairs or table.num_states != space.num_states:
            raise InvalidInputError(
                f"the table must have a row for each of the {space.num_pairs} pairs over {space.num_states} states, "
                f"got {table.num_rows} rows over {table.num_states}"
            )
        if own_noise(likelihood) is not None:
            raise InvalidInputError(
                "a RewardPrior takes a Noise or a tolerance; a noise of one's own needs a prior on Q"
            )
        self.seen, self.prior, self.likelihood = seen, prior, likelihood
        self.layout = build_layout(space, np.arange(space.num_pairs), table)
        loops = space.discount == 1.0 and self.layout.has_loop.any()
        if loops and not (prior.upper is not None and prior.upper < 0.0):
            raise InvalidInputError(
                f"with discount 1 and loops almost every draw of rewards has a loop that pays; RewardPrior needs "
                f"upper < 0, got {prior.upper} (or use a discount below 1)"
            )
        self.data = likelihood_data(likelihood, seen)
        wall = NO_WALL if prior.upper is None else HARD_Q
        upper = np.inf if prior.upper is None else float(prior.upper)
        self.prior_data = PriorData(float(prior.mean), float(prior.scale), wall, upper, 1.0)
        self.is_exact = isinstance(likelihood, Tolerance) and likelihood.is_exact
        self.num_pairs = space.num_pairs
        self.free = np.flatnonzero(~seen.observed) if self.is_exact else np.arange(self.num_pairs)
        self.num_coordinates = int(self.free.size) + int(self.data.learned)
        self.upper_walls = np.full(self.num_coordinates, np.inf)
        self.upper_walls[: self.free.size] = upper
        self._observed = seen.observed_pairs
        self._seen_layout = self.layout._replace(observed=self._observed)

    @property
    def is_conjugate(self) -> bool:
        """Whether `draw` gives independent draws without a Markov chain."""
        if isinstance(self.likelihood, Noise):
            return self.likelihood.kind == "gaussian" and not self.likelihood.is_learned
        return True

    def draw(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, D)`` independent draws: normal or truncated normal posteriors, pair by pair."""
        mean = np.full(self.num_pairs, float(self.prior.mean))
        sd = np.full(self.num_pairs, float(self.prior.scale))
        low, high = np.full(self.num_pairs, -np.inf), np.full(self.num_pairs, self.prior_data.upper)
        uniform = isinstance(self.likelihood, Tolerance) and self.likelihood.kernel == "uniform"
        if not self.is_exact and uniform:
            low[self._observed] = self.data.mean - self.data.scale
            high[self._observed] = np.minimum(high[self._observed], self.data.mean + self.data.scale)
        elif not self.is_exact:
            precision = self.data.num_readings / self.data.scale**2
            total = precision + 1.0 / self.prior.scale**2
            mean[self._observed] = (precision * self.data.mean + self.prior.mean / self.prior.scale**2) / total
            sd[self._observed] = total**-0.5
        return _truncated_normal(mean, sd, low, high, num, rng)[:, self.free]

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return ``(N, 2)`` log-densities; the second column is 0."""
        return self.log_density_and_grad(x)[0]

    def log_density_and_grad(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log-densities (up to a constant) and gradients."""
        full = self._rewards(x)
        if self.data.learned:
            full = np.concatenate([full, x[:, -1:]], axis=1)
        grad = np.zeros_like(full)
        data = self.data if not self.is_exact else self.data._replace(mean=np.empty(0))
        use_threads_for(full.size)
        smooth = particles.reward_densities(self._seen_layout, data, self.prior_data, full, grad)
        kept = np.concatenate([grad[:, self.free], grad[:, self.num_pairs :]], axis=1)
        return np.stack([smooth, np.zeros_like(smooth)], axis=1), kept

    def residuals(self, x: FloatArray) -> FloatArray:
        """Return ``(N, n)`` ρ_k − r_k over the observed pairs."""
        return np.asarray(self._rewards(x)[:, self._observed] - self.data.mean)

    def optimal_share(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, K)`` the share of each pair in being optimal."""
        return self.seen.space.optimal_share(theta)

    def to_q(self, x: FloatArray) -> FloatArray:
        """Return ``(N, K)`` the optimal Q of each draw of rewards."""
        known = self.data._replace(learned=False)
        every = np.arange(self.num_pairs)
        tables = self.layout.probability[None]
        use_threads_for(x.shape[0] * self.num_pairs)
        return particles.bellman_to_q(tables, self.layout, known, every, np.zeros(self.num_pairs), self._rewards(x))

    def initial(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return draws from the prior, below its wall."""
        sizes = np.ones(self.num_pairs)
        drawn = _truncated_normal(
            self.prior.mean * sizes,
            self.prior.scale * sizes,
            -np.inf * sizes,
            self.prior_data.upper * sizes,
            num,
            rng,
        )[:, self.free]
        if not self.data.learned:
            return drawn
        scale = self.data.log_scale_mean + 0.5 * self.data.log_scale_sd * rng.standard_normal((num, 1))
        return np.concatenate([drawn, scale], axis=1)

    def _rewards(self, x: FloatArray) -> FloatArray:
        full = np.empty((x.shape[0], self.num_pairs))
        full[:, self._observed] = self.data.mean
        full[:, self.free] = x[:, : self.free.size]
        return full


def _truncated_normal(
    mean: FloatArray, sd: FloatArray, low: FloatArray, high: FloatArray, num: int, rng: np.random.Generator
) -> FloatArray:
    """Return ``(num, K)`` draws of N(mean, sd²) between low and high, by inversion in the lower tail."""
    from scipy.special import ndtr, ndtri

    a, b = (low - mean) / sd, (high - mean) / sd
    flip = a > 0.0
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    floor = ndtr(a)
    z = ndtri(floor + rng.random((num, mean.size)) * (ndtr(b) - floor))
    return np.asarray(mean + sd * np.clip(np.where(flip, -z, z), (low - mean) / sd, (high - mean) / sd))
