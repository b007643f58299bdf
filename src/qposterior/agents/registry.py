"""Every agent by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

from qposterior.agents.bayesian_q_learning import BayesianQLearningAgent
from qposterior.agents.bootstrapped_dqn import BootstrappedDQNAgent
from qposterior.agents.knowledge import TRANSITION_KNOWLEDGE
from qposterior.agents.posterior_sampling import PosteriorSamplingAgent
from qposterior.agents.protocol import Agent, check_transitions
from qposterior.agents.psrl import PSRLAgent
from qposterior.agents.psrl_deterministic import DeterministicPSRLAgent
from qposterior.agents.q_learning import QLearningAgent
from qposterior.agents.r_max import RMaxAgent
from qposterior.agents.random_agent import RandomAgent
from qposterior.agents.rlsvi import RLSVIAgent
from qposterior.agents.ucbvi import UCBVIAgent
from qposterior.checks import check_choice, check_count, make_rng, shown
from qposterior.environments.problem import default_cap, gymnasium_problem, time_limit
from qposterior.errors import InvalidInputError, MissingExtraError
from qposterior.model.prior import GaussianPrior, check_prior, compiled_form, variable_of
from qposterior.world.gymnasium_table import make_gymnasium
from qposterior.world.mdp import FiniteMDP
from qposterior.world.space import StateActionSpace
from qposterior.world.transitions import TransitionTable

OPTIMISM = GaussianPrior(mean=4.0, scale=1.0, growth=2.0)
"""What `abrl` explores by while each state is met at one step of the episodes only (docs/explanation/growth.md)."""

MODEL = ("horizon", "table", "rewards")
"""What agents that plan in a model of the problem must be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEntry:
    """How an agent is made."""

    make_fn: Callable[..., Agent]
    summary: str
    options: dict[str, Any] = field(default_factory=dict)  # what makes it this agent and no other of its class
    transitions: str = "revealed"  # what it is told of the transitions unless said otherwise
    knowledge: tuple[str, ...] = TRANSITION_KNOWLEDGE  # the kinds of transitions it can work with
    needs: tuple[str, ...] = ()  # what it must be given besides the space: horizon, table, max_reward, rewards
    uses: tuple[str, ...] = ()  # what it is given where that is known
    takes_prior: bool = False
    modules: tuple[str, ...] = ()  # what the optional dependencies in `extra` must provide
    extra: str = ""


def _make_abrl(
    space: StateActionSpace,
    *,
    prior: Any = None,
    horizon: int,
    table: TransitionTable | None,
    **settings: Any,
) -> Agent:
    """Return the agent of a prior on Q, or, for a prior on rewards, posterior sampling of models.

    Where nothing else is said, the prior is `OPTIMISM` if rewards are deterministic or successors are counted.
    """
    is_counted = settings["transitions"] == "dirichlet"
    if prior is None and settings.get("noise") is None and (is_counted or settings["rewards"] == "deterministic"):
        prior = OPTIMISM
    if variable_of(prior) != "reward":
        return PosteriorSamplingAgent(space, prior=prior, horizon=horizon, **settings)
    check_prior(prior)
    if compiled_form(prior, space.num_pairs) is None:
        raise InvalidInputError(f"the agent draws rewards that are normal: RewardPrior, not {shown(prior)}")
    if prior.upper is not None:
        raise InvalidInputError("the agent plans over a finite horizon, where loops may pay: RewardPrior without upper")
    settings.pop("particles", None)  # every episode draws a model afresh: there is nothing to approximate
    settings.setdefault("successors", "unmet")  # fewer episodes than "uniform" (docs/agents.md)
    settings |= {"horizon": horizon, "table": table}
    agent = DeterministicPSRLAgent(space, reward_mean=prior.mean, reward_scale=prior.scale, **settings)
    agent.name = "abrl"
    return agent


_sampling_entry = partial(
    AgentEntry,
    make_fn=PosteriorSamplingAgent,
    knowledge=("known", "revealed"),
    needs=("rewards",),
    takes_prior=True,
)
_bootstrapped_entry = partial(AgentEntry, make_fn=BootstrappedDQNAgent, modules=("jax", "optax"), extra="deep")

