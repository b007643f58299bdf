"""Posterior sampling: draw Q from its posterior, act greedily on it, learn, draw again (paper, sec. tspsrl)."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from qposterior.agents.layers import Layers, Stakes, reward_unit
from qposterior.agents.optimistic_models import OptimisticModels
from qposterior.agents.planning import act_on
from qposterior.agents.protocol import Observation, check_transitions
from qposterior.agents.replanning import Replanning, is_known_anew
from qposterior.checks import check_choice, check_count, check_number, check_type, make_rng
from qposterior.errors import InvalidInputError
from qposterior.inference.records import Particles
from qposterior.inference.smc.annealed import AnnealedSampler, AnnealedSettings
from qposterior.inference.smc.exact_draws import ExactSampler
from qposterior.inference.smc.joint_moves import JointSampler
from qposterior.inference.smc.one_look import OneLookSampler, OneLookSettings, load_kernels
from qposterior.inference.smc.sampler import SequentialSampler
from qposterior.model.charts import CHARTS
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.prior import (
    PRIORS,
    GaussianPrior,
    Prior,
    check_prior,
    prior_from_dict,
    prior_to_dict,
    variable_of,
)
from qposterior.storage import Arrays, Packed, load_arrays, reading, save_arrays
from qposterior.weighted_draws import Posterior
from qposterior.world.arrays import IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import TIE_RULES, StateActionSpace

FORMAT = "qposterior-agent 2"
BELIEF = GaussianPrior()
"""The prior of what is reported where one explores by a prior that grows."""

BELIEF_MOVES = 30
"""Moves by which particles of what is reported are brought from the prior to the posterior of counted rows."""

NAMES = {"one-look": "abrl", "adaptive": "abrl-paper", "fixed": "abrl-fixed", "exact": "abrl-exact"}
"""The agent's name by how its posterior is kept up to date."""


