"""Pipeline timelines: order of passes of each schedule, and idle shares."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dashboards.report.figures.pipeline_schedule import pipeline_timeline
from search_spaces.layouts.layout import Layout

FOUR = Layout(pipeline_parallel=4, grad_accum_steps=8)


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)])
def test_passes_are_in_order_and_a_stage_idles_as_long_as_the_formula_says(schedule, chunks):
    timeline = pipeline_timeline(replace(FOUR, pipeline_schedule=schedule, virtual_pipeline_stages=chunks), 64)
    ends = {(b.chunk * 4 + b.stage, b.micro_batch, b.is_forward): b.end for b in timeline.boxes}
    assert len(timeline.boxes) == len(ends) == 2 * 4 * 8 * chunks
    for box in timeline.boxes:
        place = box.chunk * 4 + box.stage
        after = (place - 1, box.micro_batch, True)
        if not box.is_forward:
            after = (place + 1, box.micro_batch, False) if place < 4 * chunks - 1 else (place, box.micro_batch, True)
        assert box.start >= ends.get(after, 0)
    for stage in range(4):
        boxes = sorted((b for b in timeline.boxes if b.stage == stage), key=lambda box: box.start)
        assert all(one.end <= other.start for one, other in itertools.pairwise(boxes))
        assert 1 - sum(b.end - b.start for b in boxes) / max(ends.values()) == pytest.approx(timeline.bubble)
