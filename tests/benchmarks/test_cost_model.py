"""Scores of the cost model benchmark, on rows with known truth."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import cost_model
from benchmarks.cost_model import Case, score
from search_spaces.cost_model.posterior import StepTimePosterior
from search_spaces.tables.measured_table import Observation, render_table
from tests.search_spaces.example_tables import only


def rows() -> list[Observation]:
    """A dozen layouts of eight GPUs that ran in a second."""
    changes = [
        {
            "tensor_parallel": str(tensor),
            "pipeline_parallel": "1",
            "data_parallel": str(8 // tensor),
            "micro_batch_size": str(size),
            "grad_accum_steps": str(32 * tensor // size),
            "step_time_s": "1.0",
        }
        for tensor in (1, 2, 4)
        for size in (1, 2, 4, 8)
    ]
    return only(*changes)


def case(time_factor: float = 1.0, memory_factor: float = 1.0) -> Case:
    """Rows that took so many times what the cold models expect."""
    found = Case.of("1B", rows())
    seconds = np.exp(StepTimePosterior(found.terms.take(np.array([], dtype=int)), [], 0).predict(found.terms)[0])
    measured = [
        replace(row, step_time_s=s * time_factor, peak_memory_gib=gib * memory_factor)
        for row, s, gib in zip(found.rows, seconds.tolist(), found.memory_gib.tolist(), strict=True)
    ]
    return replace(found, rows=tuple(measured))


def test_errors_are_the_prediction_over_the_measurement_and_ranks_do_not_care():
    line = score(case(time_factor=1.25, memory_factor=1.35))
    assert line["time_error_median"] == pytest.approx(0.2, abs=1e-3)
    assert line["rank_correlation"] == pytest.approx(1)
    # Cold, memory is taken to be 8 % and half its uncertainty above the estimate.
    assert line["memory_error_median"] == pytest.approx(0.2, abs=0.02)
    assert (line["ok_rows"], line["failed_rows"], line["oom_recalled"]) == (12, 0, None)


def test_the_command_prints_a_json_object_a_line_and_skips_what_it_does_not_know(tmp_path, monkeypatch, capsys):
    table, unknown = tmp_path / "table.csv", tmp_path / "unknown.csv"
    table.write_text(render_table(rows()))
    unknown.write_text("a,b\n1,2\n")
    words = [str(table), str(unknown), str(tmp_path / "nowhere.csv"), "--mode", "cold", "--json"]
    monkeypatch.setattr(sys, "argv", ["cost_model", *words])
    cost_model.main()
    out, err = capsys.readouterr()
    line, by_source, macro = (json.loads(text) for text in out.splitlines())
    assert (line["problem"], line["mode"], line["num_nodes"]) == ("1B-8gpu", "cold", 1)
    assert (by_source["source"], macro["source"]) == ("ultrascale-playbook", "macro")
    assert "no figures of a kind that is known" in err
    assert "is not there" in err
