from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.replay.software import FieldPair, fingerprint_differences
from orchestrator.replay.speed_ratio import (
    SESSION_S,
    Confidence,
    ReplayVerdict,
    Run,
    by_session,
    compare_runs,
    step_time_of,
)
from tests.kit import metrics

MARGIN = 0.05

times = st.floats(0.001, 1000.0)
widths = st.floats(0.0, 0.3)


def run(step_time_s: float, width: float = 0.01) -> Run:
    return Run(step_time_s, step_time_s * (1 - width / 2), step_time_s * (1 + width / 2))


def at(hour: int, step_time_s: float) -> Run:
    return replace(run(step_time_s, width=0.0), started_s=hour * 3600.0)


runs = st.lists(st.builds(run, times, widths), min_size=1, max_size=6)
steady = st.builds(
    lambda step_time_s, wobbles: [run(step_time_s * w) for w in wobbles],
    times,
    st.lists(st.floats(0.995, 1.005), min_size=1, max_size=6),
)


@pytest.mark.slow
@given(recorded=runs, margin=st.floats(0.01, 0.2))
def test_identical_data_are_never_slower_nor_faster(recorded, margin):
    assert compare_runs(recorded, recorded, margin).verdict in (ReplayVerdict.REPRODUCED, ReplayVerdict.INCONCLUSIVE)


@pytest.mark.slow
@given(recorded=steady, factor=st.floats(1.15, 10.0))
def test_a_slow_down_of_15_percent_is_never_called_reproduced(recorded, factor):
    measured = [Run(r.step_time_s * factor, r.step_time_low_s * factor, r.step_time_high_s * factor) for r in recorded]
    assert compare_runs(recorded, measured, MARGIN).verdict is not ReplayVerdict.REPRODUCED
    at_three = [replace(run, started_s=hour * 3600.0) for hour in range(3) for run in measured]
    assert compare_runs(recorded, at_three, MARGIN).verdict is ReplayVerdict.SLOWER


@pytest.mark.slow
@given(recorded=runs, measured=runs)
def test_the_interval_holds_the_ratio_and_turning_the_sides_inverts_it(recorded, measured):
    found, turned = compare_runs(recorded, measured, MARGIN), compare_runs(measured, recorded, MARGIN)
    assert found.low <= found.ratio <= found.high
    assert turned.ratio == pytest.approx(1 / found.ratio)
    assert turned.low == pytest.approx(1 / found.high)


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says(sessions):
    """Two recorded runs, then three in each session, with the prior spreads between sessions and between runs.

    The interval is slightly too wide, because both spreads are assumed as well as observed.
    """
    source = random.Random(0)

    def drawn(hour: int, count: int) -> list[Run]:
        speed = source.lognormvariate(0.0, 0.03)
        return [at(hour, speed * source.lognormvariate(0.0, 0.02)) for _ in range(count)]

    found = [
        compare_runs(drawn(0, 2), [r for hour in range(sessions) for r in drawn(hour, 3)], MARGIN) for _ in range(2000)
    ]
    assert 0.94 <= sum(f.low <= 1.0 <= f.high for f in found) / 2000 <= 0.99


def test_runs_of_one_session_are_no_evidence_of_the_next():
    """15 % slower within the same minutes: a hundred runs prove it for those minutes only."""
    then = [at(0, 1.0)] * 100
    assert compare_runs(then, [at(5, 1.15)] * 100, MARGIN).verdict is ReplayVerdict.INCONCLUSIVE
    again = compare_runs(then, [at(hour, 1.15) for hour in (5, 6, 7, 8)], MARGIN)
    assert again.verdict is ReplayVerdict.SLOWER
    assert again.speed.by_session == pytest.approx([1 / 1.15] * 4)


@pytest.mark.parametrize(("factor", "verdict"), [(1.3, ReplayVerdict.SLOWER), (1 / 1.3, ReplayVerdict.FASTER)])
def test_as_fast_as_then_at_one_session_is_neither_slower_nor_faster(factor, verdict):
    then, away = [at(0, 1.0)] * 4, [at(hour, factor) for hour in (5, 6, 7, 8)]
    assert compare_runs(then, away, MARGIN).verdict is verdict
    assert compare_runs(then, [*away, at(9, 1.0)], MARGIN).verdict is ReplayVerdict.INCONCLUSIVE


@pytest.mark.parametrize(("factor", "verdict"), [(1.13, ReplayVerdict.SLOWER), (1 / 1.13, ReplayVerdict.FASTER)])
def test_who_asks_once_is_answered_by_an_interval_that_is_too_narrow_for_who_asks_again(factor, verdict):
    """13 % in one session on either side: between the 11 % of a 95 % interval and the 16 % of a 99 % one."""
    then, now = [at(0, 1.0)] * 3, [at(5, factor)] * 3
    found = {confidence: compare_runs(then, now, MARGIN, confidence) for confidence in Confidence}
    assert found[Confidence.SINGLE_TEST].verdict is verdict
    assert (
        found[Confidence.REPEATED_TEST].verdict is compare_runs(then, now, MARGIN).verdict is ReplayVerdict.INCONCLUSIVE
    )
    assert found[Confidence.SINGLE_TEST].speed == found[Confidence.REPEATED_TEST].speed


