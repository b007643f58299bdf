"""Leapfrog, walls, seeds and threads: what must hold exactly."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import qposterior as qp
from problems import SHAPES, noisy_experience, random_problem
from qposterior.inference import hmc
from qposterior.inference.chains import HMCSettings
from qposterior.inference.hmc import ChainState, Tuning, hmc_move, redraw, run_hmc, step
from qposterior.model.charts import BellmanChart, QChart
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.prior import BoundedPrior, GaussianPrior, RewardPrior
from qposterior.model.target import LogDensity, Target, chains_by_leapfrog, leapfrog_by_gradient
from targets import BellmanTarget, LinearQTarget, QTarget, RewardTarget


def targets():
    mdp, seen = random_problem("looping", 2)
    pairs = [(0, 0), (1, 1), (2, 0)]
    noisy = noisy_experience(mdp, pairs)
    features = np.random.default_rng(0).standard_normal((mdp.space.num_pairs, 3))
    return {
        "q": QTarget(seen, GaussianPrior(), Tolerance(tolerance=0.5)),
        "q, wall": QTarget(seen, BoundedPrior(upper=1.0), Tolerance(tolerance=0.5)),
        "q, learned": QTarget(noisy, GaussianPrior(), Noise(kind="student")),
        "bellman": BellmanTarget(seen, GaussianPrior(), Tolerance()),
        "bellman, ε": BellmanTarget(seen, GaussianPrior(), Tolerance(tolerance=0.5)),
        "bellman, wall on rewards": BellmanTarget(
            seen, BoundedPrior(upper=-0.01, on="reward"), Tolerance(tolerance=0.5)
        ),
        "bellman, learned": BellmanTarget(noisy, GaussianPrior(), Noise()),
        "linear": LinearQTarget(seen, features, GaussianPrior(), Tolerance(tolerance=0.5)),
        "reward": RewardTarget(seen, mdp.transitions, RewardPrior(upper=-0.01), Tolerance(tolerance=0.5)),
    }


@pytest.mark.parametrize("name", targets())
def test_leapfrog_runs_back_to_where_it_came_from(name):
    target = targets()[name]
    rng = np.random.default_rng(0)
    x = target.initial(6, rng)
    p = rng.standard_normal(x.shape)
    given = x.copy(), p.copy()
    step, steps = np.full(6, 0.02), np.arange(6)
    mass = rng.uniform(0.5, 2.0, target.num_coordinates)
    there = target.leapfrog(x, p, step=step, num_steps=steps, inverse_mass=mass)
    back = target.leapfrog(there[0], -there[1], step=step, num_steps=steps, inverse_mass=mass)
    finite = np.isfinite(there[2].total)
    assert finite[0]
    np.testing.assert_allclose(back[0][finite], x[finite], atol=1e-8)
    np.testing.assert_allclose(back[1][finite], -p[finite], atol=1e-7)
    np.testing.assert_array_equal(given[0], x)
    np.testing.assert_array_equal(given[1], p)
    assert np.all(there[0] <= target.upper_walls + 1e-12)


@pytest.mark.parametrize("name", targets())
def test_every_target_keeps_the_contract(name):
    target = targets()[name]
    rng = np.random.default_rng(1)
    x = target.initial(4, rng)
    assert x.shape == (4, target.num_coordinates) == (4, target.upper_walls.size)
    density, gradient = target.log_density_and_grad(x)
    assert density.smooth.shape == density.jump.shape == (4,)
    assert gradient.shape == x.shape
    assert np.isfinite(density).all()
    np.testing.assert_array_equal(target.log_density(x), density)
    assert np.all(density.jump == 0.0) or target.has_jumps
    q = target.to_q(x)
    assert q.shape == (4, target.seen.space.num_pairs)
    assert np.isfinite(q).all()
    assert target.residuals(x).shape == (4, target.seen.num_observed)
    np.testing.assert_array_equal(target.initial(4, np.random.default_rng(1)), x)
    chains = run_hmc(target, rng, HMCSettings(chains=2, warm_up=80, max_iterations=60, block=60))
    assert np.isfinite(target.log_density(chains.draws[:, -1])).all()


@pytest.mark.parametrize("name", [name for name in targets() if name not in ("linear", "reward")])
def test_compiled_chains_are_the_plain_ones(name):
    """Accepted, refused and lost trajectories mixed, lengths and steps differing by particle, against `leapfrog`."""
    target = targets()[name]
    rng = np.random.default_rng(4)
    x = target.initial(6, rng)
    p, log_uniform = rng.standard_normal((6, 9, target.num_coordinates)), np.log(rng.random((6, 9)))
    given = {
        "step": np.array([0.02, 0.1, 0.3, 0.5, 0.8, 60.0]),
        "num_steps": rng.integers(0, 6, (6, 9)),
        "inverse_mass": rng.uniform(0.5, 2.0, target.num_coordinates),
    }
    x_before, density = x.copy(), target.log_density(x)
    plain = chains_by_leapfrog(target, x, density, p.copy(), log_uniform, *given.values())
    compiled = target.run_chains(x, density, p.copy(), log_uniform, **given)
    accepted = log_uniform < plain[2][:, :, 1]
    assert accepted.any()
    assert not accepted.all()
    for one, two in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(compiled[1], target.log_density(np.ascontiguousarray(compiled[0][:, -1])), rtol=1e-9)
    np.testing.assert_array_equal(x, x_before)
    np.testing.assert_array_equal(density, target.log_density(x))
    # A trajectory of no steps stays where it is, and its energy is what it was.
    still = given["num_steps"] == 0
    assert np.all(compiled[2][still] == 0.0)


def test_a_target_with_leapfrog_steps_of_its_own_runs_its_chains_by_them():
    """A density of one's own over a compiled target: the compiled chains would know nothing of it."""

    class Narrower(Target):
        def log_density_and_grad(self, x):
            density, grad = super().log_density_and_grad(x)
            return LogDensity(density.smooth - 0.5 * np.sum(x**2, axis=1), density.jump), grad - x

        def leapfrog(self, x, p, *, step, num_steps, inverse_mass):
            return leapfrog_by_gradient(self, x, p, step, num_steps, inverse_mass)

    class Renamed(Narrower):
        pass

    _, seen = random_problem("looping", 2)
    for kind in (Narrower, Renamed):
        target = kind(seen, GaussianPrior(), Tolerance(tolerance=0.5), chart=QChart)
        rng = np.random.default_rng(0)
        x = target.initial(5, rng)
        tuning = Tuning(step=0.005, trajectory=1.0, inverse_mass=np.ones(target.num_coordinates))
        move = hmc_move(target, x, target.log_density(x), tuning, np.full((1, 8), 4), rng)
        assert move.acceptance.min() > 0.9  # the energy is kept: steps and density belong together
        np.testing.assert_allclose(move.density, target.log_density(move.x), rtol=1e-9)


