"""The page of a fit whose states are bins, in a real browser: ranges, a map of two columns, and names that are data."""

from __future__ import annotations

import pytest

import qposterior as qp
from numeric_problems import PROBLEMS
from qposterior.logs.files import spreadsheet
from qposterior.report.fit_map import action_map
from qposterior.report.fit_report import write_fit_report

EVIL = "<img src=x onerror=document.title='a'>"
FORMULA = "=cmd|' /C calc'!A0"


@pytest.fixture(scope="module")
def fit():
    log = PROBLEMS["dosing"].log(0, 1200)
    names = {"level": EVIL, "severity": FORMULA}
    log = log.rename(columns=names | {f"next_{old}": f"next_{new}" for old, new in names.items()})
    asked = ",".join('"' + name.replace('"', '""') + '"' for name in (EVIL, FORMULA))
    return qp.fit(log, numeric=asked, discount=0.9, particles=600, seed=1)


@pytest.fixture(scope="module")
def page(fit, tmp_path_factory, open_page):
    with open_page(write_fit_report(fit, tmp_path_factory.mktemp("bins")), "#states > tbody") as opened:
        yield opened


def test_names_of_columns_are_text_wherever_they_stand(fit, page):
    assert page.problems == []
    assert [url for url in page.requests_made if not url.startswith(("file:", "data:"))] == []
    assert page.title() == "What to do: table"
    labels = page.locator("#states tr.state button").all_inner_texts()
    assert labels == [label for label in fit.log.bins.labels(fit.log.bins.shown) if label in fit.policy]
    assert any(EVIL in label for label in labels)
    assert any(FORMULA in label for label in labels)
    cells = [line.partition(",")[0] for line in spreadsheet(fit.table).splitlines()[1:]]
    assert not any(cell.strip('"').startswith("=") for cell in cells)


def test_the_map_has_a_rectangle_for_each_bin_in_the_colour_of_its_action(fit, page):
    drawn, wanted = page.locator("#map svg[role] rect"), action_map(fit)["rectangles"]
    assert drawn.count() == len(wanted) == len(fit.policy)
    assert page.locator("#map title").all_text_contents() == [one["words"] for one in wanted]
    assert drawn.evaluate_all("all => all.map(one => one.getAttribute('fill'))") == [one["colour"] for one in wanted]
    area = sum(one["width"] * one["height"] for one in wanted)
    assert area == pytest.approx(600.0 * 400.0)  # they tile the plane
    taken = {action for action, _ in action_map(fit)["actions"]}
    assert taken == set(fit.policy.values())
    assert all(action in page.locator("#map figcaption").inner_text() for action in taken)


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off_at_any_width(page, width):
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    right = "elements => Math.max(...elements.map(e => e.getBoundingClientRect().right))"
    assert page.locator("#map svg[role], #states > thead th:visible").evaluate_all(right) <= width
    page.set_viewport_size(before)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_accessibility_audit_finds_nothing_and_numbers_can_be_read(page, scheme):
    from axe_core_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    found = Axe().run(page)["violations"]
    inks = page.locator("#map text").evaluate_all("all => all.map(one => getComputedStyle(one).fill)")
    page.emulate_media(color_scheme="light")
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    assert set(inks) == {"rgb(34, 34, 34)" if scheme == "light" else "rgb(232, 232, 232)"}


def test_the_map_is_printed(page):
    page.emulate_media(media="print")
    assert page.locator("#map svg[role]").is_visible()
    assert not page.locator(".tools").is_visible()
    page.emulate_media(media="screen")


def test_what_bins_cost_is_said_on_the_page(fit, page):
    assert fit.aggregation.check().note in page.locator("body").inner_text()
