"""Short names of layouts."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import Settings
from search_spaces.layouts.short_name import short_name, varying_axes

BASE = Layout(num_nodes=64, tensor_parallel=8, data_parallel=64, micro_batch_size=4, grad_accum_steps=2)


def test_a_name_has_degrees_micro_batch_and_zero_and_no_field_without_effect():
    assert short_name(BASE) == "tp8 pp1 dp64 mb4"
    assert short_name(replace(BASE, zero_stage=1)) == "tp8 pp1 dp64 mb4 z1"
    assert varying_axes([BASE, replace(BASE, pipeline_schedule="1f1b")]) == ()


def test_axes_that_vary_are_added_and_what_is_off_is_left_out():
    others = [
        BASE,
        replace(BASE, num_nodes=32, data_parallel=32, grad_accum_steps=4),
        replace(BASE, activation_checkpointing="full"),
        replace(BASE, attention_kernel="flash", sequence_parallel=True),
        replace(BASE, settings=Settings({"OMP_NUM_THREADS": "2"}, {"cpu_bind": "cores"}).text),
    ]
    varying = varying_axes(others)
    assert [short_name(layout, varying) for layout in others] == [
        "n64 tp8 pp1 dp64 mb4 math OMP_NUM_THREADS unset cpu_bind default",
        "n32 tp8 pp1 dp32 mb4 math OMP_NUM_THREADS unset cpu_bind default",
        "n64 tp8 pp1 dp64 mb4 ck-full math OMP_NUM_THREADS unset cpu_bind default",
        "n64 tp8 pp1 dp64 mb4 sp1 flash OMP_NUM_THREADS unset cpu_bind default",
        "n64 tp8 pp1 dp64 mb4 math OMP_NUM_THREADS=2 cpu_bind=cores",
    ]
