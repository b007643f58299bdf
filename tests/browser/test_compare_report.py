"""The page of a comparison in a real browser: it loads from disk alone, legends hide curves, columns sort."""

from __future__ import annotations

import pytest

import qposterior as qp
from qposterior.experiments.compare import read_comparison
from qposterior.report.compare_report import write_compare_report


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "sweep"
    qp.compare("deep-sea", agents=["r-max", "psrl", "random"], depths=[4, 6], seeds=3, episodes=60, out=out, workers=1)
    return write_compare_report(read_comparison(out))


@pytest.fixture(scope="module")
def page(page_file, open_page):
    with open_page(page_file, ".js-plotly-plot .legend .traces") as opened:
        yield opened


def test_the_page_and_its_figures_are_written(page_file):
    folder = page_file.parent
    for name in ("regret", "learning_time"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    first = page_file.read_bytes()
    assert write_compare_report(read_comparison(folder)) == page_file
    assert page_file.read_bytes() == first
    assert first.count(b"<a download=") == 2


def test_it_loads_without_errors_or_outside_requests(page):
    assert page.problems == []
    assert [url for url in page.requests_made if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.locator(".js-plotly-plot").count() == 2
    assert page.locator(".scatterlayer .trace").count() > 0


def test_a_click_on_a_legend_entry_hides_its_curve(page):
    plot = page.locator(".js-plotly-plot").first
    shown = "plot => plot.data.filter(trace => trace.visible !== 'legendonly').length"
    before = plot.evaluate(shown)
    plot.locator(".legendtoggle").first.click()
    page.wait_for_timeout(800)  # plotly waits for a double click
    assert plot.evaluate(shown) < before


def test_columns_sort_up_and_down(page):
    def column(index):
        return page.eval_on_selector_all(
            "#results tbody tr", f"rows => rows.map(row => Number(row.cells[{index}].dataset.key))"
        )

    page.click("#results th:nth-child(5)")
    assert column(4) == sorted(column(4))
    page.click("#results th:nth-child(5)")
    assert column(4) == sorted(column(4), reverse=True)


def test_the_table_of_who_learns_first_is_there(page):
    assert page.locator("#beats tbody tr").count() == 3
