from __future__ import annotations

import json

import pytest

from orchestrator.importers.deepspeed_config import read_ds_config
from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE


def test_auto_and_missing_values_are_reported_and_left_out():
    found = read_ds_config('{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2}')
    assert found.global_batch_size is None
    assert found.layout["micro_batch_size"] == 2
    assert not {"grad_accum_steps", "data_parallel"} & set(found.layout)
    assert found.notes == (
        "train_batch_size is auto in the DeepSpeed config.",
        "gradient_accumulation_steps is not given in the DeepSpeed config.",
    )


def test_parameters_on_the_host_or_on_nvme_are_reported_and_left_out():
    zero = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "nvme"}}
    found = read_ds_config(json.dumps({"train_batch_size": 8, "zero_optimization": zero}))
    assert "offload" not in found.layout
    assert any("offload_param moves the parameters" in note for note in found.notes)
    assert any("NVMe" in note for note in found.notes)


def test_deepspeeds_own_bucket_size_is_its_default_and_no_choice():
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}
    assert "bucket_mib" not in read_ds_config(json.dumps(config)).layout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"train_batch_size": 8.5}', "train_batch_size is 8.5"),
        ('{"train_batch_size": true}', "train_batch_size is true"),
        ('{"train_micro_batch_size_per_gpu": 0}', "train_micro_batch_size_per_gpu is 0"),
        (
            '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}',
            "train_batch_size 10 is not a multiple of micro batch 2 x accumulation 4",
        ),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        read_ds_config(text)


def test_batch_sizes_that_contradict_each_other_may_leave_one_to_the_trainer():
    config = {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    with pytest.raises(InputError) as refused:
        read_ds_config(json.dumps(config))
    assert (refused.value.problems[0].rule, refused.value.problems[0].fix) == (
        BATCH_RULE,
        "a multiple of 8, or auto for the one of the three that the trainer is to fill in",
    )
    assert read_ds_config(json.dumps(config | {"train_batch_size": "auto"})).layout["grad_accum_steps"] == 4