class PosteriorSamplingAgent:
    """Acts on a draw of the posterior of Q*, kept up to date by a sequential sampler.

    `inference`: ``"one-look"``, the exact posterior by one-look updates in Bellman coordinates (agent `abrl`);
    ``"adaptive"``, the paper's sampler with adaptive tolerances (`abrl-paper`); ``"fixed"``, its non-adaptive variant
    at `tolerance`, found by a pilot run of `pilot_updates` adaptive updates unless given (`abrl-fixed`); ``"exact"``,
    enumeration (`abrl-exact`). The paper's samplers work in Q coordinates unless `coordinates` says ``"bellman"``.
    ``transitions="dirichlet"`` (`abrl` only): successors are counted, and the rows drawn with Q by moves alone
    (`JointSampler`); that works in any environment with finitely many states, table or not. A `prior` with growth holds
    while rows are told and each state is met at one step of the episodes; else, and from then on, the agent plans in
    models that it draws (`OptimisticModels`, docs/explanation/exploring-loops.md), and its sampler rests.

    A policy is drawn at the start of an episode, and again every `redraw_every` steps where that is given, or when
    `redraw` is called: the paper's times T. In a problem with loops a held policy could circle for ever on a pair first
    seen in this episode, so there it is drawn again by the rule `replan` of `Replanning`. `deadline` is the most
    seconds that an update may take, and `stop_at` a time of `time.perf_counter` after which none goes on.
    """

    def __init__(
        self,
        space: StateActionSpace,
        *,
        prior: Prior | None = None,
        particles: int = 20,
        transitions: str = "revealed",
        rewards: str = "deterministic",
        noise: Noise | None = None,
        inference: str = "one-look",
        coordinates: str = "q",
        tolerance: float | None = None,
        pilot_updates: int = 40,
        redraw_every: int | None = None,
        replan: str = "loops",
        ties: str = "uniform",
        moves: int = 3,
        deadline: float | None = None,
        horizon: int | None = None,
        seed: Any = 0,
    ) -> None:
        self._settings = {k: v for k, v in locals().items() if k not in ("self", "space", "prior", "noise", "seed")}
        _check(particles, redraw_every, ties, inference, deadline)
        check_type("space", space, StateActionSpace)
        check_choice("coordinate system", coordinates, ("q", "bellman"))
        check_count("pilot_updates", pilot_updates, 0)
        check_count("moves", moves, 0)
        if tolerance is not None:
            check_number("tolerance", tolerance, "(0, inf)")
        if noise is not None:
            check_type("noise", noise, Noise)
        self.name = NAMES[inference]
        counted = check_transitions(transitions) == "dirichlet"
        if counted and inference != "one-look":
            raise InvalidInputError(f"{self.name} needs the rows of the pairs it has seen: known or revealed")
        self.space, self.transitions, self.ties, self.redraw_every = space, transitions, ties, redraw_every
        self.replanning = Replanning(rule=replan)
        self.deadline, self.stop_at = deadline, np.inf
        self.num_updates = 0
        self.prior = GaussianPrior() if prior is None else prior
        check_prior(self.prior)
        if variable_of(self.prior) != "q":
            raise InvalidInputError("this agent takes a prior on Q; for a RewardPrior use make_agent('abrl', ...)")
        self.noise = noise
        if rewards == "noisy" and noise is None and not self._grows:
            self.noise = Noise(scale=1.0) if inference == "exact" else Noise()
        self.experience = Experience(space, transitions="counted" if counted else "revealed", rewards=rewards)
        self._rng = make_rng(seed)
        self.stakes = Stakes()
        horizon = self._check_growth() if self._grows else 0
        # That a prior which grows is a GaussianPrior its type does not tell: `Prior` says nothing of growth.
        self.layers = Layers(space, self.prior, horizon) if self._grows and not counted else None  # type: ignore[arg-type]
        self.models = self._make_models(horizon) if self._grows else None
        if self.layers is None:
            self.sampler = self._start_sampler(self.experience, BELIEF if self._grows else self.prior)
        else:
            self.sampler = self._start_sampler(self.layers.told, self.layers.prior)
        self._plan: IntArray | None = None  # (H, S) by step of the episode, or one row for all steps
        self._steps = 0
        self._has_learned = False  # since the last policy was drawn
        self._believed: tuple[int, Particles] | None = None

    @property
    def _grows(self) -> bool:
        """Whether the prior is one for exploring, not a belief."""
        return float(getattr(self.prior, "growth", 1.0)) != 1.0

    def _check_growth(self) -> int:
        """Return the horizon of a prior that grows, or raise where there can be none."""
        is_counted, is_noisy = self.experience.transitions == "counted", self.experience.rewards != "deterministic"
        if self._settings["inference"] != "one-look" or self.noise or (is_noisy and not is_counted):
            raise InvalidInputError("a prior with growth is for abrl with deterministic rewards; leave growth out")
        horizon = self._settings["horizon"]
        if horizon is None:
            raise InvalidInputError("a prior with growth needs horizon=, the most steps that an episode may take")
        check_type("a prior with growth", self.prior, GaussianPrior)
        return check_count("horizon", horizon)

    def _make_models(self, horizon: int) -> OptimisticModels:
        """Return what plans where no prior on Q grows: in models of the same experience, by the same random numbers."""
        rows = "dirichlet" if self.experience.transitions == "counted" else "revealed"
        models = OptimisticModels(self.space, horizon=horizon, transitions=rows, seed=self._rng)
        models.experience = self.experience
        return models

    @property
    def keeps_posterior(self) -> bool:
        """Whether the particles follow what is seen; else `posterior` makes them anew, which may take long."""
        return self.models is None or (self.layers is not None and self.layers.steps.are_layers)

    def _start_sampler(self, template: Experience, prior: Prior) -> SequentialSampler:
        told = self._settings
        inference, moves, tolerance = told["inference"], told["moves"], told["tolerance"]
        noise = self.noise if self.noise is not None else Tolerance()
        common: dict[str, Any] = {"prior": prior, "noise": noise}
        common |= {"particles": told["particles"], "rng": self._rng}
        if template.transitions == "counted":
            return JointSampler.start(template, **common, moves=moves)
        if inference == "one-look":
            if self.deadline is not None:
                load_kernels(template.rewards)  # so that no update spends its time on compiling
            return OneLookSampler.start(template, **common, settings=OneLookSettings(moves=moves, moves_between=0))
        if inference == "exact":
            return ExactSampler.start(template, **common)
        fixed = inference == "fixed"
        return AnnealedSampler.start(
            template,
            **common,
            chart=CHARTS[told["coordinates"]],
            final_tolerance=tolerance if fixed else None,
            pilot_updates=told["pilot_updates"] if fixed and tolerance is None else 0,
            settings=AnnealedSettings(),
        )

    # -- the four verbs ------------------------------------------------------------------------------------------------

    def begin_episode(self, state: int) -> None:
        """Draw a policy; the particles know of the last episode since it ended."""
        self.space.check_state(state)
        self.replanning.begin()
        self._steps = 0
        self.stakes.begin()
        if self.layers:
            self.layers.steps.begin(state)
        self.redraw()

    def redraw(self) -> None:
        """Bring the particles up to date and draw another policy from them."""
        if not self.keeps_posterior:
            assert self.models is not None
            self.models.unit = reward_unit(self.experience.reward_mean, self.stakes.most)
            self._plan = self.models.make_plan()
            self.num_updates += 1
            return
        if not self._has_learned:
            self._learn()
        self._plan = self._draw_policy()[None, :]
        self._has_learned = False

    def _learn(self) -> None:
        """Take in what is new, or else move the particles on."""
        left = self.stop_at - time.perf_counter()
        deadline = self.deadline if np.isinf(left) else min(left, np.inf if self.deadline is None else self.deadline)
        told = self.experience if self.layers is None else self.layers.tell(self.experience, self.stakes.most)
        if self.sampler.update(told, deadline=deadline):
            self.num_updates += 1
        elif self.experience.num_observed < self.space.num_pairs:
            self.sampler.move(deadline=deadline)
        self._has_learned = True

    def act(self, state: int) -> int:
        """Return the held plan's action, drawing another one first where it is due."""
        if self._plan is None:
            raise InvalidInputError("act was called before begin_episode")
        self.space.check_state(state)
        due = self.redraw_every is not None and self._steps > 0 and self._steps % self.redraw_every == 0
        pair = int(self.space.pair_index[state, act_on(self._plan, self._steps, state)])
        if self.replanning.is_due(pair) or due:
            self.replanning.begin()
            self.redraw()
        action = act_on(self._plan, self._steps, state)
        self._steps += 1
        return action

    def observe(self, observation: Observation) -> None:
        """Add to the experience; the particles follow when a policy is next drawn."""
        check_type("observation", observation, Observation)
        self._has_learned = False
        self.stakes.add(observation.reward)
        if self.layers:
            self.layers.steps.move(observation.state, observation.next_state)
        observation.record_in(self.experience)
        pair = self.space.pair(observation.state, observation.action)
        if is_known_anew(self.experience, pair):
            self.replanning.learn(pair)

    def end_episode(self) -> None:
        """Take in what the episode brought, so that `posterior` and `predict` know of it."""
        if self.keeps_posterior:
            self._learn()

    # -- what it believes ----------------------------------------------------------------------------------------------

    def held_plan(self) -> IntArray | None:
        """Return the plan of this episode: one row for all its steps, or a row for each."""
        return self._plan

    def predict(self, state: int, deterministic: bool = True) -> int:
        """Return the action most probably optimal in a state, or one drawn by that probability."""
        share = self.posterior().prob_optimal(state)
        return int(np.argmax(share)) if deterministic else int(self._rng.choice(share.size, p=share))

    def posterior(self) -> Posterior:
        """Return the weighted particles as a `Posterior`: enough to explore by, not checked for an answer.

        Under a prior that grows these are particles under `BELIEF`, made from what was seen.
        """
        particles = self._believed_particles() if self._grows else self.sampler.particles
        unchecked = "these are an agent's particles, which nothing has checked; use qp.posterior(agent.experience, …)"
        return Posterior(
            space=self.space,
            draws=particles.parameters.copy(),
            weights=particles.weights,
            method="smc",
            log_evidence=particles.log_evidence,
            diagnostics={"effective_draws": particles.ess, "trusted": False, "distrust": unchecked},
            noise_scale=None if particles.log_scale is None else np.exp(particles.log_scale),
        )

    def _believed_particles(self) -> Particles:
        """Return particles under `BELIEF` given what was seen; asking for them changes nothing that comes after."""
        seen, is_counted = self.experience, self.experience.transitions == "counted"
        version = int(seen.count.sum()) if is_counted else seen.num_observed
        if self._believed is None or self._believed[0] != version:
            common: dict[str, Any] = {"prior": BELIEF, "particles": self._settings["particles"]}
            common |= {"rng": np.random.default_rng(0)}
            sampler: SequentialSampler = (
                JointSampler.start(seen, **common, noise=self._reading_noise, moves=BELIEF_MOVES)
                if is_counted
                else OneLookSampler.start(seen, **common, noise=Tolerance())
            )
            sampler.update(seen)
            self._believed = version, sampler.particles
        return self._believed[1]

    @property
    def _reading_noise(self) -> Noise | Tolerance:
        """What is believed of the noise of rewards, where nothing was said."""
        return Noise() if self.experience.rewards == "noisy" else Tolerance()

    def progress(self) -> dict[str, float]:
        """Return the live state of learning: the tolerance reached and the effective number of particles."""
        return {"tolerance": self.sampler.tolerance, "ess": self.sampler.ess} if self.keeps_posterior else {}

    def _draw_policy(self) -> IntArray:
        """Return the greedy policy of one particle, drawn by its weight; ties at random or to the lowest action."""
        theta = self.sampler.draw_q()
        noise = self._rng.random(theta.size) if self.ties == "uniform" else np.zeros(theta.size)
        return self.space.greedy(np.where(self.space.optimal_share(theta, self.ties) > 0.0, 1.0 + noise, 0.0))

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write everything that the continuation depends on to one `.npz` file: a loaded agent goes on byte for byte.

        An existing file is kept unless told otherwise.
        """
        arrays, facts = self._pack()
        save_arrays(path, facts, arrays, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, prior: Prior | None = None) -> PosteriorSamplingAgent:
        """Read a saved agent. Nothing in the file is executed, and a damaged one is refused.

        The file names a prior of one's own but does not hold it: give it again as `prior`.
        """
        facts, arrays = load_arrays(path, "an agent", FORMAT)
        with reading(Path(path), "an agent"):
            return cls._unpacked(arrays, facts, _prior_of(facts["prior"], prior))

    def _pack(self) -> Packed:
        state = self._rng.bit_generator.state
        if state["bit_generator"] != "PCG64":
            raise InvalidInputError(f"only agents on NumPy's default generator are saved, not {state['bit_generator']}")
        arrays, facts = self.sampler.pack()
        own: dict[str, Any] = {"admissible": self.space.pair_index >= 0, "is_goal": self.space.is_goal}
        own |= {"layer": self.space.layer, "policy": self._plan}
        own |= {"step_met": self.layers.steps.first} if self.layers else {}
        return own | arrays, {
            "format": FORMAT,
            "settings": self._settings,
            "prior": prior_to_dict(self.prior),
            "noise": None if self.noise is None else asdict(self.noise),
            "discount": self.space.discount,
            "experience": self.experience.to_text(),
            "random": state,
            "num_updates": self.num_updates,
            "episode": [sorted(self.replanning.fresh), self._steps, self._has_learned],
            "layers": None if self.layers is None else self.layers.pack(),
            "stakes": asdict(self.stakes),
            "sampler": facts,
        }

    @classmethod
    def _unpacked(cls, arrays: Arrays, facts: dict[str, Any], prior: Prior) -> PosteriorSamplingAgent:
        space = StateActionSpace.from_mask(
            arrays["admissible"], arrays["is_goal"], discount=facts["discount"], layer=arrays.get("layer")
        )
        _check_particles(arrays, space.num_pairs, facts["settings"]["particles"])
        noise = None if facts["noise"] is None else Noise(**facts["noise"])
        agent = cls(space, prior=prior, noise=noise, **facts["settings"])
        agent.experience = Experience.from_text(facts["experience"], space)
        agent._plan = None if "policy" not in arrays else np.atleast_2d(arrays["policy"])  # older files: one row
        if agent._plan is not None and (agent._plan.ndim != 2 or agent._plan.shape[1] != space.num_states):
            raise InvalidInputError(f"policy must be rows of {space.num_states} actions, got {agent._plan.shape}")
        if agent.models:
            agent.models.experience = agent.experience
        agent.num_updates = facts["num_updates"]
        *_, fresh, agent._steps, agent._has_learned = facts["episode"]  # older files begin with the states entered
        agent.replanning.fresh = set(fresh)
        agent.stakes = Stakes(**facts.get("stakes", {}))
        if agent.layers:
            agent.layers.unpack(facts["layers"], arrays["step_met"], agent.experience, agent.stakes.most)
            agent.sampler = agent._start_sampler(agent.layers.told, agent.layers.prior)
        agent.sampler.unpack(arrays, facts["sampler"])
        agent._rng.bit_generator.state = facts["random"]
        return agent


def _prior_of(described: dict[str, Any], given: Prior | None) -> Prior:
    """Return the prior that a file describes: one of ours, or one of one's own, which must be given again."""
    if given is None and described["name"] not in PRIORS:
        raise InvalidInputError(f"it has a prior of its own, {described['name']}; load it with prior=…")
    prior: Prior = prior_from_dict(described) if given is None else given
    if prior_to_dict(prior) != described:
        raise InvalidInputError(f"it was saved with the prior {described}, not with {prior_to_dict(prior)}")
    return prior


def _check_particles(stored: Arrays, num_pairs: int, particles: int) -> None:
    """Raise unless the stored particles are as many as the settings say and their weights are probabilities."""
    if stored["theta"].shape != (particles, num_pairs) or stored["log_weights"].shape != (particles,):
        raise InvalidInputError(f"theta must be {(particles, num_pairs)} numbers, got {stored['theta'].shape}")
    total = np.exp(stored["log_weights"]).sum()
    if not (abs(total - 1.0) < 1e-6 and np.isfinite(stored["theta"]).all()):  # nan is neither
        raise InvalidInputError("the weights of the particles must sum to 1, and their values be finite")


def _check(particles: int, redraw_every: int | None, ties: str, inference: str, deadline: float | None) -> None:
    check_count("particles", particles, 2)
    if redraw_every is not None:
        check_count("redraw_every", redraw_every)
    check_choice("tie rule", ties, TIE_RULES)
    check_choice("inference", inference, NAMES)
    if deadline is not None:
        check_number("deadline", deadline, "(0, inf)")
