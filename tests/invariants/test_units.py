"""Rewards and values in another unit are the same problem: nothing may compare them with 1."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from problems import SHAPES, random_problem
from qposterior.agents.planning import plan


def in_units(shape, unit, number=3):
    """Return the experience of a random problem whose rewards are all multiplied by `unit`."""
    mdp, seen = random_problem(shape, number, num_states=4)
    scaled = qp.Experience(mdp.space)
    for k in seen.observed_pairs:
        row = mdp.transitions.row(int(k))
        state, action = int(mdp.space.pair_state[k]), int(mdp.space.pair_action[k])
        scaled.record(state, action, unit * float(mdp.rewards[k]), int(row[0][0]), row=row)
    return scaled


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**40])
@pytest.mark.parametrize("method", ["exact", "hmc", "smc"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("ignore:do not trust:RuntimeWarning", "ignore:one can circle:RuntimeWarning")
def test_the_unit_of_rewards_does_not_matter(shape, method, unit):
    """A power of two scales without rounding: with the same seed the draws are the same but for the unit.

    Log-densities are not: their constants differ, and so does the last bit of an energy, which trajectories amplify.
    """
    quick = {"settings": qp.HMCSettings(chains=2, warm_up=80, max_iterations=60, block=60)} if method == "hmc" else {}
    one, other = (
        qp.posterior(
            in_units(shape, u), prior=qp.GaussianPrior(scale=4.0 * u), method=method, particles=60, seed=1, **quick
        )
        for u in (1.0, unit)
    )
    np.testing.assert_allclose(other.prob_optimal_table(), one.prob_optimal_table(), atol=1e-9)
    rounding = 1e-9 if method == "exact" else 1e-3
    np.testing.assert_allclose(other.draws / unit, one.draws, rtol=rounding, atol=rounding)


def test_ties_are_relative_to_the_values_of_their_own_state():
    """A table whose states live on different scales: 1e-12 is a tie beside 1, and a difference beside 1e-12."""
    edges = [(s, a, 2, 1.0, 0.0) for s in (0, 1) for a in (0, 1)]
    space = qp.FiniteMDP.from_edges(edges, goal=[2]).space
    share = space.optimal_share(np.array([[1.0, 1.0 + 1e-12, 1e-12, 2e-12], [0.0, 0.0, -3e-20, -1e-20]]))
    np.testing.assert_array_equal(share, [[0.5, 0.5, 0.0, 1.0], [0.5, 0.5, 0.0, 1.0]])
    lowest = space.optimal_share(np.array([[1.0, 1.0 + 1e-12, 1e-12, 2e-12]]), "lowest")
    np.testing.assert_array_equal(lowest, [[1.0, 0.0, 0.0, 1.0]])


def test_plans_do_not_depend_on_the_unit_of_rewards():
    mdp = qp.make_environment("random-mdp", num_states=8, seed=3)
    small = 2.0**-45 * mdp.rewards
    one, other = (
        plan(mdp.space, mdp.transitions, rewards, horizon=12, rng=np.random.default_rng(0))
        for rewards in (mdp.rewards, small)
    )
    np.testing.assert_array_equal(one, other)
