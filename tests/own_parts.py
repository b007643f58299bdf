"""Priors and noises as a user would write them, for tests: nothing here has a compiled form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Plain:
    """A prior of the library, without its compiled form; for a soft wall, of which it cannot draw, about its draws."""

    prior: Any

    def log_density_and_grad(self, theta, space):
        return self.prior.log_density_and_grad(theta, space)

    def draw(self, num, space, rng):
        if getattr(self.prior, "softness", None) is not None:
            return rng.normal(self.prior.mean, self.prior.scale, (num, space.num_pairs))
        return self.prior.draw(num, space, rng)


@dataclass
class RelatedActions:
    """Values of one state share a correlation."""

    mean: float = -0.5
    scale: float = 1.8
    shared: float = 0.7

    def covariance(self, space):
        related = space.pair_state[:, None] == space.pair_state
        return self.scale**2 * (self.shared * related + (1.0 - self.shared) * np.eye(space.num_pairs))

    def log_density_and_grad(self, theta, space):
        covariance = self.covariance(space)
        slope = -np.linalg.solve(covariance, (theta - self.mean).T).T
        constant = 0.5 * np.linalg.slogdet(2.0 * np.pi * covariance)[1]
        return 0.5 * np.sum((theta - self.mean) * slope, axis=1) - constant, slope

    def draw(self, num, space, rng):
        return rng.multivariate_normal(np.full(space.num_pairs, self.mean), self.covariance(space), num)


@dataclass
class Boxed:
    """Independent uniform values: a support with edges on both sides."""

    low: float = -3.0
    high: float = 3.0
    has_edge: bool = True

    def log_density_and_grad(self, theta, space):
        inside = np.all((theta >= self.low) & (theta <= self.high), axis=1)
        total = -theta.shape[1] * np.log(self.high - self.low)
        return np.where(inside, total, -np.inf), np.zeros_like(theta)

    def draw(self, num, space, rng):
        return rng.uniform(self.low, self.high, (num, space.num_pairs))


@dataclass
class Exponential:
    """Independent exponential values above a lowest one: an edge where the density is highest."""

    low: float = -2.0
    scale: float = 1.5
    has_edge: bool = True

    def log_density_and_grad(self, theta, space):
        z = (theta - self.low) / self.scale
        total = -np.sum(z, axis=1) - theta.shape[1] * np.log(self.scale)
        return np.where(np.all(z >= 0.0, axis=1), total, -np.inf), np.full_like(theta, -1.0 / self.scale)

    def draw(self, num, space, rng):
        return self.low + rng.exponential(self.scale, (num, space.num_pairs))


@dataclass
class TwoWorlds:
    """All values lie around −2 or all around 1.5, more probably the first: two modes, of unequal weight and width."""

    centres: tuple[float, ...] = (-2.0, 1.5)
    scales: tuple[float, ...] = (1.2, 0.7)
    shares: tuple[float, ...] = (0.7, 0.3)

    def _parts(self, theta):
        z = (theta[:, None, :] - np.array(self.centres)[:, None]) / np.array(self.scales)[:, None]
        norm = theta.shape[1] * (np.log(self.scales) + 0.5 * np.log(2.0 * np.pi))
        return np.log(self.shares) - 0.5 * np.sum(z**2, axis=2) - norm, -z / np.array(self.scales)[:, None]

    def log_density_and_grad(self, theta, space):
        parts, slopes = self._parts(theta)
        top = parts.max(axis=1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(parts - top).sum(axis=1))
        return total, np.einsum("nm,nmk->nk", np.exp(parts - total[:, None]), slopes)

    def draw(self, num, space, rng):
        world = rng.choice(2, size=num, p=self.shares)[:, None]
        return rng.normal(np.array(self.centres)[world], np.array(self.scales)[world], (num, space.num_pairs))


@dataclass
class GaussianReadings:
    """Gaussian noise of known scale, reading by reading, whatever the library makes of its sums."""

    scale: float = 0.8

    def log_density_and_grad(self, rewards, seen):
        starts, values, weights = seen.readings()
        z = (values - np.repeat(rewards, np.diff(starts), axis=1)) / self.scale
        total = np.sum(weights * (-0.5 * z**2 - np.log(self.scale) - 0.5 * np.log(2.0 * np.pi)), axis=1)
        return total, np.add.reduceat(weights * z / self.scale, starts[:-1], axis=1)


@dataclass
class GumbelReadings:
    """Skewed noise: readings are the mean reward plus scale times a standard Gumbel variable."""

    scale: float = 0.6

    def log_density_and_grad(self, rewards, seen):
        starts, values, weights = seen.readings()
        z = (values - np.repeat(rewards, np.diff(starts), axis=1)) / self.scale
        total = np.sum(weights * (-z - np.exp(-z) - np.log(self.scale)), axis=1)
        return total, np.add.reduceat(weights * (1.0 - np.exp(-z)) / self.scale, starts[:-1], axis=1)


@dataclass
class SixtyForty:
    """A belief of one's own: each observed row is (p, 1 − p) on the two successors seen from its state, p ~ Beta."""

    shapes: tuple[float, float] = (6.0, 4.0)

    def bind(self, seen, rng):
        from qposterior.model.rows import BoundRows, DirichletRows

        table, _ = DirichletRows().shapes(seen)
        shape = np.tile(self.shapes, table.num_rows)

        def draw(num, rng):
            return rng.standard_gamma(shape, (num, shape.size))

        return BoundRows(pairs=seen.observed_pairs, table=table, draw_fn=draw)


def stretched(parts):
    """A chart of one's own: x = θ / 2 + θ³ / 20, one by one, so that its volume is no constant."""
    from qposterior.model.charts import BoundChart, Location

    class Stretched(BoundChart):
        def __init__(self, parts):
            self.parts, self.num_coordinates = parts, parts.seen.space.num_pairs
            self.upper_walls = np.full(self.num_coordinates, np.inf)

        def _theta(self, x):
            # The real root of t³ / 20 + t / 2 = x, by Cardano's formula.
            root = np.sqrt((10.0 * x) ** 2 + (10.0 / 3.0) ** 3)
            return np.cbrt(10.0 * x + root) + np.cbrt(10.0 * x - root)

        def _slope(self, theta):
            return 1.0 / (0.5 + 0.15 * theta**2)

        def locate(self, x, log_scale):
            theta = self._theta(x)
            return Location(
                parameters=theta,
                rewards=self.rewards_of(theta),
                log_volume=np.log(self._slope(theta)).sum(axis=1),
                jump=np.zeros(x.shape[0]),
                inside=np.isfinite(theta).all(axis=1),
                x=x,
            )

        def pull_back(self, at, slope, bend):
            from qposterior.model.charts import QChart

            theta = at.parameters
            in_theta, _ = QChart(self.parts).pull_back(at, slope, bend)
            volume = -0.3 * theta * self._slope(theta)
            return (in_theta + volume) * self._slope(theta), np.zeros(at.x.shape[0])

        def to_parameters(self, x, log_scale):
            return self._theta(x)

        def from_parameters(self, parameters, log_scale):
            return 0.5 * parameters + 0.05 * parameters**3

        def contains(self, parameters):
            return np.isfinite(parameters).all(axis=1)

        def start(self, num, rng):
            return self.from_parameters(self.parts.prior.draw(num, self.parts.seen.space, rng), None)

    return Stretched(parts)
