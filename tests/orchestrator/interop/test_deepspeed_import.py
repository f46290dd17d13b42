"""DeepSpeed's autotuning_results, read as a measured table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.spec import SearchSpec
from orchestrator.interop.deepspeed_import import read_autotuning
from orchestrator.interop.results_import import read_results
from search_spaces.errors import InputError
from tests.orchestrator.past_searches import SEARCH, spec_in

GPUS = SEARCH.replace("accelerator: cpu, gpus_per_node: 2", "accelerator: a100-40gb, gpus_per_node: 4") + (
    "baseline: {tensor_parallel: 1, pipeline_parallel: 1, micro_batch_size: 1, activation_checkpointing: full,"
    " engine: deepspeed}\n"
)
METRICS = {"forward": 1e5, "latency": 2.5e5, "throughput": 64.0, "FLOPS_per_gpu": 1e12}


@pytest.fixture
def spec(tmp_path) -> SearchSpec:
    text = GPUS.replace("micro_batch_size: [1, 2, 4, 8]", "micro_batch_size: [1, 2, 4, 8], engine: deepspeed")
    return spec_in(tmp_path, text=text)


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


def test_an_experiment_that_was_measured_is_a_row(spec, tmp_path):
    write_experiment(tmp_path / "r", "z2_gas2_tmbspg2", METRICS)
    found = read_autotuning(tmp_path / "r", spec)
    (row,) = found.rows
    assert (row.outcome, row.step_time_s, row.global_batch_size, row.source) == ("ok", 0.25, 16, "deepspeed")
    layout = row.layout
    assert (layout.data_parallel, layout.tensor_parallel, layout.pipeline_parallel) == (4, 1, 1)
    assert (layout.zero_stage, layout.precision, layout.overlap_comm, layout.bucket_mib) == (2, "fp16", True, 95)
    assert (layout.activation_checkpointing, layout.engine) == ("full", "deepspeed")
    assert "slightly too high" in found.notes[0]


def test_ranks_that_the_batch_leaves_over_share_the_layers(spec, tmp_path):
    write_experiment(tmp_path / "r", "z2", METRICS, train_batch_size=8)
    (row,) = read_autotuning(tmp_path / "r", spec).rows
    assert (row.layout.data_parallel, row.layout.tensor_parallel) == (2, 2)


def test_failures_are_told_apart_and_what_never_ended_is_counted(spec, tmp_path):
    results = tmp_path / "r"
    write_experiment(results, "a", errors="RuntimeError: CUDA out of memory. Tried to allocate")
    write_experiment(results, "b", errors="ValueError: an error of the script")
    write_experiment(results, "c")
    write_experiment(results, "d", METRICS, zero_optimization={"stage": 3, "offload_param": {"device": "cpu"}})
    write_experiment(results, "profile_model_info", train_batch_size="auto")
    (results / "summary.txt").write_text("not an experiment")
    found = read_autotuning(results, spec)
    assert [row.outcome for row in found.rows] == ["oom", "failed"]
    assert found.left_out == {"no_layout_field": 1, "unfinished": 1}


def test_experiments_of_less_than_a_node_keep_their_ranks(spec, tmp_path):
    folder = write_experiment(tmp_path / "r", "a", METRICS, train_batch_size=8)
    described = json.loads((folder / "exp.json").read_text())
    (folder / "exp.json").write_text(json.dumps(described | {"num_gpus": 2}))
    (row,) = read_autotuning(tmp_path / "r", spec).rows
    assert (row.cluster.gpus_per_node, row.layout.num_gpus) == (2, 2)


@pytest.mark.bad_input(43)
@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("exp.json", "[]", "exp.json: holds a list"),
        ("exp.json", '{"num_gpus": 0, "num_nodes": 1}', "exp.json: num_gpus: is 0"),
        ("metrics.json", '{"throughput": "fast"}', "throughput: is 'fast'"),
        ("metrics.json", '{"throughput": -1}', "throughput: is -1"),
        ("metrics.json", '{"throughput": 5e-324}', "step_time_s: is inf s in these results"),
        ("metrics.json", "__reduce__", "metrics.json: not JSON"),
        ("ds_config.json", '{"train_batch_size": "auto"}', "lacks one of the three batch sizes"),
        (
            "ds_config.json",
            '{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}',
            "3 data-parallel ranks x 1 stages do not divide 1 nodes x 4 GPUs",
        ),
    ],
    ids=["list", "no-gpus", "text", "negative", "tiny", "no-json", "auto", "world"],
)
def test_a_file_that_cannot_be_is_named(spec, tmp_path, file, text, told):
    folder = write_experiment(tmp_path / "r", "a", METRICS)
    (folder / file).write_text(text)
    with pytest.raises(InputError) as refused:
        read_autotuning(tmp_path / "r", spec)
    assert told in str(refused.value)
    assert str(folder) in str(refused.value)


def test_stages_that_do_not_fit_are_answered_with_the_key_that_says_them(tmp_path):
    two_stages = GPUS.replace("pipeline_parallel: 1, micro", "pipeline_parallel: 2, micro")
    write_experiment(tmp_path / "r", "a", METRICS)
    with pytest.raises(InputError, match="4 data-parallel ranks x 2 stages do not divide") as refused:
        read_autotuning(tmp_path / "r", spec_in(tmp_path, text=two_stages))
    assert "set baseline.pipeline_parallel to the stages" in (refused.value.problems[0].fix or "")
    assert len(read_autotuning(tmp_path / "r", spec_in(tmp_path, text=GPUS)).rows) == 1


@pytest.mark.bad_input(43)
def test_a_folder_without_experiments_is_told_what_is_looked_for(spec, tmp_path):
    with pytest.raises(InputError, match="a folder for each experiment"):
        read_results(tmp_path, spec)
    with pytest.raises(InputError, match="leave --objective out, or name results"):
        read_results(tmp_path, spec, "tokens_per_sec")
