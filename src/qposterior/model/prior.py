"""What is believed of Q* before anything is seen. The prior decides how fast one explores: a first-class choice.

A prior of one's own is any object with the two methods of `Prior`. The library's own priors also have `compiled`, which
returns the numbers that the compiled loops need; a prior without it is sampled by the plain path of `model.target`:
slower, never replaced by something else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from qposterior.checks import check_choice, check_floats, check_indices, check_number, lacking, shown
from qposterior.errors import InvalidInputError
from qposterior.model.kernels.density import (
    HARD_Q,
    HARD_REWARD,
    LOG_TWO_PI,
    SOFT_Q,
    SOFT_REWARD,
    PriorData,
    gaussian_data,
)
from qposterior.model.own_parts import checked_density
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.space import StateActionSpace

DRAWS_FOR_SCALE = 500
"""Draws by which the typical size of a prior of one's own is judged, where it does not say it."""

FAR = 12.0
"""Spreads from its typical value at which a prior of one's own is asked whether its support ends."""


class Prior(Protocol):
    """A density over θ, the values of Q on the K pairs of a space: what a prior of one's own must be able to say.

    Where Q is linear in features, `space` has the number of weights as its `num_pairs`, and θ are the weights.

    It may also have numbers `mean` and `scale`, a typical value and its spread (else they are found from draws);
    `has_edge = True` where the density is 0 somewhere (else it is asked far out); `describe()`, a plain description
    that is stored with results; and `variable = "reward"`, which says that θ are not values of Q but mean rewards
    (`variable_of`).
    """

    def log_density_and_grad(self, theta: FloatArray, space: StateActionSpace) -> tuple[FloatArray, FloatArray]:
        """Return ``(N,)`` normalised log-densities of ``(N, K)`` θ (−inf outside the support), ``(N, K)`` gradients."""
        ...

    def draw(self, num: int, space: StateActionSpace, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, K)`` independent draws."""
        ...


PerPair = float | tuple[float, ...]
"""One number for all pairs, or one for each of them."""


def _gaussian(prior: Any, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Σ_k log N(θ_k; mean_k, scale_k²) and its gradient."""
    mean, scale = _mean_and_scale(prior, theta.shape[1])
    z = (theta - mean) / scale
    constant = np.sum(np.log(scale)) + 0.5 * scale.size * LOG_TWO_PI
    return np.asarray(-0.5 * np.sum(z**2, axis=1) - constant), -z / scale


def _mean_and_scale(prior: Any, num_pairs: int) -> tuple[FloatArray, FloatArray]:
    """Return ``(K,)`` the mean and the scale of each pair."""
    return over_pairs("mean", prior.mean, num_pairs), over_pairs("scale", prior.scale, num_pairs)


def over_pairs(name: str, value: PerPair, num_pairs: int) -> FloatArray:
    """Return ``(K,)`` the number of each pair; raise where there are as many as another problem has pairs."""
    numbers = np.asarray(value, dtype=float)
    if numbers.ndim and numbers.size != num_pairs:
        raise InvalidInputError(
            f"prior {name} must be one number, or one for each of the {num_pairs} pairs; got {numbers.size}"
        )
    return np.broadcast_to(numbers, num_pairs)


def _independent(prior: Any, num_pairs: int) -> PriorData:
    """Return the compiled form of N(mean, scale²), pair by pair."""
    return gaussian_data(*map(np.array, _mean_and_scale(prior, num_pairs)))


