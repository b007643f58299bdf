"""One contract for every agent: it acts admissibly, learns without the truth, repeats itself under the same seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import qposterior as qp
from qposterior.agents.knowledge import TRANSITION_KNOWLEDGE
from qposterior.agents.protocol import Agent, Observation
from qposterior.agents.registry import AGENTS
from qposterior.experiments.explore import make_world, spawn_seeds

WORLDS = {
    "deep-sea": {"depth": 4},
    "deep-sea-loops": {"depth": 3},
    "five-state": {},
    "river-swim": {"depth": 3},
    "bandit": {},
    "random-mdp": {"depth": 4},
}


def run(name, world, *, seed=0, episodes=6, transitions=None, **options):
    agent = qp.make_agent(
        name, world.mdp, horizon=world.cap, transitions=transitions, seed=spawn_seeds(seed)[1], **options
    )
    return agent, qp.explore(agent, world, episodes=episodes, seed=seed)


@pytest.mark.parametrize("transitions", TRANSITION_KNOWLEDGE)
@pytest.mark.parametrize("environment", WORLDS)
@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_acts_in_every_world_under_every_knowledge(name, environment, transitions):
    world = make_world(qp.make_environment(environment, **WORLDS[environment]))
    if transitions not in AGENTS[name].knowledge:
        with pytest.raises(qp.InvalidInputError, match="rows of the pairs"):
            run(name, world, transitions=transitions)
        return
    agent, result = run(name, world, transitions=transitions, episodes=3)
    assert agent.transitions == transitions
    assert len(result.rows) == 3
    for _, _, step, state, action, _, _, terminated in result.transitions:
        assert action in world.space.actions(state)
        assert step < world.cap
        assert terminated in (0, 1)
    held = agent.held_plan()
    assert held is None or held.shape[1] == world.space.num_states


@pytest.mark.parametrize("name", AGENTS)
def test_the_same_seed_gives_the_same_run_and_another_seed_another_one(name):
    depth = {"abrl-exact": 4, "abrl-paper": 5, "abrl-fixed": 5}.get(name, 8)
    world = make_world(qp.make_environment("deep-sea", depth=depth))
    one, two, other = (run(name, world, seed=seed, episodes=10)[1].transitions for seed in (3, 3, 4))
    assert one == two
    assert [row[1:] for row in one] != [row[1:] for row in other]


@pytest.mark.parametrize("name", AGENTS)
def test_agents_satisfy_the_protocol(name):
    members = [member for member in vars(Agent) if not member.startswith("_")] + list(Agent.__annotations__)
    agent = qp.make_agent(name, qp.make_environment("two-state"), horizon=5)
    assert all(hasattr(agent, member) for member in members)
    assert agent.name == name


@pytest.mark.parametrize("name", ["abrl", "r-max", "psrl-deterministic"])
@pytest.mark.parametrize("transitions", ["known", "revealed"])
def test_model_agents_end_up_with_the_optimal_policy(name, transitions):
    world = make_world(qp.make_environment("deep-sea", depth=5))
    _, result = run(name, world, transitions=transitions, episodes=80)
    assert all(abs(regret) < 1e-9 for regret in result.regret[-10:])


def test_agents_see_rows_only_when_they_may():
    world = make_world(qp.make_environment("random-mdp", num_states=4, seed=2))

    class Spy:
        name, transitions, num_updates = "spy", "revealed", 0

        def __init__(self, transitions):
            self.transitions, self.seen = transitions, []

        begin_episode = end_episode = lambda self, *_: None

        def act(self, state):
            return 0

        def observe(self, observation):
            self.seen.append(observation)

        def held_plan(self):
            return None

    for transitions, told in (("known", True), ("revealed", True), ("dirichlet", False)):
        spy = Spy(transitions)
        qp.explore(spy, world, episodes=2, seed=0)
        assert all((o.row is not None) == told and (o.mean_reward is not None) == told for o in spy.seen)
    noisy = make_world(qp.make_environment("bandit"))
    spy = Spy("revealed")
    qp.explore(spy, noisy, episodes=2, seed=0)
    assert all(o.row is not None and o.mean_reward is None for o in spy.seen)


HOLDS_NOTHING = {"random", "q-learning", "bayesian-q-learning"}
"""Agents that decide afresh at every step."""


class Watched:
    """Passes everything on to an agent, and holds it to the rule for planning anew, told in other words."""

    def __init__(self, agent, space, rule):
        self.agent, self.space, self.rule = agent, space, rule
        self.name, self.transitions, self.num_updates = agent.name, agent.transitions, 0
        self.looks, self.num_due = Counter(), 0

    def begin_episode(self, state):
        self.agent.begin_episode(state)
        self.step, self.entered, self.learned = 0, set(), set()

    def planned(self, state):
        plan = self.agent.held_plan()
        if plan is None:  # a head of an ensemble
            return int(np.argmax(self.agent.head_values(self.agent._head, state)))
        return int(plan[min(self.step, len(plan) - 1), state])

    def act(self, state):
        due = state in self.entered and (state, self.planned(state)) in self.learned
        replans, updates = self.agent.replanning.num_replans, self.agent.num_updates
        action = self.agent.act(state)
        made_anew = due and self.rule == "loops"
        assert self.agent.replanning.num_replans - replans == made_anew
        assert self.agent.num_updates - updates == made_anew or self.agent.held_plan() is None
        assert action == self.planned(state)  # of the new plan the row of this very step, not its first
        if made_anew:
            self.entered, self.learned = set(), set()
        self.num_due += due
        self.entered.add(state)
        self.step += 1
        return action

    def observe(self, observation):
        pair = observation.state, observation.action
        self.looks[pair] += 1
        # One look settles a row that is told; of a row that is counted each 1st, 2nd, 4th, 8th … look is news.
        if self.looks[pair] == 1 or (self.transitions == "dirichlet" and np.log2(self.looks[pair]) % 1 == 0):
            self.learned.add(pair)
        self.agent.observe(observation)

    def end_episode(self):
        self.agent.end_episode()

    def held_plan(self):
        return self.agent.held_plan()


@pytest.mark.parametrize("rule", ["loops", "episode"])
@pytest.mark.parametrize("name", AGENTS)
def test_every_held_plan_is_made_anew_by_the_same_rule_where_states_are_entered_twice(name, rule):
    mdp = qp.make_environment("deep-sea-loops", depth=3)
    if name in HOLDS_NOTHING:
        with pytest.raises(qp.InvalidInputError, match="replan"):
            qp.make_agent(name, mdp, replan=rule)
        return
    world, num_due = make_world(mdp, cap=30), 0
    for seed in range(5):
        agent = qp.make_agent(name, mdp, horizon=world.cap, seed=spawn_seeds(seed)[1], replan=rule)
        watched = Watched(agent, mdp.space, rule)
        qp.explore(watched, world, episodes=3, seed=seed)
        num_due += watched.num_due
    assert num_due > 0
    assert qp.make_agent(name, mdp).replanning.rule == "loops"
    with pytest.raises(qp.InvalidInputError, match="did you mean 'loops'"):
        qp.make_agent(name, mdp, replan="loop")


@pytest.mark.parametrize("name", sorted(set(AGENTS) - HOLDS_NOTHING))
def test_where_no_state_is_entered_twice_the_rule_changes_nothing(name):
    world = make_world(qp.make_environment("deep-sea", depth=4))
    one, two = (run(name, world, seed=2, episodes=5, replan=rule)[1].transitions for rule in ("loops", "episode"))
    assert one == two


def test_r_max_plans_anew_when_a_pair_has_become_known_not_when_it_is_first_seen():
    mdp = qp.make_environment("two-state")
    agent = qp.make_agent("r-max", mdp, horizon=20, transitions="revealed", known_after=3, max_reward=1.0, seed=0)
    agent.begin_episode(0)
    row = np.array([0]), np.array([1.0])
    replans = []
    for _ in range(5):
        action = agent.act(0)
        replans.append(agent.replanning.num_replans)
        agent.observe(Observation(state=0, action=action, reward=-1.0, next_state=0, terminated=False, row=row))
    assert replans == [0, 0, 0, 1, 1]


def test_r_max_needs_the_table_when_transitions_are_known():
    from qposterior.agents.r_max import RMaxAgent

    with pytest.raises(qp.InvalidInputError, match="table="):
        RMaxAgent(qp.make_environment("two-state").space, max_reward=0.0, horizon=3, transitions="known")


def test_unknown_agents_and_options_are_named():
    mdp = qp.make_environment("two-state")
    with pytest.raises(qp.InvalidInputError, match="did you mean 'r-max'"):
        qp.make_agent("rmax", mdp, horizon=3)
    with pytest.raises(qp.InvalidInputError, match="colour"):
        qp.make_agent("random", mdp, horizon=3, colour=1)
    with pytest.raises(qp.InvalidInputError, match="epsilon"):
        qp.make_agent("q-learning", mdp, horizon=3, epsilon=2.0)
    with pytest.raises(qp.InvalidInputError, match="known"):
        qp.make_agent("r-max", mdp, horizon=3, transitions="unknwon")


def test_drawn_rows_follow_the_dirichlet_posterior():
    # Two-state: pair (0, 0) seen 6 times to state 0 and twice to 1; concentration 1: mean (7, 3)/10.
    mdp = qp.make_environment("two-state")
    agent = qp.make_agent("psrl-deterministic", mdp, horizon=3, transitions="dirichlet", seed=0)
    for successor in [0] * 6 + [1] * 2:
        agent.experience.record(0, 0, -1.0, successor)
    draws = np.array([agent.draw_rows().matrix.toarray() for _ in range(4000)])
    np.testing.assert_allclose(draws.sum(axis=2), 1.0)
    # Beta(7, 3): sd √(0.7·0.3/11); Beta(1, 1): sd √(1/12). 4 standard errors: false-alarm rate 6e-5 each, fixed seed.
    for row, mean, sd in ((0, 0.7, np.sqrt(0.21 / 11)), (1, 0.5, np.sqrt(1 / 12))):
        assert abs(draws[:, row, 0].mean() - mean) < 4 * sd / np.sqrt(4000)
        assert abs(draws[:, row, 0].std() / sd - 1) < 0.06


def test_revealed_successors_of_unseen_pairs_are_uniform_over_the_states_that_may_follow():
    mdp = qp.make_environment("deep-sea", depth=4)
    agent = qp.make_agent("psrl-deterministic", mdp, horizon=3, seed=0)
    agent.begin_episode(0)
    agent.observe(Observation(state=0, action=0, reward=0.0, next_state=2, terminated=False))
    draws = np.array([agent.draw_rows().successor for _ in range(4500)])
    assert set(draws[:, 0]) == {2}
    for k, may_follow in ((1, set(range(1, 10))), (4, {1, *range(3, 10)}), (2, {1, *range(3, 10)})):
        # After step 0 comes state 2, met at step 1, or one never met; elsewhere one never met.
        counts = np.unique(draws[:, k], return_counts=True)
        assert set(counts[0]) == may_follow
        expected = 4500 / len(may_follow)
        # Chi-square with 8 and 7 degrees of freedom: 34 is exceeded with probability 4e-5.
        assert ((counts[1] - expected) ** 2 / expected).sum() < 34.0
    agent.observe(Observation(state=2, action=0, reward=0.0, next_state=0, terminated=False))  # a loop: no layers
    drawn = np.array([agent.draw_rows().successor for _ in range(300)])
    assert all(set(drawn[:, k]) == set(range(10)) for k in range(1, 12) if k != 4)


@pytest.mark.parametrize("transitions", ["revealed", "dirichlet"])
@pytest.mark.parametrize("name", AGENTS)
def test_rows_that_an_agent_has_not_seen_do_not_change_what_it_does(name, transitions):
    if transitions in AGENTS[name].knowledge:
        assert all(does_the_same_where_unseen_rows_differ(name, transitions, episodes) for episodes in (1, 2, 4))


@pytest.mark.parametrize("name", ["psrl-deterministic", "psrl"])
def test_an_agent_that_is_told_all_rows_does_otherwise_where_unseen_ones_differ(name):
    assert not all(does_the_same_where_unseen_rows_differ(name, "known", episodes) for episodes in (1, 2, 4))


def does_the_same_where_unseen_rows_differ(name, transitions, episodes):
    sea = qp.make_environment("deep-sea", depth=5)
    _, before = run_for(name, sea, transitions, episodes=episodes)
    taken = {(row[3], row[4]) for row in before.transitions}
    rows = dict(zip(sea.space.pairs(), range(sea.space.num_pairs), strict=True))
    # What was not taken leads anywhere, over layers and in loops: to its own state, to the start, to the last goal.
    edges = [
        (s, a, int(sea.transitions.row(k)[0][0]) if (s, a) in taken else (s, 0, 14)[k % 3], 1.0, float(sea.rewards[k]))
        for (s, a), k in rows.items()
    ]
    other = qp.FiniteMDP.from_edges(edges, goal=sea.space.goals.tolist(), initial=sea.initial)
    assert other.space.layer is None
    _, after = run_for(name, other, transitions, episodes=episodes)
    return [row[1:] for row in after.transitions] == [row[1:] for row in before.transitions]


def run_for(name, mdp, transitions, episodes):
    agent = qp.make_agent(name, mdp, horizon=4, transitions=transitions, seed=1)
    return agent, qp.explore(agent, make_world(mdp, cap=4), episodes=episodes, seed=1)


def test_beliefs_know_of_the_episode_that_has_just_ended():
    world = make_world(qp.make_environment("bandit", means=(1.0, 2.0), reward_sd=0.0))
    agent, result = run("abrl", world, episodes=1)
    played = result.transitions[0][4]
    sd = agent.posterior().sd()[0]
    assert sd[played] < 1e-12
    assert sd[1 - played] > 1.0


def test_an_environment_without_a_name_can_be_explored():
    import gymnasium

    class Coin(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 0, {}

        def step(self, action):
            return 1, float(action), True, False, {}

    world = make_world(Coin())
    assert world.name == "Coin"
    assert world.mdp is None


class SlipperyChain:
    """A Gymnasium environment without a table: go to the end for 1, or take 0.2 now; a move slips one time in ten."""

    def __new__(cls):
        import gymnasium

        class Chain(gymnasium.Env):
            observation_space, action_space = gymnasium.spaces.Discrete(6), gymnasium.spaces.Discrete(2)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self.place = 0
                return 0, {}

            def step(self, action):
                if action == 0:
                    return 5, 0.2, True, False, {}
                if self.np_random.random() < 0.9:
                    self.place += 1
                won = self.place == 4
                return (5 if won else self.place), (1.0 if won else -0.01), won, False, {}

        return Chain()


def test_agents_of_a_problem_without_a_table_count_successors():
    world = make_world(SlipperyChain(), cap=40)
    for name in ("abrl", "psrl", "rlsvi", "psrl-deterministic", "q-learning"):
        agent = qp.make_agent(name, world.problem, horizon=world.cap, seed=0)
        run = qp.explore(agent, world, episodes=4, seed=0)
        assert len(run.rows) == 4
        assert np.isnan(run.rows[0]["regret"])
        if hasattr(agent, "experience"):
            assert agent.experience.transitions == "counted"
    with pytest.raises(qp.InvalidInputError, match="max_reward"):
        qp.make_agent("r-max", world.problem, horizon=5)
    assert qp.make_agent("rlsvi", SlipperyChain()).horizon == 100
    told = qp.make_agent("r-max", world.problem, horizon=5, max_reward=1.0)
    assert told.experience.transitions == "counted"
    with pytest.raises(qp.InvalidInputError, match="needs a table"):
        qp.make_agent("psrl", world.problem, horizon=5, transitions="known")


@pytest.mark.parametrize("name", ["abrl", "r-max", "q-learning"])
def test_agents_are_made_for_a_gymnasium_environment_or_its_id(name):
    import gymnasium

    env = gymnasium.make("CliffWalking-v1", max_episode_steps=40)
    agent = qp.make_agent(name, env, seed=0)
    assert agent.space.num_states == 48
    assert getattr(agent, "horizon", 40) == 40
    result = qp.explore(agent, env, episodes=2, seed=0)
    other = qp.make_agent(name, "CliffWalking-v1", horizon=40, seed=0)
    assert qp.explore(other, env, episodes=2, seed=0).transitions == result.transitions
    with pytest.raises(qp.InvalidInputError, match="got 3"):
        qp.make_agent(name, 3)


def test_abrl_explores_an_environment_that_has_no_table():
    world = make_world(SlipperyChain(), cap=40)
    assert world.mdp is None
    wins, noticed = [], []
    for seed in range(5):
        agent = qp.PosteriorSamplingAgent(
            world.space, transitions="dirichlet", rewards="noisy", seed=spawn_seeds(seed)[1]
        )
        result = qp.explore(agent, world, episodes=60, seed=seed)
        wins.append(np.mean([row["return"] > 0.5 for row in result.rows[-20:]]))
        noticed.append(agent.sampler.is_noisy)  # the last step pays 1 or −0.01 as it slips: noise, once it was seen
    assert min(wins) > 0.5, wins  # deciding at random wins one episode in fifteen
    assert any(noticed)


def test_only_abrl_counts_successors():
    with pytest.raises(qp.InvalidInputError, match="rows of the pairs"):
        qp.PosteriorSamplingAgent(qp.make_environment("bandit").space, inference="adaptive", transitions="dirichlet")


def test_an_agent_that_counts_is_saved_and_goes_on_byte_for_byte(tmp_path):
    world = make_world(qp.make_environment("river-swim", depth=4))
    agent, first = run("abrl", world, transitions="dirichlet", episodes=6)
    agent.save(tmp_path / "agent.npz")
    loaded = qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz")
    one, two = (qp.explore(a, world, episodes=4, after=first).transitions for a in (agent, loaded))
    assert one == two


@pytest.mark.parametrize(
    ("name", "options"), [("bootstrapped-dqn-no-prior", {"prior_scale": 1.0}), ("abrl-paper", {"inference": "fixed"})]
)
def test_what_makes_an_agent_itself_cannot_be_set_otherwise(name, options):
    with pytest.raises(qp.InvalidInputError, match=f"multiple values for keyword argument '{next(iter(options))}'"):
        qp.make_agent(name, qp.make_environment("two-state"), horizon=5, **options)
