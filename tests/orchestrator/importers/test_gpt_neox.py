from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from orchestrator.importers.gpt_neox import looks_like_gpt_neox, read_gpt_neox
from orchestrator.importers.gpt_neox_options import GPT_NEOX_OPTIONS
from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE
from tests.orchestrator.importers.config_tables import require_table, with_keys
from tests.orchestrator.importers.samples import GPT_NEOX

BASE = yaml.safe_load("""
{num_layers: 12, hidden_size: 768, num_attention_heads: 12, seq_length: 2048, max_position_embeddings: 2048,
train_micro_batch_size_per_gpu: 4}
""")


def read(**keys: Any):
    named = {name.replace("__", "."): value for name, value in keys.items()}
    return read_gpt_neox(yaml.safe_dump(with_keys(BASE, named)))


def test_a_value_has_its_line_hyphens_are_underscores_and_all_gpus_an_unknown_number():
    found = read_gpt_neox(GPT_NEOX)
    assert found.engine == "gpt-neox"
    assert found.origins["baseline.pipeline_parallel"] == "pipe_parallel_size (line 3)"
    assert found.origins["baseline.zero_stage"] == "zero_optimization.stage (line 29)"
    assert found.origins["cluster.num_nodes"] == "global_num_gpus (line 5), num_gpus (line 6)"
    assert [(problem.key, problem.value) for problem in found.changed] == [("checkpoint_num_layers", 2)]
    assert read().origins["model.vocab_size"] == "GPT-NeoX's default"
    assert read(model_parallel_size=2).origins["model.vocab_size"].startswith("model_parallel_size (line ")
    config = {**BASE, "train_batch_size": 64, "global_num_gpus": 8, "gradient_accumulation_steps": 2}
    del config["train_micro_batch_size_per_gpu"]
    assert read_gpt_neox(yaml.safe_dump(config)).layout["micro_batch_size"] == 4
    hyphens = yaml.safe_dump({name.replace("_", "-"): value for name, value in BASE.items()})
    assert read_gpt_neox(hyphens).model == read().model
    assert looks_like_gpt_neox(yaml.safe_load(hyphens))
    found = read(num_nodes=-1, num_gpus=-1)
    assert (found.num_nodes, found.gpus_per_node) == (None, None)
    with pytest.raises(InputError, match="describes a model or a layout"):
        read_gpt_neox("data_path: data/enwik8\nsave: checkpoints\n")


def test_the_reader_keeps_to_its_table(monkeypatch):
    gated = {"activation": "swiglu", "pipe_partition_method": "type:x", "expansion_factor": 4, "pos_emb": "rotary"}
    require_table(read_gpt_neox, GPT_NEOX_OPTIONS, BASE, [BASE | gated], monkeypatch, {"use_qk_layernorm"})


@pytest.mark.parametrize(
    ("keys", "field", "expected"),
    [
        ({"pipe_parallel_size": 0}, "pipeline_parallel", 1),
        ({"global_num_gpus": 8, "model_parallel_size": 2, "pipe_parallel_size": 2}, "data_parallel", 2),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, "data_parallel", 4),
        ({"train_batch_size": 64}, "data_parallel", 16),
        ({"num_nodes": 2, "num_gpus": 4}, "data_parallel", 8),
        ({"te_mha": True, "precision": "bfloat16"}, "attention_kernel", "flash"),
        ({"deepspeed_extra_args": {"bf16": {"enabled": True}}}, "precision", "bf16"),
        ({"zero_optimization__cpu_offload": True}, "offload", "optimizer"),
        ({"zero_optimization__offload_optimizer__device": "cpu"}, "offload", "optimizer"),
        ({"expansion_factor": 2.5}, "ffn_hidden_size", 1920),
        ({"activation": "geglu"}, "ffn_hidden_size", 1024),
        ({"activation": "geglu", "mlp_multiple_of": 100}, "ffn_hidden_size", 1100),
        ({"activation": "swiglu", "te_layernorm_mlp": True, "intermediate_size": 2048}, "ffn_hidden_size", 2048),
    ],
)
def test_a_key_sets_its_field(keys, field, expected):
    found = read(**keys)
    assert {**found.layout, **found.model}[field] == expected


def test_defaults_are_those_of_gpt_neox_and_open_in_one_of_several_files():
    found = read()
    assert found.layout == yaml.safe_load("""
        {tensor_parallel: 1, pipeline_parallel: 1, micro_batch_size: 4, grad_accum_steps: 1, zero_stage: 0,
        activation_checkpointing: none, sequence_parallel: false, precision: fp32, attention_kernel: math}
    """)
    assert found.model["ffn_hidden_size"] == 3072
    assert (found.model["position_embedding"], found.model["norm"]) == ("learned", "layernorm")
    assert (found.model["gated_mlp"], found.model["tied_embeddings"]) == (False, True)
    assert found.origins["model.norm"] == "GPT-NeoX's default"
    found = read_gpt_neox("model_parallel_size: 2\nnum_layers: 12\nhidden_size: 768\nnum_attention_heads: 12\n")
    assert found.layout == {"tensor_parallel": 2}
    sizes = {"num_attention_heads": 12, "num_key_value_heads": 12, "ffn_hidden_size": 3072}
    assert found.model == {"num_layers": 12, "hidden_size": 768, **sizes}
    assert "The file has no seq_length, train_batch_size or train_micro_batch_size_per_gpu" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"attention_config": [[["flash"], 6], [["global"], 6]]}, "attention_kernel is math"),
        ({"pos_emb": "alibi"}, "position_embedding is learned or rotary"),
        ({"pipe_partition_method": "parameters", "pipe_parallel_size": 2}, "uneven pipeline stages"),
        ({"precision": "fp16", "bf16": {"enabled": True}}, "name one precision"),
        ({"global_num_gpus": 6, "model_parallel_size": 4}, re.escape(WORLD_RULE)),
        ({"train_batch_size": 6}, re.escape(BATCH_RULE)),
        ({"train_batch_size": 64, "num_nodes": 1, "num_gpus": 8}, re.escape(WORLD_RULE)),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(keys, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(**keys)
    (problem,) = refused.value.problems
    is_arithmetic = problem.rule in (WORLD_RULE, BATCH_RULE)
    assert is_arithmetic or (str(problem.key).replace(".", "__") in keys and problem.line)
    assert problem.fix


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"activation": "relu"}, "activation relu: trials have GELU."),
        ({"norm": "rmsnorm"}, "use_bias_in_mlp is true; a model with norm rmsnorm has no biases."),
        ({"use_bias_in_norms": False}, "use_bias_in_norms is false; a model with norm layernorm has biases."),
        ({"max_position_embeddings": 4096}, "max_position_embeddings is 4096; a model has seq_length learned"),
        ({"tokenizer_type": "HFTokenizer"}, "vocab_size is not in the file: the tokenizer decides it."),
    ],
)
def test_a_difference_from_a_trial_is_noted(keys, note):
    assert any(each.startswith(note) for each in read(**keys).notes)


@pytest.mark.parametrize("name", ["pos_emb", "model_parallel_size"])
def test_a_placeholder_is_not_believed(name):
    before, found = read(), read(**{name: "${VALUE}"})
    assert f"{name} is '${{VALUE}}', which was not used: it is a placeholder." in found.notes
    assert len(found.model) + len(found.layout) < len(before.model) + len(before.layout)
