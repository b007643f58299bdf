"""One run: an agent explores a world for some episodes, and every episode leaves a row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.agents.protocol import Agent, Observation
from qposterior.agents.registry import make_agent
from qposterior.checks import check_callable, check_count, check_number, check_type, lacking, make_rng, shown
from qposterior.environments.problem import default_cap, gymnasium_problem, time_limit
from qposterior.environments.registry import ENVIRONMENTS, check_gymnasium_id, make_environment
from qposterior.environments.simulator import GymnasiumSimulator, Simulator, TableSimulator
from qposterior.errors import InvalidInputError, NoUniqueSolutionError
from qposterior.experiments.metrics import (
    bsuite_learning_time,
    found_episode,
    learning_time,
    plan_value,
    random_policy_regret,
    trailing_learning_time,
)
from qposterior.world.arrays import BoolArray, IntArray
from qposterior.world.gymnasium_table import make_gymnasium
from qposterior.world.mdp import FiniteMDP
from qposterior.world.solve import Solution, solve
from qposterior.world.space import StateActionSpace

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

EPISODE_COLUMNS = (
    "agent",
    "environment",
    "depth",
    "seed",
    "episode",
    "return",
    "regret",
    "policy_regret",
    "new_pairs",
    "steps",
    "reached_goal",
    "bad",
    "seconds",
)
TRANSITION_COLUMNS = ("seed", "episode", "step", "state", "action", "reward", "next_state", "terminated")
AGENT_NEEDS = ("name", "transitions", "num_updates", "begin_episode", "act", "observe", "end_episode", "held_plan")
"""What `explore` asks of an agent (agents/protocol.py)."""


@cache
def _warn_once(message: str) -> None:
    """Log a warning at its first time in this process."""
    logger.warning(message)


@dataclass(kw_only=True)
class World:
    """A problem to explore: the simulator, the space, and the truth where it is known."""

    simulator: Simulator
    space: StateActionSpace
    mdp: FiniteMDP | None  # the table, None where the environment has none
    name: str
    cap: int  # most steps of an episode
    is_quiet: bool = False  # somebody else has said why there is no truth

    @property
    def problem(self) -> FiniteMDP | StateActionSpace:
        """What an agent is made for: the table, or the space where there is none."""
        return self.space if self.mdp is None else self.mdp

    def make_agent(self, name: str, *, seed: int, **options: Any) -> Agent:
        """Return the agent of one run: it plans for a whole episode and draws from its own stream of the seed."""
        return make_agent(name, self.problem, horizon=self.cap, seed=spawn_seeds(seed)[1], **options)

    @cached_property
    def truth(self) -> Solution | None:
        """The solution of the table, None where there is no table or it has no unique solution (said once)."""
        if self.mdp is None:
            return None
        try:
            return solve(self.mdp)
        except NoUniqueSolutionError as error:
            if not self.is_quiet:
                _warn_once(f"{self.name}: returns are known, regret and learning time are not: {error}")
            return None

    @cached_property
    def random_regret(self) -> float:
        """Expected regret per episode of the random agent, nan without a table."""
        if self.mdp is None or self.truth is None:
            return float("nan")
        return random_policy_regret(self.mdp, self.truth.value, self.cap)


@dataclass(kw_only=True)
class Run:
    """The rows of one run and what they add up to."""

    agent: str
    world: World
    seed: int
    depth: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    transitions: list[tuple[Any, ...]] = field(default_factory=list)
    posterior_updates: int = 0
    is_timed_out: bool = False
    seconds: float = 0.0
    # What `explore(after=run)` goes on from: the environment's random numbers, and the pairs seen.
    rng: np.random.Generator | None = field(default=None, repr=False)
    seen: BoolArray | None = field(default=None, repr=False)  # (K,)

    @property
    def episodes(self) -> pd.DataFrame:
        """One row per episode, with the columns EPISODE_COLUMNS."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(EPISODE_COLUMNS))

    @property
    def regret(self) -> list[float]:
        """Regret of each episode."""
        return [row["regret"] for row in self.rows]

    @property
    def learning_time(self) -> int | None:
        """The paper's learning time on Deep Sea, the trailing-mean rule elsewhere; None if not reached."""
        if self.world.name == "deep-sea":
            return learning_time(self.regret)
        return trailing_learning_time(self.regret, self.world.random_regret)

    @property
    def bsuite_learning_time(self) -> int | None:
        """The learning time by bsuite's rule: fewer than 90 % bad episodes so far."""
        if self.world.truth is None:
            return None
        return bsuite_learning_time([row["bad"] for row in self.rows])

    @property
    def found_episode(self) -> int | None:
        """The first episode with the optimal return; None if there was none, or if returns are random."""
        if (
            self.world.mdp is None
            or self.world.truth is None
            or not self.world.mdp.is_deterministic
            or np.count_nonzero(self.world.mdp.initial) > 1
        ):
            return None
        return found_episode([row["return"] for row in self.rows], self._optimal_return)

    def summary(self) -> dict[str, Any]:
        """Return the numbers of the run under the names of `explore --json`."""
        regret = float(np.sum(self.regret)) if self.rows else 0.0
        return {
            "seed": self.seed,
            "episodes": len(self.rows),
            "found_episode": self.found_episode,
            "learning_time": self.learning_time,
            "cumulative_regret": None if np.isnan(regret) else regret,
            "posterior_updates": self.posterior_updates,
            "seconds": self.seconds,
        }

    @property
    def _optimal_return(self) -> float:
        assert self.world.mdp is not None
        assert self.world.truth is not None
        return float(self.world.mdp.initial @ self.world.truth.value)


