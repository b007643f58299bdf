"""From sums over a log to what the sampler of the model works on: candidates, successor effects, units, starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.model.kernels.hierarchy import NUM_HYPER, SHARES, STEPS, Facts, Layout, State, Units
from qposterior.model.successor_rewards import SuccessorRewards, successor_rewards
from qposterior.world.arrays import BoolArray, FloatArray, IntArray, segment_starts, sum_by, weighted_means
from qposterior.world.models import ModelDraws
from qposterior.world.space import StateActionSpace
from qposterior.world.sums import PairSums

SKEWED = 0.5
"""Skewness of the noise from which variances are pooled within states, and states are left apart: a sample mean and a
sample variance of skewed readings go together, so that weights by variance would bias the means."""

FIRMNESS = 5.0
"""Standard errors by which the skewness must differ from 0."""

LEARNED_FROM = 512
"""States that hyper-parameters are learned from, at most; all others are drawn given these."""

PAIRS_A_PIECE = 4096
"""Pairs of neighbouring states that are drawn together where hyper-parameters are given: they stay in the cache."""

OWN, ADDED = 8.0, 4.0
"""Readings that the variance of worth within a state counts for beside a pair's own, and that of the log beside it."""

EXTRAS = 2
"""States that were never seen as successors of a state, and may be some of its successors nevertheless."""

FLAT = 1e-5
"""Spread of worth over the successors of a state, as a share of the largest of any state, below which it is none."""

