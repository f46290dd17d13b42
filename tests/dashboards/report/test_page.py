"""Report page: self-contained, safe against hostile text, and accessible."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dashboards.report import page as pages
from dashboards.report.data import report_data
from dashboards.report.figures.registry import report_figures
from dashboards.report.html import embedded_json, plotly
from dashboards.report.page import notebook_card, report_page
from dashboards.report.sentences import describe_confidence
from dashboards.report.use_it import LaunchCommand, UseIt
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.dashboards.report.searches import BASELINE, FASTEST, HOSTILE, STATES, a_full_search, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest
from trials.ledger.events import EventKind
from trials.trial import FailureReason


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
    return report_page(report_data(search.record, START + after_s))


@pytest.fixture(scope="module", autouse=True)
def short_plotly():
    """Almost five megabytes take Python's parser a second each time; that they are inside is a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "plotly", lambda: "window.Plotly = {};")
        yield


@pytest.fixture(scope="module")
def text(short_plotly):
    search = a_search(14)
    search.fail(search.start(Layout(data_parallel=8)), FailureReason.SCRIPT_ERROR, excerpt=HOSTILE)
    search.end()
    return page_of(search)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.mark.security("reports")
def test_it_asks_for_nothing_from_elsewhere(page):
    loads = {"src", "srcset", "data", "poster", "action", "background", "manifest", "ping"}
    for tag, attributes in page.elements:
        assert not loads & set(attributes), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert attributes.get("href", "#").startswith("#")


@pytest.mark.security("reports")
def test_only_its_own_two_scripts_may_run(page):
    (policy,) = (a["content"] for a in page.all("meta", **{"http-equiv": "Content-Security-Policy"}))
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    allowed = re.search(r"script-src ([^;]*)", policy)[1].split()
    figures, *scripts = page.scripts
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert allowed == [f"'sha256-{digest}'" for digest in digests]
    assert len(scripts) == 2
    assert set(json.loads(figures)) >= {"progress", "memory", "heat", "parallel", "importance", "timeline"}


@pytest.mark.security("reports")
def test_a_hostile_excerpt_stays_text(text, page):
    assert not page.all("img")
    assert len(page.scripts) == 3
    assert "&lt;img src=x onerror=alert(2)&gt;" in text
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "{{ 7 * 7 }}" in page.text


