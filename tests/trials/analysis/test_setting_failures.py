"""Values to which failures are put down: of settings, and of axes where they set failed layouts apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from trials.analysis.failure_patterns import Condition, common_last_line, failure_patterns
from trials.analysis.setting_failures import SettingFailures
from trials.outcome_types import ThroughputBound
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, TrialState

DEAD, CRASHED, OOM = FailureReason.NODE_FAILURE, FailureReason.SCRIPT_ERROR, FailureReason.GPU_OOM
PRUNED, PREEMPTED = FailureReason.PRUNED, FailureReason.PREEMPTED


def failing(*ended: tuple[int, str, FailureReason | None]) -> dict[str, str | None]:
    """Failing values of the settings `env.NET=bad` with `env.OMP=1`, after these attempts of (tensor degree, settings,
    reason)."""
    failures = SettingFailures()
    for tensor, settings, reason in ended:
        state = TrialState.MEASURED if reason is None else TrialState.FAILED
        attempt = Attempt("t0001", "a1", "0" * 32, 1, 60.0, state=state, reason=reason)
        failures.add(Layout(tensor_parallel=tensor, settings=settings), attempt)
    return dict(failures.failing_values(Layout(settings="env.NET=bad env.OMP=1")))


RAN = (1, "env.NET=lo env.OMP=1", None)
BAD = {"env.NET": "bad"}


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ([RAN, (2, "env.NET=bad env.OMP=1", DEAD), (4, "env.NET=bad env.OMP=1", CRASHED)], BAD),  # two layouts
        ([RAN, (1, "env.NET=bad env.OMP=1", DEAD), (1, "env.NET=bad env.OMP=1", DEAD)], BAD),  # one that ran without
        ([(2, "env.NET=bad", DEAD), (4, "env.NET=bad", DEAD), (1, "", None)], BAD),  # whatever the order
        ([RAN, (2, "env.NET=bad env.OMP=1", DEAD), (2, "env.NET=bad env.OMP=1", DEAD)], {}),  # perhaps the layout
        ([RAN, (2, "env.NET=bad env.OMP=2", DEAD), (4, "env.NET=bad env.OMP=2", DEAD)], {}),  # perhaps the other value
        ([(1, "env.NET=lo env.OMP=1", OOM), (2, "env.NET=bad env.OMP=1", DEAD), (4, "env.NET=bad", DEAD)], BAD),
        ([RAN, (2, "env.NET=bad env.OMP=1", DEAD), (4, "env.NET=bad", DEAD), (1, "env.NET=bad", None)], {}),  # it runs
        ([RAN, (2, "env.NET=bad env.OMP=1", PREEMPTED), (4, "env.NET=bad", PREEMPTED)], {}),  # no setting does that
        ([(2, "env.NET=bad", DEAD), (4, "env.NET=bad", DEAD), (1, "", CRASHED)], BAD),  # nothing ran at all
        ([RAN, (2, "env.NET=bad", DEAD), (4, "env.NET=bad", DEAD), (2, "env.OMP=1", CRASHED)], {}),  # the layout
        ([RAN, (2, "env.NET=bad", DEAD), (4, "env.NET=bad", DEAD), (2, "", DEAD), (2, "", None)], BAD),  # a node
    ],
)
def test_a_value_fails_where_no_attempt_runs_with_it_and_everything_else_is_known_to_run(ended, expected):
    assert failing(*ended) == expected


LATE = Outcome("s1", "t0001", "a1", "0" * 32, OutcomeStatus.FAILED, measured=ThroughputBound(900.0))
IN_STEPS = replace(LATE, measured=None, phase="measured")
BROKEN_GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ([{}, {}], BAD),
        ([{}, {}, {"reason": FailureReason.TIME_LIMIT, "outcome": LATE}], {}),  # it trained, slowly
        ([{}, {}, {"outcome": IN_STEPS}], {}),
        ([{}, {"excerpt": BROKEN_GPU}], {}),
        ([{"nodes": ("n1",)}, {"nodes": ("n1", "n2")}], {}),  # perhaps the node
        ([{"nodes": ("n3",)}, {"nodes": ("n3",)}], BAD),  # one that is known to work
        ([{"nodes": ("n1",), "reason": CRASHED}, {"nodes": ("n1",), "reason": CRASHED}], BAD),
    ],
)
def test_only_failures_that_are_no_nodes_show_that_a_value_fails(ended, expected):
    failures = SettingFailures()
    ran = Attempt("t0001", "a1", "0" * 32, 1, 60.0, state=TrialState.MEASURED, nodes=("n3",))
    failures.add(Layout(), ran)
    for position, changes in enumerate(ended):
        attempt = replace(ran, state=TrialState.FAILED, reason=DEAD, nodes=())
        failures.add(Layout(tensor_parallel=2**position, settings="env.NET=bad"), replace(attempt, **changes))
    assert failures.failing_values(Layout(settings="env.NET=bad")) == expected


def test_software_is_no_setting_that_fails_and_values_that_did_not_run_are_untried():
    failures = SettingFailures()
    for tensor in (1, 2, 4):
        layout = Layout(tensor_parallel=tensor, settings="software.python=/new/bin/python")
        attempt = Attempt("t0001", "a1", "0" * 32, 1, 60.0, state=TrialState.FAILED, reason=CRASHED)
        failures.add(layout, attempt)
        failures.add(layout.without_settings, replace(attempt, state=TrialState.MEASURED, reason=None))
    assert failures.failing_values(layout) == {}
    failures = SettingFailures()
    failures.add(Layout(settings="env.NET=lo"), Attempt("t0001", "a1", "0" * 32, 1, 60.0, state=TrialState.MEASURED))
    assert failures.untried_values(Layout(settings="env.NET=lo env.OMP=1")) == {"env.OMP": "1"}
    assert failures.untried_values(Layout()) == {}


def layout(tensor: int, micro_batch: int) -> Layout:
    return Layout(tensor_parallel=tensor, data_parallel=8 // tensor, micro_batch_size=micro_batch)


def searched(fails) -> SearchUnderTest:
    search = SearchUnderTest()
    for tensor in (1, 2, 4):
        for micro_batch in (1, 2, 4, 8):
            trial = search.start(layout(tensor, micro_batch))
            if fails(tensor, micro_batch):
                search.fail(trial, OOM, excerpt=f"step {tensor}\nout of memory\n")
            else:
                search.measure(trial, 100.0)
    return search


def test_the_value_that_tells_most_is_named_with_both_shares():
    (pattern,) = failure_patterns(searched(lambda tensor, mb: (mb >= 4 and tensor < 4) or mb == 8).record.trials)
    assert pattern.condition == Condition("micro_batch_size", 4, "at_least")
    assert (pattern.num_with, pattern.num_failed, pattern.others_with, pattern.num_others) == (5, 5, 1, 7)
    (pattern,) = failure_patterns(searched(lambda tensor, mb: mb == 8).record.trials)
    assert pattern.condition == Condition("micro_batch_size", 8)
    search = SearchUnderTest()
    search.measure(search.start(replace(layout(1, 1), settings="env.NET=lo")), 100.0)
    search.fail(search.start(replace(layout(2, 1), settings="env.NET=nope")), FailureReason.SETTING_FAILURE)
    (pattern,) = failure_patterns(search.record.trials)
    assert pattern.condition == Condition("env.NET", "nope")


def test_nothing_is_told_of_few_failures_and_the_line_with_which_most_end_is_found():
    assert failure_patterns(searched(lambda tensor, mb: (tensor, mb) in ((1, 8), (2, 8))).record.trials) == ()
    assert failure_patterns(searched(lambda tensor, mb: True).record.trials) == ()
    assert failure_patterns(searched(lambda tensor, mb: (tensor + mb) % 3 == 0).record.trials) == ()
    assert failure_patterns(()) == ()
    trials = searched(lambda tensor, mb: mb == 8).record.trials
    assert common_last_line(trials, OOM) == ("out of memory", 3)
    assert common_last_line(trials, FailureReason.HANG) is None
