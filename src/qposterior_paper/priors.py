"""The two propositions on the support of Q*: Q^M and Q′ on random problems, and what each prior does to exploration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qposterior.environments.random_mdp import random_mdp
from qposterior.experiments.run_spec import RunSpec
from qposterior.model.prior import BoundedPrior, GaussianPrior, Prior, RewardPrior, prior_to_dict
from qposterior.world.arrays import FloatArray
from qposterior.world.mdp import FiniteMDP
from qposterior.world.solve import check_uniqueness, solve
from qposterior_paper.figure import Made, PaperFigure, Size, cumulative, describe_ends, draw_curves, draw_panels, sweep

BOUND = -0.05  # c of ass. boundedreward
CHOICES: dict[str, tuple[Prior | RewardPrior, str]] = {
    "Gaussian": (GaussianPrior(), "#0072B2"),
    "Q′: Q < c": (BoundedPrior(upper=BOUND, on="q"), "#D55E00"),
    "on rewards, P known": (RewardPrior(mean=-1.0, scale=1.0), "#CC79A7"),
}
# Q^M on the pairs that were seen is, at tolerance 0, a check of their rewards: it explores as the Gaussian does. Where
# P is known it is a prior on rewards.


def implied_rewards(mdp: FiniteMDP, q: FloatArray) -> FloatArray:
    """Return ``(K,)`` r(s, a) = Q(s, a) − Σ P(s'|s, a) max Q(s', ·): the rewards under which Q is optimal."""
    value = mdp.space.maximum(q)
    value[mdp.space.goals] = 0.0
    return np.asarray(q - mdp.space.discount * mdp.transitions.expect(value))


def check_strict(mdp: FiniteMDP, rng: np.random.Generator) -> tuple[float, bool, bool]:
    """Proposition strictprior: Q of Q^M is optimal for its rewards; and Q* of rewards below c lies in Q^M."""
    # A Q of Q^M: rewards below c, then their Q*, moved down at random pairs that are not greedy.
    rewards = BOUND - rng.exponential(1.0, mdp.space.num_pairs)
    q = solve(replace(mdp, rewards=rewards)).pair_q.copy()
    greedy = q >= mdp.space.maximum(q)[mdp.space.pair_state]
    q -= np.where(greedy, 0.0, rng.exponential(0.3, q.size))
    implied = implied_rewards(mdp, q)
    again = replace(mdp, rewards=implied)
    error = float(np.abs(solve(again).pair_q - q).max())
    inside = bool((implied < BOUND + 1e-9).all() and check_uniqueness(again).holds)
    converse = bool((implied_rewards(mdp, solve(replace(mdp, rewards=rewards)).pair_q) < BOUND + 1e-9).all())
    return error, inside, converse


def check_loose(mdp: FiniteMDP, rng: np.random.Generator) -> tuple[float, bool]:
    """Proposition looseprior: any Q < c is optimal for some P and r; and Q* of rewards below c lies below c."""
    q = BOUND - rng.exponential(2.0, mdp.space.num_pairs)
    goal = int(mdp.space.goals[0])
    edges = [
        (int(s), int(a), goal, 1.0, float(value))
        for s, a, value in zip(mdp.space.pair_state, mdp.space.pair_action, q, strict=True)
    ]
    straight = FiniteMDP.from_edges(edges, goal=mdp.space.goals.tolist())
    error = float(np.abs(solve(straight).pair_q - q).max())
    rewards = BOUND - rng.exponential(1.0, mdp.space.num_pairs)
    return error, bool((solve(replace(mdp, rewards=rewards)).pair_q < BOUND).all())


def make(size: Size) -> Made:
    """Check both propositions on random problems, and draw the regret under each prior."""
    rng = np.random.default_rng(size.seed)
    problems = size.choose(200, 20)
    strict_error = loose_error = 0.0
    hits = 0
    for number in range(problems):
        mdp = random_mdp(num_states=6, num_actions=2, seed=size.seed + number)
        error, inside, converse = check_strict(mdp, rng)
        other, below = check_loose(mdp, rng)
        strict_error, loose_error = max(strict_error, error), max(loose_error, other)
        hits += inside and converse and below
    specs = [
        RunSpec(
            agent="abrl",
            environment="random-mdp",
            depth=None,
            seed=size.seed + seed,
            episodes=size.choose(60, 12),
            full=True,
            transitions="known" if isinstance(prior, RewardPrior) else None,
            prior=prior_to_dict(prior),
            env_options={"num_states": size.choose(15, 6), "num_actions": 3, "seed": 1},
            label=label,
        )
        for seed in range(size.choose(20, 3))
        for label, (prior, _) in CHOICES.items()
    ]
    curves = cumulative(sweep(size, "priors", specs).episodes, "policy_regret", CHOICES)
    figure, axes = draw_panels(figsize=(6.5, 4.2))
    table = draw_curves(axes, curves, {label: colour for label, (_, colour) in CHOICES.items()})
    axes.set(xlabel="episode", ylabel="cumulative regret of the held policy (reward)")
    axes.set_title(f"a random problem with {specs[0].env_options['num_states']} states", fontsize=9)
    axes.legend(frameon=False)
    found = (
        f"both propositions hold in {hits} of {problems} random problems (errors of Q* at most {strict_error:.0e} and "
        f"{loose_error:.0e}); regret in the end: {describe_ends(table, '.1f')}"
    )
    return Made(
        figure=figure,
        rows=table.rename(columns={"label": "prior"}),
        found=found,
        holds=hits == problems and max(strict_error, loose_error) < 1e-8,
    )


FIGURE = PaperFigure(
    name="priors",
    label="props. strictprior, looseprior",
    claim="With rewards below c < 0 and P known, the possible Q* are exactly Q^M; with P unknown they are exactly Q′, "
    "all Q below c.",
    make_fn=make,
)
