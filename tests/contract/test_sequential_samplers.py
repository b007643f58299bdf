"""One contract for every sequential sampler: what an agent may rely on, whatever keeps its posterior up to date."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from problems import deterministic_mdp, noisy_experience
from qposterior.inference.smc.annealed import AnnealedSampler
from qposterior.inference.smc.exact_draws import ExactSampler
from qposterior.inference.smc.joint_moves import JointSampler
from qposterior.inference.smc.one_look import OneLookSampler
from qposterior.model.charts import CHARTS
from qposterior.model.noise import Noise, Tolerance

PAIRS = [(0, 0), (0, 1), (1, 1), (2, 0)]
SAMPLERS = {
    "one-look": (OneLookSampler, {}, "revealed"),
    "one-look, noise": (OneLookSampler, {"noise": Noise()}, "noisy"),
    "annealed, q": (AnnealedSampler, {"chart": CHARTS["q"]}, "revealed"),
    "annealed, bellman": (AnnealedSampler, {"chart": CHARTS["bellman"]}, "revealed"),
    "annealed, fixed": (AnnealedSampler, {"chart": CHARTS["q"], "final_tolerance": 1.0}, "revealed"),
    "annealed, noise": (AnnealedSampler, {"noise": Noise(scale=1.0)}, "noisy"),
    "exact": (ExactSampler, {}, "revealed"),
    "exact, noise": (ExactSampler, {"noise": Noise(scale=1.0)}, "noisy"),
    "joint": (JointSampler, {}, "counted"),
    "joint, noise": (JointSampler, {"noise": Noise()}, "counted, noisy"),
}
MDP = deterministic_mdp(4, 2, discount=0.9)


def experience(kind, pairs):
    """What was seen of some pairs, as this sampler is told it."""
    if kind == "noisy":
        return noisy_experience(MDP, pairs, readings=2)
    if kind == "revealed":
        seen = qp.Experience(MDP.space)
    else:
        seen = qp.Experience(MDP.space, transitions="counted", rewards="noisy" if "noisy" in kind else "deterministic")
    rng = np.random.default_rng(0)
    for state, action in pairs:
        k = MDP.space.pair(state, action)
        row = MDP.transitions.row(k)
        for _ in range(2):
            reward = float(MDP.rewards[k]) + ("noisy" in kind) * float(rng.normal())
            seen.record(state, action, reward, int(row[0][0]), row=row if kind == "revealed" else None)
    return seen


def start(name, seed=0, particles=40):
    make, options, kind = SAMPLERS[name]
    given = {"prior": qp.GaussianPrior(), "noise": Tolerance()} | options
    return make.start(experience(kind, []), particles=particles, rng=np.random.default_rng(seed), **given)


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_update_takes_in_what_is_new_and_leaves_what_it_was_given(name):
    kind = SAMPLERS[name][2]
    sampler = start(name)
    assert sampler.seen.num_observed == 0
    for known in (2, 4):
        seen = experience(kind, PAIRS[:known])
        text = seen.to_text()
        assert sampler.update(seen)
        assert sampler.is_finished
        assert seen.to_text() == text
        assert sampler.seen.num_observed == known
        cloud = sampler.particles
        assert cloud.parameters.shape == (40, MDP.space.num_pairs)
        assert np.isfinite(cloud.parameters).all()
        assert cloud.weights.sum() == pytest.approx(1.0)
        assert 1.0 <= cloud.ess <= 40.0 + 1e-9
        assert np.isfinite(cloud.log_evidence)
        assert {"stage", "observed", "tolerance", "new_tolerance", "seconds", "bellman_error"} <= set(sampler.trace[-1])
        assert not sampler.update(seen)  # nothing new
    count = sampler.seen.count.copy()
    seen.record(*PAIRS[0], float(seen.reward_mean[0]), int(seen.row(0)[0][0]), row=seen.row(0))
    np.testing.assert_array_equal(sampler.seen.count, count)  # it keeps a copy of its own


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_gives_the_same_particles_and_a_saved_sampler_goes_on_with_them(name):
    kind = SAMPLERS[name][2]
    first, second, other = start(name, 1), start(name, 1), start(name, 2)
    for sampler in (first, second, other):
        sampler.update(experience(kind, PAIRS[:2]))
    np.testing.assert_array_equal(first.particles.parameters, second.particles.parameters)
    assert not np.array_equal(first.particles.parameters, other.particles.parameters)
    fresh = start(name, 1)
    arrays, facts = first.pack()
    fresh.unpack({key: value.copy() for key, value in arrays.items()}, facts)
    fresh.rng.bit_generator.state = first.rng.bit_generator.state
    for sampler in (first, fresh):
        sampler.update(experience(kind, PAIRS))
        sampler.move()
    np.testing.assert_array_equal(first.particles.parameters, fresh.particles.parameters)
    np.testing.assert_array_equal(first.particles.log_weights, fresh.particles.log_weights)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_deadline_that_has_passed_leaves_valid_particles_and_the_rest_for_later(name):
    kind = SAMPLERS[name][2]
    sampler = start(name)
    sampler.update(experience(kind, PAIRS), deadline=1e-9)
    assert np.isfinite(sampler.particles.parameters).all()
    assert sampler.particles.weights.sum() == pytest.approx(1.0)
    sampler.update(experience(kind, PAIRS))
    assert sampler.is_finished
    assert sampler.seen.num_observed == len(PAIRS)
