"""`ModelPrior`: a hierarchical prior on the model itself. Its posterior is drawn, and each draw is solved for Q*."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from scipy.special import chdtrc

from qposterior.checks import check_count, check_number, check_type
from qposterior.errors import InvalidInputError
from qposterior.model.hierarchy import Hierarchy, Piece, build_hierarchy
from qposterior.model.kernels.compile import map_in_threads
from qposterior.model.kernels.hierarchy import LOCALS, NUM_HYPER, SHARES, STEPS, Law, model_chain
from qposterior.model.solve_models import ModelSolver, logged_policy, policy_values, solve_models
from qposterior.world.arrays import FloatArray, sum_by
from qposterior.world.experience import Experience
from qposterior.world.models import ModelDraws
from qposterior.world.sums import PairSums

SPREADS = (0.1, 0.5, 1.0, 2.0)
"""Grid of ω: how much the scales of states may differ, in units of log."""

SLOPES = {-0.5: 0.05, 0.0: 0.7, 0.5: 0.05, 0.75: 0.05, 0.9: 0.05, 1.0: 0.1}
"""Grid of λ with its prior: by how much an action's reward makes up for where it leads."""

TAILS = (1.0, 2.0, 4.0, 8.0, math.inf)
"""Grid of ν: how heavy the tails are by which the actions of a state differ; inf: normal."""

CHAINS = 4
WARM_UP, FIRST_WARM_UP, FIRST_DRAWS = 60, 40, 120
"""Sweeps that are thrown away, and the length of the first run, which guesses what successors are worth."""

GIVEN_WARM_UP = 4
"""Sweeps of a state that are thrown away where hyper-parameters are given."""

FIRST_WORK, FEWEST_FIRST = 4_000_000, 8
"""Draws times pairs of the first run, and its fewest draws."""

IN_MEMORY = 250_000_000
"""Probabilities of rows that are held in memory (1 GB); more of them go to a temporary file that is mapped into it."""

SURELY, MOST_COMPARED = 1.645, 60
"""Standard deviations by which a policy must be better than the logged one to be followed, over so many draws."""

GUESS = 1e-6
"""Relative error of that guess in large problems."""

