"""What a posterior is asked for: what was seen, and the parts of the model. Every method starts from one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qposterior.model.charts import BellmanChart, Parts, QFunction
from qposterior.model.noise import Likelihood
from qposterior.model.rows import Rows
from qposterior.model.target import Target
from qposterior.weighted_draws import Posterior
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """What was seen, with prior × noise × rows × chart, and how many draws are wanted."""

    seen: Experience
    prior: Any
    noise: Likelihood
    chart: Callable[[Parts], Any] = BellmanChart
    rows: Rows | None = None  # None: those of the experience, known
    q_function: QFunction | None = None  # None: a table
    num_draws: int = 1000
    described: dict[str, Any]  # the settings, stored with the result

    @property
    def space(self) -> StateActionSpace:
        """The states and actions."""
        return self.seen.space

    @property
    def is_bellman(self) -> bool:
        """Whether the chart is that of Bellman coordinates."""
        return self.chart is BellmanChart

    @property
    def tolerance(self) -> float:
        """The largest tolerance, 0 with noise."""
        return self.noise.largest_tolerance

    @property
    def has_many_tolerances(self) -> bool:
        """Whether pairs have tolerances of their own."""
        return np.ndim(getattr(self.noise, "tolerance", 0.0)) > 0

    def target(self, rng: np.random.Generator | None = None) -> Target:
        """Return the density to draw from; `rng` is for rows that are drawn when they are bound."""
        parts: dict[str, Any] = {"chart": self.chart, "rows": self.rows, "q_function": self.q_function}
        return Target(self.seen, self.prior, self.noise, **parts, rng=rng)

    def at_tolerance(self, tolerance: float) -> Problem:
        """Return the problem at another largest tolerance; tolerances that differ by pair keep their ratios."""
        return replace(self, noise=self.noise.at_tolerance(tolerance))

    def posterior(self, **answer: Any) -> Posterior:
        """Return the draws of a method as a `Posterior` of this problem; equal weights unless others are given."""
        num = answer["draws"].shape[0]
        return Posterior(**({"weights": np.full(num, 1.0 / num)} | answer), space=self.space, settings=self.described)
