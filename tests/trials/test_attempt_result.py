"""Classification of outcomes and launch statuses: precedence, and implausible outcomes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.kit import FULLEST, MEASURED, OUTCOME, PROOF, SLOWEST, SPEC
from tests.trials.ledger.stories import measured_story
from trials.attempt_result import (
    AttemptResult,
    LaunchStatus,
    Liveness,
    are_comparable,
    classify,
    may_retry,
    outcome_fault,
)
from trials.outcome_types import MeasuredMetrics, ThroughputBound, measured_of
from trials.trial import FailureReason, Outcome, OutcomeStatus, TrialState

ENDED = LaunchStatus(Liveness.ENDED, started=True)
REASONS = tuple(FailureReason)
PRUNED_FIELDS = {"status": OutcomeStatus.FAILED, "reason": FailureReason.PRUNED}
OUT_OF_TIME = {"status": OutcomeStatus.FAILED, "reason": FailureReason.TIME_LIMIT, "proof": {}}
PRUNED = replace(OUTCOME, **PRUNED_FIELDS)


def seen(**changes) -> MeasuredMetrics:
    """Metrics that were not decoded, as a trial program has them."""
    return MeasuredMetrics(**MEASURED | changes)


def failed(reason: FailureReason | None, excerpt: str | None = None):
    return replace(
        OUTCOME, status=OutcomeStatus.FAILED, reason=reason, excerpt=excerpt, measured=None, proof={}, ended_at=None
    )


class TestWhatCountsFirst:
    def test_a_complete_outcome_is_the_measurement(self):
        assert classify(SPEC, OUTCOME, ENDED) == AttemptResult(TrialState.MEASURED, None, OUTCOME)

    @pytest.mark.parametrize("reason", [None, FailureReason.NODE_FAILURE, FailureReason.CANCELLED_BY_SEARCH])
    def test_it_stays_one_when_the_job_is_called_failed_afterwards_and_says_so(self, reason):
        result = classify(SPEC, OUTCOME, replace(ENDED, failed=True, reason=reason))
        assert result.state is TrialState.MEASURED
        assert result.reason is None
        assert result.outcome.flags == ("failed_after_result",)

    def test_it_says_so_where_other_jobs_ran_on_its_nodes(self):
        result = classify(SPEC, OUTCOME, replace(ENDED, had_neighbours=True))
        assert (result.state, result.outcome.flags) == (TrialState.MEASURED, ("shared_node",))

    @pytest.mark.parametrize("reason", REASONS)
    def test_without_an_outcome_the_launchers_reason_counts(self, reason):
        result = classify(SPEC, None, replace(ENDED, reason=reason, detail="Slurm says so"))
        by_us = reason in (FailureReason.CANCELLED_BY_USER, FailureReason.CANCELLED_BY_SEARCH)
        state = TrialState.CANCELLED if by_us else TrialState.FAILED
        assert result == AttemptResult(state, reason, None, "Slurm says so")

    def test_an_end_without_a_word_from_anybody_is_a_broken_script(self):
        result = classify(SPEC, None, ENDED)
        assert (result.state, result.reason) == (TrialState.FAILED, FailureReason.SCRIPT_ERROR)
        assert "without an outcome" in result.excerpt

    @pytest.mark.parametrize("liveness", [Liveness.ALIVE, Liveness.UNKNOWN])
    @pytest.mark.parametrize("outcome", [None, OUTCOME])
    def test_there_is_no_verdict_on_what_has_not_ended(self, liveness, outcome):
        with pytest.raises(ValueError, match=liveness.value):
            classify(SPEC, outcome, LaunchStatus(liveness))

    def test_a_pruned_trial_keeps_what_it_saw(self):
        assert classify(SPEC, PRUNED, ENDED) == AttemptResult(TrialState.FAILED, FailureReason.PRUNED, PRUNED)

    def test_a_failed_trials_own_reason_and_words_are_kept(self):
        outcome = failed(FailureReason.GPU_OOM, "CUDA out of memory")
        assert classify(SPEC, outcome, replace(ENDED, failed=True)) == AttemptResult(
            TrialState.FAILED, FailureReason.GPU_OOM, outcome, "CUDA out of memory"
        )

    @pytest.mark.parametrize("echo", [FailureReason.HANG, FailureReason.SCRIPT_ERROR, None])
    def test_a_launcher_that_saw_the_node_die_knows_better_than_a_rank_that_lost_its_peers(self, echo):
        result = classify(SPEC, failed(echo), replace(ENDED, reason=FailureReason.NODE_FAILURE, detail="n7 is down"))
        assert (result.reason, result.excerpt) == (FailureReason.NODE_FAILURE, "n7 is down")

    @pytest.mark.parametrize("status", [FailureReason.TIME_LIMIT, FailureReason.CANCELLED_BY_SEARCH])
    @pytest.mark.parametrize("cause", [FailureReason.GPU_OOM, FailureReason.INVALID_LAYOUT])
    def test_what_only_a_rank_can_know_is_true_whatever_ended_the_others(self, cause, status):
        result = classify(SPEC, failed(cause), replace(ENDED, reason=status))
        assert (result.state, result.reason) == (TrialState.FAILED, cause)

    def test_a_rank_that_ended_itself_because_it_was_told_to_is_cancelled(self):
        result = classify(
            SPEC, failed(FailureReason.SCRIPT_ERROR), replace(ENDED, reason=FailureReason.CANCELLED_BY_USER)
        )
        assert (result.state, result.reason) == (TrialState.CANCELLED, FailureReason.CANCELLED_BY_USER)

    def test_a_dead_gpu_is_the_machines_fault_whoever_tells_of_it(self):
        words = "rank 3: CUDA error: uncorrectable ECC error encountered"
        assert classify(SPEC, None, replace(ENDED, detail=words)).reason is FailureReason.NODE_FAILURE
        told = classify(SPEC, failed(FailureReason.SCRIPT_ERROR, words), ENDED)
        assert (told.reason, told.excerpt) == (FailureReason.NODE_FAILURE, words)
        cancelled = replace(ENDED, reason=FailureReason.CANCELLED_BY_USER, detail=words)
        assert classify(SPEC, None, cancelled).reason is FailureReason.CANCELLED_BY_USER
        assert classify(SPEC, failed(FailureReason.GPU_OOM, words), ENDED).reason is FailureReason.GPU_OOM

    @pytest.mark.fault(47)
    def test_our_code_that_cannot_be_found_is_the_machines_fault(self):
        absent = "Error while finding module specification for 'trials.train' (ModuleNotFoundError: No module named"
        told = replace(ENDED, detail=f"rank 1 exited with code 1\n/usr/bin/python3: {absent} 'trials')")
        assert classify(SPEC, None, told).reason is FailureReason.LAUNCH_FAILURE

    def test_a_thread_without_room_for_its_stack_is_out_of_the_users_limit(self):
        ended = replace(ENDED, detail="rank 1 was killed by signal 6\nterminate called without an active exception")
        limited = replace(SPEC, accelerator="cpu", measure=replace(SPEC.measure, memory_limit_gib=0.26))
        assert classify(limited, None, ended).reason is FailureReason.GPU_OOM
        assert classify(replace(SPEC, accelerator="cpu"), None, ended).reason is FailureReason.SCRIPT_ERROR

    def test_a_failure_without_a_reason_is_a_broken_script(self):
        assert classify(SPEC, failed(None), ENDED).reason is FailureReason.SCRIPT_ERROR


class TestWhatIsNotBelieved:
    def fault(self, **changes) -> str:
        outcome = replace(OUTCOME, **changes)
        result = classify(SPEC, outcome, ENDED)
        assert (result.state, result.reason) == (TrialState.FAILED, FailureReason.RESULT_INVALID)
        assert result.outcome is None, "numbers that are not believed are not kept where numbers are"
        assert result.excerpt == outcome_fault(SPEC, outcome)
        return result.excerpt

    @pytest.mark.bad_input(41)
    @pytest.mark.parametrize(
        "other", [{"search_id": "other-aaaaaa"}, {"trial": "t0002"}, {"attempt": "a2"}, {"nonce": "f" * 32}]
    )
    def test_another_attempts_outcome(self, other):
        assert "another attempt" in self.fault(**other)

    @pytest.mark.bad_input(41)
    def test_another_attempts_failure(self):
        result = classify(SPEC, replace(failed(FailureReason.GPU_OOM), nonce="f" * 32), ENDED)
        assert result.reason is FailureReason.RESULT_INVALID

    @pytest.mark.bad_input(41)
    @pytest.mark.parametrize("name", ["step_time_s", "tokens_per_sec", "tokens_per_sec_per_gpu", "samples_per_sec"])
    @pytest.mark.parametrize("value", [None, 0, -1.0, math.nan, math.inf, "768", True, [768.0], {"value": 768.0}])
    @pytest.mark.fault(26)
    def test_a_rate_that_is_not_a_positive_number(self, name, value):
        assert name in self.fault(measured=seen(**{name: value}))

    @pytest.mark.bad_input(41)
    @pytest.mark.parametrize("value", [math.nan, math.inf, "0.4", False, {"import": 1}])
    def test_any_other_value_that_is_not_a_number(self, value):
        assert "peak_memory_gib" in self.fault(measured=seen(peak_memory_gib=value))
        assert "startup_parts_s" in self.fault(measured=seen(startup_parts_s={"import": value}))

    @pytest.mark.bad_input(41)
    @pytest.mark.parametrize("value", [0, -1.0, math.nan, "0.5"])
    def test_an_energy_that_is_not_positive(self, value):
        assert "joules_per_token" in self.fault(measured=seen(joules_per_token=value))

    @pytest.mark.bad_input(41)
    @pytest.mark.parametrize("name", ["mfu", "tokens_per_sec_low", "peak_memory_gib", "device_memory_full_at_step"])
    def test_an_amount_below_zero(self, name):
        assert name in self.fault(measured=seen(**{name: -1}))

    def test_an_energy_that_is_unknown_where_it_is_an_objective(self):
        spec = replace(SPEC, measure=replace(SPEC.measure, energy=True))
        assert outcome_fault(spec, OUTCOME) == "it has no joules_per_token, an objective of the search"
        assert outcome_fault(spec, replace(OUTCOME, measured=seen(joules_per_token=0.5))) is None

    @pytest.mark.bad_input(41)
    @pytest.mark.parametrize("steps", [None, 0, 7, "8"])
    def test_too_few_steps(self, steps):
        assert "measured" in self.fault(measured=seen(measured_steps=steps))

    @pytest.mark.bad_input(41)
    @pytest.mark.parametrize("name", ["mfu", "hfu"])
    @pytest.mark.fault(26)
    def test_more_than_the_hardware_can(self, name):
        assert "above the hardware's peak" in self.fault(measured=seen(**{name: 1.01}))

    @pytest.mark.parametrize(
        "change",
        [
            {"tokens_per_sec_low": 769.0},
            {"tokens_per_sec_high": 767.0},
            {"step_time_low_s": 0.6},
            {"step_time_high_s": 0.4},
            {"joules_per_token": 0.5, "joules_per_token_low": 0.6, "joules_per_token_high": 0.7},
            {"tokens_per_sec_low": 0},
            {"step_time_low_s": 0},
            {"joules_per_token": 0.5, "joules_per_token_low": 0},
        ],
    )
    def test_a_median_outside_its_own_interval(self, change):
        assert "is outside of its interval" in self.fault(measured=seen(**change))

    @pytest.mark.parametrize("name", [name for name in PROOF if name != "samples_per_data_rank"])
    def test_a_layout_that_did_not_take_effect(self, name):
        assert f"{name} is 5, the spec says" in self.fault(proof=PROOF | {name: 5})
        assert f"{name} is None" in self.fault(proof={k: v for k, v in PROOF.items() if k != name})

    @pytest.mark.parametrize(
        "samples", [None, [], [66], [66, 66, 66], [66, 60], [64, 64], [0, 0], ["66", "66"], [66, [66]], 66]
    )
    def test_samples_that_are_not_whole_steps_of_the_global_batch(self, samples):
        assert "samples per data-parallel rank" in self.fault(proof=PROOF | {"samples_per_data_rank": samples})

    @pytest.mark.bad_input(41)
    def test_a_clock_that_went_back(self):
        assert "went back by 60 s" in self.fault(started_at=OUTCOME.ended_at, ended_at=OUTCOME.started_at)

    @pytest.mark.parametrize("time", ["yesterday", 1_780_000_000])
    def test_times_of_another_form(self, time):
        assert "not UTC times" in self.fault(ended_at=time)

    @pytest.mark.parametrize("change", [{"mfu": 1.5}, {"tokens_per_sec": 0}, {"step_time_high_s": 0.4}])
    def test_what_a_pruned_trial_says_to_have_seen(self, change):
        assert self.fault(**PRUNED_FIELDS, measured=seen(**change))

    @pytest.mark.parametrize("bound", [0, -1.0, "fast", None])
    def test_what_a_trial_that_ran_out_of_time_says_to_reach_at_most(self, bound):
        with pytest.raises(ValueError, match="tokens_per_sec_high is"):
            measured_of({"tokens_per_sec_high": bound})

    def test_what_was_measured_is_judged_whole_also_where_it_names_a_time_limit(self):
        assert "the layout did not take effect" in self.fault(reason=FailureReason.TIME_LIMIT, proof={})

    def test_a_pruned_trial_whose_layout_did_not_take_effect(self):
        fault = self.fault(**PRUNED_FIELDS, proof=PROOF | {"tensor_parallel": 1})
        assert "the layout did not take effect" in fault

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"stragglers": "3"}, "names ranks"),
            ({"rank": -1}, "names ranks"),
            ({"host": None}, "names hosts"),
            ({"slowdown": math.nan}, "slowdown is nan"),
            ({"another": 1}, "slowest_rank has"),
        ],
    )
    def test_a_slowest_rank_of_another_form(self, change, said):
        assert outcome_fault(SPEC, replace(OUTCOME, slowest_rank=SLOWEST)) is None
        with pytest.raises(ValueError, match=said):
            Outcome.from_json(OUTCOME.to_json() | {"slowest_rank": SLOWEST | change})

    @pytest.mark.parametrize(
        "change", [{"rank": "3"}, {"host": 1}, {"used_gib": -1.0}, {"free_gib": math.inf}, {"another": 1}]
    )
    def test_a_fullest_rank_of_another_form(self, change):
        assert outcome_fault(SPEC, replace(OUTCOME, fullest_rank=FULLEST)) is None
        with pytest.raises(ValueError, match=f"fullest_rank.{next(iter(change))}"):
            Outcome.from_json(OUTCOME.to_json() | {"fullest_rank": FULLEST | change})

    @pytest.mark.parametrize("name", ["rank", "host", "used_gib", "allocated_gib", "cached_gib"])
    def test_a_fullest_rank_that_nobody_can_show(self, name):
        known = {other: value for other, value in FULLEST.items() if other != name}
        with pytest.raises(ValueError, match=f"fullest_rank has no {name}"):
            Outcome.from_json(OUTCOME.to_json() | {"fullest_rank": known})

    def test_a_cpus_fullest_rank_over_its_limit_is_no_fault(self):
        of_cpu = {"rank": 0, "host": "n1", "used_gib": 0.3, "limit_gib": 0.25, "free_gib": -0.05}
        assert outcome_fault(SPEC, replace(OUTCOME, fullest_rank=of_cpu)) is None

    def test_more_than_the_device_itself_reaches_in_a_product(self):
        flops = SPEC.model.causal_flops_per_token * MEASURED["tokens_per_sec_per_gpu"]
        as_fast_ms = 2 * 4096**3 / flops * 1e3
        slow, fast = ({"probe_ms_by_rank": [factor * as_fast_ms] * 4} for factor in (1.3, 1.2))
        assert "a plain matrix product there reaches" in self.fault(fingerprint=slow)
        assert outcome_fault(SPEC, replace(OUTCOME, fingerprint=fast)) is None

    @pytest.mark.parametrize(
        ("word", "accelerator", "factor"),
        [
            ("same", "h100-80gb", 1),
            ("fp8_rowwise", "h100-80gb", 2),
            ("fp8_rowwise_with_gw_hp", "b200-180gb", 2),
            ("mxfp8", "mi355x-288gb", 2),
            ("nvfp4", "gb300-288gb", 6),
        ],
    )
    def test_products_of_8_and_4_bits_reach_their_own_peak(self, word, accelerator, factor):
        spec = replace(SPEC, layout=replace(SPEC.layout, matmul_precision=word), accelerator=accelerator)
        flops = spec.model.causal_flops_per_token * MEASURED["tokens_per_sec_per_gpu"]
        probes = [{"probe_ms_by_rank": [2 * 4096**3 / flops * 1e3 * factor * ratio] * 4} for ratio in (1.2, 1.3)]
        found = [outcome_fault(spec, replace(OUTCOME, fingerprint=probe)) for probe in probes]
        found += [outcome_fault(spec, replace(OUTCOME, measured=seen(hfu=1 + more))) for more in (-0.01, 0.01)]
        assert [fault is None for fault in found] == [True, False] * 2


class TestWhatIsBelieved:
    @pytest.mark.parametrize("name", ["loss_last", "device_memory_slope_mib_per_step"])
    def test_a_loss_and_a_slope_below_zero(self, name):
        assert outcome_fault(SPEC, replace(OUTCOME, measured=seen(**{name: -1.5}))) is None

    @pytest.mark.parametrize("name", ["tokens_per_sec_low", "step_time_high_s", "peak_memory_gib", "mfu"])
    def test_a_number_that_is_unknown_is_no_fault(self, name):
        assert outcome_fault(SPEC, replace(OUTCOME, measured=seen(**{name: None}))) is None

    def test_few_steps_of_a_pruned_trial(self):
        assert outcome_fault(SPEC, replace(PRUNED, measured=seen(measured_steps=6))) is None

    @pytest.mark.parametrize("measured", [None, ThroughputBound(300.0)])
    def test_a_bound_without_proof_of_a_trial_that_ran_out_of_time(self, measured):
        assert outcome_fault(SPEC, replace(OUTCOME, **OUT_OF_TIME, measured=measured)) is None

    def test_the_samples_of_a_single_data_rank(self):
        spec = replace(SPEC, layout=replace(SPEC.layout, tensor_parallel=4, data_parallel=1))
        proof = PROOF | {"tensor_parallel": 4, "data_parallel": 1, "samples_per_data_rank": [66]}
        assert outcome_fault(spec, replace(OUTCOME, proof=proof)) is None

    def test_a_failed_trials_partial_numbers_are_not_judged(self):
        assert outcome_fault(SPEC, replace(failed(FailureReason.HANG), measured=seen(mfu=7))) is None


def test_what_was_measured_is_not_tried_again():
    trial = measured_story().search.trial("t0001")
    assert [(a.state, may_retry(trial, a)) for a in trial.attempts] == [
        (TrialState.FAILED, True),
        (TrialState.MEASURED, False),
    ]


@pytest.mark.parametrize(
    "field", ["megatron_core", "transformer_engine", "megatron_layers", "script_python_files", "torchtitan"]
)
def test_measurements_with_other_software_of_an_engine_are_not_compared(field):
    assert are_comparable({field: "a"}, {field: "a"})
    assert are_comparable({field: "a"}, {})
    assert not are_comparable({field: "a"}, {field: "b"})
