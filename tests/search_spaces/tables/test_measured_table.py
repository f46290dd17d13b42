from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import Layout
from search_spaces.tables.benchmark_problem import measured_on, problem_for, problems_in
from search_spaces.tables.measured_table import COLUMNS, REQUIRED_COLUMNS, parse_table, read_table, render_table
from tests.search_spaces.example_tables import ROW, only, table

PUBLISHED = Path(__file__).parents[3].parent / "shared" / "data" / "measured"


def problems_of(text: str) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        parse_table(text, "table.csv")
    return caught.value.problems


FAILED = {"outcome": "failed", "step_time_s": "", "peak_memory_gib": ""}


def test_a_row_becomes_an_observation_with_the_sources_engine_and_precision():
    (observation,) = only({})
    assert observation.layout == Layout(
        tensor_parallel=2,
        pipeline_parallel=2,
        data_parallel=2,
        micro_batch_size=4,
        grad_accum_steps=32,
        zero_stage=1,
        sequence_parallel=True,
        pipeline_schedule="1f1b",
        precision="bf16",
        attention_kernel="flash",
        engine="nanotron",
    )
    assert observation.model.num_key_value_heads == 32
    assert observation.cluster.num_gpus == 8
    assert (observation.step_time_s, observation.peak_memory_gib) == (3.5, 50.2)


def test_engine_precision_and_schedule_are_guessed_from_the_source_where_no_column_says_them():
    (observation,) = only({"source": "vtrain", "attention_kernel": "fused-softmax", "accelerator": "A100-SXM4-80GB"})
    assert observation.layout.attention_kernel == "math"
    assert observation.layout.precision == "fp16"
    assert observation.layout.engine == "megatron-deepspeed"
    (observation,) = only({"engine": "torch", "precision": "fp32", "num_nodes": "2", "virtual_pipeline_stages": "2"})
    assert observation.layout.engine == "torch"
    assert observation.layout.precision == "fp32"
    assert observation.layout.num_nodes == 2
    assert observation.layout.pipeline_schedule == "interleaved_1f1b"


def test_part_of_a_node_and_whole_nodes_are_clusters_and_a_duration_is_recorded_or_estimated():
    part, whole = only(
        {"num_gpus": "2", "tensor_parallel": "1", "data_parallel": "1", "grad_accum_steps": "64"},
        {"num_gpus": "16", "tensor_parallel": "4"},
    )
    assert (part.cluster.num_nodes, part.cluster.gpus_per_node) == (1, 2)
    assert (whole.cluster.num_nodes, whole.cluster.gpus_per_node, whole.layout.num_nodes) == (2, 8, 2)
    given, ran, failed = only({"duration_s": "99.5"}, {}, FAILED)
    assert (given.duration_s, ran.duration_s, failed.duration_s) == (99.5, 60 + 15 * 3.5, 60)


@pytest.mark.bad_input(43)
def test_missing_unknown_and_repeated_columns_are_all_named():
    text = table({k: v for k, v in ROW.items() if k != "step_time_s"} | {"step_tim_s": "1"})
    missing, unknown = problems_of(text)
    assert (missing.code, missing.key, missing.line) == ("missing_column", "step_time_s", 2)
    assert missing.fix == "add it; parlay export SEARCH writes a table that has them all"
    assert (unknown.code, unknown.fix) == ("unknown_column", "did you mean step_time_s?")
    with pytest.raises(InputError, match="column zero_stage occurs twice\n  fix: remove one of the two"):
        parse_table(table(ROW, columns=[*REQUIRED_COLUMNS, "zero_stage"]), "table.csv")


@pytest.mark.bad_input(43)
@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "p:TP,p:MBS,objective\n1,2,3.0\n"])
def test_what_is_no_measured_table_is_told_so_once(text: str):
    (problem,) = problems_of(text)
    assert (problem.code, problem.file, problem.message) == ("missing_column", "table.csv", "is not a measured table")
    assert ", ".join(REQUIRED_COLUMNS) in (problem.rule or "")
    assert "parlay import makes one of other programs' results" in (problem.fix or "")


