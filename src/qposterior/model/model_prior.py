"""`ModelPrior`: a hierarchical prior on the model itself. Its posterior is drawn, and each draw is solved for Q*."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from tempfile import TemporaryFile
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import chdtrc

from qposterior.checks import check_count, check_number, check_type
from qposterior.errors import InvalidInputError
from qposterior.model.hierarchy import Hierarchy, Piece, build_hierarchy
from qposterior.model.kernels.compile import map_in_threads
from qposterior.model.kernels.gibbs import run_chain
from qposterior.model.kernels.hierarchy import (
    CONCENTRATION_GRID,
    KAPPA_GRID,
    NUM_HYPER,
    OMEGA_GRID,
    TAU_GRID,
    Law,
    Laws,
)
from qposterior.model.successor_values import followed_values, logged_values
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior.world.models import ModelDraws
from qposterior.world.sums import PairSums

SPREADS = (0.1, 0.5, 1.0, 2.0)
"""Standard deviations that the logarithms of τ_s, and of κ_s, may have over the states."""

SLOPES = {-0.5: 0.05, 0.0: 0.7, 0.5: 0.05, 0.75: 0.05, 0.9: 0.05, 1.0: 0.1}
"""Grid of λ with its prior: by how much an action's reward makes up for where it leads."""

TAILS = (1.0, 2.0, 4.0, 8.0, math.inf)
"""Degrees of freedom that ω may have: how heavy the tails are by which the actions of a state differ; inf: normal."""

CHAINS = 4
WARM_UP, FIRST_WARM_UP, FIRST_DRAWS = 60, 40, 120
"""Sweeps that are thrown away, and the length of the first run, which guesses what successors are worth."""

GIVEN_WARM_UP = 4
"""Sweeps of a state that are thrown away where hyper-parameters are given."""

FIRST_WORK, FEWEST_FIRST = 4_000_000, 8
"""Draws times pairs of the first run, and its fewest draws."""

IN_MEMORY = 250_000_000
"""Probabilities of rows that are held in memory (1 GB); more of them go to a temporary file that is mapped into it."""

REWARD_POWERS = {
    "reward_mean": 1,
    "reward_deviation": 2,
    "reward_third": 3,
    "reward_fourth": 4,
    "reward_low": 1,
    "reward_high": 1,
    "edge_reward": 1,
}
"""The sums of a log that are in units of rewards, and the powers of these units."""


