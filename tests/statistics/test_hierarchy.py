"""The sampler of the model where its model is right: parameters from the prior, readings from the parameters, sweeps.

A sweep that leaves the posterior invariant leaves the joint law of parameters and readings as it was (Geweke 2004), so
that after some sweeps from the true parameters every parameter still has its prior law and every reading its law given
them. All statistics are chi-squares of 8 cells or of a grid; the false-alarm rate of a test is 1e-4 over all of them.

Exact, and tested as such: scales, slope, centres, mean rewards and noise given normal readings of reward and
worth; p̄, c₀ and rows given counts. Not exact by design: worth is a mean of successors, not a normal reading; rows are
tilted to it; units, m and W are taken from the log. What that does is tested by coverage on simulated logs.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hierarchies import make_facts, make_layout, make_state, make_units, plain_space, record_all, scores_of
from qposterior.model.hierarchy import build_hierarchy
from qposterior.model.kernels import gibbs, noise
from qposterior.model.kernels import hierarchy as kernels
from qposterior.model.kernels import rows as row_kernels
from qposterior.model.model_prior import ModelPrior

ALARM = 1e-4
CELLS = 8


def assert_even(shares, alarm):
    """Raise unless (N, m) numbers look uniform on [0, 1], each column by itself."""
    expected = len(shares) / CELLS
    counts = np.array([np.histogram(column, CELLS, (0.0, 1.0))[0] for column in np.transpose(shares)])
    statistics = ((counts - expected) ** 2 / expected).sum(axis=1)
    np.testing.assert_array_less(statistics, stats.chi2.ppf(1.0 - alarm / len(counts), CELLS - 1))


def randomised(places, probability, rng):
    """Turn draws of a discrete law into uniform ones."""
    below = np.concatenate([[0.0], np.cumsum(probability)])[places]
    return below + rng.random(np.shape(places)) * np.asarray(probability)[places]


STATES, ACTIONS = 5, 3
WORTH_NOISE, WORTH_FREEDOM = 0.4, 5.0


def readings_of_normal_rewards_and_worth(laws, rng):
    """Draw a state of the chain from the prior, and readings given it. μ = 0: its prior is flat, all else invariant."""
    pairs = STATES * ACTIONS
    owner = np.repeat(np.arange(STATES), ACTIONS)
    layout = make_layout(STATES, ACTIONS, 1, np.zeros(pairs))
    units = make_units(STATES, worth_freedom=np.full(STATES, WORTH_FREEDOM), pooled_variance=0.8, centre_spread=2.0)
    state = make_state(layout)
    width_law = kernels.B_GRID / (1.0 + kernels.B_GRID**2)
    hyper = state.hyper
    hyper[kernels.NU], hyper[kernels.ETA] = rng.choice(kernels.NU_GRID), rng.choice(kernels.ETA_GRID)
    hyper[kernels.V0] = 0.8 * np.exp(2.0 * rng.standard_normal())
    hyper[kernels.MU], hyper[kernels.B] = 0.0, 2.0 * rng.choice(kernels.B_GRID, p=width_law / width_law.sum())
    hyper[kernels.LAMBDA] = rng.choice(laws.slope_grid, p=np.exp(laws.slope_log_prior))
    for place, law, name in ((state.tau, laws.tau, kernels.TAU_LAW), (state.kappa, laws.kappa, kernels.KAPPA_LAW)):
        hyper[name] = rng.choice(law.log_prior.size, p=np.exp(law.log_prior))
        place[:] = rng.choice(law.table.shape[1], STATES, p=law.table[int(hyper[name])])
    hyper[kernels.OMEGA_LAW] = rng.choice(laws.omega.log_prior.size, p=np.exp(laws.omega.log_prior))
    state.omega[:] = rng.choice(kernels.OMEGA_GRID.size, pairs, p=laws.omega.table[int(hyper[kernels.OMEGA_LAW])])
    state.worth_factor[:] = WORTH_FREEDOM / rng.chisquare(WORTH_FREEDOM, STATES)
    state.state_variance[:] = rng.gamma(hyper[kernels.ETA], hyper[kernels.V0] / hyper[kernels.ETA], STATES)
    state.variance[:] = hyper[kernels.NU] * state.state_variance[owner] / rng.chisquare(hyper[kernels.NU], pairs)
    state.centre[:] = rng.standard_normal((STATES, 2)) * [hyper[kernels.B], 30.0]
    z, w = rng.standard_normal((2, pairs)) * np.sqrt(kernels.OMEGA_GRID[state.omega])
    worth_gap = kernels.KAPPA_GRID[state.kappa][owner] * w
    worth = state.centre[owner, 1] + worth_gap
    reward_gap = kernels.TAU_GRID[state.tau][owner] * z - hyper[kernels.LAMBDA] * worth_gap
    state.alpha[:] = state.centre[owner, 0] + reward_gap
    count = rng.integers(1, 7, pairs).astype(float)
    error = np.sqrt(state.worth_factor[owner] * WORTH_NOISE / count)
    facts = make_facts(
        layout,
        count=count,
        mean=state.alpha + np.sqrt(state.variance / count) * rng.standard_normal(pairs),
        deviation=state.variance * np.where(count > 1, rng.chisquare(np.maximum(count - 1, 1)), 0.0),
        worth=worth + error * rng.standard_normal(pairs),
        worth_variance=WORTH_NOISE / count,
    )
    return layout, facts, units, state


@pytest.mark.parametrize("hyper_given", [False, True])
def test_scales_centres_rewards_and_noise_keep_their_joint_law(hyper_given):
    laws, rng = ModelPrior().laws(), np.random.default_rng(20)
    rows = []
    owner, width_law = np.repeat(np.arange(STATES), ACTIONS), kernels.B_GRID / (1.0 + kernels.B_GRID**2)
    for _ in range(1200):
        layout, facts, units, state = readings_of_normal_rewards_and_worth(laws, rng)
        units, before = units._replace(hyper_given=hyper_given), state.hyper.copy()
        for _ in range(6):
            gibbs.sweep_scales(layout, facts, units, laws, state, rng)
            noise.draw_noise(layout, facts, units, scores_of(facts, units), state, rng)
        if hyper_given:
            np.testing.assert_array_equal(state.hyper, before)
        hyper, first = state.hyper, slice(0, 3)  # parameters of the first three states or pairs
        tau = int(hyper[kernels.TAU_LAW]), int(hyper[kernels.KAPPA_LAW])
        spread = np.hypot(kernels.TAU_GRID[state.tau], hyper[kernels.LAMBDA] * kernels.KAPPA_GRID[state.kappa])[owner]
        gap = (state.alpha - state.centre[owner, 0]) / (spread * np.sqrt(kernels.OMEGA_GRID[state.omega]))
        tails = int(hyper[kernels.OMEGA_LAW])
        freedom = facts.count[first] - 1.0
        share = stats.chi2.cdf(facts.deviation[first] / state.variance[first], np.maximum(freedom, 1.0))
        deviation = np.where(freedom > 0.0, share, rng.random(3))
        rows.append(
            [
                *(randomised(place, np.exp(law[0]), rng) for place, law in zip(tau, laws[:2], strict=True)),
                *randomised(state.tau[first], laws.tau.table[tau[0]], rng),
                *randomised(state.kappa[first], laws.kappa.table[tau[1]], rng),
                randomised(tails, np.exp(laws.omega.log_prior), rng),
                *randomised(state.omega[first], laws.omega.table[tails], rng),
                *stats.chi2.sf(WORTH_FREEDOM / state.worth_factor[first], WORTH_FREEDOM),
                randomised(np.searchsorted(laws.slope_grid, hyper[kernels.LAMBDA]), np.exp(laws.slope_log_prior), rng),
                randomised(np.searchsorted(kernels.NU_GRID, hyper[kernels.NU]), np.full(7, 1 / 7), rng),
                randomised(np.searchsorted(kernels.ETA_GRID, hyper[kernels.ETA]), np.full(7, 1 / 7), rng),
                randomised(np.abs(2 * kernels.B_GRID - hyper[kernels.B]).argmin(), width_law / width_law.sum(), rng),
                stats.norm.cdf(np.log(hyper[kernels.V0] / 0.8) / 2.0),
                *stats.gamma.cdf(
                    state.state_variance[first] * hyper[kernels.ETA] / hyper[kernels.V0], hyper[kernels.ETA]
                ),
                *stats.chi2.sf(hyper[kernels.NU] * state.state_variance[0] / state.variance[first], hyper[kernels.NU]),
                *stats.norm.cdf((state.centre[first, 0] - hyper[kernels.MU]) / hyper[kernels.B]),
                *stats.norm.cdf(state.centre[first, 1] / 30.0),
                *stats.norm.cdf(gap[first]),
                *stats.norm.cdf(
                    (facts.mean - state.alpha)[first] / np.sqrt(state.variance[first] / facts.count[first])
                ),
                *deviation,
            ]
        )
    assert_even(rows, ALARM)


def test_tables_mean_rows_and_rows_keep_their_joint_law():
    """Concentrations are fixed: what rows tell of them is left out by the sampler. One state was never read.

    Shares below e^−60 are drawn as 0: a share of that law is looked at only where such ones are rare.
    """
    rng, width, base = np.random.default_rng(21), 4, np.array([0.3, 0.27, 0.23, 0.2])
    num_states, num_actions, results = 4, 2, []
    c = kernels.CONCENTRATION_GRID
    for _ in range(2500):
        share = rng.integers(4, 18, num_states)
        c0 = rng.choice(kernels.C0_GRID)
        pooled = rng.dirichlet(c0 * base, num_states) + 1e-30
        rows = np.array(
            [[rng.dirichlet(c[share[s]] * pooled[s] + 1e-30) for _ in range(num_actions)] for s in range(num_states)]
        )
        number = rng.integers(1, 25, (num_states, num_actions))
        number[-1] = 0
        edge_count = rng.multinomial(number, rows).astype(float)
        read = np.repeat([1.0] * (num_states - 1) + [0.0], width)
        layout = make_layout(num_states, num_actions, width, edge_count.ravel())
        facts = make_facts(
            layout,
            edge_count=edge_count.ravel(),
            count=number.ravel().astype(float),
            base=np.tile(base, num_states) * read,
            unseen_odds=1.0 - read,
            value=np.tile([0.0, 1.0, 3.0, -2.0], num_states),
        )
        state = make_state(layout, kappa=share, mean_row=pooled.ravel().copy())
        state.hyper[kernels.C0] = c0
        for _ in range(5):
            row_kernels.draw_mean_rows(layout, facts, make_units(layout.first_pair.size - 1), state, rng)
        row, new = np.zeros(width), state.hyper[kernels.C0]
        row_kernels.draw_row(1, 0, layout, facts, state, row, rng)
        mean_row = state.mean_row[:width]
        shape = c[share[0]] * mean_row
        share_of_row = stats.beta.cdf(row, shape, shape.sum() - shape)
        below = stats.binom.cdf(edge_count[0, 1] - 1, number[0, 1], row)
        chance = stats.binom.pmf(edge_count[0, 1], number[0, 1], row)
        results.append(
            [
                randomised(
                    np.searchsorted(kernels.C0_GRID, new), np.full(kernels.C0_GRID.size, 1 / kernels.C0_GRID.size), rng
                ),
                *stats.beta.cdf(mean_row, new * base, new * (1.0 - base)),
                *np.where(np.minimum(shape, shape.sum() - shape) > 0.3, share_of_row, rng.random(width)),
                *(below + rng.random(width) * chance),
            ]
        )
    assert_even(results, ALARM)


def test_a_state_that_was_never_read_says_nothing_of_rows_elsewhere():
    """log Γ(c₀) of such a state alone would drive c₀ to the end of its grid."""
    rng = np.random.default_rng(22)
    edge_count = np.concatenate([rng.multinomial(30, [0.97, 0.01, 0.02], 2).ravel(), np.zeros(6)]).astype(float)
    layout = make_layout(2, 2, 3, edge_count)
    base = np.array([0.2, 0.5, 0.3, 0.0, 0.0, 0.0])
    facts = make_facts(layout, edge_count=edge_count, base=base, unseen_odds=(base == 0.0) * 1.0)
    state, seen = make_state(layout), []
    for _ in range(300):
        row_kernels.draw_mean_rows(layout, facts, make_units(layout.first_pair.size - 1), state, rng)
        seen.append(state.hyper[kernels.C0])
    assert np.median(seen) < 30.0
    np.testing.assert_allclose(state.mean_row[3:], 1.0 / 3.0)


def simulated(rng, *, num_states, num_actions, readings, concentration, tau):
    """A log from the model itself, of every action but the last of each state; true mean rewards and rows."""
    centre, mean = rng.normal(0.0, 2.0, num_states), np.zeros((num_states, num_actions))
    rows, steps = np.zeros((num_states, num_actions, num_states)), []
    for s in range(num_states):
        mean_row = rng.dirichlet(np.ones(num_states))
        mean[s] = rng.normal(centre[s], tau, num_actions)
        rows[s] = rng.dirichlet(concentration * mean_row + 1e-9, num_actions)
        for a in range(num_actions - 1):
            successors = rng.choice(num_states, readings, p=rows[s, a])
            steps += [(s, a, rng.normal(mean[s, a]), t) for t in successors]
    return record_all(plain_space(num_states, num_actions), steps), mean, rows


@pytest.mark.parametrize(("concentration", "tau"), [(1e4, 1e-3), (30.0, 0.5), (3.0, 3.0)])
def test_intervals_cover_what_they_should(concentration, tau):
    """90 % intervals of rewards and worth, of tried and of untried pairs, in 48 logs of 8 states.

    Not exact: .8 is a bound for an approximation that is fit for use. Over 100 logs of the last kind .85 to .89 were
    covered, with standard errors of .13 / √logs for untried pairs: .8 is then 2.6 to 4.8 of them away.
    """
    rng, value = np.random.default_rng(23), np.random.default_rng(0).normal(0.0, 3.0, 8)
    covered, untried = [], []
    for _ in range(48):
        seen, mean, rows = simulated(
            rng, num_states=8, num_actions=3, readings=20, concentration=concentration, tau=tau
        )
        hierarchy, prior = build_hierarchy(seen.sums(), value), ModelPrior()
        models = prior.run(hierarchy, 60, rng)
        worth = np.add.reduceat(models.rows * value[models.successor], models.first_edge[:-1], axis=1)
        for draws, truth in ((models.rewards, mean), (worth, rows @ value)):
            low, high = np.quantile(draws, [0.05, 0.95], axis=0).reshape(2, 8, 3)
            inside = (low <= truth) & (truth <= high)
            covered.append(inside[:, :-1].mean())
            untried.append(inside[:, -1].mean())
    for shares in (covered[::2], covered[1::2], untried[::2], untried[1::2]):
        assert 0.8 <= np.mean(shares) <= 1.0


def alike_but_for_rewards(rng, num_states=8):
    """Rows of a state are the same for all actions, rewards are not; the last action was never tried."""
    steps = []
    for s in range(num_states):
        row, mean = rng.dirichlet(np.ones(num_states)), rng.normal(size=2) + 3.0 * rng.normal()
        steps += [(s, a, mean[a] + 0.5 * rng.normal(), t) for a in (0, 1) for t in rng.choice(num_states, 20, p=row)]
    return record_all(plain_space(num_states, 3), steps)


@pytest.mark.parametrize("unread", [False, True])
def test_rewards_of_untried_actions_differ_by_the_spread_of_the_tried_ones_whatever_the_slope(unread):
    """They are N(β, τ²): no more than the law says, also where nothing is known of the worth of a state's rows."""
    seen = alike_but_for_rewards(np.random.default_rng(24))
    if unread:
        kept = [k for k in seen.observed_pairs if seen.space.pair_state[k] != 3]
        part = record_all(seen.space, [])
        for k in kept:
            part.reveal(int(k), seen)
        seen = part
    for seed in (1, 2):
        models = ModelPrior().draw(seen, 200, np.random.default_rng(seed))
        untried = np.flatnonzero(seen.count == 0)
        middle = np.median(models.rewards[:, untried], axis=0)
        far = np.quantile(np.abs(models.rewards[:, untried] - middle), 0.95)
        assert far < 12.0  # rewards of tried pairs lie within 10 of each other
