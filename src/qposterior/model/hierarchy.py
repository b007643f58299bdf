"""From sums over a log to what the sampler of the model works on, and from its draws to models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.model.candidates import Candidates, candidates_of
from qposterior.model.kernels.hierarchy import (
    C0,
    KAPPA_GRID,
    LAMBDA,
    NUM_HYPER,
    TAU_GRID,
    Layout,
    State,
    Statistics,
    Units,
)
from qposterior.model.reward_noise import reward_noise
from qposterior.model.row_worth import row_worth
from qposterior.model.successor_rewards import SuccessorRewards, successor_rewards
from qposterior.world.arrays import FloatArray, IntArray, segments, sum_by
from qposterior.world.models import ModelDraws
from qposterior.world.space import StateActionSpace
from qposterior.world.sums import PairSums

LEARNED_FROM = 512
"""States that hyper-parameters are learned from, at most; all others are drawn given these."""

PAIRS_A_PIECE = 4096
"""Pairs of neighbouring states that are drawn together where hyper-parameters are given: they stay in the cache."""

NO_NOISE = 1e-10
"""Variance of pairs that pay the same each time, as a share of the pooled one."""

BY_STATE = ("reward_unit", "worth_unit", "worth_freedom", "offset", "is_read", "is_compared", "is_varied")
BY_PAIR = ("count", "mean", "deviation", "is_constant", "worth", "worth_variance")
BY_CANDIDATE = ("value", "base", "unseen_odds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The arrays of the compiled sampler for some states."""

    layout: Layout
    data: Statistics
    units: Units
    initial: FloatArray  # (C,)  first guess of p̄

    def start(self, rng: np.random.Generator) -> State:
        """Return a start of a chain, scattered over the grids of the scales."""
        data, units = self.data, self.units
        num_states, num_pairs = units.reward_unit.size, data.count.size
        state = np.repeat(np.arange(num_states), np.diff(self.layout.first_pair))
        variance = units.reward_unit[state] ** 2 * np.exp(0.2 * rng.standard_normal(num_pairs))
        variance[data.is_constant] = NO_NOISE * units.pooled_variance
        overall = np.sum(data.count * (data.mean + units.offset[state])) / max(float(data.count.sum()), 1.0)
        wide = 10.0 * np.sqrt(units.pooled_variance + np.var(units.offset))
        hyper = np.zeros(NUM_HYPER)
        hyper[: LAMBDA + 1] = 256.0 if units.is_pooled else 8.0, 1.0, units.pooled_variance, overall, wide, 0.0
        hyper[C0] = 4.0
        return State(
            variance=variance,
            state_variance=units.reward_unit**2,
            worth_factor=np.ones(num_states),
            tau=rng.integers(0, TAU_GRID.size, num_states),
            kappa=rng.integers(0, KAPPA_GRID.size, num_states),
            omega=np.ones(num_pairs, dtype=np.int64),
            centre=np.zeros((num_states, 2)),
            alpha=data.mean.copy(),
            mean_row=self.initial.copy(),
            hyper=hyper,
        )

    def part(self, states: IntArray, *, hyper_given: bool) -> Piece:
        """Return some states, in their order, as a sampler's input of its own: states meet in hyper-parameters only."""
        layout = self.layout
        first_pair, pair = segments(layout.first_pair, states)
        first_candidate, candidate = segments(layout.first_candidate, states)
        first_edge, edge = segments(layout.first_edge, pair)
        first_seen, seen = segments(layout.first_seen, pair)
        moved = layout.seen_edge[seen] + np.repeat(first_edge[:-1] - layout.first_edge[pair], np.diff(first_seen))
        return Piece(
            layout=Layout(
                first_pair=first_pair,
                first_candidate=first_candidate,
                first_edge=first_edge,
                first_seen=first_seen,
                seen_edge=moved,
            ),
            data=Statistics(
                **{name: getattr(self.data, name)[pair] for name in BY_PAIR},
                **{name: getattr(self.data, name)[candidate] for name in BY_CANDIDATE},
                edge_count=self.data.edge_count[edge],
            ),
            units=self.units._replace(
                hyper_given=hyper_given, **{name: getattr(self.units, name)[states] for name in BY_STATE}
            ),
            initial=self.initial[candidate],
        )

    def subsample(self) -> Piece | None:
        """Return `LEARNED_FROM` states, evenly spread over those compared; None where there are no more."""
        compared = np.flatnonzero(self.units.is_compared)
        if compared.size <= LEARNED_FROM:
            return None
        some = np.linspace(0, compared.size - 1, LEARNED_FROM).round().astype(np.int64)
        return self.part(compared[some], hyper_given=False)

    def pieces(self) -> list[tuple[Piece, int, int]]:
        """Return pieces of neighbouring states whose hyper-parameters are given, each with its first edge and pair."""
        num_states, layout = self.units.offset.size, self.layout
        number = max(1, -(-self.data.count.size // PAIRS_A_PIECE))
        ends = np.linspace(0, num_states, number + 1).round().astype(np.int64)
        pieces = []
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            pair = int(layout.first_pair[first])
            piece = self.part(np.arange(first, last), hyper_given=True)
            pieces.append((piece, int(layout.first_edge[pair]), pair))
        return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """The arrays of the compiled sampler for all states, with what turns its draws into models."""

    whole: Piece
    candidates: Candidates
    rewards: SuccessorRewards

    @property
    def space(self) -> StateActionSpace:
        """The states and actions."""
        return self.candidates.space

    def models(self, rows: FloatArray, alpha: FloatArray) -> ModelDraws:
        """Return draws of rows and of α as models: R_sa = α_sa + Σ P(s'|s, a) e_ss', which overwrites `alpha`."""
        first_edge, candidate = self.whole.layout.first_edge, self.candidates.of_edges
        if self.rewards.is_used:
            effect = self.rewards.effect[candidate]
            for start in range(0, rows.shape[0], 64):  # in blocks: the product is as large as the rows
                part = slice(start, start + 64)
                alpha[part] += np.add.reduceat(rows[part] * effect, first_edge[:-1], axis=1)
        return ModelDraws(
            space=self.space,
            first_edge=first_edge,
            successor=self.candidates.successor[candidate],
            rows=rows,
            rewards=alpha,
        )

    def estimate(self) -> ModelDraws:
        """Return the one model of frequencies and mean rewards; a pair never tried is like its state."""
        data, first_edge = self.whole.data, self.whole.layout.first_edge
        edge_pair = np.repeat(np.arange(data.count.size), np.diff(first_edge))
        tried = data.count > 0.0
        count = np.where(tried, data.count, 1.0)[edge_pair]
        row = np.where(tried[edge_pair], data.edge_count / count, self.whole.initial[self.candidates.of_edges])
        row /= np.add.reduceat(row, first_edge[:-1])[edge_pair]
        mean = np.where(tried, data.mean, 0.0) + self.whole.units.offset[self.space.pair_state]
        return self.models(row[None], mean[None])


def build_hierarchy(sums: PairSums, value: FloatArray) -> Hierarchy:
    """Return the sampler's arrays where states are worth ``(S,)`` `value` as successors."""
    space, candidates = sums.space, candidates_of(sums)
    first_edge = candidates.first_edge
    edge_count = np.zeros(int(first_edge[-1]))
    edge_count[candidates.places(sums)] = sums.edge_count
    seen_edge = np.flatnonzero(edge_count > 0.0)
    rewards = successor_rewards(sums, candidates.cells(sums), candidates.successor.size)
    noise = reward_noise(sums, rewards)
    follows = space.discount * np.where(space.is_goal, 0.0, value)[candidates.successor]
    worth = row_worth(sums, candidates, follows + rewards.effect)
    tried = sum_by(space.pair_state, (sums.count > 0.0).astype(float), space.num_states)
    whole = Piece(
        layout=Layout(
            first_pair=space.first_pair,
            first_candidate=candidates.first,
            first_edge=first_edge,
            first_seen=np.searchsorted(seen_edge, first_edge).astype(np.int64),
            seen_edge=seen_edge,
        ),
        data=Statistics(
            count=sums.count.astype(float),
            mean=np.where(sums.count > 0.0, rewards.mean - noise.offset[space.pair_state], 0.0),
            deviation=noise.deviation,
            is_constant=noise.is_constant,
            worth=worth.mean,
            worth_variance=worth.variance,
            edge_count=edge_count,
            value=worth.value,
            base=candidates.base_measure(),
            unseen_odds=candidates.unseen_odds,
        ),
        units=Units(
            reward_unit=noise.unit,
            worth_unit=worth.unit,
            worth_freedom=worth.freedom,
            offset=noise.offset,
            is_read=tried >= 1.0,
            is_compared=tried >= 2.0,
            is_varied=worth.is_varied,
            pooled_variance=noise.pooled_variance,
            centre_spread=noise.centre_spread,
            is_pooled=noise.is_pooled,
            tempering=noise.tempering,
            rows_known=sums.rows_known,
            hyper_given=False,
        ),
        initial=candidates.initial_mean_row(),
    )
    return Hierarchy(whole=whole, candidates=candidates, rewards=rewards)
