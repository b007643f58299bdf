r"""The theorem on recurrent states: a half-line of θ on which the likelihood does not change.

For a non-goal recurrent state sʳ: u(s, a), the largest probability to come to sʳ from (s, a); O, the θ whose greedy
actions maximise u wherever sʳ can be reached; and :math:`c_\theta`, up to which θ + cu may be followed (paper,
thm. loopthm).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from qposterior.environments.deep_sea import deep_sea_loops
from qposterior.environments.examples import two_state
from qposterior.model.charts import QChart
from qposterior.model.noise import Tolerance
from qposterior.model.prior import GaussianPrior
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior.world.mdp import FiniteMDP
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels


def reach_probability(mdp: FiniteMDP, state: int) -> FloatArray:
    """Return ``(K,)`` u: the largest probability, over all policies, to come to `state` after the pair's first step."""
    reached = np.zeros(mdp.space.num_states)
    while True:
        reached[state] = 1.0
        u = np.asarray(mdp.transitions.expect(reached))
        value = mdp.space.maximum(u)
        value[mdp.space.goals] = 0.0
        value[state] = 1.0
        if np.abs(value - reached).max() < 1e-14:
            return u
        reached = value


def recurrent_states(mdp: FiniteMDP) -> list[int]:
    """Return the non-goal states to which some policy returns for sure."""
    states = []
    for state in mdp.space.deciding_states.tolist():
        pairs = np.flatnonzero(mdp.space.pair_state == state)
        if reach_probability(mdp, state)[pairs].max() > 1.0 - 1e-12:
            states.append(state)
    return states


def is_inside(mdp: FiniteMDP, theta: FloatArray, u: FloatArray) -> bool:
    """Return whether θ lies in O: at every state that can reach sʳ a greedy action maximises u."""
    owner = mdp.space.pair_state
    greedy = theta >= mdp.space.maximum(theta)[owner] - 1e-12
    best = u >= mdp.space.maximum(u)[owner] - 1e-12
    reaches = mdp.space.maximum(u) > 0.0
    meets = np.zeros(mdp.space.num_states, dtype=bool)
    meets[owner[greedy & best]] = True
    return bool(meets[mdp.space.deciding_states][reaches[mdp.space.deciding_states]].all())


def move_inside(mdp: FiniteMDP, theta: FloatArray, u: FloatArray) -> FloatArray:
    """Return θ with the largest value of each state exchanged with that of an action that maximises u."""
    theta = theta.copy()
    for state in mdp.space.deciding_states.tolist():
        pairs = np.flatnonzero(mdp.space.pair_state == state)
        top, wanted = pairs[np.argmax(theta[pairs])], pairs[np.argmax(u[pairs])]
        theta[top], theta[wanted] = theta[wanted], theta[top]
    return theta


def lower_end(mdp: FiniteMDP, theta: FloatArray, u: FloatArray) -> float:
    r"""Return :math:`c_\theta`, −inf where nothing bounds it."""
    owner = mdp.space.pair_state
    greedy = np.flatnonzero(theta >= mdp.space.maximum(theta)[owner] - 1e-12)
    ratios = [
        (theta[other] - theta[k]) / (u[k] - u[other])
        for k in greedy
        for other in np.flatnonzero(owner == owner[k])
        if other != k and u[k] != u[other]
    ]
    return max(ratios, default=-np.inf)


def make(size: Size) -> Made:
    """Draw the log-likelihood along θ + cu for some θ of O, and count over many whether it stays."""
    rng = np.random.default_rng(size.seed)
    figure, panels = draw_panels(1, 2, figsize=(9.0, 3.8))
    rows, largest, changes_below, tried = [], 0.0, 0, 0
    for axes, mdp in zip(panels, (two_state(), deep_sea_loops(depth=size.choose(5, 4))), strict=True):
        target = Target(
            Experience.of_pairs(mdp, mdp.space.pairs()), GaussianPrior(), Tolerance(tolerance=1.0), chart=QChart
        )
        state = recurrent_states(mdp)[0]
        u = reach_probability(mdp, state)
        for number in range(size.choose(200, 40)):
            theta = move_inside(mdp, rng.normal(0.0, 4.0, mdp.space.num_pairs), u)
            assert is_inside(mdp, theta, u)
            start = lower_end(mdp, theta, u)
            above = start + np.array([1e-9, 0.5, 3.0, 100.0])
            g = target.misfits(theta + above[:, None] * u)
            largest = max(largest, float(np.abs(g - g[0]).max()))
            below = target.misfits((theta + (start - 1.0) * u)[None])
            changes_below += bool(np.abs(below - g[0]).max() > 1e-9)
            tried += 1
            if number < 4:
                c = np.linspace(start - 4.0, start + 12.0, 161)
                likelihood = target.log_likelihood(theta + c[:, None] * u)
                axes.plot(c - start, likelihood - likelihood[-1], color=LINES[number], linewidth=1.5)
                rows += [(mdp.name, number, start, value, ll) for value, ll in zip(c, likelihood, strict=True)]
        axes.axvline(0.0, color="black", linewidth=0.6, linestyle="--")
        axes.set(xlabel="c − c_θ", ylabel="log-likelihood, relative", title=f"{mdp.name}, sʳ = {state}")
    found = (
        f"over {tried} θ in O the residuals along c > c_θ change by {largest:.0e} at most; one step below c_θ they "
        f"change in {changes_below / tried:.0%}"
    )
    table = pd.DataFrame(rows, columns=["problem", "theta", "c_theta", "c", "log_likelihood"])
    return Made(figure=figure, rows=table, found=found, holds=largest < 1e-9)


LINES: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")

FIGURE = PaperFigure(
    name="recurrent",
    label="thm. loopthm",
    claim="Where a policy can stay away from the goals for ever there is a set O of positive measure from each of "
    "whose points the likelihood is constant along a half-line.",
    make_fn=make,
)
