from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from orchestrator.importers.registry import read_source
from orchestrator.importers.torchtitan.saved import looks_like_torchtitan, read_saved_config
from search_spaces.errors import InputError

_PRODUCT = {"param_init": {"weight": "<function at 0x7f>"}, "in_features": 64, "out_features": 64, "bias": False}
LAYER: dict[str, Any] = {
    "attention": {
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": None,
        "qk_norm": None,
        "inner_attention": {"block_size": 128, "kernel_options": {}},
        "wo": _PRODUCT,
    },
    "feed_forward": {"w1": {**_PRODUCT, "out_features": 192}, "w2": _PRODUCT, "w3": _PRODUCT},
    "moe": None,
}
SAVED: dict[str, Any] = {
    "model_spec": {
        "name": "llama3",
        "flavor": "parlay",
        "model": {"dim": 64, "vocab_size": 512, "enable_weight_tying": False, "layers": [LAYER, LAYER]},
    },
    "tokenizer": {},
    "training": {"local_batch_size": 2, "global_batch_size": -1, "seq_len": 32, "disable_cuda_graphs": True},
    "parallelism": {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 1},
    "activation_checkpoint": {"preserve_rng_state": False, "determinism_check": "default", "debug": False},
    "compile": {"enable": False, "components": ["model", "loss"]},
}


def with_layer(**changes: Any) -> dict[str, Any]:
    """The configuration with changes to every layer, by `attention__qk_norm`."""
    layer = json.loads(json.dumps(LAYER))
    for path, value in changes.items():
        *sections, last = path.split("__")
        inner = layer
        for section in sections:
            inner = inner[section]
        inner[last] = value
    model = {**SAVED["model_spec"]["model"], "layers": [layer, layer]}
    return {**SAVED, "model_spec": {**SAVED["model_spec"], "model": model}}


def read(config: Any):
    return read_saved_config(json.dumps(config))


def test_a_saved_configuration_gives_model_layout_and_batch(tmp_path):
    assert looks_like_torchtitan(SAVED)
    (tmp_path / "config.json").write_text(json.dumps(SAVED))
    found = read_source(tmp_path / "config.json")
    assert found is not None
    assert found.model == yaml.safe_load("""
        {num_layers: 2, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, ffn_hidden_size: 192,
        gated_mlp: true, vocab_size: 512, seq_length: 32, tied_embeddings: false, position_embedding: rotary,
        norm: rmsnorm}
    """)
    expected = {"data_parallel": 2, "zero_stage": 3, "activation_checkpointing": "full", "attention_kernel": "flex"}
    assert {name: found.layout[name] for name in expected} == expected
    assert found.global_batch_size == 4
    assert found.notes == (
        "torchtitan does not save whether linear layers multiply 8-bit floats: fill in matmul_precision.",
    )
    assert found.left_open == ("matmul_precision",)
    training = {**SAVED["training"], "mixed_precision_param": "float32"}
    assert read({**SAVED, "training": training}).notes == ()


def test_the_policy_is_known_by_its_arguments():
    of_operations = {"preserve_rng_state": True, "force_recompute_mm_shapes_by_fqns": ["moe.router.gate"]}
    of_layers = {"preserve_rng_state": True, "layers": 1}
    for saved, policy, layers in ((None, "none", None), (of_operations, "selective", None), (of_layers, "full", 1)):
        layout = read({**SAVED, "activation_checkpoint": saved}).layout
        assert (layout["activation_checkpointing"], layout.get("recompute_layers")) == (policy, layers)


def test_attention_has_its_own_kernel_heads_and_norms():
    saved = with_layer(attention__qk_norm={"eps": 1e-5}, attention__head_dim=32)
    model = read({**saved, "model_spec": {**saved["model_spec"], "name": "qwen3"}}).model
    assert (model["qk_norm"], model["attention_head_size"]) == (True, 32)
    assert read(with_layer(attention__n_kv_heads=None)).model["num_key_value_heads"] == 4
    varlen = with_layer(attention__inner_attention={"window_size": [-1, 0]})
    assert read(varlen).layout["attention_kernel"] == "flash"


ROUTER = {"score_func": "softmax", "route_norm": True, "top_k": 2, "gate": _PRODUCT}
MOE: dict[str, Any] = {
    "num_experts": 8,
    "router": ROUTER,
    "routed_experts": {"inner_experts": {"hidden_dim": 96}},
    "shared_experts": {"w1": {**_PRODUCT, "out_features": 48}},
}


def with_pattern(*has_experts: bool) -> dict[str, Any]:
    """A qwen3 whose layers have experts or an MLP."""
    layers = [LAYER | ({"feed_forward": None, "moe": MOE} if has else {}) for has in has_experts]
    model = {**SAVED["model_spec"]["model"], "layers": layers}
    return {**SAVED, "model_spec": {**SAVED["model_spec"], "name": "qwen3", "model": model}}


@pytest.mark.parametrize(
    ("has_experts", "fields"),
    [
        ((True, True), {"num_dense_layers": 0, "expert_layer_every": 1, "ffn_hidden_size": 96}),
        ((False, True, True), {"num_dense_layers": 1, "expert_layer_every": 1, "ffn_hidden_size": 192}),
        ((False, True, False, True), {"num_dense_layers": 0, "expert_layer_every": 2}),
    ],
)
def test_experts_are_read_with_the_layers_that_have_them(has_experts, fields):
    model = read(with_pattern(*has_experts)).model
    sizes = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 96}
    assert (fields | sizes | {"shared_expert_ffn_hidden_size": 48}).items() <= model.items()
    assert "qk_norm" not in model


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({**SAVED, "activation_checkpoint": {"memory_budget": 0.5}}, "not a memory budget"),
        ({**SAVED, "model_spec": {"name": "llama4", "model": {}}}, "a search's model is torchtitan's llama3 or qwen3"),
        ({**SAVED, "model_spec": {"name": "llama3", "model": {"layers": []}}}, "has no list of layers"),
        ({**SAVED, "model_spec": {"name": "llama3", "model": {"layers": [LAYER, {}]}}}, "has layers that differ"),
        (with_layer(moe={**MOE, "router": {**ROUTER, "score_func": "sigmoid"}}), "the softmax of their logits"),
        (with_pattern(True, False), "expert_layer_every"),
        (with_layer(attention__inner_attention={"window_size": [64, 0]}), "no field of the model section"),
        (with_layer(feed_forward__w1={**_PRODUCT, "recipe": "rowwise"}), "8-bit and 4-bit arithmetic"),
        ({**SAVED, "parallelism": {"context_parallel_load_balancer": "ptrr"}}, "a chunk of each half"),
        ([], "JSON object"),
    ],
)
def test_what_no_search_file_expresses_is_refused(config, rule):
    with pytest.raises(InputError) as refused:
        read(config)
    text = " ".join(f"{problem.message} {problem.rule}" for problem in refused.value.problems)
    assert rule in text
