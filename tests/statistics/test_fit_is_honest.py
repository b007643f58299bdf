"""What `fit` must not say: a policy of draws that have not settled, certainty without comparison, free loops."""

from __future__ import annotations

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import qposterior as qp
from qposterior.cli.main import cli
from qposterior.logs.checks import check_fit
from qposterior.logs.choices import choose
from qposterior.logs.files import save_fit
from qposterior.logs.read import log_of_table
from qposterior.logs.settings import FitSettings
from qposterior.report.fit_report import state_summary, write_fit_report

COLUMNS = ["state", "action", "reward", "next_state"]


@pytest.fixture(scope="module")
def found():
    """Two states: in one both actions were tried, in the other one action twice."""
    rng = np.random.default_rng(0)
    tried = [("run", 1.0), ("repair", 0.0)] * 10
    rows = [("worn", action, float(rng.normal(mean, 0.3)), "bad") for action, mean in tried]
    rows += [("bad", "repair", -1.0, "end"), ("bad", "repair", -1.2, "end")]
    return qp.fit(pd.DataFrame(rows, columns=COLUMNS), method="q", particles=400)


def unsettled(found):
    broken = found.posterior.diagnostics | {"trusted": False, "reliability_warning": "too few", "min_bulk_ess": 11.0}
    post = replace(found.posterior, diagnostics=broken)
    return replace(found, posterior=post, checks=check_fit(found.log, found.chosen, post))


def test_the_only_action_tried_is_not_called_best(found, tmp_path):
    table = found.table.set_index(["state", "action"])
    assert np.isnan(table.loc[("bad", "repair"), "prob_optimal"])
    assert table.loc[("bad", "repair"), "only_action"]
    assert table.loc[("worn", "run"), "prob_optimal"] > 0.95
    assert found.policy["bad"] == "repair"
    words = " ".join(state_summary(found))
    assert "In 1 of the 1 states where several actions were tried" in words
    assert "In one state only one action was ever tried" in words
    page = write_fit_report(found, tmp_path).read_text()
    assert "only action" in page
    json.dumps(found.to_dict(), allow_nan=False)


def test_draws_that_have_not_settled_give_no_answer(found, tmp_path):
    lost = unsettled(found)
    assert lost.policy == {}
    assert np.isnan(lost.prob_policy)
    assert np.isnan(lost.start_value).all()
    assert lost.table[["mean", "lower", "upper", "prob_optimal", "expected_loss"]].isna().all().all()
    assert lost.next_trials().empty
    check = next(check for check in lost.checks if check.name == "computation")
    assert not check.fits
    assert "worth 11 independent" in check.note
    assert "particles" not in check.note
    page = write_fit_report(lost, tmp_path).read_text()
    assert "There is no answer" in page
    assert "What to do where" not in page
    assert "worth 11 independent" in page
    json.dumps(lost.to_dict(), allow_nan=False)


def test_the_command_line_ends_with_1_and_without_a_policy(monkeypatch, tmp_path, found):
    monkeypatch.setattr("qposterior.logs.fit.fit", lambda *_, **__: unsettled(found))
    path = tmp_path / "log.csv"
    pd.DataFrame([("a", "x", 1.0, "b")], columns=COLUMNS).to_csv(path, index=False)
    done = CliRunner().invoke(cli, ["fit", str(path)])
    assert isinstance(done.exception, qp.QPosteriorError)
    assert "! the computation has not settled" in done.stdout
    assert "P(best)" not in done.stdout
    assert "repair" not in done.stdout


def frozen_lake_log(readings, seed):
    """Five readings of every pair of the slippery lake, nothing paid but at the goal."""
    table = gymnasium.make("FrozenLake-v1").unwrapped.P
    rng = np.random.default_rng(seed)
    rows = []
    for state, actions in table.items():
        for action, outcomes in actions.items():
            if outcomes[0][1] == state and outcomes[0][3]:
                continue  # a goal or a hole
            for _ in range(readings):
                _, following, reward, _ = outcomes[rng.choice(len(outcomes), p=[o[0] for o in outcomes])]
                rows.append((str(state), str(action), reward, str(following)))
    return pd.DataFrame(rows, columns=COLUMNS)


def test_a_loop_that_costs_nothing_is_warned_of_where_the_reader_looks(tmp_path):
    log = log_of_table(frozen_lake_log(5, 0))
    for discount, is_free in ((0.98, True), (1.0, False)):
        chosen = choose(log, FitSettings(method="q", discount=discount))
        draws = np.random.default_rng(0).normal(size=(200, chosen.seen.space.num_pairs))
        sure = {"trusted": True, "min_bulk_ess": 200.0}
        post = qp.Posterior(
            space=chosen.seen.space, draws=draws, weights=np.full(200, 1 / 200), method="hand", diagnostics=sure
        )
        found = qp.Fit(chosen=chosen, posterior=post, checks=check_fit(log, chosen, post), log=log)
        loops = [check for check in found.checks if check.name == "loops"]
        assert bool(loops) == is_free
        for check in loops:
            assert not check.fits
            assert "circle" in check.note
            assert "a cost for each step" in check.note
            assert check.note in write_fit_report(found, tmp_path).read_text()


