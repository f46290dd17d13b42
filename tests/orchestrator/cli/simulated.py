"""A search that takes a second: its trials come from a table, on a simulated clock."""

from __future__ import annotations

from pathlib import Path

from search_spaces.tables.measured_table import render_table
from tests import kit
from tests.search_spaces.example_tables import only

_SECTIONS = "search: {sampler: grid, finalists: 0}\ntracking: {enabled: false}\n"
TABLE_SEARCH = kit.TABLE_SEARCH.replace("from-a-table", "table") + _SECTIONS

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
    return kit.search_file(folder, text)
