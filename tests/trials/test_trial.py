"""Specs, outcomes, trials and attempts in JSON, and the small rules of a trial."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.decoding import decode, encode
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.kit import LAYOUT, MEASURED, OUTCOME, SPEC
from trials.outcome_types import MeasuredMetrics, ThroughputBound
from trials.trial import (
    Attempt,
    FailureReason,
    Outcome,
    OutcomeStatus,
    Trial,
    TrialState,
    utc_seconds,
    utc_text,
)


def through_json(data: dict) -> dict:
    return json.loads(json.dumps(data, allow_nan=False))


def attempt(name: str, **values) -> Attempt:
    return Attempt("t0001", name, "0" * 32, num_nodes=2, time_limit_s=1800, **values)


def test_a_spec_takes_the_nodes_that_its_gpus_need():
    assert SPEC.attempt_key == "tiny-aaaaaa.t0001.a1"
    assert [replace(SPEC, num_gpus=gpus).num_nodes for gpus in (1, 4, 5, 8)] == [1, 1, 2, 2]


FAILED = replace(OUTCOME, status=OutcomeStatus.FAILED, reason=FailureReason.GPU_OOM, flags=("time_limit",))
MEASUREMENTS = (MeasuredMetrics(**MEASURED, time_s={"compute": 0.5}), ThroughputBound(300.0), None)


@pytest.mark.parametrize("written", [SPEC, FAILED, *(replace(OUTCOME, measured=one) for one in MEASUREMENTS)])
def test_what_is_read_back_is_what_was_written(written):
    assert type(written).from_json(through_json(written.to_json())) == written
    assert MeasuredMetrics(**MEASURED).to_json() == MEASURED


@pytest.mark.bad_input(41)
@pytest.mark.parametrize(
    ("known", "change"),
    [
        (SPEC, {"schema": "parlay.spec/2"}),
        (SPEC, {"layout": {"sequence_tiles": 2}}),
        *((SPEC, {"trainer": trainer}) for trainer in ({}, None, "parlay")),
        *((OUTCOME, {"schema": schema}) for schema in ("parlay.outcome/2", "parlay.spec/1", None)),
        *((OUTCOME, {name: [1]}) for name in ("measured", "proof", "fingerprint", "slowest_rank", "fullest_rank")),
        *((OUTCOME, {"flags": value}) for value in ("time_limit", ["unheard_of"])),
        *((OUTCOME, {name: value}) for name in ("rank", "restart") for value in (0.5, -1)),
        *((OUTCOME, change) for change in ({"reason": "bad_luck"}, {"step_times_s": [0.5, "0.5"]}, {"mood": "good"})),
    ],
)
def test_what_is_no_spec_or_outcome_is_refused_by_the_field(known, change):
    [name] = change
    with pytest.raises((ValueError, InputError), match="sequence_tiles" if name == "layout" else name):
        type(known).from_json(known.to_json() | change)
    with pytest.raises(ValueError, match="nonce"):
        type(known).from_json({key: value for key, value in known.to_json().items() if key != "nonce"})


class TestTrial:
    def test_attempts_stay_in_order_the_last_speaks_for_the_trial_and_one_replaces_its_namesake(self):
        trial = Trial("t0001", Layout())
        for name in ("a2", "a10", "a1", "a9"):
            trial = trial.with_attempt(attempt(name))
        assert [a.attempt for a in trial.attempts] == ["a1", "a2", "a9", "a10"]
        assert trial.last_attempt.attempt == "a10"
        first = trial.with_attempt(attempt("a1", job_id="4711")).attempts[0]
        assert (first.job_id, first.reserved_node_hours) == ("4711", 1.0)

    def test_only_a_measured_trial_has_numbers(self):
        measured = attempt("a1", state=TrialState.MEASURED, outcome=replace(OUTCOME, flags=("suspect_node",)))
        trial = Trial("t0001", Layout(), attempts=(measured,))
        assert trial.measured is None
        assert replace(trial, state=TrialState.MEASURED).measured == OUTCOME.measured
        assert trial.flags == ("suspect_node",)
        assert Trial("t0002", Layout(), state=TrialState.MEASURED).measured is None
        assert Trial("t0002", Layout()).flags == ()


class TestTime:
    @given(st.integers(0, 4_000_000_000_000_000))
    def test_a_time_keeps_its_microseconds_through_text(self, microseconds):
        seconds = microseconds / 1_000_000
        assert utc_seconds(utc_text(seconds)) == seconds
        assert utc_text(0) == "1970-01-01T00:00:00.000000Z"

    @pytest.mark.parametrize("text", ["2026-05-28T20:26:40Z", "2026-05-28 20:26:40.000000", "now", ""])
    def test_another_way_to_write_a_time_is_refused(self, text):
        with pytest.raises(ValueError, match="does not match"):
            utc_seconds(text)


ATTEMPT = Attempt(
    *("t0001", "a1", "0" * 32, 2, 60.0, 90.0),
    exclude=("n7",),
    state=TrialState.FAILED,
    nodes=("n1", "n2"),
    started_at=1_700_000_000.5,
    reason=FailureReason.PRUNED,
    outcome=OUTCOME,
)
TRIAL = Trial("t0001", LAYOUT, prediction={"step_time_s": 0.5}, attempts=(ATTEMPT,), proposed_at=1_700_000_000.0)


def test_a_trial_and_its_attempts_are_read_back_as_they_were():
    for one in (ATTEMPT, replace(ATTEMPT, reason=None, outcome=None)):
        assert decode(Attempt, through_json(encode(one))) == one
    assert decode(Trial, through_json(encode(TRIAL))) == TRIAL


def test_a_view_chooses_fields_and_has_times_as_text():
    assert encode(TRIAL, "layout_key", "reason") == {"layout_key": LAYOUT.key, "reason": None}
    chosen = encode(ATTEMPT, "reason", "started_at", "ended_at")
    assert chosen == {"reason": "pruned", "started_at": "2023-11-14T22:13:20.500000Z", "ended_at": None}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"speed": 1.0}, "'speed' is not one of"),
        ({"samples_per_sec": 0}, "samples_per_sec is 0, not above 0"),
        ({"loss_last": True}, "loss_last is True, not float"),
        ({"warmup_steps": 3.5}, "warmup_steps is 3.5, not int"),
        ({"time_s": {"compute": "1"}}, "time_s.compute is '1', not float"),
        ({"startup_parts_s": {"\x1b[2J": 1.0}}, "a name of startup_parts_s is"),
    ],
)
def test_what_is_no_metric_is_refused(change, fault):
    with pytest.raises(ValueError, match=f"measured: {fault}"):
        Outcome.from_json(OUTCOME.to_json() | {"measured": MEASURED | change})
