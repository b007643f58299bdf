r"""Gibbs sampler of the hierarchical posterior of a model: mean rewards, noise and transition rows of all pairs.

For each pair α is its mean reward and y = P·W the worth of its row, W a fixed guess of what successors are worth. The
actions of a state are exchangeable,

.. math:: y_{sa} \sim N(ȳ_s, κ_s^2), \quad α_{sa} \sim N(β_s - λ (y_{sa} - ȳ_s), τ_s^2),

τ_s = t_s u_s and κ_s = g_s w_s in the state's own units (the noise of its rewards, the spread of W over its
successors), t_s and g_s on grids, log t_s ~ N(m, ω²) with m and ω learned over all states, likewise g_s, and a share of
the prior on "all actions alike". λ is 0 where what an action pays has nothing to do with where it leads, and 1 where it
makes up for it, so that actions may tie although they differ in both (orders of stock do). A reading has the variance
v_sa ~ ν v_s / χ²_ν, v_s ~ Gamma(η, η / v₀), and β_s ~ N(μ, b²). Both variances of an action are multiplied by ω_sa,
whose law has tails that are learned: a state may have one action that is unlike the others. The variance with which y
was seen is known up to a factor of the state, as well as its readings tell it. Rows are P_sa ~ Dir(c_s p̄_s) with
c_s = 1 / g_s² − 1, p̄_s ~ Dir(c₀ m_s): p̄_s is drawn by table counts, and a row that was drawn is tilted to the worth y
that was drawn for it. Everything but scales is integrated out where a scale is drawn, and rows are drawn only for the
draws that are kept.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qposterior.model.kernels.compile import chain_kernel, inlined_kernel, kernel
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

Four = tuple[float, float, float, float]
Six = tuple[float, float, float, float, float, float]
Law = tuple[FloatArray, FloatArray]
"""Log weights of the laws of a scale, and the laws; of λ, and its grid."""

STEPS = np.exp(np.linspace(math.log(3e-3), math.log(1e3), 28))
"""Grid of t: the spread of mean rewards over the actions of a state, in units of the noise."""

CONCENTRATIONS = np.exp(np.linspace(math.log(6e4), math.log(0.5), 22))
SHARES = 1.0 / np.sqrt(1.0 + CONCENTRATIONS)
"""Grid of g: the spread of worth over the actions of a state, as a share of the spread over successors."""

FREEDOMS = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0])
"""Grid of ν: how alike the noise of a state's actions is."""

SHAPES = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0])
"""Grid of η: how alike the noise of states is."""

WIDTHS = np.exp(np.linspace(math.log(0.03), math.log(30.0), 24))
"""Grid of b, in units of the spread of the states' mean rewards."""

POOLED = np.exp(np.linspace(math.log(0.3), math.log(300.0), 13))
"""Grid of c₀."""

LOCALS = 4.0 ** np.arange(-1, 5)
"""Grid of ω: by how much the variance of one action differs from that of its state's actions."""

MOST_TILT = 4.0
"""Exponent by which the shares of two successors in a row that was drawn may be changed."""

FEW = 16
"""Readings up to which table counts are drawn one by one; the rest from their first two moments."""

NOISE_STEPS = 3
"""Proposals for the noise of a state, in each sweep."""

LEAST_STATES = 4
"""From which the spread of the states' mean rewards is learned; with fewer, β_s is free."""

FREEDOM, SHAPE, NOISE, CENTRE, WIDTH, SLOPE, TAU_LAW, KAPPA_LAW, ROW, LOCAL_LAW = range(10)
NUM_HYPER = 10
"""Places of ν, η, v₀, μ, b, λ, the laws of t and g, and c₀ in the vector of hyper-parameters."""


class Layout(NamedTuple):
    """Pairs of states, candidates for successors of states, and edges: edge first_edge[k] + j leads to candidate j."""

    first_pair: Any  # (S + 1,)
    first_candidate: Any  # (S + 1,)
    first_edge: Any  # (K + 1,)
    first_seen: Any  # (K + 1,)  the edges of pair k that were seen are seen_edge[first_seen[k] : first_seen[k + 1]]
    seen_edge: Any


class Facts(NamedTuple):
    """Sufficient statistics; rewards are centred on `offset` of their state, worth on the state's mean worth."""

    count: Any  # (K,)
    mean: Any  # (K,)
    deviation: Any  # (K,)  Σ (r − mean)²
    is_fixed: Any  # (K,)  pays the same every time
    worth: Any  # (K,)  mean W of the successors seen
    worth_noise: Any  # (K,)  variance of that mean, as the readings estimate it
    edge_count: Any  # (E,)
    value: Any  # (C,)  W of the candidates
    base: Any  # (C,)  m_s; 0 for candidates that were never seen from the state
    unseen: Any  # (C,)  odds of such a candidate against all that were seen


