"""Normal masses and quantiles against scipy; Gaussian polytopes against closed forms, scipy and plain sampling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from qposterior.inference.polytope_gaussian import PolytopeGaussian, is_feasible
from qposterior.model.kernels import normal


def test_quantiles_and_tails_have_their_digits():
    p = np.concatenate(
        [10.0 ** np.arange(-300, -1, 7.0), np.linspace(0.01, 0.99, 50), 1 - 10.0 ** np.arange(-14, -2.0)]
    )
    p = p[p != 0.5]
    np.testing.assert_allclose([normal.quantile(x) for x in p], special.ndtri(p), rtol=1e-13)
    z = np.linspace(-300, 6, 400)
    np.testing.assert_allclose([normal.log_tail(x) for x in z], special.log_ndtr(z), rtol=1e-9)


@pytest.mark.parametrize(
    ("low", "high"), [(-1, 2), (0.5, 3), (-np.inf, -1), (2, np.inf), (-np.inf, np.inf), (-3, -2), (8, 9), (40, np.inf)]
)
def test_truncated_normals_have_their_mass_and_quantiles(low, high):
    expected = stats.truncnorm.ppf([0.1, 0.5, 0.9], low, high)
    drawn = [normal.truncated_quantile(low, high, u) for u in (0.1, 0.5, 0.9)]
    np.testing.assert_allclose(drawn, expected, rtol=1e-6 if abs(low) < 30 else 1e-3)
    mass = np.log(special.ndtr(high) - special.ndtr(low)) if low < 0 else None
    if mass is not None:
        np.testing.assert_allclose(normal.log_mass(low, high), mass, rtol=1e-9)
    assert normal.log_mass(high, low) == -np.inf


def random_polytope(rng, size, rows):
    return rng.normal(size=size), rng.normal(size=(size, size)), rng.normal(size=(rows, size)), rng.normal(size=rows)


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (2, 2), (4, 4), (6, 3), (2, 4), (3, 6)])
def test_mass_moments_and_draws_agree_with_plain_sampling(size, rows):
    rng = np.random.default_rng(10 * size + rows)
    mean, factor, constraints, bounds = random_polytope(rng, size, rows)
    bounds += 0.8
    shape = PolytopeGaussian(mean, factor, constraints, bounds)
    also = rng.normal(size=(2, size))
    moments = shape.moments(10, rng, also)
    x = mean + rng.standard_normal((400_000, size)) @ factor.T
    inside = np.all(x @ constraints.T <= bounds, axis=1)
    share = inside.mean()
    # 5 standard errors: a false alarm in 2 million, fixed seed.
    assert abs(moments.mass.mean() - share) < 5 * np.sqrt(share / 400_000)
    for e in range(2):
        both = (inside & (x @ also[e] <= 0)).mean()
        assert abs(moments.also[:, e].mean() - both) < 5 * np.sqrt(share / 400_000)
    for tilted in (False, True):
        again = shape.moments(9, rng, tilted=tilted).mass.mean()
        np.testing.assert_allclose(again, moments.mass.mean(), rtol=2e-3)
    kept = x[inside]
    first = mean + factor @ shape.basis @ (moments.first.mean(axis=0) / moments.mass.mean())
    error = kept.std(axis=0) / np.sqrt(len(kept))
    assert np.all(np.abs(first - kept.mean(axis=0)) < 5 * error + 1e-9)
    draws = shape.draw(20_000, rng)
    assert np.all(draws @ constraints.T <= bounds + 1e-9)
    error = kept.std(axis=0) * np.sqrt(1 / len(kept) + 1 / 20_000)
    assert np.all(np.abs(draws.mean(axis=0) - kept.mean(axis=0)) < 5 * error)
    assert np.all(np.abs(draws.std(axis=0) / kept.std(axis=0) - 1) < 0.05)


def test_orthants_of_equicorrelated_normals_have_the_closed_form():
    # ρ = ½: P(all ≤ 0) = 1/(d + 1).
    for size in (2, 5, 10):
        covariance = 0.5 * np.eye(size) + 0.5
        factor = np.linalg.cholesky(covariance)
        shape = PolytopeGaussian(np.zeros(size), factor, np.eye(size), np.zeros(size))
        mass = shape.moments(10, np.random.default_rng(0)).mass
        np.testing.assert_allclose(mass.mean(), 1 / (size + 1), rtol=2e-3)
        assert mass.std() / np.sqrt(8) < 1e-3 / (size + 1) * 3


def test_far_tails_keep_their_relative_accuracy():
    size = 5
    factor = np.linalg.cholesky(0.5 * np.eye(size) + 0.5)
    shape = PolytopeGaussian(np.full(size, 4.0), factor, np.eye(size), np.zeros(size))
    mass = shape.moments(10, np.random.default_rng(0)).mass
    expected = stats.multivariate_normal.cdf(
        np.full(size, -4.0), cov=0.5 * np.eye(size) + 0.5, abseps=0, releps=1e-6, rng=np.random.default_rng(1)
    )
    np.testing.assert_allclose(mass.mean(), expected, rtol=2e-3)
    assert np.all(shape.draw(100, np.random.default_rng(2)) <= 1e-9)


def test_constant_constraints_are_decided_by_their_sign():
    mean, factor = np.array([0.0, 1.0]), np.array([[1.0], [1.0]])  # x2 − x1 = 1 always
    row = np.array([[1.0, -1.0]])
    assert not PolytopeGaussian(mean, factor, row, np.zeros(1)).is_empty
    assert PolytopeGaussian(mean, factor, -row, np.zeros(1)).is_empty
    tied = PolytopeGaussian(np.zeros(2), factor, row, np.zeros(1))
    assert tied.is_tied.tolist() == [True]
    assert tied.moments(5, np.random.default_rng(0)).mass.tolist() == [1.0] * 8
    assert tied.moments(5, np.random.default_rng(0), row).also.tolist() == [[0.5]] * 8


def test_emptiness_is_found_by_the_linear_program():
    assert is_feasible(np.array([[1.0], [-1.0]]), np.array([1.0, 1.0]))
    assert not is_feasible(np.array([[1.0], [-1.0]]), np.array([-1.0, -1.0]))
