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

FEW = 48
"""Readings up to which table counts are drawn one by one; the rest from their first two moments."""

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
    informed: Any  # (S,)  states with two tried actions or more
    learned: Any  # (S,)  those of them that the laws of t, g and λ are learned from
    varied: Any  # (S,)  states whose successors differ in worth; the others tell nothing of g and λ
    noise: float  # pooled variance within pairs
    spread: float  # of the states' means; 0: neither b nor ν are learned
    tempering: float  # weight of the evidence on variances, for kurtosis
    rows_known: bool


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
def draw_scale(
    likelihood: FloatArray, law: Law, place: IntArray, informed: BoolArray, learned: BoolArray, rng: np.random.Generator
) -> float:
    """Draw the law of a scale, each state's own scale integrated out, and then the scale of every state.

    `likelihood` is a log-likelihood, and is overwritten. States that are not `informed` have scales from the law alone.
    """
    log_prior, table = law
    num_states, size = likelihood.shape
    scores = log_prior.copy()
    for s in range(num_states):
        if informed[s]:
            highest = np.max(likelihood[s])
            for g in range(size):  # an assignment to the row would bring along its error message, a second to compile
                likelihood[s, g] = math.exp(likelihood[s, g] - highest)
        if learned[s]:
            for h in range(scores.size):
                total = 0.0
                for g in range(size):
                    total += table[h, g] * likelihood[s, g]
                scores[h] += math.log(total + 1e-300)
    chosen = draw_index(scores, rng)
    for s in range(num_states):
        if informed[s]:
            place[s] = draw_place(table[chosen] * likelihood[s] + 1e-300, rng)
        else:
            place[s] = draw_place(table[chosen], rng)
    return float(chosen)


@kernel
def scale_step(
    layout: Layout, facts: Facts, units: Units, laws: tuple[Law, Law, Law, Law], state: State, rng: np.random.Generator
) -> None:
    """Draw t_s and g_s of all states with their laws, and λ."""
    num_states, slope = layout.first_pair.size - 1, state.hyper[SLOPE]
    likelihood = np.zeros((num_states, STEPS.size))
    for s in range(num_states):
        if units.informed[s]:
            start = prior_of_centre(s, units, state.hyper)
            for i in range(STEPS.size):
                scales = scales_of(s, i, state.share[s], slope, state.rough[s], units)
                likelihood[s, i] = log_evidence(s, scales, start, layout, facts, state)
    state.hyper[TAU_LAW] = draw_scale(likelihood, laws[0], state.step, units.informed, units.learned, rng)
    likelihood = np.zeros((num_states, SHARES.size))
    informed, learned = units.informed & units.varied, units.learned & units.varied
    for s in range(num_states):
        if informed[s]:
            start = prior_of_centre(s, units, state.hyper)
            for i in range(SHARES.size):
                scales = scales_of(s, state.step[s], i, slope, state.rough[s], units)
                likelihood[s, i] = log_evidence(s, scales, start, layout, facts, state)
    state.hyper[KAPPA_LAW] = draw_scale(likelihood, laws[1], state.share, informed, learned, rng)
    log_prior, slopes = laws[2]
    scores = log_prior.copy()
    for s in range(num_states):
        if learned[s]:
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
    if deciding < LEAST_STATES or units.spread == 0.0:
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
    informed, learned = np.zeros(num_pairs, dtype=np.bool_), np.zeros(num_pairs, dtype=np.bool_)
    for s in range(layout.first_pair.size - 1):
        aa, ay, yy, rough = scales_of(s, state.step[s], state.share[s], state.hyper[SLOPE], state.rough[s], units)
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if facts.count[k] <= 0.0 or not units.informed[s]:
                continue
            informed[k], learned[k] = True, units.learned[s]
            x, y = facts.mean[k] - state.centre[s, 0], facts.worth[k] - state.centre[s, 1]
            noise, unsure = state.variance[k] / facts.count[k], worth_variance(k, rough, facts)
            for i in range(LOCALS.size):
                a, b, d = LOCALS[i] * aa + noise, LOCALS[i] * ay, LOCALS[i] * yy + unsure
                det = a * d - b * b
                likelihood[k, i] = -0.5 * (math.log(det) + (d * x * x - 2.0 * b * x * y + a * y * y) / det)
    state.hyper[LOCAL_LAW] = draw_scale(likelihood, law, state.local, informed, learned, rng)


@kernel
def noise_step(layout: Layout, facts: Facts, units: Units, state: State, rng: np.random.Generator) -> None:
    """Draw the noise variances of pairs and states, ν, η and v₀."""
    freedom, shape, centre = state.hyper[FREEDOM], state.hyper[SHAPE], state.hyper[NOISE]
    num_pairs, logs, ratios = 0, 0.0, 0.0
    num_states, level_logs, level_sum = 0, 0.0, 0.0
    for s in range(layout.first_pair.size - 1):
        rate, number = shape / centre, 0
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if facts.is_fixed[k] or facts.count[k] <= 0.0:
                continue
            n, gap = units.tempering * facts.count[k], facts.mean[k] - state.alpha[k]
            scale = freedom * state.level[s] + units.tempering * facts.deviation[k] + n * gap**2
            state.variance[k] = 0.5 * scale / rng.standard_gamma(0.5 * (freedom + n))
            rate += 0.5 * freedom / state.variance[k]
            number += 1
        if number == 0:
            continue
        state.level[s] = rng.standard_gamma(shape + 0.5 * freedom * number) / rate
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if not (facts.is_fixed[k] or facts.count[k] <= 0.0):
                ratio = state.level[s] / state.variance[k]
                logs += math.log(ratio)
                ratios += ratio
        num_pairs += number
        num_states += 1
        level_logs += math.log(state.level[s])
        level_sum += state.level[s]
    if num_pairs == 0:
        return
    if units.spread > 0.0:
        scores = np.zeros(FREEDOMS.size)
        for i in range(FREEDOMS.size):
            half = 0.5 * FREEDOMS[i]
            scores[i] = num_pairs * (half * math.log(half) - math.lgamma(half)) + half * (logs - ratios)
        state.hyper[FREEDOM] = FREEDOMS[draw_index(scores, rng)]
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
def pool_step(layout: Layout, facts: Facts, state: State, rng: np.random.Generator) -> None:
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
        score_pooled(facts.base[start:stop], state.pooled[start:stop], scores)
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
            w = row[j] * math.exp(t * gap)
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
    rows: FloatArray,
    rewards: FloatArray,
    warm_up: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Run one chain: `warm_up` sweeps, then one sweep for each of the draws ``rows[i]``, ``rewards[i]``.

    Return ``(D, NUM_HYPER)`` the hyper-parameters of the draws.
    """
    trace = np.zeros((rows.shape[0], NUM_HYPER))
    for i in range(-warm_up, rows.shape[0]):
        # ω before scales and centres: it is drawn without α and y, which must be drawn anew before the noise sees them.
        local_step(layout, facts, units, laws[3], state, rng)
        scale_step(layout, facts, units, laws, state, rng)
        centre_step(layout, facts, units, state, rng)
        noise_step(layout, facts, units, state, rng)
        if not units.rows_known:
            pool_step(layout, facts, state, rng)
        if i >= 0:
            draw_model(layout, facts, units, state, rows[i], rewards[i], rng)
            for h in range(NUM_HYPER):
                trace[i, h] = state.hyper[h]
    return trace
