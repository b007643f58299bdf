"""`qposterior paper`: every figure is there, the same seed gives the same bytes, nothing is overwritten unasked."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from qposterior.cli.main import cli
from qposterior.environments.deep_sea import deep_sea_loops
from qposterior.environments.examples import two_state
from qposterior.errors import InvalidInputError
from qposterior_paper import bandit, five_state, learning_time, marginals, recurrent
from qposterior_paper.figure import Size, make_figure
from qposterior_paper.registry import FIGURES, find_figure

NAMES = [
    "contour",
    "marginals",
    "five-state",
    "recurrent",
    "exact",
    "sample-distribution",
    "adaptation",
    "regret",
    "particles",
    "learning-time",
    "priors",
    "misspecified",
    "discount",
    "policy-sampling",
    "dithering",
    "monitors",
    "diagrams",
    "bandit",
]
SHORT = ("diagrams", "five-state", "recurrent", "discount", "contour", "adaptation")


def run(*arguments):
    return CliRunner().invoke(cli, ["paper", *map(str, arguments)])


def test_every_figure_is_listed_with_what_the_paper_says():
    result = run("--list")
    assert result.exit_code == 0
    assert sorted(FIGURES) == sorted(NAMES)
    for name, item in FIGURES.items():
        assert name in result.output
        assert item.claim in result.output


def test_the_command_line_loads_no_figure_until_one_is_asked_for():
    code = (
        "import sys, qposterior.cli.main as line\n"
        "loaded = lambda: any(name.startswith('qposterior_paper') for name in sys.modules)\n"
        "print(loaded())\n"
        "line.cli.main(['paper', '--list'], standalone_mode=False)\n"
        "print(loaded())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert (printed.split()[0], printed.split()[-1]) == ("False", "True")


@pytest.mark.parametrize("name", SHORT)
def test_short_figures_hold_and_repeat_byte_for_byte(name, tmp_path):
    for folder in ("one", "two"):
        result = run(name, "--quick", "--out", tmp_path / folder)
        assert result.exit_code == 0, result.output
        assert "[holds]" in result.output
    for kind in ("png", "pdf", "csv"):
        one, two = (tmp_path / folder / f"{name}.{kind}" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
        assert one.stat().st_size > 100
    record = json.loads((tmp_path / "one" / f"{name}.json").read_text())
    assert record["quick"] is True
    assert record["holds"] is True
    assert record["found"]


def test_report_writes_a_page_of_the_figures_and_names_a_damaged_record(tmp_path):
    assert run("diagrams", "--quick", "--out", tmp_path).exit_code == 0
    result = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.strip() == str(tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    assert FIGURES["diagrams"].label in page
    assert page.count("data:image/png;base64,") == 1
    path = tmp_path / "diagrams.json"
    whole = path.read_text()
    for text in (whole.replace('"quick": true', '"quick": false'), "[]", '{"holds": []}', whole[:-20]):
        path.write_text(text)
        for again in (["report", str(tmp_path)], ["paper", "diagrams", "--quick", "--out", str(tmp_path)]):
            error = CliRunner().invoke(cli, again).exception
            assert isinstance(error, InvalidInputError)
            assert "diagrams.json" in str(error)


def test_report_says_what_a_folder_would_have_to_hold(tmp_path):
    error = CliRunner().invoke(cli, ["report", str(tmp_path)]).exception
    assert "holds no comparison, fit, exploration or figures" in str(error)


def test_a_long_figure_keeps_its_runs_and_goes_on_with_them(tmp_path):
    size = Size(folder=tmp_path, quick=True, workers=1)
    first = make_figure(find_figure("dithering"), size)
    store = tmp_path / "stores-quick" / "dithering" / "runs.sqlite"
    before = store.stat().st_mtime_ns
    again = make_figure(find_figure("dithering"), size, force=True)
    assert again["found"] == first["found"]
    assert store.stat().st_mtime_ns == before or again["seconds"] < max(first["seconds"], 1.0)


def test_what_was_made_is_kept_unless_forced(tmp_path):
    size = Size(folder=tmp_path, quick=True)
    made = make_figure(find_figure("diagrams"), size)
    stamp = (tmp_path / "diagrams.png").stat().st_mtime_ns
    assert make_figure(find_figure("diagrams"), size) == made
    assert (tmp_path / "diagrams.png").stat().st_mtime_ns == stamp
    with pytest.raises(InvalidInputError, match="--force"):
        make_figure(find_figure("diagrams"), Size(folder=tmp_path, quick=False))


def test_bad_usage_is_named():
    assert "name a figure" in run("--out", "x").output
    assert "--out" in run("contour").output
    result = run("contuor", "--out", "x")
    assert isinstance(result.exception, InvalidInputError)
    assert "did you mean 'contour'" in str(result.exception)


# -- the mathematics of the figures ------------------------------------------------------------------------------------


def test_the_lemma_is_the_gaussian_posterior_of_the_five_state_example():
    """θ | r is Gaussian: precision I/σ² + BᵀB/ε², solved here with no use of the lemma."""
    b = np.array([[1, 0, -1, 0], [0, 1, 0, -1], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=float)
    for k in (0.05, 0.5, 3.0):
        tolerance2 = k * five_state.SCALE**2
        covariance = np.linalg.inv(np.eye(4) / five_state.SCALE**2 + b.T @ b / tolerance2)
        mean = covariance @ b.T @ np.array(five_state.REWARDS) / tolerance2
        gap, sd = mean[0] - mean[1], np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
        from scipy.stats import norm

        np.testing.assert_allclose(five_state.lemma(np.array(k)), norm.cdf(gap / sd), rtol=1e-12)


def test_the_largest_probability_to_reach_a_state_by_brute_force():
    """On a deterministic problem u is 1 exactly where a path leads there."""
    mdp = deep_sea_loops(depth=3)
    for state in mdp.space.deciding_states.tolist():
        u = recurrent.reach_probability(mdp, state)
        for k in range(mdp.space.num_pairs):
            frontier, seen = [int(mdp.transitions.row(k)[0][0])], set()
            while frontier:
                here = frontier.pop()
                if here not in seen and here != state:
                    frontier += [
                        int(mdp.transitions.row(j)[0][0]) for j in np.flatnonzero(mdp.space.pair_state == here)
                    ]
                seen.add(here)
            assert u[k] == (state in seen)
    assert recurrent.recurrent_states(two_state()) == [0]


def test_the_half_line_ends_where_the_theorem_says():
    """Two states: u = (1, 0), O is θ₁ ≥ θ₂, and c_θ = θ₂ − θ₁."""
    mdp = two_state()
    u = recurrent.reach_probability(mdp, 0)
    assert u.tolist() == [1.0, 0.0]
    theta = np.array([3.0, 1.0])
    assert recurrent.is_inside(mdp, theta, u)
    assert not recurrent.is_inside(mdp, theta[::-1], u)
    assert recurrent.lower_end(mdp, theta, u) == -2.0


def test_closed_form_of_the_bandit_against_draws():
    count, mean = np.array([2.0, 5.0, 1.0]), np.array([0.4, 0.1, -0.3])
    centre, sd = bandit.conjugate(count, mean)
    draws = np.random.default_rng(0).normal(centre, sd, (400_000, 3))
    share = np.bincount(draws.argmax(axis=1), minlength=3) / 400_000
    found = bandit.closed_form(count, mean)
    assert found.sum() == pytest.approx(1.0, abs=1e-9)
    assert np.abs(found - share).max() < 5 * np.sqrt(0.25 / 400_000)  # five standard errors at most


def test_marginals_of_the_proper_region_are_those_of_truncated_draws():
    """Importance weights on prior draws, an answer that shares no code with the quadrature."""
    rng = np.random.default_rng(1)
    theta = rng.normal(0.0, marginals.SCALE, (2_000_000, 2))
    residual = (theta[:, 0] - theta.max(axis=1) + 1.0) ** 2 + (theta[:, 1] + 1.0) ** 2
    weight = np.exp(-0.5 * residual / 2.0**2)
    for proper in (False, True):
        w = weight * (theta[:, 0] < theta[:, 1]) if proper else weight
        w = w / w.sum()
        first, second, one, two = marginals.joint(2.0, proper=proper)
        se = 1.0 / np.sqrt(np.sum(w**2)) ** -1
        for grid, density, draws in ((first, one, theta[:, 0]), (second, two, theta[:, 1])):
            mean = np.trapezoid(grid * density, grid)
            spread = np.sqrt(w @ (draws - w @ draws) ** 2)
            assert abs(mean - w @ draws) < 5.0 * spread / se


def test_published_exponents_are_drawn_for_the_agents_that_have_them():
    labels = {spec.label or spec.agent for spec in learning_time.specs(Size(folder=None))}
    assert set(learning_time.PUBLISHED) <= labels


def test_the_propositions_on_priors_on_a_problem_and_that_a_wrong_q_is_noticed():
    from qposterior.environments.random_mdp import random_mdp
    from qposterior_paper import priors

    rng = np.random.default_rng(0)
    for seed in range(5):
        mdp = random_mdp(num_states=5, seed=seed)
        error, inside, converse = priors.check_strict(mdp, rng)
        assert (error < 1e-10, inside, converse) == (True, True, True)
        error, below = priors.check_loose(mdp, rng)
        assert (error < 1e-12, below) == (True, True)
        # A Q above c implies a reward above c somewhere: the states before the goal see it as it is.
        q = np.full(mdp.space.num_pairs, priors.BOUND + 1.0)
        assert priors.implied_rewards(mdp, q).max() > priors.BOUND


def test_the_best_fit_of_a_class_that_holds_the_truth_has_no_error():
    from qposterior.environments.deep_sea import deep_sea
    from qposterior.model.noise import Tolerance
    from qposterior.world.experience import Experience
    from qposterior.world.solve import solve
    from qposterior_paper import misspecified
    from targets import LinearQTarget

    sea = deep_sea(depth=4)
    everything = list(zip(sea.space.pair_state.tolist(), sea.space.pair_action.tolist(), strict=True))
    seen, truth = Experience.of_pairs(sea, everything), solve(sea).pair_q
    with_truth = np.column_stack([truth, np.ones(truth.size), misspecified.features(sea)[:, 2]])
    for matrix, solvable in ((with_truth, True), (misspecified.features(sea), False)):
        target = LinearQTarget(seen, matrix, misspecified.PRIOR, Tolerance(tolerance=1.0))
        fit, error = misspecified.best_fit(target, np.random.default_rng(0))
        assert (error < 1e-12) == solvable
        nearby = fit + 0.01 * np.random.default_rng(1).standard_normal((50, 3))
        assert np.all(np.sum(target.residuals(nearby) ** 2, axis=1) >= error - 1e-12)
