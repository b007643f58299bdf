"""Where to cut numbers into bins: a tree of scikit-learn on what actions are worth, learned on a sample of the rows.

States that are worth the same under every action may share a bin without any loss (a Q*-irrelevant abstraction: Li,
Walsh and Littman 2006). So what actions are worth is learned first, by fitted Q iteration with extremely randomised
trees (Ernst, Geurts and Wehenkel 2005), on one half of the sample; one tree is then fitted to the values of all actions
at once. On the other half is found out how many bins predict rewards and the value of successors best.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qposterior.errors import InvalidInputError, MissingExtraError
from qposterior.logs.bins import Bins, Split
from qposterior.logs.raw import Numeric
from qposterior.logs.sample import Sample
from qposterior.world.arrays import FloatArray, sum_by

READINGS = 10
"""Rows, of the half that bins are learned on, that the finest bin has at least for each action, or in all in a short
log."""

MOST_SHOWN = 64
FEWEST_SHOWN = 4
REFINED = 2
"""Finer bins are so many times as many as those shown, and these so many times the coarser ones."""

FORESTS, TREES, LEAF = 3, 20, 10
"""Rounds of fitted Q iteration after which trees are grown anew, trees of an action, and least rows of their leaves."""

MOST_SWEEPS, SETTLED = 500, 1e-3
"""Sweeps over trees that stand, and the change relative to the spread of the values at which they end."""

SLACK = 0.02
"""Share of the rows of a bin by which a threshold may move so that it is a round number."""

FAR = 0.99
"""The discount by which bins are learned where none is given, or 1: values only say where to cut."""


def learn_bins(sample: Sample, numeric: Numeric) -> Bins:
    """Return the bins of a sample; the same sample and seed give the same."""
    tree = import_tree()
    if not len(sample.x):
        raise InvalidInputError("there are no rows to learn bins from; a log has a row per decision")
    columns, discount, seed = numeric.columns, numeric.discount, numeric.seed
    rng = np.random.default_rng(seed)
    learns = np.zeros(len(sample.x), dtype=bool)
    learns[rng.permutation(len(sample.x))[: (len(sample.x) + 1) // 2]] = True
    learn, choose = sample.part(learns), sample.part(~learns)
    values = FittedValues(learn, min(discount or FAR, FAR), rng)
    number = np.unique(sample.action).size
    finest = tree.DecisionTreeRegressor(
        max_leaf_nodes=REFINED * MOST_SHOWN,
        min_samples_leaf=min(READINGS * number, max(READINGS, len(learn.x) // (4 * FEWEST_SHOWN))),
        random_state=int(rng.integers(2**31)),
    ).fit(values.code(learn.x), _outputs(values.of(learn.x)))
    splits = _splits(finest.tree_, values, learn.x)
    bins = Bins(
        columns=columns,
        splits=splits,
        coarser=1,
        shown=1,
        low=tuple(np.quantile(sample.x, 0.01, axis=0).tolist()),
        high=tuple(np.quantile(sample.x, 0.99, axis=0).tolist()),
    )
    shown = _best_number(bins, values, learn, choose)
    return Bins(
        columns=columns,
        splits=splits[: REFINED * shown - 1],
        coarser=shown if _is_exact(bins, learn) else max(1, shown // REFINED),
        shown=shown,
        low=bins.low,
        high=bins.high,
    )


def import_tree() -> Any:
    """Return scikit-learn's trees, or say what to install."""
    try:
        from sklearn import tree
    except ImportError as error:
        raise MissingExtraError("--numeric", "numeric") from error
    return tree


class FittedValues:
    """What actions are worth at any numbers, by fitted Q iteration over a sample, with the best ones from then on.

    Or with those of a policy, given as `after`, the ``(N, actions)`` probabilities at the successors.

    Numbers go into trees as their ranks, which trees do not mind: neither an offset nor a long tail matters then, and
    nothing is lost where scikit-learn takes them in single precision.
    """

    def __init__(
        self,
        sample: Sample,
        discount: float,
        rng: np.random.Generator,
        *,
        after: FloatArray | None = None,
        leaf: int = LEAF,
    ) -> None:
        self.after, self.leaf = after, leaf
        self.discount = discount
        self.ranks = [np.unique(column) for column in sample.x.T]
        self.actions = np.unique(sample.action)
        here, there = self.code(sample.x), self.code(sample.following)
        self.of_action = [sample.action == action for action in self.actions]
        ahead = np.zeros(len(sample.x))  # discounted value of the successor
        goes_on = np.where(sample.ended, 0.0, discount)
        for _ in range(FORESTS):
            self._grow(here, sample.reward + ahead, rng)
            ahead = goes_on * self._settled(here, there, sample.reward, goes_on)
        self._grow(here, sample.reward + ahead, rng)

    def code(self, x: FloatArray) -> FloatArray:
        """Return the ranks of numbers among those that were learned from; between two of them lies a half."""
        ranks = [
            0.5 * (np.searchsorted(known, column) + np.searchsorted(known, column, side="right") - 1)
            for known, column in zip(self.ranks, x.T, strict=True)
        ]
        return np.stack(ranks, axis=1)

    def of(self, x: FloatArray) -> FloatArray:
        """Return ``(N, actions)`` values."""
        code = self.code(x)
        return np.stack([forest.predict(code) for forest in self.forests], axis=1)

    def targets(self, sample: Sample) -> FloatArray:
        """Return ``(N,)`` r + γ V(x′)."""
        return np.asarray(sample.reward + self.discount * ~sample.ended * self._value(self.of(sample.following)))

    def _value(self, q: FloatArray) -> FloatArray:
        return np.asarray(q.max(axis=1) if self.after is None else (q * self.after).sum(axis=1))

    def _grow(self, here: FloatArray, target: FloatArray, rng: np.random.Generator) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        self.forests = [
            ExtraTreesRegressor(TREES, min_samples_leaf=self.leaf, random_state=int(rng.integers(2**31))).fit(
                here[rows], target[rows]
            )
            for rows in self.of_action
        ]

    def _settled(self, here: FloatArray, there: FloatArray, reward: FloatArray, goes_on: FloatArray) -> FloatArray:
        """Return ``(N,)`` values of the successors, solved over trees that stand."""
        leaves = [forest.apply(here[rows]) for forest, rows in zip(self.forests, self.of_action, strict=True)]
        after = [forest.apply(there) for forest in self.forests]
        sizes = [[tree.tree_.node_count for tree in forest.estimators_] for forest in self.forests]
        value = np.zeros(len(reward))
        for _ in range(MOST_SWEEPS):
            target, q = reward + goes_on * value, np.empty((len(reward), len(self.forests)))
            for a, rows in enumerate(self.of_action):
                means = [
                    sum_by(leaves[a][:, t], target[rows], size)
                    / np.maximum(np.bincount(leaves[a][:, t], minlength=size), 1)
                    for t, size in enumerate(sizes[a])
                ]
                q[:, a] = np.mean([mean[after[a][:, t]] for t, mean in enumerate(means)], axis=0)
            before, value = value, self._value(q)
            if float(np.abs(before - value).max()) <= SETTLED * float(np.ptp(value)):
                break
        return value