def make_world(environment: Any, *, cap: int | None = None, discount: float | None = None, **options: Any) -> World:
    """Return the world of a `FiniteMDP`, a Gymnasium environment or its id.

    `cap` is the most steps an episode may take: by default the environment's own time limit (of its specification, or
    `max_steps`), the longest path of a problem without loops, else the larger of 100 and 4 steps per state. `options`
    go to `FiniteMDP.from_gymnasium`.
    """
    if cap is not None:
        check_count("the episode cap", cap)
    if isinstance(environment, FiniteMDP):
        return World(
            simulator=TableSimulator(environment),
            space=environment.space,
            mdp=environment,
            name=environment.name,
            cap=cap or default_cap(environment),
        )
    step_cost = float(options.pop("step_cost", 0.0))
    made = make_gymnasium(environment, **options)
    gamma = 1.0 if discount is None else discount
    space, mdp = gymnasium_problem(made, discount=gamma, step_cost=step_cost)
    name = mdp.name if mdp is not None else (made.spec.id if made.spec else type(made.unwrapped).__name__)
    cap = cap or time_limit(made) or default_cap(mdp)
    return World(simulator=GymnasiumSimulator(made, space, step_cost), space=space, mdp=mdp, name=name, cap=cap)


def named_world(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    depth: int | None = None,
    cap: int | None = None,
    discount: float | None = None,
) -> World:
    """Return the world of one of our environments or of a Gymnasium id (MODULE:ID imports MODULE first).

    `depth` sets its size; a Gymnasium environment gets it as the option `depth`.
    """
    given = dict(options or {}) | ({} if depth is None else {"depth": depth})
    if name in ENVIRONMENTS:
        if discount is not None:
            given["discount"] = discount
        return make_world(make_environment(name, **given), cap=cap)
    check_type("environment", name, str)
    check_gymnasium_id(name)
    return make_world(name, **({"cap": cap, "discount": discount} | given))


def stored_world(settings: Mapping[str, Any]) -> World:
    """Return the world of the settings of an `explore` command, as its folder keeps them."""
    return named_world(
        settings["environment"],
        settings["env_option"],
        depth=settings["depth"],
        cap=settings["max_steps"],
        discount=settings["discount"],
    )


