"""Pages of the service in a real Chromium: readable in both schemes and on a phone, and named for screen readers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from dashboards.access.auth import AuthPolicy
from dashboards.report.interface_page import interface_page
from dashboards.report.live_page import message_page, searches_page
from dashboards.report.log_page import LiveLog, log_page
from dashboards.report.search_rows import search_row
from orchestrator.service.api import make_app
from tests.dashboards.report.searches import a_search
from tests.dashboards.searches import START
from tests.sources import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

CONTRAST = (ROOT / "tests" / "dashboards" / "report" / "contrast.js").read_text()
SMALL = "[...document.querySelectorAll('nav a, main a, button')].filter(e => e.getBoundingClientRect().height < 24)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> list[str]:
    """Addresses of a list with every state, a log, the interface and a message."""
    search = a_search()
    running, trial = search.record, search.record.trials[-1]
    search.end()
    rows = [search_row(record, "smith") for record in (running, search.record)]
    rows.append(replace(rows[0], search_id="stopped-abcdef", stopped="its code has changed"))
    log = LiveLog(
        running, trial, trial.attempts[-1], 0, tuple(range(9)), "a line that is much longer than a phone is wide " * 9
    )
    service = make_app(cast(Any, None), AuthPolicy())
    made = {
        "list": searches_page(rows, START, num_older=3),
        "log": log_page(log),
        "interface": interface_page(TestClient(service).get("/openapi.json").json()),
        "message": message_page("Not found", "this service has no such page", leads_home=True),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, page in made.items():
        (folder / f"{name}.html").write_text(page.text, encoding="utf-8")
    return [(folder / f"{name}.html").as_uri() for name in made]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.walks)])
def test_every_text_can_be_read_and_nothing_is_wider_than_a_phone(tab, pages, scheme):
    for address in pages:
        for width in (1440, 390):
            tab.look(width=width, scheme=scheme)
            tab.open(address)
            assert tab.ask("document.documentElement.scrollWidth") == width, address
            assert tab.ask(CONTRAST) == [], address
            assert tab.violations() == [], address
            assert tab.ask(f"{SMALL}.map(e => e.outerHTML)") == [], address
