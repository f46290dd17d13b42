"""Layouts: keys, canonical form, names, settings, axes, and how far their values are verified."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.errors import InputError
from search_spaces.layouts.axes import axis_values, complete_axes
from search_spaces.layouts.layout import AXES, LAYOUT_FIELDS, Layout
from search_spaces.layouts.settings import Settings, as_numbers, combinations, setting_axes
from search_spaces.layouts.short_name import short_name, varying_axes
from search_spaces.layouts.table import LayoutTable
from search_spaces.verification import NOT_VERIFIED, Level, Verification, level_of

FULL = Layout(
    num_nodes=2,
    tensor_parallel=2,
    pipeline_parallel=2,
    data_parallel=4,
    micro_batch_size=3,
    grad_accum_steps=8,
    zero_stage=1,
    offload="optimizer",
    activation_checkpointing="full",
    sequence_parallel=True,
    virtual_pipeline_stages=2,
    pipeline_schedule="interleaved_1f1b",
    precision="bf16",
    attention_kernel="flash",
    engine="deepspeed",
    torch_compile=True,
)
FULL_KEY = "n2.tp2.pp2.dp4.mb3.ga8.z1.off-optimizer.ck-full.sp1.vp2.interleaved_1f1b.bf16.flash.deepspeed.c1"


def test_a_key_names_a_later_field_only_where_it_differs_from_its_default():
    assert FULL.key == FULL_KEY
    later = replace(FULL, rank_order="tp-pp-dp", overlap_comm=True, bucket_mib=25)
    assert later.key == FULL_KEY + ".ro-tp-pp-dp.ov1.bk25"


SHARDED = {"zero_stage": 1, "overlap_comm": True, "bucket_mib": 25}
UNSHARDED = {"zero_stage": 0, "overlap_comm": False, "bucket_mib": None}


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ({"pipeline_parallel": 1}, {"pipeline_schedule": "none", "virtual_pipeline_stages": 1}),
        ({"pipeline_schedule": "gpipe"}, {"pipeline_schedule": "interleaved_1f1b"}),
        ({"virtual_pipeline_stages": 1, "pipeline_schedule": "none"}, {"pipeline_schedule": "1f1b"}),
        ({"virtual_pipeline_stages": 1, "pipeline_schedule": "gpipe"}, {}),
        ({"tensor_parallel": 1}, {"sequence_parallel": False}),
        ({"rank_order": "tp-pp-dp", "data_parallel": 1}, {"rank_order": "tp-dp-pp"}),
        ({"data_parallel": 1, "offload": "none", **SHARDED}, UNSHARDED),
        ({"data_parallel": 1, "engine": "torch", **SHARDED}, UNSHARDED),
        ({"data_parallel": 2, "offload": "none", **SHARDED}, {}),
        ({"engine": "torchtitan", "activation_checkpointing": "selective"}, {"recompute_modules": "ops"}),
        ({"engine": "torchtitan", "activation_checkpointing": "selective", "recompute_modules": "mlp"}, {}),
    ],
)
def test_the_canonical_form_has_no_setting_without_effect(given, canonical):
    layout = replace(FULL, **given)
    assert layout.canonical() == replace(layout, **canonical)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("tensor_parallel", 0, "a whole number from 1 to 1000000000"),
        ("micro_batch_size", True, "a whole number"),
        ("grad_accum_steps", None, "a whole number"),
        ("bucket_mib", 0, "a whole number"),
        ("zero_stage", 4, "a whole number from 0 to 3"),
        ("sequence_parallel", 1, "true or false"),
        ("precision", "fp8", "one of fp32, bf16, fp16"),
    ],
)
def test_a_field_has_a_value_of_its_axis(field, value, rule):
    with pytest.raises(InputError, match=rule) as refused:
        replace(FULL, **{field: value})
    assert refused.value.problems[0].key == field


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


SETTINGS = Settings({"NCCL_ALGO": None, "XLA_FLAGS": "--a --b=1", "OMP_NUM_THREADS": "2"}, {"cpu_bind": "cores"})
TEXT = "-env.NCCL_ALGO env.OMP_NUM_THREADS=2 'env.XLA_FLAGS=--a --b=1' launch.cpu_bind=cores"


def test_the_text_is_sorted_quoted_and_read_back_and_gives_the_ranks_their_command():
    assert SETTINGS.text == TEXT
    assert Settings.parse(TEXT) == SETTINGS
    assert Settings.parse("") == Settings()
    assert SETTINGS.prefix == ("env", "-u", "NCCL_ALGO", "OMP_NUM_THREADS=2", "XLA_FLAGS=--a --b=1")
    assert SETTINGS.srun_options == ("--cpu-bind=cores",)
    assert Settings({}, {"cpu_bind": "cores"}).prefix == ()


@pytest.mark.parametrize(
    "text",
    [
        *("env.B=1 env.A=1", "NAME=1", "launch.cpu_bind", "-launch.cpu_bind", "env.A=1  env.B=1", "'env.A=1'", "'"),
        *("'env.A B=1'", "env.=1", "env.9A=1", "-env.", "launch.uid=0", "'env.A=a\x1b[31m'", "'env.A=a\nb'"),
    ],
)
def test_any_other_text_a_name_that_is_none_and_what_a_terminal_would_act_on_are_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        Settings.parse(text)
    with pytest.raises(InputError, match="settings is"):
        Layout(settings=text)


def test_a_layout_has_the_searchs_software_or_that_of_an_experiments_other_side():
    other = Layout(settings="env.A=1").with_software({"python": "/opt/b c/python"})
    assert other.settings == "env.A=1 'software.python=/opt/b c/python'"
    assert other.of_trial.software == {"python": "/opt/b c/python"}
    assert other.axis_values["software.python"] == "/opt/b c/python"
    assert other.with_software({}) == Layout(settings="env.A=1")
    with pytest.raises(ValueError, match="torch"):
        Settings.parse("software.torch=2")


def test_a_layout_without_settings_has_the_key_that_it_had():
    layout = Layout(settings=TEXT)
    assert layout.key == f"{Layout().key}.{TEXT}"
    assert layout.key_parts["settings"] == TEXT
    assert "settings" not in Layout().key_parts
    assert layout.without_settings == Layout()
    assert layout.axis_values["env.NCCL_ALGO"] is None
    assert Layout.from_json(layout.to_json()) == layout


def test_every_combination_has_a_text():
    found = list(combinations({"env.A": ("1", None), "launch.cpu_bind": (None, "cores")}))
    assert found == ["env.A=1", "env.A=1 launch.cpu_bind=cores", "-env.A", "-env.A launch.cpu_bind=cores"]
    assert setting_axes(found) == {"env.A": ["1", "1", None, None], "launch.cpu_bind": [None, "cores", None, "cores"]}
    of_trainer = combinations({"options.--flag": (None, ""), "options.--x": ("a b",)})
    assert [*of_trainer] == ["'options.--x=a b'", "options.--flag= 'options.--x=a b'"]


def test_rows_of_a_table_sort_by_their_text_whatever_was_seen_before():
    first, last = (replace(Layout(), settings=text) for text in ("env.Z_FIRST=1", "env.Z_SECOND=1"))
    LayoutTable.of([last])
    table = LayoutTable.of([last, first, Layout(), last])
    assert [*table.distinct()] == [Layout(), first, last]


def test_whole_numbers_are_compared_as_such():
    assert as_numbers(["8", "16", None]) == [8, 16, None]
    assert as_numbers(["8", "auto"]) == ["8", "auto"]
    assert as_numbers(["-1"]) == ["-1"]


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("1f1b", ("1f1b",)),
        ({"min": 1, "max": 8, "factor": 2}, (1, 2, 4, 8)),
        ({"min": 3, "max": 20, "factor": 3}, (3, 9)),
        ({"min": 1, "max": 7, "step": 3}, (1, 4, 7)),
        ({"min": 0, "max": 3, "step": 1}, (0, 1, 2, 3)),
        ({"min": 5, "max": 5, "step": 100}, (5,)),
    ],
)
def test_an_axis_is_a_value_a_list_or_a_range(given, values):
    assert axis_values(given) == values


@pytest.mark.bad_input(16)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "empty list"),
        ([1, 2, 1], "1 twice"),
        ({"min": 8, "max": 1, "step": 1}, "min 8 is more than max 1"),
        ({"min": 1, "max": 8, "step": 0}, "step is 0"),
        ({"min": 1, "max": 8, "factor": 1}, "factor is 1"),
        ({"min": 0, "max": 8, "factor": 2}, "min is 0"),
        ({"min": 1.0, "max": 8, "step": 1}, "min is 1.0"),
        ({"min": 1, "max": 10**12, "step": 1}, "max is 1000000000000"),
        (list(range(10_001)), "10001 values"),
    ],
)
def test_repeats_and_ranges_that_lead_nowhere_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        axis_values(given)


def test_every_field_that_is_not_given_gets_its_one_default_and_accumulation_is_no_axis():
    complete = complete_axes({"tensor_parallel": [1, 2]}, num_nodes=3)
    assert complete["tensor_parallel"] == (1, 2)
    assert complete["num_nodes"] == (3,)
    assert complete["bucket_mib"] == (None,)
    assert list(complete) == [f for f in LAYOUT_FIELDS if f not in ("data_parallel", "grad_accum_steps")]
    assert complete_axes(complete, num_nodes=7) == complete
    assert complete_axes({"grad_accum_steps": [1, 2]}, num_nodes=1)["grad_accum_steps"] == (1, 2)


TITAN = Layout(engine="torchtitan", attention_kernel="flex", precision="bf16", tensor_parallel=2)


@pytest.mark.parametrize(
    ("layout", "level", "values"),
    [
        (Layout(tensor_parallel=8, grad_accum_steps=3), "run", []),
        (TITAN, "run", []),
        (replace(TITAN, torch_compile=True), "parsed", ["torch_compile True"]),
        (replace(TITAN, precision="fp16"), "by rule", ["precision fp16"]),
    ],
)
def test_a_layout_is_as_verified_as_its_least_verified_value(layout, level, values):
    assert Verification.of(layout.canonical()).to_json() == {"level": level, "values": values}


def test_a_value_without_effect_is_not_judged():
    assert Verification.of(replace(TITAN, tensor_parallel=1, data_parallel_replicas=2).canonical()).level is Level.RUN


@pytest.mark.parametrize("axis", AXES)
def test_what_nobody_declared_is_by_rule(axis):
    assert level_of("command", axis, AXES[axis].default) is Level.BY_RULE
    assert level_of("torch", axis, AXES[axis].default) is (Level.BY_RULE if axis in NOT_VERIFIED else Level.RUN)
    assert level_of("torch", "precision", "a new word") is Level.BY_RULE
