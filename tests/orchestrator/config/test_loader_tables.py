"""Search files that refer to measured tables and cluster files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError
from search_spaces.tables.measured_table import render_table
from tests.kit import MINIMAL, TABLE_SEARCH, loaded, refusals
from tests.search_spaces.example_tables import only


def test_a_cluster_file_is_found_from_the_search_files_folder(tmp_path: Path):
    (tmp_path / "ours.yaml").write_text("accelerator: A100-SXM4-80GB\ngpus_per_node: 4\nnum_nodes: 3\n")
    spec = loaded(tmp_path, MINIMAL.replace("this-machine", "ours.yaml"), "global_batch_size=24")
    assert (spec.cluster.accelerator.name, spec.cluster.num_gpus) == ("a100-80gb", 12)


def test_mistakes_in_a_cluster_file_are_reported_with_its_own_lines(tmp_path: Path):
    (tmp_path / "ours.yaml").write_text("accelerator: cpu\ngpus_per_node: 0\nnodes: 3\n")
    found = refusals(tmp_path, MINIMAL.replace("this-machine", "./ours.yaml"))
    assert {p.file for p in found} == {str(tmp_path / "ours.yaml")}
    assert [(p.key, p.line) for p in found] == [("num_nodes", None), ("gpus_per_node", 2), ("nodes", 3)]


def test_a_measured_table_is_a_closed_set_that_no_longer_depends_on_the_file(tmp_path: Path):
    rows = only({}, {"tensor_parallel": "4", "data_parallel": "1", "grad_accum_steps": "64"})
    (tmp_path / "table.csv").write_text(render_table(rows))
    spec = loaded(tmp_path, TABLE_SEARCH)
    assert spec.candidates == tuple(row.layout for row in rows)
    assert spec.launcher.table == str(tmp_path / "table.csv")
    (tmp_path / "table.csv").unlink()
    again = SearchSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert candidates_of(again).layouts == spec.candidates


def test_a_table_without_a_row_for_this_search_is_refused(tmp_path: Path):
    (tmp_path / "table.csv").write_text(render_table(only({})))
    found = refusals(tmp_path, TABLE_SEARCH, "global_batch_size=128")
    assert [(p.code, p.key, p.line) for p in found] == [("no_measurement", "space.candidates", 12)]
    (tmp_path / "other.csv").write_text(render_table(only({})))
    found = refusals(tmp_path, TABLE_SEARCH, "global_batch_size=128", "launcher.table=other.csv")
    assert [(p.code, p.key, p.line) for p in found] == [
        ("no_measurement", "space.candidates", 12),
        ("no_measurement", "launcher.table", None),
    ]


def test_a_table_that_is_to_be_run_holds_to_every_rule(tmp_path: Path):
    few = {"engine": "torch", "pipeline_parallel": "4", "data_parallel": "1", "micro_batch_size": "256"}
    (tmp_path / "table.csv").write_text(render_table(only({}, few | {"grad_accum_steps": "1"})))
    spec = loaded(tmp_path, TABLE_SEARCH, "launcher={kind: local}")
    with pytest.raises(InputError, match="none of 2 layouts is valid") as caught:
        candidates_of(spec)
    (problem,) = caught.value.problems
    assert "nanotron.engine_mismatch rejected 1" in problem.message
    assert problem.line == 12


def test_a_bad_row_is_reported_with_its_line_and_once_where_the_table_is_both_candidates_and_answers(tmp_path: Path):
    (tmp_path / "table.csv").write_text(render_table(only({})).replace(",256,", ",255,", 1))
    for changes in ((), ("launcher={kind: local}",)):
        found = refusals(tmp_path, TABLE_SEARCH, *changes)
        assert [(p.file, p.key, p.line) for p in found] == [(str(tmp_path / "table.csv"), "global_batch_size", 2)]