class Draws(NamedTuple):
    """Draws of all rows, of α and of the hyper-parameters, chain after chain."""

    rows: FloatArray  # (D, E)
    alpha: FloatArray  # (D, K)
    trace: FloatArray  # (D, NUM_HYPER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrior:
    r"""The actions of a state resemble each other by a degree that is learned, and states resemble each other.

    Mean rewards ρ_sa ~ N(β_s, τ_s²), β_s ~ N(μ, b²); what successors are worth varies over the actions of a state by
    κ_s, and their rewards make up for it by a share λ; rows P_sa ~ Dir(c_s p̄_s), p̄_s ~ Dir(c₀ m_s); noise variances
    v_sa ~ ν v_s/χ²_ν. All scales are learned and free of units: `reward_scale` and `row_scale` are the medians of the
    half-Cauchy priors of τ_s over the noise, and of c_s^(−1/2); `alike` is the prior probability that all actions pay
    the same, and that all lead to the same. It is no density over Q: it has draws only.
    """

    variable: ClassVar[str] = "model"
    reward_scale: float = 1.0
    row_scale: float = 0.5
    alike: float = 0.02

    def __post_init__(self) -> None:
        check_number("reward_scale", self.reward_scale, "(0, inf)")
        check_number("row_scale", self.row_scale, "(0, inf)")
        check_number("alike", self.alike, "(0, 1)")

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain data; a subclass, whose laws may be others, is called by its own name."""
        return {"name": {ModelPrior: "model"}.get(type(self), type(self).__name__)} | asdict(self)

    def draw(self, seen: Experience, num: int, rng: np.random.Generator) -> ModelDraws:
        """Return `num` models given an experience, chain after chain."""
        check_type("seen", seen, Experience)
        check_count("num", num, CHAINS)
        if seen.num_observed == 0:
            raise InvalidInputError("a prior on the model needs at least one reading; nothing was seen yet")
        return self.draw_from(seen.sums(), num, rng)

    def draw_from(
        self,
        sums: PairSums,
        num: int,
        rng: np.random.Generator,
        *,
        progress_fn: Callable[[float], None] = lambda share: None,
    ) -> ModelDraws:
        """Return the models given sums.

        What successors are worth to the logged policy tells how much the actions of a state differ in a first, short
        run; the second one takes what they are worth to the policy that one would follow after the first.
        `progress_fn` gets the share of the work that is done.
        """
        length = -(-num // CHAINS)  # as many from each chain
        scaled, factor = in_units(sums)
        hierarchy = build_hierarchy(scaled, logged_values(scaled))
        few = min(FIRST_DRAWS, max(FIRST_WORK // sums.space.num_pairs, FEWEST_FIRST))
        first = self.run(hierarchy, min(few // CHAINS, length), rng, warm_up=FIRST_WARM_UP)
        progress_fn(few / (few + num))
        hierarchy = build_hierarchy(scaled, followed_values(first, scaled))
        models = self.run(
            hierarchy,
            length,
            rng,
            num=num,
            progress_fn=lambda share: progress_fn((few + share * num) / (few + num)),
        )
        return replace(models, rewards=factor * models.rewards)

    def laws(self) -> Laws:
        """Return the priors of the scales and of λ."""
        return Laws(
            tau=_grid_law(np.log(TAU_GRID), TAU_GRID / self.reward_scale, self.alike),
            kappa=_grid_law(np.log(KAPPA_GRID), CONCENTRATION_GRID**-0.5 / self.row_scale, self.alike),
            omega=_tail_law(),
            slope_log_prior=np.log(list(SLOPES.values())),
            slope_grid=np.array(list(SLOPES)),
        )

    def run(
        self,
        hierarchy: Hierarchy,
        length: int,
        rng: np.random.Generator,
        *,
        warm_up: int = WARM_UP,
        num: int | None = None,
        progress_fn: Callable[[float], None] = lambda share: None,
    ) -> ModelDraws:
        """Return `num` models, `length` from each chain, all by default.

        Where there are many states, hyper-parameters are learned from some of them first. Given these the states are
        independent, and are drawn piece by piece.
        """
        whole, num_draws = hierarchy.whole, CHAINS * length
        draws = Draws(
            rows=_room_for_rows(num_draws, whole.data.edge_count.size),
            alpha=np.zeros((num_draws, whole.data.count.size)),
            trace=np.zeros((num_draws, NUM_HYPER)),
        )
        subsample = whole.subsample()
        if subsample is None:
            self._run_piece(whole, draws, rng, warm_up=warm_up)
        else:
            sizes = subsample.data.edge_count.size, subsample.data.count.size
            rows, alpha = np.zeros((num_draws, sizes[0]), dtype=np.float32), np.zeros((num_draws, sizes[1]))
            self._run_piece(subsample, draws._replace(rows=rows, alpha=alpha), rng, warm_up=warm_up)
            pieces = whole.pieces()
            for number, (piece, edge, pair) in enumerate(pieces, start=1):
                self._run_piece(piece, draws, rng, place=(edge, pair), warm_up=GIVEN_WARM_UP)
                progress_fn(number / len(pieces))
        return hierarchy.models(draws.rows[:num], draws.alpha[:num])

    def _run_piece(
        self, piece: Piece, draws: Draws, rng: np.random.Generator, *, place: tuple[int, int] = (0, 0), warm_up: int
    ) -> None:
        """Run all chains of a piece, whose edges and pairs are written from `place` on."""
        laws, length = self.laws(), len(draws.trace) // CHAINS

        def run(chain: int, stream: np.random.Generator) -> None:
            first = chain * length
            arrays = piece.layout, piece.data, piece.units, laws, piece.start(stream)
            trace = draws.trace[first : first + length]
            run_chain(*arrays, (first, *place), draws.rows, draws.alpha, trace, warm_up, stream)

        map_in_threads(lambda chain: run(*chain), list(enumerate(rng.spawn(CHAINS))))


def _room_for_rows(num_draws: int, num_edges: int) -> FloatArray:
    """Return ``(D, E)`` zeros of single precision, in a file without a name where they are many."""
    if num_draws * num_edges <= IN_MEMORY:
        return np.zeros((num_draws, num_edges), dtype=np.float32)
    with TemporaryFile() as file:  # the mapping keeps it until the last array of it is gone
        return np.memmap(file, dtype=np.float32, mode="w+", shape=(num_draws, num_edges))


def _grid_law(logs: FloatArray, relative: FloatArray, alike: float) -> Law:
    r"""Return the laws of a log-scale, N(centre, spread²) on its grid, and a last one, "all actions alike".

    The prior of the centre is half-Cauchy: x / (1 + x²) on a grid of log x, x the `relative` scale.
    """
    law = [np.exp(-0.5 * ((logs - centre) / spread) ** 2) for centre in logs for spread in SPREADS]
    density = np.repeat(relative / (1.0 + relative**2), len(SPREADS))
    log_prior = np.append(np.log(density / density.sum()) + math.log1p(-alike), math.log(alike))
    table = np.vstack([[weights / weights.sum() for weights in law], np.eye(logs.size)[:1]])
    return Law(log_prior=log_prior, table=_floored(table))


def _tail_law() -> Law:
    """Return the laws of ω, ν/χ²_ν for every ν of `TAILS`, each of the same prior probability."""
    edges = np.append(OMEGA_GRID[:-1] * 2.0, np.inf)
    table = []
    for tails in TAILS:
        below = chdtrc(tails, tails / edges) if np.isfinite(tails) else (edges > 1.0).astype(float)
        table.append(np.diff(below, prepend=0.0))
    return Law(log_prior=np.log(np.full(len(TAILS), 1.0 / len(TAILS))), table=_floored(np.array(table)))


def _floored(table: FloatArray) -> FloatArray:
    """Return laws in which nothing is impossible: the likelihood of a law is then never 0, however odd a state is."""
    table = np.maximum(table, 1e-30)
    return np.asarray(table / table.sum(axis=1, keepdims=True))


def in_units(sums: PairSums) -> tuple[PairSums, float]:
    """Return the sums in units in which rewards are about 1, and the unit, a power of two: nothing is rounded.

    Fourth powers of rewards beyond 1e75 would overflow.
    """
    largest = float(np.abs(sums.reward_mean).max(initial=0.0) + np.sqrt(sums.reward_deviation).max(initial=0.0))
    exponent = math.frexp(largest)[1] if largest > 0.0 else 0
    scaled = {name: np.ldexp(getattr(sums, name), -power * exponent) for name, power in REWARD_POWERS.items()}
    return replace(sums, **scaled), math.ldexp(1.0, exponent)
