"""What has been seen of an MDP, as sufficient statistics: its size depends on the pairs, never on the rows."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.checks import (
    check_choice,
    check_count,
    check_floats,
    check_indices,
    check_list,
    check_number,
    check_numbers,
    check_one_length,
    check_type,
    shown,
    whole,
)
from qposterior.errors import ContradictionError, InvalidInputError
from qposterior.world.arrays import BoolArray, FloatArray, IntArray, sum_by
from qposterior.world.mdp import FiniteMDP
from qposterior.world.moments import (
    Moments,
    Readings,
    add_readings,
    deviation_between,
    merge_means,
    merge_moments,
    moments_by,
    moments_of_one,
    no_moments,
    no_readings,
)
from qposterior.world.space import StateActionSpace
from qposterior.world.sums import NOWHERE, Edges, PairSums, Row, led_to
from qposterior.world.transitions import TransitionTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADER = "qposterior-experience 1"
SAME_REWARD = 1e-12
"""Relative difference below which two readings of a deterministic reward are the same reading."""


class Experience:
    """Per pair: how often it was seen, the mean and squared deviation of its rewards, and its transition row.

    `transitions="revealed"`: the row of a pair becomes known on its first visit (the paper's setting), given as `row`
    or else taken to lead to the one successor seen. `"counted"`: successors are counted, the row stays unknown.
    `rewards="deterministic"`: a second, different reward of a pair is an error, and a repeated reading adds nothing to
    what is known. `"noisy"`: rewards are readings around an unknown mean.
    """

    def __init__(
        self, space: StateActionSpace, *, transitions: str = "revealed", rewards: str = "deterministic"
    ) -> None:
        check_type("space", space, StateActionSpace)
        check_choice("kind of transitions", transitions, ("revealed", "counted"))
        check_choice("kind of rewards", rewards, ("deterministic", "noisy"))
        self.space = space
        self.transitions = transitions
        self.rewards = rewards
        self.count: IntArray = np.zeros(space.num_pairs, dtype=np.int64)
        self.reward_mean: FloatArray = np.zeros(space.num_pairs)
        self.reward_deviation: FloatArray = np.zeros(space.num_pairs)  # Σ (r − mean)², by Welford's update
        self._rows: dict[int, Edges] = {}  # with mean rewards where counted and noisy
        self._readings: dict[int, Readings] = {}  # kept of noisy rewards only
        self._summed: Moments | None = None  # of noisy rewards that came in as sums; else the readings tell
        self._first_seen: dict[int, int] = {}
        self._single_successor: IntArray = np.full(space.num_pairs, -1, dtype=np.int64)

    @classmethod
    def of_pairs(cls, mdp: FiniteMDP, pairs: Iterable[tuple[int, int]]) -> Experience:
        """Return the experience in which these (state, action) pairs are explored: mean reward and row revealed."""
        check_type("mdp", mdp, FiniteMDP)
        seen = cls(mdp.space, rewards="noisy" if mdp.reward_sd.any() else "deterministic")
        for pair in check_list("pairs", pairs, "(state, action)"):
            state, action = _two("a pair", pair, "(state, action)")
            k = mdp.space.pair(state, action)
            row = mdp.transitions.row(k)
            seen.record(state, action, float(mdp.rewards[k]), int(row[0][0]), row=row)
        return seen

    @classmethod
    def from_sums(
        cls,
        space: StateActionSpace,
        *,
        pair: IntArray,
        count: FloatArray,
        reward_mean: FloatArray,
        reward_deviation: FloatArray,
        move_pair: IntArray,
        move_state: IntArray,
        move_count: FloatArray,
        transitions: str,
        rewards: str,
        readings: dict[int, Readings] | None = None,
        reward_third: FloatArray | None = None,
        reward_fourth: FloatArray | None = None,
        reward_low: FloatArray | None = None,
        reward_high: FloatArray | None = None,
        move_reward: FloatArray | None = None,
    ) -> Experience:
        """Return the experience of sums over many transitions: per pair, and per pair and successor.

        Pairs stand in the order in which they were first seen. Counts are whole numbers: sums of weights are rounded,
        a pair whose weights add up to less than a half was not seen. `readings`, where rewards are noisy, has the
        single rewards of a pair: values and weights. Of noisy rewards also: the third and fourth central sums and the
        extremes of each pair, and the mean reward of each move; left out or nan, they are not known.
        """
        seen = cls(space, transitions=transitions, rewards=rewards)
        pair, count, reward_mean, reward_deviation = _checked_pairs(space, pair, count, reward_mean, reward_deviation)
        move_pair, move_state, move_count = _checked_moves(space, move_pair, move_state, move_count)
        readings = _checked_readings({} if readings is None else readings, pair)
        moments = Moments(
            count=count,
            mean=reward_mean,
            second=reward_deviation,
            third=_sums_or_nan("reward_third", reward_third, pair.size),
            fourth=_sums_or_nan("reward_fourth", reward_fourth, pair.size),
            low=_sums_or_nan("reward_low", reward_low, pair.size),
            high=_sums_or_nan("reward_high", reward_high, pair.size),
        )
        move_rewards = _sums_or_nan("move_reward", move_reward, move_pair.size)
        numbers = np.rint(count).astype(np.int64)
        kept = numbers > 0
        _check_moves_fit(pair, kept, move_pair, sum_by(move_pair, move_count, space.num_pairs))
        seen.count[pair[kept]] = numbers[kept]
        seen.reward_mean[pair[kept]] = reward_mean[kept]
        if rewards == "noisy":
            seen.reward_deviation[pair[kept]] = reward_deviation[kept]
            seen._summed = no_moments(space.num_pairs)
            seen._summed.put(pair[kept], moments.at(kept))
            seen._readings = readings
        order = np.lexsort((move_state, move_pair))
        owner, state, weight = move_pair[order], move_state[order], move_count[order]
        reward = np.where(seen._keeps_edge_rewards, move_rewards, np.nan)[order]
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        for start, stop in zip(starts, np.append(starts[1:], owner.size), strict=True):
            k = int(owner[start])
            if seen.count[k]:
                row = weight[start:stop] if transitions == "counted" else np.ones(stop - start) / (stop - start)
                seen._set_row(k, Edges(state[start:stop].astype(np.int64), row.astype(float), reward[start:stop]))
        seen._first_seen = {int(k): place for place, k in enumerate(pair[kept])}
        return seen

    def record(
        self,
        state: int,
        action: int,
        reward: float,
        next_state: int,
        terminated: bool | None = None,
        row: Row | None = None,
        mean_reward: float | None = None,
    ) -> bool:
        """Add one transition; return whether its pair was new.

        `row` reveals the whole transition row, `mean_reward` the mean that stands for this reward (where the reward
        depends on a random successor, the reading itself would look like a contradiction). `terminated`, where given,
        must agree with the goals of the space.
        """
        k = self.space.pair(state, action)
        self.space.check_state(next_state, "next_state")
        if terminated is not None and bool(terminated) != bool(self.space.is_goal[next_state]):
            is_or_not = "is not" if terminated else "is"
            raise ContradictionError(
                f"terminated={bool(terminated)} after state {state}, action {action}, "
                f"but state {next_state} {is_or_not} a goal of the space"
            )
        name = f"the reward of state {state}, action {action}"
        value = check_number(name, reward)
        if mean_reward is not None:
            value = check_number(f"the mean of {name}", mean_reward)
        is_new = bool(self.count[k] == 0)
        self._check_reward(k, value)
        self._record_row(k, value, next_state, row)
        self._record_reward(k, value)
        return is_new

    @property
    def observed(self) -> BoolArray:
        """``(K,)`` mask of the pairs seen at least once: the set O."""
        return self.count > 0

    @property
    def observed_pairs(self) -> IntArray:
        """The flat indices of O, ascending."""
        return np.flatnonzero(self.count)

    @property
    def num_observed(self) -> int:
        """|O|."""
        return int(np.count_nonzero(self.count))

    def row(self, pair: int) -> Row:
        """Return successors and probabilities (revealed) or counts (counted) of an observed pair."""
        self._check_seen(pair)
        return self._rows[pair].row

    def table(self) -> TransitionTable:
        """Return the rows of the observed pairs, in the order of `observed_pairs`; counted rows as frequencies."""
        pairs = self.observed_pairs
        single = self._single_successor[pairs]
        if np.all(single >= 0):  # deterministic so far: no need to look at the rows one by one
            starts, successor, probability = np.arange(pairs.size + 1), single, np.ones(pairs.size)
        else:
            rows = [self._rows[k] for k in pairs.tolist()]
            starts, successor, probability = _flat([(row.successors, self._frequencies(row)) for row in rows], 2)
        return TransitionTable(
            num_states=self.space.num_states, row_start=starts, successor=successor, probability=probability
        )

    def edges(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """Return where the edges of each observed pair begin, and of each edge its successor, weight and mean reward.

        Weights are counts, or probabilities where rows are revealed; rewards are nan where they are not kept.
        """
        starts, successor, weight, rewards = _flat([self._rows[k] for k in self.observed_pairs.tolist()], 3)
        return starts, successor.astype(np.int64, copy=False), weight, rewards

    def sums(self) -> PairSums:
        """Return all that the readings sum up to, as flat arrays.

        Third and fourth sums and extremes of recorded rewards are those of the kept readings: exact up to 256 distinct
        values a pair. With known rows the reward of an edge is known where it is the only one of its pair.
        """
        moments, pairs, size = self._moments().copy(), self.observed_pairs, self.space.num_pairs
        starts, successor, weight, rewards = self.edges()
        lengths = np.zeros(size, dtype=np.int64)
        lengths[pairs] = np.diff(starts)
        owner = np.repeat(np.arange(size), lengths)
        is_counted = self.transitions == "counted"
        count = sum_by(owner, weight, size) if is_counted else moments.count
        is_constant = moments.second == 0.0  # whatever was kept of it
        low, high = (np.where(is_constant & np.isnan(x), moments.mean, x) for x in (moments.low, moments.high))
        is_of_pair = (lengths[owner] == 1) | (is_counted and self.rewards == "deterministic")
        return PairSums(
            space=self.space,
            count=count,
            reward_mean=moments.mean,
            reward_deviation=moments.second,
            reward_third=np.where(is_constant, 0.0, moments.third),
            reward_fourth=np.where(is_constant, 0.0, moments.fourth),
            reward_low=np.where(self.observed, low, 0.0),
            reward_high=np.where(self.observed, high, 0.0),
            first_edge=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            successor=successor,
            edge_count=weight if is_counted else weight * count[owner],
            edge_reward=np.where(is_of_pair, moments.mean[owner], rewards),
            rows_known=not is_counted,
            rewards_known=self.rewards == "deterministic",
        )

    def _moments(self) -> Moments:
        """Return the moments of all pairs, of the sums that came in or of the kept readings."""
        if self._summed is not None:
            return self._summed
        starts, values, weights = self.readings()
        owner = np.repeat(self.observed_pairs, np.diff(starts))
        kept = moments_by(owner, values, weights, self.space.num_pairs)
        is_complete = np.isclose(kept.count, self.count)
        third, fourth, low, high = (
            np.where(is_complete, x, np.nan) for x in (kept.third, kept.fourth, kept.low, kept.high)
        )
        return Moments(
            count=self.count.astype(np.float64),
            mean=self.reward_mean.copy(),
            second=self.reward_deviation.copy(),
            third=third,
            fourth=fourth,
            low=low,
            high=high,
        )

    def first_seen(self, pair: int) -> int:
        """Return the place of an observed pair in the order in which pairs were first seen."""
        self._check_seen(pair)
        return self._first_seen[pair]

    def _check_seen(self, pair: int) -> None:
        if whole(pair) not in self._rows:
            raise InvalidInputError(f"pair {shown(pair)} has not been seen; observed_pairs lists those that have")

    def reveal(self, pair: int, other: Experience) -> None:
        """Take over what another experience of the same space and kind knows of one pair that is new here."""
        self._check_same_kind(other, "take over from")
        other._check_seen(pair)
        if self.count[pair]:
            raise InvalidInputError(f"pair {pair} has been seen here already; `merge` adds up what two have seen")
        self.count[pair] = other.count[pair]
        self.reward_mean[pair] = other.reward_mean[pair]
        self.reward_deviation[pair] = other.reward_deviation[pair]
        self._set_row(pair, other._rows[pair])
        if self._summed is not None or other._summed is not None:
            self._summed = self._moments()
            self._summed.put([pair], other._moments().at([pair]))
        if pair in other._readings:
            self._readings[pair] = other._readings[pair]
        self._first_seen.setdefault(pair, len(self._first_seen))

    def readings(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return offsets, values and weights of the readings of the observed pairs, in the order of `observed_pairs`.

        Noisy rewards only; at most 256 weighted values a pair, exact until then.
        """
        starts, values, weights = _flat([self._readings.get(k, no_readings()) for k in self.observed_pairs.tolist()], 2)
        return starts, values, weights

    def with_frequencies(self) -> Experience:
        """Return the same experience with counted successors taken for known rows: their frequencies."""
        return self.with_rows({k: (row.successors, self._frequencies(row)) for k, row in self._rows.items()})

    def with_rows(self, rows: dict[int, Row]) -> Experience:
        """Return the same experience with other rows, taken as known: successors and probabilities of each pair."""
        check_type("rows", rows, dict)
        if not rows.keys() >= self._rows.keys():
            raise InvalidInputError(f"rows must have one for each of the {len(self._rows)} pairs seen, got {len(rows)}")
        known = Experience(self.space, rewards=self.rewards)
        known.count, known.reward_mean = self.count.copy(), self.reward_mean.copy()
        known.reward_deviation = self.reward_deviation.copy()
        known._readings, known._first_seen = dict(self._readings), dict(self._first_seen)
        known._summed = None if self._summed is None else self._summed.copy()
        for k, edges in self._rows.items():
            row = known._checked_row(k, rows[k])
            is_same = np.array_equal(row[0], edges.successors)
            known._set_row(k, Edges(*row, edges.rewards) if is_same else led_to(row))
        return known

    def copy(self) -> Experience:
        """Return an independent copy."""
        return self.merge(Experience(self.space, transitions=self.transitions, rewards=self.rewards))

    def merge(self, other: Experience) -> Experience:
        """Return what both have seen together (Chan's pairwise update of means and deviations)."""
        self._check_same_kind(other, "merge with")
        merged = Experience(self.space, transitions=self.transitions, rewards=self.rewards)
        for k, edges in (*self._rows.items(), *other._rows.items()):
            if k in merged._rows:
                self._check_reward(k, other.reward_mean[k])
                edges = merged._combine(k, edges)
            merged._set_row(k, edges)
        merged._readings = dict(self._readings)
        for k in [*self._first_seen, *other._first_seen]:
            merged._first_seen.setdefault(k, len(merged._first_seen))
        for k, readings in other._readings.items():
            merged._readings[k] = add_readings(self._readings.get(k, no_readings()), readings)
        n, m = self.count.astype(np.float64), other.count.astype(np.float64)
        merged.count = self.count + other.count
        merged.reward_mean = merge_means(n, self.reward_mean, m, other.reward_mean)
        between = deviation_between(n, self.reward_mean, m, other.reward_mean)
        merged.reward_deviation = self.reward_deviation + other.reward_deviation + between
        if self._summed is not None or other._summed is not None:
            merged._summed = merge_moments(self._moments(), other._moments())
        if self.rewards == "deterministic":
            merged.reward_deviation[:] = 0.0
            merged.reward_mean = np.where(n == 0, other.reward_mean, self.reward_mean)
        return merged

    def _check_same_kind(self, other: Experience, verb: str) -> None:
        """Raise unless another experience is one of the same space, with the same kinds of transitions and rewards."""
        check_type("other", other, Experience)
        if self.space is not other.space and self.space != other.space:
            raise InvalidInputError(f"cannot {verb} `other`: there are two spaces, {self.space} and {other.space}")
        if (self.transitions, self.rewards) != (other.transitions, other.rewards):
            raise InvalidInputError(
                f"cannot {verb} `other`: it has {other.transitions} transitions and {other.rewards} rewards, this one "
                f"{self.transitions} and {self.rewards}"
            )

    def to_text(self) -> str:
        """Return a compact text form, a line per pair: state action count mean deviation successor:weight …

        Pairs stand in the order in which they were first seen. Noisy rewards: `|` and reading:weight … follow, and a
        counted successor has the mean of the rewards on the way there, successor:weight:mean, where it is known. Higher
        moments that came in as sums are not written.
        """
        lines = [f"{HEADER} {self.transitions} {self.rewards} pairs={self.space.num_pairs}"]
        for k in self._first_seen:
            row = _joined(self._rows[k])
            if k in self._readings:
                row += " | " + _joined(self._readings[k])
            lines.append(
                f"{self.space.pair_state[k]} {self.space.pair_action[k]} {self.count[k]} "
                f"{float(self.reward_mean[k])!r} {float(self.reward_deviation[k])!r} {row}"
            )
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str, space: StateActionSpace) -> Experience:
        """Return the experience of a `to_text` form over this space."""
        check_type("text", text, str)
        check_type("space", space, StateActionSpace)
        head, *lines = text.strip().splitlines() or [""]
        if not head.startswith(HEADER + " ") or not head.endswith(f"pairs={space.num_pairs}"):
            raise InvalidInputError(f"expected the header {HEADER!r} for {space.num_pairs} pairs, got {head!r}")
        transitions, rewards = _two("the header", head[len(HEADER) :].split()[:-1], "kinds of transitions and rewards")
        seen = cls(space, transitions=transitions, rewards=rewards)
        for number, line in enumerate(lines, start=2):
            try:
                seen._read_line(line)
            except ValueError as error:
                raise InvalidInputError(f"line {number} of the experience cannot be read: {error}") from error
        return seen

    def _read_line(self, line: str) -> None:
        """Take in a line of the `to_text` form."""
        facts, _, readings = line.partition("|")
        state, action, count, mean, deviation, *row = facts.split()
        k = self.space.pair(int(state), int(action))
        if k in self._rows:
            raise InvalidInputError(f"state {state}, action {action} has a line already")
        self._first_seen[k] = len(self._first_seen)
        self.count[k] = check_count("count", int(count))
        self.reward_mean[k] = check_number("mean", float(mean))
        self.reward_deviation[k] = check_number("deviation", float(deviation), "[0, inf)")
        successors, weights, rewards = _split(row, 3)
        if not self._keeps_edge_rewards and not np.isnan(rewards).all():
            raise InvalidInputError(
                f"only counted, noisy experience has a reward for each successor, got {' '.join(row)!r}"
            )
        order = np.argsort(successors)
        checked = self._checked_row(k, (check_indices("successors", successors), weights))
        self._set_row(k, Edges(*checked, rewards[order]))
        if readings:
            values, weights = _split(readings.split(), 2)
            self._readings[k] = values, weights

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Experience):
            return NotImplemented
        lines = [sorted(seen.to_text().splitlines()) for seen in (self, other)]  # the order of first looks apart
        return self.space == other.space and lines[0] == lines[1]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Experience({self.num_observed} of {self.space.num_pairs} pairs seen in {int(self.count.sum())} "
            f"transitions, {self.transitions} transitions, {self.rewards} rewards)"
        )

    @property
    def _keeps_edge_rewards(self) -> bool:
        return self.transitions == "counted" and self.rewards == "noisy"

    def _set_row(self, k: int, edges: Edges) -> None:
        self._rows[k] = edges
        self._single_successor[k] = edges.successors[0] if edges.successors.size == 1 else -1

    def _frequencies(self, edges: Edges) -> FloatArray:
        return edges.weights / edges.weights.sum() if self.transitions == "counted" else edges.weights

    def _record_reward(self, k: int, value: float) -> None:
        self.count[k] += 1
        self._first_seen.setdefault(k, len(self._first_seen))
        if self.rewards == "deterministic" and self.count[k] > 1:
            return  # the same value again, up to rounding: the first reading stands
        if self.rewards == "noisy":
            self._readings[k] = add_readings(self._readings.get(k, no_readings()), (np.array([value]), np.ones(1)))
        if self._summed is not None:
            self._summed.put([k], merge_moments(self._summed.at([k]), moments_of_one(value)))
        gap = value - self.reward_mean[k]
        self.reward_mean[k] += gap / self.count[k]
        self.reward_deviation[k] += gap * (value - self.reward_mean[k])

    def _check_reward(self, k: int, value: float) -> None:
        known = float(self.reward_mean[k])
        if self.rewards == "noisy" or self.count[k] == 0:
            return
        if abs(value - known) > SAME_REWARD * max(1.0, abs(known)):
            raise ContradictionError(
                f"state {self.space.pair_state[k]}, action {self.space.pair_action[k]} has paid both {known!r} and "
                f'{value!r}; a deterministic reward has one value (use rewards="noisy" for readings around a mean)'
            )

    def _record_row(self, k: int, reward: float, next_state: int, row: Row | None) -> None:
        if self.transitions == "counted":
            kept = reward if self._keeps_edge_rewards else np.nan
            self._set_row(k, self._rows.get(k, NOWHERE).with_reading(next_state, kept))
        elif row is not None:
            if not self._is_known(k, row):
                self._set_row(k, led_to(self._checked_row(k, row)))
        elif k not in self._rows:
            self._set_row(k, led_to((np.array([next_state], dtype=np.int64), np.ones(1))))
        elif next_state not in self._rows[k].successors:
            raise ContradictionError(
                f"state {self.space.pair_state[k]}, action {self.space.pair_action[k]} has led both to "
                f"{self._rows[k].successors.tolist()} and to {next_state}; a revealed row is known after one look "
                '(pass the whole row as `row`, or use transitions="counted")'
            )

    def _is_known(self, k: int, row: Row) -> bool:
        """Return whether this is the row that is known of the pair already, which is what happens most."""
        if k not in self._rows:
            return False
        given = _two("a transition row", row, "(successors, probabilities)")
        return all(_are_equal(mine, theirs) for mine, theirs in zip(self._rows[k].row, given, strict=True))

    def _checked_row(self, k: int, row: Row) -> Row:
        given = _two("a transition row", row, "(successors, probabilities)")
        if k not in self._rows and _is_certain(*given, self.space.num_states):  # most are: without further checks
            return given[0].astype(np.int64), given[1].astype(float)
        successors = check_indices("successors", given[0], self.space.num_states)
        weights = check_numbers("probabilities of successors", given[1])
        order = np.argsort(successors)
        if successors.ndim != 1 or successors.shape != weights.shape or np.any(np.diff(successors[order]) == 0):
            raise InvalidInputError(f"a transition row must have a probability for each successor, got {shown(row)}")
        successors, weights = successors[order], weights[order]
        total = float(weights.sum())
        adds_up = abs(total - 1.0) < 1e-8 if self.transitions == "revealed" else 0.0 < total < np.inf
        if not (adds_up and np.all(weights > 0.0)):
            raise InvalidInputError(f"a transition row must be positive and sum to 1, got {weights.tolist()}")
        if k in self._rows:
            return self._combine(k, led_to((successors, weights))).row
        return successors, weights

    def _combine(self, k: int, edges: Edges) -> Edges:
        """Return the edges of pair k after another look at it: added counts, or the same known row."""
        known = self._rows[k]
        if self.transitions == "counted":
            return known.merge(edges)
        if not (
            np.array_equal(known.successors, edges.successors) and np.allclose(known.weights, edges.weights, rtol=1e-9)
        ):
            raise ContradictionError(
                f"state {self.space.pair_state[k]}, action {self.space.pair_action[k]} has two transition rows: "
                f"{known.successors.tolist()} with {known.weights.tolist()}, and {edges.successors.tolist()} with "
                f"{edges.weights.tolist()}"
            )
        return known


