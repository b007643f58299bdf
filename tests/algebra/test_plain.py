"""The plain path against the compiled one: the same densities, gradients and integrals, from parts of one's own."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from own_parts import GaussianReadings, GumbelReadings, Plain, RelatedActions, TwoWorlds
from problems import SHAPES, noisy_experience, random_problem
from qposterior.model.charts import greedy_pairs
from qposterior.model.noise import Noise, OwnNoise, Tolerance
from qposterior.model.prior import BoundedPrior, GaussianPrior, typical
from qposterior.model.rows import DirichletRows
from targets import BellmanTarget, QTarget, UncertainTarget

LIKELIHOODS = {
    "exact": Tolerance(),
    "gaussian kernel": Tolerance(tolerance=0.7),
    "uniform kernel": Tolerance(tolerance=0.7, kernel="uniform"),
    "gaussian noise": Noise(scale=0.8),
    "gaussian noise, learned": Noise(log_scale_mean=0.3, log_scale_sd=0.6),
    "student noise, learned": Noise(kind="student", degrees=3.0),
    "laplace noise": Noise(kind="laplace", scale=0.8),
}
PRIORS = {
    "gaussian": GaussianPrior(mean=0.4, scale=1.7),
    "soft wall": BoundedPrior(upper=0.3, softness=0.9, mean=0.4, scale=1.7),
    "hard wall": BoundedPrior(upper=0.9, mean=0.4, scale=1.7),
}


def experience(shape, seed, likelihood):
    mdp, seen = random_problem(shape, seed)
    if not isinstance(likelihood, Noise | GaussianReadings | GumbelReadings):
        return seen
    pairs = [(int(seen.space.pair_state[k]), int(seen.space.pair_action[k])) for k in seen.observed_pairs]
    return noisy_experience(mdp, pairs, seed=seed)


def points(target, num=6, seed=0):
    """Starting points and points far from them, some of which have no solution or lie beyond a wall."""
    rng = np.random.default_rng(seed)
    x = target.initial(num, rng)
    return np.concatenate([x, x + 3.0 * rng.standard_normal(x.shape)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(
    ("kind", "likelihood"),  # tolerance 0 has no density in Q coordinates
    [(kind, name) for kind in (QTarget, BellmanTarget) for name in LIKELIHOODS if (kind, name) != (QTarget, "exact")],
)
def test_both_paths_give_the_same_densities_and_gradients(kind, likelihood, prior, shape):
    chosen = LIKELIHOODS[likelihood]
    seen = experience(shape, 2, chosen)
    compiled, plain = kind(seen, PRIORS[prior], chosen), kind(seen, Plain(PRIORS[prior]), chosen)
    assert not plain.is_compiled
    assert compiled.is_compiled
    x = points(compiled)
    expected, slope = compiled.log_density_and_grad(x)
    density, grad = plain.log_density_and_grad(x)
    inside = np.isfinite(expected.smooth)
    assert inside.any()
    np.testing.assert_array_equal(np.isfinite(density.smooth), inside)
    np.testing.assert_allclose(density.stacked()[inside], expected.stacked()[inside], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(grad[inside], slope[inside], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", [QTarget, BellmanTarget])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_noise_of_ones_own_gives_the_density_of_the_same_compiled_noise(shape, kind):
    noise, mine = Noise(scale=0.8), GaussianReadings(scale=0.8)
    seen = experience(shape, 1, noise)
    prior = GaussianPrior(mean=0.4, scale=1.7)
    compiled, plain = kind(seen, prior, noise), kind(seen, prior, mine)
    x = compiled.initial(6, np.random.default_rng(0))
    for found, expected in zip(plain.log_density_and_grad(x), compiled.log_density_and_grad(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    theta = compiled.to_q(x)
    np.testing.assert_allclose(plain.log_likelihood(theta), compiled.log_likelihood(theta), rtol=1e-10)


@pytest.mark.parametrize("kind", [QTarget, BellmanTarget])
@pytest.mark.parametrize("noise", [GumbelReadings(scale=2.5), GaussianReadings()])
@pytest.mark.parametrize("prior", [RelatedActions(), TwoWorlds()])
def test_gradients_of_parts_of_ones_own_are_finite_differences(prior, noise, kind):
    seen = experience("looping", 3, noise)
    target = kind(seen, prior, noise)
    x = target.initial(3, np.random.default_rng(1))
    _, grad = target.log_density_and_grad(x)
    step = 1e-6
    for j in range(target.num_coordinates):
        up, down = x.copy(), x.copy()
        up[:, j] += step
        down[:, j] -= step
        slope = (target.log_density(up).smooth - target.log_density(down).smooth) / (2.0 * step)
        np.testing.assert_allclose(grad[:, j], slope, rtol=2e-5, atol=2e-5)


def test_rows_of_each_chain_are_used_by_the_plain_path_too():
    mdp, _ = random_problem("looping", 3, num_states=4)
    seen = qp.Experience(mdp.space, transitions="counted")
    for k in range(0, mdp.space.num_pairs, 2):
        successors, _ = mdp.transitions.row(k)
        for successor in successors:
            seen.record(
                int(mdp.space.pair_state[k]), int(mdp.space.pair_action[k]), float(mdp.rewards[k]), int(successor)
            )
    prior = GaussianPrior(mean=-0.3, scale=1.5)
    make = [
        UncertainTarget(seen, one, Tolerance(), DirichletRows(), chains=5, rng=np.random.default_rng(4))
        for one in (prior, Plain(prior))
    ]
    np.testing.assert_array_equal(make[0].parts.rows, make[1].parts.rows)
    assert np.ptp(make[0].parts.rows, axis=0).max() > 0.01
    x = make[0].initial(5, np.random.default_rng(0))
    for found, expected in zip(make[1].log_density_and_grad(x), make[0].log_density_and_grad(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prior", ["gaussian", "hard wall"])
def test_quadrature_gives_the_integral_of_the_gaussian_pieces(shape, prior):
    _, seen = random_problem(shape, 1, share=0.5)
    chosen = PRIORS[prior]
    compiled, plain = BellmanTarget(seen, chosen, Tolerance()), BellmanTarget(seen, Plain(chosen), Tolerance())
    theta = compiled.to_q(compiled.initial(5, np.random.default_rng(2)))
    for k in compiled.chart.free:
        found, expected = plain.chart.log_integral(theta, int(k)), compiled.chart.log_integral(theta, int(k))
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_blend_of_readings_is_linear_in_the_log_likelihood():
    mdp, first = random_problem("looping", 3)
    pairs = [(int(first.space.pair_state[k]), int(first.space.pair_action[k])) for k in first.observed_pairs]
    before, seen = noisy_experience(mdp, pairs[:2], seed=1), noisy_experience(mdp, pairs, seed=1)
    noise = GumbelReadings()
    rewards = np.random.default_rng(0).standard_normal((4, seen.num_observed))
    rows = np.searchsorted(seen.observed_pairs, before.observed_pairs)
    new, new_grad = noise.log_density_and_grad(rewards, seen)
    old, old_grad = noise.log_density_and_grad(rewards[:, rows], before)
    blended = OwnNoise(noise).bind(seen).blend(before, 0.3)
    total, grad, _ = blended.log_density_and_grad(rewards, np.zeros(4))
    np.testing.assert_allclose(total, 0.3 * new + 0.7 * old)
    expected = 0.3 * new_grad
    expected[:, rows] += 0.7 * old_grad
    np.testing.assert_allclose(grad, expected)


def test_of_tied_pairs_the_lowest_is_greedy():
    _, seen = random_problem("looping", 3)
    theta = np.zeros((2, seen.space.num_pairs))
    theta[1, 1] = 1.0
    found = greedy_pairs(seen.space, theta)
    np.testing.assert_array_equal(found[0], seen.space.first_pair[seen.space.deciding_states])
    assert found[1, 0] == 1


def test_the_typical_value_of_a_prior_comes_from_draws_where_it_does_not_say():
    _, seen = random_problem("looping", 3)
    assert typical(GaussianPrior(mean=0.5, scale=3.0), seen.space) == (0.5, 3.0)
    middle, spread = typical(Plain(GaussianPrior(mean=0.5, scale=3.0)), seen.space)
    assert middle == pytest.approx(0.5, abs=0.2)
    assert spread == pytest.approx(3.0, rel=0.05)


class WrongShape(Plain):
    def log_density_and_grad(self, theta, space):
        total, slope = super().log_density_and_grad(theta, space)
        return total[:, None], slope


class NotANumber(Plain):
    def log_density_and_grad(self, theta, space):
        total, slope = super().log_density_and_grad(theta, space)
        return np.where(theta[:, 0] > 0.0, np.nan, total), slope


class FewDraws(Plain):
    def draw(self, num, space, rng):
        return super().draw(num, space, rng)[:, :1]


@pytest.mark.parametrize(
    ("kind", "message"),
    [(WrongShape, "must return"), (NotANumber, "nan or inf"), (FewDraws, r"prior.draw\(num, space, rng\) must return")],
)
def test_a_prior_that_answers_wrongly_is_refused(kind, message):
    _, seen = random_problem("looping", 3)
    with pytest.raises(qp.InvalidInputError, match=message):
        qp.posterior(seen, prior=kind(GaussianPrior()), particles=50)
