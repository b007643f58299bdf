"""Your own noise: one method, the log-likelihood of what was read given the mean rewards, and its gradient.

Two routes home. A delay is never much shorter than usual, but now and then far longer, so readings of a route are
skewed: its usual reward minus a Gumbel variable. A Gaussian takes one long delay for a slow route.
"""

import numpy as np

import qposterior as qp

SCALE = 4.0  # minutes
PRIOR = qp.GaussianPrior(mean=-30.0, scale=10.0)
MINUTES = [[24.0, 25.5, 23.8, 52.0], [28.6, 27.9, 29.2, 28.1]]  # of each route, the first with one long delay


class Delays:
    """Readings are the mean reward minus a Gumbel variable."""

    def log_density_and_grad(self, rewards, seen):
        """Return the log-likelihoods of (N, pairs seen) mean rewards, and their gradients."""
        starts, values, weights = seen.readings()  # of the pairs seen, one after the other
        z = (np.repeat(rewards, np.diff(starts), axis=1) - values) / SCALE  # the delay of each reading
        total = np.sum(weights * (-z - np.exp(-z) - np.log(SCALE)), axis=1)
        return total, np.add.reduceat(weights * (np.exp(-z) - 1.0) / SCALE, starts[:-1], axis=1)


if __name__ == "__main__":
    mdp = qp.FiniteMDP.from_edges([(0, route, 1, 1.0, 0.0) for route in (0, 1)], goal=[1])
    seen = qp.Experience(mdp.space, rewards="noisy")
    for route, minutes in enumerate(MINUTES):
        for value in minutes:
            seen.record(0, route, -value, 1, row=mdp.transitions.row(route))
    # The check: the routes are independent and Q of each is its mean reward, so a grid gives the answer.
    grid = np.linspace(-80.0, 20.0, 20_001)
    cells = []
    for route in (0, 1):
        rewards = np.full((grid.size, 2), -30.0)
        rewards[:, route] = grid
        log_density = Delays().log_density_and_grad(rewards, seen)[0] - 0.5 * ((grid + 30.0) / 10.0) ** 2
        cells.append(np.exp(log_density - log_density.max()) / np.exp(log_density - log_density.max()).sum())
    exact = cells[0] @ (np.cumsum(cells[1]) - 0.5 * cells[1])
    print("P(the first route is better)")
    for name, noise, method in (("delays", Delays(), "hmc"), ("delays", Delays(), "smc"), ("gaussian", None, "hmc")):
        post = qp.posterior(seen, prior=PRIOR, noise=noise or qp.Noise(log_scale_mean=1.5), method=method)
        print(f"  {name}, {method:3s} {post.prob_optimal(0)[0]:.3f}")
    print(f"  delays, by a grid {exact:.3f}")
