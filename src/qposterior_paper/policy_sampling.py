"""Sampling θ and acting greedily is sampling the optimal policy; and how long one should hold it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from qposterior.api import posterior
from qposterior.environments.bandit import bandit
from qposterior.environments.deep_sea import deep_sea
from qposterior.experiments.run_spec import RunSpec
from qposterior.experiments.statistics import summarise_runs
from qposterior.world.experience import Experience
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels, sweep

HOLDS: tuple[tuple[str, int | None], ...] = (("every step", 1), ("every 3 steps", 3), ("every episode", None))


def make(size: Size) -> Made:
    """Draw policy frequencies against P(policy), tie rules, and learning time by how often a policy is drawn."""
    sea = deep_sea(depth=4)
    seen = Experience.of_pairs(sea, [(0, 0), (0, 1), (1, 0), (2, 1), (3, 0), (4, 1)])
    exact = posterior(seen, method="exact", particles=10, seed=size.seed)
    number = size.choose(10_000, 1000)
    # Policies are drawn from the draws with replacement: twenty times as many, so that this adds nothing to speak of.
    drawn = posterior(seen, method="exact", particles=20 * number, seed=size.seed + 1)
    policies = drawn.sample_policy(number, seed=size.seed)
    states = sea.space.deciding_states.tolist()
    rows = []
    for choice in product(*(sea.space.actions(s).tolist() for s in states)):
        share = float(np.mean(np.all(policies[:, states] == choice, axis=1)))
        rows.append(("policy", str(choice), exact.prob_policy(dict(zip(states, choice, strict=True))), share, number))
    # Two arms with the same reward tie for ever; the third has not been tried.
    arms = bandit(means=(1.0, 1.0, 0.0), reward_sd=0.0)
    tied = posterior(Experience.of_pairs(arms, [(0, 0), (0, 1)]), method="exact", particles=number, seed=size.seed)
    for rule in ("uniform", "lowest"):
        probability = tied.prob_optimal(0, ties=rule)
        frequency = np.bincount(tied.sample_policy(number, seed=size.seed, ties=rule)[:, 0], minlength=3) / number
        rows += [(f"ties {rule}", f"arm {a}", probability[a], frequency[a], number) for a in range(3)]
    table = pd.DataFrame(rows, columns=["what", "which", "probability", "frequency", "draws"])
    specs = [
        RunSpec(
            agent="abrl-iid",
            environment="deep-sea",
            depth=size.choose(10, 4),
            seed=size.seed + seed,
            episodes=size.choose(1500, 200),
            agent_options={} if every is None else {"redraw_every": every},
            label=label,
        )
        for seed in range(size.choose(20, 3))
        for label, every in HOLDS
    ]
    times: Any = summarise_runs(sweep(size, "policy-sampling", specs).runs).set_index("agent")
    figure, panels = draw_panels(1, 3, figsize=(11.0, 3.6))
    part = table[table["what"] == "policy"]
    panels[0].plot([0, part["probability"].max()], [0, part["probability"].max()], color="black", linewidth=0.6)
    panels[0].plot(part["probability"], part["frequency"], "o", color="#0072B2", markersize=3)
    panels[0].set(
        xlabel="P(policy is optimal), exact", ylabel="share of greedy policies", title=f"{len(part)} policies"
    )
    for i, (rule, colour) in enumerate((("uniform", "#D55E00"), ("lowest", "#009E73"))):
        part = table[table["what"] == f"ties {rule}"]
        panels[1].bar(np.arange(3) + 0.36 * i - 0.18, part["probability"], 0.34, color=colour, alpha=0.5, label=rule)
        panels[1].plot(np.arange(3) + 0.36 * i - 0.18, part["frequency"], "k_", markersize=12)
    panels[1].set(xticks=range(3), xticklabels=["arm 0", "arm 1 (ties)", "arm 2 (unseen)"], title="tie rules")
    panels[1].set_ylabel("P(optimal); bars: drawn")
    panels[1].legend(frameon=False)
    for i, (label, _) in enumerate(HOLDS):
        row = times.loc[label]
        panels[2].bar(i, row["mean"], 0.6, color="#56B4E9")
        panels[2].plot([i, i], [row["low"], row["high"]], "k-", linewidth=1.5)
    panels[2].set(xticks=range(3), xticklabels=[label for label, _ in HOLDS], ylabel="learning time (episodes)")
    panels[2].set_title(f"when a policy is drawn, depth {specs[0].depth}")
    p_value = _goodness_of_fit(table[table["what"] == "policy"])
    gap = float((table["frequency"] - table["probability"])[table["what"] != "policy"].abs().max())
    held = ", ".join(f"{label} {times.loc[label, 'mean']:.0f} ({_solved(times.loc[label])})" for label, _ in HOLDS)
    found = (
        f"the greedy policies of {number} draws follow P(policy) (χ² test over "
        f"{int((table['what'] == 'policy').sum())} "
        f"policies: p = {p_value:.2f}), tie rules to {gap:.3f}; learning time when drawn {held}"
    )
    return Made(figure=figure, rows=table, found=found, holds=p_value > 1e-4 and gap < 3.0 / np.sqrt(number))


def _goodness_of_fit(table: pd.DataFrame) -> float:
    """Return the p-value of the χ² test; policies expected fewer than five times are counted together."""
    from scipy.stats import chisquare

    number = int(table["draws"].iloc[0])
    expected, observed = table["probability"].to_numpy() * number, table["frequency"].to_numpy() * number
    rare = expected < 5.0
    counts = np.append(observed[~rare], observed[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    kept = wanted > 0.0
    return float(chisquare(counts[kept], wanted[kept] * counts[kept].sum() / wanted[kept].sum()).pvalue)


def _solved(row: Any) -> str:
    return f"{row['solved']:.0f}/{row['runs']:.0f} solved"


FIGURE = PaperFigure(
    name="policy-sampling",
    label="app. psrl_mdp",
    claim="Drawing θ and acting greedily deploys each policy with its posterior probability of being optimal, under "
    "any tie rule; holding a policy for an episode explores deeply.",
    make_fn=make,
)
