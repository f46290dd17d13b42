"""Report in a real Chromium: drawn, sorted, printed, dark, on a phone, and for screen readers."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path

import pytest

from dashboards.report.data import report_data
from dashboards.report.page import report_page
from tests.dashboards.report.searches import STATES, a_full_search
from tests.dashboards.searches import START

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

FIGURES = "[...document.querySelectorAll('.plot')]"
ALL_DRAWN = f"{FIGURES}.every(place => place.querySelector('svg.main-svg'))"
LAYOUTS = "[...document.querySelectorAll('#table > tbody:not([hidden])')].map(body => body.dataset.layout)"
TICKS = "getComputedStyle(document.querySelector('.main-svg .xtick text')).fill"
MUTED = "getComputedStyle(document.querySelector('nav a')).color"
LIGHT_MUTED = "rgb(92, 103, 115)"
TALL = 9000
"""A window in which every figure is looked at, so that every one is drawn."""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_page(report_data(a_full_search().record, START + 3600)), encoding="utf-8")
    return file.as_uri()


@pytest.mark.security("reports")
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.walks)])
def test_every_figure_is_drawn_in_its_colours_without_a_word_to_the_console_or_the_network(tab, address, scheme):
    tab.look(height=TALL, scheme=scheme)
    tab.open(address)
    tab.until(ALL_DRAWN)
    assert tab.ask(f"{FIGURES}.length") == 10
    assert tab.complaints() == []
    assert tab.requests() == [address]
    assert "<img src=x onerror=alert(2)>" in tab.ask("document.querySelector('tr[data-trial=t0003] pre').textContent")
    assert tab.ask(Path(__file__).with_name("contrast.js").read_text()) == []
    tab.look(height=TALL, scheme={"light": "dark", "dark": "light"}[scheme])
    tab.until(f"{TICKS} === {MUTED}")


def test_the_table_is_sorted_by_mouse_and_keyboard(tab, address):
    tab.look()
    tab.open(address)
    fastest_first = tab.ask(LAYOUTS)
    speed = "#table th:nth-child(2) button"
    assert fastest_first[0] == "t0004"
    assert tab.ask(f"document.querySelector('{speed}').closest('th').ariaSort") == "descending"
    tab.click(speed)
    assert tab.ask(f"document.querySelector('{speed}').closest('th').ariaSort") == "ascending"
    slowest_first = tab.ask(LAYOUTS)
    unmeasured = ["t0002", "t0003", "t0005"]
    assert fastest_first[-3:] == slowest_first[-3:] == unmeasured
    tab.press("Enter", 13, "\r")  # the button that was clicked has the focus
    assert tab.ask(LAYOUTS) == fastest_first
    tab.ask("document.querySelector('#table th:nth-child(5) button').focus()")
    tab.press(" ", 32, " ")
    assert tab.ask(LAYOUTS)[0] == "t0004"  # the shortest step
    assert tab.complaints() == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("out of memory", ["t0002"]),
        ("pp2", ["t0004"]),
        ("tensor 8 ck-full", ["t0009", "t0013", "t0017"]),
        ("micro-batch 2 tp1", ["t0010"]),
        ("tp", None),
        ("tp80", []),
        ("baseline", ["t0001"]),
        ("t0019", ["t0004"]),
    ],
)
def test_the_table_is_filtered_by_keys_labels_and_text(tab, address, words, found):
    tab.look()
    tab.open(address)
    every = tab.ask(LAYOUTS)
    tab.click("#filter")
    tab.call("Input.insertText", text=words)
    shown = every if found is None else found
    assert sorted(tab.ask(LAYOUTS)) == sorted(shown)
    assert tab.ask("document.getElementById('shown').textContent") == f"{len(shown)} of {len(every)} layouts"


def test_a_layout_opens_for_its_runs_and_a_run_for_its_log(tab, address):
    tab.look()
    tab.open(address)
    runs, log = (f"document.querySelector('tr[data-trial=t0002]{of}').checkVisibility()" for of in ("", " pre"))
    assert not tab.ask(runs)
    tab.click("tbody[data-layout=t0002] .opener")
    assert tab.ask(runs)
    assert not tab.ask(log)
    tab.click("tr[data-trial=t0002] summary")
    assert tab.ask(log)
    tab.press("Enter", 13, "\r")
    assert not tab.ask(log)
    assert tab.complaints() == []


def test_a_screen_reader_hears_that_a_command_was_copied(tab, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(report_page(report_data(STATES["all_failed"]().record, START)), encoding="utf-8")
    tab.look()
    tab.open(file.as_uri())
    tab.click(".copy")
    said = "document.querySelector('[role=status]#copied').textContent"
    tab.until(f"{said}.endsWith(' the command') || {said}.endsWith('the command, to be copied by hand')")
    tab.until(f"{said} === '' && document.querySelector('.copy').textContent === 'Copy'")


@pytest.mark.walks
def test_on_a_phone_nothing_is_wider_than_the_page_and_what_is_touched_is_no_smaller_than_a_finger(tab, address):
    tab.look(width=390, height=2 * TALL)
    tab.open(address)
    tab.until(ALL_DRAWN)
    assert tab.ask("document.documentElement.scrollWidth") == 390
    # The table and the parallel coordinates scroll sideways in frames of their own.
    wider = "e.getBoundingClientRect().right > 391 && !e.closest('.scroll, .plot')"
    assert (
        tab.ask(f"[...document.querySelectorAll('main *')].filter(e => {wider}).map(e => e.outerHTML.slice(0, 99))")
        == []
    )
    small = "e.checkVisibility() && e.getBoundingClientRect().height < 24"
    touched = "[...document.querySelectorAll('nav a, button, summary')]"
    assert tab.ask(f"{touched}.filter(e => {small}).map(e => e.outerHTML.slice(0, 99))") == []


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
    tab.look(height=600, scheme="dark", media="print")
    for selector in ("nav", ".skip", ".tools"):
        assert tab.ask(f"getComputedStyle(document.querySelector('{selector}')).display") == "none", selector
    assert tab.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.ask("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert tab.ask("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    tab.ask("document.querySelector('figure').insertAdjacentHTML('beforeend', '<i class=line>of a text of plotly</i>')")
    assert tab.ask("document.querySelector('figure .line').checkVisibility()")
    tab.look(width=720, height=600, media="print")  # US Letter without its margins
    assert tab.ask("document.querySelector('#table').getBoundingClientRect().right <= innerWidth")


def test_a_picture_of_the_whole_page_has_every_figure_without_scrolling(tab, address):
    tab.look(height=600)
    tab.open(address)
    tab.until(ALL_DRAWN)
    assert tab.ask("scrollY") == 0


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.walks)])
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.walks)])
@pytest.mark.parametrize(
    "search", [a_full_search, *(pytest.param(search, marks=pytest.mark.walks) for search in STATES.values())]
)
def test_axe_finds_no_violation(tab, tmp_path, search, scheme, width):
    file = tmp_path / "report.html"
    file.write_text(report_page(report_data(search().record, START + 3600)), encoding="utf-8")
    tab.look(width=width, scheme=scheme)
    tab.open(file.as_uri())
    tab.until(ALL_DRAWN)
    assert tab.violations() == []


@pytest.mark.parametrize("width", [1440, 390])
def test_the_layout_s_name_stays_in_sight_while_the_table_scrolls_sideways(tab, address, width):
    tab.look(width=width)
    tab.open(address)
    moved = """(() => {
        const frame = document.querySelector(".scroll");
        frame.scrollLeft = 1e6;
        const cells = [".scroll thead th", "#table > tbody th"].map((name) => document.querySelector(name));
        return [frame.scrollLeft > 0, ...cells.map((cell) => cell.getBoundingClientRect().left >= 0),
            document.querySelector("#table > tbody th").getBoundingClientRect().width < frame.clientWidth / 2];
    })()"""
    assert tab.ask(moved) == [True] * 4


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
    heads = [node.name for node in nodes if node.role == "columnheader"]
    assert {"layout", "state", "tokens/s"} <= set(heads)
    assert [node.name for node in nodes if node.role == "rowheader"][:2] == [
        "tp2 pp2 dp2 mb1 z0 1f1b best",
        "tp2 pp1 dp4 mb1 z1 tie",
    ]
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