def _checked_pairs(
    space: StateActionSpace, pair: IntArray, count: FloatArray, mean: FloatArray, deviation: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return the sums per pair: distinct pairs, and as many counts, means and deviations of rewards."""
    pair = check_indices("pair", pair, space.num_pairs, shape=(-1,))
    # Beyond 9e15 a float cannot tell a whole number from the next.
    count = check_floats("count", count, (-1,), "[0, 9e15]")
    mean = check_floats("reward_mean", mean, (-1,))
    deviation = check_floats("reward_deviation", deviation, (-1,), "[0, inf)")
    check_one_length(pair=pair, count=count, reward_mean=mean, reward_deviation=deviation)
    _check_distinct("pair", pair)
    return pair, count, mean, deviation


def _checked_moves(
    space: StateActionSpace, pair: IntArray, state: IntArray, count: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the sums per pair and successor."""
    pair = check_indices("move_pair", pair, space.num_pairs, shape=(-1,))
    state = check_indices("move_state", state, space.num_states, shape=(-1,))
    count = check_floats("move_count", count, (-1,), "[0, inf)")
    check_one_length(move_pair=pair, move_state=state, move_count=count)
    _check_distinct("move_pair with move_state", pair * space.num_states + state)
    return pair, state, count


def _check_distinct(name: str, keys: IntArray) -> None:
    """Raise where a key is there twice."""
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(np.diff(keys[order]) == 0)
    if again.size:
        first, second = order[again[0] : again[0] + 2]
        raise InvalidInputError(f"{name} must be distinct, got the same at {first} and {second}; add up their sums")


def _check_moves_fit(pair: IntArray, kept: BoolArray, move_pair: IntArray, total: FloatArray) -> None:
    """Raise for a move of a pair that is not listed, and for a pair that was seen and has led nowhere."""
    unlisted = np.setdiff1d(move_pair, pair)
    if unlisted.size:
        raise InvalidInputError(f"move_pair must name pairs that are in `pair`, got {unlisted[0]}; list it there too")
    nowhere = pair[kept & (total[pair] <= 0.0)]
    if nowhere.size:
        raise InvalidInputError(
            f"move_pair must have each pair that was seen, with a positive move_count; pair {nowhere[0]} leads nowhere"
        )


def _checked_readings(readings: Any, pair: IntArray) -> dict[int, Readings]:
    """Return the readings of pairs that are listed, each sorted values and their weights."""
    check_type("readings", readings, dict)
    listed = set(pair.tolist())
    checked = {}
    for k, given in readings.items():
        if whole(k) not in listed:
            raise InvalidInputError(f"readings must be of pairs that are in `pair`, got {shown(k)}; list it there too")
        values, weights = _two(f"readings[{k}]", given, "(values, weights)")
        values = check_floats(f"readings[{k}][0]", values, (-1,))
        weights = check_floats(f"readings[{k}][1]", weights, values.shape, "[0, inf)")
        order = np.argsort(values, kind="stable")
        checked[int(k)] = values[order], weights[order]
    return checked


def _sums_or_nan(name: str, values: Any, size: int) -> FloatArray:
    """Return sums that need not be known: nan where they are not."""
    if values is None:
        return np.full(size, np.nan)
    array = np.asarray(values, dtype=float)
    if array.shape != (size,):
        raise InvalidInputError(f"{name} must have {size} numbers, got {shown(values)}")
    return array


def _flat(rows: Sequence[Sequence[Any]], num_columns: int) -> list[Any]:
    """Return where each row begins, and its columns, all rows one after the other."""
    columns = zip(*rows, strict=True) if rows else [[np.empty(0)]] * num_columns
    starts = np.cumsum([0, *(row[0].size for row in rows)], dtype=np.int64)
    return [starts, *map(np.concatenate, columns)]


def _is_certain(successors: Any, weights: Any, num_states: int) -> bool:
    """Return whether a row is two arrays of one entry, a state with certainty."""
    if getattr(successors, "shape", None) != (1,) or getattr(weights, "shape", None) != (1,):
        return False
    return bool(successors.dtype.kind == "i" and 0 <= successors[0] < num_states and weights[0] == 1.0)


def _are_equal(known: Any, given: Any) -> bool:
    """Return whether two columns are the same; those of one number, as most are, in a fraction of the time."""
    if known.size == 1 and getattr(given, "shape", None) == (1,):
        return bool(known[0] == given[0])
    return bool(np.array_equal(known, given))


def _two(name: str, value: Any, what: str) -> tuple[Any, Any]:
    """Return the two parts of a value."""
    try:
        first, second = value
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be {what}, got {shown(value)}") from None
    return first, second


def _joined(columns: Iterable[IntArray | FloatArray]) -> str:
    """Return the entries of columns as key:weight or key:weight:mean, without what is nan."""
    entries = zip(*(column.tolist() for column in columns), strict=True)
    return " ".join(":".join(repr(number) for number in entry if number == number) for entry in entries)


def _split(entries: list[str], most: int) -> FloatArray:
    """Return the columns of `_joined`, nan where an entry has fewer than `most` numbers; it has two at least."""
    rows = [[float(number) for number in entry.split(":")] for entry in entries]
    for entry, row in zip(entries, rows, strict=True):
        if not (2 <= len(row) <= most and all(map(isfinite, row))):
            raise InvalidInputError(f"an entry must be 2 to {most} finite numbers with a colon between, got {entry!r}")
    return np.array([row + [np.nan] * (most - len(row)) for row in rows]).reshape(-1, most).T
