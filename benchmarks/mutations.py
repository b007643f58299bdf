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
TARGET, RECORDS, CROSS_CHECK = "model/target.py", "inference/records.py", "inference/cross_check.py"
FEEDBACK, EXCHANGE = "inference/feedback.py", "model/kernels/exchange.py"
FEEDBACK_TESTS = "tests/statistics/test_feedback.py::"
DENSITIES = "tests/algebra/test_densities.py::"
CARELESS = "tests/algebra/test_careless_logs.py::"
JOINED = "tests/algebra/test_parts.py::"
GRADIENT = DENSITIES + "test_gradients_are_finite_differences"
SOLVE = "tests/algebra/test_bellman_solve.py::"
CHARTS, QUADRATURE, PLAIN_TESTS = "model/charts.py", "model/quadrature.py", "tests/algebra/test_plain.py::"
PIECES = "tests/algebra/test_piecewise.py::"
SAMPLERS = "tests/statistics/test_samplers.py::"
POSTERIORS = "tests/contract/test_posteriors.py::"
TOLERANCE, ISLANDS, ONE_STEP, ADAPTATION, ANNEALED_FILE, ONE_LOOK = (
    f"inference/smc/{name}.py" for name in ("tolerance", "islands", "one_step", "adaptation", "annealed", "one_look")
)
BLOCKS, LANES_FILE, BLOCK_PARTICLES = "model/kernels/blocks.py", "model/kernels/lanes.py", "inference/smc/blocks.py"
BLOCK_TESTS = "tests/algebra/test_blocks.py::"
NEXT = "tests/algebra/test_tolerance.py::"
ADAPT = "tests/algebra/test_adaptation.py::"
ANNEALED = "tests/statistics/test_annealed.py::"
LOOK = "tests/statistics/test_one_look.py::"
UNCERTAIN = "tests/statistics/test_uncertain.py::"
RAW = "tests/algebra/test_raw_logs.py::"
BINS, NUMERIC = "tests/algebra/test_bins.py::", "tests/statistics/test_numeric.py::"
SERVE = "tests/browser/test_serve.py::"
FOLDERS = "tests/invariants/test_fit_folders.py::"
STORED = "tests/invariants/test_stored_files.py::"
WEIGHTS = "tests/algebra/test_weights.py::"
UNITS = "tests/invariants/test_units.py::"
TRUST = "tests/statistics/test_trust.py::"
HONEST = "tests/statistics/test_fit_is_honest.py::"
SCALES, NOISE = "model/kernels/scales.py", "model/kernels/noise.py"
PARTS = "tests/algebra/test_hierarchy_parts.py::"
LARGE = "tests/statistics/test_large_logs.py::"
SYSTEMS, COMPONENTS, OPTIMA = (f"model/kernels/{name}.py" for name in ("systems", "components", "optima"))
MODELS = "tests/algebra/test_models.py::"
ALL_POLICIES = MODELS + "test_the_optimum_is_that_of_all_policies"
DENSE_ALGEBRA = MODELS + "test_values_and_visits_of_a_stochastic_policy_are_those_of_dense_algebra"
VALUED = "tests/algebra/test_policies.py::"
POLICY_FILE = "tests/algebra/test_policy_file.py::"
PAPER = "../qposterior_paper/"


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in a file, named from the folder of the package; `test` must then fail."""

    file: str
    old: str
    new: str
    test: str

    @property
    def in_kernel(self) -> bool:
        return "kernels" in self.file

    def applied_in(self, source: Path) -> str:
        """Return the mutated text of the file below `source`, where the text to replace stands exactly once."""
        text = (source / "qposterior" / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {self.old!r} {times} times instead of once")
        return text.replace(self.old, self.new)


MUTATIONS = [
    Mutation(LANES_FILE, 'where_less = _choice("<")', 'where_less = _choice("<=")', BLOCK_TESTS + "test_losing_exits_are_drawn_from_the_prior_below_the_value_of_their_state"),
    Mutation(BLOCKS, "slope = add(slope, where_equal(theta, best, pull, zero))", "slope = add(slope, pull)", BLOCK_TESTS + "test_density_gradient_and_theta_are_those_of_the_general_kernel"),
    Mutation(BLOCKS, "pull = where_equal(theta, best, zero, pull)", "pull = add(pull, zero)", BLOCK_TESTS + "test_density_gradient_and_theta_are_those_of_the_general_kernel"),
    Mutation(BLOCKS, "square = splat(opened.discount * opened.discount)", "square = splat(opened.discount)", BLOCK_TESTS + "test_masses_are_the_largest_curvatures_and_fade"),
    Mutation(BLOCKS, "changed = where_less(drawn, best, drawn, here)", "changed = drawn", BLOCK_TESTS + "test_losing_exits_are_drawn_from_the_prior_below_the_value_of_their_state"),
    Mutation(BLOCKS, "store(x, u, column, where_less(threshold, gained, load(place, u, 0), load(x, u, column)))", "store(x, u, column, load(place, u, 0))", BLOCK_TESTS + "test_trajectories_are_those_of_the_general_kernel"),
    Mutation(BLOCKS, "kick = splat(0.5 * step)\n        for u in range(size):", "kick = splat(step)\n        for u in range(size):", BLOCK_TESTS + "test_trajectories_are_those_of_the_general_kernel"),
    Mutation(BLOCKS, "if graph.num_open[s] == 0:", "if False:", BLOCK_TESTS + "test_only_open_states_are_swept_and_values_are_drawn_when_a_state_is_met"),
    Mutation(BLOCKS, "if line > begin:\n", "if False:\n", BLOCK_TESTS + "test_weights_of_first_looks_are_those_of_the_general_path"),
    Mutation(BLOCKS, "limit = max(c, mean + scale * np.sqrt(2.0 * room))", "limit = mean + scale", BLOCK_TESTS + "test_weights_of_first_looks_are_those_of_the_general_path"),
    Mutation(BLOCK_PARTICLES, "if rng is not None:", "if False:", BLOCK_TESTS + "test_only_open_states_are_swept_and_values_are_drawn_when_a_state_is_met"),
    Mutation(BLOCK_PARTICLES, "return not (is_known and bool(np.any(ancestors(self.graph, s) == t)))", "return True", BLOCK_TESTS + "test_what_is_no_problem_for_blocks_is_refused"),
    Mutation(CHARTS, "if not np.array_equal(self.layout.observed, self.seen.observed_pairs):", "if False:", "tests/statistics/test_own_parts.py::test_rows_of_other_pairs_than_those_seen_are_refused"),
    Mutation(CHARTS, "(self.parts.layout_given, prior, psi, k)", "(self.parts.layout, prior, psi, k)", "tests/statistics/test_own_parts.py::test_conditionals_are_those_given_the_rows_that_were_put_in"),
    Mutation("model/prior.py", "if any(owner is not written_for and", "if False and any(owner is not written_for and", "tests/statistics/test_own_parts.py::test_a_subclass_with_another_density_is_sampled_by_it"),
    Mutation(ANNEALED_FILE, "reach = np.where(is_possible, reach, -np.inf)", "pass", "tests/statistics/test_own_parts.py::test_a_noise_of_ones_own_with_an_edge_is_annealed_without_end_no_more"),
    Mutation(DENSITY, "gap_a, gap_b = mean[k] - theta[k],", "gap_a, gap_b = -theta[k],", DENSITIES + "test_q_density_is_prior_times_likelihood[deterministic loops-gaussian kernel-gaussian]"),
    Mutation(DENSITY, "total = prior.log_norm - 0.5 * gaussian", "total = prior.log_norm - gaussian", DENSITIES + "test_q_density_is_prior_times_likelihood[deterministic loops-gaussian kernel-gaussian]"),
    Mutation(DENSITY, "c += gap_c * slope_c", "c += gap_b * slope_c", DENSITIES + "test_q_density_is_prior_times_likelihood[deterministic loops-gaussian kernel-gaussian]"),
    Mutation(DENSITY, "    for k in range(whole, theta.size):", "    for k in range(whole + 1, theta.size):", DENSITIES + "test_the_prior_adds_up_every_pair[6]"),
    Mutation("model/noise.py", "float(log_norm.sum())", "float(log_norm[1:].sum())", DENSITIES + "test_q_density_is_prior_times_likelihood[deterministic loops-gaussian kernel-gaussian]"),
    Mutation(DENSITY, "gap = mean[i] - theta[k] + discount * value[t]", "gap = mean[i] - theta[k] + value[t]", DENSITIES + "test_bellman_density_is_the_q_density_over_the_determinant_and_the_jacobian_of_the_scale[gaussian kernel-deterministic loops]"),
    Mutation(DENSITY, "grad[greedy[t]] -= discount * bend", "grad[greedy[t]] += discount * bend", f"{GRADIENT}[gaussian-gaussian kernel-deterministic loops]"),
    Mutation(DENSITY, "grad[greedy[t]] -= discount * layout.probability[e] * bend", "grad[greedy[t]] -= discount * bend", f"{GRADIENT}[gaussian-gaussian kernel-looping]"),
    Mutation(DENSITY, "bend = (nu + 1.0) * z / (nu + z * z)", "bend = nu * z / (nu + z * z)", f"{GRADIENT}[gaussian-student noise-acyclic]"),
    Mutation(DENSITY, "pull += w * (abs(z) - 1.0)", "pull += w * abs(z)", f"{GRADIENT}[gaussian-laplace noise, learned-acyclic]"),
    Mutation(DENSITY, "scale_slope += 1.0 + slope[k] * unit * x[j]", "scale_slope += slope[k] * unit * x[j]", f"{GRADIENT}[gaussian-gaussian noise, learned-acyclic]"),
    Mutation(DENSITY, "total += np.log(unit)", "total += 0.0", DENSITIES + "test_bellman_density_is_the_q_density_over_the_determinant_and_the_jacobian_of_the_scale[gaussian noise, learned-acyclic]"),
    Mutation(DENSITY, "-beyond / prior.softness", "-beyond", f"{GRADIENT}[soft wall on q-gaussian kernel-acyclic]"),
    Mutation(DENSITY, "-z / data.log_scale_sd", "z / data.log_scale_sd", f"{GRADIENT}[gaussian-gaussian noise, learned-acyclic]"),
    Mutation(DENSITY, "squares - m", "squares", f"{GRADIENT}[gaussian-gaussian noise, learned-acyclic]"),
    Mutation(DENSITY, "return total, -log_det", "return total, log_det", DENSITIES + "test_tolerance_zero_is_the_prior_over_the_determinant_on_the_free_pairs[looping]"),
    Mutation(DENSITY, "return total, -log_det", "return total, 0.0", DENSITIES + "test_tolerance_zero_is_the_prior_over_the_determinant_on_the_free_pairs[looping]"),
    Mutation(BELLMAN, "lu[i, layout.place[t]] -= layout.discount * layout.probability[e]", "lu[i, layout.place[t]] -= layout.probability[e]", SOLVE + "test_theta_is_the_smallest_solution_and_the_determinant_is_the_dense_one"),
    Mutation(BELLMAN, "slope[k] += adjoint[s]", "slope[k] += discount * adjoint[s]", SOLVE + "test_the_adjoint_is_the_derivative_of_every_theta"),
    Mutation(BELLMAN, "work.adjoint[t] += layout.discount * layout.probability[e] * slope[k]", "work.adjoint[t] += layout.discount * slope[k]", SOLVE + "test_the_adjoint_is_the_derivative_of_every_theta[0-looping]"),
    Mutation(BELLMAN, "work.adjoint[t] += layout.discount * work.adjoint[s]", "work.adjoint[t] += work.adjoint[s]", SOLVE + "test_the_adjoint_is_the_derivative_of_every_theta"),
    Mutation(BELLMAN, "total += discount * probability[e] * value[successor[e]]", "total += discount * value[successor[e]]", SOLVE + "test_theta_is_the_smallest_solution_and_the_determinant_is_the_dense_one[0-acyclic]"),
    Mutation(PIECEWISE, "bend += weight * rate[k] * rate[k]", "bend += weight * rate[k]", PIECES + "test_the_pieces_integrate_to_the_density_and_carry_its_policies[0-looping-prior0]"),
    Mutation(PIECEWISE, "exponent - log_det", "exponent + log_det", PIECES + "test_the_pieces_integrate_to_the_density_and_carry_its_policies"),
    Mutation(PIECEWISE, "push += weight * rate[k] * gap", "push -= weight * rate[k] * gap", PIECES + "test_the_pieces_integrate_to_the_density_and_carry_its_policies[0-looping-prior0]"),
    Mutation(PIECEWISE, "if left <= 0.0:", "if left >= 0.0:", PIECES + "test_draws_from_the_pieces_have_the_grid_s_moments"),
    Mutation(PARTICLES, "    kick = 0.5 * step\n", "    kick = step\n", DENSITIES + "test_the_compiled_leapfrog_is_the_plain_one"),
    Mutation(EXACT, "return np.exp(log_weights - self._shift)", "return np.ones_like(log_weights)", "tests/algebra/test_exact.py::test_the_looping_example_has_its_known_values"),
    Mutation(EXACT, "1.0 / np.sqrt(1.0 + singular**2)", "1.0 / (1.0 + singular**2)", "tests/algebra/test_exact.py::test_the_lemma_s_known_values"),
    Mutation(EXACT, "step = -self.space.discount * self.table.probability[inside]", "step = -self.table.probability[inside]", "tests/algebra/test_exact.py::test_agrees_with_brute_force[0.0-discounted]"),
    Mutation(EXACT, "log_evidence = -0.5 * (gap @ solved + log_det", "log_evidence = -0.5 * (gap @ solved - log_det", "tests/algebra/test_exact.py::test_the_looping_example_has_its_known_values"),
    Mutation(POLYTOPE, "log_weight += 0.5 * tilt[j] ** 2 - tilt[j] * z[:, j] + mass", "log_weight += 0.5 * tilt[j] ** 2 + tilt[j] * z[:, j] + mass", "tests/algebra/test_normal_and_polytope.py::test_far_tails_keep_their_relative_accuracy"),
    Mutation(PARTICLES, "gain[1] = gain[0] + jump - here[1]", "gain[1] = gain[0]", "tests/invariants/test_hmc.py::test_compiled_chains_are_the_plain_ones[bellman]"),
    Mutation(PARTICLES, "kinetic = before - kinetic_energy(", "kinetic = kinetic_energy(p[m], inverse_mass) - before + 0.0 * kinetic_energy(", "tests/invariants/test_hmc.py::test_compiled_chains_are_the_plain_ones[q]"),
    Mutation(PARTICLES, "        start_grad[:] = grad\n", "", "tests/invariants/test_hmc.py::test_compiled_chains_are_the_plain_ones[bellman]"),
    Mutation(PARTICLES, "here[0], here[1] = smooth, jump", "here[0] = smooth", "tests/invariants/test_hmc.py::test_compiled_chains_are_the_plain_ones[bellman]"),
    Mutation(PARTICLES, "        end[:] = start\n", "        pass\n", "tests/invariants/test_hmc.py::test_compiled_chains_are_the_plain_ones[q]"),
    Mutation(TARGET, "smooth + (new_density.jump - density.jump)", "smooth", "tests/invariants/test_hmc.py::test_compiled_chains_are_the_plain_ones[bellman]"),
    Mutation(TARGET, "(p**2 - new_p**2)", "(new_p**2 - p**2)", "tests/invariants/test_hmc.py::test_compiled_chains_are_the_plain_ones[q]"),
    Mutation(HMC, "p = rng.standard_normal((num, times, size)) / np.sqrt(tuning.inverse_mass)", "p = 0.9 * rng.standard_normal((num, times, size)) / np.sqrt(tuning.inverse_mass)", SAMPLERS + "test_learned_scales_agree_with_a_grid_on_a_bandit"),
    Mutation(TARGET, "and own.leapfrog is Target.leapfrog", "", "tests/invariants/test_hmc.py::test_leapfrog_steps_of_ones_own_alone_are_those_that_chains_take"),
    Mutation(HMC, "        state, move = _advance(", "        _, move = _advance(", "tests/invariants/test_hmc.py::test_a_run_goes_on_where_its_last_part_ended[q]"),
    Mutation(HMC, "replace(move, path=state.x[:, None], density=state.density)", "replace(move, density=state.density)", "tests/invariants/test_hmc.py::test_a_run_goes_on_where_its_last_part_ended[bellman]"),
    Mutation(TEMPERING, "to_cold.total + to_hot.total", "to_cold.total - to_hot.total", SAMPLERS + "test_tempering_agrees_with_exact"),
    Mutation(DIAGNOSTICS, "2.0 * pairs.sum(axis=0) - 1.0", "pairs.sum(axis=0)", "tests/algebra/test_diagnostics.py::test_effective_sample_size_of_an_autoregression_is_the_closed_form"),
    Mutation("weighted_draws.py", "np.tensordot(self.weights[part], value_fn(self.draws[part]), axes=1)", "value_fn(self.draws[part]).mean(axis=0)", POSTERIORS + "test_weights_are_never_forgotten"),
    Mutation("model/charts.py", "total = precision + 1.0 / prior.scale**2", "total = precision", SAMPLERS + "test_conjugate_reward_draws_have_the_closed_form_and_chains_agree"),
    Mutation(BELLMAN, "total = psi[k] + discount * value[next_state[k]]", "total = psi[k] + value[next_state[k]]", SOLVE + "test_the_quick_sweeps_are_the_general_ones"),
    Mutation(BELLMAN, "adjoint[next_state[k]] += discount * slope[k]", "adjoint[next_state[k]] -= discount * slope[k]", SOLVE + "test_the_quick_sweeps_are_the_general_ones"),
    Mutation(PIECEWISE, "misfit += gap * gap", "misfit += 0.5 * gap * gap", PIECES + "test_the_pieces_integrate_to_the_density_and_carry_its_policies"),
    Mutation(PIECEWISE, "fill_rates(layout, reach, work, unit, rate) + log_det_elsewhere", "fill_rates(layout, reach, work, unit, rate)", PIECES + "test_the_pieces_integrate_to_the_density_and_carry_its_policies"),
    Mutation(TOLERANCE, "wanted = factor * weighted_ess(log_weights)", "wanted = factor * log_weights.size", NEXT + "test_next_tolerance_under_unequal_incoming_weights_is_relative_to_their_ess"),
    Mutation(TOLERANCE, "total = log_weights + log_gain", "total = log_gain", NEXT + "test_next_tolerance_under_unequal_incoming_weights_is_relative_to_their_ess"),
    Mutation(TOLERANCE, "-0.5 * misfit @ tau**-2.0 - constant", "-1.0 * misfit @ tau**-2.0 - constant", NEXT + "test_gains_are_differences_of_the_kernels_for_tolerances_that_differ_by_pair[gaussian]"),
    Mutation(TOLERANCE, "-0.5 * misfit @ tau**-2.0 - constant", "-0.5 * misfit @ tau**-2.0", NEXT + "test_gains_are_differences_of_the_kernels_for_tolerances_that_differ_by_pair[gaussian]"),
    Mutation(TOLERANCE, "self._gain(np.minimum(self.tolerance, ceiling))", "self._gain(np.maximum(self.tolerance, ceiling))", NEXT + "test_gains_are_differences_of_the_kernels_for_tolerances_that_differ_by_pair[gaussian]"),
    Mutation(TOLERANCE, "(min(self.tolerance, ceiling) ** -2.0 - self.tolerance**-2.0)", "(min(self.tolerance, ceiling) ** -1.0 - self.tolerance**-1.0)", NEXT + "test_powers_of_the_likelihood_add_up"),
    Mutation(RECORDS, "increment = float(top) + log_sum", "increment = float(top) + 0.9 * log_sum", ANNEALED + "test_weights_alone_are_right_without_any_move_or_resampling"),
    Mutation(RECORDS, "total = self.log_weights + (gain - top)", "total = -np.log(self.log_weights.size) + (gain - top)", ANNEALED + "test_weights_alone_are_right_without_any_move_or_resampling"),
    Mutation(RECORDS, "log_weights=np.full(index.size, -np.log(index.size))", "log_weights=self.log_weights[index] - np.log(np.exp(self.log_weights[index]).sum())", ANNEALED + "test_resampled_particles_are_equally_weighted_and_the_evidence_stays"),
    Mutation("model/prior.py", "ndtri(below * ndtr(", "ndtri(ndtr(", ANNEALED + "test_prior_draws_below_a_wall_are_a_truncated_normal"),
    Mutation(ONE_STEP, "weighted.ess < settings.resample_below", "weighted.ess > settings.resample_below", ANNEALED + "test_the_adaptive_update_follows_its_rules"),
    Mutation(ONE_STEP, "find_resampling(settings.resampling)(particles.weights, rng, num)", "find_resampling(settings.resampling)(np.full(particles.num, 1.0 / particles.num), rng, num)", ANNEALED + "test_stages_one_to_three_reach_the_posterior_at_a_tolerance[acyclic-q-0.3]"),
    Mutation(ADAPTATION, "0.5 * total[-1]", "0.9 * total[-1]", ADAPT + "test_the_step_bound_is_the_weighted_median_regression"),
    Mutation(ADAPTATION, "np.sum((end - x) ** 2 / variance, axis=1)", "np.sum((end - x) ** 2 * variance, axis=1)", ADAPT + "test_jump_distances_count_in_standard_deviations"),
    Mutation(ADAPTATION, "/ num_steps * np.exp", "* np.exp", ADAPT + "test_kernels_are_drawn_by_jump_distance_per_gradient"),
    Mutation(ADAPTATION, "(self.length - 1) / self.length * within + between", "within + between", ADAPT + "test_the_mixing_ratio_is_the_printed_one_for_equal_weights"),
    Mutation(ADAPTATION, "np.mean(chosen > high)", "np.mean(chosen < high)", ADAPT + "test_the_leapfrog_bound_grows_and_shrinks_by_five"),
    Mutation(ANNEALED_FILE, "np.minimum(self.tolerances, tolerance)", "np.full_like(self.tolerances, tolerance)", ANNEALED + "test_tolerances_may_differ_by_pair"),
    Mutation(ANNEALED_FILE, "2.0 * self.floor if is_common", "4.0 * self.floor if is_common", ANNEALED + "test_ineffective_moves_raise_the_tolerance_at_most_twofold_a_step"),
    Mutation(ANNEALED_FILE, "stale = 0 if stage.bellman_error < best_error", "stale = 0 if stage.bellman_error > best_error", ANNEALED + "test_the_bellman_error_stops_the_reduction_after_three_steps_without_improvement"),
    Mutation(ANNEALED_FILE, "else ineffective + 1", "else ineffective + 2", ANNEALED + "test_ineffective_moves_raise_the_tolerance_at_most_twofold_a_step"),
    Mutation(ANNEALED_FILE, "np.sum(misfits**2, axis=1)", "np.sum(np.abs(misfits), axis=1)", ANNEALED + "test_the_bellman_error_is_the_weighted_mean_of_squared_residuals"),
    Mutation(ANNEALED_FILE, "else tau**-2.0", "else tau**-1.0", ANNEALED + "test_noisy_readings_are_annealed_by_their_likelihood[q]"),
    Mutation("model/noise.py", "weight[old_rows] = (1.0 - share) * old.num_readings", "weight[old_rows] = old.num_readings", NEXT + "test_blended_readings_have_the_blended_log_likelihood"),
    Mutation(CHARTS, "in_theta[np.arange(theta.shape[0])[:, None], chosen] -=", "in_theta[np.arange(theta.shape[0])[:, None], chosen] +=", PLAIN_TESTS + "test_both_paths_give_the_same_densities_and_gradients[kind0-gaussian kernel-gaussian-looping]"),
    Mutation(CHARTS, "jump=-log_det", "jump=log_det", PLAIN_TESTS + "test_both_paths_give_the_same_densities_and_gradients[Target-exact-gaussian-looping]"),
    Mutation(CHARTS, "grad = slope[:, self.free] * at.unit", "grad = slope[:, self.free]", PLAIN_TESTS + "test_both_paths_give_the_same_densities_and_gradients[Target-gaussian noise, learned-gaussian-looping]"),
    Mutation(CHARTS, "log_volume=np.log(unit).sum(axis=1)", "log_volume=np.zeros(x.shape[0])", PLAIN_TESTS + "test_both_paths_give_the_same_densities_and_gradients[Target-gaussian noise, learned-gaussian-looping]"),
    Mutation(CHARTS, "        over_particles(particles.pull_backs, slope.shape[0], *given, work=slope.size)\n", "", PLAIN_TESTS + "test_both_paths_give_the_same_densities_and_gradients[Target-exact-gaussian-looping]"),
    Mutation(QUADRATURE, "* (1.0 + t**2) / (1.0 - t**2) ** 2", "/ (1.0 - t**2) ** 2", PLAIN_TESTS + "test_quadrature_gives_the_integral_of_the_gaussian_pieces[gaussian-looping]"),
    Mutation(QUADRATURE, "PANELS, NODES, DEEPEST = 16, 8, 14", "PANELS, NODES, DEEPEST = 16, 8, 2", PLAIN_TESTS + "test_quadrature_gives_the_integral_of_the_gaussian_pieces[gaussian-looping]"),
    Mutation("model/noise.py", "total, bend = self.share * total, self.share * bend", "total, bend = total, self.share * bend", PLAIN_TESTS + "test_a_blend_of_readings_is_linear_in_the_log_likelihood"),
    Mutation(ANNEALED_FILE, "readings.blend(self.before, self.power)", "readings.blend(self.before, 1.0)", "tests/statistics/test_own_parts.py::test_noise_of_ones_own_has_the_evidence_of_the_exact_one"),
    Mutation(CHARTS, "not is_met and not self.parts.has_own_prior and", "not is_met and", "tests/statistics/test_own_parts.py::test_one_look_updates_have_the_right_probabilities_and_evidence[acyclic-related]"),
    Mutation(ONE_LOOK, "after.log_density(x).total - log_integral", "after.log_density(x).total", LOOK + "test_weights_alone_are_right_without_any_move_or_resampling"),
    Mutation(ONE_LOOK, "/ scale) ** 2 - np.log(scale)", "/ scale) ** 2", LOOK + "test_alone_pairs_have_the_prior_density_as_weight"),
    Mutation(ONE_LOOK, "after.log_likelihood(theta, log_scale) - before.log_likelihood(theta, log_scale)", "after.log_likelihood(theta, log_scale)", LOOK + "test_noisy_readings_arrive_in_parts"),
    Mutation("inference/smc/resampling.py", "(np.arange(num) + rng.random()) / num)", "(np.arange(num) + rng.random()) / (num + 1))", LOOK + "test_every_resampling_scheme_is_unbiased[systematic]"),
    Mutation("inference/smc/sampler.py", "self.rng.choice(self.particles.num, p=self.particles.weights)", "self.rng.choice(self.particles.num)", LOOK + "test_policies_are_drawn_with_their_posterior_probability"),
    Mutation(ONE_LOOK, "self.rng.choice(self._particles.num, p=self._particles.weights)", "self.rng.choice(self._particles.num)", LOOK + "test_policies_are_drawn_with_their_posterior_probability"),
    Mutation(HMC, '< proposed - density', '< density - proposed', 'tests/statistics/test_uncertain.py::test_a_self_loop_with_unknown_odds_agrees_with_quadrature[1.0]'),
    Mutation(HMC, 'np.log(rng.random(density.size)) < proposed - density', 'np.full(density.size, True)', 'tests/statistics/test_uncertain.py::test_a_self_loop_with_unknown_odds_agrees_with_quadrature[1.0]'),
    Mutation('model/rows.py', '+ counts.successor)] += weight', '+ counts.successor)] += 0.5 * weight', 'tests/statistics/test_uncertain.py::test_rows_of_the_target_are_rows_and_follow_the_counts'),
    Mutation('model/rows.py', 'self.concentration / size[candidate_row].astype(float)', 'self.concentration * np.ones(candidate_row.size)', 'tests/statistics/test_uncertain.py::test_rows_of_the_target_are_rows_and_follow_the_counts'),
    Mutation(HMC, '        return redraw_rows(target, state, rng)\n', '        return state\n', 'tests/statistics/test_uncertain.py::test_a_self_loop_with_unknown_odds_agrees_with_quadrature[1.0]'),
    Mutation('inference/smc/joint_moves.py', '            state = redraw(target, state, self.rng)\n', '', 'tests/statistics/test_uncertain.py::test_particles_that_follow_by_moves_reach_the_joint_posterior'),
    Mutation('inference/smc/joint_moves.py', 'self.is_noisy = True', 'self.is_noisy = False', 'tests/contract/test_agents.py::test_abrl_explores_an_environment_that_has_no_table'),
    Mutation('inference/exact.py', 'int(np.prod(tied))', 'int(np.sum(tied))', 'tests/algebra/test_exact.py::test_ties_of_several_states_share_a_policy_s_probability_as_a_product[3]'),
    Mutation('weighted_draws.py', 'weights = self.weights * np.exp(np.minimum(ratio - top, 0.0))', 'weights = np.exp(np.minimum(ratio - top, 0.0))', 'tests/contract/test_posteriors.py::test_reweighting_gives_the_posterior_of_another_prior'),
    Mutation('agents/q_ensemble.py', 'settings.discount * following', 'following', 'tests/algebra/test_bootstrapped_dqn.py::test_two_training_steps_are_those_computed_by_hand'),
    Mutation('agents/q_ensemble.py', 'jnp.where(batch["is_going_on"] > 0, following, 0.0)', 'following', 'tests/algebra/test_bootstrapped_dqn.py::test_two_training_steps_are_those_computed_by_hand'),
    Mutation('agents/q_ensemble.py', 'jnp.mean(batch["mask"] * (', 'jnp.mean((', 'tests/algebra/test_bootstrapped_dqn.py::test_two_training_steps_are_those_computed_by_hand'),
    Mutation('agents/q_ensemble.py', 'network(weights, batch["state"]) + settings.prior_scale * network(prior, batch["state"])', 'network(weights, batch["state"])', 'tests/algebra/test_bootstrapped_dqn.py::test_two_training_steps_are_those_computed_by_hand'),
    Mutation("agents/layers.py", "np.flatnonzero(self.first == NEVER)", "np.flatnonzero(self.first != NEVER)", "tests/algebra/test_baselines.py::test_unseen_pairs_lead_to_unmet_states_while_there_are_some"),
    Mutation('experiments/statistics.py', '0.5 * (a[:, None] == b)', '1.0 * (a[:, None] == b)', 'tests/algebra/test_statistics.py::test_the_probability_to_beat_counts_ties_half_and_censored_runs_last'),
    Mutation('experiments/statistics.py', 'time=np.where(solved, times, np.inf)', 'time=times', 'tests/algebra/test_statistics.py::test_who_learns_first_is_counted_over_the_common_depths'),
    Mutation('world/moments.py', 'second=one.second + two.second + between', 'second=one.second + two.second', 'tests/algebra/test_logs.py::test_sums_are_those_of_pandas_in_one_chunk_or_many'),
    Mutation('world/moments.py', 'power = weights * gap', 'power = gap.copy()', 'tests/algebra/test_logs.py::test_sums_are_those_of_pandas_in_one_chunk_or_many'),
    Mutation('world/moments.py', '(other - mean) * (m /', '(other - mean) * (n /', 'tests/algebra/test_logs.py::test_sums_are_those_of_pandas_in_one_chunk_or_many'),
    Mutation('world/moments.py', '(p - q) + 3.0', '(q - p) + 3.0', 'tests/algebra/test_moments.py::test_any_cut_and_any_order_of_merging_gives_the_same'),
    Mutation('world/moments.py', '(p * third[1] - q * third[0])', '(p * third[0] - q * third[1])', 'tests/algebra/test_moments.py::test_any_cut_and_any_order_of_merging_gives_the_same'),
    Mutation('world/moments.py', 'mean=mean + c,', 'mean=mean,', 'tests/algebra/test_moments.py::test_equal_readings_have_no_spread'),
    Mutation('world/sums.py', 'self.weights.copy(), self.rewards.copy()', 'self.weights.copy(), self.rewards', 'tests/algebra/test_sums.py::test_copies_and_texts_have_the_same_sums'),
    Mutation('world/experience.py', 'Edges(*checked, rewards[order])', 'Edges(*checked, rewards)', 'tests/algebra/test_sums.py::test_a_text_without_rewards_of_successors_still_reads'),
    Mutation('logs/value.py', 'spread / np.sqrt(spread + noise[pairs])', 'np.sqrt(spread)', 'tests/statistics/test_fit.py::test_the_worth_of_a_reading_agrees_with_simulation'),
    Mutation('logs/value.py', '0.0) * visited[space.pair_state[pairs]]', '0.0)', 'tests/statistics/test_fit.py::test_visits_and_worth_count_how_often_a_state_is_reached'),
    Mutation('logs/value.py', 'expected - centre[pairs].max(', 'expected - centre[pairs].min(', 'tests/statistics/test_fit.py::test_the_worth_of_a_reading_agrees_with_simulation'),
    Mutation('logs/fit.py', 'space.maximum(draws)[:, space.pair_state] - draws', 'draws - space.maximum(draws)[:, space.pair_state]', 'tests/statistics/test_fit.py::test_the_table_adds_up'),
    Mutation('logs/checks.py', 'table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()', 'np.full_like(table, table.mean())', 'tests/statistics/test_fit.py::test_a_log_with_memory_is_noticed_and_one_without_is_not'),
    Mutation('logs/checks.py', 'free += (before.size - 1) * (after.size - 1)', 'free += 40 * before.size * after.size', 'tests/statistics/test_fit.py::test_a_log_with_memory_is_noticed_and_one_without_is_not'),
    Mutation(PAPER + 'bandit.py', 'np.delete(below, k, axis=1)', 'below', 'tests/cli/test_paper.py::test_closed_form_of_the_bandit_against_draws'),
    Mutation(PAPER + 'five_state.py', '(k * d - c)', '(k * d + c)', 'tests/cli/test_paper.py::test_the_lemma_is_the_gaussian_posterior_of_the_five_state_example'),
    Mutation('experiments/run_spec.py', 'asdict(self) | {"agent": self.label or self.agent}', 'asdict(self)', 'tests/invariants/test_compare.py::test_labels_tell_runs_of_one_agent_apart_and_keys_pick_them_out'),
    Mutation("model/rows.py", "int(seen.count[k]) - self.size(k)", "int(seen.count[k])", UNCERTAIN + "test_a_pool_grows_with_the_readings_and_its_rows_are_taken_as_known"),
    Mutation("model/rows.py", "is_met = window[place] == drawn", "is_met = window[place] >= 0", UNCERTAIN + "test_fresh_draws_leave_out_a_successor_that_the_first_look_has_not_met"),
    Mutation("weighted_draws.py", "self.weights.size * (1.0 - 1e-12))) - 1, 0)", "self.weights.size * (1.0 - 1e-12))), 0)", POSTERIORS + "test_weights_are_never_forgotten"),
    Mutation("logs/choices.py", "(np.ones(source.size), (source, target))", "(np.ones(source.size), (target, source))", "tests/algebra/test_logs.py::test_the_prior_is_as_wide_as_the_longest_way_to_a_goal"),
    Mutation("experiments/statistics.py", "-max(len(run) // 4, 1) :", "-max(len(run) // 2, 1) :", "tests/algebra/test_statistics.py::test_returns_are_averaged_over_runs_and_over_their_last_quarter"),
    Mutation("logs/scan.py", "LARGEST = 1e100", "LARGEST = 1e300", "tests/algebra/test_logs.py::test_every_mistake_is_said_in_one_line_with_its_row"),
    Mutation("agents/registry.py", 'usual = "dirichlet" if "dirichlet" in entry.knowledge else entry.transitions', "usual = entry.transitions", "tests/contract/test_agents.py::test_agents_of_a_problem_without_a_table_count_successors"),
    Mutation("agents/psrl.py", "self.mean_count * n * gap**2 / count", "n * gap**2 / count", "tests/algebra/test_baselines.py::test_psrl_rewards_follow_the_normal_gamma_posterior_of_repeated_readings"),
    Mutation("agents/psrl.py", "self.repeats * seen.reward_deviation", "seen.reward_deviation", "tests/algebra/test_baselines.py::test_psrl_rewards_follow_the_normal_gamma_posterior_of_repeated_readings"),
    Mutation("agents/psrl.py", "/ np.sqrt(count * precision)", "/ np.sqrt(precision)", "tests/algebra/test_baselines.py::test_psrl_rewards_follow_the_normal_gamma_posterior_of_repeated_readings"),
    Mutation("agents/rlsvi.py", "np.sqrt(1.0 / total)", "np.sqrt(1.0 / np.maximum(precision, self.prior_sd**-2.0))", "tests/algebra/test_baselines.py::test_rlsvi_is_the_bayesian_regression"),
    Mutation("agents/rlsvi.py", "later[::-1]", "later", "tests/algebra/test_baselines.py::test_baselines_find_the_treasure_of_a_small_sea[rlsvi]"),
    Mutation("agents/rlsvi.py", "value = self.space.maximum(q)", "value = value", "tests/algebra/test_baselines.py::test_baselines_find_the_treasure_of_a_small_sea[rlsvi]"),
    Mutation("agents/ucbvi.py", "log_term / np.maximum(seen.count, 1)", "log_term) / np.maximum(seen.count, 1", "tests/algebra/test_baselines.py::test_ucbvi_adds_the_hoeffding_bonus_and_clips_it"),
    Mutation("agents/ucbvi.py", "np.minimum(q, most), most)", "q, most)", "tests/algebra/test_baselines.py::test_ucbvi_adds_the_hoeffding_bonus_and_clips_it"),
    Mutation("agents/ucbvi.py", "later[::-1]", "later", "tests/algebra/test_baselines.py::test_baselines_find_the_treasure_of_a_small_sea[ucbvi]"),
    Mutation("agents/bayesian_q_learning.py", "(self.count[k] + 1.0) / self.count[k] * self.rate[k]", "self.rate[k]", "tests/algebra/test_baselines.py::test_bayesian_q_learning_updates_by_the_moments_of_the_return[0.8]"),
    Mutation("agents/bayesian_q_learning.py", "discount**2 * second", "discount * second", "tests/algebra/test_baselines.py::test_bayesian_q_learning_updates_by_the_moments_of_the_return[0.8]"),
    Mutation("agents/bayesian_q_learning.py", "self.rate[pairs] / (self.shape[pairs] * self.count[pairs])", "self.rate[pairs] / self.shape[pairs]", "tests/algebra/test_baselines.py::test_bayesian_q_learning_acts_with_the_probability_of_being_best"),
    Mutation("experiments/statistics.py", "right_censored(times, ~np.asarray(is_observed))", "right_censored(times, np.asarray(is_observed))", "tests/algebra/test_statistics.py::test_kaplan_meier_by_hand"),
    Mutation("experiments/statistics.py", "half.min(initial=np.inf)", "half.max(initial=-np.inf)", "tests/algebra/test_statistics.py::test_kaplan_meier_by_hand"),
    Mutation("experiments/statistics.py", "log_ndtr(-z)", "log_ndtr(z)", "tests/algebra/test_statistics.py::test_exponents_are_recovered_with_and_without_censoring[400.0]"),
    Mutation("experiments/statistics.py", "-0.5 * z**2 - log_sd, log", "-0.5 * z**2, log", "tests/algebra/test_statistics.py::test_exponents_are_recovered_with_and_without_censoring[400.0]"),
    Mutation("experiments/statistics.py", "cut = int(0.25 * ordered.size)", "cut = round(0.25 * ordered.size)", "tests/algebra/test_statistics.py::test_the_interquartile_mean_is_scipy_s_trimmed_mean[39]"),
    Mutation("experiments/statistics.py", "episodes - (TRAILING_EPISODES - 1)", "episodes", "tests/algebra/test_statistics.py::test_a_summary_counts_failed_runs_apart_and_censored_ones_where_they_could_have_shown_it"),
    Mutation("experiments/statistics.py", "group = everything[everything[\"status\"] != \"failed\"]", "group = everything", "tests/algebra/test_statistics.py::test_a_summary_counts_failed_runs_apart_and_censored_ones_where_they_could_have_shown_it"),
    Mutation("logs/read.py", "pd.factorize(keys)", "pd.factorize(keys, sort=True)", "tests/algebra/test_logs.py::test_keys_are_numbered_in_the_order_of_their_first_row[50]"),
    Mutation("logs/columns.py", 'text.strip(" \\t")', "text", "tests/algebra/test_logs.py::test_spaces_after_separators_do_not_count_however_late_they_come"),
    Mutation("logs/columns.py", "(0|-?[1-9][0-9]*)", "(-?[0-9]*)", "tests/algebra/test_log_files.py::test_01_is_not_1_but_1_0_is"),
    Mutation("logs/columns.py", "if other != name:", "if False:", "tests/algebra/test_log_files.py::test_two_of_our_columns_cannot_be_one_of_theirs"),
    Mutation("logs/relations.py", " OR c{size} IS NOT NULL", "", "tests/algebra/test_log_files.py::test_one_cell_too_many_or_too_few_is_named_with_its_row"),
    Mutation("logs/relations.py", "c{size - 1} IS NULL OR ", "", "tests/algebra/test_log_files.py::test_one_cell_too_many_or_too_few_is_named_with_its_row"),
    Mutation("logs/relations.py", "[\\g<0>]", "\\g<0>", "tests/algebra/test_log_files.py::test_a_file_s_name_stands_for_itself"),
    Mutation("logs/relations.py", "contains({place}::VARCHAR, '_')", "false", "tests/algebra/test_log_files.py::test_what_is_not_a_number_is_named"),
    Mutation("logs/scan.py", "(weight >= 0.0) & ", "", "tests/algebra/test_log_files.py::test_a_weight_is_finite_and_0_or_more"),
    Mutation("logs/scan.py", "yield {name: column[:CHUNK]", "yield {name: column", "tests/algebra/test_log_files.py::test_the_same_sums_on_one_thread_and_on_two"),
    Mutation("logs/text.py", "if num_rows == self.num_lines - 1:", "if True:", "tests/algebra/test_log_files.py::test_a_blank_line_is_named_unless_the_file_ends_in_it"),
    Mutation("logs/text.py", "decoder.decode(block)", "pass", "tests/algebra/test_log_files.py::test_every_cell_is_utf_8_also_those_that_are_not_asked_for"),
    Mutation("logs/columns.py", "\"\".join(label.split()).casefold()", "label.casefold()", "tests/algebra/test_log_files.py::test_labels_that_differ_only_in_case_or_blanks_are_warned_of"),
    Mutation("logs/read.py", "moments.put(pair, _moments_of(other))", "moments.put(slice(len(pair)), _moments_of(other))", JOINED + "test_sums_that_are_joined_are_those_of_one_reader"),
    Mutation("logs/read.py", "log.starts.get(int(states[code]), 0.0) + number", "number", JOINED + "test_sums_that_are_joined_are_those_of_one_reader"),
    Mutation("logs/read.py", "other.first_row[pair >= log.first_row.size]", "other.first_row[pair < log.first_row.size]", JOINED + "test_sums_that_are_joined_are_those_of_one_reader"),
    Mutation("logs/raw.py", "WHERE line > {start}{end})", "WHERE true)", JOINED + "test_nothing_in_one_file_follows_what_stands_in_another"),
    Mutation("logs/aggregation.py", "of_logged + of_gain)", "0.0 * of_gain)", NUMERIC + "test_what_bins_cost_makes_intervals_longer_and_probabilities_less_sure"),
    Mutation("logs/raw.py", "is_guess or raw.ends == \"last\"", "is_guess", CARELESS + "test_records_that_only_stop_may_be_said_to_and_a_guess_is_flagged"),
    Mutation("logs/raw.py", "not says_ends and raw.ends is None", "not says_ends", CARELESS + "test_records_that_only_stop_may_be_said_to_and_a_guess_is_flagged"),
    Mutation("logs/read.py", "self.log.num_returns += name in known", "self.log.num_returns += 0", CARELESS + "test_rows_of_others_between_those_of_an_episode_are_counted"),
    Mutation("logs/read.py", "self._episode_names.clear()", "pass", CARELESS + "test_rows_of_others_between_those_of_an_episode_are_counted"),
    Mutation("logs/raw.py", "FILTER (NOT is_last AND {has_outcome})", "FILTER ({has_outcome})", CARELESS + "test_outcomes_before_the_last_row_and_copies_are_said"),
    Mutation("logs/raw.py", "DISTINCT (moment, state, action, reward)", "DISTINCT (moment, state, action)", CARELESS + "test_outcomes_before_the_last_row_and_copies_are_said"),
    Mutation("logs/raw.py", ") NOT IN ({cells})", ") IN ({cells})", CARELESS + "test_cells_that_are_said_to_say_nothing_are_missing"),
    Mutation("logs/parts.py", "builder.respelt |= respelt", "pass", JOINED + "test_a_cluster_gives_the_same_answer_and_says_what_it_did"),
    Mutation("logs/fit.py", "if kept < FEWEST or rounds < FEWEST", "if rounds < FEWEST", "tests/statistics/test_fit.py::test_a_log_that_is_too_large_to_draw_for_says_so"),
    Mutation("logs/fit.py", "MOST_KEPT // num_pairs", "MOST_KEPT", "tests/statistics/test_fit.py::test_a_log_that_is_too_large_to_draw_for_says_so"),
    Mutation("agents/rlsvi.py", "self.space.discount * rows.expect(value)", "rows.expect(value)", "tests/algebra/test_baselines.py::test_rlsvi_is_the_bayesian_regression"),
    Mutation("agents/ucbvi.py", "self.space.discount * rows.expect(value)", "rows.expect(value)", "tests/algebra/test_baselines.py::test_ucbvi_adds_the_hoeffding_bonus_and_clips_it"),
    Mutation("agents/r_max.py", "max(self.max_reward, 0.0)", "self.max_reward", "tests/algebra/test_baselines.py::test_r_max_stays_optimistic_where_everything_costs"),
    Mutation("agents/r_max.py", "        known = self.experience.count >= self.known_after\n        self._planned_for", "        known = self.experience.count > self.known_after\n        self._planned_for", "tests/algebra/test_baselines.py::test_r_max_knows_a_pair_after_as_many_looks_as_it_was_told"),
    Mutation("model/kernels/planning.py", "is_stationary = not has_bonus", "is_stationary = True", "tests/algebra/test_baselines.py::test_bonuses_are_paid_at_every_step_that_is_left"),
    Mutation("agents/planning.py", "_discounted_steps(discount, steps) for", "float(steps) for", "tests/algebra/test_baselines.py::test_bonuses_are_paid_at_every_step_that_is_left"),
    Mutation("agents/ucbvi.py", "max(abs(max_reward), 0.0 if min_reward is None else abs(min_reward))", "abs(max_reward)", "tests/algebra/test_baselines.py::test_ucbvi_keeps_a_bonus_where_the_best_mean_is_0"),
    Mutation("agents/ucbvi.py", "self.size * steps_left", "self.size * self.horizon", "tests/algebra/test_baselines.py::test_ucbvi_counts_the_steps_that_are_left"),
    Mutation("agents/q_learning.py", "self.learning_rate * (target - self.values[k])", "self.learning_rate * target", "tests/algebra/test_baselines.py::test_q_learning_moves_towards_the_target_and_dithers"),
    Mutation("agents/q_learning.py", "self._rng.random() < self.epsilon", "self._rng.random() > self.epsilon", "tests/algebra/test_baselines.py::test_q_learning_moves_towards_the_target_and_dithers"),
    Mutation("agents/bootstrapped_dqn.py", "prior_scale: float = 5.0", "prior_scale: float = 0.0", "tests/algebra/test_bootstrapped_dqn.py::test_the_settings_are_the_published_ones"),
    Mutation("agents/bootstrapped_dqn.py", "and self._num_seen % self.train_every == 0", "", "tests/algebra/test_bootstrapped_dqn.py::test_training_and_dithering_happen_as_often_as_they_are_told"),
    Mutation("agents/bootstrapped_dqn.py", "self._rng.random() < self.epsilon", "self._rng.random() > self.epsilon", "tests/algebra/test_bootstrapped_dqn.py::test_training_and_dithering_happen_as_often_as_they_are_told"),
    Mutation("experiments/explore.py", "np.random.default_rng(spawn_seeds(seed)[0])", "np.random.default_rng(spawn_seeds(0)[0])", "tests/invariants/test_explore.py::test_the_environment_draws_from_the_first_stream_of_the_seed"),
    Mutation("experiments/explore.py", "np.random.default_rng(spawn_seeds(seed)[0])", "np.random.default_rng(spawn_seeds(seed)[1])", "tests/invariants/test_explore.py::test_the_environment_draws_from_the_first_stream_of_the_seed"),
    Mutation("experiments/statistics.py", "LEVEL = 0.95", "LEVEL = 0.9999", "tests/algebra/test_statistics.py::test_intervals_have_the_width_of_the_standard_error_and_resample_within_groups"),
    Mutation("experiments/statistics.py", "size=len(group))] for group in groups])", "size=max(len(group) // 3, 1))] for group in groups])", "tests/algebra/test_statistics.py::test_intervals_have_the_width_of_the_standard_error_and_resample_within_groups"),
    Mutation("experiments/statistics.py", "rng.choice(group, group.size) for group in groups", "rng.choice(depths.size, group.size) for group in groups", "tests/algebra/test_statistics.py::test_the_interval_of_an_exponent_is_that_of_least_squares_and_open_where_it_may_be_anything"),
    Mutation("experiments/statistics.py", "if is_fit else np.inf)", "if is_fit else again[-1])", "tests/algebra/test_statistics.py::test_the_interval_of_an_exponent_is_that_of_least_squares_and_open_where_it_may_be_anything"),
    Mutation("experiments/compare.py", "runs = self.runs[self.runs[\"status\"] != \"failed\"]", "runs = self.runs", "tests/invariants/test_compare.py::test_failed_runs_are_left_out_of_curves_and_returns"),
    Mutation("experiments/compare.py", "prior=prior if entries[agent].takes_prior else None", "prior=prior", "tests/invariants/test_compare.py::test_settings_go_to_the_agents_that_they_are_meant_for_and_nothing_runs_twice"),
    Mutation("experiments/metrics.py", "space.discount * mdp.transitions.expect(following)\n        updated", "mdp.transitions.expect(following)\n        updated", "tests/algebra/test_planning_and_metrics.py::test_random_regret_is_that_of_random_episodes[river-swim]"),
    Mutation("storage.py", "    os.symlink(target, temporary)\n    os.replace(temporary, path)", "    path.unlink(missing_ok=True)\n    os.symlink(target, path)", FOLDERS + "test_a_kill_at_any_change_of_the_disk_leaves_the_old_answer_or_the_new_one"),
    Mutation("logs/files.py", "if earlier and not again", "if False", FOLDERS + "test_a_log_that_has_gone_in_is_refused_under_any_name_unless_again"),
    Mutation("storage.py", "file_digest(path) != answer[\"files\"][name]", "False", FOLDERS + "test_without_symbolic_links_the_files_stand_at_the_top_and_a_mixture_is_refused"),
    Mutation("cli/fit.py", "and out.resolve() == update.resolve()", "", FOLDERS + "test_an_update_into_another_folder_replaces_a_fit_there_only_if_forced"),
    Mutation("storage.py", "if \"sha256\" in facts and facts", "if False and facts", STORED + "test_arrays_other_than_those_that_were_saved_are_refused"),
    Mutation("storage.py", "{name} {array.dtype.str} {array.shape} ", "", STORED + "test_arrays_other_than_those_that_were_saved_are_refused"),
    Mutation("weighted_draws.py", "np.all(weights >= 0.0) and ", "", STORED + "test_a_posterior_that_cannot_be_is_refused"),
    Mutation("experiments/store.py", "for key in {*runs, *known, *checksums}", "for key in runs", "tests/invariants/test_compare.py::test_a_run_that_is_not_as_it_was_written_is_named_and_run_again"),
    Mutation("experiments/store.py", "if stored != list(columns)", "if False", "tests/invariants/test_compare.py::test_flipped_bytes_in_a_store_change_no_value_without_a_word"),
    Mutation("experiments/run_directory.py", "os.truncate(path, end)", "pass", "tests/invariants/test_run_directory.py::test_a_run_that_is_killed_at_any_change_of_the_disk_is_resumed_to_the_same_files"),
    Mutation("experiments/run_directory.py", "if hashlib.sha256(data).hexdigest() != digest", "if False", "tests/invariants/test_run_directory.py::test_a_damaged_run_is_named_by_report_and_run_again_by_resume"),
    Mutation(RECORDS, "total = self.log_weights + (gain - top)", "total = gain - top", WEIGHTS + "test_log_weights_stay_normalised_beside_a_huge_maximum"),
    Mutation(RECORDS, "self.log_weights + (gain - top)", "(self.log_weights + gain) - top", WEIGHTS + "test_log_weights_stay_normalised_beside_a_huge_maximum"),
    Mutation("weighted_draws.py", "float(top) + float(np.log(total))", "float(np.log(total))", WEIGHTS + "test_reweighting_brings_evidence_and_diagnostics_along"),
    Mutation("weighted_draws.py", "self.trusted and effective >= FEWEST_DRAWS", "self.trusted", WEIGHTS + "test_reweighting_brings_evidence_and_diagnostics_along"),
    Mutation("weighted_draws.py", "np.tensordot(self.weights, values, axes=1)", "values.mean(axis=0)", WEIGHTS + "test_expectations_and_quantiles_of_anything_use_the_weights"),
    Mutation("logs/fit.py", "self.posterior.quantile_of(value, level)", "np.quantile(value, level)", WEIGHTS + "test_the_value_of_a_start_is_one_weighted_distribution"),
    Mutation("model/noise.py", "np.where(is_constant, 1.0, n)", "n", WEIGHTS + "test_equal_repeats_do_not_drive_a_learned_scale_to_zero"),
    Mutation("model/noise.py", "        if self.is_learned:\n            n,", "        if True:\n            n,", WEIGHTS + "test_rounding_does_not_make_equal_readings_differ"),
    Mutation("model/noise.py", "(SAME_READING * mean) ** 2", "0.0", WEIGHTS + "test_rounding_does_not_make_equal_readings_differ"),
    Mutation(DENSITY, "return total - m * np.log(scale), slope, pull + n - m", "return total - n * np.log(scale), slope, pull", WEIGHTS + "test_a_pair_that_pays_the_same_each_time_tells_only_of_its_mean[student]"),
    Mutation(DENSITY, "pull + n - m", "pull", GRADIENT + "_of_repeated_readings"),
    Mutation(DENSITY, "squares - m", "squares - n", GRADIENT + "_of_repeated_readings"),
    Mutation("world/space.py", "TIE * np.maximum(np.abs(best), np.abs(values))", "TIE * (1.0 + np.abs(best))", UNITS + "test_ties_are_relative_to_the_values_of_their_own_state"),
    Mutation(POLYTOPE, "np.abs(value) <= tie", "np.abs(value) <= DEGENERATE", UNITS + "test_the_unit_of_rewards_does_not_matter"),
    Mutation(HMC, "np.where(variance > 0.0, variance, positive.min()", "np.where(variance > 1e-6, variance, 1e-6 + positive.min()", UNITS + "test_the_unit_of_rewards_does_not_matter"),
    Mutation(TARGET, "is_ours = own.log_density_and_grad is Target.log_density_and_grad and", "is_ours =", "tests/invariants/test_hmc.py::test_a_density_of_ones_own_is_all_that_a_subclass_needs"),
    Mutation(TARGET, "return self.chart.sweep(x, rng) if self.is_compiled else x", "return self.chart.sweep(x, rng)", "tests/invariants/test_hmc.py::test_a_density_of_ones_own_is_all_that_a_subclass_needs"),
    Mutation("model/rows.py", "return seen.with_rows({int(k): self.table.row(int(k)) for k in", "return seen or seen.with_rows({int(k): self.table.row(int(k)) for k in", POSTERIORS + "test_a_table_of_transitions_is_used_whatever_was_counted"),
    Mutation("model/prior.py", "if (kind := type(prior)) in NAMES:", "if (kind := next((k for k in NAMES if issubclass(type(prior), k)), None)) in NAMES:", "tests/invariants/test_saved_agents.py::test_an_agent_with_a_prior_of_ones_own_is_saved_and_goes_on_when_the_prior_is_given_again[Narrow]"),
    Mutation(CHARTS, "data.learned or self.parts.has_own_prior:", "data.learned:", "tests/statistics/test_own_parts.py::test_a_prior_on_rewards_of_ones_own_is_sampled_by_its_own_density"),
    Mutation("inference/trust.py", "potential_scale_reduction(split)", "np.ones(split.shape[2])", TRUST + "test_indicators_that_differ_between_chains_are_found_and_constant_ones_are_not_blamed"),
    Mutation("inference/trust.py", "if not spread <= MAX_EVIDENCE_SPREAD:", "if False:", TRUST + "test_islands_that_disagree_are_named"),
    Mutation("inference/trust.py", "v**2 @ (prob_optimal - centre) ** 2", "v @ (prob_optimal - centre) ** 2", TRUST + "test_islands_that_disagree_are_named"),
    Mutation(HMC, "x = conditional.disperse(x, rng)", "pass", TRUST + "test_a_posterior_of_several_modes_is_right_or_distrusted"),
    Mutation(HMC, "stayed & ~visited", "stayed & visited", TRUST + "test_states_with_more_actions_than_chains_are_scouted"),
    Mutation("model/starts.py", "best + margin, value)", "best - margin, value)", TRUST + "test_chains_start_with_every_action_of_every_state"),
    Mutation("model/starts.py", "goal - margin, raised)", "value, raised)", TRUST + "test_a_start_leaves_the_competition_where_a_seen_action_is_wanted"),
    Mutation(ISLANDS, "w * island.particles.weights for w, island", "island.particles.weights for w, island", TRUST + "test_islands_are_weighted_by_their_evidence"),
    Mutation(ISLANDS, "np.log(island_weight.mean())", "np.log(island_weight.sum())", TRUST + "test_islands_average_by_their_evidence"),
    Mutation(CROSS_CHECK, "contradiction(share, exact.prob_optimal(), space, num=post.weights.size)", "None", TRUST + "test_what_enumeration_can_reach_is_checked_by_it"),
    Mutation(ONE_LOOK, "np.where(after.contains(theta), gain, -np.inf)", "gain", "tests/statistics/test_one_look.py::test_readings_on_loops_at_discount_one_give_no_weight_to_policies_that_never_end"),
    Mutation("logs/fit.py", "rows.loc[np.diff(space.first_pair)[space.pair_state] == 1, \"prob_optimal\"] = np.nan", "pass", HONEST + "test_the_only_action_tried_is_not_called_best"),
    Mutation("logs/fit.py", "            rows[list(NUMBERS)] = np.nan", "            pass", HONEST + "test_draws_that_have_not_settled_give_no_answer"),
    Mutation("logs/checks.py", "checks.append(_free_loop(chosen, post))", "pass", HONEST + "test_a_loop_that_costs_nothing_is_warned_of_where_the_reader_looks"),
    Mutation("report/page.py", "autoescape=True", "autoescape=False", "tests/invariants/test_pages.py::test_labels_of_agents_are_escaped_in_the_page_of_a_comparison"),
    Mutation(TARGET, "if not (columns < 0).any() or", "if True or", TRUST + "test_modes_of_values_that_were_seen_roughly_are_found"),
    Mutation("model/starts.py", "return self._steer(moved, wanted, rng)", "return moved", TRUST + "test_modes_that_values_further_on_decide_are_found[hmc]"),
    Mutation(CHARTS, "if data.point_value.size and row.size:", "if False:", TRUST + "test_heavy_tails_have_modes_at_their_readings"),
    Mutation(CROSS_CHECK, "stray = scout(target, visited, rng, replace(SCOUTING, exchange=exchange))", "stray = 0", TRUST + "test_modes_that_values_further_on_decide_are_found[smc]"),
    Mutation("inference/trust.py", "if length < 8:", "if False:", TRUST + "test_too_few_draws_are_never_trusted"),
    Mutation("model/noise.py", "deviation += gap**2 * count * weight", "deviation += 0.0 * gap**2 * count * weight", WEIGHTS + "test_annealed_readings_keep_their_deviation_beside_a_large_mean"),
    Mutation("inference/exact.py", "np.sqrt(readings.data.num_readings)", "np.sqrt(seen.count[self.pairs])", WEIGHTS + "test_a_repeated_deterministic_reward_counts_once_by_every_method"),
    Mutation("weighted_draws.py", "ratio[self.weights > 0.0].max(initial=-np.inf)", "ratio.max()", WEIGHTS + "test_a_draw_without_weight_has_no_say_in_reweighting"),
    Mutation("logs/choices.py", "if log.unread:", "if False:", HONEST + "test_columns_that_were_not_read_are_named"),
    Mutation("logs/choices.py", "(largest or 1.0)", "max(largest, 1e-6)", HONEST + "test_the_unit_of_rewards_does_not_matter_to_a_fit"),
    Mutation(SYSTEMS, "    return horizon * size_of(system.residual, size, transposed)", "    return size_of(system.residual, size, transposed)", MODELS + "test_the_bound_holds_where_sweeps_stop_early"),
    Mutation(SYSTEMS, "out[column[e]] -= entry[e] * x[i]", "out[i] -= entry[e] * x[column[e]]", DENSE_ALGEBRA + "[sweeps-1-0.9]"),
    Mutation(SYSTEMS, "        lu_solve_transposed(lu, x, width)", "        lu_solve(lu, x, width)", DENSE_ALGEBRA + "[elimination-1-0.9]"),
    Mutation(SYSTEMS, "mark[i] = 1.0 if system.leaving[i] > 0.0 else 0.0", "mark[i] = 1.0", MODELS + "test_a_loop_that_pays_and_a_trap_are_counted_and_nothing_else_is[sweeps]"),
    Mutation(COMPONENTS, "leaving += weight * (1.0 - shape.discount)", "leaving += 1.0 - shape.discount", DENSE_ALGEBRA + "[elimination-1-0.9]"),
    Mutation(COMPONENTS, "payoff += share * work.value[t]", "payoff += work.value[t]", MODELS + "test_an_acyclic_problem_is_solved_without_error"),
    Mutation(COMPONENTS, "work.flow[t] += share * model.probability[e]", "work.flow[t] += model.probability[e]", DENSE_ALGEBRA + "[elimination-2-1.0]"),
    Mutation(OPTIMA, "if total > best:", "if total < best or choice < 0:", ALL_POLICIES),
    Mutation(OPTIMA, "bound = 0.5 * horizon * (high - low) if is_closed", "bound = 0.5 * (high - low) if is_closed", MODELS + "test_the_bound_holds_where_sweeps_stop_early"),
    Mutation(OPTIMA, "model.probability[e] > 0.0 and ", "", MODELS + "test_a_loop_that_pays_and_a_trap_are_counted_and_nothing_else_is[elimination]"),
    Mutation("model/kernels/models.py", "shape.discount * (rows[d, first[k] + e] / total)", "shape.discount * rows[d, first[k] + e]", MODELS + "test_rows_of_single_precision_are_normalised"),
    Mutation("model/model_order.py", "is_closed[component[source[~within]]] = False", "pass", ALL_POLICIES),
    Mutation("model/solve_models.py", "total += weight[number] * np.nan_to_num(slope[d])", "total += np.nan_to_num(slope[d])", VALUED + "test_slopes_are_the_derivatives_of_the_weighted_value"),
    Mutation("inference/policies.py", "reporting = np.flatnonzero(~chooses & ", "reporting = np.flatnonzero(chooses & ", VALUED + "test_draws_that_report_have_no_part_in_choosing_and_the_reverse"),
    Mutation("inference/policies.py", "np.flatnonzero(chooses & np.isfinite(optimum))", "np.flatnonzero(np.isfinite(optimum))", VALUED + "test_draws_that_report_have_no_part_in_choosing_and_the_reverse"),
    Mutation("inference/policies.py", "policy = search.improved(candidates[origin])", "policy = candidates[origin]", VALUED + "test_the_recommended_policy_is_as_a_rule_the_best_of_all_by_the_mean"),
    Mutation("inference/policy_search.py", "np.clip(most - rank, 0.0, 1.0)", "(rank < most)", VALUED + "test_the_mean_of_the_worst_share_is_that_of_the_quantile_function"),
    Mutation("inference/policy_search.py", "self.allowed & (better >= level)", "self.allowed & (better >= 0.5)", VALUED + "test_a_cautious_policy_leaves_the_usual_action_only_where_it_is_that_sure"),
    Mutation("logs/policy_file.py", "return np.asarray(policy / total[space.pair_state])", "return policy", POLICY_FILE + "test_probabilities_in_any_order_with_other_columns_and_separators"),
    Mutation("logs/policy_file.py", "if not np.isnan(self._probability[k]):", "if False:", POLICY_FILE + "test_what_is_wrong_is_said_with_row_rule_and_remedy"),
    Mutation(SCALES, "noise -= ratio * covariance", "noise += ratio * covariance", PARTS + "test_the_evidence_over_a_grid_is_that_of_each_of_its_scales"),
    Mutation(SCALES, "d * ha * ha - 2.0 * b * ha * hd + a * hd * hd) / det\n        out", "d * ha * ha + 2.0 * b * ha * hd + a * hd * hd) / det\n        out", PARTS + "test_the_evidence_over_a_grid_is_that_of_each_of_its_scales"),
    Mutation(SCALES, "if number % 16 == 0:", "if number == 16:", PARTS + "test_the_evidence_over_a_grid_is_that_of_each_of_its_scales"),
    Mutation(SCALES, "own, cross, rest = broad, -slope * broad,", "own, cross, rest = broad, slope * broad,", PARTS + "test_the_evidence_over_a_grid_is_that_of_each_of_its_scales"),
    Mutation(SCALES, "scores[h] += math.log(product[h])\n    drawn", "pass\n    drawn", PARTS + "test_the_law_of_a_scale_and_the_scales_are_drawn_from_their_joint_law"),
    Mutation(SCALES, "min(place[s], np.argmax(weights) + 1)", "place[s]", PARTS + "test_the_law_of_a_scale_and_the_scales_are_drawn_from_their_joint_law"),
    Mutation(NOISE, "(nu + readings) * math.log(scale + squares)", "nu * math.log(scale + squares)", PARTS + "test_noise_is_drawn_from_its_posterior"),
    Mutation(NOISE, "total = eta * (math.log(variance) - variance / v0)", "total = eta * math.log(variance)", PARTS + "test_noise_is_drawn_from_its_posterior"),
    Mutation(NOISE, "scores[i] += log_ratios[k, i] + noise_score", "scores[i] += noise_score", PARTS + "test_noise_is_drawn_from_its_posterior"),
    Mutation("model/reward_noise.py", "np.where(is_constant, 0.0, noisy + level[space.pair_state])", "noisy", "tests/algebra/test_hierarchy_layout.py::test_a_few_trials_that_are_alike_say_nothing_of_the_noise_of_wins_and_losses"),
    Mutation("model/hierarchy.py", "np.repeat(first_edge[:-1] - layout.first_edge[pair], np.diff(first_seen))", "0", "tests/algebra/test_hierarchy_layout.py::test_a_piece_has_what_belongs_to_its_states"),
    Mutation("model/model_order.py", "any(old is not new", "any(False and old is not new", LARGE + "test_an_order_is_found_once_for_models_of_one_support"),
    Mutation("inference/trust.py", "1.0 - 0.01 / max(quantities, 1)", "0.5", LARGE + "test_chains_of_few_draws_are_trusted_unless_they_disagree"),
    Mutation("inference/trust.py", "if reason is None and usual < 0.5 * draws:", "if False:", LARGE + "test_draws_that_repeat_each_other_are_not_trusted_however_few"),
    Mutation("logs/fit.py", "changed = replace(prior, row_scale=scale)", "changed = replace(prior, row_scale=scale**-1.0)", LARGE + "test_a_gain_is_also_given_under_other_priors_on_rows"),
    Mutation("methods.py", "is_covered = self.samples and ", "is_covered = False and ", POSTERIORS + "test_a_method_of_ones_own_is_a_line_in_the_table_and_is_held_against_enumeration"),
    Mutation("arguments.py", "name not in METHODS[method].uses", "False", POSTERIORS + "test_a_method_of_ones_own_is_a_line_in_the_table_and_is_held_against_enumeration"),
    Mutation("weighted_draws.py", 'self.diagnostics.get("distrust", "nothing', 'self.diagnostics.get("-", "nothing', WEIGHTS + "test_a_reason_not_to_rely_on_draws_is_read_under_its_former_name"),
    Mutation("environments/deep_sea.py", "(1 - right, index", "(right, index", "tests/algebra/test_environments.py::test_a_drawn_mapping_swaps_the_two_actions_of_a_cell_and_nothing_else"),
    Mutation("report/plots.py", "1.96 * spread / np.sqrt(len(runs))", "1.96 * spread", "tests/algebra/test_statistics.py::test_the_band_of_a_mean_curve_is_that_of_its_standard_error"),
    Mutation("logs/raw.py", "lead(state) OVER w AS following", "lag(state) OVER w AS following", RAW + "test_without_an_order_rows_follow_each_other_as_in_the_file"),
    Mutation("logs/raw.py", "left_out.drop({name: needed[name] for name in needed if name not in (\"key\", \"order\")} | _there(raw))", "left_out.drop({name: needed[name] for name in needed if name not in (\"key\", \"order\")})", RAW + "test_a_row_with_a_missing_state_takes_its_predecessor_with_it_and_is_counted"),
    Mutation("logs/raw.py", "DELETE FROM raw WHERE is_last AND terminated = '0'", "DELETE FROM raw WHERE false", RAW + "test_a_row_with_a_missing_state_takes_its_predecessor_with_it_and_is_counted"),
    Mutation("logs/raw.py", "(regexp_full_match({text}, '{TIME}') AND ", "(", RAW + "test_an_order_that_would_have_to_be_guessed_is_refused_with_its_row"),
    Mutation("logs/relations.py", "'-' if self.is_cost else ''", "''", RAW + "test_a_cost_is_a_reward_with_the_other_sign"),
    Mutation("logs/relations.py", "return LogError(name, message, row - before)", "return LogError(self.name, message, row)", RAW + "test_errors_name_the_row_of_the_file_however_rows_are_ordered"),
    Mutation("logs/query.py", "enable_external_access = false", "enable_progress_bar = false", RAW + "test_a_question_sees_the_log_alone"),
    Mutation("logs/bins.py", "x[at, split.column] <= split.threshold", "x[at, split.column] < split.threshold", BINS + "test_the_expression_in_sql_agrees_row_by_row_at_thresholds_and_beyond"),
    Mutation("logs/bins.py", "self.find(x, self.shown)[0]", "self.find(x)[0]", BINS + "test_acting_on_numbers_is_acting_in_their_bin"),
    Mutation("logs/binning.py", 'side="right") - 1)', 'side="right"))', BINS + "test_bins_are_the_leaves_of_the_tree_row_by_row_and_fewer_bins_those_of_a_smaller_one"),
    Mutation("logs/binning.py", "ahead = goes_on * self._settled", "ahead = 0.0 * self._settled", BINS + "test_what_the_successor_is_worth_is_a_reason_to_cut"),
    Mutation("logs/join.py", "merge_moments(both.at(group[at]), known.at(at))", "known.at(at)", BINS + "test_sums_are_those_of_pandas_at_every_number_of_bins"),
    Mutation("logs/raw.py", "CASE WHEN isfinite({number}) THEN {number} END", "{number}", BINS + "test_cells_without_a_number_are_counted_refused_or_left_out"),
    Mutation("logs/aggregation.py", "posterior.draws + self.advantage *", "posterior.draws + 0.0 *", NUMERIC + "test_what_bins_cost_makes_intervals_longer_and_probabilities_less_sure"),
    Mutation("logs/aggregation.py", "of_all + self.gain *", "of_all + 0.1 * self.gain *", NUMERIC + "test_what_bins_cost_makes_intervals_longer_and_probabilities_less_sure"),
    Mutation("report/fit_workbook.py", "sheet.write_string(*place, cell)", "sheet.write(*place, cell)", FOLDERS + "test_a_workbook_has_the_numbers_and_no_label_is_a_formula"),
    Mutation("serve/local.py", 'if headers.get("host") not in self.hosts:', "if False:", SERVE + "test_requests_from_elsewhere_are_refused"),
    Mutation("serve/local.py", "origin is not None or method not in", "method not in", SERVE + "test_requests_from_elsewhere_are_refused"),
    Mutation("serve/local.py", "if total > self.most_bytes else message", "if False else message", SERVE + "test_an_upload_that_lies_about_its_length_is_cut_off"),
    Mutation(EXCHANGE, "while best - theta[k] > TIE * max(abs(best), abs(theta[k])):", "while theta[k] < best:", FEEDBACK_TESTS + "test_exchanges_do_not_depend_on_the_last_digit_of_ways_that_tie"),
    Mutation(FEEDBACK, "TARGET_ACCEPTANCE = 0.9", "TARGET_ACCEPTANCE = 0.8", FEEDBACK_TESTS + "test_steps_fit_the_narrowest_of_several_modes"),
    Mutation(FEEDBACK, "target.parts.prior_data.wall == NO_WALL and ", "", FEEDBACK_TESTS + "test_walls_are_kept_at_every_feedback"),
    Mutation(FEEDBACK, "length = min(length, TRAJECTORY)", "length = TRAJECTORY", FEEDBACK_TESTS + "test_priors_of_ones_own_with_edges_are_right[Exponential-True]"),
    Mutation(FEEDBACK, "float(np.hypot(facts[\"log_evidence_error\"], of_share))", "facts[\"log_evidence_error\"]", FEEDBACK_TESTS + "test_priors_of_ones_own_with_edges_are_right[Boxed-True]"),
    Mutation(FEEDBACK, "relative.sum(axis=0).var(ddof=1)", "relative.sum(axis=0).var(ddof=1) / 9.0", FEEDBACK_TESTS + "test_stepping_stones_of_normal_gains_have_the_closed_form"),
    Mutation(TARGET, "columns is None or bool((columns < 0).any())", "columns is None", FEEDBACK_TESTS + "test_edges_are_known_where_nothing_reflects_a_trajectory"),
    Mutation("model/prior.py", "return bool(np.isinf(prior_density(prior, far, space)[0]).any())", "return False", FEEDBACK_TESTS + "test_edges_are_known_where_nothing_reflects_a_trajectory"),
    Mutation(ONE_LOOK, "if has_copies and last_first:", "if False:", LOOK + "test_moves_between_resamplings_steady_the_evidence"),
    Mutation(RECORDS, "None if self.ancestors is None else self.ancestors[index]", "self.ancestors", LOOK + "test_particles_know_the_draws_of_the_prior_that_they_stem_from"),
    Mutation("inference/smc/sampler.py", "else ancestors.astype(np.int64)", "else None", LOOK + "test_particles_know_the_draws_of_the_prior_that_they_stem_from"),
    Mutation(FEEDBACK, "[:, None] * (gain[1:] - gain[:-1])", "[:, None] * 0.5 * (gain[1:] - gain[:-1])", FEEDBACK_TESTS + "test_feedback_tempering_agrees_with_exact[discounted]"),
    Mutation(FEEDBACK, "is_fresh[-1] |= inside", "is_fresh[-1] |= False", FEEDBACK_TESTS + "test_feedback_tempering_agrees_with_exact[acyclic]"),
    Mutation(DENSITY, "power[observed] = feedback", "power[observed] = 1.0", FEEDBACK_TESTS + "test_the_density_lies_between_the_reference_and_the_posterior[acyclic-gaussian]"),
]  # fmt: skip


def is_killed(mutation: Mutation) -> bool:
    """Return whether the named test fails on a copy of the package with the mutation."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)  # keeps times, and so the compiled kernels of unchanged files
        (source / "qposterior" / mutation.file).write_text(mutation.applied_in(source))
        # Without the compiler a mutated kernel need not be compiled again.
        environment = os.environ | {"PYTHONPATH": str(source), "NUMBA_DISABLE_JIT": str(int(mutation.in_kernel))}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutation.test]
        answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode not in (0, 1):
        raise RuntimeError(f"{mutation.test} could not run: {answer.stdout[-500:]}{answer.stderr[-500:]}")
    return answer.returncode == 1
