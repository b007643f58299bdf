"""Unknown transitions: the joint posterior of Q and the rows against quadrature and against enumeration by table."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from qposterior.inference.exact import Enumeration
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.rows import DirichletRows
from qposterior.world.sums import Edges
from targets import UncertainTarget

REPEATS = 6
SHORT = qp.HMCSettings(chains=32, warm_up=160, max_iterations=400, block=200, min_ess=1e9)  # runs all of them


def self_loop(discount=1.0):
    """State 0: action 0 stays or leaves with unknown odds, action 1 has not been tried; state 1 is the goal."""
    edges = [(0, 0, 0, 0.5, -1.0), (0, 0, 1, 0.5, -1.0), (0, 1, 1, 1.0, 0.0)]
    return qp.FiniteMDP.from_edges(edges, goal=[1], discount=discount)


def seen_loop(stays=3, leaves=1, discount=1.0):
    seen = qp.Experience(self_loop(discount).space, transitions="counted")
    for _ in range(stays):
        seen.record(0, 0, -1.0, 0)
    for _ in range(leaves):
        seen.record(0, 0, -1.0, 1)
    return seen


def quadrature(stays, leaves, scale, concentration=1.0, discount=1.0, *, weighted=True):
    """Return P(action 0 is optimal) and E θ₀ by quadrature over (p, φ); unweighted: P first, then θ given P."""
    from scipy.stats import beta, norm

    p = (np.arange(2000) + 0.5) / 2000
    phi = np.linspace(-12 * scale, 12 * scale, 6001)
    step = phi[1] - phi[0]
    row = beta.pdf(p, 0.5 * concentration + stays, 0.5 * concentration + leaves)
    row = row / row.sum()
    held = -1.0 / (1.0 - discount * p)[:, None]  # θ₀ where staying is greedy: the loop closes
    leaving = -1.0 + discount * p[:, None] * phi[None, :]
    closes = held >= phi[None, :]
    theta = np.where(closes, held, leaving)
    determinant = np.where(closes, (1.0 - discount * p)[:, None], 1.0)
    density = norm.pdf(theta, 0.0, scale) * norm.pdf(phi, 0.0, scale)[None, :] / determinant
    evidence = density.sum(axis=1) * step
    weight = row * (1.0 if weighted else 1.0 / evidence)
    joint = weight[:, None] * density
    joint /= joint.sum()
    return float(joint[closes].sum()), float((joint * theta).sum())


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_a_self_loop_with_unknown_odds_agrees_with_quadrature(discount):
    wanted, mean = quadrature(3, 1, 3.0, discount=discount)
    wrong, _ = quadrature(3, 1, 3.0, discount=discount, weighted=False)
    found = [
        qp.posterior(seen_loop(3, 1, discount), prior=qp.GaussianPrior(scale=3.0), seed=[1, r], settings=SHORT)
        for r in range(REPEATS)
    ]
    shares = np.array([post.prob_optimal(0)[0] for post in found])
    means = np.array([post.mean()[0, 0] for post in found])
    # Six repeats: |t| with 5 degrees of freedom is above 7 in 9 of 10,000 runs; the seeds are fixed.
    for values, truth in ((shares, wanted), (means, mean)):
        assert abs(values.mean() - truth) < 7.0 * values.std(ddof=1) / np.sqrt(REPEATS)
    assert shares.std(ddof=1) < 0.03
    # Rows first and then θ given the rows is another posterior, and this one is not it.
    assert abs(wrong - wanted) > 0.01
    assert abs(shares.mean() - wrong) > 0.5 * abs(wrong - wanted)


def chain():
    edges = [
        (0, 0, 1, 0.5, -1.0), (0, 0, 2, 0.5, -1.0), (0, 1, 3, 1.0, -4.0),
        (1, 0, 3, 0.7, -0.5), (1, 0, 0, 0.3, -0.5), (1, 1, 3, 1.0, -1.0),
        (2, 0, 3, 1.0, -3.0), (2, 1, 1, 1.0, 0.0),
    ]  # fmt: skip
    return qp.FiniteMDP.from_edges(edges, goal=[3])


def counted(mdp, steps, rewards="deterministic"):
    seen = qp.Experience(mdp.space, transitions="counted", rewards=rewards)
    for state, action, reward, following in steps:
        seen.record(state, action, reward, following)
    return seen


STEPS = [(0, 0, -1.0, 1), (0, 0, -1.0, 2), (0, 0, -1.0, 1), (1, 0, -0.5, 3), (1, 0, -0.5, 0), (2, 0, -3.0, 3)]
NOISY = [(0, 0, -1.4, 1), (0, 0, -0.8, 2), (0, 0, -1.1, 1), (1, 0, -0.2, 3), (1, 0, -0.9, 0), (2, 0, -3.0, 3)]


@pytest.mark.parametrize("noise", [None, Noise(scale=0.5)])
def test_two_unknown_rows_agree_with_enumeration_weighted_by_the_evidence_of_each_table(noise):
    """P(optimal) = Σ_m Z(P_m) P(optimal | P_m) / Σ_m Z(P_m) over tables drawn from the Dirichlet: no MCMC at all."""
    mdp = chain()
    seen = counted(mdp, STEPS if noise is None else NOISY, "deterministic" if noise is None else "noisy")
    prior, rng = qp.GaussianPrior(scale=3.0), np.random.default_rng(0)
    table, shape = DirichletRows().shapes(seen)
    log_z, shares = [], []
    for _ in range(60):
        gammas = rng.standard_gamma(shape)
        known = qp.Experience(mdp.space, rewards=seen.rewards)
        known.count, known.reward_mean = seen.count.copy(), seen.reward_mean.copy()
        known.reward_deviation = seen.reward_deviation.copy()
        for i, k in enumerate(seen.observed_pairs):
            window = slice(table.row_start[i], table.row_start[i + 1])
            row = table.successor[window], gammas[window] / gammas[window].sum()
            known._set_row(int(k), Edges(*row, np.full(row[0].size, np.nan)))
            known._first_seen[int(k)] = i
        found = Enumeration(known, prior, Tolerance() if noise is None else noise, coordinates="bellman", rng=rng)
        log_z.append(found.log_evidence)
        shares.append(found.prob_optimal())
    weight = np.exp(np.array(log_z) - max(log_z))
    wanted = weight @ np.array(shares) / weight.sum()
    error = np.sqrt((weight / weight.sum()) ** 2 @ (np.array(shares) - wanted) ** 2)
    found = np.array(
        [
            qp.posterior(seen, prior=prior, noise=noise, seed=[2, r], settings=SHORT).prob_optimal_table()[
                mdp.space.pair_state, mdp.space.pair_action
            ]
            for r in range(REPEATS)
        ]
    )
    spread = np.sqrt(error**2 + found.var(axis=0, ddof=1) / REPEATS + 1e-6)
    assert np.abs((found.mean(axis=0) - wanted) / spread).max() < 5.0
    assert spread.max() < 0.04


def test_with_many_counts_the_rows_become_known():
    mdp = chain()
    seen = counted(mdp, STEPS * 400)
    known = qp.posterior(seen, transitions="empirical", method="exact", particles=2)
    joint = qp.posterior(seen, seed=3, particles=4000)
    assert np.abs(known.prob_optimal_table() - joint.prob_optimal_table()).max() < 0.05
    assert joint.diagnostics["row_acceptance"] > 0.5


def test_a_simulator_in_place_of_counts():
    """With many draws a row is the simulator's own; with few it is not, and the answer is another."""
    mdp = self_loop()
    seen = qp.Experience(mdp.space)
    seen.record(0, 0, -1.0, 0, row=(np.array([0, 1]), np.array([0.5, 0.5])))

    def simulate(state, action, number, rng):
        return (rng.random(number) < 0.5).astype(np.int64)

    exact = qp.posterior(seen, method="exact", particles=2).prob_optimal(0)[0]
    many = qp.posterior(seen, transitions=qp.SimulatedRows(simulate_fn=simulate, draws=2000), seed=0, particles=4000)
    assert abs(many.prob_optimal(0)[0] - exact) < 0.03


