"""Bins on problems of known truth: intervals with their band, and bins that are the states of a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

import qposterior as qp
from numeric_coverage import judge
from numeric_problems import PROBLEMS

LOGS = 8


@pytest.mark.parametrize("name", ["dosing", "hill"])
def test_values_of_policies_are_covered_with_the_band_of_the_bins(name):
    # Eight logs; intervals of 90 % that hold the truth with probability 0.9 hold it fewer than four times in eight with
    # probability 4e-4, for each of three numbers.
    least = int(binom.ppf(1e-3, LOGS, 0.9))
    assert binom.cdf(least - 1, LOGS, 0.9) < 1e-3
    table = pd.DataFrame([one for seed in range(LOGS) for one in judge(name, 1500, 300 + seed, with_advantages=False)])
    table["covered"] = (table["low"] <= table["truth"]) & (table["truth"] <= table["high"])
    covered = table.groupby(["what", "kind"])["covered"].sum().unstack("kind")
    assert (covered["with"] >= least).all(), covered
    assert covered.loc["gain", "with"] > covered.loc["gain", "without"] or name != "hill"


def small_log(seed, rows=3000):
    """Three states that are numbers: in the middle one it pays to go up."""
    rng = np.random.default_rng(seed)
    state, action = rng.integers(0, 3, rows), rng.integers(0, 2, rows)
    reward = 1.0 * (state == 2) - 0.3 * action + rng.normal(0, 0.5, rows)
    goes = rng.random(rows) < np.where(state == 1, 0.9, 0.5)
    following = np.clip(state + np.where(action == 1, 1, -1) * goes, 0, 2)
    return pd.DataFrame(
        {"state": state, "next_state": following, "action": np.array(["down", "up"])[action], "reward": reward}
    )


def test_bins_of_one_number_each_give_the_answer_of_labels_and_hardly_a_band():
    log = small_log(0)
    as_labels = qp.fit(log, discount=0.9, seed=2)
    as_numbers = qp.fit(
        log.rename(columns={"state": "level", "next_state": "next_level"}), numeric="level", discount=0.9, seed=2
    )
    bins = as_numbers.log.bins
    assert bins.shown == bins.finer == 3
    number = {bins.label(int(bins.find(np.array([[float(x)]]))[0])): str(x) for x in range(3)}
    table = as_numbers.table.assign(state=as_numbers.table["state"].map(number)).set_index(["state", "action"])
    hand = as_labels.table.set_index(["state", "action"]).loc[table.index]
    np.testing.assert_array_equal(table["count"], hand["count"])
    width = hand["upper"] - hand["lower"]
    assert (np.abs(table["mean"] - hand["mean"]) < 0.15 * width).all()  # other draws of the same posterior
    assert {number[state]: action for state, action in as_numbers.policy.items()} == as_labels.policy
    assert as_numbers.aggregation.gain < 0.5 * np.ptp(as_labels.policies.gain)
    assert as_numbers.aggregation.otherwise == []


def test_what_bins_cost_makes_intervals_longer_and_probabilities_less_sure():
    fit = qp.fit(PROBLEMS["hill"].log(3, 1500), numeric="place,speed", discount=0.95, particles=1000, seed=0)
    costs, moved, plain = fit.aggregation, fit.policies, fit.as_if_bins_were_states
    assert costs.gain > 0.0
    assert (costs.value >= costs.gain + costs.logged).all()  # actions are followed by the recommended policy
    assert np.isclose(moved.gain.mean(), plain.gain.mean())  # as often up as down
    low, high = np.quantile(plain.gain, [0.1, 0.9])
    found = np.quantile(moved.gain, [0.05, 0.95])
    np.testing.assert_allclose(found, [low - costs.gain, high + costs.gain], atol=0.25 * costs.gain)
    taken = fit.posterior.space.greedy(plain.recommended.probabilities)
    states = fit.posterior.space.deciding_states
    before, after = (post.prob_optimal_table()[states, taken[states]] for post in (fit.posterior, fit.believed))
    assert (after <= np.maximum(before, 0.5) + 0.05).all()
    assert after.mean() < before.mean()


@pytest.mark.parametrize("rows", [1, 2, 7, 30])
def test_a_short_log_has_few_bins_and_an_answer_or_a_reason(rows):
    fit = qp.fit(PROBLEMS["machine"].log(0, 60).head(rows), numeric="temperature,load,vibration", particles=200)
    assert fit.log.bins.finer <= max(1, rows // 5)
    assert fit.table["count"].sum() == rows
    assert fit.is_settled or fit.policy == {}
