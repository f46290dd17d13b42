"""Report in a real Chromium: drawn, sorted, printed, dark, on a phone, and for screen readers."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

import pytest

from dashboards.report.page import report_page
from dashboards.search_view import SearchView
from tests.dashboards.report.searches import STATES, a_full_search
from tests.dashboards.searches import START

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

FIGURES = "[...document.querySelectorAll('.plot')]"
ALL_DRAWN = f"{FIGURES}.every(place => place.querySelector('svg.main-svg'))"
LAYOUTS = "[...document.querySelectorAll('#table > tbody:not([hidden])')].map(body => body.dataset.layout)"
TICKS = "getComputedStyle(document.querySelector('.main-svg .xtick text')).fill"
MUTED = "getComputedStyle(document.querySelector('nav a')).color"
LIGHT_MUTED = "rgb(92, 103, 115)"
FILTERS = {
    "out of memory": ["t0002"],
    "tensor 8 ck-full": ["t0009", "t0013", "t0017"],
    "micro-batch 2 tp1": ["t0010"],
    "tp80": [],
    "baseline": ["t0001"],
    "t0019": ["t0004"],
}
"""Words in the table's filter, and the layouts that are left."""
TALL = 9000
"""A window in which every figure is looked at, so that every one is drawn."""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_page(SearchView.of(a_full_search().record, START + 3600)), encoding="utf-8")
    return file.as_uri()


@pytest.mark.security("reports")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), pytest.param("dark", 390, marks=pytest.mark.walks)])
@pytest.mark.parametrize(
    "search", [a_full_search, *(pytest.param(search, marks=pytest.mark.walks) for search in STATES.values())]
)
def test_every_figure_is_drawn_without_a_word_to_the_console_or_the_network(tab, tmp_path, search, scheme, width):
    file = tmp_path / "report.html"
    file.write_text(report_page(SearchView.of(search().record, START + 3600)), encoding="utf-8")
    tab.look(width=width, height=TALL, scheme=scheme)
    tab.open(file.as_uri())
    tab.until(ALL_DRAWN)
    assert tab.violations() == []
    assert tab.requests() == [file.as_uri()]
    assert tab.ask(Path(__file__).with_name("contrast.js").read_text()) == []
    if search is a_full_search:
        assert tab.ask(f"{FIGURES}.length") == 6
        hostile = tab.ask("document.querySelector('tr[data-trial=t0003] pre').textContent")
        assert "<img src=x onerror=alert(2)>" in hostile
        tab.look(width=width, height=TALL, scheme={"light": "dark", "dark": "light"}[scheme])
        tab.until(f"{TICKS} === {MUTED}")
    assert tab.complaints() == []


def test_the_table_is_sorted_filtered_and_opened_by_mouse_and_keyboard(tab, address):
    tab.look()
    tab.open(address)
    fastest_first = tab.ask(LAYOUTS)
    speed = "#table th:nth-child(2) button"
    tab.click(speed)
    assert tab.ask(f"document.querySelector('{speed}').closest('th').ariaSort") == "ascending"
    slowest_first = tab.ask(LAYOUTS)
    assert (fastest_first[0], slowest_first[-4]) == ("t0004", "t0004")
    assert fastest_first[-3:] == slowest_first[-3:] == ["t0002", "t0003", "t0005"], "not measured"
    tab.press("Enter", 13, "\r")  # the button that was clicked has the focus
    assert tab.ask(LAYOUTS) == fastest_first
    for words, found in FILTERS.items():
        tab.ask("document.getElementById('filter').value = ''")
        tab.click("#filter")
        tab.call("Input.insertText", text=words)
        assert sorted(tab.ask(LAYOUTS)) == found, words
        assert tab.ask("document.getElementById('shown').textContent") == f"{len(found)} of 18 layouts"
    tab.open(address)
    runs, log = (f"document.querySelector('tr[data-trial=t0002]{of}').checkVisibility()" for of in ("", " pre"))
    assert not tab.ask(runs)
    tab.click("tbody[data-layout=t0002] .opener")
    assert (tab.ask(runs), tab.ask(log)) == (True, False)
    tab.click("tr[data-trial=t0002] summary")
    assert tab.ask(log)
    tab.press("Enter", 13, "\r")
    assert not tab.ask(log)
    assert tab.complaints() == []