def test_a_pool_grows_with_the_readings_and_its_rows_are_taken_as_known():
    """Draws stay: the pool after three readings holds those after one. The posterior is that of the pool's row."""
    asked = []

    def simulate(state, action, number, rng):
        asked.append((state, action, number))
        return (rng.random(number) < 0.5).astype(np.int64)

    pool = qp.SimulatorPool(simulate, draws=10, seed=4)
    first = qp.posterior(seen_loop(1, 0), transitions=pool, method="exact", particles=2)
    qp.posterior(seen_loop(2, 1), transitions=pool, method="exact", particles=2)
    again = qp.posterior(seen_loop(2, 1), transitions=pool, method="exact", particles=2)  # nothing new: no draws
    assert asked == [(0, 0, 10), (0, 0, 20)]
    assert pool.size(0) == 30
    rng = np.random.default_rng(4)
    drawn = np.concatenate([rng.random(10) < 0.5, rng.random(20) < 0.5])
    for found, leaves in ((first, drawn[:10].mean()), (again, drawn.mean())):
        known = qp.Experience(self_loop().space)
        known.record(0, 0, -1.0, 0, row=(np.array([0, 1]), np.array([1.0 - leaves, leaves])))
        wanted = qp.posterior(known, method="exact", particles=2)
        np.testing.assert_allclose(found.prob_optimal(0), wanted.prob_optimal(0), atol=1e-12)
    chains = qp.posterior(seen_loop(2, 1), transitions=pool, particles=4000, seed=1)
    assert abs(chains.prob_optimal(0)[0] - again.prob_optimal(0)[0]) < 0.05


