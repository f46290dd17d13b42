"""Faults in the trial program: real ranks as a launcher starts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import ENDLESS, MODEL, RULES, WITH_EXPERTS, faulty, make_spec
from trials.files.folders import read_lines
from trials.measurement.step_log import StepRecord
from trials.outcome_types import ThroughputBound
from trials.trial import FailureReason, Flag, TrialSpec, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

OTHERS_END_WITHIN_S = 60.0
ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
TP2 = replace(ONE, tensor_parallel=2)
DP2 = replace(ONE, data_parallel=2)
LARGE = replace(MODEL, hidden_size=512, ffn_hidden_size=2048, vocab_size=8192)


def endless(layout: Layout, **rules: Any) -> TrialSpec:
    return make_spec(layout, measure=replace(ENDLESS, **rules))


def limited(layout: Layout, gib: float, **fields: Any) -> TrialSpec:
    return make_spec(layout, measure=replace(RULES, memory_limit_gib=gib), **fields)


HANG = endless(TP2, time_limit_s=80.0)
FORCED = make_spec(ONE, model=WITH_EXPERTS, measure=replace(RULES, routing="balanced"))
ON_GPU = make_spec(ONE, accelerator="h100-80gb")
OOM = "run_out_of_memory_"


ENDS = {
    "over-the-limit": (limited(ONE, 0.4, model=LARGE), "", "gpu_oom", 0, None, ()),
    "one-of-two-over": (limited(DP2, 0.4, model=LARGE), "", "gpu_oom", None, None, ()),
    "without-a-model": (limited(ONE, 0.02), "", "gpu_oom", 0, "start", ()),
    "while-it-builds": (limited(TP2, 2.0), f"{OOM}while_rank_1_builds", "gpu_oom", 1, "build", ()),
    "in-a-step": (
        *(endless(TP2, memory_limit_gib=2.0), f"{OOM}in_the_ninth_step_of_rank_1", "gpu_oom", 1, "measured"),
        ["_take_memory"],
    ),
    "hang": (
        *(HANG, "sleep_in_the_third_step_of_rank_1", "hang", None, None),
        ["no progress for 40 s", "_sleep_for_ever", "all_reduce"],
    ),
    "gpu-in-use": (
        *(ON_GPU, "use_a_gpu_that_somebody_else_uses", "gpu_memory_in_use", 0, "start"),
        ["40.00 of 80.00 GiB are in use"],
    ),
    "stale-folder": (
        *(make_spec(ONE), "find_its_folder_stale_for_a_moment", "launch_failure", 0, None),
        ["OSError: [Errno 116] Stale file handle"],
    ),
    "error": (
        *(endless(TP2), "fail_in_the_third_step_of_rank_1", "script_error", 1, "warmup"),
        ["ZeroDivisionError: planted in rank 1"],
    ),
    "samples-twice": (make_spec(ONE), "train_every_sample_twice", "result_invalid", 0, None, ["trained"]),
    "no-loss": (make_spec(ONE), "lose_the_loss", "result_invalid", 0, None, ["loss nan"]),
    "routing": (
        *(FORCED, "leave_the_choice_of_experts_to_the_router", "result_invalid", 0, None),
        ["times the mean of 32; measure.routing is balanced"],
    ),
    "layout": (make_spec(TP2, global_batch_size=5), "", "invalid_layout", None, None, ()),
}
"""By name: a trial, its planted fault, and the outcome's reason, rank, phase and words."""


OUT_OF_MEMORY = [name for name, (_, _, reason, *_) in ENDS.items() if reason == "gpu_oom"]


def expect_end(start, spec, fault, reason, rank, phase, words):
    """All ranks end, and one names itself, its phase and the reason."""
    trial = start(spec, **({"program": faulty(fault)} if fault else {}))
    outcome = trial.wait_for_outcome()
    assert set(trial.wait(OTHERS_END_WITHIN_S)) == {1}, trial.logs()
    assert [outcome.reason, trial.result().reason] == [FailureReason(reason)] * 2
    assert rank in (None, outcome.rank)
    assert phase in (None, outcome.phase)
    said = (outcome.excerpt or "") + trial.logs()
    assert [word for word in words if word not in said] == []


@pytest.mark.fault(21)
@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_a_rank_out_of_memory_ends_all(start, name):
    expect_end(start, *ENDS[name])


@pytest.mark.fault(23)
@pytest.mark.fault(37)
@pytest.mark.fault(47)
@pytest.mark.parametrize("name", [name for name in ENDS if name not in OUT_OF_MEMORY])
def test_a_fault_of_one_rank_or_of_its_machine_ends_all(start, name):
    expect_end(start, *ENDS[name])


@pytest.mark.alone
@pytest.mark.fault(38)
def test_steps_that_become_slower_are_a_suspect_measurement(start):
    rules = replace(RULES, min_steps=18, max_steps=18)
    trial = start(make_spec(TP2, measure=rules), program=faulty("get_slower_from_the_fourteenth_step_on"))
    assert trial.wait() == [0, 0], trial.logs()
    assert trial.outcome().flags == ("wide_interval", "suspect_node")
    assert trial.result().state is TrialState.MEASURED


@pytest.mark.parametrize("is_enough", [False, True])
def test_enough_steps_before_the_time_limit_count_and_say_so_and_too_few_are_a_bound(start, is_enough):
    rules = replace(RULES, max_steps=10**6, ci_relative_width=0.0) if is_enough else ENDLESS
    trial = start(make_spec(ONE, measure=rules), program=faulty("be_at_the_time_limit_in_the_twentieth_step"))
    assert trial.wait() == [1 - is_enough], trial.logs()
    outcome, spec = trial.outcome(), trial.spec
    if is_enough:
        assert {*outcome.flags} - {Flag.SUSPECT_NODE} == {Flag.TIME_LIMIT}  # a busy machine may slow down
        assert trial.result().state is TrialState.MEASURED
        return
    assert outcome.reason is trial.result().reason is FailureReason.TIME_LIMIT
    fastest_s = min(record.step_time_s for record in read_lines(StepRecord, trial.folder.metrics())[1:])
    assert outcome.measured == ThroughputBound(
        pytest.approx(spec.global_batch_size * spec.model.seq_length / fastest_s)
    )
