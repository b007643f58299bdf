"""Posterior: weighted draws of Q*, and the only thing that hands out numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qposterior.checks import check_count, check_number, check_numbers, check_type, make_rng, shown
from qposterior.errors import InvalidInputError, MissingExtraError
from qposterior.storage import load_arrays, reading, save_arrays
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.models import ModelDraws
from qposterior.world.space import StateActionSpace

FORMAT = "qposterior-posterior 1"
FACTS = ("method", "log_evidence", "diagnostics", "settings", "chains")
"""What a file keeps beside the arrays."""

BLOCK_NUMBERS = 10_000_000
"""Values of Q that are looked at in one go."""

WEIGHT_ERROR = 1e-6
"""How far from 1 the sum of weights may lie."""

FEWEST_DRAWS = 100.0
"""Independent draws that an answer must be worth."""


class PolicyCells(Protocol):
    """What knows the exact probability of policies."""

    def prob_policy(self, policy: dict[int, int]) -> float:
        """Return the joint probability that these actions, by state, are optimal."""
        ...


def judged(reason: str | None) -> dict[str, Any]:
    """Return the part of the diagnostics that says whether to trust the rest."""
    if reason is None:
        return {"trusted": True}
    return {"trusted": False, "reliability_warning": reason, "distrust": reason}  # the last until version 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """What is known of Q* after what was seen: weighted draws, and exact numbers where the method has them."""

    space: StateActionSpace
    draws: FloatArray  # (N, K)  Q on the pairs
    weights: FloatArray  # (N,)  sum to 1
    method: str
    log_evidence: float = float("nan")  # log density of what was read, nan where the method does not give it
    diagnostics: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    chains: int = 1  # draws are stored chain after chain
    noise_scale: FloatArray | None = None  # (N,)  draws of a learned reward scale
    exact_tables: FloatArray | None = None  # (3, K)  exact P(optimal), mean and sd
    enumeration: PolicyCells | None = field(default=None, repr=False)
    models: ModelDraws | None = field(default=None, repr=False)  # the model of each draw, where models were drawn
    choosing: BoolArray | None = field(default=None, repr=False)  # (N,)  draws on which a policy may be chosen

    def __post_init__(self) -> None:
        check_type("space", self.space, StateActionSpace)
        draws, weights = check_numbers("draws", self.draws), check_numbers("weights", self.weights)
        num = max([1, *draws.shape[:1]])  # one draw at least
        for name, array, shape in (("draws", draws, (num, self.space.num_pairs)), ("weights", weights, (num,))):
            if array.shape != shape:
                raise InvalidInputError(f"{name} must be {shape} numbers, got {array.shape}")
        if not np.isfinite(draws).all():
            raise InvalidInputError(f"draws must be finite, and some are not finite: {draws[~np.isfinite(draws)][0]}")
        if not (np.all(weights >= 0.0) and abs(weights.sum() - 1.0) <= WEIGHT_ERROR):
            raise InvalidInputError(f"weights must be 0 or more and sum to 1, got {shown(weights)}")
        if weights.size % check_count("chains", self.chains):
            raise InvalidInputError(f"chains must divide the {weights.size} draws, got {self.chains}")

    # -- numbers -------------------------------------------------------------------------------------------------------

    def mean(self) -> FloatArray:
        """Return ``(S, A)`` posterior means of Q*: nan where inadmissible, 0 at goals."""
        return self.space.to_table(self.pair_mean)

    @property
    def pair_mean(self) -> FloatArray:
        """``(K,)`` posterior means of Q* on the pairs."""
        if self.exact_tables is not None:
            return np.asarray(self.exact_tables[1])
        return self.expectation_of(lambda draws: draws)

    def sd(self) -> FloatArray:
        """Return ``(S, A)`` posterior standard deviations."""
        if self.exact_tables is not None:
            return self.space.to_table(self.exact_tables[2])
        return self.space.to_table(np.sqrt(self.expectation((self.draws - self.pair_mean) ** 2)))

    def quantile(self, level: float) -> FloatArray:
        """Return ``(S, A)`` weighted quantiles of the draws: the least value with at least `level` of the weight."""
        return self.space.to_table(self.quantile_of(self.draws, level))

    def expectation(self, values: FloatArray) -> FloatArray:
        """Return the posterior mean of ``(N, ...)`` values, one of each draw: Σ w_n values_n."""
        return np.asarray(np.tensordot(self.weights, values, axes=1))

    def expectation_of(self, value_fn: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Return the posterior mean of a function of ``(n, K)`` draws of Q*, block by block where they are many."""
        step = max(1, BLOCK_NUMBERS // self.space.num_pairs)
        parts = [slice(first, first + step) for first in range(0, self.weights.size, step)]
        return np.asarray(sum(np.tensordot(self.weights[part], value_fn(self.draws[part]), axes=1) for part in parts))

    def quantile_of(self, values: FloatArray, level: float) -> FloatArray:
        """Return the posterior quantile of ``(N, ...)`` values: the least with at least `level` of the weight."""
        check_number("level", level, "[0, 1]")
        if np.ptp(self.weights) == 0.0:  # nothing to add up: the value at that rank
            rank = max(int(np.ceil(level * self.weights.size * (1.0 - 1e-12))) - 1, 0)
            return np.asarray(np.partition(values, rank, axis=0)[rank])
        order = np.argsort(values, axis=0)
        total = np.cumsum(self.weights[order], axis=0)
        row = np.argmax(total >= level * total[-1] * (1.0 - 1e-12), axis=0)
        return np.asarray(np.take_along_axis(values, np.take_along_axis(order, row[None], axis=0), axis=0)[0])

    def prob_optimal(self, state: int, *, ties: str = "uniform") -> FloatArray:
        """Return ``(A,)`` P(action is optimal) in a state: sums to 1, 0 where inadmissible."""
        self.space.check_state(state)
        if self.space.is_goal[state]:
            raise InvalidInputError(f"state {state} is a goal; nothing is decided there")
        return np.asarray(self.prob_optimal_table(ties=ties)[state])

    def prob_optimal_table(self, *, ties: str = "uniform") -> FloatArray:
        """Return ``(S, A)`` P(action is optimal): rows sum to 1; 0 where inadmissible and at goals."""
        if self.exact_tables is not None and ties == "uniform":
            values = self.exact_tables[0]
        else:
            values = self.expectation_of(lambda draws: self.space.optimal_share(draws, ties))
        table = np.zeros((self.space.num_states, self.space.num_actions))
        table[self.space.pair_state, self.space.pair_action] = values
        return table

    def prob_policy(self, policy: dict[int, int], *, ties: str = "uniform") -> float:
        """Return the joint probability that these actions, by state, are optimal; ties are shared by the rule.

        From the cells where the method is exact and the posterior was computed here; from the draws otherwise.
        """
        check_type("policy", policy, Mapping)
        pairs = [self.space.pair(state, action) for state, action in policy.items()]
        if not policy:
            return 1.0
        if self.enumeration is not None and ties == "uniform":
            return self.enumeration.prob_policy(policy)
        return float(self.expectation(np.prod(self.space.optimal_share(self.draws, ties)[:, pairs], axis=1)))

    # -- draws ---------------------------------------------------------------------------------------------------------

    def reweight(self, log_ratio: FloatArray) -> Posterior:
        """Return the same draws under another prior or with more data: weights times exp ``(N,)`` log_ratio.

        For instance the log of another prior's density over this one's, at `draws`. The log-evidence grows by
        log Σ w exp(log_ratio): right where the ratio is that of normalised densities. What the chains said of their
        mixing was said of the old weights; the new draws are trusted while the old ones were and the weights leave
        enough effective ones.
        """
        ratio = check_numbers("log_ratio", log_ratio)
        if ratio.shape != self.weights.shape or not np.all(ratio < np.inf) or not np.isfinite(ratio).any():
            raise InvalidInputError(f"log_ratio must be {self.weights.size} numbers, not nan or inf and not all −inf")
        top = ratio[self.weights > 0.0].max(initial=-np.inf)
        weights = self.weights * np.exp(np.minimum(ratio - top, 0.0)) if np.isfinite(top) else np.zeros(ratio.size)
        total = float(weights.sum())
        if not total > 0.0:
            raise InvalidInputError("log_ratio gives every draw that has weight the weight 0; draw afresh instead")
        weights = weights / total
        # Draws of chains are worth less than their number, and reweighted ones in the same proportion.
        share = min(self.diagnostics.get("min_bulk_ess", np.inf) / self.diagnostics.get("total_draws", 1.0), 1.0)
        effective = share * float(1.0 / np.sum(weights**2))
        reason = self.reliability_warning
        if self.trusted:
            reason = f"the draws are worth only {effective:.0f} under the new weights; draw afresh"
        is_fine = self.trusted and effective >= FEWEST_DRAWS
        return replace(
            self,
            weights=weights,
            log_evidence=self.log_evidence + float(top) + float(np.log(total)),
            diagnostics={"effective_draws": effective} | judged(None if is_fine else reason),
            exact_tables=None,  # the exact numbers belong to the old weights
            enumeration=None,
            models=None,  # policies are valued over draws of equal weight
            choosing=None,
            chains=1,
        )

    @property
    def trusted(self) -> bool:
        """Whether no check found a reason not to rely on these numbers; `reliability_warning` says which was found.

        False for draws that nothing has checked.
        """
        return bool(self.diagnostics.get("trusted", False))

    @property
    def reliability_warning(self) -> str | None:
        """Why these numbers are not to be relied on; None where they are trusted."""
        if self.trusted:
            return None
        former = self.diagnostics.get("distrust", "nothing has checked these draws")  # as version 0.1 stored it
        return str(self.diagnostics.get("reliability_warning", former))

    def sample(self, num: int, seed: Any) -> FloatArray:
        """Return ``(num, S, A)`` draws of Q*, chosen by their weights with replacement."""
        return self.space.to_table(self.draws[self._choose(num, seed)])

    def sample_policy(self, num: int, seed: Any, *, ties: str = "uniform") -> IntArray:
        """Return ``(num, S)`` greedy policies of draws: each with its posterior probability; −1 at goals.

        Drawing θ and acting greedily is drawing the optimal policy (paper, app. psrl_mdp). Ties within a draw are
        broken uniformly or go to the lowest action.
        """
        rng = make_rng(seed)
        share = self.space.optimal_share(self.draws[self._choose(num, rng)], ties)
        score = np.where(share > 0.0, rng.random(share.shape) + 1.0, 0.0)
        states = self.space.deciding_states
        policies = np.full((num, self.space.num_states), -1, dtype=np.int64)
        best = np.maximum.reduceat(score, self.space.first_pair[states], axis=1)
        row, pair = np.nonzero(score == np.repeat(best, np.diff(self.space.first_pair)[states], axis=1))
        policies[row, self.space.pair_state[pair]] = self.space.pair_action[pair]
        return policies

    @property
    def effective_draws(self) -> float:
        """1 / Σ w²: how many equally weighted draws these are worth, if independent."""
        return float(1.0 / np.sum(self.weights**2))

    def _choose(self, num: int, seed: Any) -> IntArray:
        size = check_count("num", num, 0)
        return np.asarray(make_rng(seed).choice(self.weights.size, size=size, p=self.weights))

    # -- files and friends ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the posterior to one `.npz` file, whole or not at all; an existing file is kept unless told.

        Models are not written: draws of Q* are.
        """
        facts = {name: getattr(self, name) for name in FACTS}
        facts |= {"format": FORMAT, "discount": self.space.discount}
        arrays: dict[str, Any] = {"draws": self.draws, "weights": self.weights}
        arrays |= {"admissible": self.space.pair_index >= 0, "is_goal": self.space.is_goal}
        arrays |= {"noise_scale": self.noise_scale, "exact_tables": self.exact_tables}
        save_arrays(path, facts, arrays, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Posterior:
        """Read a saved posterior. Nothing in the file is executed, and a damaged one is refused."""
        facts, arrays = load_arrays(path, "a posterior", FORMAT)
        with reading(Path(path), "a posterior"):
            post = cls(
                space=StateActionSpace.from_mask(
                    arrays["admissible"], arrays["is_goal"], discount=float(facts["discount"])
                ),
                draws=arrays["draws"],
                weights=arrays["weights"],
                noise_scale=arrays.get("noise_scale"),
                exact_tables=arrays.get("exact_tables"),
                **{name: facts[name] for name in FACTS},
            )
            _check_stored(post)
            return post

    def to_arviz(self, *, seed: Any = 0) -> Any:
        """Return the draws in the ArviZ schema: `posterior`, weights in `sample_stats`, and `posterior_resampled`.

        What the installed ArviZ takes: an `InferenceData` before its version 1, else (and without ArviZ) a `DataTree`.
        ArviZ itself knows no weights: use `posterior` with `sample_stats.weight`, or the equally weighted view, drawn
        by the weights with replacement.
        """
        try:
            import xarray as xr
        except ImportError as error:
            raise MissingExtraError("to_arviz", "arviz") from error
        shape = (self.chains, -1, self.space.num_pairs)
        coordinates = {
            "state": ("pair", self.space.pair_state),
            "action": ("pair", self.space.pair_action),
        }
        dimensions = ("chain", "draw", "pair")
        variables: dict[str, Any] = {"q": (dimensions, self.draws.reshape(shape))}
        stats = {"weight": (dimensions[:2], self.weights.reshape(self.chains, -1))}
        if self.noise_scale is not None:
            variables["noise_scale"] = (dimensions[:2], self.noise_scale.reshape(self.chains, -1))
        again = self.draws[self._choose(self.weights.size, seed)]
        attributes = {"method": self.method, "inference_library": "qposterior"}
        groups = {
            "posterior": xr.Dataset(variables, coords=coordinates, attrs=attributes),
            "sample_stats": xr.Dataset(stats),
            "posterior_resampled": xr.Dataset({"q": (dimensions, again.reshape(shape))}, coords=coordinates),
        }
        if not _arviz_takes_inference_data():
            return xr.DataTree.from_dict(groups)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it announces its next generation when it is imported
            make_fn: Any = import_module("arviz").InferenceData
        return make_fn(**groups)

    def __repr__(self) -> str:
        lines = [
            f"Posterior of Q* by {self.method}: {self.draws.shape[0]} draws "
            f"(worth {self.effective_draws:.0f} by weight), {self.space.num_pairs} pairs, "
            f"{self.space.deciding_states.size} states"
        ]
        if np.isfinite(self.log_evidence):
            lines.append(f"  log evidence {self.log_evidence:.4g}")
        shown = {k: v for k, v in self.diagnostics.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        if shown:
            lines.append("  " + ", ".join(f"{name} {value:.4g}" for name, value in shown.items()))
        if not self.trusted:
            lines.append(f"  NOT TRUSTED: {self.reliability_warning}")
        table = self.prob_optimal_table()
        for state in self.space.deciding_states[:8]:
            actions = ", ".join(f"{a}: {table[state, a]:.3f}" for a in self.space.actions(state))
            lines.append(f"  state {state}: P(optimal) = {{{actions}}}")
        if self.space.deciding_states.size > 8:
            lines.append("  …")
        return "\n".join(lines)


def _arviz_takes_inference_data() -> bool:
    """Return whether the ArviZ that is installed is older than 1.0, the first to take a `DataTree`."""
    try:
        return int(version("arviz").partition(".")[0]) < 1
    except PackageNotFoundError:
        return False


def _check_stored(post: Posterior) -> None:
    """Raise unless what a file holds beside the draws and weights, which are checked anyway, belongs to them."""
    num, pairs = post.draws.shape
    for name, shape in {"noise_scale": (num,), "exact_tables": (3, pairs)}.items():
        array = getattr(post, name)
        if array is not None and (array.shape != shape or array.dtype.kind != "f"):
            raise InvalidInputError(f"{name} must be {shape} numbers, got {array.shape} of type {array.dtype}")
    if not all(isinstance(value, dict) for value in (post.diagnostics, post.settings)):
        raise InvalidInputError("its facts are not those of a posterior")
    float(post.log_evidence)
