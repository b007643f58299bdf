"""Your own prior: a target whose prior is not among the library's, sampled by HMC and checked by weights.

The library's priors on Q are independent. Suppose you hold that the actions of one state are worth about the same, so
that one bad action makes its neighbours suspect: their values are correlated. `QTarget` is the posterior under a
Gaussian prior; a subclass with another log-density and gradient is sampled by those.
"""

import numpy as np

import qposterior as qp
from qposterior.inference.hmc import run_hmc
from qposterior.model.likelihood import Tolerance
from qposterior.model.tabular import QTarget

BASE = qp.GaussianPrior(scale=4.0)  # wider than ours in every direction: the weights below are bounded
SCALE, SHARED = 3.0, 0.75  # ours: sd of a value, and the correlation of the actions of one state
SETTINGS = {"tolerance": 0.3, "method": "exact", "coordinates": "q"}


class RelatedActions(QTarget):
    """The posterior under `BASE` times the ratio of the two priors: the posterior under ours."""

    def __init__(self, seen: qp.Experience, tolerance: float) -> None:
        super().__init__(seen, BASE, Tolerance(tolerance=tolerance))
        related = seen.space.pair_state[:, None] == seen.space.pair_state
        self.precision = np.linalg.inv(SCALE**2 * (SHARED * related + (1.0 - SHARED) * np.eye(len(related))))

    def log_prior_ratio(self, x):
        """Return log of ours / base, up to a constant, and its gradient."""
        slope = x / BASE.scale**2 - x @ self.precision
        return 0.5 * np.sum(x * slope, axis=1), slope

    def log_density_and_grad(self, x):
        """Return both columns of the log-density (the second is 0 without jumps) and the gradient."""
        density, grad = super().log_density_and_grad(x)
        ratio, slope = self.log_prior_ratio(x)
        return density + ratio[:, None] * [1.0, 0.0], grad + slope


if __name__ == "__main__":
    edges = [(0, 0, 1, 1.0, 0.0), (0, 1, 2, 1.0, 0.0), *((room, a, 3, 1.0, -4.0) for room in (1, 2) for a in (0, 1))]
    seen = qp.Experience.of_pairs(qp.FiniteMDP.from_edges(edges, goal=[3]), [(0, 0), (0, 1), (1, 0)])
    target = RelatedActions(seen, tolerance=SETTINGS["tolerance"])
    chains = run_hmc(target, np.random.default_rng(1), qp.HMCSettings(min_ess=2000))
    theta = target.to_q(chains.draws.reshape(-1, target.num_coordinates))
    # The check: independent draws under the base prior, weighted by the same ratio. No chain, no gradient.
    base = qp.posterior(seen, prior=BASE, particles=50_000, **SETTINGS)
    weights = np.exp(target.log_prior_ratio(base.draws)[0])
    alone = qp.posterior(seen, prior=qp.GaussianPrior(scale=SCALE), **SETTINGS)
    print(f"R-hat {chains.diagnostics['max_r_hat']:.3f}, effective draws {chains.diagnostics['min_bulk_ess']:.0f}")
    print("P(the first action is best)   independent   related, by HMC   related, by weights")
    for state, name in enumerate(["fork", "room with a bad action", "room not seen"]):
        hmc, drawn = (q[:, 2 * state] > q[:, 2 * state + 1] for q in (theta, base.draws))
        check = np.average(drawn, weights=weights)
        print(f"  {name:26s} {alone.prob_optimal(state)[0]:12.3f} {hmc.mean():17.3f} {check:21.3f}")
