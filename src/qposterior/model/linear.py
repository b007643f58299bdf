"""The posterior of a linear Q: Q(s, a) = features(s, a) · w. A second target, to keep the interface honest."""

from __future__ import annotations

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.model import plain
from qposterior.model.kernels.layout import build_layout
from qposterior.model.likelihood import Likelihood, Tolerance, likelihood_data, own_noise
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
        self.data, self.own_noise = likelihood_data(likelihood, seen), own_noise(likelihood)
        self.num_weights = features.shape[1]
        self.num_coordinates = self.num_weights + int(self.data.learned)
        self.upper_walls = np.full(self.num_coordinates, np.inf)

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return ``(N, 2)`` log-densities; the second column is 0."""
        return self.log_density_and_grad(x)[0]

    def log_density_and_grad(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log-densities and gradients: the chain rule through features · w."""
        log_scale = plain.log_scale_of(self, x)
        log_prior, grad = self.prior.log_density_and_grad(x[:, : self.num_weights], self.seen.space)
        log_likelihood, slope, pull = plain.q_likelihood_and_grad(self, self.to_q(x), log_scale)
        total, grad = log_prior + log_likelihood, grad + slope @ self.features
        if self.data.learned:
            part, push = plain.log_scale_prior(self, log_scale)
            total, grad = total + part, np.column_stack([grad, pull + push])
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