TINY = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The arrays of the compiled sampler for some states."""

    layout: Layout
    facts: Facts
    units: Units
    initial: FloatArray  # (C,)  first guess of p̄

    def start(self, rng: np.random.Generator) -> State:
        """Return a start of a chain, scattered over the grids of the scales."""
        facts, units, state = self.facts, self.units, self.pair_state
        num_states, num_pairs = units.unit.size, facts.count.size
        variance = units.unit[state] ** 2 * np.exp(0.2 * rng.standard_normal(num_pairs))
        variance[facts.is_fixed] = TINY * units.noise
        overall = np.sum(facts.count * (facts.mean + units.offset[state])) / max(float(facts.count.sum()), 1.0)
        wide = 10.0 * np.sqrt(units.noise + np.var(units.offset))
        hyper = np.zeros(NUM_HYPER)
        hyper[:6] = 256.0 if self.is_skewed else 8.0, 1.0, units.noise, overall, wide, 0.0
        hyper[8] = 4.0
        return State(
            variance=variance,
            level=units.unit**2,
            rough=np.ones(num_states),
            step=rng.integers(0, STEPS.size, num_states),
            share=rng.integers(0, SHARES.size, num_states),
            local=np.ones(num_pairs, dtype=np.int64),
            centre=np.zeros((num_states, 2)),
            alpha=facts.mean.copy(),
            pooled=self.initial.copy(),
            hyper=hyper,
        )

    @property
    def pair_state(self) -> IntArray:
        """``(K,)`` the state of a pair."""
        return np.repeat(np.arange(self.units.unit.size), np.diff(self.layout.first_pair))

    @property
    def is_skewed(self) -> bool:
        """Whether the noise of rewards is skewed: variances are then pooled, and states left apart."""
        return bool(self.units.spread == 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """The arrays of the compiled sampler, with what turns its draws into models."""

    space: StateActionSpace
    layout: Layout
    facts: Facts
    units: Units
    candidate: IntArray  # (C,)  states that may follow
    rewards: SuccessorRewards
    initial: FloatArray  # (C,)  first guess of p̄

    @property
    def whole(self) -> Piece:
        """All states in one piece, their hyper-parameters to be learned."""
        return Piece(layout=self.layout, facts=self.facts, units=self.units, initial=self.initial)

    def teachers(self) -> Piece | None:
        """Return `LEARNED_FROM` states, evenly spread over those that tell something; None where there are no more."""
        informed = np.flatnonzero(self.units.informed)
        if informed.size <= LEARNED_FROM:
            return None
        some = np.linspace(0, informed.size - 1, LEARNED_FROM).round().astype(np.int64)
        return self.piece(informed[some], is_given=False)

    def pieces(self) -> list[tuple[Piece, int, int]]:
        """Return pieces of neighbouring states whose hyper-parameters are given, each with its first edge and pair."""
        num_states, layout = self.space.num_states, self.layout
        number = max(1, -(-self.space.num_pairs // PAIRS_A_PIECE))
        ends = np.linspace(0, num_states, number + 1).round().astype(np.int64)
        found = []
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            pair = int(layout.first_pair[first])
            piece = self.piece(np.arange(first, last), is_given=True)
            found.append((piece, int(layout.first_edge[pair]), pair))
        return found

    def piece(self, states: IntArray, *, is_given: bool) -> Piece:
        """Return some states, in their order, as a sampler's input of its own: states meet in hyper-parameters only."""
        layout, facts, units = self.layout, self.facts, self.units
        first_pair, pair = _segments(layout.first_pair, states)
        first_candidate, candidate = _segments(layout.first_candidate, states)
        first_edge, edge = _segments(layout.first_edge, pair)
        first_seen, seen = _segments(layout.first_seen, pair)
        moved = layout.seen_edge[seen] + np.repeat(first_edge[:-1] - layout.first_edge[pair], np.diff(first_seen))
        by_pair = ("count", "mean", "deviation", "is_fixed", "worth", "worth_noise")
        by_candidate = ("value", "base", "unseen")
        by_state = ("unit", "worth_unit", "worth_freedom", "offset", "read", "informed", "varied")
        return Piece(
            layout=Layout(
                first_pair=first_pair,
                first_candidate=first_candidate,
                first_edge=first_edge,
                first_seen=first_seen,
                seen_edge=moved,
            ),
            facts=Facts(
                **{name: getattr(facts, name)[pair] for name in by_pair},
                **{name: getattr(facts, name)[candidate] for name in by_candidate},
                edge_count=facts.edge_count[edge],
            ),
            units=units._replace(is_given=is_given, **{name: getattr(units, name)[states] for name in by_state}),
            initial=self.initial[candidate],
        )

    def models(self, rows: FloatArray, alpha: FloatArray) -> ModelDraws:
        """Return draws of rows and of α as models: R_sa = α_sa + Σ P(s'|s, a) e_ss'."""
        if self.rewards.is_used:
            effect = self.rewards.effect[self.edge_candidate]
            for start in range(0, rows.shape[0], 64):  # in blocks: the product is as large as the rows
                part = slice(start, start + 64)
                alpha[part] += np.add.reduceat(rows[part] * effect, self.layout.first_edge[:-1], axis=1)
        return ModelDraws(
            space=self.space,
            first_edge=self.layout.first_edge,
            successor=self.candidate[self.edge_candidate],
            rows=rows,
            rewards=alpha,
        )

    def estimate(self) -> ModelDraws:
        """Return the one model of frequencies and mean rewards; a pair never tried is like its state."""
        space, facts = self.space, self.facts
        tried = facts.count > 0.0
        count = np.where(tried, facts.count, 1.0)[self.edge_pair]
        row = np.where(tried[self.edge_pair], facts.edge_count / count, self.initial[self.edge_candidate])
        row /= np.add.reduceat(row, self.layout.first_edge[:-1])[self.edge_pair]
        mean = np.where(tried, facts.mean, 0.0) + self.units.offset[space.pair_state]
        return self.models(row[None], mean[None])

    def places(self, sums: PairSums) -> IntArray:
        """Return where the edges that were seen stand among all edges."""
        return _places(sums, self.layout.first_candidate, self.candidate, self.layout.first_edge)

    @property
    def edge_pair(self) -> IntArray:
        """``(E,)`` the pair of an edge."""
        return np.repeat(np.arange(self.space.num_pairs), np.diff(self.layout.first_edge))

    @property
    def edge_candidate(self) -> IntArray:
        """``(E,)`` the candidate that an edge leads to."""
        return _edge_candidates(self.space, self.layout.first_candidate)


