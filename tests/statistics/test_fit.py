"""`fit`: answers against exact ones, the posterior of an exploring agent, and pages that run nothing of the log."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qposterior as qp
from qposterior.cli.main import cli
from qposterior.logs.value import worth_of_readings

SCRIPT = "<script>document.title='ran'</script>"


def simulate(seed=0, episodes=40):
    """A machine: run it or repair it; it wears, and may be scrapped."""
    rng, rows = np.random.default_rng(seed), []
    states = ["new", SCRIPT, "$bad$"]
    for episode in range(episodes):
        s = 0
        for _ in range(8):
            action = str(rng.choice(["run", "repair"]))
            reward, following = -4.0 + rng.normal(), states[0]
            if action == "run":
                reward = float([5.0, 3.0, -2.0][s] + rng.normal())
                following = "scrap" if rng.random() < 0.1 * (s + 1) else states[min(2, s + int(rng.random() < 0.5))]
            rows.append((states[s], action, reward, following, int(following == "scrap"), episode))
            if following == "scrap":
                break
            s = states.index(following)
    return pd.DataFrame(rows, columns=["state", "action", "reward", "next_state", "terminated", "episode"])


@pytest.fixture(scope="module")
def found():
    return qp.fit(simulate(), discount=0.9, seed=1)


def test_the_table_adds_up(found):
    table = found.table
    assert list(table.columns) == [
        "state", "action", "count", "mean", "lower", "upper", "prob_optimal", "expected_loss", "only_action",
    ]  # fmt: skip
    np.testing.assert_allclose(table.groupby("state")["prob_optimal"].sum(), 1.0)
    assert (table["lower"] <= table["mean"]).all()
    assert (table["mean"] <= table["upper"]).all()
    best = table.loc[table.groupby("state")["expected_loss"].idxmin()].set_index("state")["action"].to_dict()
    assert best == found.policy
    assert (
        0.0 < found.prob_policy <= table.loc[table["action"] == table["state"].map(found.policy), "prob_optimal"].min()
    )
    assert table["count"].sum() == len(simulate())


def test_the_table_is_the_reader_s_own(found):
    table = found.table
    table["count"] = -1
    assert (found.table["count"] >= 0).all()


def test_json_has_the_names_that_are_promised(found):
    answer = json.loads(json.dumps(found.to_dict()))
    assert set(answer) == {"settings", "policies", "rows", "policy", "diagnostics"}
    assert {"recommended", "logged", "gain"} <= set(answer["policies"])
    assert len(answer["policies"]["gain"]["value"]) == 3
    assert 0.0 <= answer["policies"]["gain"]["prob_better"] <= 1.0
    assert {row["state"] for row in answer["rows"]} == {"new", SCRIPT, "$bad$"}
    assert answer["settings"]["transitions"] == "dirichlet"
    assert answer["diagnostics"]["trusted"] is True


def test_a_deterministic_log_has_the_exact_answer():
    sea = qp.make_environment("deep-sea", depth=4)
    agent = qp.make_agent("abrl-iid", sea, horizon=3, seed=0)
    run = qp.explore(agent, sea, episodes=9, seed=0)
    log = pd.DataFrame(
        run.transitions, columns=["seed", "episode", "step", "state", "action", "reward", "next_state", "terminated"]
    )
    found = qp.fit(log, actions="all", prior=qp.GaussianPrior(), particles=8000)
    seen = found.chosen.seen
    exact = qp.posterior(seen, method="exact", particles=10)
    gap = np.abs(exact.prob_optimal_table() - found.posterior.prob_optimal_table())
    worth = min(found.posterior.diagnostics["min_bulk_ess"], 8000)
    assert gap.max() < 5.0 * 0.5 / np.sqrt(worth)
    # The agent's own posterior, of the same pairs, has the states in another order and more of them: compare the start.
    of_agent = agent.posterior().prob_optimal(0)
    start = found.chosen.states.index("0")
    own = found.posterior.prob_optimal_table()[start][[found.chosen.actions.index(str(a)) for a in (0, 1)]]
    assert np.abs(own - of_agent).max() < 5.0 * 0.5 / np.sqrt(20)  # twenty particles


def test_contaminated_rows_do_not_take_the_posterior_with_them():
    rng = np.random.default_rng(0)
    rows = [
        ("s", arm, float(mean + rng.normal(0, 0.3)), "end") for arm, mean in (("a", 1.0), ("b", 0.0)) for _ in range(40)
    ]
    rows += [("s", "b", 400.0, "end")]  # a slip of the pen
    log = pd.DataFrame(rows, columns=["state", "action", "reward", "next_state"])
    prior = qp.GaussianPrior(scale=10.0)
    normal = qp.fit(log, prior=prior, seed=0)
    heavy = qp.fit(log, prior=prior, noise=qp.Noise(kind="student", degrees=4.0), seed=0)
    p_normal, p_heavy = (f.table.set_index("action")["prob_optimal"]["a"] for f in (normal, heavy))
    assert p_heavy > 0.99
    assert p_normal < 0.7
    assert [check.name for check in normal.checks if not check.fits] == ["noise"]


def test_a_log_with_memory_is_noticed_and_one_without_is_not():
    # Odds that are uneven, and a memory that is weak: a test that expects even odds, or is too lenient, shows.
    for memory, fits in ((0.12, False), (0.0, True)):
        rng, rows, came = np.random.default_rng(1), [], "m"
        for _ in range(900):
            # Two ways into the middle; with memory the way in decides where one goes on to.
            out = "left" if rng.random() < 0.7 + (memory if came == "left" else -memory) else "right"
            rows += [("m", "go", 0.0, out), (out, "back", 0.0, "m")]
            came = out
        found = qp.fit(pd.DataFrame(rows, columns=["state", "action", "reward", "next_state"]), particles=200)
        assert {check.name: check.fits for check in found.checks}["memory"] is fits


def test_the_worth_of_a_reading_agrees_with_simulation():
    """One state, two arms: simulate the next reading of an arm, update by conjugacy, and take the better mean."""
    rng, sd = np.random.default_rng(0), 1.0
    rows = [
        ("s", arm, float(m + rng.normal(0, sd)), "end")
        for arm, m, n in (("a", 0.2, 30), ("b", 0.0, 4))
        for _ in range(n)
    ]
    log = pd.DataFrame(rows, columns=["state", "action", "reward", "next_state"])
    found = qp.fit(log, prior=qp.GaussianPrior(scale=5.0), noise=qp.Noise(scale=sd), particles=8000, seed=0)
    worth = worth_of_readings(found.posterior, found.chosen, found.posterior.pair_mean)
    mean, count = log.groupby("action")["reward"].mean(), log.groupby("action").size()
    precision = 1 / 25.0 + count / sd**2
    centre, spread = count * mean / sd**2 / precision, precision**-0.5
    for k, arm in enumerate(found.chosen.actions):
        theta = rng.normal(centre[arm], spread[arm], 400_000)
        after = (centre[arm] * precision[arm] + rng.normal(theta, sd)) / (precision[arm] + 1.0)
        other = centre.drop(arm).iloc[0]
        simulated = np.maximum(after, other)
        gain, error = simulated.mean() - centre.max(), simulated.std() / np.sqrt(400_000)
        pair = found.posterior.space.pair(found.chosen.states.index("s"), k)
        # The draws know the gap of the means to about sd / √ESS, of which the gain takes over less than a third.
        own = spread.max() / np.sqrt(found.posterior.diagnostics["min_bulk_ess"])
        assert abs(worth[pair] - gain) < 5.0 * error + 5.0 * own / 3.0
        assert gain > 10.0 * error or worth[pair] < 0.01


def test_the_command_line_from_log_to_policy(tmp_path):
    path, out = tmp_path / "log.csv", tmp_path / "answer"
    simulate().to_csv(path, index=False)
    run = CliRunner().invoke
    result = run(cli, ["fit", str(path), "--discount", "0.9", "--out", str(out), "--particles", "400"])
    assert result.exit_code == 0, result.output
    names = {"fit.json", "rows.csv", "draws.npz", "sums.json", "index.html", "current", "generations", ".lock"}
    assert {p.name for p in out.iterdir()} == names
    assert len(pd.read_csv(out / "rows.csv")) == 6
    action = run(cli, ["act", str(out), "--state", "new"]).output.strip()
    assert action == json.loads((out / "fit.json").read_text())["policy"]["new"]
    policy = qp.Policy.load(out)
    drawn = [policy.act("$bad$", explore=True, seed=seed) for seed in range(30)]
    assert set(drawn) <= {"run", "repair"}
    assert policy.act("$bad$", explore=True, seed=5) == drawn[5]
    again = run(cli, ["fit", str(path), "--out", str(out)])
    assert isinstance(again.exception, qp.InvalidInputError)
    more = tmp_path / "more.csv"
    simulate(seed=9).to_csv(more, index=False)
    assert run(cli, ["fit", str(more), "--update", str(out)]).exit_code == 0
    refused = run(cli, ["fit", str(more), "--update", str(out), "--discount", "0.5"])
    assert refused.exit_code == 2
    assert "--discount cannot change" in refused.output
    rows = pd.read_csv(out / "rows.csv")
    assert rows["count"].sum() == len(simulate()) + len(simulate(seed=9))
    page = (out / "index.html").read_text()
    assert "<script>document.title" not in page
    assert "&lt;script&gt;document.title" in page


def test_nothing_is_written_when_the_log_is_wrong(tmp_path):
    path, out = tmp_path / "log.csv", tmp_path / "answer"
    path.write_text("state,action,reward,next_state\na,b,x,c\n")
    result = CliRunner().invoke(cli, ["fit", str(path), "--out", str(out), "--json", str(tmp_path / "a.json")])
    assert isinstance(result.exception, qp.InvalidInputError)
    assert not (tmp_path / "a.json").exists()
    assert not out.exists()


def test_visits_and_worth_count_how_often_a_state_is_reached():
    """Half of the episodes end before the second choice, so a reading there is worth half; by hand for the visits."""
    rng = np.random.default_rng(0)
    rows = [("in", "go", 0.0, "choice" if i % 2 else "end") for i in range(400)]
    rows += [("choice", arm, float(rng.normal(0.0, 1.0)), "end") for arm in ("a", "b") for _ in range(4)]
    log = pd.DataFrame(rows, columns=["state", "action", "reward", "next_state"]).assign(episode=range(len(rows)))
    options = {"prior": qp.GaussianPrior(scale=5.0), "noise": qp.Noise(scale=1.0), "transitions": "empirical"}
    found = qp.fit(log, particles=4000, seed=0, **options)
    starts = log["state"].value_counts(normalize=True)
    assert found.visits()["choice"] == pytest.approx(starts["choice"] + 0.5 * starts["in"])
    alone = qp.fit(log[log["state"] == "choice"], particles=4000, seed=0, **options)
    whole, part = (f.next_trials().set_index("action")["expected_gain"] for f in (found, alone))
    ratio = float((whole / part).mean())
    assert ratio == pytest.approx(found.visits()["choice"], rel=0.25)  # two sets of draws, each known to about a tenth
    assert alone.visits()["choice"] == 1.0


def test_a_log_that_is_too_large_to_draw_for_says_so(found, monkeypatch):
    from qposterior.logs import fit as module

    pairs = found.posterior.space.num_pairs
    monkeypatch.setattr(module, "MOST_NUMBERS", 100 * module.CHAINS_OF_ROWS * pairs)
    monkeypatch.setattr(module, "MOST_KEPT", 3200 * pairs)
    assert module.sampler_size(found.chosen, 4000) == (3200, 100)
    monkeypatch.setattr(module, "MOST_NUMBERS", 99 * module.CHAINS_OF_ROWS * pairs)
    with pytest.raises(qp.InvalidInputError, match=r"big\.csv: 6 pairs.*empirical"):
        module.sampler_size(found.chosen, 4000, path="big.csv")
    monkeypatch.setattr(module, "MOST_NUMBERS", 100 * module.CHAINS_OF_ROWS * pairs)
    monkeypatch.setattr(module, "MOST_KEPT", 99 * pairs)
    with pytest.raises(qp.InvalidInputError, match=r"group states$"):
        module.sampler_size(found.chosen, 4000)


LABELS = st.sampled_from(["a", "b", "c", "goal", "0", "-1", "a b", "é", "=1+1"])
REWARDS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5]), st.floats(-1e99, 1e99), st.integers(-3, 3))
ROWS = st.tuples(
    LABELS, st.sampled_from(["x", "y", "1"]), REWARDS, LABELS, st.sampled_from([0, 0, 0, 1]), st.integers(0, 2)
)
QUICK = {"particles": 100, "seed": 0}


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(ROWS, min_size=1, max_size=12),
    kept=st.sampled_from([4, 5, 6]),
    options=st.sampled_from(
        [
            {},
            {"discount": 0.9},
            {"discount": 1.0},
            {"actions": "all"},
            {"rewards": "deterministic"},
            {"goals": ["goal"]},
        ]
    ),
)
def test_any_table_gives_an_answer_that_adds_up_or_one_line(rows, kept, options):
    """Loops, goals that act, contradictions, one row, numbers near overflow: an answer or an error of ours."""
    names = ["state", "action", "reward", "next_state", "terminated", "episode"]
    table = pd.DataFrame([row[:kept] for row in rows], columns=names[:kept])
    answer, words = None, ""
    try:
        answer = qp.fit(table, **QUICK, **options)
    except qp.QPosteriorError as error:
        words = str(error)
    if answer is None:
        assert len(words.splitlines()) == 1
        return
    found = answer.table
    assert found["count"].sum() == len(rows)
    text = json.dumps(answer.to_dict(), allow_nan=False)
    assert json.loads(text)["rows"][0]["state"] == found["state"][0]
    compared = found[~found["only_action"]]
    if not answer.is_settled:
        assert answer.policy == {}
        assert found["mean"].isna().all()
        return
    np.testing.assert_allclose(compared.groupby("state")["prob_optimal"].sum(), 1.0)
    assert found.loc[found["only_action"], "prob_optimal"].isna().all()
    numbers = found[["mean", "lower", "upper", "expected_loss"]].to_numpy()
    assert np.isfinite(numbers).all()
    assert (found["lower"] <= found["upper"]).all()
    assert (found["expected_loss"] >= 0.0).all()
    assert set(answer.policy) == set(found["state"])
