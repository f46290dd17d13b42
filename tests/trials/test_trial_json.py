"""A trial and an attempt as JSON, and back."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.kit import LAYOUT, OUTCOME
from trials.trial import Attempt, FailureReason, Trial, TrialState
from trials.trial_json import attempt_json, attempt_of, trial_json, trial_of, with_times

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


def test_an_attempt_is_read_back_as_it_was():
    for attempt in (ATTEMPT, replace(ATTEMPT, reason=None, outcome=None)):
        assert attempt_of(json.loads(json.dumps(attempt_json(attempt)))) == attempt


def test_a_trial_is_read_back_as_it_was():
    data = json.loads(json.dumps(trial_json(TRIAL)))
    assert data.pop("layout_key") == LAYOUT.key
    assert trial_of(data, [ATTEMPT]) == TRIAL


def test_a_view_chooses_fields_and_has_times_as_text():
    assert trial_json(TRIAL, "layout_key", "reason") == {"layout_key": LAYOUT.key, "reason": None}
    chosen = with_times(attempt_json(ATTEMPT, "reason", "started_at", "ended_at"))
    assert chosen == {"reason": "pruned", "started_at": "2023-11-14T22:13:20.500000Z", "ended_at": None}
