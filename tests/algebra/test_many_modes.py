"""The verdicts of `benchmarks/many_modes.py`: right, flagged, a silent miss."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from many_modes import bias, judge
from qposterior.weighted_draws import judged


def answer(share, *, reason=None, order=None):
    """1,000 draws of one state with two actions, of which the first is best in that share of them."""
    space = qp.StateActionSpace.from_mask(np.array([[True, True], [False, False]]), [False, True])
    first = np.arange(1000) < 1000 * share
    first = first[np.random.default_rng(0).permutation(1000)] if order is None else first[order]
    draws = np.column_stack([first, ~first]).astype(float)
    weights = np.full(1000, 1e-3)
    return qp.Posterior(space=space, draws=draws, weights=weights, method="hmc", diagnostics=judged(reason), chains=8)


@pytest.mark.parametrize(
    ("post", "exact", "outcome"),
    [
        (answer(0.8), 0.8, "right"),
        (answer(0.8), 0.855, "right"),  # 4.5 errors are 0.050, and 0.007 is for small counts
        (answer(0.8), 0.9, "silent miss"),
        (answer(0.8), 0.7, "silent miss"),
        (answer(0.8, reason="slow"), 0.9, "flagged"),
        (answer(1.0), 0.999, "right"),
        (answer(1.0), 0.95, "silent miss"),  # draws that never leave a mode are no evidence of being few
        (answer(0.8, order=np.arange(1000)), 0.9, "right"),  # chains that never pass are worth few draws
    ],
)
def test_an_answer_is_judged_by_what_its_draws_are_worth(post, exact, outcome):
    assert judge(post, np.array([exact, 1.0 - exact])).outcome == outcome


def test_a_bias_shows_in_the_mean_over_seeds():
    values = np.random.default_rng(0).normal(0.5, 0.02, (20, 1))
    assert bias(values, np.array([0.5])) < 3.0
    assert bias(values, np.array([0.53])) > 5.0
