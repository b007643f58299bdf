"""A sweep of the Gibbs sampler of the model, a draw of all rows and mean rewards, and a chain of these.

docs/explanation/model-prior.md, "How it is drawn".
"""

from __future__ import annotations

import numpy as np

from qposterior.model.kernels.compile import chain_kernel, inner_kernel, kernel
from qposterior.model.kernels.effects import current_covariance, draw_centre_law, draw_effects, draw_pair
from qposterior.model.kernels.hierarchy import NUM_HYPER, Laws, Layout, State, Statistics, Units
from qposterior.model.kernels.noise import draw_noise, log_gamma_ratios
from qposterior.model.kernels.rows import draw_corner, draw_mean_rows, draw_row, tilt
from qposterior.model.kernels.scales import draw_axis, draw_omega, draw_slope
from qposterior.world.arrays import FloatArray


@kernel
def sweep_scales(
    layout: Layout, data: Statistics, units: Units, laws: Laws, state: State, rng: np.random.Generator
) -> None:
    """Draw all scales, then all that is normal given them.

    ω before the others: it is drawn without α and y, which must be drawn anew before the noise sees them.
    """
    draw_omega(laws.omega, layout, data, units, state, rng)
    for is_worth in (False, True):  # no constants: for each of these all would be compiled once more
        draw_axis(is_worth, laws.kappa if is_worth else laws.tau, layout, data, units, state, rng)
    if not units.hyper_given:
        draw_slope(laws, layout, data, units, state, rng)
    draw_effects(layout, data, units, state, rng)
    if not (units.is_pooled or units.hyper_given):
        draw_centre_law(layout, units, state, rng)


@inner_kernel
def draw_model(
    layout: Layout,
    data: Statistics,
    units: Units,
    state: State,
    rows: FloatArray,
    rewards: FloatArray,
    rng: np.random.Generator,
) -> None:
    """Draw ``(E,)`` all rows and ``(K,)`` all mean rewards given scales, centres, noise and p̄.

    A row comes from its Dirichlet law, α and y given its standardised worth, and the row is tilted to y. Rows that are
    known are the frequencies.
    """
    for s in range(layout.first_pair.size - 1):
        start, stop = layout.first_candidate[s], layout.first_candidate[s + 1]
        if layout.first_pair[s + 1] == layout.first_pair[s]:
            continue
        covariance = current_covariance(s, units, state)
        row, value = np.zeros(stop - start), data.value[start:stop]
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            first, worth = layout.first_edge[k], 0.0
            row[:] = 0.0
            if not units.rows_known:
                worth, z = draw_row(k, s, layout, data, state, row, rng)
            elif data.count[k] > 0.0:
                for j in range(stop - start):
                    row[j] = data.edge_count[first + j] / data.count[k]
                z = rng.standard_normal()
            else:
                z = draw_corner(s, layout, data, state, row, rng)
            alpha, y = draw_pair(k, s, covariance, z, data, state, rng)
            if not units.rows_known and units.is_read[s]:  # elsewhere ȳ is unknown, and rows are as they come
                tilt(row, value, data.unseen_odds[start:stop], worth, y)
            rewards[k] = (data.mean[k] if data.is_constant[k] else alpha) + units.offset[s]
            for j in range(stop - start):
                rows[first + j] = row[j]


@chain_kernel
def run_chain(
    layout: Layout,
    data: Statistics,
    units: Units,
    laws: Laws,
    state: State,
    place: tuple[int, int, int],
    rows: FloatArray,
    rewards: FloatArray,
    trace: FloatArray,
    warm_up: int,
    rng: np.random.Generator,
) -> None:
    """Run one chain: `warm_up` sweeps, then one sweep for each row of `trace`, from place[0] on.

    A draw is written to ``rows`` and ``rewards`` at the same number, its edges and pairs from place[1] and place[2] on,
    and its hyper-parameters to ``trace``, ``(D, NUM_HYPER)``; or they are taken from there, where they are given.
    """
    first, edge, pair = place
    num_edges, num_pairs = data.edge_count.size, data.count.size
    # Only ν is drawn by these.
    log_ratios = log_gamma_ratios(units.tempering * data.count[: 0 if units.hyper_given else num_pairs])
    for i in range(-warm_up, trace.shape[0]):
        if units.hyper_given:
            for h in range(NUM_HYPER):
                state.hyper[h] = trace[max(i, 0), h]
        sweep_scales(layout, data, units, laws, state, rng)
        draw_noise(layout, data, units, log_ratios, state, rng)
        if not units.rows_known and i % 2 == 0:  # p̄ costs as much as all scales, and is known well
            draw_mean_rows(layout, data, units, state, rng)
        if i >= 0:
            into = rows[first + i, edge : edge + num_edges], rewards[first + i, pair : pair + num_pairs]
            draw_model(layout, data, units, state, into[0], into[1], rng)
            for h in range(NUM_HYPER):
                trace[i, h] = state.hyper[h]
