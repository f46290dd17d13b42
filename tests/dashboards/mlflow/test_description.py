"""Description of a search's run: Markdown, with foreign text escaped."""

from __future__ import annotations

from dataclasses import replace

from dashboards.mlflow.description import search_description
from dashboards.report.data import report_data
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from trials.ledger.events import SearchRecord
from trials.trial import FailureReason

BASELINE = Layout()


def note(search: SearchRecord, **links: str) -> str:
    return search_description(report_data(search, search.created_at), links.get)


def compared() -> SearchUnderTest:
    """Search with a baseline, a faster layout, and one out of memory."""
    search = SearchUnderTest({"name": "tiny", "baseline": BASELINE.to_json(), "global_batch_size": 1})
    names = [search.start(replace(BASELINE, tensor_parallel=size)) for size in (1, 2, 4)]
    search.measure(names[0], 1000.0)
    search.measure(names[1], 1500.0)
    search.fail(names[2], FailureReason.GPU_OOM)
    search.best(names[1])
    search.end()
    return search


def test_the_winner_comes_first_with_its_speed_its_interval_and_how_much_faster_it_is():
    lines = note(compared().record).splitlines()
    times = "\N{MULTIPLICATION SIGN}"
    assert lines[0] == "**1.50x faster than the baseline (1.44–1.56)**"
    assert f"- best layout: t0002, tensor 2 {times} pipeline 1 {times} data 1, micro-batch 1" in lines
    assert "- tokens per second: 1,500, 95 % 1,470–1,530" in lines
    assert "- peak memory: 1.5 GiB of the fullest rank" in lines
    assert any(line.startswith(r"Completed: reached the limit of search.max\_trials") for line in lines)
    assert any("2 measured, 1 failed" in line for line in lines)


def test_the_best_layouts_stand_in_a_table_fastest_first_ten_at_most():
    search = SearchUnderTest()
    for size in range(1, 13):
        search.measure(search.start(replace(BASELINE, tensor_parallel=size)), 100.0 * size)
    text = note(search.record)
    assert "The first 10 of 12 measured layouts" in text
    rows = [line.split("&")[0] for line in text.splitlines() if line.startswith("| tp")]
    assert rows == [f"| tp{number} pp1 dp1 mb1" for number in range(12, 2, -1)]


def test_a_layout_that_was_measured_again_is_one_row_over_all_its_runs():
    search = compared()
    search.measure(search.start(search.record.trial("t0002").layout, "repeat"), 1400.0)
    rows = [line.split("&ensp; | ") for line in note(search.record).splitlines() if line.startswith("| tp")]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("| tp2 pp1 dp1 mb1", "1,449", "2&ensp; |"),
        ("| tp1 pp1 dp1 mb1", "1,000", "1&ensp; |"),
    ]


def test_a_layout_leads_to_the_run_of_its_best_trial_and_a_search_to_its_trials():
    search = compared().record
    data = report_data(search, search.created_at)
    assert "[All trials, the fastest first](#/view)" in search_description(data, trials="#/view")
    assert "| [tp2 pp1 dp1 mb1](#/experiments/1/runs/2)&ensp; | 1,500&ensp; |" in note(
        compared().record, t0002="#/experiments/1/runs/2"
    )


def test_a_replayed_table_is_named():
    search = SearchUnderTest({"launcher": {"kind": "simulated", "table": "/data/a.csv"}})
    search.measure(search.start(BASELINE), 1000.0)
    assert note(search.record).split("\n\n")[1].startswith("Replayed from a.csv. Parlay ran nothing in this search.")


def test_without_a_measured_trial_it_says_so():
    search = SearchUnderTest()
    assert note(search.record).startswith("**No layout has been measured yet**")
    search.fail(search.start(BASELINE), FailureReason.GPU_OOM)
    search.end("failed", "no_feasible_layout")
    ended = note(search.record)
    assert ended.startswith("**No layout was measured: 1 trial failed, out of memory**")
    assert "|" not in ended


def test_what_others_wrote_is_no_markdown_and_no_html():
    search = SearchUnderTest()
    search.end("failed", "submission_rejected")
    detail = "<img src=x onerror=alert(1)> [here](http://x) | *bold* `code`\x1b[31m\n# heading"
    text = note(replace(search.record, detail=detail))
    said = text.splitlines()[0]
    assert said.startswith(
        r"**The cluster rejected a job: \<img src=x onerror=alert(1)\> \[here\](http://x) \| \*bold\* \`code\`"
    )
    assert "\x1b" not in text
    assert r"\# heading" in said
