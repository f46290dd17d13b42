"""Description of a search: Markdown, with foreign text escaped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dashboards.mlflow.description import search_description
from search_spaces.layouts.layout import Layout
from tests.dashboards.compared import repeated_search
from tests.dashboards.report.searches import a_search, all_failed
from tests.dashboards.searches import SearchUnderTest
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord

BASELINE = Layout()


def note(search: SearchRecord, **links: str) -> str:
    return search_description(search, SearchFolder(Path("/nowhere")), links, "#/trials")


def test_the_winner_comes_first_with_its_speed_its_interval_and_how_much_faster_it_is():
    search = a_search()
    search.end()
    lines = note(search.record).splitlines()
    times = "\N{MULTIPLICATION SIGN}"
    layout = f"tensor 2 {times} pipeline 2 {times} data 2, micro-batch 1, accumulation 4, schedule 1f1b."
    assert lines[0] == f"**1.50x faster than the baseline (1.44–1.56)**. Best layout: t0003, {layout}"
    assert "- tokens per second: 1,500, 95 % 1,470–1,530" in lines
    assert "- peak memory: 3 GiB of the fullest rank" in lines
    assert "Completed: reached the limit of 20 layouts." in lines
    assert any("2 measured, 1 failed" in line for line in lines)


def test_the_best_layouts_stand_in_a_table_fastest_first_ten_at_most():
    search = SearchUnderTest()
    for size in range(1, 13):
        search.measure(search.start(replace(BASELINE, tensor_parallel=size)), 100.0 * size)
    search.measure(search.start(replace(BASELINE, tensor_parallel=12), "repeat"), 1100.0)
    text = note(search.record, t0012="#/experiments/1/runs/2")
    assert "The first 10 of 12 measured layouts" in text
    rows = [
        line.removeprefix("| ").split("&ensp; | ") for line in text.splitlines() if line.startswith(("| tp", "| [tp"))
    ]
    assert [row[0] for row in rows[1:]] == [f"tp{number} pp1 dp1 mb1" for number in range(11, 2, -1)]
    assert (rows[0][0], rows[0][2], rows[0][-1]) == ("[tp12 pp1 dp1 mb1](#/experiments/1/runs/2)", "1,149", "2&ensp; |")


def test_of_a_search_in_which_all_failed_the_cause_comes_first_and_the_command_that_shows_a_log():
    result, why, command, *_ = note(all_failed().record).split("\n\n")
    assert result == "**No layout was measured: 8 trials failed, 6 of them: out of memory**"
    assert why.startswith("8 trials of 8 failed: 6 out of memory, 2 trainer crashed. To try: ")
    assert (why.endswith(" Read the log of t0003:"), command) == (True, "    parlay logs tiny-abcdef t0003")


def test_a_repeat_that_failed_is_no_measured_run():
    search = repeated_search()
    search.end()
    rows = [line for line in note(search.record).splitlines() if line.startswith("| tp")]
    assert {row.split("&ensp; | ")[1]: row.split("&ensp; | ")[-1] for row in rows}["baseline"] == "1 of 2&ensp; |"


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