LONGEST = 0.99
"""Discount at which successors are valued for that guess: at 1 a mean model may have no finite solution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrior:
    r"""The actions of a state resemble each other by a degree that is learned, and states resemble each other.

    Mean rewards ρ_sa ~ N(β_s, τ_s²), β_s ~ N(μ, b²); what successors are worth varies over the actions of a state by
    κ_s, and their rewards make up for it by a share λ; rows P_sa ~ Dir(c_s p̄_s), p̄_s ~ Dir(c₀ m_s); noise variances
    v_sa ~ ν v_s/χ²_ν. All scales are learned and free of units: `reward_scale` and `row_scale` are the medians of the
    half-Cauchy priors of τ_s over the noise, and of c_s^(−1/2); `alike` is the prior probability that all actions pay
    the same, and that all lead to the same. It is no density over Q: it has draws only.
    """

    reward_scale: float = 1.0
    row_scale: float = 0.5
    alike: float = 0.02

    def __post_init__(self) -> None:
        check_number("reward_scale", self.reward_scale, "(0, inf)")
        check_number("row_scale", self.row_scale, "(0, inf)")
        check_number("alike", self.alike, "(0, 1)")

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return {"name": "model"} | asdict(self)

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
        first = self._run(hierarchy, min(few // CHAINS, length), FIRST_WARM_UP, rng)
        progress_fn(few / (few + num))
        hierarchy = build_hierarchy(scaled, followed_values(first, scaled))
        models = self._run(
            hierarchy,
            length,
            WARM_UP,
            rng,
            num=num,
            progress_fn=lambda share: progress_fn((few + share * num) / (few + num)),
        )
        return replace(models, rewards=factor * models.rewards)

    def laws(self) -> tuple[Law, Law, Law, Law]:
        """Return the prior of t_s and of g_s: log weights ``(H,)`` of their laws, and the laws ``(H, G)``."""
        concentration = SHARES / np.sqrt(1.0 - SHARES**2)
        return (
            _grid_law(np.log(STEPS), STEPS / self.reward_scale, self.alike),
            _grid_law(np.log(SHARES), concentration / self.row_scale, self.alike),
            (np.log(list(SLOPES.values())), np.array(list(SLOPES))),
            _local_law(),
        )

    def _run(
        self,
        hierarchy: Hierarchy,
        length: int,
        warm_up: int,
        rng: np.random.Generator,
        *,
        num: int | None = None,
        progress_fn: Callable[[float], None] = lambda share: None,
    ) -> ModelDraws:
        """Return `num` models, `length` from each chain.

        Where there are many states, hyper-parameters are learned from some of them first. Given these the states are
        independent, and are drawn piece by piece.
        """
        rows = _room_for_rows(CHAINS * length, hierarchy.facts.edge_count.size)
        rewards = np.zeros((CHAINS * length, hierarchy.facts.count.size))
        trace = np.zeros((CHAINS * length, NUM_HYPER))
        teachers = hierarchy.teachers()
        if teachers is None:
            self._run_piece(hierarchy.whole, (0, 0), (rows, rewards, trace), warm_up, rng)
        else:
            own_rows = np.zeros((CHAINS * length, teachers.facts.edge_count.size), dtype=np.float32)
            own_rewards = np.zeros((CHAINS * length, teachers.facts.count.size))
            self._run_piece(teachers, (0, 0), (own_rows, own_rewards, trace), warm_up, rng)
            pieces = hierarchy.pieces()
            for number, (piece, edge, pair) in enumerate(pieces, start=1):
                self._run_piece(piece, (edge, pair), (rows, rewards, trace), GIVEN_WARM_UP, rng)
                progress_fn(number / len(pieces))
        return hierarchy.models(rows[:num], rewards[:num])

    def _run_piece(
        self,
        piece: Piece,
        place: tuple[int, int],
        out: tuple[FloatArray, FloatArray, FloatArray],
        warm_up: int,
        rng: np.random.Generator,
    ) -> None:
        """Run all chains of a piece, whose edges and pairs are written from `place` on."""
        rows, rewards, trace = out
        laws, length = self.laws(), len(trace) // CHAINS

        def run_chain(chain: int, stream: np.random.Generator) -> None:
            first = chain * length
            arrays = piece.layout, piece.facts, piece.units, laws, piece.start(stream)
            model_chain(*arrays, (first, *place), rows, rewards, trace[first : first + length], warm_up, stream)

        map_in_threads(lambda chain: run_chain(*chain), list(enumerate(rng.spawn(CHAINS))))


def _room_for_rows(num_draws: int, num_edges: int) -> FloatArray:
    """Return ``(D, E)`` zeros of single precision, in a file without a name where they are many."""
    if num_draws * num_edges <= IN_MEMORY:
        return np.zeros((num_draws, num_edges), dtype=np.float32)
    with TemporaryFile() as file:  # the mapping keeps it until the last array of it is gone
        return np.memmap(file, dtype=np.float32, mode="w+", shape=(num_draws, num_edges))


def _grid_law(logs: FloatArray, relative: FloatArray, alike: float) -> Law:
    """Return the half-Cauchy prior on the centre of a law of log-scales, and the laws, the last of which is "alike"."""
    law = [np.exp(-0.5 * ((logs - centre) / spread) ** 2) for centre in logs for spread in SPREADS]
    density = np.repeat(relative / (1.0 + relative**2), len(SPREADS))
    log_prior = np.append(np.log(density / density.sum()) + math.log1p(-alike), math.log(alike))
    table = np.vstack([[weights / weights.sum() for weights in law], np.eye(logs.size)[:1]])
    return log_prior, _floored(table)


def _local_law() -> Law:
    """Return the laws of ω, ν/χ²_ν for every ν of `TAILS`, and their log weights."""
    edges = np.append(LOCALS * 2.0, np.inf)
    edges[-2] = np.inf
    table = []
    for tails in TAILS:
        below = chdtrc(tails, tails / edges[:-1]) if np.isfinite(tails) else (edges[:-1] > 1.0).astype(float)
        table.append(np.diff(below, prepend=0.0))
    return np.log(np.full(len(TAILS), 1.0 / len(TAILS))), _floored(np.array(table))


def _floored(table: FloatArray) -> FloatArray:
    """Return laws in which nothing is impossible: the likelihood of a law is then never 0, however odd a state is."""
    table = np.maximum(table, 1e-30)
    return np.asarray(table / table.sum(axis=1, keepdims=True))


def in_units(sums: PairSums) -> tuple[PairSums, float]:
    """Return the sums in units in which rewards are about 1, and the unit, a power of two: nothing is rounded.

    Fourth powers of rewards beyond 1e75 would overflow.
    """
    largest = float(np.abs(sums.reward_mean).max(initial=0.0) + np.sqrt(sums.reward_deviation).max(initial=0.0))
    factor = math.ldexp(1.0, math.frexp(largest)[1]) if largest > 0.0 else 1.0
    return (
        replace(
            sums,
            reward_mean=sums.reward_mean / factor,
            reward_deviation=sums.reward_deviation / factor / factor,
            reward_third=sums.reward_third / factor / factor / factor,
            reward_fourth=sums.reward_fourth / factor / factor / factor / factor,
            reward_low=sums.reward_low / factor,
            reward_high=sums.reward_high / factor,
            edge_reward=sums.edge_reward / factor,
        ),
        factor,
    )


def logged_values(sums: PairSums) -> FloatArray:
    """Return ``(S,)`` what states are worth to the logged policy where frequencies are rows and means are rewards."""
    models = build_hierarchy(sums, np.zeros(sums.space.num_states)).estimate()
    policy = logged_policy(sums.space, sums.count)
    return np.asarray(policy_values(_discounted(models), policy, tolerance=GUESS)[0])


def followed_values(models: ModelDraws, sums: PairSums) -> FloatArray:
    """Return ``(S,)`` what states are worth, in the mean of some models, to the policy that one would follow.

    That is the optimum of the mean model of one half of the draws, among pairs that were tried, if it is surely better
    than the logged policy in the other half, and the logged policy otherwise: an optimum that is none chases noise, and
    where all that was tried ties, actions would not tie at its values.
    """
    space, discounted = models.space, _discounted(models)
    logged, tried = logged_policy(space, sums.count), sums.count > 0.0
    halves = np.arange(models.num_draws) % 2 == 0
    mean = discounted.mean(np.flatnonzero(halves))
    q = solve_models(mean, tolerance=GUESS).q[0]
    is_open = tried | (sum_by(space.pair_state, sums.count, space.num_states) == 0.0)[space.pair_state]
    best = space.optimal_share(np.where(is_open, q, q.min() - np.ptp(q) - 1.0), "lowest")
    visits = sum_by(space.pair_state, sums.count, space.num_states)
    rest = np.flatnonzero(~halves)[:MOST_COMPARED]
    solver = ModelSolver(discounted, GUESS)
    gain = (solver.values(best, rest) - solver.values(logged, rest)) @ (visits / visits.sum())
    is_better = gain.mean() > SURELY * gain.std()
    return np.asarray(policy_values(mean, best if is_better else logged, tolerance=GUESS)[0])


def _discounted(models: ModelDraws) -> ModelDraws:
    space = models.space
    return replace(models, space=replace(space, discount=min(space.discount, LONGEST)))
