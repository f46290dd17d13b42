"""Measured tables for tests: one good row, and variations of it."""

from __future__ import annotations

from search_spaces.tables.measured_table import Observation, parse_table

ROW = {
    "problem": "1B-8gpu",
    "source": "ultrascale-playbook",
    "model_name": "1B",
    "num_layers": "16",
    "hidden_size": "2048",
    "num_attention_heads": "32",
    "ffn_hidden_size": "8192",
    "gated_mlp": "1",
    "vocab_size": "131072",
    "tied_embeddings": "1",
    "seq_length": "4096",
    "accelerator": "h100-80gb",
    "num_gpus": "8",
    "gpus_per_node": "8",
    "global_batch_size": "256",
    "tensor_parallel": "2",
    "pipeline_parallel": "2",
    "data_parallel": "2",
    "micro_batch_size": "4",
    "grad_accum_steps": "32",
    "zero_stage": "1",
    "sequence_parallel": "1",
    "activation_checkpointing": "none",
    "attention_kernel": "flash",
    "outcome": "ok",
    "step_time_s": "3.5",
    "peak_memory_gib": "50.2",
}


def table(*rows: dict[str, str], columns: list[str] | None = None) -> str:
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    lines = ["# where it comes from", ",".join(columns)]
    lines += [",".join(row.get(name, "") for name in columns) for row in rows]
    return "\n".join(lines) + "\n"


def only(*changes: dict[str, str]) -> list[Observation]:
    """The good row with each of these changes."""
    return list(parse_table(table(*(ROW | change for change in changes)), "table.csv"))