@pytest.mark.bad_input(43)
@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"step_time_s": "F_oom"}, "step_time_s", "'F_oom'"),
        ({"step_time_s": "nan"}, "step_time_s", "'nan'"),
        ({"step_time_s": ""}, "step_time_s", "a row that ran has a step time"),
        ({"outcome": "oom"}, "step_time_s", "a row that is oom has no step time"),
        ({"outcome": "crashed"}, "outcome", "one of ok, oom, failed"),
        ({"gated_mlp": "yes"}, "gated_mlp", "0 or 1"),
        ({"num_layers": ""}, "num_layers", "is empty"),
        ({"hidden_size": "2049"}, "model.hidden_size", "multiple of num_attention_heads"),
        ({"accelerator": "abacus"}, None, "no accelerator is called 'abacus'"),
        ({"num_gpus": "4"}, "num_gpus", "is 4, but tensor_parallel 2 x pipeline_parallel 2 x data_parallel 2"),
        ({"grad_accum_steps": "31"}, "global_batch_size", "grad_accum_steps 31 x data_parallel 2 = 248"),
        ({"source": "somebody"}, "engine", "is missing and cannot be derived"),
    ],
)
def test_a_bad_row_is_reported_with_its_line(change, key, words):
    (problem,) = problems_of(table(ROW, ROW | change, ROW))
    assert (problem.file, problem.line, problem.key) == ("table.csv", 4, key)
    assert words in str(problem)


@pytest.mark.bad_input(43)
def test_a_trial_that_is_there_twice_rows_of_another_length_and_broken_quotes_are_reported():
    (problem,) = problems_of(table(*[ROW | {"search_id": "s-abcdef", "trial": "t0001"}] * 2))
    assert (problem.code, problem.fix) == ("duplicate_trial", "remove one of the two rows")
    short, bad = problems_of(table(ROW) + "a,b\n" + table(ROW | {"outcome": "crashed"}).splitlines()[-1])
    assert "2 cells where the header has 27" in short.message
    assert (bad.line, bad.key) == (5, "outcome"), "all rows are checked"
    (problem,) = problems_of(table(ROW) + '"open\n')
    assert problem.code == "csv"
    assert "a line break in it is quoted" in (problem.rule or "")


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lines_may_end_as_on_any_system(end):
    assert parse_table(table(ROW).replace("\n", end), "t.csv") == tuple(only({}))
    assert [p.line for p in problems_of(table(ROW, ROW | {"outcome": "crashed"}).replace("\n", end))] == [4]


def test_a_table_may_begin_with_the_mark_that_spreadsheets_write(tmp_path):
    (tmp_path / "t.csv").write_text(table(ROW), encoding="utf-8-sig")
    assert read_table(tmp_path / "t.csv") == tuple(only({}))


@pytest.mark.bad_input(43)
def test_a_file_that_is_no_table_is_told_what_to_give(tmp_path):
    with pytest.raises(InputError, match="fix: check the path") as caught:
        read_table(tmp_path / "none.csv")
    assert caught.value.problems[0].file is None, "the mistake is in the file that names the table"
    assert str(caught.value.at(file="search.yaml", line=3)).startswith(f"search.yaml:3: {tmp_path / 'none.csv'} cannot")
    (tmp_path / "latin.csv").write_bytes(b"problem\n\xe9\n")
    with pytest.raises(InputError, match=r"latin\.csv:2: not UTF-8\n  fix: save it as UTF-8"):
        read_table(tmp_path / "latin.csv")


def test_a_table_written_down_is_read_back_the_same():
    rows = only(
        {},
        FAILED | {"failure_reason": "gpu_oom", "search_id": "s-abcdef", "trial": "t0002", "kind": "search"},
        {"duration_s": "12.25", "queue_wait_s": "3.0", "step_time_p95_s": "3.6000000000000001", "cluster": "frontier"},
        {"rank_order": "tp-pp-dp", "overlap_comm": "1", "bucket_mib": "64"},
    )
    assert len({row.layout.key for row in rows}) == 2
    text = render_table(rows, ["measured on a\nTuesday"])
    assert text.startswith("# measured on a Tuesday\n" + ",".join(COLUMNS))
    assert parse_table(text, "t.csv") == tuple(rows)


@pytest.mark.security("csv_cells")
@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@cmd", "'=x", "a,b", 'say "x"', "plain"])
def test_text_that_a_spreadsheet_would_run_is_quoted_and_read_back_the_same(name: str):
    observation = replace(only({})[0], model_name=name, problem=name)
    text = render_table([observation])
    assert parse_table(text, "t.csv") == (observation,)
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in text.splitlines()[1].split(","))


