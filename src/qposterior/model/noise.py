"""How readings scatter around the mean rewards g_k(θ) that Q implies: a tolerance, additive noise, or one's own.

A noise is bound to what was seen (`bind`), which gives its `Readings`: the likelihood as a function of the mean rewards
of the observed pairs. Nothing else of a target asks what kind of noise it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from qposterior.checks import check_choice, check_number, check_numbers, lacking, shown
from qposterior.errors import InvalidInputError
from qposterior.model.kernels import particles
from qposterior.model.kernels.compile import over_particles
from qposterior.model.kernels.density import GAUSSIAN, LAPLACE, STUDENT, UNIFORM, LikelihoodData
from qposterior.model.own_parts import checked_density
from qposterior.world.arrays import FloatArray, IntArray, segment_starts
from qposterior.world.experience import Experience

SAME_READING = 1e-9
"""Readings whose standard deviation is below this share of their mean are equal: the rest is rounding."""

KINDS = {"gaussian": GAUSSIAN, "student": STUDENT, "laplace": LAPLACE}
KERNELS = {"gaussian": GAUSSIAN, "uniform": UNIFORM}


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


class Readings(Protocol):
    """The likelihood of what was read, bound to it."""

    @property
    def data(self) -> LikelihoodData:
        """Its numbers; of a noise of one's own only what starting points are placed by."""
        ...

    @property
    def is_compiled(self) -> bool:
        """Whether the kernels may evaluate `data` instead."""
        ...

    @property
    def has_edge(self) -> bool:
        """Whether the likelihood is 0 somewhere."""
        ...

    def log_density_and_grad(
        self, rewards: FloatArray, log_scale: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return ``(N,)`` log p(readings | ``(N, n)`` mean rewards), slopes in these and in the ``(N,)`` log-scales."""
        ...

    def at_tolerance(self, tolerance: FloatArray) -> Readings:
        """Return the same readings with another ``(n,)`` positive tolerance; under a noise as they are."""
        ...

    def blend(self, before: Experience, share: float) -> Readings:
        """Return the readings of log-likelihood (1 − share) · that of what was seen `before` + share · this one."""
        ...


class Likelihood(Protocol):
    """A noise with all that the samplers ask of it."""

    @property
    def is_exact(self) -> bool:
        """Whether mean rewards are what was read: tolerance 0."""
        ...

    @property
    def is_noisy(self) -> bool:
        """Whether rewards are readings around a mean, so that a further reading of a pair says something new."""
        ...

    @property
    def largest_tolerance(self) -> float:
        """ε, of the pairs the largest; 0 with noise."""
        ...

    def at_tolerance(self, largest: float) -> Likelihood:
        """Return it at another largest tolerance; tolerances that differ by pair keep their ratios. Noise as it is."""
        ...

    def bind(self, seen: Experience) -> Readings:
        """Return the likelihood of what was seen."""
        ...

    def draw_log_scale(self, num: int, rng: np.random.Generator) -> FloatArray | None:
        """Return ``(num,)`` log-scales from their prior where the scale is learned, else None."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return a plain description, stored with results."""
        ...


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
        check_choice("kernel", self.kernel, KERNELS)

    @property
    def is_exact(self) -> bool:
        """Whether the tolerance is 0."""
        return not np.any(self.tolerance)

    @property
    def is_noisy(self) -> bool:
        """A deterministic reward is known after one reading."""
        return False

    @property
    def largest_tolerance(self) -> float:
        """ε, of the pairs the largest."""
        return float(np.max(self.tolerance))

    def at_tolerance(self, largest: float) -> Tolerance:
        """Return another largest tolerance; tolerances that differ by pair keep their ratios."""
        shape = 1.0 if self.is_exact else np.asarray(self.tolerance) / self.largest_tolerance
        return replace(self, tolerance=largest * shape)

    def bind(self, seen: Experience) -> CompiledReadings:
        """Return the kernel at each observed pair; a repeated reading adds nothing, every pair counts once."""
        pairs = seen.observed_pairs
        if seen.rewards == "noisy" and np.any(seen.reward_deviation[pairs] > 0.0):
            raise InvalidInputError(
                "the rewards seen are noisy; give the noise, for example noise=Noise(), not a tolerance"
            )
        scale = np.broadcast_to(np.asarray(self.tolerance, dtype=float), pairs.shape).copy()
        data = _reading_data(seen, KERNELS[self.kernel], scale, are_counted=False)
        return CompiledReadings(data=data, noise=self, seen=seen)

    def draw_log_scale(self, num: int, rng: np.random.Generator) -> None:
        """A tolerance is not learned."""
        return

    def describe(self) -> dict[str, Any]:
        """Return a plain description."""
        return {"tolerance": np.asarray(self.tolerance).tolist(), "kernel": self.kernel}


class Noisy:
    """What every noise answers in the same way."""

    __slots__ = ()

    @property
    def is_exact(self) -> bool:
        """Noise is never exact."""
        return False

    @property
    def is_noisy(self) -> bool:
        """Every reading counts."""
        return True

    @property
    def largest_tolerance(self) -> float:
        """There is none."""
        return 0.0

    def at_tolerance(self, largest: float) -> Self:
        """Return the noise as it is."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(Noisy):
    """Additive reward noise (paper, eq. llhpstarnoisy): Gaussian, Student-t or Laplace.

    `scale` None is learned: log scale ~ N(log_scale_mean, log_scale_sd²), one scale for all pairs.
    """

    kind: str = "gaussian"
    scale: float | None = None
    degrees: float = 4.0
    log_scale_mean: float = 0.0
    log_scale_sd: float = 1.0

    def __post_init__(self) -> None:
        check_choice("noise", self.kind, KINDS)
        if self.scale is not None:
            check_number("noise scale", self.scale, "(0, inf)")
        check_number("degrees", self.degrees, "(0, inf)")
        check_number("log_scale_mean", self.log_scale_mean)
        check_number("log_scale_sd", self.log_scale_sd, "(0, inf)")

    @property
    def is_learned(self) -> bool:
        """Whether the scale is a coordinate."""
        return self.scale is None

    def bind(self, seen: Experience) -> CompiledReadings:
        """Return the likelihood of all readings: sums of Gaussian ones, others one by one."""
        pairs = seen.observed_pairs
        is_counted = seen.rewards != "deterministic"  # else one reading a pair, however often it was repeated
        scale = np.full(pairs.size, 1.0 if self.scale is None else float(self.scale))
        data = _reading_data(seen, KINDS[self.kind], scale, are_counted=is_counted)
        if self.kind != "gaussian":
            ones = np.ones(pairs.size)
            points = seen.readings() if is_counted else (np.arange(pairs.size + 1), seen.reward_mean[pairs], ones)
            start, value, weight = points
            data = data._replace(point_start=start, point_value=value, point_weight=weight)
        if self.is_learned:
            n, deviation, mean = data.num_readings, data.deviation, data.mean
            is_constant = (n > 1.0) & (deviation <= n * (SAME_READING * mean) ** 2)
            data = data._replace(num_spread=np.where(is_constant, 1.0, n), learned=True)
        data = data._replace(
            degrees=float(self.degrees),
            log_scale_mean=float(self.log_scale_mean),
            log_scale_sd=float(self.log_scale_sd),
        )
        return CompiledReadings(data=data, noise=self, seen=seen)

    def draw_log_scale(self, num: int, rng: np.random.Generator) -> FloatArray | None:
        """Return ``(num,)`` log-scales from their prior where the scale is learned."""
        return rng.normal(self.log_scale_mean, self.log_scale_sd, num) if self.is_learned else None

    def describe(self) -> dict[str, Any]:
        """Return a plain description."""
        return {"kind": self.kind, "scale": self.scale, "degrees": self.degrees}


@dataclass(frozen=True, slots=True)
class OwnNoise(Noisy):
    """A noise of one's own, with the rest of what the samplers ask of one."""

    model: NoiseModel

    def bind(self, seen: Experience) -> OwnReadings:
        """Return the likelihood of what was seen; the pooled scale only spreads the points where chains start."""
        pairs = seen.observed_pairs
        spread = float(np.sqrt(seen.reward_deviation[pairs].sum() / max(seen.count[pairs].sum() - pairs.size, 1.0)))
        data = _reading_data(seen, GAUSSIAN, np.full(pairs.size, spread or 1.0), are_counted=True)
        return OwnReadings(model=self.model, seen=seen, data=data)

    def draw_log_scale(self, num: int, rng: np.random.Generator) -> None:
        """The scale, if there is one, is part of the object."""
        return

    def describe(self) -> dict[str, Any]:
        """Return its own description, or the name of its class."""
        own_fn = getattr(self.model, "describe", None)
        return {"kind": type(self.model).__name__} if own_fn is None else dict(own_fn())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledReadings:
    """Readings that the kernels know how to evaluate."""

    data: LikelihoodData
    noise: Tolerance | Noise
    seen: Experience
    is_compiled: bool = True

    @property
    def has_edge(self) -> bool:
        """Whether the likelihood is 0 outside an interval."""
        return self.data.kind == UNIFORM

    def log_density_and_grad(
        self, rewards: FloatArray, log_scale: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the log-likelihoods, the slopes in the mean rewards, and those in the log-scale."""
        rewards = np.ascontiguousarray(rewards)
        bend, both, num = np.empty_like(rewards), np.empty((rewards.shape[0], 2)), rewards.shape[0]
        given = self.data, rewards, log_scale, bend, both
        over_particles(particles.reading_likelihoods, num, *given, work=rewards.size)
        return both[:, 0], bend, both[:, 1]

    def at_tolerance(self, tolerance: FloatArray) -> CompiledReadings:
        """Return the same readings with another ``(n,)`` positive tolerance."""
        return replace(self, data=_with_norms(self.data._replace(scale=tolerance)))

    def blend(self, before: Experience, share: float) -> CompiledReadings:
        """Return (1 − share) · what was seen before + share · these, as one set of readings."""
        rows = np.searchsorted(self.seen.observed_pairs, before.observed_pairs)
        return replace(self, data=blend(self.noise.bind(before).data, rows, self.data, share))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReadings:
    """Readings under a noise of one's own."""

    model: NoiseModel
    seen: Experience
    data: LikelihoodData
    before: Experience | None = None
    share: float = 1.0
    is_compiled: bool = False

    @property
    def has_edge(self) -> bool:
        """Whether the noise says that its likelihood is 0 somewhere."""
        return bool(getattr(self.model, "has_edge", False))

    def log_density_and_grad(
        self, rewards: FloatArray, log_scale: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return share · log p(all readings) + (1 − share) · log p(those before), and the slopes; 0 in a log-scale."""
        total, bend = self._of(rewards, self.seen)
        total, bend = self.share * total, self.share * bend
        if self.before is not None and self.before.num_observed and self.share < 1.0:
            rows = np.searchsorted(self.seen.observed_pairs, self.before.observed_pairs)
            old, old_bend = self._of(rewards[:, rows], self.before)
            total = total + (1.0 - self.share) * old
            bend[:, rows] += (1.0 - self.share) * old_bend
        return total, bend, np.zeros_like(total)

    def _of(self, rewards: FloatArray, seen: Experience) -> tuple[FloatArray, FloatArray]:
        return checked_density("noise", rewards, lambda values: self.model.log_density_and_grad(values, seen))

    def at_tolerance(self, tolerance: FloatArray) -> OwnReadings:
        """Return the readings as they are."""
        return self

    def blend(self, before: Experience, share: float) -> OwnReadings:
        """Return (1 − share) · what was seen before + share · these."""
        return replace(self, before=before, share=share)


COMPLETE = ("bind", "is_exact", "is_noisy", "largest_tolerance", "at_tolerance", "draw_log_scale", "describe")
"""What a `Likelihood` has."""


def as_likelihood(noise: Any) -> Likelihood:
    """Return a noise with all that the samplers ask of it: ours as it is, one's own wrapped."""
    # A noise of ours with a density of its own is one's own: its compiled form belongs to another density.
    if lacking(noise, COMPLETE) or hasattr(noise, "log_density_and_grad"):
        return OwnNoise(noise)
    complete: Likelihood = noise
    return complete


def check_noise(noise: Any) -> None:
    """Raise unless this is a `Noise`, or has what one of one's own needs."""
    is_neither = lacking(noise, ["log_density_and_grad"]) and lacking(noise, COMPLETE)
    if isinstance(noise, Tolerance) or is_neither:
        raise InvalidInputError(
            f"noise must be a Noise, or an object with log_density_and_grad, got {shown(noise)}; "
            "for example Noise(scale=1.0)"
        )


def _reading_data(seen: Experience, kind: int, scale: FloatArray, *, are_counted: bool) -> LikelihoodData:
    """Return the statistics of the observed pairs, in the order of `seen.observed_pairs`; one reading each or all."""
    pairs = seen.observed_pairs
    ones = np.ones(pairs.size)
    count = seen.count[pairs].astype(float) if are_counted else ones
    data = LikelihoodData(
        kind=kind,
        scale=scale,
        num_readings=count,
        num_spread=count,
        mean=seen.reward_mean[pairs],
        deviation=seen.reward_deviation[pairs] if are_counted else np.zeros(pairs.size),
        precision=ones,
        log_norm=ones,
        log_norm_sum=0.0,
        point_start=np.zeros(pairs.size + 1, dtype=np.int64),
        point_value=np.empty(0),
        point_weight=np.empty(0),
        degrees=4.0,
        learned=False,
        log_scale_mean=0.0,
        log_scale_sd=1.0,
    )
    return _with_norms(data)


def blend(old: LikelihoodData, old_rows: IntArray, new: LikelihoodData, share: float) -> LikelihoodData:
    """Return the readings whose log-likelihood is (1 − share) · that of `old` + share · that of `new`.

    The sums n, Σr and Σr² are linear in it, and so are the weights of readings kept one by one and the readings that
    tell of a learned scale. `old_rows` are the rows of `new` that the rows of `old` belong to.
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
