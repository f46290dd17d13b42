"""Rows of published throughputs, as the table has them."""

from __future__ import annotations

from benchmarks.published_throughput import Reading, Row

MPT = {
    "model": "mpt-7b",
    "num_layers": "32",
    "hidden_size": "4096",
    "num_attention_heads": "32",
    "num_key_value_heads": "32",
    "ffn_hidden_size": "16384",
    "gated_mlp": "0",
    "vocab_size": "50368",
    "seq_length": "2048",
    "tied_embeddings": "1",
    "position_embedding": "learned",
    "norm": "layernorm",
    "num_experts": "",
    "accelerator": "a100-80gb",
    "num_gpus": "8",
    "gpus_per_node": "8",
    "trainer": "composer-fsdp",
    "section": "",
    "tp": "1",
    "pp": "1",
    "vp": "1",
    "dp": "8",
    "cp": "1",
    "ep": "1",
    "zero_stage": "3",
    "micro_batch_size": "6",
    "grad_accum": "2",
    "recompute": "none",
    "sequence_parallel": "0",
    "compile": "0",
    "precision": "bf16",
    "tokens_per_s_per_gpu": "4641.25",
    "note": "",
}
TITAN = {"trainer": "torchtitan", "model": "llama3-8b", "recompute": "selective-op"}
BRIDGE = {"trainer": "megatron-bridge", "recompute": "?", "zero_stage": "1"}
QWEN = {"model": "Qwen3_30B_a3B (tokendrop)", "num_experts": "128", "ep": "8", "accelerator": "dgx-b200"}


def reading(**changed: str) -> Reading:
    return Reading.of(row(**changed))


def row(**changed: str) -> Row:
    return MPT | changed
