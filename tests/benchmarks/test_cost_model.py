"""Scores of the cost model benchmark, on rows with known truth."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import cost_model
from benchmarks.cost_model import Case, Posteriors, score
from benchmarks.measured import with_links
from search_spaces.cost_model.posterior import StepTimePosterior
from search_spaces.hardware.links import Fabric
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


def cold(found: Case) -> dict:
    return score(found, Posteriors.after(found, [], 0))


def with_outcomes(found: Case, outcomes: dict[int, str]) -> Case:
    """The case with these rows failed."""
    changed = [
        replace(row, outcome=outcomes[i], step_time_s=None, peak_memory_gib=None) if i in outcomes else row
        for i, row in enumerate(found.rows)
    ]
    return replace(found, rows=tuple(changed))


def test_errors_are_the_prediction_over_the_measurement_and_ranks_do_not_care():
    line = cold(case(time_factor=1.25, memory_factor=1.35))
    assert line["time_error_median"] == pytest.approx(0.2, abs=1e-3)
    assert line["rank_correlation"] == pytest.approx(1)
    # Cold, memory is taken to be 8 % and half its uncertainty above the estimate.
    assert line["memory_error_median"] == pytest.approx(0.2, abs=0.02)
    assert (line["ok_rows"], line["failed_rows"], line["oom_recalled"]) == (12, 0, None)


@pytest.mark.parametrize(("peak_gib", "proven"), [(75.0, 1), (70.0, 0)], ids=["near-the-limit", "far-from-it"])
def test_a_smaller_micro_batch_near_the_limit_proves_that_a_failure_was_of_memory(peak_gib: float, proven: int):
    found = case()
    changed = [
        replace(row, peak_memory_gib=peak_gib)
        if (row.layout.tensor_parallel, row.layout.micro_batch_size) == (4, 1)
        else replace(row, peak_memory_gib=None)
        for row in found.rows
    ]
    four = next(i for i, r in enumerate(changed) if (r.layout.tensor_parallel, r.layout.micro_batch_size) == (4, 4))
    line = cold(with_outcomes(replace(found, rows=tuple(changed)), {four: "failed"}))
    assert (line["failed_rows"], line["oom_rows"]) == (1, proven)


def test_a_source_stands_for_the_machine_it_measured_on_and_a_named_cluster_wins():
    (row,) = only({})
    assert with_links(row).links.fabric.by_nodes[-1] == (64, 32.94)
    assert with_links(replace(row, cluster_name="dgx-h100")).links.fabric.by_nodes == ()
    assert with_links(replace(row, source="vtrain")).links.fabric == Fabric(100, 5, p2p_gb_per_s=25)
    part_of_a_node = replace(row, cluster=replace(row.cluster, gpus_per_node=4))
    assert with_links(part_of_a_node).links_are_assumed
    assert with_links(replace(row, cluster_name="ours")).links_are_assumed


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
