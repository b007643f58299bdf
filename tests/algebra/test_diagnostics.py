"""Diagnostics on chains whose answer is known."""

from __future__ import annotations

import numpy as np

from qposterior.inference.diagnostics import (
    bulk_ess,
    effective_sample_size,
    potential_scale_reduction,
    rank_r_hat,
    tail_ess,
    weighted_ess,
)
from qposterior.inference.trust import reliability_warning


def autoregressive(phi, chains=4, length=20_000, seed=0):
    rng = np.random.default_rng(seed)
    x = np.empty((chains, length, 1))
    x[:, 0, 0] = rng.standard_normal(chains) / np.sqrt(1 - phi**2)
    for t in range(1, length):
        x[:, t, 0] = phi * x[:, t - 1, 0] + rng.standard_normal(chains)
    return x


def test_effective_sample_size_of_an_autoregression_is_the_closed_form():
    # n (1 − φ)/(1 + φ); the estimate is within 10 % here.
    for phi in (0.0, 0.6, 0.9, -0.5):
        x = autoregressive(phi)
        expected = x.size * (1 - phi) / (1 + phi)
        np.testing.assert_allclose(effective_sample_size(x)[0], expected, rtol=0.1)
        np.testing.assert_allclose(bulk_ess(x)[0], expected, rtol=0.1)
        assert tail_ess(x)[0] > 0.3 * expected


def test_r_hat_is_one_for_good_chains_and_sees_shifts_spreads_and_drifts():
    rng = np.random.default_rng(1)
    good = rng.standard_normal((4, 1000, 1))
    assert rank_r_hat(good)[0] < 1.01
    shifted = good + np.array([0.0, 0.0, 0.0, 1.0])[:, None, None]
    spread = good * np.array([1.0, 1.0, 1.0, 4.0])[:, None, None]
    drift = good + np.linspace(0.0, 2.0, 1000)[None, :, None]
    for bad in (shifted, spread, drift):
        assert rank_r_hat(bad)[0] > 1.05
    # B/W by hand: means 0, 0, 0, 1 have variance 0.25, so R-hat = √(1 + 0.25).
    np.testing.assert_allclose(potential_scale_reduction(shifted)[0], np.sqrt(1.25), rtol=0.05)


def test_constants_give_nan_and_heavy_tails_do_not_break_ranks():
    draws = np.concatenate([np.ones((2, 100, 1)), np.random.default_rng(0).standard_cauchy((2, 100, 1))], axis=2)
    r_hat, ess = rank_r_hat(draws), bulk_ess(draws)
    assert np.isnan(r_hat[0])
    assert np.isnan(ess[0])
    assert r_hat[1] < 1.1
    assert ess[1] > 50


def test_weighted_size_of_known_weights():
    np.testing.assert_allclose(weighted_ess(np.log([0.5, 0.25, 0.25])), 1 / (0.25 + 2 * 0.0625))
    np.testing.assert_allclose(weighted_ess(np.array([-1000.0, -1000.0])), 2.0)


def test_distrust_names_its_reason():
    fine = {"max_r_hat": 1.002, "min_bulk_ess": 500.0, "min_tail_ess": 400.0, "divergences": 0, "draws": 1000}
    assert reliability_warning(fine) is None
    assert "disagree" in reliability_warning(fine | {"max_r_hat": 1.2})
    assert "independent" in reliability_warning(fine | {"min_tail_ess": 20.0})
    assert "diverged" in reliability_warning(fine | {"divergences": 100})
    assert "disagree" in reliability_warning(fine | {"max_r_hat": float("nan")})
