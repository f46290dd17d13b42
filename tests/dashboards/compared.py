"""Searches with competing layouts, and their terminal views."""

from __future__ import annotations

import io

from rich.table import Table

from dashboards.terminal.live_table import LiveView, console_for
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from trials.analysis.ranking import Objective, rank
from trials.ledger.events import SearchRecord
from trials.trial import FailureReason

BATCH = 16
BASELINE = Layout(micro_batch_size=1, grad_accum_steps=16)


def compared_search() -> SearchUnderTest:
    """Layouts of one global batch: the baseline, one 1.6 times as fast with a tie, and one that ran out of memory."""
    search = SearchUnderTest()
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


def ranking_of(search: SearchRecord):
    return rank(search.trials, Objective.TOKENS_PER_SEC, BATCH)


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
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, None, stream) as view:
        for record, event in zip(search.records, search.events, strict=True):
            view.update(record, event)
    return stream.getvalue().splitlines()
