"""How what was read relates to the reward g_k(θ) that Q implies: a tolerance, or additive noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qposterior.checks import check_choice, check_number, check_numbers, shown
from qposterior.errors import InvalidInputError
from qposterior.model.kernels.density import GAUSSIAN, LAPLACE, STUDENT, UNIFORM, LikelihoodData
from qposterior.world.arrays import FloatArray, IntArray, segment_starts
from qposterior.world.experience import Experience

SAME_READING = 1e-9
"""Readings whose standard deviation is below this share of their mean are equal: the rest is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Deterministic rewards up to a tolerance ε ≥ 0 (paper, eq. abcpos): K_ε(g_k(θ), r_k), Gaussian or uniform."""

    tolerance: float | FloatArray = 0.0  # a number, or one per observed pair
    kernel: str = "gaussian"

    def __post_init__(self) -> None:
        values = check_numbers("tolerance", self.tolerance)
        if not np.all((values >= 0.0) & np.isfinite(values)):
            raise InvalidInputError(f"tolerance must be 0 or more, got {self.tolerance}")
        if values.any() and not values.all():
            raise InvalidInputError("tolerances must be all 0 or all positive")
        check_choice("kernel", self.kernel, ("gaussian", "uniform"))

    @property
    def is_exact(self) -> bool:
        """Whether the tolerance is 0."""
        return not np.any(self.tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Additive reward noise (paper, eq. llhpstarnoisy): Gaussian, Student-t or Laplace.

    `scale` None is learned: log scale ~ N(log_scale_mean, log_scale_sd²), one scale for all pairs.
    """

    kind: str = "gaussian"
    scale: float | None = None
    degrees: float = 4.0
    log_scale_mean: float = 0.0
    log_scale_sd: float = 1.0

    def __post_init__(self) -> None:
        check_choice("noise", self.kind, ("gaussian", "student", "laplace"))
        if self.scale is not None:
            check_number("noise scale", self.scale, "(0, inf)")
        check_number("degrees", self.degrees, "(0, inf)")
        check_number("log_scale_mean", self.log_scale_mean)
        check_number("log_scale_sd", self.log_scale_sd, "(0, inf)")

    @property
    def is_learned(self) -> bool:
        """Whether the scale is a coordinate."""
        return self.scale is None


class NoiseModel(Protocol):
    """A likelihood of the readings given the mean rewards: what a noise of one's own must be able to say.

    It may also have `has_edge = True` where the likelihood is 0 somewhere, and `describe()`, a plain description that
    is stored with results. Scales that are to be learned are not handled: they are part of the object.
    """

    def log_density_and_grad(self, rewards: FloatArray, seen: Experience) -> tuple[FloatArray, FloatArray]:
        """Return ``(N,)`` log p(readings | mean rewards) and gradients, of ``(N, n)`` mean rewards of the pairs seen.

        Columns are in the order of `seen.observed_pairs`; all that was read is in `seen`: `count`, `reward_mean`,
        `reward_deviation` (sums of squares about the mean) by pair, and `readings()` one by one.
        """
        ...


Likelihood = Tolerance | Noise | NoiseModel


def own_noise(likelihood: Likelihood) -> NoiseModel | None:
    """Return the likelihood if it is a noise of one's own, which is evaluated by `model.plain`."""
    return None if isinstance(likelihood, Tolerance | Noise) else likelihood


def has_noise(likelihood: Likelihood) -> bool:
    """Return whether rewards are readings around a mean, not exact up to a tolerance."""
    return not isinstance(likelihood, Tolerance)


def check_noise(noise: Any) -> None:
    """Raise unless this is a `Noise`, or has what one of one's own needs."""
    if not isinstance(noise, Noise) and (isinstance(noise, type) or not hasattr(noise, "log_density_and_grad")):
        raise InvalidInputError(
            f"noise must be a Noise, or an object with log_density_and_grad, got {shown(noise)}; "
            "for example Noise(scale=1.0)"
        )


def noise_to_dict(noise: Any) -> dict[str, Any]:
    """Return a plain description of a noise."""
    if isinstance(noise, Noise):
        return {"kind": noise.kind, "scale": noise.scale, "degrees": noise.degrees}
    return dict(noise.describe()) if hasattr(noise, "describe") else {"kind": type(noise).__name__}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendedNoise:
    """A noise of one's own, with (1 − share) · log-likelihood of the readings `before` + share · that of all."""

    noise: NoiseModel
    before: Experience
    share: float

    def log_density_and_grad(self, rewards: FloatArray, seen: Experience) -> tuple[FloatArray, FloatArray]:
        """Return the blended log-likelihoods and gradients."""
        rows = np.searchsorted(seen.observed_pairs, self.before.observed_pairs)
        total, grad = self.noise.log_density_and_grad(rewards, seen)
        total, grad = self.share * total, self.share * grad
        if rows.size and self.share < 1.0:
            old, old_grad = self.noise.log_density_and_grad(rewards[:, rows], self.before)
            total = total + (1.0 - self.share) * old
            grad[:, rows] += (1.0 - self.share) * old_grad
        return total, grad


