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
from qposterior.logs.choices import FitSettings, choose
from qposterior.logs.files import save_fit
from qposterior.logs.read import log_of_table
from qposterior.report.fit_report import summary, write_fit_report

COLUMNS = ["state", "action", "reward", "next_state"]


@pytest.fixture(scope="module")
def found():
    """Two states: in one both actions were tried, in the other one action twice."""
    rng = np.random.default_rng(0)
    tried = [("run", 1.0), ("repair", 0.0)] * 10
    rows = [("worn", action, float(rng.normal(mean, 0.3)), "bad") for action, mean in tried]
    rows += [("bad", "repair", -1.0, "end"), ("bad", "repair", -1.2, "end")]
    return qp.fit(pd.DataFrame(rows, columns=COLUMNS), particles=400)


def unsettled(found):
    broken = found.posterior.diagnostics | {"trusted": False, "distrust": "the draws are worth only 11"}
    post = replace(found.posterior, diagnostics=broken)
    return replace(found, posterior=post, checks=check_fit(found.log, found.chosen, post))


def test_the_only_action_tried_is_not_called_best(found, tmp_path):
    table = found.table.set_index(["state", "action"])
    assert np.isnan(table.loc[("bad", "repair"), "prob_optimal"])
    assert table.loc[("bad", "repair"), "only_action"]
    assert table.loc[("worn", "run"), "prob_optimal"] > 0.95
    assert found.policy["bad"] == "repair"
    words = " ".join(summary(found))
    assert "In 1 of the 1 states where several actions were tried" in words
    assert "In one state only one action was ever tried" in words
    page = write_fit_report(found, tmp_path).read_text()
    assert "only action tried" in page
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
    assert "worth only 11" in check.words
    assert "particles" not in check.words
    page = write_fit_report(lost, tmp_path).read_text()
    assert "no answer yet" in page
    assert "What to do where" not in page
    assert "worth only 11" in page
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
        chosen = choose(log, FitSettings(discount=discount))
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
            assert "circle" in check.words
            assert "a cost for each step" in check.words
            assert check.words in write_fit_report(found, tmp_path).read_text()


def test_no_noise_advice_that_estimates_a_centre_instead_of_the_mean():
    rng = np.random.default_rng(0)
    rows = [("a", x, float(r), "end") for x, scale in (("x", 1.0), ("y", 50.0)) for r in rng.gamma(0.3, scale, 60)]
    found = qp.fit(pd.DataFrame(rows, columns=COLUMNS), particles=200)
    check = next(check for check in found.checks if check.name == "noise")
    assert not check.fits
    assert "student" not in check.words


def test_a_policy_is_served_by_the_labels_of_the_log_and_only_where_there_is_one(found, tmp_path):
    rows = [(1, "x", 1.0, 2), (1, "y", 0.0, 2)] * 5
    save_fit(qp.fit(pd.DataFrame(rows, columns=COLUMNS), particles=200), tmp_path / "sure", FitSettings())
    policy = qp.Policy.load(tmp_path / "sure")
    assert policy.act("1") == policy.act("1.0") == policy.act(" 1 ") == "x"
    save_fit(unsettled(found), tmp_path / "lost", FitSettings())
    with pytest.raises(qp.InvalidInputError, match="has not settled"):
        qp.Policy.load(tmp_path / "lost").act("worn")
