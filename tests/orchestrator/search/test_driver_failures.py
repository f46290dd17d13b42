"""Failed trials, invalid outcomes, and disks and launchers that refuse."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script, ScriptedLauncher
from tests.rig import LAYOUTS, Rig, attempts_of, steady
from trials.ledger.events import EndReason, SearchState
from trials.trial import FailureReason, TrialState


@pytest.fixture
def one(rig) -> Rig:
    """A search of one trial."""
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    return rig


def failing(reason: FailureReason, **script: object):
    return lambda spec, restart: Script(reason=reason, **script)


@pytest.mark.parametrize(
    ("reason", "attempts"),
    [
        (FailureReason.GPU_OOM, 1),
        (FailureReason.SCRIPT_ERROR, 1),
        (FailureReason.HANG, 2),
        pytest.param(FailureReason.NODE_FAILURE, 3, marks=pytest.mark.fault(19)),
        pytest.param(FailureReason.GPU_MEMORY_IN_USE, 3, marks=pytest.mark.fault(37)),
        (FailureReason.LAUNCH_FAILURE, 3),
        (FailureReason.PREEMPTED, 9),
    ],
)
def test_a_failure_is_tried_again_as_often_as_its_reason_allows(one, reason, attempts):
    one.script = failing(reason)
    [trial] = one.run().trials
    assert [a.reason for a in trial.attempts] == [reason] * attempts
    assert (trial.state, trial.reason) == (TrialState.FAILED, reason)


@pytest.mark.slow
@pytest.mark.fault(41)
def test_every_layout_failing_is_a_clean_end_without_a_feasible_layout(rig):
    rig.script = failing(FailureReason.GPU_OOM)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.NO_FEASIBLE_LAYOUT)
    assert (len(search.trials), search.best_trial) == (9, None)


def with_interface(layout: Layout, name: str) -> Layout:
    return replace(layout, settings=f"env.NCCL_SOCKET_IFNAME={name}")


@pytest.mark.fault(42)
@pytest.mark.parametrize("settings", [None, ("lo", "eth0")], ids=["plain", "with all settings"])
def test_three_alike_broken_scripts_stop_the_search_with_the_traceback(rig, settings):
    if settings is not None:
        rig.layouts = tuple(with_interface(layout, name) for name in settings for layout in LAYOUTS[:4])
    rig.limits = replace(rig.limits, parallel_trials=1)
    rig.script = lambda spec, restart: Script(
        reason=FailureReason.SCRIPT_ERROR, excerpt=f"{spec.trial}\nNameError: name 'x' is not defined"
    )
    search = rig.run()
    assert (search.state, search.end_reason, len(search.trials)) == (SearchState.FAILED, EndReason.SCRIPT_ERROR, 3)
    assert "NameError" in search.detail


@pytest.mark.slow
def test_three_different_script_errors_do_not_stop_the_search(rig):
    rig.script = lambda spec, restart: Script(reason=FailureReason.SCRIPT_ERROR, excerpt=f"Error of {spec.trial}")
    assert rig.run().end_reason is EndReason.NO_FEASIBLE_LAYOUT


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    "broken", [{"nonce": "0" * 32}, {"schema": "parlay.outcome/99"}, {"status": "splendid"}, {"proof": {}}]
)
def test_an_outcome_that_cannot_be_believed_is_result_invalid_and_never_best(one, broken, monkeypatch):
    outcome = ScriptedLauncher._outcome
    changed = lambda self, job: SimpleNamespace(to_json=lambda: outcome(self, job).to_json() | broken)  # noqa: E731
    monkeypatch.setattr(ScriptedLauncher, "_outcome", changed)
    search = one.open_driver().run()
    assert search.trials[0].reason is FailureReason.RESULT_INVALID
    assert search.best_trial is None


@pytest.mark.fault(27)
def test_a_full_disk_is_said_once_and_stops_nothing(rig, logged):
    rig.limits = replace(rig.limits, max_trials=2)
    launch, failures = rig.launcher.launch, iter([True, True, True, False, False])

    def full_at_first(request):
        if next(failures):
            raise OSError(28, "No space left on device")
        return launch(request)

    rig.launcher.launch = full_at_first
    assert [t.state for t in rig.run().trials] == [TrialState.MEASURED] * 2
    [note] = logged
    assert "No space left" in note


@pytest.mark.fault(45)
def test_a_measurement_with_other_software_is_marked_and_never_the_best(rig):
    rig.script = lambda spec, restart: replace(
        steady(spec), fingerprint={"torch": "2.13.0" if spec.layout != LAYOUTS[-1] else "2.15.0", "host": spec.trial}
    )
    search = rig.run()
    assert search.trials[-1].flags == ("fingerprint_changed",)
    assert search.trial(search.best_trial).layout == LAYOUTS[-2]


def program(content: str) -> dict[str, dict[str, str]]:
    return {"scripts": {"/home/a/train.py": content * 16}}


@pytest.mark.parametrize("parallel_trials", [1, 3])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_script_that_changes_ends_the_search_with_both_hashes(rig, parallel_trials, resumes):
    rig.limits = replace(rig.limits, parallel_trials=parallel_trials)

    def edited_later(spec, restart) -> Script:
        is_edited = spec.trial > "t0003"
        speed = 9000.0 if is_edited else 1000.0
        return Script(tokens_per_sec=speed, fingerprint=program("9f8e" if is_edited else "1a2b"))

    rig.script = edited_later
    if resumes:
        rig.iterate(until=lambda search: len(search.trials) >= 3)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.PROGRAM_CHANGED)
    assert all(part in search.detail for part in ("/home/a/train.py", "new search"))
    assert 0 < search.detail.index("1a2b1a2b") < search.detail.index("9f8e9f8e")
    assert len(search.trials) <= 3 + parallel_trials
    assert search.trial(search.best_trial).measured.tokens_per_sec == 1000.0


def test_a_program_that_some_ranks_cannot_read_is_no_other_one(rig):
    rig.script = lambda spec, restart: Script(fingerprint=program("1a2b") if spec.trial < "t0005" else {})
    assert rig.run().end_reason is not EndReason.PROGRAM_CHANGED


def ended_by_others(*trials: str, reason: FailureReason = FailureReason.CANCELLED_BY_USER):
    """Script of a search in which these trials end like this."""
    return lambda spec, restart: Script(reason=reason, leaves_outcome=False) if spec.trial in trials else Script()


@pytest.mark.parametrize(
    ("trial", "reason", "attempts"),
    [
        ("t0001", FailureReason.CANCELLED_BY_USER, [2, 1]),
        ("t0001", FailureReason.JOB_LOST, [2, 1]),
        ("t0002", FailureReason.CANCELLED_BY_USER, [1, 1]),
    ],
)
def test_a_baseline_alone_that_others_cancelled_is_tried_again_once(rig, trial, reason, attempts):
    rig.first, rig.limits = LAYOUTS[4:5], Limits(max_trials=2, parallel_trials=1)
    rig.script = ended_by_others(trial, reason=reason)
    search = rig.run()
    assert [len(trial.attempts) for trial in search.trials] == attempts
    assert {attempt.reason for attempt in search.trial(trial).attempts} == {reason}


def test_a_baseline_is_not_tried_again_where_the_search_is_cancelled_or_the_budget_is_spent(tmp_path):
    cancelled, poor = (Rig("scripted", tmp_path / name, Limits(1, 1), first=LAYOUTS[4:5]) for name in ("one", "two"))
    began = cancelled.launcher.now()
    cancelled.callbacks = DriverCallbacks(cancel_requested=lambda: cancelled.launcher.now() > began)
    poor.script = ended_by_others("t0001")
    poor.limits = replace(poor.limits, budget_node_hours=(poor.launcher.longest_s(600.0) + 1) / 3600)
    for rig in (cancelled, poor):
        assert [attempt.reason for attempt in attempts_of(rig.run())] == [FailureReason.CANCELLED_BY_USER]


def test_energy_that_no_driver_reports_ends_the_search_at_the_first_trial(rig):
    rig.limits, words = replace(rig.limits, parallel_trials=1), "rank 0: the driver of its device reports no energy"
    rig.script = failing(FailureReason.ENERGY_UNKNOWN, excerpt=words)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.NO_FEASIBLE_LAYOUT)
    assert (search.detail, len(search.trials)) == (words, 1)


@pytest.mark.parametrize("reason", [FailureReason.NODE_FAILURE, FailureReason.SCRIPT_ERROR])
@pytest.mark.parametrize("parallel_trials", [1, 3])
def test_a_setting_that_fails_with_every_layout_neither_blames_nodes_nor_ends_the_search(
    rig, reason, parallel_trials, caplog
):
    rig.layouts = tuple(with_interface(layout, name) for layout in LAYOUTS[:4] for name in ("lo", "nope"))
    rig.limits = Limits(max_trials=8, parallel_trials=parallel_trials)
    broken = Script(reason=reason, excerpt="unknown interface")
    rig.script = lambda spec, restart: broken if "nope" in spec.layout.settings else Script()
    search = rig.run()
    failed = [trial for trial in search.trials if "nope" in trial.layout.settings]
    assert [trial.reason for trial in failed][1:] == [FailureReason.SETTING_FAILURE] * (len(failed) - 1)
    assert (len(failed), sum(len(trial.attempts) for trial in failed)) <= (1 + parallel_trials, 3 + parallel_trials)
    assert all(attempt.exclude == () for trial in search.trials for attempt in trial.attempts[:1])
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.SPACE_EXHAUSTED)
    assert "NCCL_SOCKET_IFNAME=nope: every attempt with it failed" in caplog.text
