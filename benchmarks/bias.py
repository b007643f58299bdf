"""The bias of E V(root): what twenty particles say of the value of the first state, against long runs.

Learning time does not show a sampler that is off: an agent that believes in too much or too little may learn as fast.
So streams of data are held fixed, as an agent once gathered them, and samplers of many seeds follow each stream episode
by episode, as they would in the agent. At some stages the mean over samplers of their weighted mean of V at the first
state is compared with long runs at that stage, in units of the posterior's standard deviation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import qposterior as qp
from qposterior.experiments.explore import make_world
from qposterior.inference.smc.one_look import OneLookSampler
from qposterior.model.noise import Tolerance
from qposterior.world.experience import Experience
from result_page import table

STAGES = (0.2, 0.4, 0.6, 0.8)
"""Shares of the episodes until learned."""

WANTED = 0.1
PARTICLES = 20


@dataclass(frozen=True, eq=False)
class Stream:
    """What an agent saw, in the units in which its sampler was told, and how many pairs it knew after each episode."""

    agent: str
    depth: int
    told: Experience
    known: list[int]
    prior: qp.GaussianPrior
    root: int

    @property
    def stages(self) -> list[int]:
        """The episodes at which samplers are compared."""
        return [int(share * len(self.known)) for share in STAGES]

    def replay(self, particles: int, seed: int, *, in_blocks: bool = True) -> Iterator[OneLookSampler]:
        """Yield a sampler at each stage, brought there as the agent does: an update an episode, or a move."""
        sampler = OneLookSampler.start(
            Experience(self.told.space),
            prior=self.prior,
            noise=Tolerance(),
            particles=particles,
            rng=np.random.default_rng(seed),
        )
        sampler._is_for_blocks = in_blocks
        known = Experience(self.told.space)
        order = sorted(self.told.observed_pairs.tolist(), key=self.told.first_seen)
        for episode, number in enumerate(self.known):
            for k in order[known.num_observed : number]:
                known.reveal(k, self.told)
            if not sampler.update(known):
                sampler.move()
            if episode in self.stages:
                yield sampler

    def value_of_root(self, sampler: OneLookSampler) -> np.ndarray:
        """Return ``(N,)`` V of the first state."""
        return sampler.seen.space.maximum(sampler.q_of_particles())[:, self.root]


def record_stream(agent_name: str, depth: int, seed: int = 0) -> Stream:
    """Let an agent explore Deep Sea until it has learned, and return what it saw."""
    world = make_world(qp.make_environment("deep-sea", depth=depth))
    agent, known = world.make_agent(agent_name, seed=seed), list[int]()

    def note(_: object) -> None:
        known.append(agent.experience.num_observed)

    qp.explore(agent, world, episodes=3000, seed=seed, until_learned=True, keep_transitions=False, callback=note)
    told = agent.experience if agent.layers is None else agent.layers.told
    prior = agent.prior if agent.layers is None else agent.layers.prior
    root = int(np.flatnonzero(world.mdp.initial)[0])
    return Stream(agent=agent_name, depth=depth, told=told, known=known, prior=prior, root=root)


@dataclass(frozen=True)
class Truth:
    """Long runs at one stage."""

    mean: float
    error: float  # standard error, by the spread of the runs
    sd: float  # of the posterior
    ratio: float  # sd of all draws over that within runs: 1 where the runs agree


def long_runs(stream: Stream, *, runs: int, particles: int, moves: int) -> list[Truth]:
    """Return the truth at each stage: independent samplers moved on and on, their first quarter left out."""
    draws: list[list[np.ndarray]] = [[] for _ in stream.stages]
    for seed in range(runs):
        for stage, sampler in enumerate(stream.replay(particles, 10_000 + seed)):
            particles_then, rng = sampler.pack(), sampler.rng.bit_generator.state
            step, values = sampler.step, []
            for number in range(moves):
                sampler.move(3)
                if number >= moves // 4:
                    values.append(stream.value_of_root(sampler))
            draws[stage].append(np.array(values).ravel())
            sampler.unpack(*particles_then)  # on along the stream as if nothing had been
            sampler.rng.bit_generator.state, sampler.step = rng, step
    truths = []
    for of_stage in draws:
        means = np.array([one.mean() for one in of_stage])
        within = float(np.sqrt(np.mean([one.var() for one in of_stage])))
        sd = float(np.concatenate(of_stage).std())
        truths.append(
            Truth(float(means.mean()), float(means.std(ddof=1) / np.sqrt(runs)), sd, sd / max(within, 1e-300))
        )
    return truths


def biases(stream: Stream, truths: list[Truth], *, seeds: int, in_blocks: bool = True) -> list[tuple[float, float]]:
    """Return the bias at each stage and its standard error, in units of the posterior's sd."""
    means: list[list[float]] = [[] for _ in stream.stages]
    for seed in range(seeds):
        for stage, sampler in enumerate(stream.replay(PARTICLES, seed, in_blocks=in_blocks)):
            means[stage].append(float(sampler.particles.weights @ stream.value_of_root(sampler)))
    found = []
    for of_stage, truth in zip(means, truths, strict=True):
        sample = np.array(of_stage)
        error = np.hypot(sample.std(ddof=1) / np.sqrt(seeds), truth.error)
        unit = max(truth.sd, 1e-9)  # where nothing is uncertain any more there must be no error either
        found.append(((sample.mean() - truth.mean) / unit, error / unit))
    return found


def section(
    depths: tuple[int, ...] = (20, 40), seeds: int = 200, *, in_blocks: bool = True, agents=("abrl", "abrl-iid")
) -> tuple[str, str]:
    rows = []
    for agent in agents:
        for depth in depths:
            stream = record_stream(agent, depth)
            truths = long_runs(stream, runs=8, particles=64, moves=100)
            started = time.process_time()
            found = biases(stream, truths, seeds=seeds, in_blocks=in_blocks)
            seconds = (time.process_time() - started) / seeds
            for share, truth, (bias, error) in zip(STAGES, truths, found, strict=True):
                numbers = f"{truth.mean:.3g}", f"{truth.sd:.3g}", f"{truth.ratio:.2f}", f"{bias:+.3f} ± {error:.3f}"
                rows.append((agent, depth, f"{100 * share:.0f} %", *numbers, f"{seconds:.2f}"))
                print(*rows[-1], flush=True)
    text = (
        f"Streams of Deep Sea, episodes until learned; {seeds} samplers of {PARTICLES} particles follow each. Long "
        "runs are 8 of 64 particles, 100 times three trajectories at the stage; the ratio is the sd of all draws over "
        "that within runs, 1 where they agree. Bias and its standard error in units of the posterior's sd; wanted: "
        f"within {WANTED}. Values are in units of the layer where the prior grows.\n\n"
    )
    header = ("agent", "depth", "stage", "E V(root)", "posterior sd", "ratio", "bias", "CPU s a stream")
    return "Bias of the particles", text + table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, action="append")
    parser.add_argument("--agent", action="append")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--general", action="store_true", help="by the general kernels")
    options = parser.parse_args()
    depths, agents = tuple(options.depth or (20, 40)), tuple(options.agent or ("abrl", "abrl-iid"))
    section(depths, options.seeds, in_blocks=not options.general, agents=agents)


if __name__ == "__main__":
    main()