def _outputs(values: FloatArray) -> FloatArray:
    """Return what the tree is fitted to: values, and what actions are worth beside each other, of equal weight."""
    mean = values.mean(axis=1, keepdims=True)
    ahead = values - mean
    spread = math.sqrt(float(ahead.var(axis=0).sum())) or 1.0
    return np.hstack([mean / (mean.std() or 1.0), ahead / spread])


def _splits(tree: Any, values: FittedValues, x: FloatArray) -> tuple[Split, ...]:
    """Return the splits in the order in which they were made, with round thresholds.

    scikit-learn grows a tree of bounded size best first and numbers nodes as they are made: split j makes the nodes
    2j + 1 and 2j + 2, so that the tree with fewer leaves is its beginning.
    """
    nodes = sorted(np.flatnonzero(tree.children_left >= 0), key=lambda node: tree.children_left[node])
    splits, at = list[Split](), np.zeros(len(x), dtype=np.int64)
    for j, node in enumerate(nodes):
        assert (tree.children_left[node], tree.children_right[node]) == (2 * j + 1, 2 * j + 2)
        column, rows = int(tree.feature[node]), np.flatnonzero(at == node)
        known = values.ranks[column]
        cut = known[math.floor(tree.threshold[node])]  # the last number on the left
        threshold = _round_cut(np.sort(x[rows, column]), cut)
        splits.append(Split(int(node), column, threshold))
        at[rows] = np.where(x[rows, column] <= threshold, 2 * j + 1, 2 * j + 2)
    return tuple(splits)


def _round_cut(numbers: FloatArray, cut: float) -> float:
    """Return the roundest number that cuts sorted numbers at about the same place: up to `cut`, or above it."""
    place = int(np.searchsorted(numbers, cut, side="right"))
    slack = int(SLACK * len(numbers))
    low = numbers[min(max(place - 1 - slack, 0), len(numbers) - 1)]
    high = numbers[min(max(place + slack, 0), len(numbers) - 1)]
    return roundest(float(low), float(high)) if low < high else float(cut)


def roundest(low: float, high: float) -> float:
    """Return a number of few digits with low ≤ it < high, the middle one of those."""
    for digits in range(-math.ceil(math.log10(high - low)) - 1, 18):
        middle = round(0.5 * (low + high), digits)
        for number in (middle, round(middle + 10.0**-digits, digits), round(middle - 10.0**-digits, digits)):
            if low <= number < high:
                return number
    return low


def _is_exact(bins: Bins, sample: Sample) -> bool:
    """Return whether each bin is one state, so that none can be finer."""
    return bins.finer == len(np.unique(sample.x, axis=0))


def _best_number(bins: Bins, values: FittedValues, learn: Sample, choose: Sample) -> int:
    """Return how many bins predict best, on rows that they were not learned from, what actions are worth.

    What a row says of that is r + γ V(x′), with the V of the half that bins are learned on. Means of the bins and
    actions of that half predict it.
    """
    if _is_exact(bins, learn):
        return bins.finer
    if not len(choose.x):
        return 1
    targets, most = [values.targets(part) for part in (learn, choose)], max(1, bins.finer // REFINED)
    number_of_actions = 1 + int(max(learn.action.max(), choose.action.max()))
    numbers = sorted({min(most, round(FEWEST_SHOWN * 2 ** (k / 2))) for k in range(12)})
    errors = []
    for number in numbers:
        pairs = [bins.find(part.x, number) * number_of_actions + part.action for part in (learn, choose)]
        size = (2 * bins.finer + 1) * number_of_actions
        count = np.bincount(pairs[0], minlength=size)
        mean = sum_by(pairs[0], targets[0], size) / np.maximum(count, 1)
        errors.append(float(np.mean((targets[1] - mean[pairs[1]]) ** 2)))
    return int(numbers[int(np.argmin(errors))])
