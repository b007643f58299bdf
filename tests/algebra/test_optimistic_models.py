"""Drawn models of counted rows: how many successors a pair has, and what is drawn given that, against closed forms."""

from __future__ import annotations

from itertools import combinations
from math import gamma, prod

import numpy as np
import pytest

import qposterior as qp
from qposterior.agents.optimistic_models import OptimisticModels, draw_sizes, fit_weights, size_likelihood

NUM_STATES = 6


def brute(counts, size):
    """p(these looks | K): the mean over all K of the states of a Dirichlet(1, …, 1) over them, look by look."""
    total, subsets = 0.0, list(combinations(range(NUM_STATES), size))
    for states in subsets:
        if set(counts) <= set(states):
            shown = prod(gamma(1 + counts.get(state, 0)) for state in states)
            total += gamma(size) / gamma(size + sum(counts.values())) * shown
    return total / len(subsets)


@pytest.mark.parametrize("counts", [{2: 1}, {2: 5}, {0: 3, 4: 1}, {1: 2, 2: 2, 5: 7}])
def test_the_number_of_successors_is_weighed_as_by_a_sum_over_all_sets_of_states(counts):
    found = size_likelihood(np.array([sum(counts.values())]), np.array([len(counts)]), NUM_STATES)[0]
    wanted = np.array([brute(counts, size) for size in range(1, NUM_STATES + 1)])
    np.testing.assert_allclose(found, wanted / wanted.max(), rtol=1e-10)
    assert np.all(found[: len(counts) - 1] == 0.0)


def test_weights_are_those_of_highest_posterior():
    """At the fit of expectation and maximisation each weight is its prior plus its expected pairs, over all."""
    likelihood = size_likelihood(np.array([1, 4, 9]), np.array([1, 1, 3]), 5)
    number, prior = np.array([2, 5, 1]), np.array([0.1, 0.4, 0.2, 0.2, 0.1])
    weight = np.full(5, 0.2)
    for _ in range(3000):
        share = likelihood * weight
        weight = prior + number @ (share / share.sum(axis=1, keepdims=True))
        weight /= weight.sum()
    assert np.abs(fit_weights(likelihood, number, prior) - weight).max() < 0.02


def test_pairs_that_always_led_to_one_state_are_taken_to_be_deterministic():
    rng = np.random.default_rng(0)
    visits, kinds, action = np.array([3] * 40 + [1] * 4), np.ones(44, dtype=int), np.zeros(44, dtype=int)
    sizes = np.array([draw_sizes(visits, kinds, action, most=30, rng=rng) for _ in range(200)])
    assert (sizes > 1).mean() < 0.02
    # Of another action half the pairs showed two or three successors in three looks: one look settles nothing there.
    kinds, action = np.array([1, 2, 2, 3] * 10 + [1] * 4), np.ones(44, dtype=int)
    both = [np.concatenate(pair) for pair in ((visits, visits), (np.ones(44, dtype=int), kinds), (0 * action, action))]
    sizes = np.array([draw_sizes(*both, most=30, rng=rng) for _ in range(200)])
    assert (sizes[:, 40:44] > 1).mean() < 0.1
    assert (sizes[:, 84:] > 1).mean() > 0.7
    assert np.all(sizes >= both[1])


def drawn_models(counts, rewards, draws=3000):
    """Draws for two actions of state 0: the first has led as often as `counts` says, the second was never tried."""
    space = qp.StateActionSpace.from_mask(np.ones((4, 2)), [False, False, False, True])
    models = OptimisticModels(space, horizon=5, transitions="dirichlet", rewards="noisy", seed=1)
    for state, count in counts.items():
        for number in range(count):
            models.experience.record(0, 0, rewards[state][number % len(rewards[state])], state)
    drawn = [models.draw_model() for _ in range(draws)]
    return np.array([table.matrix.toarray() for table, _ in drawn]), np.array([pays for _, pays in drawn])


def test_drawn_rows_are_those_of_counts_and_pay_what_their_steps_paid():
    rows, pays = drawn_models({1: 2, 2: 6, 0: 4}, {1: [1.0], 2: [-3.0], 0: [0.0]})
    np.testing.assert_allclose(rows.sum(axis=2), 1.0)
    # Three of four states are seen; the fourth is among the successors with a small probability.
    full = rows[:, 0, 3] == 0.0
    assert 0.6 < full.mean() < 0.99
    mean = np.array([5.0, 3.0, 7.0]) / 15.0
    error = np.sqrt(mean * (1 - mean) / 16.0 / full.sum())
    assert np.abs((rows[full, 0, :3].mean(axis=0) - mean) / error).max() < 4.5  # false-alarm rate 7e-6 each, fixed seed
    np.testing.assert_allclose(pays[full, 0], rows[full, 0, 1] - 3.0 * rows[full, 0, 2], atol=1e-12)
    unseen = pays[:, 1:6]
    assert abs(unseen.mean() - 1.0) < 4.5 / np.sqrt(unseen.size)
    assert abs(unseen.std() - 1.0) < 4.5 / np.sqrt(2 * unseen.size)


def test_readings_that_differ_leave_a_mean_open_and_those_that_agree_do_not():
    _, pays = drawn_models({1: 8}, {1: [1.0, 2.0]})
    # Σ (r − mean)² = 2 and a pooled variance of 2/7: sd √(2 + 2/7) / 8, half the draws or more.
    spread = pays[:, 0] - 1.5
    noisy = np.abs(spread) > 1e-12
    assert noisy.mean() > 0.99
    assert abs(spread[noisy].std() / (np.sqrt(2 + 2 / 7) / 8) - 1.0) < 4.5 / np.sqrt(2 * noisy.sum())
    _, same = drawn_models({1: 8}, {1: [1.5]}, draws=50)
    assert set(same[:, 0]) == {1.5}
