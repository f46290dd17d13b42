"""Failed trials, invalid outcomes, and disks and launchers that refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.context import DriverCallbacks
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script, ScriptedLauncher
from tests.orchestrator.search.rig import LAYOUTS, speed_by_layout
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import FailureReason, TrialState


@pytest.mark.parametrize(
    ("reason", "attempts"),
    [
        (FailureReason.GPU_OOM, 1),
        (FailureReason.SCRIPT_ERROR, 1),
        (FailureReason.HANG, 2),
        (FailureReason.NODE_FAILURE, 3),
        (FailureReason.LAUNCH_FAILURE, 3),
    ],
)
def test_a_failure_is_tried_again_as_often_as_its_reason_allows(rig, reason, attempts):
    rig.limits = replace(rig.limits, max_trials=1)
    rig.launcher.script = lambda spec: Script(reason=reason)
    search = rig.open_driver().run()
    assert [a.reason for a in search.trials[0].attempts] == [reason] * attempts
    assert (search.trials[0].state, search.trials[0].reason) == (TrialState.FAILED, reason)


def test_a_retry_that_succeeds_is_the_trials_value(rig):
    rig.limits = replace(rig.limits, max_trials=1)
    rig.launcher.script = lambda spec: Script(reason=FailureReason.HANG if spec.attempt == "a1" else None)
    trial = rig.open_driver().run().trials[0]
    assert [a.state for a in trial.attempts] == [TrialState.FAILED, TrialState.MEASURED]
    assert trial.measured.tokens_per_sec == 1000.0


@pytest.mark.slow
@pytest.mark.fault(41)
def test_every_layout_failing_is_a_clean_end_without_a_feasible_layout(rig):
    rig.launcher.script = lambda spec: Script(reason=FailureReason.GPU_OOM)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.NO_FEASIBLE_LAYOUT)
    assert len(search.trials) == 9
    assert search.best_trial is None


@pytest.mark.fault(42)
def test_three_alike_broken_scripts_stop_the_search_with_the_traceback(rig):
    rig.limits = replace(rig.limits, parallel_trials=1)
    rig.launcher.script = lambda spec: Script(
        reason=FailureReason.SCRIPT_ERROR, excerpt=f"{spec.trial}\nNameError: name 'x' is not defined"
    )
    search = rig.open_driver().run()
    assert (search.state, search.end_reason, len(search.trials)) == (SearchState.FAILED, EndReason.SCRIPT_ERROR, 3)
    assert "NameError" in search.detail


@pytest.mark.slow
def test_three_different_script_errors_do_not_stop_the_search(rig):
    rig.launcher.script = lambda spec: Script(reason=FailureReason.SCRIPT_ERROR, excerpt=f"Error of {spec.trial}")
    assert rig.open_driver().run().end_reason is EndReason.NO_FEASIBLE_LAYOUT


def test_a_launcher_that_refuses_all_work_stops_the_search_with_its_words(rig):
    rig.launcher = ScriptedLauncher(refuses="Invalid account or account/partition combination specified")
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.SUBMISSION_REJECTED)
    assert "Invalid account" in search.detail
    assert all(t.state is TrialState.CANCELLED for t in search.trials)


def test_an_attempt_nobody_knows_of_is_unknown_not_dead(rig):
    rig.limits = replace(rig.limits, max_trials=1)
    seen = []

    def come_back_later(search, event):
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            rig.launcher.unknown.update(rig.launcher.launched)
        if event.kind is EventKind.ATTEMPT_UNKNOWN:
            seen.append(event.data["unknown_since"])
            rig.launcher.unknown.clear()

    rig.callbacks = DriverCallbacks(on_event=come_back_later)
    trial = rig.open_driver().run().trials[0]
    assert len(trial.attempts) == 1
    assert trial.state is TrialState.MEASURED
    assert seen[0] is not None


@pytest.mark.parametrize(
    "broken", [{"nonce": "0" * 32}, {"schema": "parlay.outcome/99"}, {"status": "splendid"}, {"proof": {}}]
)
@pytest.mark.fault(26)
def test_an_outcome_that_cannot_be_believed_is_result_invalid_and_never_best(rig, broken, monkeypatch):
    rig.limits = replace(rig.limits, max_trials=1)
    outcome = ScriptedLauncher._outcome
    monkeypatch.setattr(ScriptedLauncher, "_outcome", lambda self, job: Broken(outcome(self, job), broken))
    search = rig.open_driver().run()
    assert search.trials[0].reason is FailureReason.RESULT_INVALID
    assert search.best_trial is None


class Broken:
    def __init__(self, outcome, changes):
        self._data = outcome.to_json() | changes

    def to_json(self):
        return self._data


@pytest.mark.fault(27)
def test_a_full_disk_is_said_once_and_stops_nothing(rig, logged):
    rig.limits = replace(rig.limits, max_trials=2)
    launch, failures = rig.launcher.launch, iter([True, True, True, False, False])

    def full_at_first(request):
        if next(failures):
            raise OSError(28, "No space left on device")
        return launch(request)

    rig.launcher.launch = full_at_first
    rig.callbacks = DriverCallbacks()
    search = rig.open_driver().run()
    assert [t.state for t in search.trials] == [TrialState.MEASURED] * 2
    assert len(logged) == 1
    assert "No space left" in logged[0]


@pytest.mark.slow
@pytest.mark.fault(28)
def test_a_folder_that_cannot_be_read_holds_up_only_its_own_trial(rig, monkeypatch):
    read_result, unreadable = AttemptFactory.result, iter(range(4))

    def fails_for_the_first(self, trial, attempt, status, now):
        if trial.trial == "t0001" and next(unreadable, None) is not None:
            raise PermissionError(13, "Permission denied")
        return read_result(self, trial, attempt, status, now)

    monkeypatch.setattr(AttemptFactory, "result", fails_for_the_first)
    search = rig.open_driver().run()
    assert [t.state for t in search.trials] == [TrialState.MEASURED] * 9
    assert all(len(t.attempts) == 1 for t in search.trials)


@pytest.mark.fault(45)
def test_a_measurement_with_other_software_is_marked_and_never_the_best(rig, monkeypatch):
    outcome = ScriptedLauncher._outcome

    def newer_torch_for_the_fastest(self, job):
        version = "2.13.0" if job.request.spec.layout != LAYOUTS[-1] else "2.15.0"
        return replace(outcome(self, job), fingerprint={"torch": version, "host": job.request.spec.trial})

    monkeypatch.setattr(ScriptedLauncher, "_outcome", newer_torch_for_the_fastest)
    rig.launcher.script = speed_by_layout
    search = rig.open_driver().run()
    assert search.trials[-1].flags == ("fingerprint_changed",)
    assert search.trial(search.best_trial).layout == LAYOUTS[-2]


def program(content: str) -> dict[str, dict[str, str]]:
    return {"scripts": {"/home/a/train.py": content * 16}}


@pytest.mark.parametrize("parallel_trials", [1, 3])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_script_that_changes_ends_the_search_with_both_hashes(rig, parallel_trials, resumes):
    rig.limits = replace(rig.limits, parallel_trials=parallel_trials)

    def faster_once_edited(spec):
        is_edited = spec.trial > "t0003"
        return Script(9000.0 if is_edited else 1000.0, fingerprint=program("9f8e" if is_edited else "1a2b"))

    rig.launcher.script = faster_once_edited
    if resumes:
        driver = rig.open_driver()
        rig.callbacks = DriverCallbacks()
        while len(driver.search.trials) < 3:
            driver.recover()
            driver.iterate()
            rig.launcher.wait(1.0)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.PROGRAM_CHANGED)
    assert all(part in search.detail for part in ("/home/a/train.py", "1a2b1a2b", "9f8e9f8e", "new search"))
    assert search.detail.index("1a2b") < search.detail.index("9f8e")
    assert len(search.trials) <= 3 + parallel_trials
    assert search.trial(search.best_trial).measured.tokens_per_sec == 1000.0


def test_a_program_that_some_ranks_cannot_read_is_no_other_one(rig):
    rig.launcher.script = lambda spec: Script(fingerprint=program("1a2b") if spec.trial < "t0005" else {})
    assert rig.open_driver().run().end_reason is not EndReason.PROGRAM_CHANGED


@pytest.mark.parametrize("reason", [FailureReason.CANCELLED_BY_USER, FailureReason.JOB_LOST])
def test_a_baseline_that_others_cancelled_or_that_got_lost_is_tried_again_once(rig, reason):
    rig.first, rig.limits = LAYOUTS[4:5], replace(rig.limits, max_trials=2, parallel_trials=1)
    rig.launcher.script = lambda spec: Script(reason=reason if spec.trial == "t0001" else None, leaves_outcome=False)
    baseline = rig.open_driver().run().trials[0]
    assert [attempt.reason for attempt in baseline.attempts] == [reason] * 2
    assert baseline.state.is_ended


def test_another_layout_whose_job_others_cancelled_is_not_tried_again(rig):
    rig.first, rig.limits = LAYOUTS[4:5], replace(rig.limits, max_trials=2, parallel_trials=1)
    cancelled = Script(reason=FailureReason.CANCELLED_BY_USER, leaves_outcome=False)
    rig.launcher.script = lambda spec: cancelled if spec.trial == "t0002" else Script()
    assert [len(trial.attempts) for trial in rig.open_driver().run().trials] == [1, 1]


def test_a_baseline_is_not_tried_again_where_the_search_is_cancelled(rig):
    rig.first, rig.limits = LAYOUTS[4:5], replace(rig.limits, parallel_trials=1)
    began = rig.launcher.now()
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: rig.launcher.now() > began)
    [baseline] = rig.open_driver().run().trials
    assert [attempt.reason for attempt in baseline.attempts] == [FailureReason.CANCELLED_BY_USER]


def test_a_baseline_is_not_tried_again_where_the_budget_is_spent(rig):
    rig.first, rig.limits = LAYOUTS[4:5], replace(rig.limits, max_trials=1, parallel_trials=1)
    rig.launcher.script = lambda spec: Script(reason=FailureReason.CANCELLED_BY_USER, leaves_outcome=False)
    rig.limits = replace(rig.limits, budget_node_hours=(rig.launcher.longest_s(600.0) + 1) / 3600)
    assert len(rig.open_driver().run().trials[0].attempts) == 1


def test_energy_that_no_driver_reports_ends_the_search_at_the_first_trial(rig):
    rig.limits = replace(rig.limits, parallel_trials=1)
    words = "rank 0: the driver of its device reports no energy (NVML or AMD SMI)"
    rig.launcher.script = lambda spec: Script(reason=FailureReason.ENERGY_UNKNOWN, excerpt=words)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason, search.detail) == (
        SearchState.FAILED,
        EndReason.NO_FEASIBLE_LAYOUT,
        words,
    )
    assert len(search.trials) == 1


def with_interface(layout: Layout, name: str) -> Layout:
    return replace(layout, settings=f"env.NCCL_SOCKET_IFNAME={name}")


@pytest.mark.parametrize("reason", [FailureReason.NODE_FAILURE, FailureReason.SCRIPT_ERROR])
@pytest.mark.parametrize("parallel_trials", [1, 3])
def test_a_setting_that_fails_with_every_layout_neither_blames_nodes_nor_ends_the_search(
    rig, reason, parallel_trials, caplog
):
    rig.layouts = tuple(with_interface(layout, name) for layout in LAYOUTS[:4] for name in ("lo", "nope"))
    rig.limits = replace(rig.limits, max_trials=8, parallel_trials=parallel_trials)
    rig.launcher.script = lambda spec: (
        Script(reason=reason, excerpt="unknown interface") if "nope" in spec.layout.settings else Script(1000.0)
    )
    search = rig.open_driver().run()
    failed = [trial for trial in search.trials if "nope" in trial.layout.settings]
    assert [trial.reason for trial in failed][1:] == [FailureReason.SETTING_FAILURE] * (len(failed) - 1)
    assert (len(failed), sum(len(trial.attempts) for trial in failed)) <= (1 + parallel_trials, 3 + parallel_trials)
    assert all(attempt.exclude == () for trial in search.trials for attempt in trial.attempts[:1])
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.SPACE_EXHAUSTED)
    assert "NCCL_SOCKET_IFNAME=nope: every attempt with it failed" in caplog.text


def test_a_trainer_that_crashes_with_all_settings_ends_the_search(rig):
    rig.layouts = tuple(with_interface(layout, name) for name in ("lo", "eth0") for layout in LAYOUTS[:4])
    rig.limits = replace(rig.limits, max_trials=8, parallel_trials=1)
    rig.launcher.script = lambda spec: Script(reason=FailureReason.SCRIPT_ERROR, excerpt="no such file")
    search = rig.open_driver().run()
    assert (search.state, search.end_reason, search.detail) == (
        SearchState.FAILED,
        EndReason.SCRIPT_ERROR,
        "no such file",
    )
    assert len(search.trials) == 3


def test_a_value_that_turns_out_to_run_is_proposed_again(rig):
    rig.layouts = (with_interface(LAYOUTS[0], "lo"), *(with_interface(layout, "eth0") for layout in LAYOUTS[1:5]))
    rig.limits = replace(rig.limits, max_trials=5, parallel_trials=4)
    rig.launcher.script = lambda spec: (
        Script(reason=FailureReason.SCRIPT_ERROR)
        if spec.layout.without_settings in LAYOUTS[1:3]
        else Script(duration_s=60.0 if "lo" in spec.layout.settings else 500.0)
    )
    search = rig.open_driver().run()
    assert [trial.state for trial in search.trials[3:]] == [TrialState.MEASURED] * 2
    assert FailureReason.SETTING_FAILURE in {trial.reason for trial in search.trials}