@pytest.mark.security("reports")
def test_no_text_ends_the_block_of_figures():
    block = embedded_json({"x": "</script><!-- & '"})
    assert not set("<>&'") & set(block)
    assert json.loads(block) == {"x": "</script><!-- & '"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded_json({"y": float("nan")})


@pytest.mark.security("reports")
def test_a_hostile_name_or_detail_stays_text():
    search = SearchUnderTest(spec(name=HOSTILE, cluster={"gpus_per_node": 4, "accelerator": HOSTILE}))
    search.measure(search.start(BASELINE), 1000.0)
    page = Page(page_of(search))
    assert not page.all("img")
    assert len(page.scripts) == 3


def test_it_can_be_read_aloud(page):
    (html,) = page.all("html")
    assert html["lang"] == "en"
    for landmark in ("main", "header", "nav", "footer", "caption", "h1"):
        assert len(page.all(landmark)) == 1, landmark
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert attributes.get(name, ids[0]) in ids
    for plot in page.all("div", role="img"):
        assert plot["aria-label"]
        assert plot["aria-describedby"]
    assert page.all("a", **{"class": "skip"})[0]["href"] == "#answer"


def test_headings_leave_out_no_level(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_table_can_be_sorted_from_the_keyboard_by_numbers(page):
    (sorted_by,) = [a for a in page.all("th") if "aria-sort" in a]
    assert sorted_by["aria-sort"] == "descending"
    assert [a["data-column"] for a in page.all("button") if "data-down" in a] == ["1", "2"]
    speeds = [a["data-sort"] for a in page.all("td") if "data-sort" in a]
    assert "1500.0" in speeds


def test_the_answer_comes_first(text, page):
    assert page.text.index("faster than the baseline") < page.text.index("Measured speed")
    assert "<title>tiny: 1.50x faster than the baseline (1.44–1.56)</title>" in text


def test_a_tie_is_no_win_in_large_type():
    """The intervals reach one: a ratio in giant type would say more than is known."""
    search = SearchUnderTest(spec())
    for layout, speed in ((BASELINE, 1000.0), (FASTEST, 1080.0)):
        search.measure(search.start(layout), speed, tokens_per_sec_low=0.7 * speed, tokens_per_sec_high=1.3 * speed)
    page = Page(page_of(search))
    assert not page.all("span", **{"class": "ratio"})
    assert "No clear winner: 1.08x (0.58–2.01)" in page.text


def test_a_cancelled_search_says_so_in_its_headline_and_has_no_ratio_in_large_type():
    search = a_search()
    search.end("cancelled", "cancelled_by_user")
    page = Page(page_of(search))
    assert not page.all("span", **{"class": "ratio"})
    assert "Cancelled after 3 of 20 layouts. Fastest so far: 1.50x, not re-measured" in page.text
    assert "Fastest so far, t0003" in page.text


def test_a_search_that_the_cluster_refused_says_so_with_the_reason():
    search = a_search()
    search.event(EventKind.SEARCH_STATE, state="completed", end_reason="submission_rejected", detail="Invalid account")
    page = Page(page_of(search))
    (state,) = [a["class"] for a in page.all("span") if a.get("class", "").startswith("state ")]
    assert state == "state state-refused"
    assert "Refused: the cluster rejected a job: Invalid account." in page.text


def test_a_layout_has_one_number_over_all_its_runs():
    search = a_search()
    search.measure(search.start(FASTEST, "repeat"), 1300.0, peak_memory_gib=3.0)
    figures = report_figures(report_data(search.record, START + 3600))
    for key, pooled in (("memory", "1396.42"), ("heat", "1396.42"), ("parallel", "1.40k tokens/s")):
        drawn = json.dumps(figures[key].plot)
        assert pooled in drawn
        assert "1500" not in drawn
    assert "t0003 reached 1.40k tokens/s" in figures["progress"].summary


def test_other_answers_to_several_goals_stand_beside_the_best():
    search = SearchUnderTest(spec(objective=["tokens_per_sec", "node_hours_per_billion_tokens"]))
    for nodes, speed in ((1, 900.0), (2, 1500.0)):
        search.measure(search.start(replace(BASELINE, num_nodes=nodes)), speed)
    page = Page(page_of(search))
    assert "Alternatives to t0002" in page.text
    assert "n1 tp4 pp1 dp2 mb1: t0001 on 1 node" in page.text
    assert "t0001 on 1 node has 60 % of its tokens/s" in page.text
    assert len(page.all("figure", id="figure-nodes")) == 1


def test_the_recipe_can_be_used_from_the_first_screen():
    launches = (LaunchCommand("DeepSpeed", f"deepspeed {HOSTILE}", True),)
    use = UseIt("/runs/tiny/recipe", "sbatch launch.sbatch", launches, "parlay replay tiny")
    page = Page(report_page(report_data(a_full_search().record, START, use)))
    shown = page.text[: page.text.index("Measured speed")]
    assert shown.index("sbatch launch.sbatch") < shown.index(
        "Train with DeepSpeed (measured with it; this line was not"
    )
    assert all(words in shown for words in ("/runs/tiny/recipe", "parlay replay tiny", f"deepspeed {HOSTILE}"[:12]))
    assert not page.all("img")
    assert "Use it" not in Page(page_of(a_full_search())).text


def test_a_launch_command_says_what_it_needs():
    command = 'torchrun --node-rank "$NODE_RANK" train.py --config YOUR_CONFIG_WITH_THESE_KEYS.yaml'
    whole, plain = (LaunchCommand("nanotron", words, False, ("nanotron.yaml",)) for words in (command, "train.sh"))
    shown, other = (
        Page(
            report_page(
                report_data(a_full_search().record, START, UseIt("/recipe", None, (launch,), "parlay replay t"))
            )
        ).text
        for launch in (whole, plain)
    )
    assert "with NODE_RANK and MASTER_ADDR set:" in shown
    assert "Replace what begins with YOUR_. The layout is in recipe/nanotron.yaml." in shown
    assert not any(words in other for words in ("MASTER_ADDR set", "Replace what begins"))


def test_axis_values_that_no_test_trained_are_named_in_a_line():
    nanotron = {"engine": "nanotron", "attention_kernel": "flash", "precision": "bf16", "pipeline_schedule": "1f1b"}
    layout = Layout(pipeline_parallel=2, data_parallel=4, grad_accum_steps=2, **nanotron)
    search = SearchUnderTest(spec(baseline=None))
    search.measure(search.start(layout), 1000.0)
    (found,) = [words for words in describe_confidence(report_data(search.record, START)) if words.startswith("Verif")]
    assert len(found) < 250
    assert found.endswith(" more.")


def test_the_setup_is_told():
    shape = ModelShape(2, 64, 4, 4, 256, False, 128, 32, True, "learned", "layernorm").to_json()
    cluster = {"gpus_per_node": 4, "num_nodes": 2, "accelerator": {"name": "cpu"}}
    known = {"model": shape, "cluster": cluster, "trainer": {"kind": "parlay"}}
    text = Page(page_of(a_search(**known))).text
    for words in ("2 layers, hidden size 64", "8 sequences of 32 tokens, 256 tokens a step", "2 nodes of 4 cpu"):
        assert words in text
    assert "Parlay's own, engine torch" in text
    replayed = known | {"launcher": {"kind": "simulated", "table": "/data/llama.csv"}}
    page = Page(page_of(a_search(**replayed)))
    assert "Replayed from llama.csv. Parlay ran nothing in this search. t0003 is" in page.text
    assert page.all("span", **{"class": "state state-replayed"})
    assert "Based on" not in page.text


def test_plotly_is_inside_and_nothing_in_it_ends_its_script():
    script = plotly()
    assert "plotly.js v" in script[:200]
    assert "</script" not in script


@pytest.mark.parametrize("ends", [False, True])
def test_a_search_of_which_nothing_is_known_has_a_page(ends):
    search = SearchUnderTest({"name": "tiny"})
    if ends:
        search.end("cancelled", "cancelled_by_user")
    page = Page(page_of(search))
    assert not page.all("figure")
    assert not page.all("table")
    assert len(page.all("h1")) == 1


@pytest.mark.slow
def test_a_thousand_trials_make_a_light_page():
    search = SearchUnderTest(spec())
    trial = search.start(BASELINE)
    search.fail(trial, FailureReason.SCRIPT_ERROR, excerpt=HOSTILE * 1000)
    one = len(page_of(search))
    record = search.record
    many = replace(record, trials=tuple(replace(record.trials[0], trial=f"t{i:04d}") for i in range(1, 1001)))
    assert len(report_page(report_data(many, START + 3600))) - one < 2_000_000


def test_a_notebook_card_has_the_result_and_keeps_hostile_names_text():
    text = notebook_card(report_data(a_full_search().record, START))
    assert "1.49x faster than the baseline" in text
    assert "tensor 2" in text
    page = Page(text)
    assert page.scripts == []
    assert not any(tag == "img" for tag, _ in page.elements)


def test_a_notebook_card_of_a_new_search_says_that_nothing_was_measured():
    text = notebook_card(report_data(SearchUnderTest().record, START))
    assert "No layout has been measured yet" in text
    assert "running" in text


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((1,), "on 1 node, 1 leaf switch or block"),
        ((2,), "on 1 node, 2 leaf switches or blocks"),
        ((1, 2), "on 1 node, 1 or 2 leaf switches or blocks"),
    ],
)
def test_the_machine_says_below_how_many_leaf_switches_the_runs_of_the_best_lay(counts, words):
    data = report_data(a_search().record, START + 3600.0)
    assert words in report_page(replace(data, best=replace(data.best, leaf_counts=counts)))
    assert "leaf switch" not in report_page(data)


