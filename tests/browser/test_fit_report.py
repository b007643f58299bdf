"""The page of a fit in a real browser: it loads from disk alone, sorts, and runs nothing that the log contains."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import qposterior as qp
from qposterior.report.fit_figures import node_places
from qposterior.report.fit_report import write_fit_report

EVIL = "<script>document.title='ran'</script>"
IMAGE = "<img src=x onerror=\"document.title='ran'\">"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = [
        (state, action, float(rng.normal(mean, 1.0)), following)
        for state, action, mean, following in (
            (EVIL, "$x_$", 1.0, IMAGE),
            (EVIL, '"quoted"', 0.0, "end"),
            (IMAGE, "$x_$", -1.0, "end"),
            (IMAGE, "b", 2.0, "end"),
        )
        for _ in range(12)
    ]
    folder = tmp_path_factory.mktemp("fit")
    lines = [f'"{state}","{action}"\n' for state, action in ((EVIL, "$x_$"), (IMAGE.replace('"', '""'), "b"))]
    (folder / "mine.csv").write_text("".join(["state,action\n", *lines]))
    found = qp.fit(
        pd.DataFrame(rows, columns=["state", "action", "reward", "next_state"]),
        policies={EVIL: folder / "mine.csv"},
        seed=0,
    )
    return write_fit_report(found, folder)


@pytest.fixture(scope="module")
def page(page_file, open_page):
    with open_page(page_file, "#rows tbody tr") as opened:
        yield opened


def test_it_loads_without_errors_or_outside_requests_and_runs_no_label(page):
    assert page.problems == []
    assert [url for url in page.requests_made if not url.startswith(("file:", "data:"))] == []
    assert page.title() == "What to do: table"
    assert page.locator("#rows tbody tr").count() == 6
    assert page.locator("#rows td").first.inner_text() == EVIL
    assert page.locator("img").count() == 4
    assert page.evaluate("() => [...document.images].every(image => image.naturalWidth > 0)")


def test_columns_sort_by_number_and_by_name(page):
    def column(index):
        return page.eval_on_selector_all("#rows tbody tr", f"rows => rows.map(row => row.cells[{index}].dataset.key)")

    page.click("#rows th:nth-child(5)")
    values = [float(key) for key in column(4)]
    assert values == sorted(values)
    page.click("#rows th:nth-child(5)")
    assert [float(key) for key in column(4)] == sorted(values, reverse=True)
    page.click("#rows th:nth-child(2)")
    assert column(1) == sorted(column(1))


def test_one_action_a_state_is_bold_and_predicted_ones_are_marked(page):
    assert page.locator("#rows tr.best").count() == 2
    assert page.locator("#rows tr.untried").count() == 2
    assert page.locator("#rows tr.untried .tag").all_inner_texts() == ["never tried here: predicted"] * 2
    assert page.locator("#rows tr.best .tag").count() == 0


def test_what_policies_are_worth_stands_first(page):
    assert page.locator("#policies tbody td:first-child").all_inner_texts() == [
        "recommended", "logged", "gain over logged", EVIL, "upper bound",
    ]  # fmt: skip
    assert "gains" in page.locator("p").first.inner_text()
    top = "document.querySelector('{}').getBoundingClientRect().top"
    assert page.evaluate(f"{top.format('#policies')} < {top.format('#rows')}")


def test_a_narrow_screen_shows_p_best_without_scrolling(page):
    before = page.viewport_size
    page.set_viewport_size({"width": 375, "height": 800})
    right = "element => element.getBoundingClientRect().right"
    assert page.locator("#rows th:nth-child(3)").evaluate(right) <= 375.0
    assert page.locator("#policies th:nth-child(4)").evaluate(right) <= 375.0
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.set_viewport_size(before)


def test_grids_are_drawn_as_grids_and_other_labels_on_a_circle():
    grid = [f"({r}, {c})" for r in range(3) for c in range(2)]
    places = node_places([*grid, "goal"])
    assert places[grid.index("(2, 1)")] == (1.0, -2.0)
    assert places[6][1] < -2.0
    circle = node_places(["new", "worn", "bad"])
    assert len({round(x * x + y * y, 6) for x, y in circle.values()}) == 1
