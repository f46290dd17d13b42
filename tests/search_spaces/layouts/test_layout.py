from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout

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
