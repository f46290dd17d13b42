"""Pages of the service: list of searches, live report, messages."""

from __future__ import annotations

import re

from dashboards.report.data import report_data
from dashboards.report.html import package_file, plotly
from dashboards.report.live_page import SearchListRow, live_page, message_page, searches_page
from dashboards.report.page import report_page, report_without_scripts
from tests.dashboards.report.searches import a_search
from tests.dashboards.searches import START
from trials.ledger.events import EndReason, SearchState

HOSTILE = "<script>alert(1)</script>\x1b[2J"


def test_the_shell_brings_the_scripts_that_the_report_comes_without():
    shell, data = live_page("tiny-abcdef"), report_data(a_search().record, START)
    report = report_without_scripts(data)
    assert all(script in shell.text for script in (plotly(), package_file("page.js"), package_file("live.js")))
    assert "<script>" not in report.text
    assert "connect-src 'self'" in shell.policy
    assert "connect-src 'none'" in report.policy
    assert shell.policy.count("sha256-") == 3
    for page in (shell, report):
        assert page.policy in page.text.replace("&#39;", "'")


def test_what_is_taken_into_the_shell_is_there_in_both():
    """live.js swaps the elements by these names."""
    shell = live_page("tiny-abcdef").text
    report = report_without_scripts(report_data(a_search().record, START)).text
    for page in (shell.replace(plotly(), ""), report):
        for element in ("<nav ", "<main>", "<footer>", 'id="figures"'):
            assert len(re.findall(element, page)) == 1, element
    assert 'id="line"' in shell


def test_a_report_says_how_it_is_renewed_while_its_search_runs():
    data = report_data(a_search().record, START)
    assert "the file is rewritten while the search runs" in report_page(data)
    assert "this page is updated while the search runs" in report_without_scripts(data).text


def test_names_and_words_of_others_stay_text():
    line = SearchListRow("tiny-abcdef", SearchState.COMPLETED, EndReason.MAX_TRIALS, 3, HOSTILE)
    for page in (searches_page([line]), message_page(HOSTILE, HOSTILE), live_page(HOSTILE)):
        assert "<script>alert" not in page.text
    assert "\x1b" not in message_page(HOSTILE, HOSTILE).text


def test_the_list_says_why_a_search_ended():
    lines = [SearchListRow("b-abcdef", SearchState.RUNNING, None, 1, None)]
    lines += [SearchListRow("a-abcdef", SearchState.COMPLETED, EndReason.BUDGET, 3, "t0001")]
    text = searches_page(lines).text
    assert text.index('href="/searches/b-abcdef"') < text.index('href="/searches/a-abcdef"')
    assert "reached its budget of node-hours" in text
    assert ">t0001<" in text
    assert "None" not in text


def test_a_search_that_the_cluster_refused_is_not_called_completed():
    refused = SearchListRow("a-abcdef", SearchState.COMPLETED, EndReason.SUBMISSION_REJECTED, 3, "t0001")
    text = searches_page([refused]).text
    assert '<span class="state state-refused">refused</span>' in text
    assert "the cluster rejected a job" in text


def test_words_are_whole_sentences_with_a_way_on():
    page = message_page("Nothing", "there is no search", None, "One of: a-bcdefg.", leads_home=True).text
    assert "There is no search.</p>" in page
    assert "One of: a-bcdefg.</p>" in page
    assert '<a href="/">' in page
    assert 'http-equiv="refresh"' not in page
