"""Pages of the service in a real browser: readable, and of a search up to date without moving the reader."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.access.ports import reserve_port
from dashboards.report.live_page import message_page, searches_page
from dashboards.report.log_page import LiveLog, log_page
from dashboards.search_rows import search_row
from orchestrator.service.client import service_address
from tests.chromium import Tab
from tests.dashboards.report.searches import a_search
from tests.dashboards.searches import START
from tests.orchestrator.service.services import SEARCH, ask, hold, open_gate, serving
from tests.sources import ROOT
from trials.files.folders import SearchFolder

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

LINE = "document.getElementById('line').dataset.state"
TOP = "document.getElementById('trials').getBoundingClientRect().top"
DRAWN = "document.querySelector('#figure-progress .plot svg.main-svg') !== null"
TIME = "document.querySelector('time[data-passed]').textContent"
IN_FLIGHT_S = f"{TIME}.split(':').reduce((seconds, part) => 60 * seconds + Number(part), 0)"
A_DAY_AHEAD = "{ const now = Date.now; Date.now = () => now() + 86400000; }"


def count(state: str) -> str:
    """Number of trials in this state, from the table."""
    cells = "[...document.querySelectorAll('#table tr[data-trial] .end')]"
    return f"{cells}.filter(cell => cell.textContent.startsWith('{state}')).length"


@pytest.fixture
def port() -> Iterator[int]:
    """A free port, free again after a restart of the service."""
    with reserve_port() as held:
        yield held.getsockname()[1]


def come_in(tab: Tab, home: Path) -> None:
    tab.call("Page.navigate", url=service_address(home, time.time()))
    tab.until("location.pathname === '/' && document.readyState === 'complete'")


def submitted(folder: Path, home: Path, about: dict[str, Any]) -> SearchFolder:
    body = {"yaml": SEARCH, "directory": str(folder)}
    token = (home / "service" / "token").read_text()
    status, answer = ask(about, "POST", "/v1/searches", body, authorization=f"Bearer {token}")
    assert status == 201, answer
    return SearchFolder(Path(answer["folder"]))


@pytest.mark.security("service")
def test_a_page_follows_its_search_over_a_restart_of_the_service_and_its_reader_stays_where_they_are(
    own_home, tmp_path, monkeypatch, port, tab
):
    hold(tmp_path, monkeypatch)
    tab.look(height=700)
    with serving(tmp_path, "--port", str(port), "--executor", "process") as (_, about):
        search = submitted(tmp_path, own_home, about)
        come_in(tab, own_home)
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=A_DAY_AHEAD)
        link = f"document.querySelector('a[href=\"/searches/{search.search_id}\"]')"
        tab.until(f"{link} !== null")
        tab.ask(f"{link}.click()")  # at once: the list is read anew from time to time
        # The baseline's trial has ended and the next one waits for this test: nothing changes until it goes on.
        tab.until(f"{LINE} === 'live' && {count('measured')} === 1 && {count('running')} === 1 && {DRAWN}")
        tab.until(f"{IN_FLIGHT_S} > {tab.ask(IN_FLIGHT_S)}")
        assert tab.ask(IN_FLIGHT_S) < 3600, "the browser's clock is a day ahead"
        go_to_the_table(tab)
    tab.until(f"{LINE} === 'lost'")
    assert tab.ask(count("measured")) == 1
    assert "service lost" in tab.ask("document.getElementById('line').textContent")
    with serving(tmp_path, "--port", str(port), "--executor", "process"):
        tab.until(f"{LINE} === 'live'")
        open_gate(tmp_path)
        tab.until(f"{LINE} === 'ended' && {count('measured')} === 4")
        assert tab.ask("document.querySelector('.state').textContent") == "completed"
        assert tab.ask("document.title").startswith("tiny: ")
    assert_nothing_moved(tab)
    assert_it_asked_this_service_alone(tab, port)


@pytest.mark.walks
@pytest.mark.security("service")
def test_a_search_is_cancelled_from_its_page_after_a_confirmation(own_home, tmp_path, monkeypatch, port, tab):
    hold(tmp_path, monkeypatch)
    tab.look(height=700)
    with serving(tmp_path, "--port", str(port), "--executor", "process") as (_, about):
        search = submitted(tmp_path, own_home, about)
        come_in(tab, own_home)
        here = f"http://127.0.0.1:{port}/searches/{search.search_id}"
        tab.call("Page.navigate", url=f"{here}/logs")
        link = "document.querySelector('a[href$=\"/logs/t0002\"]')"
        tab.until(f"{link} !== null")
        tab.ask(f"{link}.click()")
        a_log_is_followed(tab, search)
        tab.call("Page.navigate", url=here)
        tab.until(f"{LINE} === 'live' && {count('running')} === 1")
        key = tab.ask("localStorage.getItem('parlay-action-key')")
        press_cancel(tab, "not the key")
        tab.until(f"{SAID}.startsWith('this browser may read, but not change anything')")
        tab.click("dialog[open] [data-back]")
        press_cancel(tab, key)
        tab.until(f"{LINE} === 'ended' && document.querySelector('.state').textContent === 'cancelled'")
        assert tab.ask("document.querySelector('dialog[open]') === null")


SAID = "document.querySelector('dialog[open] [role=status]').textContent"


def press_cancel(tab: Tab, key: str) -> None:
    tab.ask(f"localStorage.setItem('parlay-action-key', {json.dumps(key)})")
    tab.click("[data-opens=cancel]")
    assert tab.ask("document.activeElement.textContent") == "Keep it running"
    tab.click("dialog[open] [data-confirm]")


def a_log_is_followed(tab: Tab, search: SearchFolder) -> None:
    """At its end while the reader is there, and nowhere else."""
    log = search.attempt("t0002", "a1").rank_log(0)
    tab.until(f"document.readyState === 'complete' && {LINE} === 'live'")
    with log.open("a") as stream:
        stream.write("line\n" * 500 + "five hundred\n")
    tab.until("document.getElementById('log')?.textContent.includes('five hundred')")
    place = "(log => [log.scrollTop, log.scrollHeight - log.clientHeight])(document.getElementById('log'))"
    top, most = tab.ask(place)
    assert top == pytest.approx(most, abs=2)
    assert most > 0
    tab.ask("document.getElementById('log').scrollTop = 50")
    with log.open("a") as stream:
        stream.write("one more\n")
    tab.until("document.getElementById('log').textContent.includes('one more')")
    assert tab.ask(place)[0] == pytest.approx(50, abs=2)


def go_to_the_table(tab: Tab) -> None:
    """The table at the top of the window, sorted backwards by its trials, with one word in its filter."""
    tab.look(height=340)  # less than the table of two trials and what is below it: it can be scrolled to the top
    for _ in range(2):
        tab.click("#table thead button")
    tab.click("#filter")
    tab.call("Input.insertText", text="t0")
    tab.ask("document.documentElement.style.scrollBehavior = 'auto'")
    tab.ask(f"scrollBy(0, {TOP} + 20)")
    assert tab.ask(TOP) == pytest.approx(-20, abs=2)
    head = "document.querySelector('th[aria-sort=descending]').textContent"
    tab.ask(
        f"window.before = {{ top: {TOP}, head: {head}, plot: document.querySelector('#figure-progress .plot') }}; 0"
    )


def assert_nothing_moved(tab: Tab) -> None:
    """The page did not reload either: `window` keeps its mark."""
    top, filtered, focus = tab.ask(f"[{TOP}, document.getElementById('filter').value, document.activeElement.id]")
    assert abs(top - tab.ask("window.before.top")) < 2
    assert (filtered, focus) == ("t0", "filter")
    assert tab.ask("document.querySelector('th[aria-sort=descending]').textContent") == tab.ask("window.before.head")
    names = tab.ask(
        "[...document.querySelectorAll('#table > tbody[data-layout] > tr:first-child > th')].map(e => e.dataset.sort)"
    )
    assert len(names) == 4
    assert names == sorted(names, reverse=True)
    assert tab.ask("window.before.plot === document.querySelector('#figure-progress .plot')")


def assert_it_asked_this_service_alone(tab: Tab, port: int) -> None:
    requests = tab.requests()
    assert requests
    assert not [url for url in requests if not url.startswith(f"http://127.0.0.1:{port}/")]
    thrown = [event["params"] for event in tab.events if event["method"] == "Runtime.exceptionThrown"]
    assert thrown == [], json.dumps(thrown)


CONTRAST = (ROOT / "tests" / "dashboards" / "report" / "contrast.js").read_text()
SMALL = "[...document.querySelectorAll('nav a, main a, button')].filter(e => e.getBoundingClientRect().height < 24)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> list[str]:
    """Addresses of a list with every state, a log and a message."""
    search = a_search()
    running, trial = search.record, search.record.trials[-1]
    search.end()
    rows = [search_row(record, "smith") for record in (running, search.record)]
    rows.append(replace(rows[0], search_id="stopped-abcdef", stopped="its code has changed"))
    log = LiveLog(
        running, trial, trial.attempts[-1], 0, tuple(range(9)), "a line that is much longer than a phone is wide " * 9
    )
    made = {
        "list": searches_page(rows, START, num_older=3),
        "log": log_page(log),
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