def num_edges(sums: PairSums) -> int:
    """Return E, how many pairs of pair and candidate a draw of the model has."""
    first_candidate = _candidates(sums)[0]
    return int(np.diff(first_candidate)[sums.space.pair_state].sum())


def build_hierarchy(sums: PairSums, value: FloatArray) -> Hierarchy:
    """Return the sampler's arrays where states are worth ``(S,)`` `value` as successors."""
    space = sums.space
    first_candidate, candidate, total, unseen = _candidates(sums)
    edge_candidate = _edge_candidates(space, first_candidate)
    width = np.diff(first_candidate)[space.pair_state]
    first_edge = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
    place = _places(sums, first_candidate, candidate, first_edge)
    edge_count = np.zeros(int(first_edge[-1]))
    edge_count[place] = sums.edge_count
    seen_edge = np.flatnonzero(edge_count > 0.0)
    edge_pair = np.repeat(np.arange(space.num_pairs), width)
    layout = Layout(
        first_pair=space.first_pair,
        first_candidate=first_candidate,
        first_edge=first_edge,
        first_seen=segment_starts(edge_pair[seen_edge], space.num_pairs),
        seen_edge=seen_edge,
    )
    cell = edge_candidate[place]
    rewards, mean, deviation = successor_rewards(sums, cell, candidate.size)
    owner = np.repeat(np.arange(space.num_states), np.diff(first_candidate))
    worth_of = space.discount * np.where(space.is_goal, 0.0, value)[candidate] + rewards.effect
    worth_of, spread, varied = _centred_worth(owner, worth_of, total, space.num_states)
    noise = _noise(sums, mean, deviation, is_adjusted=rewards.is_used)
    worth = weighted_means(edge_pair, edge_count, worth_of[edge_candidate], space.num_pairs)
    squares = sum_by(edge_pair, edge_count * (worth_of[edge_candidate] - worth[edge_pair]) ** 2, space.num_pairs)
    if sums.rows_known:
        squares = np.zeros(space.num_pairs)  # what a row is worth is then known, and no mean of readings
    largest = float(spread.max(initial=0.0)) or 1.0
    tried = sum_by(space.pair_state, (sums.count > 0.0).astype(float), space.num_states)
    informed = tried >= 2.0
    within, freedom = _within(space, sums.count, squares, spread)
    within = np.maximum(within, TINY * largest**2)
    facts = Facts(
        count=sums.count.astype(float),
        mean=np.where(sums.count > 0.0, mean - noise.offset[space.pair_state], 0.0),
        deviation=noise.deviation,
        is_fixed=noise.is_fixed,
        worth=worth,
        worth_noise=_worth_noise(space, sums.count, np.maximum(squares, TINY * largest**2), within),
        edge_count=edge_count,
        value=worth_of,
        base=_base_measure(owner, candidate, total, unseen, space.num_states),
        unseen=unseen,
    )
    units = Units(
        unit=noise.unit,
        worth_unit=np.maximum(spread, FLAT * largest),
        worth_freedom=np.full(space.num_states, np.inf) if sums.rows_known else freedom + ADDED,
        offset=noise.offset,
        read=tried >= 1.0,
        informed=informed,
        varied=varied,
        noise=noise.pooled,
        spread=noise.spread,
        tempering=noise.tempering,
        rows_known=sums.rows_known,
        is_given=False,
    )
    guess = total + 0.5 * (total > 0.0) + unseen
    return Hierarchy(
        space=space,
        layout=layout,
        facts=facts,
        units=units,
        candidate=candidate,
        rewards=rewards,
        initial=guess / sum_by(owner, guess, space.num_states)[owner],
    )


