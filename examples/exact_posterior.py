"""P(each action is optimal) on a small problem, exactly, before and after one more observation.

A walker stands at a fork. Left leads to a forest, right to a valley; each has two ways home. He knows what both arms of
the fork cost, and one of the two ways out of the forest. Nobody has told him about the valley yet. Tolerance 0 means
that the Bellman equations of what he has seen hold exactly; "exact" means that nothing is sampled.
"""

import qposterior as qp

FORK, FOREST, VALLEY, HOME = range(4)
NAMES = {FORK: ("left", "right"), FOREST: ("path", "shortcut"), VALLEY: ("road", "ferry")}
EDGES = [  # (state, action, next state, probability, reward): a reward of -4 is a walk of four miles
    (FORK, 0, FOREST, 1.0, -1.0),
    (FORK, 1, VALLEY, 1.0, -2.0),
    (FOREST, 0, HOME, 1.0, -4.0),
    (FOREST, 1, HOME, 1.0, -6.0),
    (VALLEY, 0, HOME, 1.0, -1.5),
    (VALLEY, 1, HOME, 1.0, -3.0),
]


def show(title: str, post: qp.Posterior) -> None:
    """Print P(optimal) and the mean of Q* of every action."""
    print(title)
    mean = post.mean()
    for state, actions in NAMES.items():
        for action, name in enumerate(actions):
            print(
                f"  {name:9s} P(optimal) = {post.prob_optimal(state)[action]:.3f}   E[Q*] = {mean[state, action]:6.2f}"
            )
    print(f"  P(right, then the road) = {post.prob_policy({FORK: 1, VALLEY: 0}):.3f}\n")


def main() -> None:
    """Ask how sure one can be, look once more, and ask again."""
    walk = qp.FiniteMDP.from_edges(EDGES, goal=[HOME])
    prior = qp.GaussianPrior(mean=-4.0, scale=2.0)  # an action costs four miles or so, all the way home
    seen = qp.Experience.of_pairs(walk, [(FORK, 0), (FORK, 1), (FOREST, 0)])
    show(f"After {seen.num_observed} looks:", qp.posterior(seen, prior=prior, tolerance=0.0, method="exact"))

    seen.record(VALLEY, 0, -1.5, HOME)  # he hears that the road out of the valley is short
    show(f"After {seen.num_observed} looks:", qp.posterior(seen, prior=prior, tolerance=0.0, method="exact"))

    truth = qp.solve(walk)
    print(f"The truth: {NAMES[FORK][truth.policy[FORK]]}, and home in {-truth.value[FORK]:g} miles.")


if __name__ == "__main__":
    main()
