"""Outcomes from logs of real trainers, line by line and without a process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import gpt, trial
from tests.trials.trainers.common.test_log_lines import MEGATRON_DEEPSPEED, MEGATRON_WORLD, NEOX
from trials.analysis.early_stopping import Incumbents
from trials.attempt_result import LaunchStatus, Liveness, classify
from trials.external.measurement import LogMeasurement
from trials.files.folders import AttemptFolder, read_lines, write_json
from trials.measure_rules import MeasureRules
from trials.measurement.protocol import StopReason
from trials.measurement.step_log import MetricsWriter, StepRecord
from trials.outcome_types import ThroughputBound
from trials.ranks.failures import TrialFailure
from trials.ranks.report import Report
from trials.trial import FailureReason, Flag, TrialSpec, TrialState

GPT3_175B = gpt(96, 12288, 96, tied_embeddings=True)
STEP_TIMES_MS = (344656.1, 347319.2, 345333.7, 346430.5, 347071.6, 344835.7)
"""Log of the training that printed `MEGATRON_DEEPSPEED`, iterations 5 to 10."""
RULES = MeasureRules(min_steps=5, max_steps=20, max_warmup_steps=1, time_limit_s=10**6)


def recorded_spec(kind: str = "megatron-deepspeed", **changes) -> TrialSpec:
    degrees = {"num_nodes": 8, "tensor_parallel": 8, "pipeline_parallel": 8, "grad_accum_steps": 1536}
    layout = Layout(**degrees, pipeline_schedule="1f1b", precision="fp16", attention_kernel="flash", engine=kind)
    place = {"global_batch_size": 1536, "num_gpus": 64, "gpus_per_node": 8, "accelerator": "a100-80gb"}
    trainer = {"kind": kind, "script": "pretrain_gpt.py"}
    return trial(**{"layout": layout, "model": GPT3_175B, "measure": RULES, "trainer": trainer, **place, **changes})


def recorded_lines(times: int = 1) -> list[str]:
    return [
        MEGATRON_DEEPSPEED.replace("       6/", f"{number:8d}/").replace("347319.2", str(ms))
        for number, ms in enumerate(STEP_TIMES_MS * times, start=5)
    ]


def attempt_in(folder: Path, spec: TrialSpec) -> AttemptFolder:
    return AttemptFolder(folder / spec.search_id / "trials/t0001/a1")


def report_in(folder: Path, spec: TrialSpec) -> Report:
    return Report(spec, attempt_in(folder, spec), rank=spec.num_gpus - 1, restart=0, started_at=1e9)


def follow(folder: Path, spec: TrialSpec, lines: list[str], report: Report | None = None) -> LogMeasurement:
    attempt = attempt_in(folder, spec)
    attempt.path.mkdir(parents=True, exist_ok=True)
    report = report or report_in(folder, spec)
    measurement = LogMeasurement(spec, attempt, report, {"python": "3.11"}, MetricsWriter(attempt.metrics()))
    for line in lines:
        measurement.feed(line)
    return measurement


def test_a_recorded_megatron_deepspeed_log_becomes_an_outcome(tmp_path):
    spec = recorded_spec()
    measurement = follow(tmp_path, spec, recorded_lines())
    assert measurement.measurement.stop is None  # it would have gone on
    outcome = measurement.outcome()
    result = classify(spec, outcome, LaunchStatus(Liveness.ENDED))
    assert result.state is TrialState.MEASURED
    measured = outcome.measured
    assert measured.step_time_s == pytest.approx(346.4305)
    assert measured.tokens_per_sec_per_gpu == pytest.approx(141.88, rel=1e-3)  # as it printed itself
    assert measured.mfu == pytest.approx(0.49, abs=0.02)
    assert measured.fastest_rank_step_time_s is None
    checks = {check["name"]: check for check in outcome.proof["cross_checks"]}
    assert set(checks) == {"tokens_per_sec", "samples_per_sec", "tflops", "seconds_between_lines"}
    assert all(check["agrees"] for check in checks.values())
    assert outcome.proof["global_batch_size"] == 1536
    assert "unproven" in outcome.flags
    assert "throughput_mismatch" not in outcome.flags
    [first, *_] = read_lines(StepRecord, attempt_in(tmp_path, spec).metrics())
    assert (first.loss, first.grad_norm, first.samples, first.fastest_rank_step_time_s) == (11.00214, 0.0, 1536, None)


def test_what_is_doubtful_of_a_measurement_is_flagged(tmp_path):
    measurement = follow(tmp_path, recorded_spec(), recorded_lines())
    assert not {Flag.TIME_LIMIT, Flag.EMULATED_DEVICE} & {*measurement.outcome().flags}
    measurement.end_for_time()
    assert Flag.TIME_LIMIT in measurement.outcome().flags
    on_cpu = follow(tmp_path, recorded_spec(accelerator="cpu"), recorded_lines()).outcome()
    assert Flag.EMULATED_DEVICE in on_cpu.flags
    lines = [line.replace("TFLOPs: 152.20", "TFLOPs: 999.0") for line in recorded_lines()]
    outcome = follow(tmp_path, recorded_spec(), lines).outcome()
    assert Flag.THROUGHPUT_MISMATCH in outcome.flags
    assert [check["name"] for check in outcome.proof["cross_checks"] if not check["agrees"]] == ["tflops"]
    for width, is_wide in ((1e-9, True), (1.0, False)):
        rules = replace(RULES, min_steps=8, max_steps=8, ci_relative_width=width)
        outcome = follow(tmp_path, recorded_spec(measure=rules), recorded_lines(times=2)).outcome()
        assert (Flag.WIDE_INTERVAL in outcome.flags) is is_wide


ANY_KIND = {"kind": "command", "template": "train", "patterns": {"step_time_s": r"(\S+) s for the step"}}


@pytest.mark.parametrize(
    ("line", "grad_accum_steps", "most"),
    [("step {0}: loss 2.{0}", 1, 5), ("step {0}, loss 2.{0}", 8, 8), ("read {0} of 1000 shards", 1, 10**9)],
)
def test_lines_like_steps_are_unread_steps_once_too_few_reports_could_follow(tmp_path, line, grad_accum_steps, most):
    layout = Layout(data_parallel=64, grad_accum_steps=grad_accum_steps, engine="command")
    spec = recorded_spec(layout=layout, global_batch_size=layout.global_batch_size, trainer=ANY_KIND)
    lines = [line.format(number) for number in range(1, 101)]  # of the 31 steps it trains, every 5th may be reported
    assert follow(tmp_path, spec, lines[:most]).has_unread_steps is False
    assert follow(tmp_path, spec, lines).has_unread_steps is (most < len(lines))
    assert follow(tmp_path, spec, [*lines[:most], "0.5 s for the step", *lines]).has_unread_steps is False


def test_what_other_ranks_say_of_the_layout_is_found_in_their_logs(tmp_path):
    spec = recorded_spec()
    measurement = follow(tmp_path, spec, recorded_lines())
    log = attempt_in(tmp_path, spec).rank_log(0)
    words = MEGATRON_WORLD.replace("data-parallel size: 4", "data-parallel size: 1").replace(
        "pipeline-model-parallel size: 2", "pipeline-model-parallel size: 8"
    )
    log.write_text(f"{words}\nsetting number of micro-batches to constant 1536\n")
    outcome = measurement.outcome()
    assert outcome.proof["unproven"] == []
    log.write_text(MEGATRON_WORLD + "\n")
    with pytest.raises(TrialFailure, match="pipeline_parallel is 2, the spec says 8") as caught:
        measurement.outcome()
    assert caught.value.reason is FailureReason.RESULT_INVALID


def test_a_log_of_another_batch_or_rate_is_no_number(tmp_path):
    lines = [line.replace("batch size:  1536", "batch size:   768") for line in recorded_lines()]
    with pytest.raises(TrialFailure, match="global_batch_size is 768, the spec says 1536"):
        follow(tmp_path, recorded_spec(), lines).outcome()
    layout = Layout(data_parallel=2, grad_accum_steps=8, engine="gpt-neox")
    world = {"num_gpus": 2, "gpus_per_node": 2, "accelerator": "cpu"}
    lines = [NEOX.replace("       5/", f"{n:8d}/") for n in range(1, 9)]
    with pytest.raises(TrialFailure, match="is that of 2 times the global batch 16") as caught:
        follow(tmp_path, recorded_spec("gpt-neox", layout=layout, global_batch_size=16, **world), lines).outcome()
    assert caught.value.reason is FailureReason.RESULT_INVALID


def test_iterations_that_are_skipped_are_progress_and_no_steps(tmp_path):
    first, *lines = recorded_lines()
    report = report_in(tmp_path, recorded_spec())
    measurement = follow(tmp_path, recorded_spec(), [first], report)
    report.last_progress = 0.0
    measurement.feed("some warning")
    assert report.last_progress == 0.0
    measurement.feed(lines[0].replace("skipped iterations:   0", "skipped iterations:   1"))
    assert report.last_progress > 0.0
    assert measurement.num_steps == 1


def test_too_few_steps_are_reported_with_how_many_there_were_and_what_they_bound(tmp_path):
    spec = recorded_spec()
    measurement = follow(tmp_path, spec, recorded_lines()[:4])
    words = "3 measured steps after 4 steps when the time limit came near; at least 5"
    with pytest.raises(TrialFailure, match=words) as caught:
        measurement.end_for_time()
    tokens = spec.global_batch_size * spec.model.seq_length
    assert caught.value.bound == ThroughputBound(tokens / min(measurement.measurement.step_times_s[1:]))
    with pytest.raises(TrialFailure) as caught:
        measurement.require_enough(FailureReason.RESULT_INVALID, "until the trainer ended by itself")
    assert caught.value.bound is None


def test_a_layout_that_cannot_be_the_best_ends_itself(tmp_path):
    spec = recorded_spec(measure=replace(RULES, min_steps=18))
    attempt = attempt_in(tmp_path, spec)
    attempt.path.mkdir(parents=True)
    incumbent = {"trial": "t0009", "num_nodes": 8, "threshold": 10 * 1536 * 2048 / 346.0, "fingerprint": {}}
    best = {"schema": Incumbents.SCHEMA, "search_id": spec.search_id, "incumbents": [incumbent]}
    best |= {"objectives": ["tokens_per_sec"], "global_batch_size": 1536}
    write_json(attempt.best, best)
    lines = [recorded_lines()[0].replace("5/", f"{number}/", 1) for number in range(1, 20)]
    measurement = follow(tmp_path, spec, lines)
    assert measurement.measurement.stop is StopReason.PRUNED
    outcome = measurement.outcome()
    assert outcome.reason is FailureReason.PRUNED
    assert "t0009" in (outcome.excerpt or "")
    assert outcome.measured.tokens_per_sec > 0


def test_the_second_line_of_megatron_lm_is_never_measured_since_it_has_the_means_of_two_iterations(tmp_path):
    rules = replace(RULES, max_warmup_steps=1, min_steps=2)
    measured = {
        kind: follow(tmp_path / kind, recorded_spec(kind, measure=rules), recorded_lines()[:4]).measurement
        for kind in ("megatron-deepspeed", "megatron-lm")
    }
    assert measured["megatron-deepspeed"].measured_times_s == [ms / 1e3 for ms in STEP_TIMES_MS[1:4]]
    assert measured["megatron-lm"].measured_times_s == [ms / 1e3 for ms in STEP_TIMES_MS[2:4]]