class Units(NamedTuple):
    """Scales, and which parts of the hierarchy are learned."""

    unit: Any  # (S,)  u_s
    worth_unit: Any  # (S,)  w_s
    worth_freedom: Any  # (S,)  degrees of freedom of the estimated variance of worth; inf: it is known
    offset: Any  # (S,)
    read: Any  # (S,)  states with a reading
    informed: Any  # (S,)  states with two tried actions or more, which t, g and λ are learned from
    varied: Any  # (S,)  states whose successors differ in worth; the others tell nothing of g and λ
    noise: float  # pooled variance within pairs
    spread: float  # of the states' means; 0: neither b nor ν are learned
    tempering: float  # weight of the evidence on variances, for kurtosis
    rows_known: bool
    is_given: bool  # whether the hyper-parameters were learned elsewhere: they are then left as they are


class State(NamedTuple):
    """What the next sweep needs."""

    variance: Any  # (K,)  v_k
    level: Any  # (S,)  v_s
    rough: Any  # (S,)  true over estimated variance of worth
    step: Any  # (S,)  place of t_s in its grid
    share: Any  # (S,)  place of g_s
    local: Any  # (K,)  place of ω_sa
    centre: Any  # (S, 2)  β_s less offset, ȳ_s
    alpha: Any  # (K,)
    pooled: Any  # (C,)  p̄_s
    hyper: Any  # (NUM_HYPER,)


@kernel
def draw_index(log_weights: FloatArray, rng: np.random.Generator) -> int:
    """Draw an index with probability ∝ exp(log_weights)."""
    return draw_place(np.exp(log_weights - np.max(log_weights)), rng)


@kernel
def draw_place(weights: FloatArray, rng: np.random.Generator) -> int:
    """Draw an index with probability ∝ weights."""
    point = rng.random() * np.sum(weights)
    for i in range(weights.size - 1):
        point -= weights[i]
        if point < 0.0:
            return i
    return weights.size - 1


@kernel
def draw_gamma(shape: float, rng: np.random.Generator) -> float:
    """Draw from Gamma(shape, 1); 0 where it would be below e^−60, as nearly all are where shape is tiny."""
    if shape >= 1.0:
        return rng.standard_gamma(shape)
    power = math.log(1.0 - rng.random()) / shape if shape > 0.0 else -np.inf
    if power < -60.0:
        return 0.0
    return rng.standard_gamma(shape + 1.0) * math.exp(power)


@kernel
def draw_tables(concentration: float, number: float, rng: np.random.Generator) -> float:
    r"""Draw how many tables are occupied by `number` guests of a Chinese restaurant.

    The sum of independent Bernoulli(c / (c + i)), i = 0 … n − 1. Beyond `FEW` guests the rest of the sum is drawn as a
    normal variate of its mean and variance or, where that is small, as a binomial number of the same mean. So the cost
    does not grow with the log.
    """
    guests = max(round(number), 1)
    first = min(guests, FEW)
    tables = 1
    for i in range(1, first):
        tables += rng.random() * (concentration + i) < concentration
    if guests == first:
        return float(tables)
    low, high, rest = concentration + first, concentration + guests, guests - first
    # Differences of digamma and trigamma by their expansions: their arguments are above `FEW`.
    mean = concentration * (math.log(high / low) - 0.5 / high + 0.5 / low)
    mean = min(max(mean, 0.0), float(rest))
    variance = mean - concentration**2 * (1.0 / low - 1.0 / high + 0.5 / low**2 - 0.5 / high**2)
    if variance > 12.0:
        tail = float(round(mean + math.sqrt(variance) * rng.standard_normal()))
    else:
        tail = float(rng.binomial(rest, mean / rest))
    return float(tables) + min(max(tail, 0.0), float(rest))


@inlined_kernel
def worth_variance(k: int, rough: float, facts: Facts) -> float:
    """Variance of the mean worth of a pair's successors, which is known up to the factor `rough` of its state."""
    return rough * facts.worth_noise[k]


@kernel
def gather(s: int, scales: Four, start: Six, layout: Layout, facts: Facts, state: State) -> Six:
    r"""Return the sums over the tried pairs of a state that its evidence and its centres are made of.

    With x = (mean, worth), M = Σ + noise: Σ M⁻¹ (three numbers), Σ M⁻¹x (two) and −½ Σ (log |M| + x'M⁻¹x), added to
    `start`. `scales` are those of `scales_of`.
    """
    aa, ay, yy, rough = scales
    saa, say, syy, ha, hy, score = start
    for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
        if facts.count[k] > 0.0:
            local = LOCALS[state.local[k]]
            a, b = local * aa + state.variance[k] / facts.count[k], local * ay
            d = local * yy + worth_variance(k, rough, facts)
            det = a * d - b * b
            ia, ib, iy = d / det, -b / det, a / det
            saa += ia
            say += ib
            syy += iy
            fa, fy = ia * facts.mean[k] + ib * facts.worth[k], ib * facts.mean[k] + iy * facts.worth[k]
            ha += fa
            hy += fy
            score -= 0.5 * (math.log(det) + facts.mean[k] * fa + facts.worth[k] * fy)
    return saa, say, syy, ha, hy, score


