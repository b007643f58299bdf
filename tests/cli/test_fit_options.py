"""`qposterior fit` with the options of policies: what is printed, what is written, what an update keeps."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import qposterior as qp
from qposterior.cli.main import cli
from qposterior.logs.files import load_sums
from qposterior.logs.words import policy_lines, rounded, share_words, verdict

COLUMNS = ["state", "action", "reward", "next_state"]
FEW = ("--particles", "1000")
EVIL = "[red]<script>x</script>"


def shop(seed=0, readings=25):
    """Three states in a line; `b` pays more in the first two, in the last both do the same."""
    rng, rows = np.random.default_rng(seed), []
    for state, following in (("s0", "s1"), ("s1", "s2"), (EVIL, "end")):
        for action, mean in (("a", 0.0), ("b", 1.0)):
            better = mean if state != EVIL else 0.0
            lead = EVIL if following == "s2" else following
            rows += [(state, action, better + float(rng.normal()), lead) for _ in range(readings)]
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    shop().to_csv(path, index=False)
    return path


def run(*arguments):
    return CliRunner().invoke(cli, ["fit", *map(str, arguments)])


def answer_of(*arguments):
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_policy(path, actions, name="mine"):
    file = path / f"{name}.csv"
    pd.DataFrame(list(actions.items()), columns=["state", "action"]).to_csv(file, index=False)
    return file


def test_the_json_begins_with_the_values_of_policies(log):
    answer = answer_of(log)
    assert list(answer) == ["settings", "policies", "rows", "policy", "diagnostics"]
    policies = answer["policies"]
    assert set(policies["recommended"]) == set(policies["logged"]) == {"value"}
    assert set(policies["gain"]) == {"value", "prob_better"}
    for name in ("recommended", "logged", "gain", "optimum"):
        mean, low, high = policies[name]["value"]
        assert low < mean < high
    means = [policies[name]["value"][0] for name in ("recommended", "logged", "gain")]
    assert means[0] - means[1] == pytest.approx(means[2])
    assert policies["optimum"]["value"][0] >= means[0]
    # Episodes begin anywhere, as rows are not in order: the gain is that of the states ahead, half a unit each.
    assert policies["gain"]["prob_better"] > 0.99
    assert answer["policy"]["s0"] == answer["policy"]["s1"] == "b"


def test_policies_come_first_on_the_terminal(log):
    printed = run(log, *FEW).stdout
    assert printed.index("The recommended policy gains") < printed.index("What policies are worth")
    assert printed.index("What policies are worth") < printed.index("What to do where")
    for words in ("recommended", "logged", "gain over logged", "upper bound", "P(best)", EVIL):
        assert words in printed
    assert "- values are for episodes that start where those of the log start" in printed


def test_a_policy_of_ones_own_is_valued(log, tmp_path):
    file = write_policy(tmp_path, {"s0": "a", "s1": "a", EVIL: "a"})
    answer = answer_of(log, "--policy", file, "--policy", f"{EVIL}={file}")
    given = answer["policies"]["given"]
    assert set(given) == {"mine", EVIL}
    assert given["mine"] == given[EVIL]
    assert set(given["mine"]) == {"value", "gain"}
    assert given["mine"]["gain"]["prob_better"] < 0.01
    found = qp.fit(log)
    assert found.value_of({"s0": "a", "s1": "a", EVIL: "a"})[0] == pytest.approx(given["mine"]["value"][0], abs=0.05)
    printed = run(log, "--policy", f"{EVIL}={file}", *FEW).stdout
    assert f"│ {EVIL}" in printed


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("{file}|{file}", "two policies are called 'mine'"),
        ("logged={file}", "a printable name other than"),
        ("recommended={file}", "a printable name other than"),
        ("\x1b[31m={file}", "a printable name other than"),
        ("{folder}/none.csv", "there is no file"),
        ("x={folder}/none.csv", "there is no file"),
    ],
)
def test_policies_that_cannot_be_called_that_are_refused_before_the_work(log, tmp_path, policy, words):
    file = write_policy(tmp_path, {"s0": "a", "s1": "a", EVIL: "a"})
    options = [part for one in policy.split("|") for part in ("--policy", one.format(file=file, folder=tmp_path))]
    result = run(tmp_path / "no such log.csv", *options)
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)


def test_a_hostile_policy_file_is_refused_in_one_line(log, tmp_path):
    for actions, words in (
        ({"s0": "a", "s1": "<img src=x>", EVIL: "a"}, "<img src=x>"),
        ({"s0": "a", "s1": "a"}, "script"),
        ({"s0": "\x1b[2J", "s1": "a", EVIL: "a"}, r"\x1b[2J"),
    ):
        result = run(log, "--policy", write_policy(tmp_path, actions), *FEW)
        assert isinstance(result.exception, qp.InvalidInputError)
        message = str(result.exception)
        assert words in message
        assert "\n" not in message
        assert "\x1b" not in message


def test_every_method_answers_and_says_which_it_is(log):
    words = {"model": "each draw of them is solved", "q": "under a prior on Q itself", "bootstrap": "a bootstrap"}
    for method, sentence in words.items():
        answer = answer_of(log, "--method", method, *FEW)
        assert answer["settings"]["method"] == method
        assert any(sentence in line for line in answer["diagnostics"]["chosen"])
        assert (answer["policies"] is None) == (method == "q")
        assert answer["policy"]["s0"] == "b"
    printed = run(log, "--method", "q", *FEW).stdout
    assert "An episode that is decided best is worth" in printed
    assert "What policies are worth" not in printed
    assert "no models were drawn" in printed


def test_risk_and_caution_are_said_and_matter(log):
    answer = answer_of(log, "--risk", "cvar:0.1")
    assert answer["settings"]["risk"] == "cvar:0.1"
    printed = run(log, "--risk", "cvar:0.1", *FEW).stdout
    assert "chosen by its mean value over the worst 10% of" in printed
    careful = answer_of(log, "--cautious", "0.95")
    usual = qp.fit(shop()).chosen
    assert careful["settings"]["cautious"] == 0.95
    assert careful["policy"]["s0"] == careful["policy"]["s1"] == "b"
    # Both actions of the last state are as good: the usual one, the first of equally frequent ones, stays.
    assert careful["policy"][EVIL] == usual.actions[0] == "a"
    assert "at least 0.95" in run(log, "--cautious", "0.95", *FEW).stdout


def test_a_log_that_is_decided_best_already_is_told_so(tmp_path):
    rng = np.random.default_rng(0)
    rows = [("s", "a", 1.0 + float(rng.normal()), "end") for _ in range(60)]
    path = tmp_path / "log.csv"
    pd.DataFrame(rows, columns=COLUMNS).to_csv(path, index=False)
    printed = run(path, *FEW).stdout
    assert "The recommended policy is the logged one" in printed
    assert "There is nothing to change." in printed
    gain = answer_of(path)["policies"]["gain"]
    assert gain == {"value": [0.0, 0.0, 0.0], "prob_better": 0.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--risk", "worst"), 'risk must be "mean"'),
        (("--cautious", "1.5"), "cautious must lie in"),
        (("--method", "q", "--cautious", "0.9"), 'leave method="q" out'),
        (("--method", "model", "--noise", "student"), "leave one of them out"),
        (("--prior", "model:alike=2"), "alike must lie in"),
        (("--prior", "model:unlike=2"), "unlike"),
    ],
)
def test_options_that_do_not_go_together_are_refused(log, options, words):
    result = run(log, *options)
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)


def test_a_prior_on_the_model_is_given_by_its_name(log):
    answer = answer_of(log, "--prior", "model:alike=0.5,row_scale=2", *FEW)
    assert answer["settings"]["prior"] == {"name": "model", "reward_scale": 1.0, "row_scale": 2, "alike": 0.5}


def test_actions_that_were_tried_elsewhere_are_predicted_and_not_recommended(tmp_path):
    path = tmp_path / "log.csv"
    rows = shop()
    rows[~((rows["state"] == "s1") & (rows["action"] == "b"))].to_csv(path, index=False)
    answer = answer_of(path)
    untried = [(row["state"], row["action"]) for row in answer["rows"] if row["count"] == 0]
    assert untried == [("s1", "b")]
    assert answer["policy"]["s1"] == "a"
    assert "never: predicted" in run(path, *FEW).stdout
    seen = answer_of(path, "--actions", "seen")
    assert all(row["count"] for row in seen["rows"])
    assert "only action" in run(path, "--actions", "seen", *FEW).stdout


def test_an_update_keeps_method_risk_and_caution_and_refuses_others(log, tmp_path):
    out, more = tmp_path / "answer", tmp_path / "more.csv"
    shop(seed=1).to_csv(more, index=False)
    options = ("--method", "bootstrap", "--risk", "cvar:0.2", "--cautious", "0.9", "--actions", "seen")
    assert run(log, *options, *FEW, "--out", out).exit_code == 0
    for refused in (*zip(options[::2], options[1::2], strict=True), FEW):
        result = run(more, "--update", out, *refused)
        assert result.exit_code == 2
        assert f"{refused[0]} cannot change in an update" in result.output
    file = write_policy(tmp_path, {"s0": "a", "s1": "a", EVIL: "a"})
    assert run(more, "--update", out, "--policy", file).exit_code == 0
    settings = load_sums(out).settings
    kept = settings.method, settings.risk, settings.cautious, settings.actions, settings.particles
    assert kept == ("bootstrap", "cvar:0.2", 0.9, "seen", 1000)
    answer = json.loads((out / "fit.json").read_text())
    assert answer["settings"]["rows_read"] == 2 * len(shop())
    assert answer["settings"]["method"] == "bootstrap"
    assert set(answer["policies"]["given"]) == {"mine"}


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(log, tmp_path):
    file = write_policy(tmp_path, {"s0": "a", "s1": "a", EVIL: "a"})
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        assert run(log, "--policy", file, *FEW, "--seed", seed, "--out", tmp_path / name).exit_code == 0
    for stored in ("index.html", "rows.csv", "draws.npz", "sums.json"):
        one, two, three = ((tmp_path / name / stored).read_bytes() for name in ("one", "two", "three"))
        assert one == two
        assert one != three
    first, again = (json.loads((tmp_path / name / "fit.json").read_text()) for name in ("one", "two"))
    assert first == again


def test_a_page_that_is_written_again_is_the_same(log, tmp_path):
    out = tmp_path / "answer"
    file = write_policy(tmp_path, {"s0": "a", "s1": "a", EVIL: "a"})
    assert run(log, "--policy", file, *FEW, "--out", out).exit_code == 0
    before = (out / "index.html").read_bytes()
    assert CliRunner().invoke(cli, ["report", str(out)]).exit_code == 0
    assert (out / "index.html").read_bytes() == before


def test_words_for_numbers():
    assert rounded(290.0, 1234.5, 0.4) == ["1,234", "0"]
    assert rounded(2.9, -7.194, -0.001) == ["-7.19", "0.00"]
    assert rounded(0.0, 3.0000001) == ["3.0000"]
    assert rounded(0.0, 0.0) == ["0.00"]
    assert rounded(float("inf"), 1.0, -float("inf")) == ["1", "-inf"]
    assert rounded(3e-12, 2e-12) == ["2e-12"]
    assert [share_words(p) for p in (0.0, 0.004, 0.5, 0.995, 1.0)] == ["0.00", "< 0.01", "0.50", "> 0.99", "1.00"]


def test_the_verdict_follows_how_sure_the_gain_is():
    found = qp.fit(shop(), particles=2000)
    lines = {line.name: line for line in policy_lines(found.policies)}
    gain = lines["gain over logged"]
    assert verdict(found) == (
        f"The recommended policy gains {gain.value} over the logged one (90 % interval {gain.interval}); it is better "
        f"with probability {gain.prob_better}."
    )
    rng = np.random.default_rng(3)
    alike = [("s", action, float(rng.normal()), "end") for action in "ab" for _ in range(30)]
    unsure = qp.fit(pd.DataFrame(alike, columns=COLUMNS), particles=2000)
    assert unsure.policies.prob_better < 0.95
    assert "uncertain" in verdict(unsure) or "nothing" in verdict(unsure)