def test_fresh_draws_leave_out_a_successor_that_the_first_look_has_not_met():
    """The first look shows states 2 and 3, the second mostly 1: that is left out, and 3 alone makes the row, if met."""
    calls = []

    def simulate(state, action, number, rng):
        calls.append(number)
        return 2 + np.arange(number) % 2 if len(calls) == 1 else np.array([1, 1, 3, 1, 1, 1])

    seen = counted(chain(), [(0, 0, -1.0, 2)])
    rows = qp.SimulatedRows(simulate_fn=simulate, draws=3)
    target = UncertainTarget(seen, qp.GaussianPrior(), Tolerance(), rows, chains=2, rng=np.random.default_rng(0))
    assert calls == [60, 6]
    assert target.layout.successor.tolist() == [2, 3]
    # The first chain met state 3 once; the second met nothing and keeps the frequencies of the first look.
    np.testing.assert_allclose(target.parts.rows, [[0.0, 1.0], [0.5, 0.5]])


@pytest.mark.parametrize("answer", [np.array([0.5]), np.array([7]), np.array([-1]), np.array([0, 1])])
def test_a_simulator_that_does_not_return_states_is_named(answer):
    for transitions in (qp.SimulatorPool(lambda *_: answer, draws=1), qp.SimulatedRows(simulate_fn=lambda *_: answer)):
        with pytest.raises(qp.InvalidInputError, match="the simulator must return"):
            qp.posterior(seen_loop(1, 0), transitions=transitions)
    with pytest.raises(qp.InvalidInputError, match="draws must be at least 1"):
        qp.SimulatorPool(lambda *_: answer, draws=0)


