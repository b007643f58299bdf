"""Three problems of practice whose truth is known: a machine, a shop, a support desk. Logs of them are seeded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

import qposterior as qp
from numeric_problems import PROBLEMS

Policy = dict[str, dict[str, float]]
COLUMNS = ["state", "action", "reward", "next_state", "terminated", "episode"]
LOGS = Path(__file__).parent.parent / "examples" / "logs"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Mean reward and successors of every (state, action), and how decisions were made: at random, some more often."""

    name: str
    rows: dict[tuple[str, str], tuple[float, dict[str, float]]]
    start: str
    discount: float
    noise: float
    steps: int
    episodes: int
    goals: tuple[str, ...] = ()

    @cached_property
    def states(self) -> list[str]:
        return list(dict.fromkeys([*(s for s, _ in self.rows), *self.goals]))

    @cached_property
    def actions(self) -> list[str]:
        return list(dict.fromkeys(a for _, a in self.rows))

    @cached_property
    def truth(self) -> dict[tuple[str, str], float]:
        index = self.states.index
        edges = [
            (index(s), self.actions.index(a), index(t), p, reward)
            for (s, a), (reward, row) in self.rows.items()
            for t, p in row.items()
        ]
        mdp = qp.FiniteMDP.from_edges(edges, goal=[index(g) for g in self.goals], discount=self.discount)
        q = qp.solve(mdp).q
        return {(s, a): float(q[index(s), self.actions.index(a)]) for s, a in self.rows}

    @property
    def logged(self) -> Policy:
        """How decisions were made: all actions of a state equally often."""
        tried = {s: [a for state, a in self.rows if state == s] for s, _ in self.rows}
        return {s: dict.fromkeys(actions, 1.0 / len(actions)) for s, actions in tried.items()}

    def values_of(self, policy: Policy) -> dict[str, float]:
        """Return V of a policy, {state: {action: probability}}, in every state that is no goal."""
        states = list(policy)
        system, right = np.eye(len(states)), np.zeros(len(states))
        for i, state in enumerate(states):
            for action, share in policy[state].items():
                reward, row = self.rows[state, action]
                right[i] += share * reward
                for following, p in row.items():
                    if following not in self.goals:
                        system[i, states.index(following)] -= self.discount * share * p
        return dict(zip(states, np.linalg.solve(system, right).tolist(), strict=True))

    def q_of(self, policy: Policy) -> dict[tuple[str, str], float]:
        """Return Q of a policy: an action now, the policy from then on."""
        value = self.values_of(policy)
        return {
            pair: reward + self.discount * sum(p * value.get(following, 0.0) for following, p in row.items())
            for pair, (reward, row) in self.rows.items()
        }

    def simulate(self, seed: int, episodes: int | None = None) -> pd.DataFrame:
        rng, log = np.random.default_rng(seed), []
        for episode in range(episodes or self.episodes):
            state = self.start
            for _ in range(self.steps):
                choices = [a for s, a in self.rows if s == state]
                action = str(rng.choice(choices))
                reward, row = self.rows[state, action]
                following = str(rng.choice(list(row), p=list(row.values())))
                reading = round(float(reward + rng.normal(0.0, self.noise)), 2)
                log.append((state, action, reading, following, int(following in self.goals), episode))
                if following in self.goals:
                    break
                state = following
        return pd.DataFrame(log, columns=COLUMNS)


