"""A search that takes a second: its trials come from a table, on a simulated clock."""

from __future__ import annotations

from pathlib import Path

from search_spaces.tables.measured_table import render_table
from tests.search_spaces.example_tables import only

TABLE_SEARCH = """\
schema: parlay.search/1
name: table
model: {num_layers: 16, hidden_size: 2048, num_attention_heads: 32, ffn_hidden_size: 8192, gated_mlp: true,
        vocab_size: 131072, seq_length: 4096}
cluster: dgx-h100
global_batch_size: 256
space: {candidates: table.csv}
search: {sampler: grid, finalists: 0}
launcher: {kind: simulated, table: table.csv}
tracking: {enabled: false}
"""

OK = {}
OUT_OF_MEMORY = {"outcome": "oom", "step_time_s": "", "peak_memory_gib": ""}
_LAYOUTS = (
    {"tensor_parallel": "2", "data_parallel": "2", "grad_accum_steps": "32"},
    {"tensor_parallel": "4", "data_parallel": "1", "grad_accum_steps": "64"},
    {"tensor_parallel": "1", "data_parallel": "4", "grad_accum_steps": "16", "sequence_parallel": "0"},
)


def write_simulated_search(folder: Path, *rows: dict[str, str], text: str = TABLE_SEARCH) -> Path:
    """Write search.yaml and its table; each of up to three rows is another layout with these values."""
    table = only(*(layout | row for layout, row in zip(_LAYOUTS, rows, strict=False)))
    (folder / "table.csv").write_text(render_table(table))
    path = folder / "search.yaml"
    path.write_text(text)
    return path
