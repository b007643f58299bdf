"""Moments of weighted readings: those of exact fractions, however the readings are cut and in whatever order merged."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qposterior.world.moments import mean_by, merge_means, merge_moments, moments_by, no_moments

SIZE = 3
ROWS = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.floats(-50, 50), st.sampled_from([0.0, 0.25, 1.0, 3.0])), max_size=25
)
NAMES = ("count", "mean", "second", "third", "fourth", "low", "high")


def exact(rows, group):
    """Return count, mean, central sums and extremes of a group, by fractions."""
    found = [(Fraction(r), Fraction(w)) for k, r, w in rows if k == group]
    count = sum((w for _, w in found), Fraction(0))
    mean = sum((w * r for r, w in found), Fraction(0)) / count if count else Fraction(0)
    sums = [sum((w * (r - mean) ** power for r, w in found), Fraction(0)) for power in (2, 3, 4)]
    low, high = (min(r for r, _ in found), max(r for r, _ in found)) if found else (np.inf, -np.inf)
    return [float(value) for value in (count, mean, *sums, low, high)]


def moments(rows):
    keys, values, weights = (
        np.array([row[i] for row in rows], dtype=kind) for i, kind in enumerate((int, float, float))
    )
    return moments_by(keys, values, weights, SIZE)


def assert_exact(found, rows, scale):
    """Each sum up to rounding errors, which grow with the count and the power of the spread of the readings."""
    for group in range(SIZE):
        wanted = exact(rows, group)
        unit = max(wanted[0], 1.0)
        slack = [0.0, scale, unit * scale**2, unit * scale**3, unit * scale**4, 0.0, 0.0]
        for name, value, share in zip(NAMES, wanted, slack, strict=True):
            assert getattr(found, name)[group] == pytest.approx(value, rel=1e-9, abs=1e-12 * share), name


@given(ROWS)
def test_moments_are_those_of_exact_fractions(rows):
    assert_exact(moments(rows), rows, 100.0)


@given(st.lists(ROWS, max_size=4))
def test_any_cut_and_any_order_of_merging_gives_the_same(parts):
    rows = [row for part in parts for row in part]
    batches = [moments(part) for part in parts]
    assert_exact(reduce(merge_moments, batches, no_moments(SIZE)), rows, 100.0)
    assert_exact(reduce(lambda a, b: merge_moments(b, a), reversed(batches), no_moments(SIZE)), rows, 100.0)
    while len(batches) > 1:  # as a tree, the last ones first
        batches.append(merge_moments(batches.pop(), batches.pop(0)))
    assert_exact(batches[0] if batches else no_moments(SIZE), rows, 100.0)


@given(ROWS)
def test_merging_with_nothing_changes_no_bit(rows):
    found = moments(rows)
    for same in (merge_moments(found, no_moments(SIZE)), merge_moments(no_moments(SIZE), found)):
        for name in NAMES:
            np.testing.assert_array_equal(getattr(same, name), getattr(found, name))


@pytest.mark.parametrize("parts", [1, 2, 13])
def test_a_small_skewed_spread_far_from_zero_is_not_lost(parts):
    rng = np.random.default_rng(parts)
    rewards = 1e8 + rng.exponential(size=2000).round(6)
    weights = rng.integers(1, 4, 2000).astype(float)
    rows = [(0, r, w) for r, w in zip(rewards.tolist(), weights.tolist(), strict=True)]
    found = reduce(merge_moments, [moments(rows[i::parts]) for i in range(parts)])
    wanted = exact(rows, 0)
    # Beyond one batch the means that are merged are numbers of 1e8, known to 1e-8.
    for name, value, rel in zip(NAMES[:5], wanted[:5], [0, 1e-15, 1e-7, 1e-6, 1e-6], strict=True):
        np.testing.assert_allclose(getattr(found, name)[0], value, rtol=rel if parts > 1 else min(rel, 1e-11))


def test_equal_readings_have_no_spread():
    found = moments([(0, 0.1, 1.0)] * 7 + [(1, 1e8 + 0.1, 0.3)] * 11)
    assert found.mean[:2].tolist() == [0.1, 1e8 + 0.1]
    for name in ("second", "third", "fourth"):
        np.testing.assert_allclose(getattr(found, name), 0.0, atol=1e-30)


def test_what_is_not_known_or_too_large_stays_unknown():
    unknown = moments([(0, 1.0, 2.0), (1, 5.0, 0.0)])
    for name in ("third", "fourth"):
        getattr(unknown, name)[:] = np.nan
    both = merge_moments(unknown, moments([(0, 3.0, 1.0), (1, 2.0, 1.0), (2, 4.0, 1.0)]))
    assert both.second.tolist() == pytest.approx([8 / 3, 0.0, 0.0])
    assert np.isnan(both.third).tolist() == [True, False, False]  # nothing was counted of the others
    assert np.isnan(both.fourth).tolist() == [True, False, False]
    large = moments([(0, 1e100, 1.0), (0, -1e100, 2.0)])
    assert np.isfinite(large.second[0])
    assert np.isnan(large.fourth[0])
    assert np.isnan(merge_moments(moments([(0, 1e100, 1.0)]), moments([(0, -1e100, 2.0)])).fourth[0])


def test_means_ignore_what_has_no_weight():
    keys, values = np.array([0, 0, 0, 1, 2]), np.array([1.0, 4.0, np.nan, np.nan, 7.0])
    means = mean_by(keys, values, np.array([2.0, 1.0, 0.0, 0.0, 1.0]), 4)
    np.testing.assert_array_equal(means, [2.0, np.nan, 7.0, np.nan])
    one, two = np.array([np.nan, 2.0, 2.0]), np.array([1.0, np.nan, 4.0])
    merged = merge_means(np.array([0.0, 1.0, 1.0]), one, np.array([2.0, 0.0, 3.0]), two)
    np.testing.assert_array_equal(merged, [1.0, 2.0, 3.5])
