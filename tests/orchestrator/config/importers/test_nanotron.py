from __future__ import annotations

from typing import Any

import pytest
import yaml

from orchestrator.config.importers.nanotron import read_nanotron
from search_spaces.errors import InputError
from tests.orchestrator.config.importers.samples import with_key

BASE = {
    "model": {"model_config": {"hidden_size": 256, "num_attention_heads": 8}},
    "parallelism": {"dp": 2, "tp": 2, "pp": 2},
    "tokens": {"sequence_length": 128, "micro_batch_size": 1, "batch_accumulation_per_replica": 4},
}
PARALLELISM = {**BASE["parallelism"], "moe_layer_recompute": True, "tp_recompute_allgather": True}


def read(name: str, value: Any):
    return read_nanotron(yaml.safe_dump(with_key(BASE, name, value)))


def test_what_no_row_has_stays_in_the_template_and_is_named():
    found = read("optimizer.clip_grad", 0.5)
    assert "Not read, kept in the template: optimizer.clip_grad." in found.notes
    assert found.layout == read_nanotron(yaml.safe_dump(BASE)).layout
    notes = read("general", {"project": "a", "run": "b"}).notes + read("parallelism", PARALLELISM).notes
    assert "Not read, kept in the template: general (2)." in notes
    assert "Not read, kept in the template: parallelism (moe_layer_recompute, tp_recompute_allgather)." in notes


def test_defaults_are_those_of_nanotron():
    found = read_nanotron(yaml.safe_dump(BASE))
    defaults = {"pipeline_schedule": "gpipe", "sequence_parallel": False, "activation_checkpointing": "none"}
    assert (defaults | {"precision": "bf16", "attention_kernel": "flash"}).items() <= found.layout.items()
    assert (found.model["num_layers"], found.origins["model.num_layers"]) == (32, "nanotron's default")
    assert found.origins["baseline.tensor_parallel"].startswith("parallelism.tp (line ")
    assert read("model.dtype", "float16").layout["precision"] == "fp16"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("model.model_config._attn_implementation", "ring_flash_triton", "context parallelism"),
        ("optimizer.zero_stage", 3, "zero_stage is written 0 or 1"),
        ("parallelism.expert_parallel_size", 2, "experts are not read"),
        ("model.model_config.sliding_window_size", 4096, "model.sliding_window is not written for this trainer"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(name, value, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(name, value)
    (problem,) = refused.value.problems
    assert problem.key.startswith(name)
    assert problem.line


def test_a_difference_from_a_trial_is_noted():
    notes = " ".join(read("data_stages", [{"sequence_length": 256}]).notes)
    assert "data_stages train with sequences of 256 tokens too" in notes
    notes = " ".join(read("model.model_config._attn_implementation", "sdpa").notes)
    assert "PyTorch chooses the kernel of sdpa" in notes


def test_the_vocabulary_is_padded_as_nanotron_pads_it_and_sections_that_are_null_are_absent():
    config = with_key(with_key(BASE, "model.make_vocab_size_divisible_by", 64), "model.model_config.vocab_size", 1000)
    assert read_nanotron(yaml.safe_dump(config)).model["vocab_size"] == 1024
    config = {**BASE, "optimizer": None, "lighteval": None, "checkpoints": {}}
    assert read_nanotron(yaml.safe_dump(config)).notes == read_nanotron(yaml.safe_dump(BASE)).notes
