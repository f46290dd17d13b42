"""Classification of outcomes and launch statuses, and the policy of their reasons."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest

from search_spaces.decoding import decode
from tests.kit import FULLEST, MEASURED, OUTCOME, PROOF, SLOWEST, SPEC
from tests.sources import ROOT
from tests.trials.ledger.stories import measured_story
from trials.attempt_result import (
    AttemptResult,
    LaunchStatus,
    Liveness,
    are_comparable,
    classify,
    flag_other_fingerprint,
    may_retry,
    outcome_fault,
)
from trials.failure_policy import policy_of
from trials.outcome_types import MeasuredMetrics, ThroughputBound
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, Trial, TrialState

ENDED = LaunchStatus(Liveness.ENDED, started=True)
REASONS = tuple(FailureReason)
PRUNED_FIELDS = {"status": OutcomeStatus.FAILED, "reason": FailureReason.PRUNED}
OUT_OF_TIME = {"status": OutcomeStatus.FAILED, "reason": FailureReason.TIME_LIMIT, "proof": {}}
PRUNED = replace(OUTCOME, **PRUNED_FIELDS)


def seen(**changes) -> MeasuredMetrics:
    """Metrics that were not decoded, as a trial program has them."""
    return MeasuredMetrics(**MEASURED | changes)


def is_refused_by_codec(outcome: Outcome) -> bool:
    with suppress(ValueError):
        return Outcome.from_json(outcome.to_json()) is None
    return True


def failed(reason: FailureReason | None, excerpt: str | None = None):
    return replace(
        OUTCOME, status=OutcomeStatus.FAILED, reason=reason, excerpt=excerpt, measured=None, proof={}, ended_at=None
    )


ECC = "rank 3: CUDA error: uncorrectable ECC error encountered"
NO_STACK = "rank 1 was killed by signal 6\nterminate called without an active exception"
NO_CODE = "Error while finding module specification for 'trials.train' (ModuleNotFoundError: No module named 'trials')"
LIMITED = replace(SPEC, accelerator="cpu", measure=replace(SPEC.measure, memory_limit_gib=0.26))
BY_USER, BY_SEARCH = FailureReason.CANCELLED_BY_USER, FailureReason.CANCELLED_BY_SEARCH


class TestWhatCountsFirst:
    @pytest.mark.parametrize(
        ("changes", "flags"),
        [
            ({}, ()),
            *(
                ({"failed": True, "reason": reason}, ("failed_after_result",))
                for reason in (None, FailureReason.NODE_FAILURE, BY_SEARCH)
            ),
            ({"had_neighbours": True}, ("shared_node",)),
        ],
    )
    def test_a_complete_outcome_is_the_measurement_whatever_is_said_afterwards_and_says_so(self, changes, flags):
        result = classify(SPEC, OUTCOME, replace(ENDED, **changes))
        assert result == AttemptResult(TrialState.MEASURED, None, replace(OUTCOME, flags=flags))

    @pytest.mark.fault(47)
    @pytest.mark.parametrize(
        ("spec", "reason", "status", "detail", "found"),
        [
            # A launcher that saw the node die knows better than a rank that lost its peers.
            (SPEC, "hang", FailureReason.NODE_FAILURE, "n7 is down", FailureReason.NODE_FAILURE),
            (SPEC, "script_error", FailureReason.NODE_FAILURE, "n7 is down", FailureReason.NODE_FAILURE),
            (SPEC, "", FailureReason.NODE_FAILURE, "n7 is down", FailureReason.NODE_FAILURE),
            # What only a rank can know is true whatever ended the others.
            (SPEC, "gpu_oom", FailureReason.TIME_LIMIT, "", FailureReason.GPU_OOM),
            (SPEC, "gpu_oom", BY_SEARCH, "", FailureReason.GPU_OOM),
            (SPEC, "invalid_layout", BY_SEARCH, "", FailureReason.INVALID_LAYOUT),
            (SPEC, "script_error", BY_USER, "", BY_USER),
            (SPEC, "", None, "", FailureReason.SCRIPT_ERROR),
            # Without an outcome the words of the ranks tell.
            (SPEC, None, None, ECC, FailureReason.NODE_FAILURE),
            (SPEC, None, BY_USER, ECC, BY_USER),
            (SPEC, None, None, f"rank 1 exited with code 1\n/usr/bin/python3: {NO_CODE}", FailureReason.LAUNCH_FAILURE),
            (LIMITED, None, None, NO_STACK, FailureReason.GPU_OOM),
            (replace(SPEC, accelerator="cpu"), None, None, NO_STACK, FailureReason.SCRIPT_ERROR),
        ],
    )
    def test_the_reason_is_of_whoever_knows_best(self, spec, reason, status, detail, found):
        outcome = None if reason is None else failed(FailureReason(reason) if reason else None)
        result = classify(spec, outcome, replace(ENDED, reason=status, detail=detail or None))
        assert result.reason is found
        assert result.state is (TrialState.CANCELLED if found is BY_USER else TrialState.FAILED)

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

    def test_a_pruned_or_failed_trial_keeps_its_own_reason_words_and_numbers(self):
        assert classify(SPEC, PRUNED, ENDED) == AttemptResult(TrialState.FAILED, FailureReason.PRUNED, PRUNED)
        for reason, words, found in (
            (FailureReason.GPU_OOM, "CUDA out of memory", FailureReason.GPU_OOM),
            (FailureReason.GPU_OOM, ECC, FailureReason.GPU_OOM),
            (FailureReason.SCRIPT_ERROR, ECC, FailureReason.NODE_FAILURE),  # the machine's fault, whoever tells of it
        ):
            outcome = failed(reason, words)
            result = classify(SPEC, outcome, replace(ENDED, failed=True))
            assert result == AttemptResult(TrialState.FAILED, found, outcome, words)


RATES = ("step_time_s", "tokens_per_sec", "tokens_per_sec_per_gpu", "samples_per_sec")
NO_NUMBERS = (math.nan, math.inf, "0.4", False, {"import": 1})
OUTSIDE = "is outside of its interval"
METRICS_THAT_CANNOT_BE = [
    *(({name: value}, name) for name in RATES for value in (None, 0, -1.0, math.nan, math.inf, "768", True)),
    *(({"peak_memory_gib": value}, "peak_memory_gib") for value in NO_NUMBERS),
    *(({"startup_parts_s": {"import": value}}, "startup_parts_s") for value in NO_NUMBERS),
    *(({"joules_per_token": value}, "joules_per_token") for value in (0, math.nan, "0.5")),
    *(({name: -1}, name) for name in ("mfu", "tokens_per_sec_low", "peak_memory_gib", "device_memory_full_at_step")),
    *(({"measured_steps": steps}, "measured") for steps in (None, 0, 7, "8")),
    *(({name: 1.01}, "above the hardware's peak") for name in ("mfu", "hfu")),
    *(({"tokens_per_sec_low": low}, OUTSIDE) for low in (769.0, 0)),
    *(({"step_time_low_s": low}, OUTSIDE) for low in (0.6, 0)),
    *(({"joules_per_token": 0.5, "joules_per_token_low": low}, OUTSIDE) for low in (0.6, 0)),
    ({"tokens_per_sec_high": 767.0}, OUTSIDE),
    ({"step_time_high_s": 0.4}, OUTSIDE),
]
PROOF_OF_LAYOUT = [name for name in PROOF if name != "samples_per_data_rank"]
SAMPLES_THAT_CANNOT_BE = (None, [], [66], [66, 66, 66], [66, 60], [64, 64], [0, 0], ["66", "66"], [66, [66]], 66)
OTHERS = ({"search_id": "other-aaaaaa"}, {"trial": "t0002"}, {"attempt": "a2"}, {"nonce": "f" * 32})


class TestWhatIsNotBelieved:
    @pytest.mark.fault(26)
    @pytest.mark.bad_input(41)
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            *((other, "another attempt") for other in OTHERS),
            *(({"measured": seen(**change)}, words) for change, words in METRICS_THAT_CANNOT_BE),
            ({"started_at": OUTCOME.ended_at, "ended_at": OUTCOME.started_at}, "went back by 60 s"),
            ({"ended_at": "yesterday"}, "not UTC times"),
            *(({"proof": PROOF | {name: 5}}, f"{name} is 5, the spec says") for name in PROOF_OF_LAYOUT),
            *(({"proof": {**PROOF, name: None}}, f"{name} is None") for name in PROOF_OF_LAYOUT),
            *(({"proof": PROOF | {"samples_per_data_rank": samples}}, "samples") for samples in SAMPLES_THAT_CANNOT_BE),
            ({"reason": FailureReason.TIME_LIMIT, "proof": {}}, "the layout did not take effect"),
            (PRUNED_FIELDS | {"proof": PROOF | {"tensor_parallel": 1}}, "the layout did not take effect"),
            (PRUNED_FIELDS | {"measured": seen(mfu=1.5)}, "MFU 1.50"),
            (PRUNED_FIELDS | {"measured": seen(step_time_s=0.6)}, "step_time_s"),
        ],
    )
    def test_an_outcome_of_another_attempt_or_with_what_cannot_be(self, changes, words):
        outcome = replace(OUTCOME, **changes)
        assert words in outcome_fault(SPEC, outcome)
        if is_refused_by_codec(outcome):  # a driver never has it
            return
        result = classify(SPEC, outcome, ENDED)
        assert (result.state, result.reason) == (TrialState.FAILED, FailureReason.RESULT_INVALID)
        assert result.outcome is None, "numbers that are not believed are not kept where numbers are"
        assert result.excerpt == outcome_fault(SPEC, outcome)

    @pytest.mark.parametrize(
        ("field", "known", "change"),
        [
            *(("slowest_rank", SLOWEST, change) for change in ({"rank": -1}, {"slowdown": math.nan}, {"more": 1})),
            *(("fullest_rank", FULLEST, change) for change in ({"rank": "3"}, {"used_gib": -1.0}, {"another": 1})),
        ],
    )
    def test_a_slowest_or_fullest_rank_of_another_form(self, field, known, change):
        with pytest.raises(ValueError, match=f"{field}.{next(iter(change))}"):
            Outcome.from_json(OUTCOME.to_json() | {field: known | change})
        with pytest.raises(ValueError, match=f"{field}.host is missing"):
            Outcome.from_json(OUTCOME.to_json() | {field: {k: v for k, v in known.items() if k != "host"}})

    def test_an_energy_that_is_unknown_where_it_is_an_objective(self):
        spec = replace(SPEC, measure=replace(SPEC.measure, energy=True))
        assert outcome_fault(spec, OUTCOME) == "it has no joules_per_token, an objective of the search"
        assert outcome_fault(spec, replace(OUTCOME, measured=seen(joules_per_token=0.5))) is None

    @pytest.mark.parametrize("bound", [0, -1.0, "fast", None])
    def test_what_a_trial_that_ran_out_of_time_says_to_reach_at_most(self, bound):
        with pytest.raises(ValueError, match="tokens_per_sec_high is"):
            decode(ThroughputBound, {"tokens_per_sec_high": bound})

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


OF_CPU = {"rank": 0, "host": "n1", "used_gib": 0.3, "limit_gib": 0.25, "free_gib": -0.05}
"""Over its limit."""


@pytest.mark.parametrize(
    "outcome",
    [
        *(
            replace(OUTCOME, measured=seen(**{name: -1.5}))
            for name in ("loss_last", "device_memory_slope_mib_per_step")
        ),
        *(
            replace(OUTCOME, measured=seen(**{name: None}))
            for name in ("tokens_per_sec_low", "step_time_high_s", "mfu")
        ),
        replace(PRUNED, measured=seen(measured_steps=6)),
        *(replace(OUTCOME, **OUT_OF_TIME, measured=measured) for measured in (None, ThroughputBound(300.0))),
        replace(failed(FailureReason.HANG), measured=seen(mfu=7)),
        *(replace(OUTCOME, fullest_rank=fullest) for fullest in (FULLEST, OF_CPU)),
        replace(OUTCOME, slowest_rank=SLOWEST),
    ],
)
def test_what_is_unknown_partial_or_below_zero_where_it_may_be_is_no_fault(outcome):
    assert outcome_fault(SPEC, outcome) is None
    spec = replace(SPEC, layout=replace(SPEC.layout, tensor_parallel=4, data_parallel=1))
    proof = PROOF | {"tensor_parallel": 4, "data_parallel": 1, "samples_per_data_rank": [66]}
    assert outcome_fault(spec, replace(OUTCOME, proof=proof)) is None


@pytest.mark.parametrize("reason", FailureReason)
@pytest.mark.parametrize("is_reference", [False, True])
def test_a_failure_is_tried_again_as_often_as_its_policy_says(reason, is_reference):
    policy = policy_of(reason)
    most = min(policy.retries + is_reference * policy.baseline_retries, 9)
    for count in range(1, most + 2):
        attempts = [Attempt("t0001", f"a{n}", "0" * 32, 1, 60.0, reason=reason) for n in range(1, count + 1)]
        trial = Trial("t0001", SPEC.layout, attempts=tuple(attempts))
        assert may_retry(trial, attempts[-1], is_reference) is (count <= most or policy.retries > 9)


def test_what_was_measured_is_not_tried_again():
    trial = measured_story().search.trial("t0001")
    assert [may_retry(trial, attempt) for attempt in trial.attempts] == [True, False]


def test_a_measurement_with_another_fingerprint_is_flagged_and_anything_else_stays_as_it_is():
    measured = AttemptResult(TrialState.MEASURED, None, OUTCOME)
    flagged = flag_other_fingerprint(measured, {"torch": "2.12.0"})
    assert flagged == replace(measured, outcome=replace(OUTCOME, flags=("fingerprint_changed",)))
    assert flag_other_fingerprint(measured, {"torch": "2.13.0"}) == measured
    pruned = AttemptResult(TrialState.FAILED, FailureReason.PRUNED, PRUNED)
    assert flag_other_fingerprint(pruned, {"torch": "2.12.0"}) == pruned


@pytest.mark.parametrize(
    "field", ["megatron_core", "transformer_engine", "megatron_layers", "script_python_files", "torchtitan"]
)
def test_measurements_with_other_software_of_an_engine_are_not_compared(field):
    assert are_comparable({field: "a"}, {field: "a"})
    assert are_comparable({field: "a"}, {})
    assert not are_comparable({field: "a"}, {field: "b"})


RETRIED = {0: "no", 1: "once", 2: "twice", 8: "8 times", math.inf: "always"}


def row(reason: FailureReason) -> str:
    policy = policy_of(reason)
    of_baseline = f"; the baseline {RETRIED[policy.baseline_retries]}" if policy.baseline_retries else ""
    return f"| `{reason}` | {RETRIED[policy.retries]}{of_baseline} | {policy.explanation} |"


def test_the_page_says_what_the_policies_say():
    page = (ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("| reason | retried | meaning |\n|---|---|---|\n")
    assert rest.partition("\n\n")[0].splitlines() == list(map(row, FailureReason))
