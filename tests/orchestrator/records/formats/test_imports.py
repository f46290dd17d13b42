"""Results of DeepHyper and of DeepSpeed's autotuning, read as a measured table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.spec import SearchSpec
from orchestrator.records.formats.deephyper import OBJECTIVES, deephyper_results, parse_results
from orchestrator.records.formats.deepspeed import read_autotuning
from orchestrator.records.formats.registry import read_results
from orchestrator.records.observations import TableRows
from search_spaces.errors import InputError
from search_spaces.tables.measured_table import parse_table
from tests.orchestrator.past_searches import failed, layouts, measured, past, pruned, spec_in
from trials.trial import FailureReason

THEIRS = """\
p:TP,p:MBS,objective,job_id,job_status,m:timestamp_submit,m:timestamp_gather
1,2,256.0,0,DONE,0.5,30.5
2,4.0,F_oom,1,DONE,31.0,61.0
2,8,F,2,DONE,62.0,72.0
1,3,200.0,3,DONE,73.0,93.0
1,1,F_cancelled_by_user,4,CANCELLED,94.0,95.0
"""


@pytest.fixture
def spec(tmp_path) -> SearchSpec:
    return spec_in(tmp_path, baseline={"tensor_parallel": 2, "pipeline_parallel": 1, "micro_batch_size": 1})


def parse(text: str, spec: SearchSpec, objective: str | None = "tokens_per_sec", **names: str) -> TableRows:
    return parse_results(text, "results.csv", spec, objective, names)


def test_others_names_and_failures_are_understood(spec):
    found = parse(THEIRS, spec)
    ran, full, broke = found.rows
    assert (ran.layout.tensor_parallel, ran.layout.data_parallel, ran.layout.micro_batch_size) == (1, 2, 2)
    assert (ran.layout.grad_accum_steps, ran.global_batch_size) == (2, 8)
    assert (ran.outcome, ran.step_time_s, ran.recorded_duration_s) == ("ok", 8 * 16 / 256, 30.0)
    assert (full.outcome, full.layout.micro_batch_size, full.step_time_s) == ("oom", 4, None)
    assert (broke.outcome, broke.failure_reason, broke.source) == ("failed", None, "deephyper")
    assert found.left_out == {"batch": 1, "cancelled": 1}


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffp:tp,p:mbs,objective\r\n1,2,256\r\n",
        '# note,"x\np:tp,p:mbs,objective\n1,2,256\n',
        "p:tp,p:mbs,objective\r1,2,256\r",
    ],
    ids=["a spreadsheet's", "a remark", "a mac's ends of line"],
)
def test_a_file_is_read_with_its_first_column_whoever_saved_it(spec, tmp_path, text):
    (tmp_path / "results.csv").write_text(text, newline="")
    (row,) = read_results(tmp_path / "results.csv", spec, "tokens_per_sec")[1].rows
    assert (row.layout.tensor_parallel, row.layout.micro_batch_size) == (1, 2)


@pytest.mark.parametrize(("cell", "stage"), [("True", 1), ("False", 0), ("1", 1), ("2.0", 2)])
def test_zero_is_a_stage_or_a_switch_of_the_first_one(spec, cell, stage):
    (row,) = parse(f"p:tp,p:zero1,p:engine,objective\n1,{cell},deepspeed,256\n", spec).rows
    assert row.layout.zero_stage == stage


def test_what_is_read_is_a_measured_table_of_the_searchs_workload(spec):
    rows = parse_table(parse(THEIRS, spec).text("from results.csv"), "out.csv")
    assert rows == parse(THEIRS, spec).rows
    assert {(row.model, row.cluster) for row in rows} == {(spec.model, spec.cluster)}
    assert {row.layout.engine for row in rows} == {"torch"}


def test_what_parlay_exported_is_read_without_a_word_more(spec):
    first, second, third, fourth = layouts()[:4]
    search = past(
        spec,
        measured("t0001", first),
        pruned("t0002", second, step_time_s=0.9),
        failed("t0003", third, FailureReason.HOST_OOM),
        failed("t0004", fourth, FailureReason.NODE_FAILURE),
    )
    found = parse(deephyper_results(search, spec).content.decode(), spec, None)
    assert [(row.layout, row.outcome, row.step_time_s, row.failure_reason) for row in found.rows] == [
        (first, "ok", 0.5, None),
        (second, "ok", 0.9, "pruned"),
        (third, "oom", None, "host_oom"),
    ]
    assert (found.rows[0].peak_memory_gib, found.rows[0].queue_wait_s) == (0.25, 12.0)
    assert found.left_out == {"node_failure": 1}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_comes_back_as_the_time_of_a_step(spec, objective):
    tokens, ranks, step_time_s = 8 * 16, 2, 0.5
    value = {
        "step_time_s": -step_time_s,
        "samples_per_sec": 8 / step_time_s,
        "tokens_per_sec": tokens / step_time_s,
        "tokens_per_sec_per_gpu": tokens / step_time_s / ranks,
        "node_hours_per_billion_tokens": -1e9 / (tokens / step_time_s) / 3600,
        "model_tflops_per_gpu": spec.model.model_flops_per_token * tokens / step_time_s / ranks / 1e12,
    }[objective]
    (row,) = parse(f"p:tensor_parallel,objective\n2,{value:.25f}\n", spec, objective).rows
    assert row.step_time_s == pytest.approx(step_time_s)


def test_accumulation_that_is_told_makes_a_batch_of_its_own(spec):
    (row,) = parse("p:mbs,p:gas,objective\n2,8,100\n", spec).rows
    assert (row.global_batch_size, row.layout.grad_accum_steps, row.problem[-6:]) == (16, 8, "-gbs16")


def test_a_parameter_that_is_no_layout_field_is_named_or_left_out(spec):
    text = "p:shards,p:lr,objective\n1,0.1,100\n"
    with pytest.raises(InputError) as refused:
        parse(text, spec)
    assert [problem.key for problem in refused.value.problems] == ["shards", "lr"]
    assert "ignore it with --name lr=" in (refused.value.problems[1].fix or "")
    (row,) = parse(text, spec, shards="tensor_parallel", lr="").rows
    assert row.layout.tensor_parallel == 1


@pytest.mark.bad_input(43)
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("p:tp,objective\n1,nan\n", "results.csv:2: objective: is 'nan'"),
        ("p:tp,objective\n1,0.0\n", "results.csv:2: objective: is 0"),
        ("p:tp,objective\n1,1e-99\n", "results.csv:2: step_time_s: is 1.28e+101 s in these results"),
        ("p:tp,objective\n1.5,3\n", "results.csv:2: tensor_parallel: is '1.5'"),
        ("p:tp,objective\n0,3\n", "tensor_parallel"),
        ("p:engine,objective\n=cmd|x,3\n", "engine"),
        ("p:tp,objective\n1,3,4\n", "results.csv:2: 3 cells where the header has 2"),
        ('p:tp,objective\n"1,3\n', "results.csv:2: "),
        ("p:tp,p:TP,objective\n1,2,3\n", "p:TP and another column both mean tensor_parallel"),
        ("p:tp,p:tp,objective\n1,2,3\n", "results.csv:1: p:tp: appears 2 times"),
        ("p:tp,objective,objective\n1,3,4\n", "results.csv:1: objective: appears 2 times"),
        ("p:tp,score\n1,3\n", "results.csv:1: objective: column objective is missing"),
        ("p:overlap_comm,objective\nmaybe,3\n", "results.csv:2: overlap_comm: is 'maybe'"),
        ("# of ours\n\np:tp,score\n1,3\n", "results.csv:3: objective: column objective is missing"),
        ("# of ours\np:shards,objective\n1,3\n", "results.csv:2: shards: p:shards is not a layout field"),
        ("# of ours\np:tp,objective\n1,fast\n", "results.csv:3: objective: is 'fast'"),
    ],
    ids=lambda value: None if "\n" in value else value[:40],
)
def test_a_cell_that_cannot_be_is_refused_with_its_line(spec, text, told):
    with pytest.raises(InputError) as refused:
        parse(text, spec)
    assert told in str(refused.value)
    assert all(problem.rule or problem.fix for problem in refused.value.problems)


def test_nothing_is_guessed_of_the_objective_or_of_a_field_that_matters(spec, tmp_path):
    with pytest.raises(InputError, match="--objective samples_per_sec or"):
        parse("p:tp,objective\n1,3\n", spec, None)
    with pytest.raises(InputError, match="did you mean tokens_per_sec"):
        parse("p:tp,objective\n1,3\n", spec, "token_per_sec")
    with pytest.raises(InputError, match="is not a parameter of the file"):
        parse("p:tp,objective\n1,3\n", spec, PP="pipeline_parallel")
    without = spec_in(tmp_path, "space.zero_stage=[0, 1]", "space.engine=deepspeed")
    with pytest.raises(InputError, match="pipeline_parallel, micro_batch_size, zero_stage") as refused:
        parse("p:tp,objective\n1,3\n", without)
    assert refused.value.problems[0].fix == "add it to the search file's baseline"
    (row,) = parse("p:tp,p:pp,p:mbs,p:zero,objective\n1,1,2,1,3\n", without).rows
    assert (row.layout.zero_stage, row.layout.engine) == (1, "deepspeed")


def test_all_bad_rows_are_reported_at_once(spec):
    with pytest.raises(InputError) as refused:
        parse("p:tp,objective\nx,3\n1,3\n1,y\n", spec)
    assert [problem.line for problem in refused.value.problems] == [2, 4]


GPUS = {
    "cluster": {"accelerator": "a100-40gb", "gpus_per_node": 4},
    "baseline": dict.fromkeys(("tensor_parallel", "pipeline_parallel", "micro_batch_size"), 1)
    | {"activation_checkpointing": "full", "engine": "deepspeed"},
}
METRICS = {"forward": 1e5, "latency": 2.5e5, "throughput": 64.0, "FLOPS_per_gpu": 1e12}


@pytest.fixture
def on_gpus(tmp_path) -> SearchSpec:
    return spec_in(tmp_path, "space.engine=deepspeed", **GPUS)


def write_experiment(results: Path, name: str, metrics: dict | None = None, errors: str = "", **config: Any) -> Path:
    """Write an experiment's folder as deepspeed/autotuning/scheduler.py does."""
    folder = results / name
    folder.mkdir(parents=True)
    whole = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e7},
        "autotuning": {"enabled": True, "metric_path": str(folder / "metrics.json")},
    } | config
    described = {"name": name, "num_gpus": 4, "num_nodes": 1, "ds_config": whole, "exp_id": 0}
    (folder / "exp.json").write_text(json.dumps(described))
    (folder / "ds_config.json").write_text(json.dumps(whole))
    (folder / "stderr.log").write_text(errors)
    if metrics is not None:
        (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


def test_an_experiment_that_was_measured_is_a_row(on_gpus, tmp_path):
    write_experiment(tmp_path / "r", "z2_gas2_tmbspg2", METRICS)
    form, found = read_results(tmp_path / "r", on_gpus)
    (row,) = found.rows
    assert (row.outcome, row.step_time_s, row.global_batch_size, row.source) == ("ok", 0.25, 16, "deepspeed")
    layout = row.layout
    assert (layout.data_parallel, layout.tensor_parallel, layout.pipeline_parallel) == (4, 1, 1)
    assert (layout.zero_stage, layout.precision, layout.overlap_comm, layout.bucket_mib) == (2, "fp16", True, 95)
    assert (layout.activation_checkpointing, layout.engine) == ("full", "deepspeed")
    assert "slightly too high" in form.notes[0]


def test_ranks_that_the_batch_leaves_over_share_the_layers_and_experiments_of_less_than_a_node_keep_theirs(
    on_gpus, tmp_path
):
    folder = write_experiment(tmp_path / "r", "z2", METRICS, train_batch_size=8)
    (row,) = read_autotuning(tmp_path / "r", on_gpus).rows
    assert (row.layout.data_parallel, row.layout.tensor_parallel) == (2, 2)
    described = json.loads((folder / "exp.json").read_text())
    (folder / "exp.json").write_text(json.dumps(described | {"num_gpus": 2}))
    (row,) = read_autotuning(tmp_path / "r", on_gpus).rows
    assert (row.cluster.gpus_per_node, row.layout.num_gpus) == (2, 2)


def test_failures_are_told_apart_and_what_never_ended_is_counted(on_gpus, tmp_path):
    results = tmp_path / "r"
    write_experiment(results, "a", errors="RuntimeError: CUDA out of memory. Tried to allocate")
    write_experiment(results, "b", errors="ValueError: an error of the script")
    write_experiment(results, "c")
    write_experiment(results, "d", METRICS, zero_optimization={"stage": 3, "offload_param": {"device": "cpu"}})
    write_experiment(results, "profile_model_info", train_batch_size="auto")
    (results / "summary.txt").write_text("not an experiment")
    found = read_autotuning(results, on_gpus)
    assert [row.outcome for row in found.rows] == ["oom", "failed"]
    assert found.left_out == {"no_layout_field": 1, "unfinished": 1}


@pytest.mark.bad_input(43)
@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("exp.json", "[]", "exp.json: not a JSON object"),
        ("exp.json", '{"num_gpus": 0, "num_nodes": 1}', "exp.json: num_gpus: is 0"),
        ("metrics.json", '{"throughput": "fast"}', "throughput: is 'fast'"),
        ("metrics.json", '{"throughput": 5e-324}', "step_time_s: is inf s in these results"),
        ("metrics.json", "__reduce__", "metrics.json: not a JSON object"),
        ("ds_config.json", '{"train_batch_size": "auto"}', "lacks one of the three batch sizes"),
        (
            "ds_config.json",
            '{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}',
            "3 data-parallel ranks x 1 stages do not divide 1 nodes x 4 GPUs",
        ),
    ],
    ids=["list", "no-gpus", "text", "tiny", "no-json", "auto", "world"],
)
def test_a_file_that_cannot_be_is_named(on_gpus, tmp_path, file, text, told):
    folder = write_experiment(tmp_path / "r", "a", METRICS)
    (folder / file).write_text(text)
    with pytest.raises(InputError) as refused:
        read_autotuning(tmp_path / "r", on_gpus)
    assert told in str(refused.value)
    assert str(folder) in str(refused.value)


def test_stages_that_do_not_fit_are_answered_with_the_key_that_says_them(tmp_path):
    write_experiment(tmp_path / "r", "a", METRICS)
    with pytest.raises(InputError, match="4 data-parallel ranks x 2 stages do not divide") as refused:
        read_autotuning(tmp_path / "r", spec_in(tmp_path, "baseline.pipeline_parallel=2", **GPUS))
    assert "set baseline.pipeline_parallel to the stages" in (refused.value.problems[0].fix or "")
    assert len(read_autotuning(tmp_path / "r", spec_in(tmp_path, **GPUS)).rows) == 1


@pytest.mark.bad_input(43)
def test_a_folder_without_experiments_is_told_what_is_looked_for(on_gpus, tmp_path):
    with pytest.raises(InputError, match="a folder for each experiment"):
        read_results(tmp_path, on_gpus)
    with pytest.raises(InputError, match="leave --objective out, or name results"):
        read_results(tmp_path, on_gpus, "tokens_per_sec")
