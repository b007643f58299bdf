"""The sums of a log whose states are bins, with bins joined: what coarser bins would have summed up, to rounding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from qposterior.logs.columns import Label, numbered
from qposterior.logs.read import MOMENTS, Log
from qposterior.world.arrays import IntArray, sum_by
from qposterior.world.moments import Moments, mean_by, merge_moments, no_moments


def as_shown(log: Log) -> Log:
    """Return a log with the states that are shown: those of the finest bins are joined, labels stay."""
    return log if log.bins is None else joined(log, log.bins.shown)


def joined(log: Log, number: int) -> Log:
    """Return a log with so many bins for states."""
    assert log.bins is not None
    labels = log.bins.joined(number)
    names = [labels.get(label, label) for label in log.states]
    states = [*(label for label in log.bins.labels(number) if label in names), *_others(names, labels)]
    place = numbered(states)
    state = np.array([place[name] for name in names], dtype=np.int64)
    pair, pairs = _codes(zip(state[log.pairs[:, 0]].tolist(), log.pairs[:, 1].tolist(), strict=True))
    move, moves = _codes(zip(pair[log.moves[:, 0]].tolist(), state[log.moves[:, 1]].tolist(), strict=True))
    known = Moments(**{theirs: getattr(log, ours) for ours, theirs in MOMENTS.items()})
    both = _joined_moments(known, pair, len(pairs))
    first_row = np.full(len(pairs), np.iinfo(np.int64).max)
    np.minimum.at(first_row, pair, log.first_row)
    ended, starts = dict[int, int](), defaultdict[int, float](float)
    contexts = defaultdict[tuple[int, int, int], float](float)
    for one, row in log.ended.items():
        ended[int(state[one])] = min(row, ended.get(int(state[one]), row))
    for one, times in log.starts.items():
        starts[int(state[one])] += times
    for (before, of, after), times in (log.contexts or {}).items():
        contexts[int(state[before]), int(pair[of]), int(state[after])] += times
    return replace(
        log,
        states=states,
        pairs=np.array(pairs, dtype=np.int64),
        moves=np.array(moves, dtype=np.int64),
        first_row=first_row,
        move_count=sum_by(move, log.move_count, len(moves)),
        move_reward=mean_by(move, log.move_reward, log.move_count, len(moves)),
        ended=ended,
        starts=dict(starts),
        contexts=None if log.contexts is None else dict(contexts),
        **{ours: getattr(both, theirs) for ours, theirs in MOMENTS.items()},
    )


def _others(names: Iterable[str], labels: Mapping[str, str]) -> list[str]:
    """Return the states that are no bins, such as those in which an episode ends."""
    bins = set(labels.values())
    return list(dict.fromkeys(name for name in names if name not in bins))


def _codes(names: Iterable[Label]) -> tuple[IntArray, list[Label]]:
    """Return the number of each name, and the names in the order in which they first appear."""
    given = list(names)
    code = numbered(dict.fromkeys(given))
    return np.array([code[name] for name in given], dtype=np.int64), list(code)


def _joined_moments(known: Moments, group: IntArray, size: int) -> Moments:
    """Return the moments of the groups that others are joined to: the first members of all, then the second, …"""
    both, taken = no_moments(size), np.zeros(size, dtype=np.int64)
    turn = np.empty(group.size, dtype=np.int64)
    for place, one in enumerate(group.tolist()):
        turn[place] = taken[one]
        taken[one] += 1
    for number in range(int(taken.max(initial=0))):
        at = np.flatnonzero(turn == number)
        both.put(group[at], merge_moments(both.at(group[at]), known.at(at)))
    return both
