from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.recipe.compare import ReplayVerdict, Run, compare, fingerprint_differences

MARGIN = 0.05

times = st.floats(0.001, 1000.0)
widths = st.floats(0.0, 0.3)


def run(step_time_s: float, width: float = 0.01) -> Run:
    return Run(step_time_s, step_time_s * (1 - width / 2), step_time_s * (1 + width / 2))


def scaled(runs: list[Run], factor: float) -> list[Run]:
    return [Run(r.step_time_s * factor, r.step_time_low_s * factor, r.step_time_high_s * factor) for r in runs]


runs = st.lists(st.builds(run, times, widths), min_size=1, max_size=6)
steady = st.builds(
    lambda step_time_s, wobbles: [run(step_time_s * w) for w in wobbles],
    times,
    st.lists(st.floats(0.995, 1.005), min_size=1, max_size=6),
)


@given(recorded=runs, margin=st.floats(0.01, 0.2))
def test_identical_data_are_never_slower_nor_faster(recorded, margin):
    assert compare(recorded, recorded, margin).verdict in (ReplayVerdict.REPRODUCED, ReplayVerdict.INCONCLUSIVE)


@given(recorded=steady)
def test_identical_steady_data_are_reproduced(recorded):
    assert compare(recorded, recorded, MARGIN).verdict is ReplayVerdict.REPRODUCED


@given(recorded=steady, factor=st.floats(1.15, 10.0))
def test_a_slow_down_of_15_percent_is_never_called_reproduced(recorded, factor):
    assert compare(recorded, scaled(recorded, factor), MARGIN).verdict is ReplayVerdict.SLOWER


@given(recorded=runs, factor=st.floats(1.15, 10.0))
def test_a_slow_down_of_15_percent_is_not_called_reproduced_in_noise_either(recorded, factor):
    assert compare(recorded, scaled(recorded, factor), MARGIN).verdict is not ReplayVerdict.REPRODUCED


@given(recorded=steady, factor=st.floats(1.2, 10.0))
def test_a_speed_up_is_faster(recorded, factor):
    assert compare(recorded, scaled(recorded, 1 / factor), MARGIN).verdict is ReplayVerdict.FASTER


@given(recorded=runs, measured=runs)
def test_the_interval_holds_the_ratio_and_turning_the_sides_inverts_it(recorded, measured):
    found, turned = compare(recorded, measured, MARGIN), compare(measured, recorded, MARGIN)
    assert found.low <= found.ratio <= found.high
    assert turned.ratio == pytest.approx(1 / found.ratio)
    assert turned.low == pytest.approx(1 / found.high)


@given(recorded=runs, measured=runs, factor=st.floats(0.1, 10.0))
def test_the_unit_of_time_does_not_matter(recorded, measured, factor):
    found = compare(scaled(recorded, factor), scaled(measured, factor), MARGIN)
    assert found.ratio == pytest.approx(compare(recorded, measured, MARGIN).ratio)


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says():
    """One recorded run, three replays, a spread of 3 % between runs: 95 % within what 2000 draws allow."""
    import random

    source = random.Random(0)
    hits = 0
    for _ in range(2000):
        drawn = [run(source.lognormvariate(0.0, 0.03), width=0.0) for _ in range(4)]
        found = compare(drawn[:1], drawn[1:], MARGIN)
        hits += found.low <= 1.0 <= found.high
    assert 0.94 <= hits / 2000 <= 0.985


def test_repeats_that_differ_widely_are_inconclusive():
    measured = [run(0.8), run(1.0), run(1.3)]
    assert compare([run(1.0)], measured, MARGIN).verdict is ReplayVerdict.INCONCLUSIVE


def test_repeats_narrow_the_interval():
    once, thrice = (compare([run(1.0)], [run(1.0)] * count, MARGIN) for count in (1, 3))
    assert thrice.high < once.high


def test_a_run_whose_steps_vary_widely_widens_the_interval():
    steady_runs, noisy = [run(1.0)] * 3, [run(1.0, width=0.5)] * 3
    assert compare(steady_runs, noisy, MARGIN).high > compare(steady_runs, steady_runs, MARGIN).high


def test_a_run_without_an_interval_of_its_own_counts_with_the_allowance():
    bare = replace(run(1.0), step_time_low_s=None, step_time_high_s=None)
    assert compare([bare], [bare], MARGIN).high > compare([run(1.0)], [run(1.0)], MARGIN).high


def test_a_wider_margin_accepts_more():
    recorded, measured = [run(1.0)] * 3, [run(1.08)] * 3
    assert compare(recorded, measured, 0.05).verdict is ReplayVerdict.SLOWER
    assert compare(recorded, measured, 0.10).verdict is ReplayVerdict.REPRODUCED


def test_differences_name_the_field_and_both_values():
    found = fingerprint_differences({"torch": "2.13.0", "cuda": "12.8"}, {"torch": "2.14.0", "python": "3.11.2"})
    assert found == [
        {"field": "torch", "recorded": "2.13.0", "here": "2.14.0"},
        {"field": "cuda", "recorded": "12.8", "here": None},
        {"field": "python", "recorded": None, "here": "3.11.2"},
    ]


def test_what_differs_between_any_two_jobs_is_no_difference():
    recorded = {"torch": "2.13.0", "job_id": "17", "probe_ms_by_rank": [1.0, 1.1]}
    assert fingerprint_differences(recorded, {"torch": "2.13.0", "job_id": "18", "probe_ms_by_rank": [1.1, 1.0]}) == []


def test_a_variable_that_differs_is_a_field_of_its_own():
    recorded = {"torch": "2.13.0", "environment": {"OMP_NUM_THREADS": "4", "NCCL_ALGO": "Ring"}}
    here = {"torch": "2.13.0", "environment": {"OMP_NUM_THREADS": "8", "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}}
    assert fingerprint_differences(recorded, here) == [
        {"field": "environment.OMP_NUM_THREADS", "recorded": "4", "here": "8"},
        {"field": "environment.NCCL_PROTO", "recorded": None, "here": "LL"},
    ]


@pytest.mark.parametrize("unknown", [{}, {"environment": None}, {"environment": "OMP_NUM_THREADS=4"}], ids=repr)
def test_a_side_that_does_not_know_its_variables_differs_in_none(unknown):
    assert fingerprint_differences(unknown, {"environment": {"OMP_NUM_THREADS": "8"}}) == []
