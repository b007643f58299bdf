"""Statistics of comparisons: closed forms, censoring, and exponents that are known."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import qposterior as qp
from qposterior.experiments.statistics import (
    beats_table,
    bootstrap,
    bounded_mean,
    censored_times,
    interquartile_mean,
    kaplan_meier_median,
    measured_column,
    prob_beats,
    scaling_exponent,
    summarise_returns,
    summarise_runs,
)
from qposterior.report.compare_report import learning_time_plot
from qposterior.report.plots import Curve


@pytest.mark.parametrize("size", [37, 39])
def test_the_interquartile_mean_is_scipy_s_trimmed_mean(size):
    values = np.random.default_rng(0).lognormal(0.0, 1.0, size)
    np.testing.assert_allclose(interquartile_mean(values), stats.trim_mean(values, 0.25))


def test_bootstrap_intervals_cover_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(100):
        found = bootstrap([rng.exponential(2.0, 40)], lambda groups: float(np.mean(groups[0])), seed=seed)
        hits += found.low <= 2.0 <= found.high
    assert 85 <= hits <= 100  # 95 % nominal, a little less on a skewed sample; P(< 85) is below 1e-3 at 93 %
    with pytest.raises(qp.InvalidInputError, match="at least one run"):
        bootstrap([np.array([])], lambda groups: 0.0)


def test_kaplan_meier_by_hand():
    # Without censoring the median; with it the textbook product: 4 at risk after one is censored at 2.
    assert kaplan_meier_median(np.array([5.0, 1.0, 3.0]), np.ones(3, dtype=bool)) == 3.0
    times = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    seen = np.array([True, False, True, True, False, True])
    # S(1) = 5/6, S(3) = 5/6 · 3/4 = 0.625, S(4) = 0.625 · 2/3 = 0.417.
    assert kaplan_meier_median(times, seen) == 4.0
    # S(3) = 2/3, S(4) = 1/3: those who left early do not count as having survived.
    assert kaplan_meier_median(np.arange(1.0, 6.0), np.array([False, False, True, True, True])) == 4.0
    assert kaplan_meier_median(np.full(4, 9.0), np.array([True, False, False, False])) == np.inf
    # An event and a censoring at the same time: the event comes first.
    assert kaplan_meier_median(np.array([2.0, 2.0]), np.array([False, True])) == 2.0


@pytest.mark.parametrize("limit", [np.inf, 400.0])
def test_exponents_are_recovered_with_and_without_censoring(limit):
    rng = np.random.default_rng(1)
    depths = np.repeat([5.0, 10.0, 20.0, 40.0], 20)
    times = 0.8 * depths**1.7 * rng.lognormal(0.0, 0.3, depths.size)
    censored = np.minimum(times, limit)
    found = scaling_exponent(depths, censored, times <= limit)
    assert found.low < 1.7 < found.high
    assert abs(found.value - 1.7) < 0.12
    if np.isfinite(limit):
        assert np.mean(times > limit) > 0.1
        naive = np.polyfit(np.log(depths), np.log(censored), 1)[0]
        assert naive < found.value - 0.02  # taking the limit for the truth flattens the slope


def test_exponents_need_two_depths_that_were_solved():
    with pytest.raises(qp.InvalidInputError, match="two depths"):
        scaling_exponent(np.array([5.0, 5.0]), np.array([1.0, 2.0]), np.array([True, True]))
    with pytest.raises(qp.InvalidInputError, match="solved runs"):
        scaling_exponent(np.array([5.0, 9.0]), np.array([1.0, 2.0]), np.array([True, False]))


def test_the_probability_to_beat_counts_ties_half_and_censored_runs_last():
    one, other = np.array([1.0, 2.0, np.inf]), np.array([2.0, np.inf])
    # Pairs: 1<2, 1<inf, 2=2, 2<inf, inf>2, inf=inf → (1 + 1 + ½ + 1 + 0 + ½) / 6.
    np.testing.assert_allclose(prob_beats(one, other).value, 4.0 / 6.0)
    # Its interval is that of the plain bootstrap, run by run, over two tasks.
    rng = np.random.default_rng(6)
    groups = [rng.lognormal(shift, 1.0, size) for shift, size in ((0.0, 25), (0.4, 15), (0.3, 20), (0.0, 30))]

    def share(parts):
        return float(np.mean([np.mean(a[:, None] < b) for a, b in zip(parts[:2], parts[2:], strict=True)]))

    found, plain = prob_beats(groups[:2], tuple(groups[2:])), bootstrap(groups, share)
    assert found.value == pytest.approx(plain.value)
    np.testing.assert_allclose([found.low, found.high], [plain.low, plain.high], atol=0.012)  # 2,000 draws each


def test_statistics_agree_with_rliable():
    """Mean, median, interquartile mean and probability of improvement of scores of several tasks, where installed."""
    metrics = pytest.importorskip("rliable.metrics")
    rng = np.random.default_rng(3)
    one, other = rng.lognormal(0.0, 1.0, (23, 4)), rng.lognormal(0.3, 1.0, (31, 4))  # (runs, tasks)
    np.testing.assert_allclose(interquartile_mean(one.ravel()), metrics.aggregate_iqm(one))
    # rliable counts larger scores as better, we count fewer episodes; one column of ties.
    one[:, 2], other[:, 2] = np.round(one[:, 2]), np.round(other[:, 2])
    found = prob_beats(list(one.T), list(other.T))
    np.testing.assert_allclose(found.value, metrics.probability_of_improvement(-one, -other))
    assert found.low < found.value < found.high


def test_who_learns_first_is_counted_over_the_common_depths():
    rows = [("a", 5, 10), ("a", 5, 12), ("a", 9, 50), ("b", 5, 11), ("b", 5, 30), ("b", 20, 3), ("c", 7, 1)]
    runs = pd.DataFrame(rows, columns=["agent", "depth", "learning_time"])
    runs = runs.assign(environment="deep-sea", status="done", episodes=100, seed=0)
    table = beats_table(runs)
    assert list(zip(table["agent"], table["other"], strict=True)) == [("a", "b"), ("b", "a")]
    # Depth 5 alone: 10 < 11, 10 < 30, 12 > 11, 12 < 30.
    np.testing.assert_allclose(table["prob_beats"], [0.75, 0.25])
    runs.loc[4, ["learning_time", "episodes"]] = np.nan, 8  # stopped early without having learned: it still loses
    np.testing.assert_allclose(beats_table(runs)["prob_beats"], [0.75, 0.25])


def test_a_summary_counts_failed_runs_apart_and_censored_ones_where_they_could_have_shown_it():
    rows = [
        ("deep-sea", "a", 5, "done", 300, 80.0),
        ("deep-sea", "a", 5, "done", 300, 120.0),
        ("deep-sea", "a", 5, "timeout", 250, np.nan),
        ("deep-sea", "a", 5, "failed", 7, np.nan),
        ("river-swim", "a", None, "done", 300, np.nan),  # 100 episodes are needed to see that it has learned
        ("river-swim", "b", None, "failed", 300, np.nan),
    ]
    runs = pd.DataFrame(rows, columns=["environment", "agent", "depth", "status", "episodes", "learning_time"])
    table = summarise_runs(runs.assign(seed=range(len(rows)), seconds=2.0))
    assert table[["runs", "failed", "solved"]].to_numpy().tolist() == [[3, 1, 2], [1, 0, 0], [0, 1, 0]]
    np.testing.assert_allclose(table["mean"], [(80 + 120 + 250) / 3, 201, np.nan])
    np.testing.assert_allclose(table["median"], [120, np.inf, np.nan])
    np.testing.assert_allclose(table["iqm"], [(80 + 120 + 250) / 3, 201, np.nan])  # a quarter of 3 is no run
    assert [bounded_mean(row) for row in table.to_dict(orient="records")][1:] == ["≥ 201.0", "–"]
    gymnasium_name = runs[:3].assign(environment="qposterior/DeepSea-v0", seed=0, seconds=1.0)
    np.testing.assert_allclose(censored_times(gymnasium_name)[0], [80, 120, 250])


def test_returns_are_averaged_over_runs_and_over_their_last_quarter():
    rows = [("a", seed, e, 10.0 * seed + e) for seed in (0, 1) for e in range(1, 9)] + [("b", 0, 1, -2.0)]
    episodes = pd.DataFrame(rows, columns=["agent", "seed", "episode", "return"])
    episodes = episodes.assign(depth=None, regret=np.nan, seconds=0.5).sample(frac=1.0, random_state=0)
    assert measured_column(episodes) == "return"
    assert measured_column(episodes.assign(regret=1.0)) == "regret"
    table = summarise_returns(episodes)
    assert table["agent"].tolist() == ["a", "b"]
    assert table["runs"].tolist() == [2, 1]
    np.testing.assert_allclose(table["mean_return"], [9.5, -2.0])  # 4.5 and 14.5
    np.testing.assert_allclose(table["late_return"], [12.5, -2.0])  # episodes 7 and 8
    np.testing.assert_allclose(table["seconds"], [4.0, 0.5])
    assert table["mean_return_low"][0] == pytest.approx(4.5)  # both draws from the worse run: one time in four


def test_a_single_run_has_no_interval():
    found = bootstrap([np.array([77.0])], lambda groups: float(np.mean(groups[0])))
    assert found.value == 77.0
    assert np.isnan([found.low, found.high]).all()
    assert str(found) == "77"
    assert str(prob_beats(np.array([1.0]), np.array([2.0]))) == "1"
    lone = scaling_exponent(np.array([4.0, 8.0]), np.array([10.0, 40.0]), np.array([True, True]))
    assert lone.value == pytest.approx(2.0)
    assert np.isnan(lone.high)
    with pytest.raises(qp.InvalidInputError, match="nan"):
        bootstrap([np.array([np.nan, 1.0])], lambda groups: float(np.mean(groups[0])))


def test_intervals_have_the_width_of_the_standard_error_and_resample_within_groups():
    rng = np.random.default_rng(2)
    groups = [rng.normal(0.0, 1.0, 400), rng.normal(100.0, 1.0, 100)]
    found = bootstrap(groups, lambda parts: float(np.mean([part.mean() for part in parts])))
    # Sd of the mean of the two means; drawn over both groups it would be tens of times as large.
    sd = 0.5 * np.sqrt(groups[0].var() / 400 + groups[1].var() / 100)
    np.testing.assert_allclose([found.value - found.low, found.high - found.value], 1.96 * sd, rtol=0.12)


def test_the_interval_of_an_exponent_is_that_of_least_squares_and_open_where_it_may_be_anything():
    rng = np.random.default_rng(4)
    depths = np.repeat([5.0, 10.0, 20.0], 40)
    times = depths**2.0 * rng.lognormal(0.0, 0.4, depths.size)
    found = scaling_exponent(depths, times, np.ones(depths.size, dtype=bool), draws=400)
    fit = stats.linregress(np.log(depths), np.log(times))
    np.testing.assert_allclose(found.high - found.low, 2 * 1.96 * fit.stderr, rtol=0.2)
    # Equal runs at each depth: every resample within the depths is the same one.
    same = scaling_exponent(np.repeat([5.0, 10.0, 20.0], 5), np.repeat([10.0, 60.0, 100.0], 5), np.ones(15, dtype=bool))
    np.testing.assert_allclose([same.low, same.high], same.value)
    # One run of 20 was solved at the greater depth: a third of the resamples have none, and no upper end.
    depths, solved = np.repeat([4.0, 8.0], 20), np.arange(40) <= 20
    found = scaling_exponent(depths, np.where(depths == 4.0, rng.lognormal(3.0, 0.3, 40), 200.0), solved)
    assert found.low < found.value < found.high == np.inf
    assert str(found).endswith("∞]")


def test_agents_stand_around_their_depth_and_one_alone_on_it():
    rows = [(agent, depth, 3, 3, 9.0, 8.0, 10.0) for agent in "abc" for depth in (10, 20)]
    table = pd.DataFrame(rows, columns=["agent", "depth", "runs", "solved", "mean", "low", "high"])

    def places(part):
        figure = learning_time_plot(part, {}).figure()
        lines = figure.axes[0].lines
        plt.close(figure)
        return np.array([line.get_xdata() for line in lines if line.get_marker() == "o"])

    np.testing.assert_allclose(places(table[table["agent"] == "a"]), [[10.0, 20.0]])
    found = places(table)
    np.testing.assert_allclose(found.mean(axis=0), [10.0, 20.0])
    assert np.all(np.diff(found, axis=0) > 0.1)
    assert np.all(np.abs(found / [10.0, 20.0] - 1.0) < 0.03)


def test_the_band_of_a_mean_curve_is_that_of_its_standard_error():
    curve = Curve.mean_of(np.array([[0.0, 1.0, 2.0], [2.0, 7.0, 2.0], [10.0, 7.0, 2.0]]))
    assert curve.episode.tolist() == [1, 2, 3]
    np.testing.assert_allclose(curve.mean, [4.0, 5.0, 2.0])
    np.testing.assert_allclose(curve.error, [1.96 * np.sqrt(28.0 / 3.0), 1.96 * 2.0, 0.0])
    assert not Curve.mean_of(np.array([[3.0, 4.0]])).error.any()