def test_rows_of_the_target_are_rows_and_follow_the_counts():
    mdp = chain()
    seen = counted(mdp, STEPS)
    rng = np.random.default_rng(0)
    for rule, sizes in (("state", [2, 2, 1]), ("all", [4, 4, 4])):
        rows = DirichletRows(concentration=2.0, successors=rule)
        table, shape = rows.shapes(seen)
        assert np.diff(table.row_start).tolist() == sizes
        np.testing.assert_allclose(np.add.reduceat(shape, table.row_start[:-1]), 2.0 + np.array([3, 2, 1]))
        target = UncertainTarget(seen, qp.GaussianPrior(), Tolerance(), rows, chains=5000, rng=rng)
        sums = np.add.reduceat(target.parts.rows, table.row_start[:-1], axis=1)
        np.testing.assert_allclose(sums, 1.0)
        total = np.repeat(2.0 + np.array([3.0, 2.0, 1.0]), sizes)
        sd = np.sqrt(shape / total * (1 - shape / total) / (total + 1))
        assert np.abs(target.parts.rows.mean(axis=0) - shape / total).max() < 5.0 * sd.max() / np.sqrt(5000)


def test_what_does_not_fit_is_named():
    seen = seen_loop()
    with pytest.raises(qp.InvalidInputError, match='method="hmc"'):
        qp.posterior(seen, method="exact")
    with pytest.raises(qp.InvalidInputError, match="did you mean 'dirichlet'"):
        qp.posterior(seen, transitions="dirichlt")
    with pytest.raises(qp.InvalidInputError, match="counted"):
        qp.posterior(qp.Experience(self_loop().space), transitions="dirichlet")
    with pytest.raises(qp.InvalidInputError, match="concentration must be positive"):
        DirichletRows(concentration=0.0)
    with pytest.raises(qp.InvalidInputError, match="rows that are known"):
        qp.posterior(seen, prior=qp.RewardPrior())


def test_particles_that_follow_by_moves_reach_the_joint_posterior():
    """Many moves on fixed data, from the prior, against quadrature: the kernel of the exploring agent is right."""
    from qposterior.inference.smc.joint_moves import JointSampler

    seen = seen_loop(3, 1)
    wanted, mean = quadrature(3, 1, 3.0)
    wrong, _ = quadrature(3, 1, 3.0, weighted=False)
    rng = np.random.default_rng(5)
    prior = qp.GaussianPrior(scale=3.0)
    sampler = JointSampler.start(seen, prior=prior, noise=Noise(), particles=4000, rng=rng)
    sampler.update(seen)
    sampler.move(80)
    theta = sampler.particles.parameters
    share = float(np.mean(theta[:, 0] >= theta[:, 1]))
    # 4,000 independent particles: 4.5 standard errors, a false alarm in 150,000; the plug-in answer lies beyond.
    assert abs(share - wanted) < 4.5 * np.sqrt(wanted * (1 - wanted) / 4000)
    assert abs(theta[:, 0].mean() - mean) < 4.5 * theta[:, 0].std() / np.sqrt(4000)
    assert abs(share - wrong) > abs(share - wanted)
    assert not sampler.is_noisy


def test_residuals_use_the_rows_of_each_particle():
    """θ → ψ → θ under rows that differ by particle, by hand for the first pair."""
    mdp = chain()
    seen = counted(mdp, NOISY, "noisy")
    rng = np.random.default_rng(3)
    target = UncertainTarget(seen, qp.GaussianPrior(), Noise(scale=0.5), DirichletRows(), chains=6, rng=rng)
    theta = target.to_q(target.initial(6, rng))
    np.testing.assert_allclose(target.to_q(target.from_parameters(theta)), theta, atol=1e-9)
    value = np.where(mdp.space.is_goal, 0.0, mdp.space.maximum(theta))
    start, stop = target.layout.row_start[:2]
    expected = np.sum(target.parts.rows[:, start:stop] * value[:, target.layout.successor[start:stop]], axis=1)
    residual = theta[:, 0] - expected - seen.reward_mean[0]
    np.testing.assert_allclose(target.misfits(theta)[:, 0], residual)
