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
    with open_page(page_file, "#states > tbody") as opened:
        yield opened


def test_it_loads_without_errors_or_outside_requests_and_runs_no_label(page):
    assert page.problems == []
    assert [url for url in page.requests_made if not url.startswith(("file:", "data:"))] == []
    assert page.title() == "What to do: table"
    assert page.locator("#states > tbody").count() == 2
    assert page.locator("#states tr.state button").all_inner_texts() == [EVIL, IMAGE]
    assert page.locator("img").count() == 4
    assert page.evaluate("() => [...document.images].every(image => image.naturalWidth > 0)")


def test_a_state_shows_its_actions_by_mouse_and_by_keyboard(page):
    button, actions = page.locator("#states tr.state button").first, page.locator("#of-1")
    assert not actions.is_visible()
    button.click()
    assert actions.is_visible()
    assert button.get_attribute("aria-expanded") == "true"
    assert actions.locator("tbody tr").count() == 3
    assert "end 100%" in actions.inner_text()
    button.press("Enter")
    assert not actions.is_visible()
    page.locator("#find").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "state"  # a heading, which sorts


def test_columns_sort_by_number_and_by_name(page):
    def column(index):
        return page.eval_on_selector_all("#states tr.state", f"rows => rows.map(row => row.cells[{index}].dataset.key)")

    page.click("#states thead th:nth-child(3)")
    shares = [float(key) for key in column(2)]
    assert shares == sorted(shares)
    assert page.locator("#states > thead th:nth-child(3)").get_attribute("aria-sort") == "ascending"
    page.locator("#states > thead th:nth-child(3) button").press("Enter")
    assert [float(key) for key in column(2)] == sorted(shares, reverse=True)
    page.click("#states thead th:nth-child(1)")
    assert column(0) == sorted(column(0))


def test_states_are_found_by_their_name_and_by_how_clear_they_are(page):
    def shown():
        return page.locator("#states > tbody:visible").count()

    page.fill("#find", "DOCUMENT.title='ran'</scr")
    assert shown() == 1
    assert page.locator("#shown").inner_text() == "1 of 2 states"
    page.fill("#find", "")
    clear = page.locator("#states > tbody[data-clear='1']").count()
    page.check("#unclear")
    assert shown() == 2 - clear
    page.uncheck("#unclear")
    assert shown() == 2


def test_one_action_a_state_is_bold_and_predicted_ones_are_marked(page):
    assert page.locator("#states tr.best").count() == 2
    assert page.locator("#states tr.untried").count() == 2
    assert page.locator("#states tr.untried .tag").all_text_contents() == ["never tried here: predicted"] * 2
    assert page.locator("#states tr.best .tag").count() == 0


def test_what_policies_are_worth_stands_first(page):
    assert page.locator("#policies tbody td:first-child").all_inner_texts() == [
        "recommended", "logged", "gain over logged", EVIL, "upper bound",
    ]  # fmt: skip
    assert "gains" in page.locator("p").first.inner_text()
    top = "document.querySelector('{}').getBoundingClientRect().top"
    assert page.evaluate(f"{top.format('#policies')} < {top.format('#states')}")


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_cut_off_at_any_width(page, width):
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("#states tr.state button").first.click()
    page.locator("#calibration summary").click()
    assert page.locator("table:visible").count() >= 3
    beyond = (
        "tables => tables.map(t => [t.scrollWidth - t.clientWidth, t.innerText])"  # a table that scrolls hides a column
    )
    assert [table for table in page.locator("table:visible").evaluate_all(beyond) if table[0] > 1] == []
    page.locator("#calibration summary").click()
    right = "elements => Math.max(...elements.map(e => e.getBoundingClientRect().right))"
    for cells in ("#states > thead th", "#policies th", "#policies td", "#of-1 td"):
        assert page.locator(f"{cells}:visible").evaluate_all(right) <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#states tr.state button").first.click()
    page.set_viewport_size(before)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_accessibility_audit_finds_nothing(page, scheme):
    from axe_core_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    page.locator("#states tr.state button").first.click()
    found = Axe().run(page)["violations"]
    page.locator("#states tr.state button").first.click()
    page.emulate_media(color_scheme="light")
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


def test_five_hundred_states_are_shown_quickly(tmp_path, open_page):
    rng = np.random.default_rng(1)
    rows = [
        (f"state {s}", f"action {a}", float(rng.normal()), f"state {(s + 1) % 500}" if rng.random() < 0.9 else "end")
        for s in range(500)
        for a in range(8)
        for _ in range(3)
    ]
    table = pd.DataFrame(rows, columns=["state", "action", "reward", "next_state"])
    path = write_fit_report(qp.fit(table, particles=1000, discount=0.9), tmp_path)
    with open_page(path, "#states > tbody:nth-of-type(500)") as page:
        took = page.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
        assert page.locator("#states > tbody").count() == 500
        assert page.locator("#states .inner tbody tr").count() == 4000
        assert page.problems == []
        page.fill("#find", "state 499")
        assert page.locator("#states > tbody:visible").count() == 1
    assert took < 10_000.0  # about 0.4 s on a quiet machine


def test_grids_are_drawn_as_grids_and_other_labels_on_a_circle():
    grid = [f"({r}, {c})" for r in range(3) for c in range(2)]
    places = node_places([*grid, "goal"])
    assert places[grid.index("(2, 1)")] == (1.0, -2.0)
    assert places[6][1] < -2.0
    circle = node_places(["new", "worn", "bad"])
    assert len({round(x * x + y * y, 6) for x, y in circle.values()}) == 1


def test_how_often_such_intervals_were_right_is_a_click_away(page):
    table = page.locator("#calibration table")
    assert not table.is_visible()
    page.locator("#calibration summary").click()
    assert table.is_visible()
    marked = [row for row in table.locator("tbody tr").all_inner_texts() if row.startswith("→")]
    assert [row.split()[1] for row in marked] == ["5"]  # 12 readings a pair are more like 5 than like 30
    assert "12 readings" in page.locator("#calibration").inner_text()
    page.locator("#calibration summary").click()
