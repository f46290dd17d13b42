"""Searches with competing layouts, and their terminal views."""

from __future__ import annotations

import io

from rich.table import Table

from dashboards.search_view import SearchView
from dashboards.terminal.live_table import LiveView, console_for
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from trials.trial import FailureReason

BATCH = 16
BASELINE = Layout(micro_batch_size=1, grad_accum_steps=16)
SPEC = {"name": "tiny", "baseline": BASELINE.to_json(), "global_batch_size": BATCH}


def compared_search() -> SearchUnderTest:
    """Layouts of one global batch: the baseline, one 1.6 times as fast with a tie, and one that ran out of memory."""
    search = SearchUnderTest(SPEC)
    layouts = [
        BASELINE,
        Layout(micro_batch_size=2, grad_accum_steps=8, tensor_parallel=2, zero_stage=1),
        Layout(micro_batch_size=4, grad_accum_steps=4),
        Layout(micro_batch_size=8, grad_accum_steps=2, pipeline_parallel=2, engine="deepspeed"),
    ]
    names = [search.start(layout) for layout in layouts]
    for name, rate in zip(names, (100_000.0, 160_000.0, 159_000.0), strict=False):
        search.measure(name, rate)
    search.fail(names[3], FailureReason.GPU_OOM)
    search.best(names[1])
    return search


def view_of(search: SearchUnderTest) -> SearchView:
    """The search as it is now."""
    return SearchView.of(search.record, search.now)


def shown(table: Table) -> list[str]:
    stream = io.StringIO()
    console_for(stream).print(table)
    return stream.getvalue().splitlines()


def repeated_search() -> SearchUnderTest:
    """The search above, whose best was measured again twice and whose baseline ran out of memory when it was."""
    search = compared_search()
    best = search.record.trial("t0002").layout
    for rate in (150_000.0, 152_000.0):
        search.measure(search.start(best, "repeat"), rate)
    search.fail(search.start(BASELINE, "repeat"), FailureReason.GPU_OOM)
    return search


def plain_lines(search: SearchUnderTest) -> list[str]:
    """Lines that a log file gets of all events of this search."""
    stream = io.StringIO()
    with LiveView(stream) as view:
        for record, event in zip(search.records, search.events, strict=True):
            view.update(record, event)
    return stream.getvalue().splitlines()
