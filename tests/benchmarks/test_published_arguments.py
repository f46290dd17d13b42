"""Published layouts given to trainers' parsers: what is taken, and why the rest is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.published_arguments import argument_lines, spec_of
from benchmarks.published_throughput import Reading, Training
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape

LLAMA = ModelShape(4, 512, 8, 8, 1376, True, 50304, 1024, False, "rotary", "rmsnorm")
LAYOUT = Layout(data_parallel=8, zero_stage=3, precision="bf16", attention_kernel="flash", engine="torchtitan")
TRAINING = Training(LLAMA, Cluster(ACCELERATORS["h100-80gb"], 8, 1), LAYOUT.canonical())


def reading(trainer: str, training: Training | None = TRAINING) -> Reading:
    return Reading({"trainer": trainer}, training, () if training else ("a reason",))


def test_a_spec_is_of_the_training():
    spec = spec_of(TRAINING)
    assert (spec.layout, spec.model, spec.global_batch_size, spec.num_gpus) == (TRAINING.layout, LLAMA, 8, 8)


def test_rows_without_export_or_parser_are_counted_as_not_taken():
    readings = [reading("composer-fsdp"), reading("composer-fsdp", None), reading("megatron-bridge")]
    assert [*argument_lines(readings, None)] == [
        "composer-fsdp: 0 of 1 rows are arguments that its parser takes",
        "     1 no export",
        "megatron-bridge: 0 of 1 rows are arguments that its parser takes",
        "     1 Megatron-LM is not there",
    ]


@pytest.mark.processes
@pytest.mark.slow
def test_torchtitan_takes_a_layout_that_it_can_have_and_one_that_it_cannot_has_a_reason():
    pytest.importorskip("torchtitan", reason="torchtitan is not installed")
    other = replace(TRAINING, layout=replace(LAYOUT, offload="optimizer"))
    lines = [*argument_lines([reading("torchtitan"), reading("torchtitan"), reading("torchtitan", other)], None)]
    assert lines[0] == "torchtitan: 2 of 3 rows are arguments that its parser takes"
    assert "offload" in lines[1]
