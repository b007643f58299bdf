"""What the rows that were seen are worth where successors have given values, and how well their readings tell it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.model.candidates import Candidates
from qposterior.world.arrays import BoolArray, FloatArray, sum_by, weighted_means
from qposterior.world.space import StateActionSpace
from qposterior.world.sums import PairSums

OWN, ADDED = 8.0, 4.0
"""Readings that the variance of worth within a state counts for beside a pair's own, and that of the log beside it."""

FLAT = 1e-5
"""Spread of worth over the successors of a state, as a share of the largest of any state, below which it is none."""

TINY = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWorth:
    """Worth y = P·W of rows, with W centred within states."""

    value: FloatArray  # (C,)  W of the candidates
    mean: FloatArray  # (K,)  mean W of the successors seen
    variance: FloatArray  # (K,)  of that mean
    unit: FloatArray  # (S,)  spread of W over the successors
    freedom: FloatArray  # (S,)  degrees of freedom of the variances; inf: they are known
    is_varied: BoolArray  # (S,)


def row_worth(sums: PairSums, candidates: Candidates, worth: FloatArray) -> RowWorth:
    """Return what rows are worth where candidates are worth ``(C,)`` `worth`; a row that is known has no variance."""
    space, pair = sums.space, sums.edge_pair
    value, spread, is_varied = centred_worth(candidates, worth)
    of_edge = value[candidates.cells(sums)]
    mean = weighted_means(pair, sums.edge_count, of_edge, space.num_pairs)
    squares = sum_by(pair, sums.edge_count * (of_edge - mean[pair]) ** 2, space.num_pairs)
    if sums.rows_known:
        squares = np.zeros(space.num_pairs)  # what a row is worth is then known, and no mean of readings
    largest = float(spread.max(initial=0.0)) or 1.0
    least = TINY * largest**2
    within, freedom = variance_within(space, count=sums.count, squares=squares, spread=spread)
    within, squares = np.maximum(within, least), np.maximum(squares, least)
    return RowWorth(
        value=value,
        mean=mean,
        variance=variance_of_mean(space, count=sums.count, squares=squares, within=within),
        unit=np.maximum(spread, FLAT * largest),
        freedom=np.full(space.num_states, np.inf) if sums.rows_known else freedom + ADDED,
        is_varied=is_varied,
    )


def centred_worth(candidates: Candidates, worth: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return ``(C,)`` worth less the mean of its state, the spread ``(S,)`` of that, and where it varies.

    Mean and spread are over the successors seen, or over all candidates where none was. Where the spread is nothing but
    rounding, or small beside that of other states (`FLAT`), all candidates are worth the same, 0: a row tilted by such
    differences would be torn apart.
    """
    state, num_states = candidates.state, candidates.space.num_states
    is_read = candidates.sum_by_state(candidates.count) > 0.0
    weight = np.where(is_read[state], candidates.count, 1.0)
    centred = worth - weighted_means(state, weight, worth, num_states)[state]
    spread = np.sqrt(weighted_means(state, weight, centred**2, num_states))
    rounding = 1e-9 * float(np.abs(worth).max(initial=0.0))
    varied = spread > max(FLAT * float(spread.max(initial=0.0)), rounding)
    return np.where(varied[state], centred, 0.0), np.where(varied, spread, 0.0), varied


def variance_within(
    space: StateActionSpace, *, count: FloatArray, squares: FloatArray, spread: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return ``(S,)`` the variance of W over the successors of one pair, pooled within states, and its freedom.

    `ADDED` readings are added at the share that variances within pairs have of those within states over the whole log.
    """
    total = sum_by(space.pair_state, squares, space.num_states)
    freedom = sum_by(space.pair_state, np.maximum(count - 1.0, 0.0), space.num_states)
    expected = float(np.sum(freedom * spread**2))
    share = float(total.sum()) / expected if expected > 0.0 else 0.5
    return np.asarray((total + ADDED * min(share, 1.0) * spread**2) / (freedom + ADDED)), freedom


def variance_of_mean(
    space: StateActionSpace, *, count: FloatArray, squares: FloatArray, within: FloatArray
) -> FloatArray:
    """Return ``(K,)`` variances of the mean worth of a pair's successors, its own evidence pooled with the state's."""
    n = np.where(count > 0.0, count, 1.0)
    return (squares + OWN * within[space.pair_state]) / ((n + OWN - 1.0) * n)