def test_no_noise_advice_that_estimates_a_centre_instead_of_the_mean():
    rng = np.random.default_rng(0)
    rows = [("a", x, float(r), "end") for x, scale in (("x", 1.0), ("y", 50.0)) for r in rng.gamma(0.3, scale, 60)]
    found = qp.fit(pd.DataFrame(rows, columns=COLUMNS), method="q", particles=200)
    check = next(check for check in found.checks if check.name == "noise")
    assert not check.fits
    assert "student" not in check.note


def test_a_policy_is_served_by_the_labels_of_the_log_and_only_where_there_is_one(found, tmp_path):
    rows = [(1, "x", 1.0, 2), (1, "y", 0.0, 2)] * 5
    save_fit(qp.fit(pd.DataFrame(rows, columns=COLUMNS), particles=200), tmp_path / "sure", FitSettings())
    policy = qp.Policy.load(tmp_path / "sure")
    assert policy.act("1") == policy.act("1.0") == policy.act(" 1 ") == "x"
    save_fit(unsettled(found), tmp_path / "lost", FitSettings())
    with pytest.raises(qp.InvalidInputError, match="has not settled"):
        qp.Policy.load(tmp_path / "lost").act("worn")


def test_columns_that_were_not_read_are_named():
    rows = [("a", "x", 1.0, "end", 1, "u"), ("a", "y", 0.0, "end", 1, "v")]
    found = qp.fit(pd.DataFrame(rows, columns=[*COLUMNS, "done", "user"]), particles=100)
    assert any("not read: 'done', 'user'" in words for words in found.chosen.notes)
    named = qp.fit(pd.DataFrame(rows, columns=[*COLUMNS, "terminated", "user"]), particles=100)
    assert any("not read: 'user'" in words for words in named.chosen.notes)
    assert not any(
        "not read" in w for w in qp.fit(pd.DataFrame(rows, columns=[*COLUMNS, "done", "user"])[COLUMNS]).chosen.notes
    )


def test_one_trial_of_each_pair_is_not_called_certain_without_a_word():
    rows = [("a", "x", 1.0, "end"), ("a", "y", 2.0, "end")]
    found = qp.fit(pd.DataFrame(rows, columns=COLUMNS), particles=100)
    check = next(check for check in found.checks if check.name == "rewards")
    assert not check.fits
    assert "--rewards noisy" in check.note
    assert any("no pair was tried more than once" in words for words in found.chosen.notes)


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**40])
def test_the_unit_of_rewards_does_not_matter_to_a_fit(unit):
    rng = np.random.default_rng(0)
    rows = [("a", x, float(rng.normal(mean, 1.0)), "end") for x, mean in (("x", 1.0), ("y", 1.5)) for _ in range(12)]
    rows += [("b", "x", 1.0, "a")] * 3
    table = pd.DataFrame(rows, columns=COLUMNS)
    one, other = (
        qp.fit(table.assign(reward=u * table["reward"]), method="q", actions="all", particles=200) for u in (1.0, unit)
    )
    assert other.chosen.rewards == one.chosen.rewards == "noisy"
    assert other.chosen.prior.scale == pytest.approx(unit * one.chosen.prior.scale)
    tried = one.table["count"] > 0
    np.testing.assert_allclose(other.table["mean"][tried] / unit, one.table["mean"][tried], rtol=0.05, atol=0.1)
    spread = (one.table["upper"] - one.table["lower"])[~tried]
    np.testing.assert_allclose((other.table["upper"] - other.table["lower"])[~tried] / unit, spread, rtol=0.5)


def test_a_log_without_an_answer_at_its_discount_names_its_own_labels():
    rows = [("walk", "round", 1.0, "back"), ("back", "round", 1.0, "walk")] * 3
    with pytest.raises(qp.InvalidInputError, match=r"in (walk, back|back, walk) one can go on for ever.*--discount"):
        qp.fit(pd.DataFrame(rows, columns=COLUMNS), discount=1.0)


@pytest.mark.parametrize("kind", ["skewed", "successor", "plain"])
def test_logs_whose_values_are_hard_to_judge_are_warned_of(kind):
    """Rare large rewards, and rewards decided by the successor: simulated intervals were too narrow there."""
    rng = np.random.default_rng(5)
    rows = []
    for state, action in (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")):
        for following in rng.choice(["a", "b"], 40):
            reward = {
                "skewed": 40.0 * (rng.random() < 0.05),
                "successor": 3.0 * (following == "a") + 0.1 * rng.normal(),
                "plain": float(rng.normal()),
            }[kind]
            rows.append((state, action, float(reward), following))
    found = qp.fit(pd.DataFrame(rows, columns=COLUMNS), discount=0.9)
    warned = [check for check in found.checks if check.name == "values"]
    assert bool(warned) == (kind != "plain")
    assert all(not check.fits and "too narrow" in check.note for check in warned)
    assert ["skewed" in check.note for check in warned] == [kind == "skewed"] * len(warned)
