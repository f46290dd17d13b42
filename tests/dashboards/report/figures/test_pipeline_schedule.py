"""Pipeline timelines: order of passes of each schedule, and idle shares."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dashboards.report.figures.pipeline_schedule import pipeline_timeline
from search_spaces.layouts.layout import Layout

FOUR = Layout(pipeline_parallel=4, grad_accum_steps=8)
LAYERS = 64
SCHEDULES = {
    "gpipe": replace(FOUR, pipeline_schedule="gpipe"),
    "1f1b": replace(FOUR, pipeline_schedule="1f1b"),
    "interleaved_1f1b": replace(FOUR, pipeline_schedule="interleaved_1f1b", virtual_pipeline_stages=2),
}


@pytest.mark.parametrize("layout", SCHEDULES.values(), ids=SCHEDULES)
def test_every_micro_batch_passes_every_chunk_forward_and_back_in_order(layout):
    timeline = pipeline_timeline(layout, LAYERS)
    chunks = layout.virtual_pipeline_stages
    ends = {(b.chunk * 4 + b.stage, b.micro_batch, b.is_forward): b.end for b in timeline.boxes}
    assert len(timeline.boxes) == len(ends) == 2 * 4 * 8 * chunks
    for box in timeline.boxes:
        place = box.chunk * 4 + box.stage
        if box.is_forward and place > 0:
            assert box.start >= ends[place - 1, box.micro_batch, True]
        if not box.is_forward:
            last = place == 4 * chunks - 1
            assert box.start >= ends[(place, box.micro_batch, True) if last else (place + 1, box.micro_batch, False)]


@pytest.mark.parametrize("layout", SCHEDULES.values(), ids=SCHEDULES)
def test_a_stage_does_one_thing_at_a_time_and_idles_as_long_as_the_formula_says(layout):
    timeline = pipeline_timeline(layout, LAYERS)
    end = max(box.end for box in timeline.boxes)
    for stage in range(4):
        boxes = sorted((b for b in timeline.boxes if b.stage == stage), key=lambda box: box.start)
        assert all(one.end <= other.start for one, other in itertools.pairwise(boxes))
        assert 1 - sum(b.end - b.start for b in boxes) / end == pytest.approx(timeline.bubble)


def test_of_a_long_step_the_beginning_is_drawn_and_the_bubble_is_of_all():
    long = replace(FOUR, pipeline_parallel=64, pipeline_schedule="1f1b", grad_accum_steps=4096)
    timeline = pipeline_timeline(long, LAYERS)
    assert (timeline.num_drawn, timeline.num_micro_batches) == (64, 4096)
    assert timeline.bubble == pytest.approx(63 / (4096 + 63))


def test_without_stages_there_is_nothing_to_draw():
    assert pipeline_timeline(Layout(data_parallel=8), LAYERS) is None