@kernel
def log_evidence(s: int, scales: Four, start: Six, layout: Layout, facts: Facts, state: State) -> float:
    """Return the log-likelihood of a state's readings, its α, y and their centres integrated out."""
    saa, say, syy, ha, hy, score = gather(s, scales, start, layout, facts, state)
    det = saa * syy - say * say
    return score + 0.5 * ((syy * ha * ha - 2.0 * say * ha * hy + saa * hy * hy) / det - math.log(det))


@inlined_kernel
def prior_of_centre(s: int, units: Units, hyper: FloatArray) -> Six:
    """Return the start of `gather`: β_s ~ N(μ, b²), and ȳ_s thirty times as wide as W is."""
    broad = 1.0 / hyper[CENTRE + 1] ** 2
    vague = 1.0 / (30.0 * units.worth_unit[s]) ** 2
    return broad, 0.0, vague, broad * (hyper[CENTRE] - units.offset[s]), 0.0, 0.0


@inlined_kernel
def scales_of(s: int, step: int, share: int, slope: float, rough: float, units: Units) -> Four:
    """Return var α = τ² + λ²κ², cov(α, y) = −λκ², var y = κ², and the factor `rough` of the variance of worth.

    λ counts as 0 where successors do not differ in worth.
    """
    tau, kappa = STEPS[step] * units.unit[s], SHARES[share] * units.worth_unit[s]
    slope = slope if units.varied[s] else 0.0
    return tau**2 + (slope * kappa) ** 2, -slope * kappa**2, kappa**2, rough


@inlined_kernel
def concentration_of(k: int, s: int, state: State) -> float:
    """Return c of a pair, 1/(ω g²) − 1: that at which a Dirichlet law has ω times the variance, or nearly none."""
    c = CONCENTRATIONS[state.share[s]]
    return max((1.0 + c) / LOCALS[state.local[k]] - 1.0, min(c, CONCENTRATIONS[-1]))


@kernel
def grid_evidence(
    s: int,
    grid: FloatArray,
    other: float,
    is_worth: bool,
    layout: Layout,
    facts: Facts,
    units: Units,
    state: State,
    room: FloatArray,
    out: FloatArray,
) -> None:
    r"""Write the log-likelihood of a state's readings, up to a constant, for all variances τ² (or κ²) of a grid.

    The same as `log_evidence`, in coordinates in which only one number of a pair's covariance depends on the grid: with
    α' = α + λ y, (α', y) has the variances ω τ² and ω κ² and no covariance, and the readings (mean + λ worth, worth)
    have the noise [n + λ²u, λu; λu, u]. Given its other reading z of variance d, a pair's reading x on the grid's axis
    has the precision q = 1 / (ω grid + noise − b²/d), b the covariance of their noise, and the residual x − (b/d) z:
    all that is needed is Σ q, Σ (b/d) q and so on, loops over the grid that run several entries at a time. `other` is
    the variance on the other axis, and `room` for ``(8, G)`` numbers.
    """
    size, slope = grid.size, state.hyper[SLOPE] if units.varied[s] else 0.0
    q, product, sq, se, see, sr, srr, sre = room[0], room[1], room[2], room[3], room[4], room[5], room[6], room[7]
    broad, _, vague, pull, _, _ = prior_of_centre(s, units, state.hyper)
    # The prior of the centres in these coordinates: that of (β + λ ȳ, ȳ), its axes in the order (grid's, other's).
    own, cross, rest = broad, -slope * broad, slope**2 * broad + vague
    pull_own, pull_rest = pull, -slope * pull
    if is_worth:
        own, rest, pull_own, pull_rest = rest, own, pull_rest, pull_own
    square, number = 0.0, 0
    for i in range(size):
        out[i], product[i] = 0.0, 1.0
        sq[i], se[i], see[i], sr[i], srr[i], sre[i] = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
        if facts.count[k] <= 0.0:
            continue
        local, unsure = LOCALS[state.local[k]], worth_variance(k, state.rough[s], facts)
        noise, covariance = state.variance[k] / facts.count[k] + slope**2 * unsure, slope * unsure
        x, z = facts.mean[k] + slope * facts.worth[k], facts.worth[k]
        if is_worth:
            x, z, noise, unsure = z, x, unsure, noise
        d = local * other + unsure
        ratio = covariance / d
        noise -= ratio * covariance
        e = x - ratio * z
        rest += 1.0 / d
        pull_rest += z / d
        square += z * z / d
        for i in range(size):
            q[i] = 1.0 / (local * grid[i] + noise)
        for i in range(size):
            product[i] *= q[i] * noise
        for i in range(size):
            sq[i] += q[i]
        for i in range(size):
            se[i] += q[i] * e
        for i in range(size):
            see[i] += q[i] * (e * e)
        if ratio != 0.0:
            for i in range(size):
                sr[i] += q[i] * ratio
            for i in range(size):
                srr[i] += q[i] * (ratio * ratio)
            for i in range(size):
                sre[i] += q[i] * (ratio * e)
        number += 1
        if number % 16 == 0:  # products of more would underflow
            for i in range(size):
                out[i] += 0.5 * math.log(product[i])
                product[i] = 1.0
    for i in range(size):
        a, b, d = own + sq[i], cross - sr[i], rest + srr[i]
        ha, hd = pull_own + se[i], pull_rest - sre[i]
        det = a * d - b * b
        fitted = (d * ha * ha - 2.0 * b * ha * hd + a * hd * hd) / det
        out[i] += 0.5 * (fitted - see[i] - square + math.log(product[i] / det))