def _centred_worth(
    owner: IntArray, worth: FloatArray, total: FloatArray, num_states: int
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return what candidates are worth less the mean of their state, the spread ``(S,)`` of that, and where it varies.

    Mean and spread are over the successors seen, or over all candidates where none was. Where the spread is nothing but
    rounding, or small beside that of other states, all candidates are worth the same, 0: a row tilted by such
    differences would be torn apart.
    """
    is_read = sum_by(owner, total, num_states) > 0.0
    weight = np.where(is_read[owner], total, 1.0)
    centred = worth - weighted_means(owner, weight, worth, num_states)[owner]
    spread = np.sqrt(weighted_means(owner, weight, centred**2, num_states))
    size = 1e-9 * float(np.abs(worth).max(initial=0.0))
    varied = spread > max(FLAT * float(spread.max(initial=0.0)), size)
    return np.where(varied[owner], centred, 0.0), np.where(varied, spread, 0.0), varied


def _within(
    space: StateActionSpace, count: FloatArray, squares: FloatArray, spread: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return ``(S,)`` the variance of W over the successors of one pair, pooled within states, and its freedom.

    `ADDED` readings are added at the share that variances within pairs have of those within states over the whole log.
    """
    total = sum_by(space.pair_state, squares, space.num_states)
    freedom = sum_by(space.pair_state, np.maximum(count - 1.0, 0.0), space.num_states)
    expected = float(np.sum(freedom * spread**2))
    share = float(total.sum()) / expected if expected > 0.0 else 0.5
    return np.asarray((total + ADDED * min(share, 1.0) * spread**2) / (freedom + ADDED)), freedom


def _worth_noise(space: StateActionSpace, count: FloatArray, squares: FloatArray, within: FloatArray) -> FloatArray:
    """Return ``(K,)`` variances of the mean worth of a pair's successors, its own evidence pooled with the state's."""
    n = np.where(count > 0.0, count, 1.0)
    return (squares + OWN * within[space.pair_state]) / ((n + OWN - 1.0) * n)


def _edge_candidates(space: StateActionSpace, first_candidate: IntArray) -> IntArray:
    """Return ``(E,)`` the candidate of every edge: those of the pair's state, in their order."""
    return _segments(first_candidate, space.pair_state)[1]


def _candidates(sums: PairSums) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return offsets by state, candidates, how often each followed its state, and the odds of those that never did.

    Candidates are the successors seen from the state by any action, and a few of all states by how many others they
    follow. These share the probability that a reading leads to a state not met before, estimated (Good and Turing) by
    the share of successors that were met just once; where none was, there are none of them. A state from which nothing
    was seen may lead to any of the eight states that follow most often, or to itself.
    """
    space = sums.space
    state = np.repeat(space.pair_state, np.diff(sums.first_edge))
    key, cell = np.unique(state * space.num_states + sums.successor, return_inverse=True)
    owner, successor = key // space.num_states, key % space.num_states
    total = sum_by(cell, sums.edge_count, key.size)
    readings = sum_by(owner, total, space.num_states)
    once = sum_by(owner, ((total > 0.0) & (total < 1.5)).astype(float), space.num_states)
    overall = once.sum() / max(readings.sum(), 1.0)
    share = np.minimum((once + 2.0 * overall) / (readings + 2.0), 0.5)
    share[(readings == 0.0) | sums.rows_known] = 0.0
    # A state that follows many others is a likelier surprise than one that follows a few of them often.
    often = sum_by(successor, total, space.num_states)
    followed = np.bincount(successor, minlength=space.num_states)
    popular = np.lexsort((-often, -followed))[: EXTRAS * 4]
    new_owner, new_successor = np.repeat(np.arange(space.num_states), popular.size), np.tile(popular, space.num_states)
    new_key = new_owner * space.num_states + new_successor
    is_new = ~np.isin(new_key, key) & ~space.is_goal[new_owner]
    empty = (readings == 0.0)[new_owner]
    # The first few in the order of popularity that are new to the state; all of them where it has no other.
    rank = np.cumsum(is_new.reshape(space.num_states, -1), axis=1).ravel()
    is_new &= (rank <= EXTRAS) & (share[new_owner] > 0.0) | empty
    key = np.concatenate([key, new_key[is_new], np.flatnonzero(readings == 0.0) * (space.num_states + 1)])
    total = np.concatenate([total, np.zeros(key.size - total.size)])
    key, first = np.unique(key, return_index=True)
    owner, candidate, total = key // space.num_states, key % space.num_states, total[first]
    kept = ~space.is_goal[owner]
    owner, candidate, total = owner[kept], candidate[kept], total[kept]
    extra = total == 0.0
    number = sum_by(owner, extra.astype(float), space.num_states)
    odds = np.where(extra, (share / (1.0 - share) / np.maximum(number, 1.0))[owner], 0.0)
    odds = np.where(extra & (readings == 0.0)[owner], 1.0, odds)
    first_candidate = np.searchsorted(owner, np.arange(space.num_states + 1)).astype(np.int64)
    return first_candidate, candidate, total, odds


def _places(sums: PairSums, first_candidate: IntArray, candidate: IntArray, first_edge: IntArray) -> IntArray:
    """Return where the edges that were seen stand among all edges."""
    space = sums.space
    pair = np.repeat(np.arange(space.num_pairs), np.diff(sums.first_edge))
    state = space.pair_state[pair]
    owner = np.repeat(np.arange(space.num_states), np.diff(first_candidate))
    place = np.searchsorted(owner * space.num_states + candidate, state * space.num_states + sums.successor)
    return np.asarray(first_edge[pair] + place - first_candidate[state])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """What is taken for granted of the noise of rewards."""

    unit: FloatArray  # (S,)
    offset: FloatArray  # (S,)
    is_fixed: BoolArray  # (K,)
    deviation: FloatArray  # (K,)  Σ (r − mean)², and a reading more where rewards are lumpy
    pooled: float
    spread: float
    tempering: float


def _noise(sums: PairSums, mean: FloatArray, deviation: FloatArray, *, is_adjusted: bool) -> _Noise:
    """Return units of the rewards, which pairs have no noise, and how normal it is elsewhere.

    Rewards are lumpy where a pair that is not constant paid the same each time it was tried: they are wins and losses,
    say, of which a few trials are often alike. That says nothing of its noise. Mean and variance go together then, as
    they do where rewards are skewed, and each pair is given one more reading of its state's variance.
    """
    space, count = sums.space, sums.count
    number = space.num_states
    total = sum_by(space.pair_state, count, number)
    overall = float(np.average(mean, weights=count))
    offset = np.where(total > 0.0, weighted_means(space.pair_state, count, mean, number), overall)
    is_fixed = _constant_pairs(sums, mean, deviation, is_adjusted=is_adjusted)
    noisy = np.where(is_fixed, 0.0, deviation)
    freedom = np.where(is_fixed, 0.0, np.maximum(count - 1.0, 0.0))
    everything = float((count * (mean - overall) ** 2).sum() + deviation.sum()) / max(float(count.sum()), 1.0)
    pooled = float(noisy.sum()) / max(float(freedom.sum()), 1.0) or everything or 1.0
    level = (sum_by(space.pair_state, noisy, number) + 2.0 * pooled) / (sum_by(space.pair_state, freedom, number) + 2.0)
    skewness, kurtosis = (0.0, 3.0) if is_adjusted else _shape_of_noise(sums, offset)
    is_skewed = abs(skewness) > max(SKEWED, FIRMNESS * np.sqrt(6.0 / max(float(count.sum()), 1.0)))
    is_lumpy = bool(np.any(~is_fixed & (count >= 2.0) & (noisy <= 1e-18 * everything * count))) and not is_adjusted
    if is_lumpy:
        noisy = np.where(is_fixed, 0.0, noisy + level[space.pair_state])
    spread = float(np.std(offset[total > 0.0])) or np.sqrt(everything or 1.0)
    return _Noise(
        unit=np.sqrt(level),
        offset=offset,
        is_fixed=is_fixed,
        deviation=noisy,
        pooled=pooled,
        spread=0.0 if is_skewed or is_lumpy else max(spread, 1e-6 * np.sqrt(everything)),
        tempering=min(1.0, 2.0 / max(kurtosis - 1.0, TINY)),
    )


def _constant_pairs(sums: PairSums, mean: FloatArray, deviation: FloatArray, *, is_adjusted: bool) -> BoolArray:
    """Return which pairs pay the same every time: a class of their own, without noise.

    A pair that paid the same each time it was tried, unless noisy pairs have that very value for their smallest or
    largest reading: rewards that are mostly 0 look constant in a short log. Where nearly all pairs that were tried
    again are constant, so are those that were tried once.
    """
    if sums.rewards_known:
        return np.asarray(sums.count > 0.0)
    again = sums.count >= 2.0
    size = np.abs(mean[sums.count > 0.0]).max(initial=0.0) + np.sqrt(deviation.max(initial=0.0)) or 1.0
    constant = again & (deviation <= (1e-9 * size) ** 2 * sums.count)
    noisy = again & ~constant
    if is_adjusted:
        # Effects that were fitted leave nothing over where no successor was met twice: only all pairs or none.
        return np.asarray((sums.count > 0.0) & (bool(again.any()) and constant[again].mean() > 0.9))
    if noisy.any():
        ends = np.concatenate([sums.reward_low[noisy], sums.reward_high[noisy]])
        constant &= ~np.isin(np.round(mean / size, 8), np.round(ends / size, 8))
    if again.any() and constant[again].mean() > 0.9:
        constant |= (sums.count > 0.0) & ~again
    return np.asarray(constant)


def _shape_of_noise(sums: PairSums, offset: FloatArray) -> tuple[float, float]:
    """Return the skewness of readings within pairs, and their kurtosis about the mean of their state.

    About the state's mean because a sample's kurtosis is at most its size: pairs of few readings would hide it.
    """
    if not np.isfinite(sums.reward_fourth).all():
        return 0.0, 3.0
    space, count = sums.space, sums.count
    second, third, fourth = sums.reward_deviation, sums.reward_third, sums.reward_fourth
    total = max(float(count.sum()), 1.0)
    if second.sum() <= 0.0:
        return 0.0, 3.0
    skewness = float(third.sum() / total / (second.sum() / total) ** 1.5)
    gap = np.where(count > 0.0, sums.reward_mean - offset[space.pair_state], 0.0)
    about = fourth + 4.0 * gap * third + 6.0 * gap**2 * second + count * gap**4
    variance = sum_by(space.pair_state, second + count * gap**2, space.num_states)
    readings = np.maximum(sum_by(space.pair_state, count, space.num_states), 1.0)
    return skewness, float(about.sum() / np.sum(variance**2 / readings))


def _base_measure(
    owner: IntArray, candidate: IntArray, total: FloatArray, unseen: FloatArray, num_states: int
) -> FloatArray:
    """Return ``(C,)`` m_s: how large the share of a successor is in the states that lead to it, on average."""
    seen = unseen == 0.0
    share = np.where(seen, total / np.maximum(sum_by(owner, total, num_states), TINY)[owner], 0.0)
    usual = sum_by(candidate, share, num_states) / np.maximum(sum_by(candidate, seen.astype(float), num_states), 1.0)
    base = np.where(seen, np.maximum(usual[candidate], 1e-4), 0.0)
    return base / np.maximum(sum_by(owner, base, num_states), TINY)[owner]


def _segments(first: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:
    """Return offsets and numbers of the entries of some segments, which begin at `first`."""
    lengths = first[chosen + 1] - first[chosen]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    shift = np.repeat(first[chosen] - offsets[:-1], lengths)
    return offsets, np.asarray(np.arange(int(offsets[-1])) + shift)
