"""What is put into a page is data, never markup; what is missing is a dash, and a part that is missing an error."""

from __future__ import annotations

import jinja2
import pytest

from qposterior.experiments.compare import RunSpec, run_grid
from qposterior.report.compare_report import write_compare_report
from qposterior.report.page import dashed, page_templates, shortened

EVIL = "</script><script>document.title='ran'</script>"


def test_a_template_that_extends_the_base_escapes_what_is_put_into_it():
    page = page_templates().from_string(
        '{% extends "base.html" %}{% from "parts.html" import figures, table %}'
        "{% block body %}{{ table([words], [[words]], names=1) }}{{ figures([(words, picture)]) }}{% endblock %}"
    )
    text = page.render(title=EVIL, words=EVIL, picture=b"\x00\xff")
    assert EVIL not in text
    assert text.count("&lt;script&gt;") == 6  # two titles, a heading of a column, a cell, a figure and its caption
    assert "data:image/png;base64,AP8=" in text
    with pytest.raises(jinja2.UndefinedError, match="words"):
        page.render(title=EVIL, picture=b"")


def test_labels_of_agents_are_escaped_in_the_page_of_a_comparison(tmp_path):
    specs = [
        RunSpec(agent="random", environment="deep-sea", depth=depth, seed=seed, episodes=3, label=label)
        for depth in (3, 4)
        for seed in (0, 1)
        for label in (EVIL, None)
    ]
    page = write_compare_report(run_grid(specs, out=tmp_path / "sweep", workers=1)).read_text()
    assert EVIL not in page
    assert "<td>&lt;/script&gt;&lt;script&gt;document.title" in page


def test_numbers_that_are_not_there_are_dashes_and_long_labels_are_cut():
    assert [dashed(value, ".1f") for value in (None, float("nan"), float("inf"), 2, 0.25)] == [
        "–",
        "–",
        "–",
        "2.0",
        "0.2",
    ]
    assert dashed(3) == "3"
    assert [shortened("abcd", most) for most in (5, 4, 3)] == ["abcd", "abcd", "ab…"]
