from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from orchestrator.config.importers.gpt_neox import looks_like_gpt_neox, read_gpt_neox
from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE, Layout
from tests.orchestrator.config.importers.samples import GPT_NEOX

SIZES = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
BASE = SIZES | {"seq_length": 2048, "max_position_embeddings": 2048, "train_micro_batch_size_per_gpu": 4}
NO_MICRO = {"train_micro_batch_size_per_gpu": None}


def read(**keys: Any):
    return read_gpt_neox(yaml.safe_dump(BASE | keys))


def test_a_value_has_its_line_hyphens_are_underscores_and_what_is_not_read_is_named():
    found = read_gpt_neox(GPT_NEOX)
    assert found.engine == "gpt-neox"
    assert found.origins["baseline.pipeline_parallel"] == "pipe_parallel_size (line 3)"
    assert found.origins["baseline.zero_stage"] == "zero_optimization.stage (line 29)"
    assert found.origins["cluster.num_nodes"] == "global_num_gpus (line 5), num_gpus (line 6)"
    assert [(problem.key, problem.value) for problem in found.changed] == [("checkpoint_num_layers", 2)]
    assert "Not read, kept in the template: rms_norm_epsilon, " in " ".join(found.notes)
    assert read().origins["model.vocab_size"] == "GPT-NeoX's default"
    assert read(model_parallel_size=2).origins["model.vocab_size"].startswith("model_parallel_size (line ")
    hyphens = yaml.safe_dump({name.replace("_", "-"): value for name, value in BASE.items()})
    assert read_gpt_neox(hyphens).model == read().model
    assert looks_like_gpt_neox(yaml.safe_load(hyphens))


@pytest.mark.parametrize(
    ("keys", "field", "expected"),
    [
        ({"pipe_parallel_size": 0}, "pipeline_parallel", 1),
        ({"global_num_gpus": 8, "model_parallel_size": 2, "pipe_parallel_size": 2}, "data_parallel", 2),
        ({"train_batch_size": 64}, "data_parallel", 16),
        ({"num_nodes": -1, "num_gpus": -1}, "data_parallel", None),
        (NO_MICRO | {"train_batch_size": 64, "global_num_gpus": 8}, "micro_batch_size", 8),
        ({"te_mha": True, "precision": "bfloat16"}, "attention_kernel", "flash"),
        ({"attention_config": ["flash"] * 12}, "attention_kernel", "flash"),
        ({"deepspeed_extra_args": {"bf16": {"enabled": True}}}, "precision", "bf16"),
        ({"expansion_factor": 2.5}, "ffn_hidden_size", 1920),
        ({"activation": "geglu", "mlp_multiple_of": 100}, "ffn_hidden_size", 1100),
        ({"activation": "swiglu", "te_layernorm_mlp": True, "intermediate_size": 2048}, "ffn_hidden_size", 2048),
        ({"activation": "reglu"}, "activation", "relu"),
        ({"activation": "swiglu"}, "activation", None),
        ({"norm": "te_rmsnorm"}, "linear_biases", True),
    ],
)
def test_a_key_sets_its_field(keys, field, expected):
    found = read(**keys)
    assert {**found.layout, **found.model}.get(field) == expected


def test_defaults_are_those_of_gpt_neox_and_open_in_one_of_several_files():
    found = read()
    expected = Layout(micro_batch_size=4, engine="gpt-neox").canonical()
    assert Layout(**found.layout, engine="gpt-neox").canonical() == expected
    said = {"ffn_hidden_size": 3072, "position_embedding": "learned", "norm": "layernorm", "tied_embeddings": True}
    assert said.items() <= found.model.items()
    assert found.origins["model.norm"] == "GPT-NeoX's default"
    found = read_gpt_neox(yaml.safe_dump({"model_parallel_size": 2, **dict.fromkeys(SIZES, 12)}))
    assert found.layout == {"tensor_parallel": 2}
    assert found.model.keys() == {*SIZES, "num_key_value_heads", "ffn_hidden_size"}
    assert {"pipeline_parallel", "micro_batch_size", "precision"} <= {*found.left_open}
    assert "The file has no seq_length, train_batch_size or train_micro_batch_size_per_gpu" in " ".join(found.notes)
    assert read_gpt_neox("data_path: data/enwik8\nsave: checkpoints\n").model == {}


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"attention_config": [[["flash"], 6], [["global"], 6]]}, "attention_kernel is math"),
        ({"pos_emb": "alibi"}, "position_embedding is written learned or rotary"),
        ({"mlp_type": "llama", "activation": "silu"}, "has its gate by its activation, swiglu"),
        ({"activation": "mish"}, "one of silu, relu, gelu"),
        ({"train_impl": "dpo"}, "a search pretrains a GPT"),
        ({"use_bias_in_mlp": False}, "both have biases, or neither has"),
        ({"pipe_partition_method": "parameters", "pipe_parallel_size": 2}, "uneven pipeline stages"),
        ({"precision": "fp16", "bf16": {"enabled": True}}, "name one precision"),
        ({"global_num_gpus": 6, "model_parallel_size": 4}, re.escape(WORLD_RULE)),
        ({"train_batch_size": 6}, re.escape(BATCH_RULE)),
        ({"train_batch_size": 64, "num_nodes": 1, "num_gpus": 8}, re.escape(BATCH_RULE)),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(keys, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(**keys)
    (problem,) = refused.value.problems
    is_arithmetic = problem.rule in (WORLD_RULE, BATCH_RULE)
    assert is_arithmetic or (problem.key in keys and problem.line)
    assert problem.fix


def test_a_difference_is_noted_and_a_placeholder_not_believed():
    notes = " ".join(read(max_position_embeddings=4096, tokenizer_type="HFTokenizer").notes)
    assert "max_position_embeddings is 4096; a model has seq_length learned" in notes
    assert "vocab_size is not in the file: the tokenizer decides it." in notes
    for name in ("pos_emb", "model_parallel_size"):
        before, found = read(), read(**{name: "${VALUE}"})
        assert f"{name} is '${{VALUE}}', which was not used: it is a placeholder." in found.notes
        assert any("vocab_size: 50257 " in n for n in found.notes)
        assert any("was taken" in n for n in found.notes) is ("vocab_size" in found.model)
        assert len(found.model) + len(found.layout) < len(before.model) + len(before.layout)