def test_numbers_have_three_significant_digits_on_the_first_screen_and_in_the_table():
    search = SearchUnderTest(spec())
    for layout, speed in ((BASELINE, 294080.4), (FASTEST, 419518.9)):
        search.measure(search.start(layout), speed, step_time_s=1048576 / speed, peak_memory_gib=59.0)
    page = Page(page_of(search))
    for words in ("420k", "411k–428k", "2.50 s", "59.0 GiB", "294k", "3.57 s"):
        assert words in page.text
    assert not re.search(r"\d{3},\d{3}", page.text)


def test_a_cancelled_search_has_one_number_of_layouts():
    text = Page(page_of(STATES["cancelled"]())).text
    assert "after 0 of 20 layouts" in text
    assert "Layouts: 0 of 20" in text


def test_a_search_of_which_every_layout_failed_names_a_trial_to_look_at():
    shown = Page(page_of(STATES["all_failed"]())).text
    assert "parlay logs t0003 shows what that trial wrote." in shown[: shown.index("Why nothing was measured")]


def test_the_ranks_are_placed_where_neither_step_time_nor_pipeline_is_drawn():
    search = SearchUnderTest(spec(baseline=None))
    search.measure(search.start(BASELINE), 1000.0)
    page = Page(page_of(search))
    assert "t0001 has no pipeline stages." in page.text
    assert len(page.all("figure", id="figure-placement")) == 1


def test_the_table_is_sorted_by_speed_whatever_was_measured_again():
    """A baseline that was measured again is a finalist, and none the faster for it."""
    search = a_search(14)
    search.measure(search.start(FASTEST, "repeat"), 1500.0)
    search.measure(search.start(BASELINE, "repeat"), 100.0)
    tried = report_data(search.record, START).tried
    speeds = [row.view.speed for row in tried if row.view.speed is not None]
    assert speeds == sorted(speeds, reverse=True)


def test_the_table_says_why_a_layout_is_above_the_best():
    search = SearchUnderTest(spec())
    search.measure(search.start(replace(BASELINE, tensor_parallel=8, data_parallel=1, grad_accum_steps=8)), 2000.0)
    for kind in ("search", "repeat"):
        search.measure(search.start(FASTEST, kind), 1500.0)
    why = "A layout above t0002 is tied with it, not measured again"
    assert why in Page(page_of(search)).text
    assert why not in Page(page_of(a_search())).text
