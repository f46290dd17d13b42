"""Feedback on layouts that were measured more than once, pruned, or too full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.search.samplers.base import TrialFeedback, feedback_of
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from tests.kit import OUTCOME, metrics
from trials.outcome_types import MeasuredMetrics
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


def with_outcome(found: MeasuredMetrics) -> Trial:
    outcome = replace(OUTCOME, measured=found)
    attempt = Attempt("t0001", "a1", "0" * 32, 1, 60.0, state=TrialState.MEASURED, outcome=outcome)
    return replace(measured("t0001", ONE), attempts=(attempt,))


def told(*trials: Trial) -> list[TrialFeedback]:
    return history_of(trials, lambda trial: SPEEDS[trial.trial])


def test_a_layout_is_told_once_with_the_median_of_its_runs_of_which_one_in_flight_or_failed_takes_nothing_away():
    again = [measured(name, OTHER, TrialKind.REPEAT) for name in ("t0003", "t0004")]
    found = told(measured("t0001", ONE), measured("t0002", OTHER), *again)
    assert found == [TrialFeedback(ONE, 100.0), TrialFeedback(OTHER, 200.0)]
    repeat = Trial("t0002", ONE, TrialKind.REPEAT, TrialState.RUNNING)
    failed = replace(repeat, state=TrialState.FAILED, reason=FailureReason.HANG)
    for trial in (repeat, failed):
        assert told(measured("t0001", ONE), trial) == [TrialFeedback(ONE, 100.0)]


def test_a_layout_without_a_value_has_a_reason_once_it_has_ended_and_a_pruned_one_an_upper_bound():
    failed = Trial("t0001", ONE, state=TrialState.FAILED, reason=FailureReason.GPU_OOM)
    found = told(failed, Trial("t0002", OTHER))
    assert found == [TrialFeedback(ONE, reason=FailureReason.GPU_OOM), TrialFeedback(OTHER)]
    ended = replace(failed, reason=FailureReason.PRUNED)
    (found,) = history_of([ended], lambda trial: 0.0, lambda trial: 120.0)
    assert found == TrialFeedback(ONE, reason=FailureReason.PRUNED, upper_bound=120.0)


def test_one_that_leaves_too_little_memory_is_told_as_out_of_memory_with_what_it_reached():
    full = with_outcome(metrics(100.0, peak_memory_gib=7.0))
    known = {headroom: history_of([full], lambda trial: 100.0, headroom=headroom) for headroom in (ROOM, NO_ROOM)}
    assert known[ROOM] == [TrialFeedback(ONE, 100.0, peak_memory_gib=7.0)]
    (found,) = known[NO_ROOM]
    assert found == TrialFeedback(ONE, reason=FailureReason.GPU_OOM, peak_memory_gib=7.0, unfit_value=100.0)
    assert (found.value, found.value_or_bound, found.observed_value, found.is_ended) == (None, None, 100.0, True)


def test_where_energy_was_measured_the_draw_of_a_gpu_is_told():
    drawing = with_outcome(metrics(1000.0, tokens_per_sec_per_gpu=500.0, joules_per_token=0.8))
    (found,) = history_of([drawing], lambda trial: 1.25)
    assert found == TrialFeedback(ONE, 1.25, watts_per_gpu=400.0)