def test_leapfrog_steps_of_ones_own_alone_are_those_that_chains_take():
    class Still(Target):
        def leapfrog(self, x, p, *, step, num_steps, inverse_mass):
            return x, p, self.log_density(x)

    _, seen = random_problem("looping", 2)
    target, rng = Still(seen, GaussianPrior(), Tolerance(tolerance=0.5), chart=QChart), np.random.default_rng(0)
    x = target.initial(5, rng)
    tuning = Tuning(step=0.1, trajectory=1.0, inverse_mass=np.ones(target.num_coordinates))
    move = hmc_move(target, x, target.log_density(x), tuning, np.full((1, 8), 4), rng)
    np.testing.assert_array_equal(move.path, np.repeat(x[:, None], 8, axis=1))


@pytest.mark.parametrize("kind", [QChart, BellmanChart])
def test_a_density_of_ones_own_is_all_that_a_subclass_needs(kind):
    """Overriding the density alone must not be sampled as the base: N(0, 4²) times exp(−x²/2) has variance 16/17."""

    class Narrower(Target):
        has_jumps = True  # a sweep would draw from the conditionals of the base

        def log_density_and_grad(self, x):
            density, grad = super().log_density_and_grad(x)
            return LogDensity(density.smooth - 0.5 * np.sum(x**2, axis=1), density.jump), grad - x

    mdp, _ = random_problem("looping", 2)
    target = Narrower(qp.Experience(mdp.space), GaussianPrior(scale=4.0), Tolerance(tolerance=0.5), chart=kind)
    chains = run_hmc(target, np.random.default_rng(0), HMCSettings(chains=4, max_iterations=500, min_ess=2000.0))
    variance = chains.draws.var(axis=(0, 1))
    np.testing.assert_allclose(variance, 16.0 / 17.0, rtol=0.2)  # 16 for the base

    class Half(Narrower):
        log_density_and_grad = Target.log_density_and_grad

        def log_density(self, x, rows=None):
            return super().log_density(x, rows)

    with pytest.raises(qp.InvalidInputError, match="override log_density_and_grad"):
        run_hmc(Half(qp.Experience(mdp.space), GaussianPrior(), Tolerance(tolerance=0.5)), np.random.default_rng(0))


def test_many_moves_at_once_are_as_many_moves():
    target = targets()["bellman"]
    x = target.initial(4, np.random.default_rng(0))
    density = target.log_density(x)
    tuning = Tuning(step=0.3, trajectory=1.0, inverse_mass=np.ones(target.num_coordinates))
    move = hmc_move(target, x, density, tuning, np.array([[3, 1, 5]]), np.random.default_rng(1))
    assert move.path.shape == (4, 3, target.num_coordinates)
    assert move.acceptance.shape == move.smooth_acceptance.shape == move.divergent.shape == (4, 3)
    assert move.gradients == 4 * (3 + 1 + 5) + 4
    np.testing.assert_array_equal(move.x, move.path[:, -1])
    np.testing.assert_allclose(move.density, target.log_density(move.x), rtol=1e-9)
    # By particle: one move each.
    each = hmc_move(target, x, density, tuning, np.array([3, 1, 5, 2]), np.random.default_rng(1))
    assert each.path.shape == (4, 1, target.num_coordinates)
    assert each.gradients == 3 + 1 + 5 + 2 + 4


