"""Faults in the trial program: real ranks as a launcher starts them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import ENDLESS, MODEL, RULES, faulty, make_spec
from trials.trial import FailureReason, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.alone, pytest.mark.timeout(300)]

OTHERS_END_WITHIN_S = 60.0
ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
TP2 = replace(ONE, tensor_parallel=2)
DP2 = replace(ONE, data_parallel=2)


@pytest.mark.fault(21)
@pytest.mark.parametrize("layout", [ONE, DP2], ids=["one-rank", "two-ranks"])
def test_beyond_the_memory_limit_a_rank_is_out_of_memory(start, layout):
    large = replace(MODEL, hidden_size=512, ffn_hidden_size=2048, vocab_size=8192)
    trial = start(make_spec(layout, model=large, measure=replace(RULES, memory_limit_gib=0.4)))
    outcome = trial.wait_for_outcome()
    assert set(trial.wait(OTHERS_END_WITHIN_S)) == {1}
    assert trial.result().reason is FailureReason.GPU_OOM
    assert outcome.phase in ("build", "warmup")
    assert outcome.rank in range(layout.num_gpus)


@pytest.mark.fault(21)
def test_a_rank_that_exceeds_the_memory_limit_without_a_model_ends_before_it_builds_one(start):
    trial = start(make_spec(ONE, measure=replace(RULES, memory_limit_gib=0.02)))
    outcome = trial.wait_for_outcome()
    assert (trial.result().reason, outcome.phase) == (FailureReason.GPU_OOM, "start")


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("fault", "phase"),
    [
        ("run_out_of_memory_while_rank_1_builds", "build"),
        ("run_out_of_memory_in_the_ninth_step_of_rank_1", "measured"),
    ],
)
def test_one_rank_out_of_memory_names_itself_and_its_phase_and_ends_the_others(start, fault, phase):
    trial = start(make_spec(TP2, measure=replace(ENDLESS, memory_limit_gib=2.0)), program=faulty(fault))
    outcome = trial.wait_for_outcome()
    assert trial.wait(OTHERS_END_WITHIN_S) == [1, 1]
    assert (outcome.reason, outcome.rank, outcome.phase) == (FailureReason.GPU_OOM, 1, phase)
    assert "_take_memory" in outcome.excerpt
    assert trial.result().reason is FailureReason.GPU_OOM


@pytest.mark.fault(23)
def test_a_collective_that_waits_for_a_sleeping_rank_ends_as_a_hang_and_all_say_where_they_stand(start):
    trial = start(
        make_spec(TP2, measure=replace(ENDLESS, time_limit_s=80.0)), program=faulty("sleep_in_the_third_step_of_rank_1")
    )
    trial.wait_for_steps(2)
    outcome = trial.wait_for_outcome()
    assert trial.wait(OTHERS_END_WITHIN_S) == [1, 1]
    assert trial.result().reason is FailureReason.HANG
    assert "no progress for 40 s" in outcome.excerpt
    stacks = outcome.excerpt + trial.logs()
    assert "_sleep_for_ever" in stacks
    assert "all_reduce" in stacks


@pytest.mark.fault(37)
def test_a_gpu_that_somebody_else_uses_is_reported_before_anything_is_allocated(start):
    trial = start(make_spec(ONE, accelerator="h100-80gb"), program=faulty("use_a_gpu_that_somebody_else_uses"))
    assert trial.wait() == [1]
    outcome = trial.outcome()
    assert (outcome.reason, outcome.rank, outcome.phase) == (FailureReason.GPU_MEMORY_IN_USE, 0, "start")
    assert "40.00 of 80.00 GiB are in use" in outcome.excerpt
    assert trial.result().reason is FailureReason.GPU_MEMORY_IN_USE


@pytest.mark.fault(38)
def test_steps_that_become_slower_are_a_suspect_measurement(start):
    rules = replace(RULES, min_steps=18, max_steps=18)
    trial = start(make_spec(TP2, measure=rules), program=faulty("get_slower_from_the_fourteenth_step_on"))
    assert trial.wait() == [0, 0], trial.logs()
    assert trial.outcome().flags == ("wide_interval", "suspect_node")
    assert trial.result().state is TrialState.MEASURED


@pytest.mark.fault(47)
def test_a_folder_that_is_stale_for_a_moment_is_the_machines_fault(start):
    trial = start(make_spec(ONE), program=faulty("find_its_folder_stale_for_a_moment"))
    assert trial.wait() == [1]
    outcome = trial.outcome()
    assert "OSError: [Errno 116] Stale file handle" in outcome.excerpt
    assert (outcome.reason, trial.result().reason) == (FailureReason.LAUNCH_FAILURE,) * 2
