from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.config.importers.registry import read_source
from orchestrator.config.importers.torchtitan.saved import read_saved_config
from search_spaces.errors import InputError

_PRODUCT = {"param_init": {"weight": "<function at 0x7f>"}, "in_features": 64, "out_features": 192, "bias": False}
ROPE, FLEX = {"theta": 5e5}, {"block_size": 128, "kernel_options": {}}
ATTENTION: dict[str, Any] = {"n_heads": 4, "n_kv_heads": None, "rope": ROPE, "inner_attention": FLEX, "wo": _PRODUCT}
LAYER: dict[str, Any] = {"attention": ATTENTION, "feed_forward": {"w1": _PRODUCT, "w2": _PRODUCT, "w3": _PRODUCT}}
MOE: dict[str, Any] = {
    "num_experts": 8,
    "router": {"score_func": "softmax", "route_norm": True, "top_k": 2, "gate": _PRODUCT},
    "routed_experts": {"inner_experts": {"hidden_dim": 96}},
    "shared_experts": {"w1": {**_PRODUCT, "out_features": 48}},
}
EXPERTS = {"attention": ATTENTION, "feed_forward": None, "moe": MOE}
SAVED: dict[str, Any] = {
    "checkpoint": {"enable": False, "interval": 500},
    "training": {"local_batch_size": 2, "global_batch_size": -1, "seq_len": 32, "max_norm": 1.0},
    "parallelism": {"data_parallel_shard_degree": 2},
    "optimizer": {"param_groups": [{"optimizer_name": "Muon"}]},
    "activation_checkpoint": {"layers": 1},
    "compile": {"enable": False, "components": ["model", "loss"]},
}


def saved(*layers: Any, name: str = "llama3", **sections: Any) -> str:
    model = {"dim": 64, "vocab_size": 512, "enable_weight_tying": False, "layers": layers or (LAYER, LAYER)}
    return json.dumps({**SAVED, "model_spec": {"name": name, "flavor": "parlay", "model": model}, **sections})


def with_attention(**changes: Any) -> dict[str, Any]:
    return {**LAYER, "attention": {**ATTENTION, **changes}}


def test_a_saved_configuration_gives_layout_and_batch_and_says_what_it_does_not(tmp_path):
    (tmp_path / "config.json").write_text(saved())
    found = read_source(tmp_path / "config.json")
    assert found is not None
    assert {"data_parallel": 2, "zero_stage": 3, "recompute_layers": 1}.items() <= found.layout.items()
    assert (found.global_batch_size, found.left_open) == (4, ("matmul_precision",))
    assert "Not read: checkpoint, training.max_norm." in found.notes
    assert "Trials train by AdamW; the training has Muon." in found.notes
    tokens = {"num_tokens_per_microbatch_per_dp_rank": 128, "max_context_length": 32}
    later = read_saved_config(saved(training={**tokens, "mixed_precision_param": "float32"}))
    assert (later.layout["micro_batch_size"], later.model["seq_length"], later.left_open) == (4, 32, ())
    assert "global_batch_size" in read_saved_config(saved(training={"batch_rampup": 3})).in_doubt


def test_lists_of_modules_that_no_split_says_are_no_baseline():
    lists = [["layers.0"], ["layers.1", "layers.2"], ["layers.3"], ["layers.4", "layers.5"]]
    stages = {"pipeline_parallel_degree": 4, "module_fqns_per_model_part": lists}
    found = read_saved_config(saved(*[LAYER] * 6, parallelism=stages))
    assert "parallelism.module_fqns_per_model_part" in [problem.key for problem in found.changed]


@pytest.mark.parametrize(
    ("layers", "fields"),
    [
        ([with_attention(qk_norm={"eps": 1e-5}, head_dim=32)], {"qk_norm": True, "attention_head_size": 32}),
        ([EXPERTS, EXPERTS], {"num_dense_layers": None, "ffn_hidden_size": 96, "num_key_value_heads": 4}),
        ([LAYER, EXPERTS, EXPERTS], {"num_dense_layers": 1, "ffn_hidden_size": 192, "experts_per_token": 2}),
        ([LAYER, EXPERTS] * 2, {"expert_layer_every": 2, "num_experts": 8, "shared_expert_ffn_hidden_size": 48}),
    ],
)
def test_layers_give_the_model_that_they_are(layers, fields):
    model = read_saved_config(saved(*layers, name="qwen3")).model
    assert {name: model.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (saved(activation_checkpoint={"memory_budget": 0.5}), "without a memory budget"),
        (saved(model_spec={"name": "llama3", "model": {"layers": []}}), "has no list of layers"),
        (saved(parallelism={"context_parallel_load_balancer": "ptrr"}), "a chunk of each half"),
        (saved(LAYER, {}), "has layers that differ"),
        (saved({**EXPERTS, "moe": {**MOE, "router": {"score_func": "sigmoid"}}}), "the softmax of their logits"),
        (saved(EXPERTS, LAYER), "expert_layer_every"),
        (saved(with_attention(inner_attention={"window_size": [64, 0]})), "no field of the model section"),
        (saved(with_attention(wo={**_PRODUCT, "recipe": "rowwise"})), "8-bit and 4-bit arithmetic"),
    ],
)
def test_what_no_search_file_expresses_is_refused(text, rule):
    with pytest.raises(InputError) as refused:
        read_saved_config(text)
    assert rule in " ".join(f"{problem.message} {problem.rule}" for problem in refused.value.problems)