@pytest.mark.parametrize("name", ["q", "bellman"])  # without and with sweeps in between
def test_a_run_goes_on_where_its_last_part_ended(name, monkeypatch):
    target = targets()[name]
    x = target.initial(4, np.random.default_rng(0))
    density = target.log_density(x)
    tuning = Tuning(step=0.3, trajectory=1.0, inverse_mass=np.ones(target.num_coordinates))
    monkeypatch.setattr(hmc, "NUMBERS_AT_ONCE", 2 * x.size + 1)
    state = ChainState(x=x, density=density, tuning=tuning)
    _, run = step(target, state, np.random.default_rng(1), HMCSettings(max_leapfrog=3), times=5)
    rng, paths = np.random.default_rng(1), []
    for together in (1,) * 5 if target.has_jumps else (2, 2, 1):
        move = hmc_move(target, x, density, tuning, tuning.many_steps(rng.random((1, together)), 3), rng)
        swept = redraw(target, ChainState(x=move.x, density=move.density, tuning=tuning), rng)
        x, density = swept.x, swept.density
        paths.append(x[:, None] if target.has_jumps else move.path)
    np.testing.assert_array_equal(run.path, np.concatenate(paths, axis=1))
    np.testing.assert_array_equal(run.density, density)
    assert run.acceptance.shape == run.smooth_acceptance.shape == run.divergent.shape == (4, 5)
    assert not np.array_equal(run.path[:, 0], run.path[:, 4])


def test_small_steps_are_always_accepted_and_absurd_ones_never():
    target = targets()["q"]
    rng = np.random.default_rng(0)
    x = target.initial(50, rng)
    density = target.log_density(x)
    mass = np.ones(target.num_coordinates)
    small = hmc_move(target, x, density, Tuning(step=1e-3, trajectory=1.0, inverse_mass=mass), 5, rng)
    assert small.acceptance.min() > 0.99
    absurd = hmc_move(target, x, density, Tuning(step=50.0, trajectory=1.0, inverse_mass=mass), 5, rng)
    assert absurd.divergent.all()
    np.testing.assert_array_equal(absurd.x, x)
    np.testing.assert_array_equal(absurd.density, density)


CODE = """
import hashlib, numpy as np, qposterior as qp
from problems import random_problem
_, seen = random_problem("looping", 2)
settings = qp.HMCSettings(chains=3, warm_up=80, max_iterations=50, block=50)
import warnings; warnings.simplefilter("ignore")
post = qp.posterior(seen, settings=settings, particles=30, seed=7)
print(hashlib.sha256(post.draws.tobytes()).hexdigest())
"""


def run_code(**environment):
    folder = os.path.join(os.path.dirname(__file__), "..")
    answer = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": folder} | environment,
    )
    return answer.stdout.strip()


def test_the_same_seed_gives_the_same_bytes_on_one_thread_or_two():
    assert run_code(NUMBA_NUM_THREADS="1") == run_code(NUMBA_NUM_THREADS="2")


def test_kernels_do_the_same_without_the_compiler():
    code = """
import numpy as np
from problems import random_problem, SHAPES
from targets import BellmanTarget, QTarget
from qposterior.model.noise import Tolerance
from qposterior.model.prior import GaussianPrior
for shape in SHAPES:
    _, seen = random_problem(shape, 3, num_states=4)
    for make, tolerance in ((QTarget, 0.5), (BellmanTarget, 0.5), (BellmanTarget, 0.0)):
        target = make(seen, GaussianPrior(), Tolerance(tolerance=tolerance))
        x = target.initial(2, np.random.default_rng(0))
        density, gradient = target.log_density_and_grad(x)
        print(np.round(np.concatenate([density.stacked().ravel(), gradient.ravel()]), 9).tolist())
    print(np.round(target.sweep(x, np.random.default_rng(1)), 7).tolist())
"""
    folder = os.path.join(os.path.dirname(__file__), "..")
    answers = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": folder, "NUMBA_DISABLE_JIT": switch},
        ).stdout
        for switch in ("0", "1")
    ]
    assert answers[0] == answers[1]
    assert len(answers[0].splitlines()) == 4 * len(SHAPES)


def test_untrustworthy_chains_are_announced():
    _, seen = random_problem("acyclic", 3)
    tiny = HMCSettings(chains=2, warm_up=80, max_iterations=20, block=20)
    with pytest.warns(RuntimeWarning, match="do not trust"):
        post = qp.posterior(seen, coordinates="q", tolerance=0.01, settings=tiny)
    assert post.diagnostics["trusted"] is False


def test_progress_and_early_stop_are_called():
    _, seen = random_problem("acyclic", 1)
    target = BellmanTarget(seen, GaussianPrior(), Tolerance())
    calls = []
    chains = run_hmc(
        target,
        np.random.default_rng(0),
        HMCSettings(chains=2, warm_up=80, max_iterations=100, block=10),
        stopping_fn=lambda draws: draws.shape[1] >= 30,
        progress_fn=lambda done, most: calls.append((done, most)),
    )
    assert chains.draws.shape[1] == 30
    assert calls == [(10, 100), (20, 100), (30, 100)]