def _check_gaussian(mean: float, scale: float) -> None:
    check_number("prior mean", mean)
    check_number("prior scale", scale, "(0, inf)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianPrior:
    r"""θ_k ~ N(mean, scale²), independent: the paper's prior (section experiment: mean 0, scale 4).

    `mean` and `scale` are one number, or one for each pair, in the order of `space.pairs()`. With a `growth` other than
    1 the prior grows with the steps h that are left of the episode,

    .. math:: \theta(s, a) \sim N(\text{mean} \cdot \text{growth}^h, (\text{scale} \cdot \text{growth}^h)^2),

    which makes an agent explore in linear time (docs/explanation/growth.md). It is optimism, not belief, and for agents
    that know the horizon; a density is that of `given_steps_left`.
    """

    variable: ClassVar[str] = "q"
    mean: PerPair = 0.0
    scale: PerPair = 4.0
    growth: float = 1.0

    def __post_init__(self) -> None:
        for name, interval in (("mean", "(-inf, inf)"), ("scale", "(0, inf)")):
            value = getattr(self, name)
            if np.ndim(value) == 0:
                check_number(f"prior {name}", value, interval)
            else:
                numbers = check_floats(f"prior {name}", value, (-1,), interval)
                object.__setattr__(self, name, tuple(numbers.tolist()))
        check_number("growth", self.growth, "[1, inf)")

    def given_steps_left(self, steps_left: IntArray) -> GaussianPrior:
        """Return the prior of pairs in whose states ``(K,)`` so many steps are left of the episode."""
        steps_left = check_indices("steps_left", steps_left, shape=(-1,))
        size = self.growth ** steps_left.astype(float)
        mean, scale = _mean_and_scale(self, size.size)
        return GaussianPrior(mean=tuple((mean * size).tolist()), scale=tuple((scale * size).tolist()))

    def compiled(self, num_pairs: int) -> PriorData:
        """Return the numbers that the kernels need."""
        self._check_is_density()
        return _independent(self, num_pairs)

    def log_density_and_grad(self, theta: FloatArray, space: StateActionSpace) -> tuple[FloatArray, FloatArray]:
        """Return ``(N,)`` Σ_k log N(θ_k; mean_k, scale_k²) and ``(N, K)`` gradients."""
        self._check_is_density()
        return _gaussian(self, theta)

    def draw(self, num: int, space: StateActionSpace, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, K)`` independent draws."""
        self._check_is_density()
        return rng.normal(*_mean_and_scale(self, space.num_pairs), (num, space.num_pairs))

    def _check_is_density(self) -> None:
        if self.growth != 1.0:
            raise InvalidInputError(
                f"GaussianPrior(growth={self.growth:g}) is for agents, which know how many steps are left; elsewhere "
                "give it the steps left of each pair (prior.given_steps_left(steps_left)), or leave growth out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedPrior:
    """A Gaussian prior with a wall at `upper` (paper, app. prior).

    ``on="q"``: the paper's Q′, θ < upper. ``on="reward"``: the stricter Q^M, g_k(θ) < upper, on the observed pairs.
    `softness` None is a hard wall; a number is the sd of a Gaussian penalty beyond it.
    """

    variable: ClassVar[str] = "q"
    upper: float = 0.0
    on: str = "q"
    softness: float | None = None
    mean: float = 0.0
    scale: float = 4.0

    def __post_init__(self) -> None:
        _check_gaussian(self.mean, self.scale)
        check_choice("wall", self.on, ("q", "reward"))
        if self.softness is not None:
            check_number("softness", self.softness, "(0, inf)")
        check_number("upper (GaussianPrior has no wall)", self.upper)

    def compiled(self, num_pairs: int) -> PriorData:
        """Return the numbers that the kernels need."""
        hard = self.softness is None
        wall = (HARD_Q if hard else SOFT_Q) if self.on == "q" else (HARD_REWARD if hard else SOFT_REWARD)
        soft = 1.0 if self.softness is None else float(self.softness)
        return _independent(self, num_pairs)._replace(wall=wall, upper=float(self.upper), softness=soft)

    def log_density_and_grad(self, theta: FloatArray, space: StateActionSpace) -> tuple[FloatArray, FloatArray]:
        """Return ``(N,)`` log-densities of a wall on Q, up to the mass below it, and ``(N, K)`` gradients."""
        if self.on == "reward":
            raise InvalidInputError("a wall on rewards is no density over Q alone; use a wall on Q")
        total, grad = _gaussian(self, theta)
        beyond = np.maximum(theta - self.upper, 0.0)
        if self.softness is None:
            return np.where(beyond.any(axis=1), -np.inf, total), grad
        return total - 0.5 * np.sum((beyond / self.softness) ** 2, axis=1), grad - beyond / self.softness**2

    def draw(self, num: int, space: StateActionSpace, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, K)`` independent draws of a hard wall on Q, which cuts the normal off."""
        if self.softness is not None or self.on == "reward":
            raise InvalidInputError('sequential samplers take a GaussianPrior or a hard wall on Q; use method="hmc"')
        from scipy.special import ndtr, ndtri

        theta = rng.normal(self.mean, self.scale, (num, space.num_pairs))
        below = ndtr((self.upper - self.mean) / self.scale)
        return np.asarray(self.mean + self.scale * ndtri(below * ndtr((theta - self.mean) / self.scale)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPrior:
    """Rewards of all non-goal pairs ~ N(mean, scale²), cut off above `upper`: posterior sampling is then PSRL.

    Needs the transition rows of all pairs. With discount 1 and possible loops `upper` must be negative, or almost every
    draw has a loop that pays.
    """

    variable: ClassVar[str] = "reward"
    mean: float = 0.0
    scale: float = 4.0
    upper: float | None = None

    def __post_init__(self) -> None:
        _check_gaussian(self.mean, self.scale)
        if self.upper is not None:
            check_number("upper (None for no wall)", self.upper)

    @property
    def highest(self) -> float:
        """The wall, infinite where there is none."""
        return np.inf if self.upper is None else float(self.upper)

    def compiled(self, num_pairs: int) -> PriorData:
        """Return the numbers of the normal distributions, with the wall on what the prior speaks of, the rewards."""
        return _independent(self, num_pairs)._replace(wall=HARD_Q, upper=self.highest)

    def log_density_and_grad(self, rewards: FloatArray, space: StateActionSpace) -> tuple[FloatArray, FloatArray]:
        """Return ``(N,)`` log-densities, up to the mass below the wall, of ``(N, K)`` rewards, and their gradients."""
        total, grad = _gaussian(self, rewards)
        return np.where((rewards > self.highest).any(axis=1), -np.inf, total), grad

    def draw(self, num: int, space: StateActionSpace, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, K)`` independent draws below the wall."""
        ones = np.ones(space.num_pairs)
        return truncated_normal(self.mean * ones, self.scale * ones, -np.inf * ones, self.highest * ones, num, rng)


def truncated_normal(
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


PRIORS: dict[str, Any] = {"gaussian": GaussianPrior, "bounded": BoundedPrior, "reward": RewardPrior}
NAMES = {kind: name for name, kind in PRIORS.items()}
"""Names of the library's own classes, not of their subclasses: these may have another density."""

DENSITY = ("log_density_and_grad", "draw")
NEEDED = {"q": DENSITY, "reward": DENSITY, "model": ("draw", "describe")}
"""What a prior of one's own must have, by what it speaks of: values of Q, mean rewards, or the whole model."""


def check_prior(prior: Any) -> None:
    """Raise unless this is one of our priors, or has what one of one's own needs."""
    needed = NEEDED[variable_of(prior)]
    if lacks := lacking(prior, needed):
        raise InvalidInputError(
            f"a prior must have {' and '.join(needed)}, and {shown(prior)} lacks {', '.join(lacks)}; "
            "give one, for example GaussianPrior(scale=4.0)"
        )


def variable_of(prior: Any) -> str:
    """Return what a prior speaks of, "q", "reward" or "model": values of Q, unless its `variable` says otherwise."""
    return check_choice("variable of a prior", getattr(prior, "variable", "q"), NEEDED)


def compiled_form(prior: Any, num_pairs: int) -> PriorData | None:
    """Return the numbers that the compiled loops need, None for a prior that has no compiled form.

    None too for a subclass that overrides the density or the draws and not `compiled`, which belongs to those of the
    base.
    """
    compile_fn = getattr(prior, "compiled", None)
    if not callable(compile_fn):
        return None
    owners = {name: _owner(type(prior), name) for name in ("compiled", *DENSITY)}
    written_for = owners.pop("compiled")
    if any(owner is not written_for and issubclass(owner, written_for) for owner in owners.values()):
        return None
    numbers: PriorData = compile_fn(num_pairs)
    return numbers


def _owner(kind: type, name: str) -> type:
    """Return the class that a method comes from."""
    return next((base for base in kind.__mro__ if name in vars(base)), kind)


def prior_density(prior: Prior, values: FloatArray, space: StateActionSpace) -> tuple[FloatArray, FloatArray]:
    """Return what the prior says of ``(N, P)`` values, checked."""
    return checked_density("prior", values, lambda given: prior.log_density_and_grad(given, space))


def _has_numbers(prior: Any) -> bool:
    """Return whether a prior has a mean and a scale that are numbers, not arrays over the pairs."""
    return all(hasattr(prior, name) and np.ndim(getattr(prior, name)) == 0 for name in ("mean", "scale"))


def typical(prior: Any, space: StateActionSpace) -> tuple[float, float]:
    """Return a typical value under a prior and its spread: `mean` and `scale` where it has them.

    Else the median and half the width of the central 68 % of draws of all pairs, which a heavy tail leaves alone. Used
    to place starting points, tolerances and nodes of quadrature, never in a density.
    """
    if _has_numbers(prior):
        return float(prior.mean), float(prior.scale)
    drawn = np.asarray(prior.draw(DRAWS_FOR_SCALE, space, np.random.default_rng(0)), dtype=float)
    if drawn.shape != (DRAWS_FOR_SCALE, space.num_pairs):
        raise InvalidInputError(
            f"prior.draw(num, space, rng) must return (num, pairs) values, here {(DRAWS_FOR_SCALE, space.num_pairs)}; "
            f"got {drawn.shape}"
        )
    low, middle, high = np.quantile(drawn, [0.16, 0.5, 0.84])
    if not (np.isfinite(drawn).all() and high > low):
        raise InvalidInputError("prior.draw must return finite values that differ from each other")
    return float(middle), float(0.5 * (high - low))


def has_edge(prior: Any, space: Any, value: float, spread: float) -> bool:
    """Return whether the density of a prior of one's own is 0 somewhere: it says so, or it is `FAR` out.

    `value` and `spread` are typical of it. An edge that is not known is taken for a step that is too long.
    """
    if getattr(prior, "has_edge", False):
        return True
    far = value + FAR * spread * np.array([[-1.0], [1.0]]) * np.ones(space.num_pairs)
    return bool(np.isinf(prior_density(prior, far, space)[0]).any())


def prior_from_dict(described: dict[str, Any]) -> Any:
    """Return the prior of a plain description."""
    settings = dict(described)
    kind = PRIORS[check_choice("prior", settings.pop("name", None), PRIORS)]
    for name in settings:
        check_choice(f"setting of {kind.__name__}", name, kind.__dataclass_fields__)
    return kind(**settings)


def prior_to_dict(prior: Any) -> dict[str, Any]:
    """Return a plain description of a prior; of one's own: its class, and mean and scale where it has them."""
    if (kind := type(prior)) in NAMES:
        return {"name": NAMES[kind]} | asdict(prior)
    check_prior(prior)
    if hasattr(prior, "describe"):  # a prior that says of itself what it is
        return dict(prior.describe())
    numbers = {"mean": float(prior.mean), "scale": float(prior.scale)} if _has_numbers(prior) else {}
    return {"name": type(prior).__name__} | numbers
