"""Pages of measured results say which sources they were made from, and one that is out of date is listed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import calibration_summary

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "stale_pages.py"
specification = importlib.util.spec_from_file_location("stale_pages", SCRIPT)
stale_pages = importlib.util.module_from_spec(specification)
specification.loader.exec_module(stale_pages)


def test_every_page_of_results_carries_the_hash_of_its_sources():
    measured = {page.name for page in (ROOT / "docs").glob("*.md") if "\nMade at commit " in page.read_text()}
    assert measured == set(stale_pages.SOURCES)
    for name, sources in stale_pages.SOURCES.items():
        found = stale_pages.LINE.search((ROOT / "docs" / name).read_text())
        assert found, name
        assert tuple(found["names"].split()) == sources


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the sources, in which files may be changed."""
    for path in (ROOT / "src").rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(stale_pages, "ROOT", tmp_path)
    return tmp_path / stale_pages.PACKAGE


@pytest.mark.parametrize("page", stale_pages.SOURCES)
def test_a_page_is_stale_once_a_source_that_it_depends_on_has_changed(page, package):
    text = f"# Page\n\nMade at commit 0000000.\n\n{stale_pages.source_line(page)}"
    assert not stale_pages.is_stale(text, page)
    (package / "report" / "page.py").write_text("pass")  # no number depends on it
    assert not stale_pages.is_stale(text, page)
    (package / "model" / "kernels" / "more.py").write_text("")
    assert stale_pages.is_stale(text, page)
    (package / "model" / "kernels" / "more.py").unlink()
    assert not stale_pages.is_stale(text, page)
    (package / "world" / "solve.py").write_bytes((package / "world" / "solve.py").read_bytes() + b"\n")
    assert stale_pages.is_stale(text, page)


def test_the_page_of_the_figures_alone_is_stale_once_a_figure_has_changed(package):
    lines = {page: stale_pages.source_line(page) for page in stale_pages.SOURCES}
    (package.parent / "qposterior_paper" / "more.py").write_text("")
    assert [page for page, line in lines.items() if stale_pages.is_stale(line, page)] == ["paper.md"]


def test_figures_count_wherever_a_commit_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr(stale_pages, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    commits, figures = [], tmp_path / "src" / "qposterior" / "paper"
    for apart in (False, True):
        figures.mkdir(parents=True, exist_ok=True)
        if apart:
            figures = figures.rename(tmp_path / "src" / "qposterior_paper")
        (figures / "bandit.py").write_text("pass\n")
        subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Figures"], cwd=tmp_path, check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True)
        commits.append(head.stdout.strip())
    for commit in (*commits, None):
        assert stale_pages.read_sources(["paper"], commit) == {"paper/bandit.py": b"pass\n"}


def test_a_page_without_a_hash_or_of_several_sources_is_stale():
    line = stale_pages.source_line("agents.md")
    assert stale_pages.is_stale("Made at commit 0000000.\n", "agents.md")
    assert stale_pages.is_stale(line.replace(").", ", 0123456789ab)."), "agents.md")


@pytest.fixture
def result_page(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    module = importlib.import_module("result_page")
    monkeypatch.setattr(module, "PROVENANCE", "Made at commit 3333333, on a machine.\n")
    monkeypatch.setattr(module, "source_line", lambda page, commits: f"Sources: {page} (sha256 {sorted(commits)}).\n")
    return module


def test_a_section_made_again_leaves_the_others_and_the_page_names_the_commits_of_all(result_page, tmp_path):
    page = tmp_path / "agents.md"
    old = "Sources: world (sha256 0123456789ab).\n"
    top = "# Agents\n\nWords, with ## in them.\n\n\nMade at commit 1111111, on a machine.\n\n"
    first, last = "\n## One\n\n| a |\n", "\n## Three\n\nMade at commit 2222222 with changes, here.\n\n| c |\n"
    page.write_text(top + old + first + "\n## Two\n\n| b |\n" + last)
    result_page.replace_sections(page, [("Two", "| new |\n")])
    sources = "Sources: agents.md (sha256 ['1111111', '2222222 with changes', '3333333']).\n"
    new = "\n## Two\n\nMade at commit 3333333, on a machine.\n\n| new |\n"
    assert page.read_text() == top + sources + first + new + last
    with pytest.raises(SystemExit, match="no section 'Four'"):
        result_page.replace_sections(page, [("Four", "")])
    assert page.read_text() == top + sources + first + new + last


def test_the_commit_at_the_top_does_not_count_once_every_section_has_its_own(result_page, tmp_path):
    page = tmp_path / "agents.md"
    page.write_text("# A\n\nMade at commit 1111111.\n\nSources: world (sha256 0123456789ab).\n\n## One\n\n| a |\n")
    result_page.replace_sections(page, [("One", "| b |\n")])
    assert "(sha256 ['3333333'])" in page.read_text()


def test_the_script_lists_pages_and_never_fails():
    listed = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True).stdout
    assert all(line.startswith("stale: docs/") for line in listed.splitlines()) or "no page" in listed


def test_the_page_of_a_fit_says_what_was_counted_last():
    assert json.loads(calibration_summary.SUMMARY.read_text()) == calibration_summary.summary_of(
        calibration_summary.PAGE.read_text()
    )
    assert len(calibration_summary.summary_of(calibration_summary.PAGE.read_text())["readings"]) == 3
