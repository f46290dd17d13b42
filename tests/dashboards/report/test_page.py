"""Report page: self-contained, safe against hostile text, and accessible."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dashboards.report import html
from dashboards.report.html import embedded_json
from dashboards.report.page import notebook_card, report_page
from dashboards.report.use_it import LaunchCommand, UseIt
from dashboards.search_view import SearchView
from tests.dashboards import compared
from tests.dashboards.report.searches import BASELINE, FASTEST, HOSTILE, a_full_search, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest
from tests.trials.analysis.test_verdict import CANCELLED, FASTER, MAX, REFUSED, TIED, told
from trials.trial import FailureReason

SPEC = spec(baseline=compared.BASELINE.to_json(), global_batch_size=compared.BATCH)


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self._in = [], [], None
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")
        self._in = tag

    def handle_endtag(self, tag):
        self._in = None if tag in ("script", "style") else self._in

    def handle_data(self, data):
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.text += data

    def all(self, tag, **attributes):
        return [a for t, a in self.elements if t == tag and attributes.items() <= a.items()]


def page_of(search, after_s=3600.0):
    return report_page(SearchView.of(search.record, START + after_s))


@pytest.fixture(scope="module", autouse=True)
def short_plotly():
    """Two megabytes take Python's parser long each time; that they are inside is a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        whole = html._packed_plotly()
        patch.setattr(html, "_packed_plotly", lambda: "packed")
        yield whole


@pytest.fixture(scope="module")
def text(short_plotly):
    return page_of(a_full_search())


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.mark.security("reports")
def test_it_asks_for_nothing_from_elsewhere_and_only_its_own_two_scripts_may_run(page, short_plotly):
    loads = {"src", "srcset", "data", "poster", "action", "background", "manifest", "ping"}
    for tag, attributes in page.elements:
        assert not loads & set(attributes), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert attributes.get("href", "#").startswith("#")
    (policy,) = (a["content"] for a in page.all("meta", **{"http-equiv": "Content-Security-Policy"}))
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    allowed = re.search(r"script-src ([^;]*)", policy)[1].split()
    figures, packed, own = page.scripts
    scripts = (own, gzip.decompress(base64.b64decode(short_plotly)).decode())
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert (packed, allowed) == ("packed", [f"'sha256-{digest}'" for digest in digests])
    assert set(json.loads(figures)) >= {"progress", "memory", "heat", "importance"}


@pytest.mark.security("reports")
def test_a_hostile_name_excerpt_or_accelerator_stays_text(text, page):
    assert "&lt;img src=x onerror=alert(2)&gt;" in text
    excerpts = re.findall(r'<pre tabindex="0">.*?</pre>', text, re.DOTALL)
    assert len(excerpts) == 3
    assert not {"\x1b", "\x00"} & set("".join(excerpts))
    assert "{{ 7 * 7 }}" in page.text
    named = SearchUnderTest(spec(name=HOSTILE, cluster={"gpus_per_node": 4, "accelerator": HOSTILE}))
    named.measure(named.start(BASELINE), 1000.0)
    card = Page(notebook_card(SearchView.of(a_full_search().record, START)))
    for shown, num_scripts in ((page, 3), (Page(page_of(named)), 3), (card, 0)):
        assert (shown.all("img"), len(shown.scripts)) == ([], num_scripts)
    assert "1.49x faster than the baseline" in card.text


@pytest.mark.security("reports")
def test_no_text_ends_the_block_of_figures():
    block = embedded_json({"x": "</script><!-- & '"})
    assert not set("<>&'") & set(block)
    assert json.loads(block) == {"x": "</script><!-- & '"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded_json({"y": float("nan")})


def test_its_parts_are_there_once_and_in_order(page):
    for landmark in ("html", "main", "header", "nav", "footer", "caption", "h1"):
        assert len(page.all(landmark)) == 1, landmark
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert attributes.get(name, ids[0]) in ids
    assert all(plot["aria-label"] and plot["aria-describedby"] for plot in page.all("div", role="img"))
    assert page.text.index("faster than the baseline") < page.text.index("Measured speed")


@pytest.mark.parametrize(
    ("story", "ends", "state", "has_ratio", "words"),
    [
        (FASTER, MAX, "completed", True, "faster than the baseline"),
        (TIED, None, "running", False, "No clear winner so far: 1.08x (0.58–2.01)"),
        (FASTER, CANCELLED, "cancelled", False, "Fastest so far, t0002"),
        (FASTER, REFUSED, "refused", False, "Invalid account"),
    ],
)
def test_a_ratio_is_in_large_type_where_it_is_certain(story, ends, state, has_ratio, words):
    page = Page(page_of(told(story, ends, SPEC)))
    states = [a["class"] for a in page.all("span") if a.get("class", "").startswith("state ")]
    assert f"state state-{state}" in states
    assert bool(page.all("span", **{"class": "ratio"})) is has_ratio
    assert words in page.text


def test_the_recipe_can_be_used_from_the_first_screen_and_a_command_says_what_it_needs():
    command = f'torchrun --node-rank "$NODE_RANK" --config YOUR_CONFIG.yaml {HOSTILE}'
    launches = (LaunchCommand("nanotron", command, False, ("nanotron.yaml",)),)
    use = UseIt("/runs/tiny/recipe", "sbatch launch.sbatch", launches, "parlay replay tiny")
    page = Page(report_page(SearchView.of(a_full_search().record, START), use))
    shown = page.text[: page.text.index("Measured speed")]
    needs = ("NODE_RANK and MASTER_ADDR set", "Replace what begins with YOUR_", "recipe/nanotron.yaml")
    assert all(words in shown for words in ("/runs/tiny/recipe", "sbatch launch.sbatch", "parlay replay tiny", *needs))
    assert not page.all("img")
    assert "Use it" not in Page(page_of(a_full_search())).text


def test_a_search_of_which_nothing_is_known_has_a_page():
    search = SearchUnderTest({"name": "tiny"})
    search.end("cancelled", "cancelled_by_user")
    page = Page(page_of(search))
    assert (len(page.all("figure")), len(page.all("table")), len(page.all("h1"))) == (0, 0, 1)


@pytest.mark.slow
def test_a_thousand_trials_make_a_light_page():
    search = SearchUnderTest(spec())
    trial = search.start(BASELINE)
    search.fail(trial, FailureReason.SCRIPT_ERROR, excerpt=HOSTILE * 1000)
    one = len(page_of(search))
    record = search.record
    many = replace(record, trials=tuple(replace(record.trials[0], trial=f"t{i:04d}") for i in range(1, 1001)))
    assert len(report_page(SearchView.of(many, START + 3600))) - one < 2_000_000


def test_the_table_is_sorted_by_speed_whatever_was_measured_again_and_says_why_one_is_above_the_best():
    search = a_search(14)
    search.measure(search.start(FASTEST, "repeat"), 1500.0)
    search.measure(search.start(BASELINE, "repeat"), 100.0)
    view = SearchView.of(search.record, START)
    speeds = [view.speed(row) for row in view.rows if view.speed(row) is not None]
    assert len(speeds) == 14
    assert speeds == sorted(speeds, reverse=True)
    search.measure(search.start(replace(BASELINE, tensor_parallel=8, data_parallel=1, grad_accum_steps=8)), 2000.0)
    assert "A layout above t0003 is" in Page(page_of(search)).text
