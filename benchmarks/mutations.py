"""Errors put into the code on purpose, each with the test that must notice it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DENSITY, BELLMAN, PIECEWISE, PARTICLES = (
    f"model/kernels/{name}.py" for name in ("density", "bellman", "piecewise", "particles")
)
EXACT, POLYTOPE, HMC, TEMPERING, DIAGNOSTICS = (
    f"inference/{name}.py" for name in ("exact", "polytope_gaussian", "hmc", "tempering", "diagnostics")
)
DENSITIES = "tests/algebra/test_densities.py::"
GRADIENT = DENSITIES + "test_gradients_are_finite_differences"
SOLVE = "tests/algebra/test_bellman_solve.py::"
PIECES = "tests/algebra/test_piecewise.py::"
SAMPLERS = "tests/statistics/test_samplers.py::"
POSTERIORS = "tests/contract/test_posteriors.py::"


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in a file of the package; `test` must then fail."""

    file: str
    old: str
    new: str
    test: str

    @property
    def in_kernel(self) -> bool:
        return "kernels" in self.file


MUTATIONS = [
    Mutation(DENSITY, "slope[k] = -gap * precision", "slope[k] = gap * precision", f"{GRADIENT}[gaussian-gaussian kernel-acyclic]"),
    Mutation(DENSITY, "total -= 0.5 * gap * gap * precision", "total -= gap * gap * precision", DENSITIES + "test_q_density_is_prior_times_likelihood[gaussian kernel-gaussian]"),
    Mutation(DENSITY, "gap = mean[i] - theta[k] + discount * value[t]", "gap = mean[i] - theta[k] + value[t]", DENSITIES + "test_bellman_density_is_the_q_density_over_the_determinant_and_the_jacobian_of_the_scale[gaussian kernel-deterministic loops]"),
    Mutation(DENSITY, "grad[greedy[t]] -= discount * bend", "grad[greedy[t]] += discount * bend", f"{GRADIENT}[gaussian-gaussian kernel-deterministic loops]"),
    Mutation(DENSITY, "grad[greedy[t]] -= discount * layout.probability[e] * bend", "grad[greedy[t]] -= discount * bend", f"{GRADIENT}[gaussian-gaussian kernel-looping]"),
    Mutation(DENSITY, "bend = (nu + 1.0) * z / (nu + z * z)", "bend = nu * z / (nu + z * z)", f"{GRADIENT}[gaussian-student noise-acyclic]"),
    Mutation(DENSITY, "pull += w * (abs(z) - 1.0)", "pull += w * abs(z)", f"{GRADIENT}[gaussian-laplace noise, learned-acyclic]"),
    Mutation(DENSITY, "scale_slope += 1.0 + slope[k] * unit * x[j]", "scale_slope += slope[k] * unit * x[j]", f"{GRADIENT}[gaussian-gaussian noise, learned-acyclic]"),
    Mutation(DENSITY, "total += np.log(unit)", "total += 0.0", DENSITIES + "test_bellman_density_is_the_q_density_over_the_determinant_and_the_jacobian_of_the_scale[gaussian noise, learned-acyclic]"),
    Mutation(DENSITY, "-beyond / prior.softness", "-beyond", f"{GRADIENT}[soft wall on q-gaussian kernel-acyclic]"),
    Mutation(DENSITY, "-z / data.log_scale_sd", "z / data.log_scale_sd", f"{GRADIENT}[gaussian-gaussian noise, learned-acyclic]"),
    Mutation(DENSITY, "squares - n", "squares", f"{GRADIENT}[gaussian-gaussian noise, learned-acyclic]"),
    Mutation(DENSITY, "return total, -log_det", "return total, log_det", DENSITIES + "test_tolerance_zero_is_the_prior_over_the_determinant_on_the_free_pairs[looping]"),
    Mutation(DENSITY, "return total, -log_det", "return total, 0.0", DENSITIES + "test_tolerance_zero_is_the_prior_over_the_determinant_on_the_free_pairs[looping]"),
    Mutation(BELLMAN, "lu[i, layout.place[t]] -= layout.discount * layout.probability[e]", "lu[i, layout.place[t]] -= layout.probability[e]", SOLVE + "test_theta_is_the_smallest_solution_and_the_determinant_is_the_dense_one"),
    Mutation(BELLMAN, "slope[k] += adjoint[s]", "slope[k] += discount * adjoint[s]", SOLVE + "test_the_adjoint_is_the_derivative_of_every_theta"),
    Mutation(BELLMAN, "work.adjoint[t] += layout.discount * layout.probability[e] * slope[k]", "work.adjoint[t] += layout.discount * slope[k]", SOLVE + "test_the_adjoint_is_the_derivative_of_every_theta[0-looping]"),
    Mutation(BELLMAN, "work.adjoint[t] += layout.discount * work.adjoint[s]", "work.adjoint[t] += work.adjoint[s]", SOLVE + "test_the_adjoint_is_the_derivative_of_every_theta"),
    Mutation(BELLMAN, "total += discount * probability[e] * value[successor[e]]", "total += discount * value[successor[e]]", SOLVE + "test_theta_is_the_smallest_solution_and_the_determinant_is_the_dense_one[0-acyclic]"),
    Mutation(PIECEWISE, "bend += rate[k] * rate[k]", "bend += rate[k]", PIECES + "test_the_pieces_integrate_to_the_density_and_carry_its_policies[0-looping-prior0]"),
    Mutation(PIECEWISE, "exponent - log_det", "exponent + log_det", PIECES + "test_the_pieces_integrate_to_the_density_and_carry_its_policies"),
    Mutation(PIECEWISE, "push += rate[k] * gap", "push -= rate[k] * gap", PIECES + "test_the_pieces_integrate_to_the_density_and_carry_its_policies[0-looping-prior0]"),
    Mutation(PIECEWISE, "if left <= 0.0:", "if left >= 0.0:", PIECES + "test_draws_from_the_pieces_have_the_grid_s_moments"),
    Mutation(PARTICLES, "kick = 0.5 * step  # half", "kick = step  # half", DENSITIES + "test_the_compiled_leapfrog_is_the_plain_one"),
    Mutation(EXACT, "return np.exp(log_weights - self._shift)", "return np.ones_like(log_weights)", "tests/algebra/test_exact.py::test_the_looping_example_has_its_known_values"),
    Mutation(EXACT, "1.0 / np.sqrt(1.0 + singular**2)", "1.0 / (1.0 + singular**2)", "tests/algebra/test_exact.py::test_the_lemma_s_known_values"),
    Mutation(EXACT, "step = -self.space.discount * self.table.probability[inside]", "step = -self.table.probability[inside]", "tests/algebra/test_exact.py::test_agrees_with_brute_force[0.0-discounted]"),
    Mutation(EXACT, "log_evidence = -0.5 * (gap @ solved + log_det", "log_evidence = -0.5 * (gap @ solved - log_det", "tests/algebra/test_exact.py::test_the_looping_example_has_its_known_values"),
    Mutation(POLYTOPE, "log_weight += 0.5 * tilt[j] ** 2 - tilt[j] * z[:, j] + mass", "log_weight += 0.5 * tilt[j] ** 2 + tilt[j] * z[:, j] + mass", "tests/algebra/test_normal_and_polytope.py::test_far_tails_keep_their_relative_accuracy"),
    Mutation(HMC, "gain = smooth_gain + new_density[:, 1] - density[:, 1]", "gain = smooth_gain", SAMPLERS + "test_the_looping_example_by_hmc_with_and_without_sweeps[False]"),
    Mutation(HMC, "(p**2 - new_p**2)", "(new_p**2 - p**2)", "tests/invariants/test_hmc.py::test_small_steps_are_always_accepted_and_absurd_ones_never"),
    Mutation(HMC, "p = rng.standard_normal((num, size)) / np.sqrt(tuning.inverse_mass)", "p = 0.9 * rng.standard_normal((num, size)) / np.sqrt(tuning.inverse_mass)", SAMPLERS + "test_learned_scales_agree_with_a_grid_on_a_bandit"),
    Mutation(TEMPERING, "cold.sum(axis=1) + hot.sum(axis=1)", "cold.sum(axis=1) - hot.sum(axis=1)", SAMPLERS + "test_tempering_agrees_with_exact"),
    Mutation(DIAGNOSTICS, "2.0 * pairs.sum(axis=0) - 1.0", "pairs.sum(axis=0)", "tests/algebra/test_diagnostics.py::test_effective_sample_size_of_an_autoregression_is_the_closed_form"),
    Mutation("answers.py", "values = self.weights @ self.draws if", "values = self.draws.mean(axis=0) if", POSTERIORS + "test_weights_are_never_forgotten"),
    Mutation("answers.py", "values = self.weights @ self._optimal(ties)", "values = self._optimal(ties).mean(axis=0)", POSTERIORS + "test_weights_are_never_forgotten"),
    Mutation("model/reward.py", "total = precision + 1.0 / self.prior.scale**2", "total = precision", SAMPLERS + "test_conjugate_reward_draws_have_the_closed_form_and_chains_agree"),
]  # fmt: skip


def is_killed(mutation: Mutation) -> bool:
    """Return whether the named test fails on a copy of the package with the mutation."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)  # keeps times, and so the compiled kernels of unchanged files
        path = source / "qposterior" / mutation.file
        text = path.read_text()
        if mutation.old not in text:
            raise ValueError(f"{mutation.file} has no {mutation.old!r}")
        path.write_text(text.replace(mutation.old, mutation.new))
        # Without the compiler a mutated kernel need not be compiled again.
        environment = os.environ | {"PYTHONPATH": str(source), "NUMBA_DISABLE_JIT": str(int(mutation.in_kernel))}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutation.test]
        answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode not in (0, 1):
        raise RuntimeError(f"{mutation.test} could not run: {answer.stdout[-500:]}{answer.stderr[-500:]}")
    return answer.returncode == 1