AGENTS: dict[str, AgentEntry] = {
    "abrl": AgentEntry(
        make_fn=_make_abrl,
        summary="acts on draws of the exact posterior of Q*, one-look updates in Bellman coordinates",
        needs=MODEL,
        takes_prior=True,
    ),
    "abrl-iid": _sampling_entry(
        summary="abrl with the paper's prior, N(0, 4²) on every pair, whatever the problem",
        options={"inference": "one-look"},
        knowledge=TRANSITION_KNOWLEDGE,
    ),
    "abrl-paper": _sampling_entry(
        summary="the paper's algorithm: annealed SMC in Q coordinates, adaptive tolerances",
        options={"inference": "adaptive"},
    ),
    "abrl-fixed": _sampling_entry(
        summary="the paper's non-adaptive variant: one tolerance, found by a pilot run", options={"inference": "fixed"}
    ),
    "abrl-exact": _sampling_entry(
        summary="acts on draws of the enumerated posterior; tiny problems only", options={"inference": "exact"}
    ),
    "random": AgentEntry(make_fn=RandomAgent, summary="uniform over the admissible actions"),
    "q-learning": AgentEntry(make_fn=QLearningAgent, summary="tabular Q-learning, ε-greedy"),
    "r-max": AgentEntry(
        make_fn=RMaxAgent,
        summary="optimism: what has not been seen pays the most there is",
        transitions="known",
        needs=(*MODEL, "max_reward"),
    ),
    "psrl": AgentEntry(
        make_fn=PSRLAgent,
        summary="posterior sampling of models: Dirichlet rows, Normal-Gamma rewards, observations counted 10 times",
        transitions="dirichlet",
        needs=MODEL,
    ),
    "rlsvi": AgentEntry(
        make_fn=RLSVIAgent,
        summary="randomised least-squares value iteration, tabular",
        transitions="dirichlet",
        needs=MODEL,
    ),
    "ucbvi": AgentEntry(
        make_fn=UCBVIAgent,
        summary="optimistic value iteration with a Hoeffding bonus",
        transitions="dirichlet",
        needs=(*MODEL, "max_reward"),
        uses=("min_reward",),
    ),
    "bayesian-q-learning": AgentEntry(
        make_fn=BayesianQLearningAgent,
        summary="Normal-Gamma beliefs about returns, updated by moments (Dearden et al. 1998)",
    ),
    "bootstrapped-dqn": _bootstrapped_entry(
        summary="an ensemble of 20 Q-networks with randomised prior functions; one head an episode"
    ),
    "bootstrapped-dqn-no-prior": _bootstrapped_entry(
        summary="the same ensemble without prior functions", options={"prior_scale": 0.0}
    ),
    "psrl-deterministic": AgentEntry(
        make_fn=DeterministicPSRLAgent,
        summary="posterior sampling of models in which one look settles a pair",
        needs=MODEL,
    ),
}


def find_agent(name: str) -> AgentEntry:
    """Return the entry of an agent whose dependencies are there, or raise with the nearest name or what to install."""
    entry = AGENTS[check_choice("agent", name, AGENTS)]
    if not all(map(_is_installed, entry.modules)):
        raise MissingExtraError(f"agent {name}", entry.extra)
    return entry


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # a module that was blocked has no specification
        return False


def make_agent(
    name: str,
    problem: FiniteMDP | StateActionSpace | Any,
    *,
    horizon: int | None = None,
    transitions: str | None = None,
    seed: object = 0,
    **options: Any,
) -> Agent:
    """Return a new agent for this problem, told no more of it than its `transitions` and its own needs say.

    `problem` is a table, a space, or a Gymnasium environment or its id (discount 1; for another, or for a step cost,
    give what `make_environment` returns). Of a problem that is known by its space alone, rewards are taken as noisy and
    successors are counted. `horizon` is how many steps to plan for, by default as many as `explore` lets an episode
    take.
    """
    entry = find_agent(name)
    make_rng(seed)  # a bad one is named here, whatever the agent
    if isinstance(problem, FiniteMDP):
        space, mdp = problem.space, problem
    elif isinstance(problem, StateActionSpace):
        space, mdp = problem, None
    else:
        environment = make_gymnasium(problem)
        space, mdp = gymnasium_problem(environment)
        horizon = time_limit(environment) if horizon is None else horizon
    horizon = default_cap(mdp) if horizon is None else check_count("horizon", horizon)
    given: dict[str, Any] = {"horizon": horizon, "table": None, "rewards": "noisy"}
    if mdp is not None:
        transitions = check_transitions(entry.transitions if transitions is None else transitions)
        given["max_reward"], given["min_reward"] = float(mdp.rewards.max()), float(mdp.rewards.min())
        if transitions == "known":
            given["table"] = mdp.transitions
        if not mdp.reward_sd.any() and transitions != "dirichlet":
            given["rewards"] = "deterministic"
    else:
        usual = "dirichlet" if "dirichlet" in entry.knowledge else entry.transitions
        transitions = check_transitions(usual if transitions is None else transitions)
        if transitions == "known":
            raise InvalidInputError('transitions="known" needs a table, and this problem has none; use "dirichlet"')
    missing = [need for need in entry.needs if need not in given and need not in options]
    if missing:
        raise InvalidInputError(
            f"agent {name!r} must be told {', '.join(missing)} of a problem without a table: pass {missing[0]}=… "
            f"(--agent-option {missing[0]}=… on the command line)"
        )
    settings = {need: given[need] for need in (*entry.needs, *entry.uses) if need in given} | options
    try:
        agent = entry.make_fn(space, transitions=transitions, seed=seed, **entry.options, **settings)
    except TypeError as error:
        raise InvalidInputError(f"agent {name!r}: {error}") from error
    if entry.options:
        agent.name = name
    return agent