def spawn_seeds(seed: int | np.random.SeedSequence) -> tuple[np.random.SeedSequence, np.random.SeedSequence]:
    """Return independent seeds for the environment and the agent of one run."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    # Built by hand, not by `spawn`, which would count up and give another answer at the second call.
    environment, agent = (
        np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, child)) for child in (0, 1)
    )
    return environment, agent


def explore(
    agent: Agent,
    env: Any,
    *,
    episodes: int = 300,
    seed: int = 0,
    cap: int | None = None,
    depth: int | None = None,
    until_learned: bool = False,
    keep_transitions: bool = True,
    callback: Callable[[Run], bool | None] | None = None,
    timeout: float | None = None,
    after: Run | None = None,
) -> Run:
    """Let the agent act in `env` for some episodes and return the run.

    `env` is a `FiniteMDP`, a Gymnasium environment or its id, or a `World`. An episode that is cut off at `cap` steps
    has not reached a goal. `until_learned` stops at the learning time. `callback` is called after every episode; the
    run ends there if it returns False. After `timeout` seconds the run ends, in the middle of an episode or of an
    update of the posterior if need be, with the episodes that were finished and `is_timed_out` set. The environment
    draws from its own stream of `seed`. If interrupted, the finished episodes stay in the run that the callback saw.
    `after` is an earlier run of this agent (or of one it was loaded from): the episodes are added to it.

    Regret needs the truth. Where there is no table, or one without a unique solution, it is nan; returns are known.
    """
    _check_call(agent, episodes=episodes, seed=seed, depth=depth, callback=callback, after=after)
    if timeout is not None:
        check_number("timeout in seconds", timeout, "[0, inf]")
    stop_at = np.inf if timeout is None else time.perf_counter() + timeout
    world = env if isinstance(env, World) else make_world(env, cap=cap)
    if after is None:
        run = Run(agent=agent.name, world=world, seed=seed, depth=depth)
    else:
        run = deepcopy(after, {id(after.world): after.world})
        seed, depth, run.is_timed_out = run.seed, run.depth, False
    rng = run.rng = run.rng or np.random.default_rng(spawn_seeds(seed)[0])
    seen = run.seen = np.zeros(world.space.num_pairs, dtype=bool) if run.seen is None else run.seen
    of_run = {"agent": agent.name, "environment": world.name, "depth": depth, "seed": seed}
    evaluate_fn = _plan_evaluator(world)
    _ = world.truth, world.random_regret  # solved before the clock starts
    if hasattr(agent, "stop_at"):
        agent.stop_at = stop_at
    for episode in range(len(run.rows) + 1, len(run.rows) + episodes + 1):
        started = time.perf_counter()
        played = _play_episode(agent, world, rng, seen=seen, stop_at=stop_at)
        if played is None:
            run.is_timed_out = True
            break
        row, steps = played
        elapsed = time.perf_counter() - started
        # Kept only now: an interrupted episode leaves neither a row nor transitions.
        if keep_transitions:
            run.transitions += [(seed, episode, number, *step) for number, step in enumerate(steps)]
        row["policy_regret"] = evaluate_fn(agent.held_plan(), row)
        run.seconds += elapsed
        run.rows.append(of_run | row | {"episode": episode, "seconds": elapsed})
        run.posterior_updates = agent.num_updates
        if callback is not None and callback(run) is False:
            break
        if until_learned and run.learning_time is not None:
            break
    if hasattr(agent, "stop_at"):
        agent.stop_at = np.inf
    return run


def _check_call(agent: Any, *, episodes: Any, seed: Any, depth: Any, callback: Any, after: Any) -> None:
    if lacks := lacking(agent, AGENT_NEEDS):
        raise InvalidInputError(
            f"an agent must have {', '.join(AGENT_NEEDS)}, and {shown(agent)} lacks {', '.join(lacks)}; "
            "make_agent gives one"
        )
    check_count("episodes", episodes)
    make_rng(seed)
    if depth is not None:
        check_count("depth", depth)
    if callback is not None:
        check_callable("callback", callback)
    if after is not None:
        check_type("after", after, Run)


Step = tuple[int, int, float, int, int]
"""(state, action, reward, next state, terminated)."""


def _play_episode(
    agent: Agent, world: World, rng: np.random.Generator, *, seen: BoolArray, stop_at: float
) -> tuple[dict[str, Any], list[Step]] | None:
    """Play one episode, mark the pairs it saw in `seen`, and return what it was worth with its steps.

    None if the time was up before it was over.
    """
    state = world.simulator.reset(rng)
    truth = world.truth
    best = float(truth.value[state]) if truth is not None else float("nan")
    agent.begin_episode(state)
    total, weight, new_pairs, largest_gap, terminated = 0.0, 1.0, 0, 0.0, False
    steps: list[Step] = []
    while not terminated and len(steps) < world.cap:
        if time.perf_counter() > stop_at:
            return None
        action = agent.act(state)
        pair = world.space.pair(state, action)
        next_state, reward, terminated = world.simulator.step(action)
        agent.observe(_observation(agent, world, (state, action, reward, next_state, terminated), pair=pair))
        if truth is not None:
            largest_gap = max(largest_gap, float(truth.value[state] - truth.pair_q[pair]))
        new_pairs += not seen[pair]
        seen[pair] = True
        steps.append((state, action, reward, next_state, int(terminated)))
        total += weight * reward
        weight *= world.space.discount
        state = next_state
    agent.end_episode()
    row = {
        "return": total,
        "regret": best - total,
        "new_pairs": int(new_pairs),
        "steps": len(steps),
        "reached_goal": terminated,
        # bsuite calls an episode bad that left the way to the treasure; elsewhere: that gave away half of the optimum.
        "bad": bool(largest_gap > 0.5 * abs(best)),
    }
    return row, steps


def _observation(agent: Agent, world: World, step: tuple[int, int, float, int, bool], *, pair: int) -> Observation:
    """Return what the agent is told: the row and the mean reward only where it may know them."""
    names = ("state", "action", "reward", "next_state", "terminated")
    told: dict[str, Any] = dict(zip(names, step, strict=True))
    if world.mdp is not None and agent.transitions != "dirichlet":
        told["row"] = world.mdp.transitions.row(pair)
        if world.mdp.reward_sd[pair] == 0.0:
            told["mean_reward"] = float(world.mdp.rewards[pair])
    return Observation(**told)


def _plan_evaluator(world: World) -> Callable[[IntArray | None, dict[str, Any]], float]:
    """Return the function that gives V*(s₀) − V^π(s₀) of a held plan, with the last answer kept."""
    last: list[Any] = [None, float("nan")]

    def evaluate(held: IntArray | None, row: dict[str, Any]) -> float:
        if held is None or world.mdp is None or world.truth is None:
            return float("nan")
        if world.mdp.is_deterministic:
            return float(row["regret"])
        if held is not last[0]:
            value = world.truth.value - plan_value(world.mdp, held, world.cap)
            last[0], last[1] = held, float(world.mdp.initial @ value)
        return float(last[1])

    return evaluate


def explored_pairs(run: Run) -> Iterator[tuple[int, int]]:
    """Yield the (state, action) pairs of a run in the order in which they were first seen."""
    yield from dict.fromkeys((row[3], row[4]) for row in run.transitions)
