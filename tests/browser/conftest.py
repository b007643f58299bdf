"""A page opened from disk in Debian's Chromium, with everything it complained of and asked for."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        give_up = pytest.fail if os.environ.get("QPOSTERIOR_BROWSER") == "required" else pytest.skip
        give_up("NO BROWSER: install Debian's chromium to test the pages")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def open_page(browser):
    @contextmanager
    def opened(path, wait_for):
        page = browser.new_page()
        page.problems, page.requests_made = [], []
        page.on("console", lambda m: page.problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.requests_made.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector(wait_for)
        yield page
        page.close()

    return opened
