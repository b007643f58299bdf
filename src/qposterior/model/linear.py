"""The posterior of a linear Q: Q(s, a) = features(s, a) · w. A second target, to keep the interface honest."""

from __future__ import annotations

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.model.kernels import particles
from qposterior.model.kernels.compile import use_threads_for
from qposterior.model.kernels.layout import build_layout
from qposterior.model.likelihood import Likelihood, Tolerance, likelihood_data
from qposterior.model.prior import GaussianPrior
from qposterior.model.target import Target, draw_inside
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience


class LinearQTarget(Target):
    """p(w | D) for Q = features · w with w ~ N(mean, scale²), in Q coordinates; the tolerance must be positive.

    `features` is ``(K, F)`` over the pairs of the space. Q* need not lie in the class: as the tolerance falls the
    posterior gathers at the best fit (paper, app. abcemptyset).
    """

    has_jumps = False

    def __init__(self, seen: Experience, features: FloatArray, prior: GaussianPrior, likelihood: Likelihood) -> None:
        features = np.ascontiguousarray(features, dtype=float)
        if features.ndim != 2 or features.shape[0] != seen.space.num_pairs or not np.isfinite(features).all():
            raise InvalidInputError(
                f"features must be finite, of shape ({seen.space.num_pairs}, F): a row per pair; got {features.shape}"
            )
        if isinstance(likelihood, Tolerance) and likelihood.is_exact and seen.num_observed:
            raise InvalidInputError("tolerance 0 has no density in a linear class; use a positive tolerance")
        self.seen, self.features, self.prior = seen, features, prior
        self.layout = build_layout(seen.space, seen.observed_pairs, seen.table())
        self.data = likelihood_data(likelihood, seen)
        self.num_weights = features.shape[1]
        self.num_coordinates = self.num_weights + int(self.data.learned)
        self.upper_walls = np.full(self.num_coordinates, np.inf)

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return ``(N, 2)`` log-densities; the second column is 0."""
        return self.log_density_and_grad(x)[0]

    def log_density_and_grad(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log-densities and gradients: the chain rule through features · w."""
        weights = x[:, : self.num_weights]
        theta = self.to_q(x)
        slope = np.empty_like(theta)
        log_scale = np.ascontiguousarray(x[:, -1]) if self.data.learned else np.zeros(x.shape[0])
        flat = GaussianPrior().to_data()  # its wall is all that the likelihood looks at: there is none
        use_threads_for(theta.size)
        answer = particles.q_likelihoods(self.layout, self.data, flat, theta, log_scale, slope)
        z = (weights - self.prior.mean) / self.prior.scale
        total = answer[:, 0] - 0.5 * np.sum(z**2, axis=1)
        total -= self.num_weights * (np.log(self.prior.scale) + 0.5 * np.log(2.0 * np.pi))
        grad = np.empty_like(x, dtype=float)
        grad[:, : self.num_weights] = slope @ self.features - z / self.prior.scale
        if self.data.learned:
            away = (log_scale - self.data.log_scale_mean) / self.data.log_scale_sd
            total -= 0.5 * away**2 + np.log(self.data.log_scale_sd) + 0.5 * np.log(2.0 * np.pi)
            grad[:, -1] = answer[:, 1] - away / self.data.log_scale_sd
        return np.stack([total, np.zeros_like(total)], axis=1), grad

    def residuals(self, x: FloatArray) -> FloatArray:
        """Return ``(N, n)`` g_k(θ) − r_k over the observed pairs."""
        theta = self.to_q(x)
        value = self.seen.space.maximum(theta)
        expected = (self.seen.table().matrix @ value.T).T
        return np.asarray(theta[:, self.layout.observed] - self.layout.discount * expected - self.data.mean)

    def optimal_share(self, theta: FloatArray) -> FloatArray:
        """Return ``(N, K)`` the share of each pair in being optimal."""
        return self.seen.space.optimal_share(theta)

    def to_q(self, x: FloatArray) -> FloatArray:
        """Return ``(N, K)`` features · w."""
        return np.ascontiguousarray(x[:, : self.num_weights] @ self.features.T)

    def initial(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return draws from the prior that lie in the support."""
        return draw_inside(self, self._draw_prior, num, rng)

    def _draw_prior(self, num: int, rng: np.random.Generator) -> FloatArray:
        x = rng.normal(self.prior.mean, self.prior.scale, (num, self.num_coordinates))
        if self.data.learned:
            x[:, -1] = self.data.log_scale_mean + 0.5 * self.data.log_scale_sd * rng.standard_normal(num)
        return x
