"""Coverage of 90 % intervals where states are bins, with the band of the bins and without it, on simulated problems.

    python benchmarks/numeric_coverage.py --store runs/numeric.jsonl --logs 8 --first 2000
    python benchmarks/numeric_coverage.py --store runs/numeric.jsonl --show

The truth of a policy is its mean return over 20,000 episodes that start as those of the log do, as values are meant.
That of an advantage is the mean, over rows of a bin, of the difference of two returns that go on with the recommended
policy.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

import qposterior as qp
from numeric_problems import PROBLEMS
from qposterior.inference.policies import central_interval
from qposterior.model.solve_models import ModelSolver

SIZES = (3000, 20_000)
EPISODES, STATES, REPEATS, FEWEST = 20_000, 3000, 6, 15


def judge(name: str, rows: int, seed: int, *, with_advantages: bool = True) -> list[dict]:
    """Return a record for each number that a fit reports: truth, and the interval with and without the band."""
    problem, rng = PROBLEMS[name], np.random.default_rng(10**6 + seed)
    log = problem.log(seed, rows).rename(columns={"unit": "episode"})
    fit = qp.fit(log, numeric=",".join(problem.columns), discount=problem.discount, seed=seed)
    record = {"problem": name, "rows": rows, "seed": seed}
    if not fit.is_settled:
        return [record | {"what": "lost"}]
    act = Acting(fit, problem)
    begins = log.groupby("episode").head(1)[list(problem.columns)].sample(EPISODES, replace=True, random_state=seed)
    begins = begins.to_numpy()
    returns = {"recommended": problem.returns(rng, begins, act), "logged": problem.returns(rng, begins, problem.logged)}
    returns["gain"] = returns["recommended"] - returns["logged"]
    records = []
    for policies, kind in ((fit.policies, "with"), (fit.as_if_bins_were_states, "without")):
        values = {"recommended": policies.recommended.values, "logged": policies.logged.values, "gain": policies.gain}
        for what, draws in values.items():
            truth = float(returns[what].mean())
            records.append(record | {"what": what, "kind": kind, "truth": truth} | interval(draws))
    return records + [record | one for one in (advantages(fit, act, log, rng) if with_advantages else ())]


def interval(draws: np.ndarray) -> dict:
    """Return mean and 90 % interval."""
    low, high = central_interval(draws)
    return {"mean": float(draws.mean()), "low": low, "high": high}


class Acting:
    """The recommended policy, as a function of numbers."""

    def __init__(self, fit, problem) -> None:
        self.bins, space = fit.log.bins, fit.posterior.space
        number = {label: i for i, label in enumerate(fit.chosen.states)}
        self.state_of = np.full(2 * self.bins.finer, -1)
        for node in self.bins.nodes(self.bins.shown):
            self.state_of[node] = number.get(self.bins.label(node), -1)
        self.codes = np.array([problem.actions.index(action) for action in fit.chosen.actions])
        shares = np.zeros((space.num_states, space.num_actions))
        shares[space.pair_state, space.pair_action] = fit.policies.recommended.probabilities
        self.steps = shares.cumsum(axis=1)

    def states(self, x):
        """Return the states of numbers."""
        return self.state_of[self.bins.find(x, self.bins.shown)]

    def __call__(self, rng, x):
        """Return actions."""
        above = rng.random(len(x))[:, None] > self.steps[self.states(x)]
        return self.codes[np.minimum(above.sum(axis=1), self.codes.size - 1)]


def advantages(fit, act, log, rng):
    """Yield a record for each tried action and bin: its advantage over the action to take."""
    problem, space, post = act_problem(log), fit.posterior.space, fit.posterior
    x = log.iloc[rng.permutation(len(log))[:STATES]][list(problem.columns)].to_numpy()
    states, probabilities = act.states(x), fit.policies.recommended.probabilities
    means = [
        np.mean([problem.returns(rng, x, act, first=np.full(len(x), code)) for _ in range(REPEATS)], axis=0)
        for code in act.codes
    ]
    blocks = ModelSolver(post.models).action_value_blocks(probabilities, np.flatnonzero(~post.choosing))
    q, best = np.concatenate(list(blocks)), space.greedy(probabilities)
    prob = {
        "with": fit.believed.prob_optimal_table(),
        "without": fit.posterior.prob_optimal_table(),
    }
    for k in np.flatnonzero(fit.chosen.seen.observed):
        state, action = int(space.pair_state[k]), int(space.pair_action[k])
        rows = np.flatnonzero(states == state)
        taken = int(best[state])
        if action == taken or rows.size < FEWEST:
            continue
        gap = means[action][rows] - means[taken][rows]
        draws = q[:, k] - q[:, space.pair_index[state, taken]]
        error = fit.aggregation.advantage[k]
        record = {"what": "advantage", "truth": float(gap.mean()), "se": float(gap.std() / np.sqrt(rows.size))}
        for kind, moved in (("without", draws), ("with", np.concatenate([draws - error, draws + error]))):
            yield record | {"kind": kind, "surely": float(prob[kind][state, taken])} | interval(moved)


def act_problem(log):
    """Return the problem that a log is of."""
    return next(one for one in PROBLEMS.values() if one.columns[0] in log)


def show(store: Path) -> None:
    """Print the shares of intervals that hold the truth, within the error of its simulation."""
    table = pd.DataFrame([json.loads(line) for line in store.read_text().splitlines()])
    lost = table["what"].eq("lost").groupby([table["problem"], table["rows"]]).sum()
    table = table[table["what"] != "lost"].copy()
    slack = 2.0 * table["se"].fillna(0.0)
    table["covered"] = (table["truth"] >= table["low"] - slack) & (table["truth"] <= table["high"] + slack)
    table["length"] = table["high"] - table["low"]
    keys = ["problem", "rows", "what", "kind"]
    found = table.groupby(keys).agg(
        covered=("covered", "mean"), length=("length", "median"), number=("covered", "size")
    )
    print(found.unstack("kind").round(2).to_string())
    print("all:", table.groupby(["what", "kind"])["covered"].mean().round(3).to_dict())
    sure = table[(table["what"] == "advantage") & (table["surely"] >= 0.9)]
    wrong = (sure["truth"] > 2.0 * sure["se"]).groupby(sure["kind"])
    print(
        "another action is truly better where P(best) is 0.9 or more:", wrong.agg(["mean", "size"]).round(3).to_dict()
    )
    print("not settled:", lost.to_dict())


def main() -> None:
    """Judge logs, or show what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--logs", type=int, default=8)
    parser.add_argument("--first", type=int, default=2000)
    parser.add_argument("--show", action="store_true")
    told = parser.parse_args()
    if told.show:
        show(told.store)
        return
    for seed in range(told.first, told.first + told.logs):
        for name in PROBLEMS:
            for rows in SIZES:
                with told.store.open("a") as stream:
                    stream.writelines(json.dumps(one) + "\n" for one in judge(name, rows, seed))


if __name__ == "__main__":
    main()
