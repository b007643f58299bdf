"""Decision problems with numbers for states, whose truth is simulated; none was made to suit a way of binning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Problem:
    """A simulator: all functions work on many states at once."""

    columns: tuple[str, ...]
    actions: tuple[str, ...]
    discount: float
    steps: int  # of an episode of the log, if it does not end before

    def begin(self, rng, size):
        raise NotImplementedError

    def step(self, rng, x, action):
        """Return rewards, next states, and whether the episode has ended."""
        raise NotImplementedError

    def logged(self, rng, x):
        """Return the actions of whoever made the log."""
        raise NotImplementedError

    def log(self, seed, rows):
        """Return a log of at least so many rows, episode by episode."""
        rng = np.random.default_rng(seed)
        parts, total, first = [], 0, 0
        while total < rows:
            part = self._episodes(rng, 64, first)
            parts.append(part)
            total, first = total + len(part), first + 64
        log = pd.concat(parts, ignore_index=True)
        last = log["unit"].iloc[min(rows, len(log)) - 1]
        return log[log["unit"] <= last]

    def _episodes(self, rng, size, first):
        x, alive, parts = self.begin(rng, size), np.ones(size, dtype=bool), []
        for step in range(self.steps):
            action = self.logged(rng, x)
            reward, following, ended = self.step(rng, x, action)
            at = np.flatnonzero(alive)
            part = pd.DataFrame(x[at], columns=list(self.columns))
            part["unit"], part["step"] = first + at, step
            part["action"], part["reward"] = np.array(self.actions)[action[at]], reward[at]
            part["terminated"] = ended[at].astype(int)
            part[[f"next_{name}" for name in self.columns]] = following[at]
            parts.append(part)
            alive &= ~ended
            x = following
        return pd.concat(parts).sort_values(["unit", "step"], kind="stable")

    def returns(self, rng, x, choose_fn, *, first=None):
        """Return the discounted returns of following `choose_fn(rng, x)` from states; `first` are the first actions."""
        total, alive, weight = np.zeros(len(x)), np.ones(len(x), dtype=bool), 1.0
        for step in range(round(np.log(1e-3) / np.log(self.discount)) if self.discount < 1.0 else 500):
            action = first if step == 0 and first is not None else choose_fn(rng, x)
            reward, x, ended = self.step(rng, x, action)
            total[alive] += weight * reward[alive]
            weight *= self.discount
            alive &= ~ended
        return total


class Machine(Problem):
    """A machine wears with load and heat; vibration shows the wear. It may break."""

    def begin(self, rng, size):
        return np.column_stack([rng.normal(55, 5, size), rng.uniform(0.2, 1.0, size), rng.gamma(2.0, 0.25, size)])

    def step(self, rng, x, action):
        heat, load, vibration = x.T
        speed = np.choose(action, [1.0, 0.6, 0.0])
        reward = 10 * speed * load + rng.normal(0, 1.0, len(x)) - np.where(action == 2, 6.0, 0.0)
        breaks = rng.random(len(x)) < 1 / (1 + np.exp(-(1.6 * (vibration - 4.0) + 0.08 * (heat - 85)))) * (speed > 0)
        reward = reward - 40.0 * breaks
        heat = 40 + 0.6 * (heat - 40) + 25 * speed * load + rng.normal(0, 2, len(x))
        vibration = vibration + speed * (0.08 + 0.004 * np.maximum(heat - 60, 0)) * rng.gamma(4.0, 0.25, len(x))
        vibration = np.where((action == 2) | breaks, rng.gamma(2.0, 0.15, len(x)), vibration)
        load = np.clip(0.8 * load + 0.2 * 0.6 + rng.normal(0, 0.12, len(x)), 0.1, 1.2)
        return reward, np.column_stack([heat, load, vibration]), np.zeros(len(x), dtype=bool)

    def logged(self, rng, x):
        serviced = rng.random(len(x)) < 0.04 + 0.25 * (x[:, 2] > 3.0)
        slow = rng.random(len(x)) < 0.25 + 0.3 * (x[:, 0] > 75)
        return np.where(serviced, 2, np.where(slow, 1, 0))


class Dosing(Problem):
    """The level of a drug and the severity of an illness; too high a level harms, and discharge ends the episode."""

    def begin(self, rng, size):
        return np.column_stack([rng.gamma(2.0, 0.3, size), rng.uniform(2.0, 9.0, size)])

    def step(self, rng, x, action):
        level, severity = x.T
        dose = np.choose(action, [0.0, 1.0, 2.5])
        level = 0.6 * level + dose * rng.lognormal(0.0, 0.2, len(x))
        effect = 1.6 * level**2 / (2.0 + level**2)
        severity = np.clip(severity + 0.35 - effect + rng.normal(0, 0.5, len(x)), 0, 12)
        harm = np.maximum(level - 3.0, 0.0) ** 2
        reward = -severity - 2.0 * harm - 0.3 * dose + rng.normal(0, 0.5, len(x))
        return reward, np.column_stack([level, severity]), severity < 1.0

    def logged(self, rng, x):
        likes = np.column_stack([2.0 - 0.3 * x[:, 1], np.ones(len(x)), 0.25 * x[:, 1] - 0.3 * x[:, 0]])
        return np.argmax(likes + rng.gumbel(size=likes.shape), axis=1)


class Hill(Problem):
    """A car too weak for the hill: position and speed, push left, coast or right; a decision lasts ten moments."""

    def begin(self, rng, size):
        return np.column_stack([rng.uniform(-1.1, 0.3, size), rng.uniform(-0.05, 0.05, size)])

    def step(self, rng, x, action):
        place, speed = x.T.copy()
        ended = np.zeros(len(x), dtype=bool)
        for _ in range(10):
            speed = np.clip(speed + 0.001 * (action - 1) - 0.0025 * np.cos(3 * place), -0.07, 0.07)
            place = np.where(ended, place, np.clip(place + speed, -1.2, 0.6))
            speed = np.where((place <= -1.2) & (speed < 0), 0.0, speed)
            ended |= place >= 0.5
        speed = np.clip(speed + rng.normal(0, 0.003, len(x)), -0.07, 0.07)
        reward = -1.0 - 0.2 * (action != 1) + rng.normal(0, 0.1, len(x))
        return reward, np.column_stack([place, speed]), ended

    def logged(self, rng, x):
        along = np.where(x[:, 1] > 0, 2, 0)
        return np.where(rng.random(len(x)) < 0.5, along, rng.integers(0, 3, len(x)))


class Stock(Problem):
    """Stock and the price of buying; demand is random, what is missing is lost: nothing is smooth but the price."""

    def begin(self, rng, size):
        return np.column_stack([rng.uniform(0, 40, size), rng.uniform(4, 9, size)])

    def step(self, rng, x, action):
        stock, price = x.T
        bought = np.choose(action, [0.0, 10.0, 25.0])
        stock = np.minimum(stock + bought, 60.0)
        demand = rng.gamma(4.0, 2.5, len(x))
        sold = np.minimum(stock, demand)
        reward = 12.0 * sold - price * bought - 0.3 * (stock - sold) - 20.0 * (demand > stock) - 8.0 * (bought > 0)
        price = np.clip(6.5 + 0.7 * (price - 6.5) + rng.normal(0, 0.8, len(x)), 3, 11)
        return reward, np.column_stack([stock - sold, price]), np.zeros(len(x), dtype=bool)

    def logged(self, rng, x):
        low = x[:, 0] < 12
        return np.where(rng.random(len(x)) < 0.6, np.where(low, 2, 0), rng.integers(0, 3, len(x)))


PROBLEMS = {
    "machine": Machine(("temperature", "load", "vibration"), ("fast", "slow", "service"), 0.95, 60),
    "dosing": Dosing(("level", "severity"), ("none", "low", "high"), 0.95, 40),
    "hill": Hill(("place", "speed"), ("left", "coast", "right"), 0.95, 40),
    "stock": Stock(("stock", "price"), ("nothing", "ten", "much"), 0.9, 50),
}