@kernel
def draw_scale(
    likelihood: FloatArray,
    law: Law,
    place: IntArray,
    informed: BoolArray,
    given: int,
    rng: np.random.Generator,
) -> float:
    """Draw the law of a scale, each state's own scale integrated out, and then the scale of every state.

    `likelihood` is a log-likelihood, and is overwritten. States that are not `informed` have scales from the law alone,
    at most the next larger one to the most probable: with heavy tails an action that was never tried might be worth
    anything.
    Where the law is `given`, by its number, it is not drawn.
    """
    log_prior, table = law
    num_states, size = likelihood.shape
    num_laws = log_prior.size
    scores, total, product, weights = log_prior.copy(), np.empty(num_laws), np.ones(num_laws), np.empty(size)
    by_grid = table.T.copy()
    number = 0
    for s in range(num_states):
        if informed[s]:
            highest = np.max(likelihood[s])
            for g in range(size):  # an assignment to the row would bring along its error message, a second to compile
                likelihood[s, g] = math.exp(likelihood[s, g] - highest)
        if informed[s] and given < 0:
            total[:] = 0.0
            for g in range(size):
                for h in range(num_laws):
                    total[h] += by_grid[g, h] * likelihood[s, g]
            for h in range(num_laws):
                product[h] *= total[h]
            number += 1
            if number % 8 == 0:  # entries of a table are 1e-30 at least: products of more would underflow
                for h in range(num_laws):
                    scores[h] += math.log(product[h])
                    product[h] = 1.0
    for h in range(num_laws):
        scores[h] += math.log(product[h])
    chosen = given if given >= 0 else draw_index(scores, rng)
    for s in range(num_states):
        for g in range(size):
            weights[g] = table[chosen, g] * (likelihood[s, g] if informed[s] else 1.0)
        place[s] = draw_place(weights, rng)
        if not informed[s]:
            place[s] = min(place[s], np.argmax(weights) + 1)
    return float(chosen)


@kernel
def scale_step(
    layout: Layout, facts: Facts, units: Units, laws: tuple[Law, Law, Law, Law], state: State, rng: np.random.Generator
) -> None:
    """Draw t_s and g_s of all states with their laws, and λ."""
    num_states = layout.first_pair.size - 1
    likelihood, squares, room = np.zeros((num_states, STEPS.size)), np.empty(STEPS.size), np.empty((8, STEPS.size))
    for s in range(num_states):
        if units.informed[s]:
            for i in range(STEPS.size):
                squares[i] = (STEPS[i] * units.unit[s]) ** 2
            other = (SHARES[state.share[s]] * units.worth_unit[s]) ** 2
            grid_evidence(s, squares, other, False, layout, facts, units, state, room, likelihood[s])
    law = int(state.hyper[TAU_LAW]) if units.is_given else -1
    state.hyper[TAU_LAW] = draw_scale(likelihood, laws[0], state.step, units.informed, law, rng)
    likelihood, squares, room = np.zeros((num_states, SHARES.size)), np.empty(SHARES.size), np.empty((8, SHARES.size))
    informed = units.informed & units.varied
    for s in range(num_states):
        if informed[s]:
            for i in range(SHARES.size):
                squares[i] = (SHARES[i] * units.worth_unit[s]) ** 2
            other = (STEPS[state.step[s]] * units.unit[s]) ** 2
            grid_evidence(s, squares, other, True, layout, facts, units, state, room, likelihood[s])
    law = int(state.hyper[KAPPA_LAW]) if units.is_given else -1
    state.hyper[KAPPA_LAW] = draw_scale(likelihood, laws[1], state.share, informed, law, rng)
    if units.is_given:
        return
    log_prior, slopes = laws[2]
    scores = log_prior.copy()
    for s in range(num_states):
        if informed[s]:
            start = prior_of_centre(s, units, state.hyper)
            for i in range(slopes.size):
                scales = scales_of(s, state.step[s], state.share[s], slopes[i], state.rough[s], units)
                scores[i] += log_evidence(s, scales, start, layout, facts, state)
    state.hyper[SLOPE] = slopes[draw_index(scores, rng)]