MAINTENANCE = Case(
    name="maintenance",
    rows={
        ("new", "run"): (10.0, {"new": 0.5, "good": 0.48, "scrapped": 0.02}),
        ("new", "repair"): (-8.0, {"new": 1.0}),
        ("good", "run"): (8.0, {"good": 0.5, "worn": 0.45, "scrapped": 0.05}),
        ("good", "repair"): (-8.0, {"new": 1.0}),
        ("worn", "run"): (2.0, {"worn": 0.5, "bad": 0.3, "scrapped": 0.2}),
        ("worn", "repair"): (-8.0, {"new": 0.9, "good": 0.1}),
        ("bad", "run"): (-4.0, {"bad": 0.5, "scrapped": 0.5}),
        ("bad", "repair"): (-10.0, {"new": 0.7, "good": 0.3}),
    },
    start="new",
    discount=0.9,
    noise=2.0,
    steps=15,
    episodes=60,
    goals=("scrapped",),
)
SUPPORT = Case(
    name="support",
    rows={
        ("first question", "template"): (-1.0, {"solved": 0.45, "second question": 0.45, "angry": 0.10}),
        ("first question", "ask back"): (-2.0, {"solved": 0.30, "second question": 0.65, "angry": 0.05}),
        ("first question", "call"): (-6.0, {"solved": 0.85, "second question": 0.15}),
        ("second question", "template"): (-1.0, {"solved": 0.15, "angry": 0.85}),
        ("second question", "ask back"): (-2.0, {"solved": 0.50, "angry": 0.50}),
        ("second question", "call"): (-6.0, {"solved": 0.90, "angry": 0.10}),
        ("angry", "template"): (-8.0, {"lost": 0.80, "second question": 0.20}),
        ("angry", "ask back"): (-7.0, {"lost": 0.60, "second question": 0.40}),
        ("angry", "call"): (-9.0, {"solved": 0.60, "lost": 0.40}),
    },
    start="first question",
    discount=1.0,
    noise=0.5,
    steps=30,
    episodes=250,
    goals=("solved", "lost"),
)


def _inventory() -> Case:
    demand, most = {0: 0.2, 1: 0.4, 2: 0.3, 3: 0.1}, 4
    rows: dict[tuple[str, str], tuple[float, dict[str, float]]] = {}
    for stock in range(most + 1):
        for order in range(min(3, most - stock) + 1):
            there, row, profit = stock + order, dict[str, float](), 0.0
            for wanted, p in demand.items():
                sold = min(wanted, there)
                row[f"{there - sold} left"] = row.get(f"{there - sold} left", 0.0) + p
                profit += p * (4.0 * sold - 0.5 * (there - sold))
            cost = (1.0 + 1.5 * order) if order else 0.0
            rows[f"{stock} left", f"order {order}"] = (profit - cost, row)
    return Case(name="inventory", rows=rows, start="2 left", discount=0.9, noise=1.0, steps=20, episodes=60)


CASES = {case.name: case for case in (MAINTENANCE, _inventory(), SUPPORT)}


def as_exported(log: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return a log as a ticket system would export it: a row per step in no order, with costs, times, slips and gaps.

    The last row of a ticket says how it was closed, unless it is still open.
    """
    rng, size = np.random.default_rng(seed), len(log)
    step = log.groupby("episode").cumcount()
    opened = pd.Timestamp("2026-03-02 08:00") + pd.to_timedelta(37 * log["episode"], unit="min")
    status = [
        label.capitalize() if slip else label for label, slip in zip(log["state"], rng.random(size) < 0.2, strict=True)
    ]
    cost = (-log["reward"]).map("{:.2f}".format).where(rng.random(size) > 0.02, "NA")
    table = pd.DataFrame(
        {
            "ticket_id": [f"T-{1000 + episode}" for episode in log["episode"]],
            "time": (opened + pd.to_timedelta(15 * step, unit="min")).dt.strftime("%Y-%m-%d %H:%M"),
            "status": status,
            "decision": log["action"],
            "agent": rng.choice(["AB", "CK", "LM"], size),
            "cost": cost,
            "closed_as": log["next_state"].where(log["terminated"] == 1, ""),
        }
    )
    return table.sample(frac=1.0, random_state=np.random.RandomState(seed))


def machines(rows: int = 1500) -> pd.DataFrame:
    """A log of machines whose states are sensor values, without successors: rows follow each other by the hour."""
    log = PROBLEMS["machine"].log(0, rows)
    return pd.DataFrame(
        {
            "machine": [f"M{unit + 1:02d}" for unit in log["unit"]],
            "hour": log["step"] + 1,
            "temperature": log["temperature"].round(1),
            "load": log["load"].round(2),
            "vibration": log["vibration"].round(2),
            "decision": log["action"],
            "profit": log["reward"].round(2),
            "terminated": 0,  # the record stops, the machine does not
        }
    )


def write_logs(folder: Path = LOGS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        case.simulate(seed=0).to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    machines().to_csv(folder / "machines.csv", index=False, lineterminator="\n")
    as_exported(SUPPORT.simulate(seed=1), seed=1).to_csv(folder / "tickets.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    write_logs()