def test_a_session_is_as_many_minutes_from_its_first_run_in_whatever_order_the_runs_come():
    starts = (0.0, SESSION_S - 1, SESSION_S, 2 * SESSION_S - 1, 2 * SESSION_S)
    runs = [Run(1.0 + start, started_s=start) for start in starts]
    found = by_session(runs[::-1])
    assert [tuple(run.started_s for run in session.runs) for session in found] == [
        starts[:2],
        starts[2:4],
        starts[4:],
    ]


def test_sessions_count_alike_however_many_runs_each_had():
    assert step_time_of(by_session([at(0, 1.0), at(0, 1.0), at(0, 1.0), at(5, 4.0)])) == pytest.approx(2.0)


def with_fast(hour: int, step_time_s: float, fast_step_time_s: float) -> Run:
    return replace(at(hour, step_time_s), fast_step_time_s=fast_step_time_s)


def test_other_work_that_slows_some_of_the_steps_does_not_make_the_layout_slower():
    then = [with_fast(0, 1.0, 0.9)] * 4
    disturbed = [with_fast(hour, 1.2, 0.91) for hour in range(5, 11)]
    found = compare_runs(then, disturbed, MARGIN)
    assert found.verdict is ReplayVerdict.INCONCLUSIVE
    assert found.high < 1
    assert found.fast.value == pytest.approx(0.9 / 0.91)


def test_what_slows_every_step_is_seen_by_the_fast_ones_where_the_medians_differ_too_much():
    then = [with_fast(0, 1.0, 0.9)] * 4
    slower = [with_fast(hour, step_time_s, 1.04) for hour, step_time_s in ((5, 1.0), (6, 1.4), (7, 1.1))]
    found = compare_runs(then, slower, MARGIN)
    assert (found.high > 1, found.verdict) == (True, ReplayVerdict.SLOWER)


def test_a_runs_fast_steps_are_the_fastest_tenth_of_those_measured():
    measured = metrics(1.0, 3.0, warmup_steps=2, measured_steps=20)
    steps = (0.1, 0.1, *(float(step) for step in range(1, 21)), 0.1)
    assert Run.of(measured, steps, None).fast_step_time_s == pytest.approx(3.0 * 2.0 / 10.5)
    assert Run.of(measured, (), None).fast_step_time_s is None


def test_fast_ones_of_shorter_and_longer_steps_by_turns_are_those_of_both_together():
    """A full step of 100 s, extrapolated from steps of 10 s and 20 s by turns, after one short step and a pair.

    Its fast steps are as noisy as full ones, and not as fast as the short ones.
    """
    measured = metrics(1.0, 100.0, warmup_steps=3, measured_steps=20)
    steps = (10.0, 10.0, 20.0, *(time for factor in range(90, 110, 2) for time in (0.1 * factor, 0.2 * factor)))
    run = Run.of(measured, steps, None, ("extrapolated",))
    assert run.fast_step_time_s == pytest.approx(100.0 * 90 / 99)


@pytest.mark.parametrize("steps", [(0.0, 0.0, 1.0), (-1.0, 1.0, 1.0)])
def test_steps_without_a_time_tell_of_no_fast_ones(steps):
    assert Run.of(metrics(1.0, measured_steps=3), steps, None).fast_step_time_s is None


def test_a_run_without_an_interval_of_its_own_counts_with_the_allowance():
    bare = replace(run(1.0), step_time_low_s=None, step_time_high_s=None)
    assert compare_runs([bare], [bare], MARGIN).high > compare_runs([run(1.0)], [run(1.0)], MARGIN).high


def test_a_wider_margin_accepts_more():
    recorded, measured = [at(hour, 1.0) for hour in range(5)], [at(hour, 1.08) for hour in range(5, 10)]
    assert compare_runs(recorded, measured, 0.05).verdict is ReplayVerdict.SLOWER
    assert compare_runs(recorded, measured, 0.10).verdict is ReplayVerdict.REPRODUCED


def test_differences_name_the_field_and_both_values_each_variable_by_itself_and_not_what_differs_between_any_two_jobs():
    recorded = {"torch": "2.13.0", "cuda": "12.8", "environment": {"OMP_NUM_THREADS": "4", "NCCL_ALGO": "Ring"}}
    here = {"torch": "2.14.0", "python": "3.11.2", "environment": {"OMP_NUM_THREADS": "8", "NCCL_ALGO": "Ring"}}
    recorded |= {"job_id": "17", "probe_ms_by_rank": [1.0, 1.1]}
    here |= {"job_id": "18", "probe_ms_by_rank": [1.1, 1.0]}
    found = fingerprint_differences(recorded, here)
    assert sorted(found, key=lambda pair: pair.field) == [
        FieldPair(field="cuda", a="12.8", b=None),
        FieldPair(field="environment.OMP_NUM_THREADS", a="4", b="8"),
        FieldPair(field="python", a=None, b="3.11.2"),
        FieldPair(field="torch", a="2.13.0", b="2.14.0"),
    ]


@pytest.mark.parametrize("unknown", [{}, {"environment": None}, {"environment": "OMP_NUM_THREADS=4"}], ids=repr)
def test_a_side_that_does_not_know_its_variables_differs_in_none(unknown):
    assert fingerprint_differences(unknown, {"environment": {"OMP_NUM_THREADS": "8"}}) == []