@pytest.mark.walks
def test_on_a_phone_nothing_is_wider_than_the_page_and_what_is_touched_is_no_smaller_than_a_finger(tab, address):
    tab.look(width=390, height=2 * TALL)
    tab.open(address)
    tab.until(ALL_DRAWN)
    assert tab.ask("document.documentElement.scrollWidth") == 390
    # The table and the parallel coordinates scroll sideways in frames of their own.
    wider = "e.getBoundingClientRect().right > 391 && !e.closest('.scroll, .plot')"
    small = "e.checkVisibility() && e.getBoundingClientRect().height < 24"
    for places, wrong in (("main *", wider), ("nav a, button, summary", small)):
        found = f"[...document.querySelectorAll('{places}')].filter(e => {wrong}).map(e => e.outerHTML.slice(0, 99))"
        assert tab.ask(found) == []


@pytest.mark.walks
def test_in_print_every_figure_is_drawn_on_white_and_what_only_works_on_a_screen_is_left_out(tab, address):
    tab.look(height=600, scheme="dark")
    tab.open(address)
    printed = tab.call("Page.printToPDF", pageRanges="1")
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert tab.ask(ALL_DRAWN)
    widths = f"{FIGURES}.map(place => place.querySelector('svg.main-svg').getBoundingClientRect().width)"
    drawn_at = tab.ask(widths)
    tab.ask("dispatchEvent(new Event('beforeprint'))")
    assert max(tab.ask(widths)) <= 720
    assert tab.ask(TICKS) == LIGHT_MUTED
    tab.ask("dispatchEvent(new Event('afterprint'))")
    tab.until(f"{TICKS} === {MUTED}")
    assert tab.ask(widths) == drawn_at
    tab.look(width=720, height=600, scheme="dark", media="print")  # US Letter without its margins
    for selector in ("nav", ".skip", ".tools"):
        assert tab.ask(f"getComputedStyle(document.querySelector('{selector}')).display") == "none", selector
    assert tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.ask("document.querySelector('#table').getBoundingClientRect().right <= innerWidth")


@pytest.mark.walks
def test_a_screen_reader_is_told_what_each_figure_shows_and_what_each_cell_is(tab, address):
    tab.look()
    tab.open(address)
    tab.call("Accessibility.enable")
    nodes = [Node(raw) for raw in tab.call("Accessibility.getFullAXTree")["nodes"] if not raw["ignored"]]
    images = [node for node in nodes if node.role in ("image", "img")]
    assert len(images) == tab.ask(f"{FIGURES}.length")
    assert all(image.name and len(image.description) > 20 for image in images)
    levels = [node.level for node in nodes if node.role == "heading"]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    (table,) = [node for node in nodes if node.role == "table"]
    assert "18 layouts in 21 trials" in table.name
    assert {"layout", "state", "tokens/s"} <= {node.name for node in nodes if node.role == "columnheader"}
    assert {"banner", "main", "navigation", "contentinfo"} <= {node.role for node in nodes}
    assert [node.role for node in nodes if node.is_focusable and not node.name] == []


class Node:
    """Accessibility node of one element."""

    def __init__(self, raw: dict):
        properties = {p["name"]: p["value"].get("value") for p in raw.get("properties", [])}
        self.role = raw["role"]["value"]
        self.name = raw.get("name", {}).get("value", "")
        self.description = raw.get("description", {}).get("value", "")
        self.level = properties.get("level")
        self.is_focusable = bool(properties.get("focusable"))
