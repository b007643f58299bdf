"""A bandit is an MDP with one state: P(arm is optimal) as readings come in.

Every arm leads to the goal at once, so Q* of an arm is its mean reward, and the posterior of Q* is that of the means.
With Gaussian noise of known scale it is a normal distribution, P(optimal) is exact, and drawing a Q and playing its
best arm is Thompson sampling. Watch the probabilities settle on the third arm while the others are played less.
"""

import numpy as np

import qposterior as qp

MEANS = [0.0, 0.5, 1.0]
NOISE = qp.Noise(scale=1.0)
PRIOR = qp.GaussianPrior(scale=2.0)
PRINT_AT = (0, 3, 10, 30, 100)


def main() -> None:
    """Play 100 rounds of Thompson sampling and print how sure it is on the way."""
    game = qp.make_environment("bandit", means=MEANS)
    seen = qp.Experience(game.space, rewards="noisy")
    rng = np.random.default_rng(5)
    print("readings   P(arm is optimal)            times played")
    for played in range(max(PRINT_AT) + 1):
        post = qp.posterior(seen, prior=PRIOR, noise=NOISE, method="exact", particles=1, seed=rng)
        if played in PRINT_AT:
            shares = "  ".join(f"{p:6.3f}" for p in post.prob_optimal(0))
            print(f"{played:8d}   {shares}       {'  '.join(f'{n:3d}' for n in seen.count)}")
        arm = int(post.sample_policy(1, seed=rng)[0, 0])  # a draw of Q, and its best arm: probability matching
        seen.record(0, arm, rng.normal(MEANS[arm], 1.0), 1)

    # The closed form, arm by arm: a normal prior and n normal readings.
    precision = 1.0 / PRIOR.scale**2 + seen.count
    post = qp.posterior(seen, prior=PRIOR, noise=NOISE, method="exact", particles=1)
    gap = np.abs(post.mean()[0] - seen.count * seen.reward_mean / precision).max()
    print(f"\nE[Q*] = {np.round(post.mean()[0], 3)}; largest difference from the closed form {gap:.0e}")


if __name__ == "__main__":
    main()
