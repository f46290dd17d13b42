"""Feedback on layouts that were measured more than once, pruned, or too full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.samplers.base import TrialFeedback, feedback_of
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from tests.kit import OUTCOME, metrics
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState

ROOM, NO_ROOM = MemoryHeadroom(10.0, 3.0), MemoryHeadroom(10.0, 4.0)
ONE, OTHER = Layout(data_parallel=2), Layout(tensor_parallel=2)
SPEEDS = {"t0001": 100.0, "t0002": 300.0, "t0003": 200.0, "t0004": 190.0}


def history_of(
    trials: Sequence[Trial],
    objective: Callable[[Trial], float],
    upper_bound: Callable[[Trial], float | None] = lambda trial: None,
    headroom: MemoryHeadroom | None = None,
) -> list[TrialFeedback]:
    """Feedback on the layouts in the order of proposals, each once; the arguments are those of `feedback_of`."""
    by_layout: dict[str, list[Trial]] = {}
    for trial in trials:
        by_layout.setdefault(trial.layout.key, []).append(trial)
    return [feedback_of(group, objective, upper_bound, headroom) for group in by_layout.values()]


def measured(name: str, layout: Layout, kind: TrialKind = TrialKind.SEARCH) -> Trial:
    return Trial(name, layout, kind, TrialState.MEASURED)


def told(*trials: Trial) -> list[TrialFeedback]:
    return history_of(trials, lambda trial: SPEEDS[trial.trial])


def test_a_layout_is_told_once_with_the_median_of_its_runs():
    again = [measured(name, OTHER, TrialKind.REPEAT) for name in ("t0003", "t0004")]
    assert told(measured("t0001", ONE), measured("t0002", OTHER), *again) == [
        TrialFeedback(ONE, 100.0),
        TrialFeedback(OTHER, 200.0),
    ]


def test_a_repeat_in_flight_or_failed_takes_no_value_away():
    repeat = Trial("t0002", ONE, TrialKind.REPEAT, TrialState.RUNNING)
    failed = replace(repeat, state=TrialState.FAILED, reason=FailureReason.HANG)
    for trial in (repeat, failed):
        assert told(measured("t0001", ONE), trial) == [TrialFeedback(ONE, 100.0)]


def test_of_a_pruned_layout_an_upper_bound_is_known():
    ended = Trial("t0001", ONE, state=TrialState.FAILED, reason=FailureReason.PRUNED)
    (found,) = history_of([ended], lambda trial: 0.0, lambda trial: 120.0)
    assert found == TrialFeedback(ONE, reason=FailureReason.PRUNED, upper_bound=120.0)


def test_one_that_leaves_too_little_memory_is_told_as_out_of_memory_with_what_it_reached():
    outcome = replace(OUTCOME, measured=metrics(100.0, peak_memory_gib=7.0))
    attempt = Attempt("t0001", "a1", "0" * 32, 1, 60.0, state=TrialState.MEASURED, outcome=outcome)
    full = replace(measured("t0001", ONE), attempts=(attempt,))
    known = {headroom: history_of([full], lambda trial: 100.0, headroom=headroom) for headroom in (ROOM, NO_ROOM)}
    assert known[ROOM] == [TrialFeedback(ONE, 100.0, peak_memory_gib=7.0)]
    (found,) = known[NO_ROOM]
    assert found == TrialFeedback(ONE, reason=FailureReason.GPU_OOM, peak_memory_gib=7.0, unfit_value=100.0)
    assert (found.value, found.value_or_bound, found.observed_value, found.is_ended) == (None, None, 100.0, True)


def test_a_layout_without_a_value_has_a_reason_once_it_has_ended():
    failed = Trial("t0001", ONE, state=TrialState.FAILED, reason=FailureReason.GPU_OOM)
    assert told(failed, Trial("t0002", OTHER)) == [
        TrialFeedback(ONE, reason=FailureReason.GPU_OOM),
        TrialFeedback(OTHER),
    ]


def test_where_energy_was_measured_the_draw_of_a_gpu_is_told():
    outcome = replace(OUTCOME, measured=metrics(1000.0, tokens_per_sec_per_gpu=500.0, joules_per_token=0.8))
    attempt = Attempt("t0001", "a1", "0" * 32, 1, 60.0, state=TrialState.MEASURED, outcome=outcome)
    (found,) = history_of([replace(measured("t0001", ONE), attempts=(attempt,))], lambda trial: 1.25)
    assert found == TrialFeedback(ONE, 1.25, watts_per_gpu=400.0)
