"""Your own prior: two methods, and every sampler takes it.

The library's priors on Q are independent. Suppose you hold that the actions of one state are worth about the same, so
that one bad action makes its neighbours suspect: their values are correlated.
"""

import numpy as np

import qposterior as qp

SCALE, SHARED = 3.0, 0.75  # sd of a value, and the correlation of the actions of one state


class RelatedActions:
    """Normal values, correlated within a state."""

    def covariance(self, space):
        """Return the covariance of the values of all pairs."""
        related = space.pair_state[:, None] == space.pair_state
        return SCALE**2 * (SHARED * related + (1.0 - SHARED) * np.eye(space.num_pairs))

    def log_density_and_grad(self, theta, space):
        """Return the log-densities of (N, pairs) values, and their gradients."""
        slope = -np.linalg.solve(self.covariance(space), theta.T).T
        log_norm = -0.5 * np.linalg.slogdet(2.0 * np.pi * self.covariance(space))[1]
        return 0.5 * np.sum(theta * slope, axis=1) + log_norm, slope

    def draw(self, num, space, rng):
        """Return (num, pairs) draws."""
        return rng.multivariate_normal(np.zeros(space.num_pairs), self.covariance(space), num)


if __name__ == "__main__":
    edges = [(0, 0, 1, 1.0, 0.0), (0, 1, 2, 1.0, 0.0), *((room, a, 3, 1.0, -4.0) for room in (1, 2) for a in (0, 1))]
    seen = qp.Experience.of_pairs(qp.FiniteMDP.from_edges(edges, goal=[3]), [(0, 0), (0, 1), (1, 0)])
    mine = RelatedActions()
    by_hmc = qp.posterior(seen, prior=mine, method="hmc", particles=4000)
    by_smc = qp.posterior(seen, prior=mine, method="smc", particles=4000)
    alone = qp.posterior(seen, prior=qp.GaussianPrior(scale=SCALE), method="exact")
    # The check: independent draws under a wider prior, weighted by the ratio of the two. No chain, no gradient.
    base = qp.GaussianPrior(scale=4.0)
    drawn = qp.posterior(seen, prior=base, method="exact", particles=50_000)
    ratio = [prior.log_density_and_grad(drawn.draws, seen.space)[0] for prior in (mine, base)]
    check = drawn.reweight(ratio[0] - ratio[1])
    print("P(the first action is best)   independent   related: hmc      smc   by weights")
    for state, name in enumerate(["fork", "room with a bad action", "room not seen"]):
        values = [post.prob_optimal(state)[0] for post in (alone, by_hmc, by_smc, check)]
        print(f"  {name:26s} {values[0]:12.3f} {values[1]:14.3f} {values[2]:8.3f} {values[3]:12.3f}")