@kernel
def draw_two(
    saa: float, say: float, syy: float, ha: float, hy: float, z: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Draw (a, y) from the normal with precision [saa, say; say, syy] and precision times mean (ha, hy).

    `z` is the standardised variate of y.
    """
    det = saa * syy - say * say
    mean_a, mean_y = (syy * ha - say * hy) / det, (saa * hy - say * ha) / det
    y = mean_y + math.sqrt(saa / det) * z
    a = mean_a - say / saa * (y - mean_y) + rng.standard_normal() / math.sqrt(saa)
    return a, y


@kernel
def draw_pair(
    k: int, s: int, scales: Four, z: float, facts: Facts, state: State, rng: np.random.Generator
) -> tuple[float, float]:
    """Draw α and y of a pair given its state's centres and scales; `z` is the standardised variate of y."""
    aa, ay, yy, rough = scales
    det = LOCALS[state.local[k]] * (aa * yy - ay * ay)
    ia, ib, iy = yy / det, -ay / det, aa / det
    na, ny = 0.0, 0.0
    if facts.count[k] > 0.0:
        na, ny = facts.count[k] / state.variance[k], 1.0 / worth_variance(k, rough, facts)
    ca, cy = state.centre[s, 0], state.centre[s, 1]
    ha, hy = ia * ca + ib * cy + na * facts.mean[k], ib * ca + iy * cy + ny * facts.worth[k]
    return draw_two(ia + na, ib, iy + ny, ha, hy, z, rng)


@kernel
def centre_step(layout: Layout, facts: Facts, units: Units, state: State, rng: np.random.Generator) -> None:
    """Draw the centres of all states, α and y of tried pairs with how rough y was seen, then μ and b."""
    deciding, number, total, square = 0, 0, 0.0, 0.0
    for s in range(layout.first_pair.size - 1):
        if layout.first_pair[s + 1] == layout.first_pair[s]:
            continue
        scales = scales_of(s, state.step[s], state.share[s], state.hyper[SLOPE], state.rough[s], units)
        start = prior_of_centre(s, units, state.hyper)
        saa, say, syy, ha, hy, _ = gather(s, scales, start, layout, facts, state)
        state.centre[s, 0], state.centre[s, 1] = draw_two(saa, say, syy, ha, hy, rng.standard_normal(), rng)
        missed, tried = 0.0, 0
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if facts.count[k] > 0.0:
                state.alpha[k], y = draw_pair(k, s, scales, rng.standard_normal(), facts, state, rng)
                missed += (facts.worth[k] - y) ** 2 / facts.worth_noise[k]
                tried += 1
        freedom = units.worth_freedom[s]
        if freedom < np.inf:
            state.rough[s] = 0.5 * (freedom + missed) / rng.standard_gamma(0.5 * (freedom + tried))
        deciding += 1
        if units.read[s]:
            number += 1
            total += state.centre[s, 0] + units.offset[s]
    if deciding < LEAST_STATES or units.spread == 0.0 or units.is_given:
        return
    state.hyper[CENTRE] = total / number + state.hyper[WIDTH] / math.sqrt(number) * rng.standard_normal()
    for s in range(layout.first_pair.size - 1):
        if units.read[s]:
            square += (state.centre[s, 0] + units.offset[s] - state.hyper[CENTRE]) ** 2
    grid = WIDTHS * units.spread
    scores = np.log(WIDTHS / (1.0 + WIDTHS**2)) - number * np.log(grid) - 0.5 * square / grid**2
    state.hyper[WIDTH] = grid[draw_index(scores, rng)]


@kernel
def local_step(layout: Layout, facts: Facts, units: Units, law: Law, state: State, rng: np.random.Generator) -> None:
    """Draw ω of all pairs, and its law, given scales and centres; α and y are integrated out."""
    num_pairs = facts.count.size
    likelihood = np.zeros((num_pairs, LOCALS.size))
    informed = np.zeros(num_pairs, dtype=np.bool_)
    for s in range(layout.first_pair.size - 1):
        aa, ay, yy, rough = scales_of(s, state.step[s], state.share[s], state.hyper[SLOPE], state.rough[s], units)
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if facts.count[k] <= 0.0 or not units.informed[s]:
                continue
            informed[k] = True
            x, y = facts.mean[k] - state.centre[s, 0], facts.worth[k] - state.centre[s, 1]
            noise, unsure = state.variance[k] / facts.count[k], worth_variance(k, rough, facts)
            for i in range(LOCALS.size):
                a, b, d = LOCALS[i] * aa + noise, LOCALS[i] * ay, LOCALS[i] * yy + unsure
                det = a * d - b * b
                likelihood[k, i] = -0.5 * (math.log(det) + (d * x * x - 2.0 * b * x * y + a * y * y) / det)
    given = int(state.hyper[LOCAL_LAW]) if units.is_given else -1
    state.hyper[LOCAL_LAW] = draw_scale(likelihood, law, state.local, informed, given, rng)


@kernel
def noise_score(freedom: float, level: float, readings: float, squares: float) -> float:
    r"""Return log p(readings of a pair | ν, v_s), the variance v ~ ν v_s / χ²_ν of the pair integrated out.

    .. math:: \tfrac{ν}{2} \log ν v_s - \tfrac{ν + n}{2} \log(ν v_s + S),

    S the squares about α, up to what depends on neither v_s nor S (`freedom_score`).
    """
    scale = freedom * level
    return 0.5 * (freedom * math.log(scale) - (freedom + readings) * math.log(scale + squares))


@kernel
def freedom_scores(count: FloatArray) -> FloatArray:
    """Return ``(K, 7)`` log Γ((ν + n)/2) − log Γ(ν/2) for every ν of `FREEDOMS`: what `noise_score` leaves out."""
    scores = np.empty((count.size, FREEDOMS.size))
    for k in range(count.size):
        for i in range(FREEDOMS.size):
            scores[k, i] = math.lgamma(0.5 * (FREEDOMS[i] + count[k])) - math.lgamma(0.5 * FREEDOMS[i])
    return scores


@kernel
def noise_step(
    layout: Layout, facts: Facts, units: Units, gammas: FloatArray, state: State, rng: np.random.Generator
) -> None:
    """Draw ν, the noise of states and of pairs, η and v₀; `gammas` are the `freedom_scores` of tempered counts.

    ν and v_s are drawn without v_sa: where ν is large, each would hold the other where it is for hundreds of sweeps.
    """
    num_pairs, squares = 0, np.zeros(facts.count.size)
    scores = np.zeros(FREEDOMS.size)
    is_learned = units.spread > 0.0 and not units.is_given
    for s in range(layout.first_pair.size - 1):
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if facts.is_fixed[k] or facts.count[k] <= 0.0:
                continue
            n, gap = units.tempering * facts.count[k], facts.mean[k] - state.alpha[k]
            squares[k] = units.tempering * facts.deviation[k] + n * gap**2
            num_pairs += 1
            if is_learned:
                for i in range(FREEDOMS.size):
                    scores[i] += gammas[k, i] + noise_score(FREEDOMS[i], state.level[s], n, squares[k])
    if num_pairs == 0:
        return
    if is_learned:
        state.hyper[FREEDOM] = FREEDOMS[draw_index(scores, rng)]
    freedom, shape, centre = state.hyper[FREEDOM], state.hyper[SHAPE], state.hyper[NOISE]
    num_states, level_logs, level_sum = 0, 0.0, 0.0
    for s in range(layout.first_pair.size - 1):
        first, last = layout.first_pair[s], layout.first_pair[s + 1]
        information = shape
        for k in range(first, last):
            if not (facts.is_fixed[k] or facts.count[k] <= 0.0):
                n = units.tempering * facts.count[k]
                information += 0.5 * freedom * n / (freedom + n)
        if information == shape:
            continue
        level = state.level[s]
        density = level_density(first, last, level, facts, units, squares, state)
        for _ in range(NOISE_STEPS):
            proposal = level * math.exp(2.0 / math.sqrt(information) * rng.standard_normal())
            proposed = level_density(first, last, proposal, facts, units, squares, state)
            if math.log(1.0 - rng.random()) < proposed - density:
                level, density = proposal, proposed
        state.level[s] = level
        for k in range(first, last):
            if not (facts.is_fixed[k] or facts.count[k] <= 0.0):
                scale = freedom * level + squares[k]
                state.variance[k] = 0.5 * scale / rng.standard_gamma(0.5 * (freedom + units.tempering * facts.count[k]))
        num_states += 1
        level_logs += math.log(level)
        level_sum += level
    if units.is_given:
        return
    scores = np.zeros(SHAPES.size)
    for i in range(SHAPES.size):
        b = SHAPES[i]
        scores[i] = num_states * (b * math.log(b / centre) - math.lgamma(b)) + b * (level_logs - level_sum / centre)
    shape = SHAPES[draw_index(scores, rng)]
    state.hyper[SHAPE] = shape
    # v₀ is log-normal around the pooled variance, two units of log wide.
    for _ in range(2):
        proposal = centre * math.exp((0.2 + 1.0 / math.sqrt(shape * num_states)) * rng.standard_normal())
        ratio = -num_states * shape * math.log(proposal / centre)
        ratio -= shape * level_sum * (1.0 / proposal - 1.0 / centre)
        ratio += 0.125 * (math.log(centre / units.noise) ** 2 - math.log(proposal / units.noise) ** 2)
        if math.log(1.0 - rng.random()) < ratio:
            centre = proposal
    state.hyper[NOISE] = centre


@inlined_kernel
def level_density(
    first: int, last: int, level: float, facts: Facts, units: Units, squares: FloatArray, state: State
) -> float:
    """Return the log-density of log v_s given the readings of pairs `first` to `last`, their variances integrated out.

    v_s ~ Gamma(η, η / v₀).
    """
    freedom, shape, centre = state.hyper[FREEDOM], state.hyper[SHAPE], state.hyper[NOISE]
    total = shape * (math.log(level) - level / centre)
    for k in range(first, last):
        if not (facts.is_fixed[k] or facts.count[k] <= 0.0):
            total += noise_score(freedom, level, units.tempering * facts.count[k], squares[k])
    return total


@kernel
def score_pooled(base: FloatArray, pooled: FloatArray, scores: FloatArray) -> None:
    """Add log Dir(p̄; c₀ m), up to a constant, for every c₀ of the grid.

    p̄ is taken among the candidates that were seen, for m is a law of these; a state without any tells nothing of c₀.
    """
    total = 0.0
    for j in range(base.size):
        if base[j] > 0.0:
            total += pooled[j]
    if total == 0.0:
        return
    for i in range(POOLED.size):
        scores[i] += math.lgamma(POOLED[i])
    for j in range(base.size):
        if base[j] > 0.0:
            log_share = math.log(pooled[j] / total)
            for i in range(POOLED.size):
                a = POOLED[i] * base[j]
                scores[i] += a * log_share - math.lgamma(a)


@kernel
def pool_step(layout: Layout, facts: Facts, units: Units, state: State, rng: np.random.Generator) -> None:
    """Draw table counts, p̄_s of all states and c₀."""
    scores, concentration = np.zeros(POOLED.size), state.hyper[ROW]
    for s in range(layout.first_pair.size - 1):
        start, stop = layout.first_candidate[s], layout.first_candidate[s + 1]
        if stop - start <= 1:
            state.pooled[start:stop] = 1.0
            continue
        tables = np.zeros(stop - start)
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            c = concentration_of(k, s, state)
            for i in range(layout.first_seen[k], layout.first_seen[k + 1]):
                edge = layout.seen_edge[i]
                j = edge - layout.first_edge[k]
                tables[j] += draw_tables(max(c * state.pooled[start + j], 1e-12), facts.edge_count[edge], rng)
        occupied = np.sum(tables)
        total = 0.0
        for j in range(stop - start):
            shape = tables[j] + concentration * facts.base[start + j] + occupied * facts.unseen[start + j]
            state.pooled[start + j] = draw_gamma(shape, rng) + 1e-30
            total += state.pooled[start + j]
        state.pooled[start:stop] /= total
        if not units.is_given:
            score_pooled(facts.base[start:stop], state.pooled[start:stop], scores)
    if not units.is_given:
        state.hyper[ROW] = POOLED[draw_index(scores, rng)]


@kernel
def draw_row(
    k: int, s: int, layout: Layout, facts: Facts, state: State, row: FloatArray, rng: np.random.Generator
) -> tuple[float, float]:
    """Draw P_k ~ Dir(c p̄ + n_k); return the worth of its part on candidates that were seen, and standardised.

    That part, normalised, is Dirichlet too, and it is standardised by the mean and the variance of that law. Where all
    its successors are worth the same, the standardised variate is a normal one.
    """
    start, first = layout.first_candidate[s], layout.first_edge[k]
    c, width = concentration_of(k, s, state), layout.first_candidate[s + 1] - layout.first_candidate[s]
    total, weight, mean, square = 0.0, 0.0, 0.0, 0.0
    for j in range(width):
        shape = c * state.pooled[start + j] + facts.edge_count[first + j]
        row[j] = draw_gamma(shape, rng)
        total += row[j]
        if facts.unseen[start + j] == 0.0:
            weight += shape
            mean += shape * facts.value[start + j]
            square += shape * facts.value[start + j] ** 2
    if total == 0.0:  # all shapes are tiny: the row is a corner
        shapes = c * state.pooled[start : start + width] + facts.edge_count[first : first + width]
        row[draw_place(shapes, rng)] = 1.0
        total = 1.0
    worth, mass = 0.0, 0.0
    for j in range(width):
        row[j] /= total
        if facts.unseen[start + j] == 0.0:
            mass += row[j]
            worth += row[j] * facts.value[start + j]
    if weight == 0.0 or mass == 0.0:  # nothing was seen, or nothing of it was drawn
        return 0.0, rng.standard_normal()
    worth /= mass
    mean /= weight
    square /= weight
    variance = square - mean * mean
    if variance <= 1e-13 * square:  # rounding
        return worth, rng.standard_normal()
    return worth, (worth - mean) / math.sqrt(variance / (weight + 1.0))


@kernel
def tilt(row: FloatArray, value: FloatArray, unseen: FloatArray, worth: float, target: float) -> None:
    """Multiply the seen part of a row by exp(t·value), so that it is worth `target`, or as near to that as it gets.

    Its mass stays: what is held possible beyond what was seen is not to be reasoned away. `worth` is its own before.
    """
    top, mass = 0.0, 0.0
    for j in range(row.size):
        if row[j] > 0.0 and unseen[j] == 0.0:
            top = max(top, abs(value[j] - worth))
            mass += row[j]
    if top == 0.0:
        return
    t = 0.0
    for _ in range(12):
        total, first, second = 0.0, 0.0, 0.0
        for j in range(row.size):
            if row[j] == 0.0 or unseen[j] > 0.0:
                continue
            gap = value[j] - worth
            w = row[j] * (math.exp(t * gap) if t != 0.0 else 1.0)
            total += w
            first += w * gap
            second += w * gap * gap
        first /= total
        second = second / total - first * first
        miss = target - worth - first
        if abs(miss) < 1e-7 * top or second < 1e-12 * top * top:
            break
        # Newton's step, at most two units of the exponent; beyond `MOST_TILT` a row would be torn apart.
        t += min(max(miss / second, -2.0 / top), 2.0 / top)
        t = min(max(t, -MOST_TILT / top), MOST_TILT / top)
    total = 0.0
    for j in range(row.size):
        if row[j] > 0.0 and unseen[j] == 0.0:
            row[j] *= math.exp(t * (value[j] - worth))
            total += row[j]
    for j in range(row.size):
        if unseen[j] == 0.0:
            row[j] *= mass / total


@kernel
def draw_corner(
    k: int, s: int, scales: Four, layout: Layout, facts: Facts, state: State, row: FloatArray, rng: np.random.Generator
) -> float:
    """Draw one successor of a pair never tried, and return an α that goes with it."""
    pooled = state.pooled[layout.first_candidate[s] : layout.first_candidate[s + 1]]
    value = facts.value[layout.first_candidate[s] : layout.first_candidate[s + 1]]
    chosen = draw_place(pooled, rng)
    row[chosen] = 1.0
    mean = np.sum(pooled * value)
    spread = math.sqrt(np.sum(pooled * (value - mean) ** 2))
    z = (value[chosen] - mean) / spread if spread > 1e-7 * np.max(np.abs(value)) else rng.standard_normal()
    return draw_pair(k, s, scales, z, facts, state, rng)[0]


@kernel
def draw_model(
    layout: Layout,
    facts: Facts,
    units: Units,
    state: State,
    rows: FloatArray,
    rewards: FloatArray,
    rng: np.random.Generator,
) -> None:
    """Draw all rows and mean rewards given scales, centres, noise and p̄."""
    slope = state.hyper[SLOPE]
    for s in range(layout.first_pair.size - 1):
        start, stop = layout.first_candidate[s], layout.first_candidate[s + 1]
        if layout.first_pair[s + 1] == layout.first_pair[s]:
            continue
        scales = scales_of(s, state.step[s], state.share[s], slope, state.rough[s], units)
        row, value = np.zeros(stop - start), facts.value[start:stop]
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            first, is_tried = layout.first_edge[k], facts.count[k] > 0.0
            row[:] = 0.0
            if not units.rows_known:
                worth, z = draw_row(k, s, layout, facts, state, row, rng)
                alpha, y = draw_pair(k, s, scales, z, facts, state, rng)
                if units.read[s]:  # elsewhere ȳ is unknown, and rows are as they come
                    tilt(row, value, facts.unseen[start:stop], worth, y)
            elif is_tried:
                for j in range(stop - start):
                    row[j] = facts.edge_count[first + j] / facts.count[k]
                alpha, _ = draw_pair(k, s, scales, rng.standard_normal(), facts, state, rng)
            else:
                alpha = draw_corner(k, s, scales, layout, facts, state, row, rng)
            rewards[k] = (facts.mean[k] if facts.is_fixed[k] else alpha) + units.offset[s]
            for j in range(stop - start):
                rows[first + j] = row[j]


@chain_kernel
def model_chain(
    layout: Layout,
    facts: Facts,
    units: Units,
    laws: tuple[Law, Law, Law, Law],
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
    num_edges, num_pairs = facts.edge_count.size, facts.count.size
    gammas = freedom_scores(units.tempering * facts.count)
    for i in range(-warm_up, trace.shape[0]):
        if units.is_given:
            for h in range(NUM_HYPER):
                state.hyper[h] = trace[max(i, 0), h]
        # ω before scales and centres: it is drawn without α and y, which must be drawn anew before the noise sees them.
        local_step(layout, facts, units, laws[3], state, rng)
        scale_step(layout, facts, units, laws, state, rng)
        centre_step(layout, facts, units, state, rng)
        noise_step(layout, facts, units, gammas, state, rng)
        if not units.rows_known and i % 2 == 0:  # p̄ costs as much as all scales, and is known well
            pool_step(layout, facts, units, state, rng)
        if i >= 0:
            into = rows[first + i, edge : edge + num_edges], rewards[first + i, pair : pair + num_pairs]
            draw_model(layout, facts, units, state, into[0], into[1], rng)
            for h in range(NUM_HYPER):
                trace[i, h] = state.hyper[h]
