"""Pages of the service: list of searches, live report, messages."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dashboards.report.html import package_file
from dashboards.report.live_page import live_page, message_page, searches_page
from dashboards.report.log_page import trials_page
from dashboards.report.page import report_page, report_without_scripts
from dashboards.search_rows import search_row
from dashboards.search_view import SearchView
from tests.dashboards import compared
from tests.dashboards.report.searches import BASELINE, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest
from tests.kit import TINY
from tests.trials.analysis.test_verdict import told
from trials.trial import FailureReason

HOSTILE = "<script>alert(1)</script>\x1b[2J"


def test_the_shell_brings_the_scripts_that_the_report_comes_without():
    shell, view = live_page("tiny-abcdef"), SearchView.of(a_search().record, START)
    report = report_without_scripts(view)
    assert all(package_file(name) in shell.text for name in ("page.js", "follow.js", "live.js"))
    assert "<script>" not in report.text
    assert "connect-src 'self'" in shell.policy
    assert "connect-src 'none'" in report.policy
    assert shell.policy.count("sha256-") == 5
    for page in (shell, report):
        assert page.policy in page.text.replace("&#39;", "'")
        for element in ("<nav ", "<main>", "<footer>", 'id="figures"'):
            assert len(re.findall(element, page.text)) == 1, f"live.js swaps {element}"


def test_names_and_words_of_others_stay_text():
    row = replace(search_row(a_search(name=HOSTILE).record, HOSTILE), stopped=HOSTILE, reason=HOSTILE)
    for page in (searches_page([row], START), message_page(HOSTILE, HOSTILE), live_page(HOSTILE)):
        assert "<script>alert" not in page.text
    assert "\x1b" not in message_page(HOSTILE, HOSTILE).text


def test_the_live_report_says_which_trial_runs_since_when_and_what_is_left_and_links_to_logs():
    search = a_search(3)
    name = search.start(replace(BASELINE, zero_stage=1))
    (attempt,) = search.record.in_flight
    view = SearchView.of(search.record, attempt.started_at + 72)
    live, file = report_without_scripts(view).text, report_page(view)
    since = 'running for <time data-passed="72.0">1:12</time> on node1 node2.'
    link = f'<a href="/searches/tiny-abcdef/logs/{name}">{name}'
    assert f"{link}.a1</a> {since}" in live
    assert live.count("/logs/") == 1 + len(search.record.trials), "the trial in flight, and each run in the table"
    assert f"{name}.a1 {since}" in file
    assert "/logs/" not in file
    assert re.search(r"[\d:]+ elapsed, up to [\d:]+ remaining\.", live)
    assert "Layouts: 4 of up to 20" in live
    search.end()
    assert "elapsed" not in report_without_scripts(SearchView.of(search.record, search.now)).text


def test_an_attempt_out_of_reach_says_on_the_page_since_when():
    search = SearchUnderTest()
    name = search.start(BASELINE)
    trial = search.record.trial(name)
    (attempt,) = trial.attempts
    lost = replace(trial, attempts=(replace(attempt, unknown_since=attempt.started_at + 60),))
    record = replace(search.record, trials=(lost,))
    text = report_page(SearchView.of(record, attempt.started_at + 260))
    assert ' on node1 node2, unreachable for <time data-passed="200.0">3:20</time>.' in text


def test_a_row_says_what_the_search_has_found_at_what_cost_and_why_it_ended():
    search = a_search(model=TINY.to_json())
    row = search_row(search.record, "smith")
    assert (row.state, row.is_ended, row.reason) == ("running", False, "")
    assert row.age(search.record.created_at + 7200) == "2 h"
    assert (row.num_layouts, row.max_layouts, row.tokens_per_sec) == (3, 20, "1,500")
    assert (row.best, row.node_hours, row.owner) == ("tp2 pp2 dp2 mb1 1f1b", "0.75", "smith")
    assert row.against_baseline[0] == "1.50x so far"
    assert row.model.endswith(" parameters")
    text = searches_page([row], START, num_older=7).text
    assert all(each in text for each in ("3 of up to 20", "1.50x", "1,500", "0.75", "smith", "<progress", "7 older"))
    assert "None" not in text
    failed = SearchUnderTest(spec(measure={"memory_limit_gib": 0.02}))
    for size in (1, 2):
        failed.fail(failed.start(replace(BASELINE, micro_batch_size=size)), FailureReason.GPU_OOM)
    failed.end("failed", "no_feasible_layout")
    assert search_row(failed.record, "").reason == "2 of 2 out of memory, limit 0.02 GiB"
    search = a_search()
    search.end(end_reason="submission_rejected")
    text = searches_page([search_row(search.record, "")], START).text
    assert '<span class="state state-refused">' in text
    assert "the cluster rejected a job" in text
    assert "<progress" not in text


def test_the_list_can_be_cut_to_the_searches_that_failed_or_have_lost_their_driver():
    failed, stopped = a_search(), replace(search_row(a_search().record, ""), search_id="left-abcdef", stopped="no code")
    failed.end("failed", "no_feasible_layout")
    rows = [search_row(failed.record, ""), stopped, replace(stopped, search_id="fine-abcdef", stopped=None)]
    shown = {only: searches_page(rows, START, shows_failed_only=only).text for only in (False, True)}
    named = {only: re.findall(r'href="/searches/([a-z]+)', text) for only, text in shown.items()}
    assert named == {False: ["tiny", "left", "fine"], True: ["tiny", "left"]}
    assert all('<a href="/?show=failed">Failed: 2</a>' in text for text in shown.values())


@pytest.mark.parametrize(
    ("story", "said"),
    [
        ("", ("", "")),
        ("baseline 1000", ("only the baseline", "")),
        ("baseline 1000, other 900", ("the baseline is fastest so far", "")),
        ("baseline 1000, other 1010", ("no clear winner so far", "1.01x (0.97\N{EN DASH}1.05)")),
    ],
)
def test_a_tie_and_a_baseline_that_is_best_are_no_speedup(story, said):
    search = told(story, spec=spec(baseline=compared.BASELINE.to_json(), global_batch_size=compared.BATCH))
    assert search_row(search.record, "").against_baseline == said


def test_layouts_that_differ_in_any_axis_have_names_of_their_own_in_the_list_and_on_the_pages_of_logs():
    search = SearchUnderTest(spec())
    for bucket in (25, 100):
        search.measure(search.start(replace(BASELINE, bucket_mib=bucket)), 1000.0 + bucket)
    names = re.findall(r'data-label="Layout"><code>([^<]*)', trials_page(search.record).text)
    assert len({*names}) == 2
    assert search_row(search.record, "").best in names
    assert "<main data-follows>" in trials_page(search.record).text
    search.end()
    assert "<main data-follows data-ended>" in trials_page(search.record).text