def test_a_layouts_answer_is_the_median_of_the_rows_that_ran_and_oom_comes_before_an_unknown_cause():
    rows = only(*({"step_time_s": t, "peak_memory_gib": m} for t, m in (("3", "40"), ("9", "50"), ("4", ""))), FAILED)
    (problem,) = problems_in(rows).values()
    (answer,) = problem.results.values()
    assert (answer.outcome, answer.step_time_s, answer.peak_memory_gib) == ("ok", 4, 50)
    assert problem.result(rows[0].layout) == answer
    assert problem.result(Layout()) is None
    (problem,) = problems_in(only(FAILED, FAILED | {"outcome": "oom"})).values()
    assert [answer.outcome for answer in problem.results.values()] == ["oom"]


@pytest.mark.parametrize(
    ("ran", "failed"),
    [({"ffn_hidden_size": "8191"}, {}), ({}, {"data_parallel": "1"}), ({}, {"grad_accum_steps": "31"})],
)
def test_rows_that_failed_and_break_a_rule_of_every_engine_world_or_batch_are_dropped_and_counted(ran, failed):
    (problem,) = problems_in(only(ran, ran | failed | FAILED)).values()
    assert problem.rule_rows == 1
    assert [answer.outcome for answer in problem.results.values()] == ["ok"]


def test_a_problem_has_one_workload_and_a_row_that_ran():
    rows = only(FAILED | {"ffn_hidden_size": "8191"})
    with pytest.raises(InputError, match="1 rows of this workload all failed"):
        problem_for(rows, rows[0].model, rows[0].cluster, 256)
    (problem,) = problems_in(only(FAILED | {"vocab_size": "50257"})).values()
    assert (problem.rule_rows, len(problem.layouts)) == (0, 1)
    with pytest.raises(InputError, match="more than one model, cluster or global batch"):
        problems_in(only({}, {"num_layers": "17"}))


def test_a_searchs_rows_are_found_by_its_workload():
    rows = only(
        {},
        {"problem": "again", "micro_batch_size": "8", "grad_accum_steps": "16"},
        {"problem": "2B", "num_layers": "32"},
    )
    learned = replace(rows[0].model, position_embedding="learned")
    found = problem_for(rows, learned, rows[0].cluster, 256)
    assert found.layouts == (rows[0].layout, rows[1].layout)
    with pytest.raises(InputError, match=r"no row of this model on 1 x 8 h100-80gb with global batch 128") as caught:
        problem_for(rows, learned, rows[0].cluster, 128)
    assert caught.value.problems[0].fix.endswith("1B-8gpu, again, 2B")


def test_rows_of_such_a_machine_are_on_any_number_of_its_nodes_or_on_a_part_of_one():
    part = {"num_gpus": "2", "tensor_parallel": "1", "data_parallel": "1", "grad_accum_steps": "64"}
    rows = only({}, {"num_gpus": "16", "tensor_parallel": "4"}, part, {"gpus_per_node": "4"})
    others = only({"accelerator": "a100-80gb"})
    cluster = rows[0].cluster
    assert measured_on([*rows, *others], cluster) == tuple(rows[:3])
    with pytest.raises(InputError, match="no row of h100-80gb with 8 GPUs a node"):
        measured_on([rows[3], *others], cluster)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problems", "layouts", "rule_rows"),
    [("nanotron_1b_8b.csv", 14, 1553, 58), ("vtrain_3b_18b.csv", 2, 41, 0), ("vtrain_single_node.csv", 144, 1440, 0)],
)
def test_the_published_tables_are_read_whole_and_written_back_the_same(name, problems, layouts, rule_rows):
    if not (PUBLISHED / name).exists():
        pytest.skip(f"no measured tables: {PUBLISHED} is not there")
    read = read_table(PUBLISHED / name)
    found = problems_in(read)
    assert len(found) == problems
    assert sum(len(problem.layouts) for problem in found.values()) == layouts
    assert sum(problem.rule_rows for problem in found.values()) == rule_rows
    assert parse_table(render_table(read), name) == read


@pytest.mark.parametrize(
    "features",
    [
        {"qk_norm": True, "attention_head_size": 32, "rotary_base": 1_000_000},
        {"qkv_bias": True, "sliding_window": 8, "full_attention_every": 2},
        {"linear_biases": True, "attention_sinks": True, "post_norms": True, "activation": "gelu"},
        {"gated_mlp": False, "activation": "squared_relu"},
    ],
)
def test_a_table_keeps_the_features_of_a_model(features):
    (observation,) = only({})
    given = replace(observation, model=replace(observation.model, **features))
    assert parse_table(render_table([given]), "t.csv") == (given,)
    found = problem_for([given, observation], given.model, given.cluster, given.global_batch_size)
    assert found.model == given.model