def likelihood_data(likelihood: Likelihood, seen: Experience) -> LikelihoodData:
    """Return what the kernels need: statistics of the observed pairs, in the order of `seen.observed_pairs`."""
    pairs = seen.observed_pairs
    ones = np.ones(pairs.size)
    starts, values, weights = np.zeros(pairs.size + 1, dtype=np.int64), np.empty(0), np.empty(0)
    if isinstance(likelihood, Tolerance):
        if seen.rewards == "noisy" and np.any(seen.reward_deviation[pairs] > 0.0):
            raise InvalidInputError(
                "the rewards seen are noisy; give the noise, for example noise=Noise(), not a tolerance"
            )
        kind = GAUSSIAN if likelihood.kernel == "gaussian" else UNIFORM
        scale = np.broadcast_to(np.asarray(likelihood.tolerance, dtype=float), pairs.shape).copy()
        # A repeated deterministic reading adds nothing: every pair counts once.
        count, deviation, noise = ones, np.zeros(pairs.size), Noise()
        learned = False
    elif not isinstance(likelihood, Noise):
        # A noise of one's own is evaluated by itself; the scale only spreads the points where chains start.
        kind, count, deviation = GAUSSIAN, seen.count[pairs].astype(float), seen.reward_deviation[pairs]
        pooled = float(np.sqrt(deviation.sum() / max(count.sum() - pairs.size, 1.0)))
        scale, noise, learned = ones * (pooled or 1.0), Noise(), False
    else:
        kind = {"gaussian": GAUSSIAN, "student": STUDENT, "laplace": LAPLACE}[likelihood.kind]
        scale = ones if likelihood.scale is None else np.full(pairs.size, float(likelihood.scale))
        count, deviation, noise = seen.count[pairs].astype(float), seen.reward_deviation[pairs], likelihood
        learned = likelihood.is_learned
        if seen.rewards == "deterministic":  # one reading a pair, however often it was repeated
            count, deviation = ones, np.zeros(pairs.size)
        if kind != GAUSSIAN and seen.rewards == "noisy":
            starts, values, weights = seen.readings()
        elif kind != GAUSSIAN:
            starts, values, weights = np.arange(pairs.size + 1), seen.reward_mean[pairs], ones
    mean = seen.reward_mean[pairs]
    is_constant = learned & (count > 1.0) & (deviation <= count * (SAME_READING * mean) ** 2)
    return _with_norms(
        LikelihoodData(
            kind,
            scale,
            count,
            np.where(is_constant, 1.0, count),
            mean,
            deviation,
            ones,
            ones,
            0.0,
            starts,
            values,
            weights,
            float(noise.degrees),
            learned,
            float(noise.log_scale_mean),
            float(noise.log_scale_sd),
        )
    )


def with_tolerance(data: LikelihoodData, tolerance: FloatArray) -> LikelihoodData:
    """Return the same readings with another ``(n,)`` positive tolerance."""
    return _with_norms(data._replace(scale=tolerance))


def blend(old: LikelihoodData, old_rows: IntArray, new: LikelihoodData, share: float) -> LikelihoodData:
    """Return the readings whose log-likelihood is (1 − share) · that of `old` + share · that of `new`.

    The sums n, Σr and Σr² are linear in it, and so are the weights of readings kept one by one and the readings that
    tell of a learned scale. `old_rows` are the rows
    of `new` that the rows of `old` belong to.
    """
    count, weight, gap = share * new.num_readings, np.zeros(new.mean.size), np.zeros(new.mean.size)
    deviation = share * new.deviation
    weight[old_rows] = (1.0 - share) * old.num_readings
    gap[old_rows] = old.mean - new.mean[old_rows]
    deviation[old_rows] += (1.0 - share) * old.deviation
    # Chan's update: squares of the means themselves would cancel.
    both = count + weight
    deviation += gap**2 * count * weight / np.where(both > 0.0, both, 1.0)
    mean = new.mean + gap * weight / np.where(both > 0.0, both, 1.0)
    count = both
    row_of = [
        np.repeat(np.arange(new.mean.size), np.diff(new.point_start)),
        np.repeat(old_rows, np.diff(old.point_start)),
    ]
    order = np.argsort(np.concatenate(row_of), kind="stable")
    num_spread = share * new.num_spread
    num_spread[old_rows] += (1.0 - share) * old.num_spread
    mixed = new._replace(
        num_readings=count,
        num_spread=num_spread,
        mean=mean,
        deviation=deviation,
        point_start=segment_starts(np.concatenate(row_of)[order], new.mean.size),
        point_value=np.concatenate([new.point_value, old.point_value])[order],
        point_weight=np.concatenate([share * new.point_weight, (1.0 - share) * old.point_weight])[order],
    )
    return _with_norms(mixed)


def _with_norms(data: LikelihoodData) -> LikelihoodData:
    """Return the data with the precision and the norm of Gaussian readings that belong to its counts and scales."""
    count, scale = data.num_readings, data.scale
    with np.errstate(divide="ignore", invalid="ignore"):  # tolerance 0: not used
        precision = count / scale**2
        log_norm = -count * (np.log(scale) + 0.5 * np.log(2.0 * np.pi)) - 0.5 * data.deviation / scale**2
        log_norm_sum = float(log_norm.sum())
    return data._replace(precision=precision, log_norm=log_norm, log_norm_sum=log_norm_sum)
