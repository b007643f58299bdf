"""The same posterior in two coordinate systems: Hamiltonian Monte Carlo on a half-explored Deep Sea.

Half of the pairs of a small sea have been seen. In Q coordinates (the paper's) the posterior is a thin sheet: the
smaller the tolerance, the smaller the steps of the sampler. In Bellman coordinates the rewards that Q implies are
coordinates themselves, and the tolerance is only a scale. Both samplers answer the same question, so their answers
must agree; what differs is how many gradients an effectively independent draw costs. Tolerance 0 exists only in
Bellman coordinates.
"""

import numpy as np

import qposterior as qp

DEPTH = 4
TOLERANCES = (0.8, 0.2, 0.05)
SETTINGS = qp.HMCSettings(chains=4, max_iterations=4000)


def half_explored_sea() -> qp.Experience:
    """Return an experience of a random half of the pairs."""
    sea = qp.make_environment("deep-sea", depth=DEPTH)
    pairs = sea.space.pairs()
    chosen = np.random.default_rng(2).choice(len(pairs), size=len(pairs) // 2, replace=False)
    return qp.Experience.of_pairs(sea, [pairs[k] for k in chosen])


def per_thousand(post: qp.Posterior) -> float:
    """Return effectively independent draws per 1,000 gradients, warm-up included, of the slowest value of Q."""
    return 1000.0 * post.diagnostics["min_bulk_ess"] / post.diagnostics["gradients"]


def main() -> None:
    """Sample both ways at falling tolerances; print what a draw costs, and how far the answers are apart."""
    seen = half_explored_sea()
    common = {"method": "hmc", "particles": 4000, "settings": SETTINGS, "seed": 1}
    print(seen)
    print("           effective draws per 1,000 gradients   P(optimal): largest   2 standard")
    print("tolerance          Q     Bellman       ratio     difference            errors")
    for tolerance in TOLERANCES:
        q = qp.posterior(seen, tolerance=tolerance, coordinates="q", **common)
        bellman = qp.posterior(seen, tolerance=tolerance, coordinates="bellman", **common)
        gap = np.abs(q.prob_optimal_table() - bellman.prob_optimal_table()).max()
        error = 2.0 * np.sqrt(sum(0.25 / post.diagnostics["min_bulk_ess"] for post in (q, bellman)))
        ours, theirs = per_thousand(bellman), per_thousand(q)
        print(f"{tolerance:9g} {theirs:10.2f} {ours:11.2f} {ours / theirs:11.0f} {gap:14.3f} {error:17.3f}")
    limit = qp.posterior(seen, tolerance=0.0, **common)
    print(f"{0:9d} {'-':>10s} {per_thousand(limit):11.2f}")


if __name__ == "__main__":
    main()
