"""Parts of the sampler of the model against exact answers.

Where numbers are drawn, the false-alarm rate of a test is at most 1e-4: bounds are 5 standard errors, or chi-square
quantiles, divided by the number of comparisons.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import gammaln

from hierarchies import make_facts, make_layout, make_state, make_units, scores_of
from qposterior.model.kernels import effects, noise, scales, variates
from qposterior.model.kernels import hierarchy as kernels
from qposterior.model.kernels import rows as row_kernels
from qposterior.model.model_prior import TAILS, ModelPrior

ALARM = 1e-4


def fits(counts, probability, alarm):
    """Whether counts look like draws with these probabilities: chi-square, cells of fewer than 5 expected merged."""
    expected = counts.sum() * np.asarray(probability) / np.sum(probability)
    large = expected >= 5.0
    seen, wanted = np.append(counts[large], counts[~large].sum()), np.append(expected[large], expected[~large].sum())
    if wanted[-1] < 5.0:  # too rare to be tested by itself: with the largest of the others
        top = np.argmax(wanted[:-1])
        seen[top], wanted[top] = seen[top] + seen[-1], wanted[top] + wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    if wanted.size < 2:
        return True
    return ((seen - wanted) ** 2 / wanted).sum() < stats.chi2.ppf(1.0 - alarm, wanted.size - 1)


@pytest.mark.parametrize("concentration", [1e-3, 0.5, 4.0, 40.0, 1e6])
@pytest.mark.parametrize("guests", [1, 2, 7, 48])
def test_table_counts_up_to_48_have_the_exact_law(concentration, guests):
    probability = np.ones(1)  # of 0, 1, … tables: a Bernoulli variate for every guest
    for i in range(guests):
        new = concentration / (concentration + i)
        probability = np.convolve(probability, [1.0 - new, new])
    rng = np.random.default_rng(guests)
    tables = [variates.draw_tables(concentration, float(guests), rng) for _ in range(4000)]
    counts = np.bincount(np.array(tables, dtype=int), minlength=guests + 1)
    assert counts[probability < 1e-12].sum() == 0
    assert fits(counts, probability, ALARM / 20)


@pytest.mark.parametrize("concentration", [1e-3, 1.0, 10.0, 45.0, 300.0, 1e6])
@pytest.mark.parametrize("guests", [49, 75, 130, 1000, 200_000])
def test_table_counts_of_many_readings_have_the_mean_and_the_variance_of_their_law(concentration, guests):
    new = concentration / (concentration + np.arange(guests))
    mean, variance = new.sum(), (new * (1.0 - new)).sum()
    tail = (new * (1.0 - new) * (1.0 - 6.0 * new * (1.0 - new))).sum() / max(variance, 1e-30) ** 2  # excess kurtosis
    rng = np.random.default_rng(guests)
    draws = np.array([variates.draw_tables(concentration, float(guests), rng) for _ in range(4000)])
    assert np.all((draws >= 1.0) & (draws <= guests) & (draws == np.rint(draws)))
    assert abs(draws.mean() - mean) < 5.0 * np.sqrt(variance / draws.size) + 1e-3
    assert abs(draws.var() - variance) < variance * (5.0 * np.sqrt((2.0 + tail) / draws.size) + 0.02) + 1e-2


def test_a_count_that_is_not_whole_is_rounded_and_is_one_table_at_least():
    rng = np.random.default_rng(0)
    assert variates.draw_tables(2.0, 0.2, rng) == 1.0
    assert {variates.draw_tables(1e9, 2.6, rng) for _ in range(50)} == {3.0}


@pytest.mark.parametrize("shape", [1e-3, 0.02, 0.4, 0.95, 1.0, 7.5])
def test_gamma_variates_have_the_exact_distribution_down_to_tiny_shapes(shape):
    rng = np.random.default_rng(3)
    draws = np.array([variates.draw_gamma(shape, rng) for _ in range(8000)])
    for point in np.exp([-55.0, -30.0, -8.0, -1.0, 0.5, 2.0]):
        below = stats.gamma.cdf(point, shape)
        assert abs((draws <= point).mean() - below) < 5.0 * np.sqrt(below * (1.0 - below) / draws.size) + 1e-4


def test_a_gamma_variate_of_shape_zero_is_zero():
    assert variates.draw_gamma(0.0, np.random.default_rng(0)) == 0.0


def test_places_are_drawn_in_proportion_to_weights_of_any_size():
    weights = np.array([0.0, 3.0, 1.0, 0.0, 6.0, 0.0])
    rng = np.random.default_rng(1)
    for scale in (1e-200, 1.0, 1e200):
        drawn = np.bincount([variates.draw_place(scale * weights, rng) for _ in range(3000)], minlength=6)
        assert np.all(drawn[weights == 0.0] == 0)
        assert fits(drawn, weights, ALARM / 6)
        with np.errstate(divide="ignore"):
            logs = np.log(weights) + np.log(scale)
        drawn = np.bincount([variates.draw_index(logs, rng) for _ in range(3000)], minlength=6)
        assert fits(drawn, weights, ALARM / 6)


def tilted(row, value, exponent):
    """Row times exp(t·value), normalised."""
    with np.errstate(divide="ignore"):
        logs = np.log(row) + exponent * value
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def test_a_tilted_row_is_the_exponential_family_member_of_its_worth():
    rng = np.random.default_rng(4)
    tested = 0
    for _ in range(400):
        width = int(rng.integers(2, 7))
        row = rng.dirichlet(np.full(width, 0.5))
        row[rng.random(width) < 0.2] = 0.0
        if np.count_nonzero(row) < 2:
            continue
        row /= row.sum()
        value = rng.normal(size=width) * 10.0 ** rng.integers(-12, 13)
        worth = row @ value
        top = np.abs(value - worth)[row > 0.0].max()
        low, high = (tilted(row, value, t / top) @ value for t in (-3.5, 3.5))
        target = low + (high - low) * rng.random()
        root = optimize.brentq(lambda t, r=row, v=value / top, w=target / top: tilted(r, v, t) @ v - w, -4, 4)
        wanted, moved = tilted(row, value / top, root), row.copy()
        row_kernels.tilt(moved, value, np.zeros(width), worth, target)
        np.testing.assert_allclose(moved, wanted, atol=1e-5)
        assert abs(moved @ value - target) < 1e-6 * top
        assert np.all(moved[row == 0.0] == 0.0)
        tested += 1
    assert tested > 300


def test_what_was_never_seen_keeps_its_share_when_the_rest_is_tilted():
    rng = np.random.default_rng(14)
    for _ in range(50):
        row, value = rng.dirichlet(np.ones(5)), rng.normal(size=5)
        unseen = np.array([0.0, 0.3, 0.0, 0.0, 0.1])
        seen = unseen == 0.0
        part = row[seen] / row[seen].sum()
        target = tilted(part, value[seen], rng.normal(0.0, 0.5)) @ value[seen]
        moved = row.copy()
        row_kernels.tilt(moved, value, unseen, part @ value[seen], target)
        np.testing.assert_array_equal(moved[~seen], row[~seen])
        assert moved[seen].sum() == pytest.approx(row[seen].sum())
        assert moved[seen] @ value[seen] / moved[seen].sum() == pytest.approx(target, abs=1e-6)


def test_a_worth_out_of_reach_tilts_a_row_as_far_as_is_allowed():
    row, value = np.array([0.5, 0.0, 0.3, 0.2]), np.array([1.0, 90.0, 2.0, -4.0])
    for target, left in ((50.0, 2), (-50.0, 3)):
        moved = row.copy()
        row_kernels.tilt(moved, value, np.zeros(4), row @ value, target)
        top = np.abs(value - row @ value)[row > 0.0].max()
        np.testing.assert_allclose(moved, tilted(row, value, np.sign(target) * row_kernels.MOST_TILT / top), rtol=1e-9)
        assert moved.argmax() == left
        assert moved[1] == 0.0


@pytest.mark.parametrize("row", [[1.0, 0.0, 0.0], [0.2, 0.5, 0.3]])
def test_a_row_whose_successors_are_worth_the_same_is_not_tilted(row):
    moved, value = np.array(row), np.array([2.0, 2.0, 2.0])
    row_kernels.tilt(moved, value, np.zeros(3), 2.0, 5.0)
    np.testing.assert_array_equal(moved, row)


def one_state(num_actions, seed):
    """A state of skewed numbers, its last pair untried; layout, facts, units, state."""
    rng = np.random.default_rng(seed)
    layout = make_layout(1, num_actions, 2, np.zeros(2 * num_actions))
    count = rng.integers(1, 9, num_actions) * 1.5
    count[-1] = 0.0
    facts = make_facts(
        layout,
        count=count,
        mean=rng.normal(0.7, 2.0, num_actions),
        worth=rng.normal(-0.4, 3.0, num_actions),
        worth_variance=rng.gamma(2.0, 0.3, num_actions),
    )
    units = make_units(1, reward_unit=np.array([1.7]), worth_unit=np.array([0.6]), offset=np.array([2.5]))
    state = make_state(
        layout,
        variance=rng.gamma(2.0, 1.0, num_actions),
        centre=np.array([[0.3, -1.1]]),
        worth_factor=np.array([1.6]),
        omega=rng.integers(0, kernels.OMEGA_GRID.size, num_actions),
    )
    state.hyper[kernels.MU] = 1.2
    state.hyper[kernels.B] = 2.3
    return layout, facts, units, state


def noise_of(facts, state, k):
    """(2, 2) the variances of the mean reward and of the mean worth of a pair, from their definitions."""
    return np.diag([state.variance[k] / facts.count[k], 1.6 * facts.worth_variance[k]])


def covariance_of(step, share, slope, units):
    """(2, 2) of α = −λ y + τ z, y = κ w."""
    tau, kappa = kernels.TAU_GRID[step] * units.reward_unit[0], kernels.KAPPA_GRID[share] * units.worth_unit[0]
    parts = np.array([[tau, -slope * kappa], [0.0, kappa]])
    return parts @ parts.T


@pytest.mark.parametrize(("step", "share", "slope"), [(8, 12, 0.0), (14, 3, 1.0), (20, 20, -0.5), (0, 0, 0.9)])
@pytest.mark.parametrize("num_actions", [2, 4])
def test_the_evidence_of_a_state_is_the_dense_normal_one(step, share, slope, num_actions):
    layout, facts, units, state = one_state(num_actions, 5)
    tried = range(num_actions - 1)
    broad = np.diag([2.3**2, (30.0 * 0.6) ** 2])
    covariance = np.kron(np.ones((len(tried), len(tried))), broad)
    for k in tried:
        part = slice(2 * k, 2 * k + 2)
        local = kernels.OMEGA_GRID[state.omega[k]]
        covariance[part, part] += local * covariance_of(step, share, slope, units) + noise_of(facts, state, k)
    readings = np.column_stack([facts.mean[:-1], facts.worth[:-1]]).ravel()
    centre = np.array([1.2 - 2.5, 0.0])
    dense = stats.multivariate_normal.logpdf(readings, np.tile(centre, len(tried)), covariance)
    start = effects.centre_prior(0, units, state.hyper)
    covariance = effects.covariance_of(0, step, share, slope, units)
    evidence = scales.log_evidence(0, covariance, start, layout, facts, state)
    precision = np.linalg.inv(broad)
    known = (
        -len(tried) * np.log(2.0 * np.pi) + 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * centre @ precision @ centre
    )
    assert evidence + known == pytest.approx(dense, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("is_varied", [True, False])
@pytest.mark.parametrize("slope", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("num_actions", [2, 40, 600])
def test_the_evidence_over_a_grid_is_that_of_each_of_its_scales(num_actions, slope, is_varied):
    layout, facts, units, state = one_state(num_actions, 17)
    units = units._replace(is_varied=np.array([is_varied]))
    state.hyper[kernels.LAMBDA], state.worth_factor[:] = slope, 1.6
    start = effects.centre_prior(0, units, state.hyper)

    def evidence_of(step, share):
        covariance = effects.covariance_of(0, step, share, slope, units)
        return scales.log_evidence(0, covariance, start, layout, facts, state)

    for is_worth, grid, unit, other in (
        (False, kernels.TAU_GRID, 1.7, kernels.KAPPA_GRID[10] * 0.6),
        (True, kernels.KAPPA_GRID, 0.6, kernels.TAU_GRID[14] * 1.7),
    ):
        found, room = np.full(grid.size, np.nan), np.full((8, grid.size), np.nan)
        squares = (grid * unit) ** 2
        scales.grid_evidence(0, squares, other**2, is_worth, layout, facts, units, state, room, found)
        wanted = [evidence_of(14, i) if is_worth else evidence_of(i, 10) for i in range(grid.size)]
        np.testing.assert_allclose(found - found[0], np.array(wanted) - wanted[0], rtol=1e-8, atol=1e-8)


def test_where_successors_are_worth_the_same_rewards_make_up_for_nothing():
    units = make_units(1, is_varied=np.array([False]))
    assert effects.covariance_of(0, 5, 5, 0.8, units).cross == 0.0


def assert_normal(draws, mean, covariance):
    """Moments within 5 standard errors."""
    num = len(draws)
    sd = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(num))
    correlation = covariance[0, 1] / sd.prod()
    assert np.all(np.abs(draws.var(axis=0) / sd**2 - 1.0) < 5.0 * np.sqrt(2.0 / num))
    assert abs(np.corrcoef(draws.T)[0, 1] - correlation) < 5.0 * (1.0 - correlation**2) / np.sqrt(num) + 1e-3


def test_two_are_drawn_from_the_normal_of_their_precision():
    precision, mean = np.array([[3.0, -1.4], [-1.4, 0.9]]), np.array([0.7, -2.0])
    h, rng = precision @ mean, np.random.default_rng(6)
    law = effects.Canonical(precision[0, 0], precision[0, 1], precision[1, 1], h[0], h[1], 0.0)
    draws = np.array([effects.draw_normal(law, rng.standard_normal(), rng) for _ in range(20_000)])
    assert_normal(draws, mean, np.linalg.inv(precision))
    assert effects.draw_normal(law, 1.5, rng)[1] == pytest.approx(
        mean[1] + 1.5 * np.sqrt(np.linalg.inv(precision)[1, 1])
    )


@pytest.mark.parametrize("slope", [1.0, 0.0, -0.5])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_pair_is_drawn_from_its_law_given_the_centres_and_its_readings(k, slope):
    layout, facts, units, state = one_state(3, 7)  # pair 2 is untried
    prior = kernels.OMEGA_GRID[state.omega[k]] * covariance_of(14, 12, slope, units)
    mean, covariance = state.centre[0], prior
    if facts.count[k] > 0.0:
        gain = prior @ np.linalg.inv(prior + noise_of(facts, state, k))
        mean = mean + gain @ (np.array([facts.mean[k], facts.worth[k]]) - mean)
        covariance = prior - gain @ prior
    law, rng = effects.covariance_of(0, 14, 12, slope, units), np.random.default_rng(8)
    draws = [effects.draw_pair(k, 0, law, rng.standard_normal(), facts, state, rng) for _ in range(20_000)]
    assert_normal(np.array(draws), mean, covariance)
    assert layout.first_pair[-1] == 3


def test_the_law_of_a_scale_and_the_scales_are_drawn_from_their_joint_law():
    rng = np.random.default_rng(9)
    log_prior, table = np.log([0.5, 0.3, 0.2]), rng.dirichlet(np.ones(4), 3)
    evidence = rng.normal(0.0, 2.0, (3, 4)) + np.array([[-900.0], [0.0], [700.0]])  # of three states
    informed = np.array([True, True, False])
    weight = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    wanted = np.exp(log_prior) * (table @ weight[0]) * (table @ weight[1])
    capped = table.copy()  # what lies above the scale next to the most probable one is put there
    for law in capped:
        last = min(law.argmax() + 1, law.size - 1)
        law[last], law[last + 1 :] = law[last:].sum(), 0.0
    of_state = [table * weight[0], table * weight[1], capped]
    joint = np.einsum("h,ha,hb,hc->habc", wanted, *(part / part.sum(axis=1, keepdims=True) for part in of_state))
    counts, place = np.zeros(joint.shape), np.zeros(3, dtype=np.int64)
    for _ in range(20_000):
        chosen = scales.draw_scale(evidence.copy(), kernels.Law(log_prior, table), place, informed, -1, rng)
        counts[chosen, place[0], place[1], place[2]] += 1
    assert fits(counts.ravel(), joint.ravel(), ALARM)


def test_the_last_law_says_that_all_actions_are_alike_and_others_are_half_cauchy():
    prior = ModelPrior(reward_scale=2.0, row_scale=0.25, alike=0.2)
    for (log_weight, table), relative in zip(
        (prior.laws().tau, prior.laws().kappa),
        (kernels.TAU_GRID / 2.0, kernels.CONCENTRATION_GRID**-0.5 / 0.25),
        strict=True,
    ):
        weight = np.exp(log_weight)
        assert weight.sum() == pytest.approx(1.0)
        assert weight[-1] == pytest.approx(0.2)
        np.testing.assert_allclose(table[-1], np.eye(relative.size)[0], atol=1e-29)
        np.testing.assert_allclose(table.sum(axis=1), 1.0)
        of_centre = weight[:-1].reshape(relative.size, -1).sum(axis=1)
        # log-spaced: the mass of a centre is the density of its logarithm, x / (1 + x²)
        np.testing.assert_allclose(
            of_centre / of_centre[0], (relative / (1 + relative**2)) / (relative[0] / (1 + relative[0] ** 2))
        )
        narrowest, widest = table[:-1].reshape(relative.size, -1, relative.size)[:, [0, -1]].transpose(1, 0, 2)
        assert np.all(narrowest.max(axis=1) >= widest.max(axis=1))
    assert kernels.TAU_GRID.argmin() == kernels.KAPPA_GRID.argmin() == 0
    np.testing.assert_allclose(kernels.KAPPA_GRID, (1.0 + kernels.CONCENTRATION_GRID) ** -0.5)
    slope_weight, slopes = prior.laws().slope_log_prior, prior.laws().slope_grid
    assert np.exp(slope_weight).sum() == pytest.approx(1.0)
    assert {0.0, 1.0} <= set(slopes)


def test_the_laws_of_one_action_s_variance_are_inverse_chi_square_and_the_last_is_none():
    log_weight, table = ModelPrior().laws().omega
    assert np.exp(log_weight).sum() == pytest.approx(1.0)
    rng = np.random.default_rng(15)
    for tails, law in zip(TAILS[:-1], table, strict=False):
        draws = tails / rng.chisquare(tails, 100_000)
        place = np.clip(np.round(np.log(draws) / np.log(4.0)) + 1, 0, kernels.OMEGA_GRID.size - 1).astype(int)
        np.testing.assert_allclose(np.bincount(place, minlength=law.size) / draws.size, law, atol=0.008)
    np.testing.assert_allclose(table[-1], kernels.OMEGA_GRID == 1.0, atol=1e-29)


def test_an_action_of_a_larger_variance_has_a_row_of_its_own():
    layout = make_layout(1, kernels.OMEGA_GRID.size, 2, np.zeros(2 * kernels.OMEGA_GRID.size))
    state = make_state(layout, omega=np.arange(kernels.OMEGA_GRID.size))
    state.kappa[:] = 4
    c = kernels.CONCENTRATION_GRID[4]
    for k, local in enumerate(kernels.OMEGA_GRID):
        # A Dirichlet law of concentration c has 1/(1 + c) of the largest variance that a row can have.
        found = row_kernels.concentration_of(k, 0, state)
        assert 1.0 / (1.0 + found) == pytest.approx(
            min(local / (1.0 + c), 1.0 / (1.0 + kernels.CONCENTRATION_GRID[-1]))
        )


def test_rows_are_scored_among_the_successors_that_were_seen():
    base, pooled = np.array([0.2, 0.5, 0.0, 0.3]), np.array([0.1, 0.2, 0.6, 0.1])
    scores = np.zeros(kernels.C0_GRID.size)
    row_kernels.add_mean_row_scores(base, pooled, scores)
    wanted = [stats.dirichlet.logpdf([0.25, 0.5, 0.25], c * base[base > 0.0]) for c in kernels.C0_GRID]
    np.testing.assert_allclose(scores - scores[0], np.array(wanted) - wanted[0])
    nothing = np.zeros(kernels.C0_GRID.size)
    row_kernels.add_mean_row_scores(np.zeros(3), np.full(3, 1.0 / 3.0), nothing)
    np.testing.assert_array_equal(nothing, 0.0)


def dirichlet_row(width, share):
    """Layout, facts and state of one pair with counts, skewed values and p̄."""
    edge_count = np.array([3.0, 0.0, 1.0, 0.5])[:width]
    layout = make_layout(1, 1, width, edge_count)
    facts = make_facts(
        layout, edge_count=edge_count, count=np.array([edge_count.sum()]), value=np.array([0.4, -3.0, 1.0, 9.0])[:width]
    )
    pooled = np.array([0.4, 0.1, 0.3, 0.2])[:width]
    return layout, facts, make_state(layout, kappa=np.array([share]), mean_row=pooled / pooled.sum())


@pytest.mark.parametrize("share", [2, 11, 21])
def test_a_row_is_drawn_from_its_dirichlet_law_with_its_standardised_worth(share):
    layout, facts, state = dirichlet_row(4, share)
    shape = kernels.CONCENTRATION_GRID[share] * state.mean_row + facts.edge_count
    mean, rng, num = shape / shape.sum(), np.random.default_rng(10), 8000
    rows, worths, standard = np.zeros((num, 4)), np.zeros(num), np.zeros(num)
    for i in range(num):
        worths[i], standard[i] = row_kernels.draw_row(0, 0, layout, facts, state, rows[i], rng)
    covariance = (np.diag(mean) - np.outer(mean, mean)) / (shape.sum() + 1.0)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    np.testing.assert_allclose(worths, rows @ facts.value, atol=1e-12)
    for j in range(4):
        bins = np.histogram(stats.beta.cdf(rows[:, j], shape[j], shape.sum() - shape[j]), 8, (0.0, 1.0))[0]
        assert fits(bins, np.ones(8), ALARM / 12) or shape[j] < 0.01  # of which most are 0
    sd = np.sqrt(facts.value @ covariance @ facts.value)
    np.testing.assert_allclose(standard, (worths - mean @ facts.value) / sd, rtol=1e-6, atol=1e-9)


def test_a_row_of_tiny_shapes_is_a_corner_with_probabilities_like_the_shapes():
    edge_count = np.array([0.0, 4e-4, 0.0])
    layout = make_layout(1, 1, 3, edge_count)
    facts = make_facts(layout, edge_count=edge_count, count=np.array([4e-4]), value=np.array([1.0, 2.0, 4.0]))
    state = make_state(layout, kappa=np.array([21]), mean_row=np.array([0.2, 1e-9, 0.8]))
    state.mean_row[:] *= 4e-4 / kernels.CONCENTRATION_GRID[21]  # shapes of about 1e-4: corners in all but a few draws
    rng, rows = np.random.default_rng(11), np.zeros((4000, 3))
    for row in rows:
        row_kernels.draw_row(0, 0, layout, facts, state, row, rng)
    is_corner = rows.max(axis=1) > 1.0 - 1e-9
    assert is_corner.mean() > 0.95
    assert fits(np.bincount(rows.argmax(axis=1), minlength=3), [0.1, 0.5, 0.4], ALARM)


def test_a_single_successor_leaves_the_reward_its_whole_spread():
    layout, facts, state = dirichlet_row(1, 11)
    rng, row = np.random.default_rng(12), np.zeros(1)
    standard = [row_kernels.draw_row(0, 0, layout, facts, state, row, rng)[1] for _ in range(4000)]
    assert stats.kstest(standard, "norm").pvalue > ALARM


def log_dirichlet_multinomial(counts, shape):
    return (
        gammaln(shape.sum(axis=-1))
        - gammaln(shape.sum(axis=-1) + counts.sum())
        + (gammaln(shape + counts) - gammaln(shape)).sum(axis=-1)
    )


def test_the_mean_row_of_a_state_is_that_of_the_dirichlet_multinomial_posterior():
    """Quadrature over p̄ and c₀; 12,000 sweeps, of which every one is nearly independent, within 5 standard errors."""
    counts, base, share = np.array([[6.0, 1.0, 2.0], [1.0, 9.0, 1.0]]), np.array([0.6, 0.3, 0.1]), 9
    c = kernels.CONCENTRATION_GRID[share]
    nodes, weights = np.polynomial.legendre.leggauss(60)
    x, w = 0.5 * (nodes + 1.0), 0.5 * weights
    first, second = (part.ravel() for part in np.meshgrid(x, x, indexing="ij"))
    simplex = np.column_stack([first, (1.0 - first) * second, (1.0 - first) * (1.0 - second)])
    likelihood = sum(log_dirichlet_multinomial(n, c * simplex) for n in counts)
    area = np.outer(w, w).ravel() * (1.0 - first)
    prior = np.array([stats.dirichlet.logpdf(simplex.T, c0 * base) for c0 in kernels.C0_GRID])
    mass = np.exp(prior + likelihood - likelihood.max()) * area
    mass /= mass.sum()
    layout = make_layout(1, 2, 3, counts.ravel())
    facts = make_facts(layout, edge_count=counts.ravel(), count=counts.sum(axis=1), base=base)
    state, rng, num = make_state(layout, kappa=np.array([share])), np.random.default_rng(13), 12_000
    pooled, c0 = np.zeros((num, 3)), np.zeros(num)
    for i in range(num):
        row_kernels.draw_mean_rows(layout, facts, make_units(layout.first_pair.size - 1), state, rng)
        pooled[i], c0[i] = state.mean_row, state.hyper[kernels.C0]
    means = batch_means(np.column_stack([pooled, np.log(pooled), np.log(c0)]))
    wanted = np.concatenate(
        [mass.sum(0) @ simplex, mass.sum(0) @ np.log(simplex), [mass.sum(1) @ np.log(kernels.C0_GRID)]]
    )
    assert np.all(np.abs(means[0] - wanted) < 5.0 * means[1])
    assert np.all(means[1][:3] < 0.01)


def batch_means(trace, num=30):
    """Mean and its standard error by means of batches."""
    parts = trace.reshape(num, -1, trace.shape[1]).mean(axis=1)
    return parts.mean(axis=0), parts.std(axis=0, ddof=1) / np.sqrt(num)


def test_noise_that_is_pooled_in_a_state_does_not_stay_where_it_is():
    """Eight pairs of 256 degrees of freedom: 300 sweeps bring the noise of the state from 1000 to 1, and back."""
    layout = make_layout(1, 8, 1, np.zeros(8))
    facts = make_facts(layout, count=np.full(8, 5.0), deviation=np.full(8, 4.0))
    units = make_units(1, is_pooled=True)
    rng = np.random.default_rng(16)
    means = []
    for begin in (1000.0, 1e-3):
        state = make_state(layout, state_variance=np.array([begin]), variance=np.full(8, begin))
        state.hyper[:3] = 256.0, 0.25, 1.0
        trace = []
        for _ in range(300):
            state.hyper[1:3] = 0.25, 1.0
            noise.draw_noise(layout, facts, units, scores_of(facts, units), state, rng)
            trace.append(np.log(state.state_variance[0]))
        means.append(np.mean(trace[100:]))
    assert abs(means[0] - means[1]) < 0.3
    assert abs(means[0]) < 0.5


@pytest.mark.parametrize("tempering", [1.0, 0.4])
def test_noise_is_drawn_from_its_posterior(tempering):
    r"""One state, three pairs, means given: the variances integrate out, and v_s, ν, η, v₀ are summed over a grid.

    Given v_s a pair is seen with density ∝ (ν v_s)^{ν/2} Γ((ν + n)/2) / Γ(ν/2) / (ν v_s + S)^{(ν + n)/2}.
    """
    layout = make_layout(1, 4, 1, np.zeros(4))
    count, mean, deviation = (
        np.array([4.0, 9.0, 2.0, 5.0]),
        np.array([0.4, -1.0, 2.0, 0.0]),
        np.array([3.0, 30.0, 0.6, 0.0]),
    )
    is_constant = np.array([False, False, False, True])
    facts = make_facts(layout, count=count, mean=mean, deviation=deviation, is_constant=is_constant)
    units = make_units(1, pooled_variance=1.7, tempering=tempering)
    alpha = np.array([0.0, -0.5, 1.8, 0.0])
    square, number = tempering * (deviation + count * (mean - alpha) ** 2)[:3], tempering * count[:3]
    nu, eta = kernels.NU_GRID[:, None, None, None], kernels.ETA_GRID[:, None, None]
    log_level, log_centre = np.linspace(-14, 7, 170)[:, None], np.log(1.7) + np.linspace(-11, 11, 120)
    level = np.exp(log_level)
    log_mass = eta * np.log(eta) - gammaln(eta) - eta * log_centre + eta * log_level - eta * level / np.exp(log_centre)
    log_mass = log_mass - 0.5 * ((log_centre - np.log(1.7)) / 2.0) ** 2
    for s, n in zip(square, number, strict=True):
        half = 0.5 * (nu + n)
        log_mass = log_mass + 0.5 * nu * np.log(nu * level) + gammaln(half) - gammaln(0.5 * nu)
        log_mass = log_mass - half * np.log(nu * level + s)
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    wanted = [np.sum(mass * x) for x in (np.log(nu), np.log(eta), log_level, log_centre)]
    wanted += [np.sum(mass * (nu + n) / (nu * level + s)) for s, n in zip(square, number, strict=True)]  # E 1/v
    state = make_state(layout, alpha=alpha, variance=np.array([1.0, 1.0, 1.0, 1e-9]))
    rng, trace = np.random.default_rng(14), np.zeros((30_000, 7))
    for i in range(-300, trace.shape[0]):
        noise.draw_noise(layout, facts, units, scores_of(facts, units), state, rng)
        if i >= 0:
            trace[i, :4] = np.log([*state.hyper[:2], state.state_variance[0], state.hyper[kernels.V0]])
            trace[i, 4:] = 1.0 / state.variance[:3]
    means, errors = batch_means(trace)
    assert np.all(np.abs(means - wanted) < 5.0 * errors)
    assert np.all(errors[:4] < 0.06)
    assert state.variance[3] == 1e-9
