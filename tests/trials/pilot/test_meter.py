"""Every second of a pilot's nodes is paid by a step, and by one alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trials.pilot.meter import Meter


def test_a_step_alone_pays_for_all_nodes_and_for_the_time_before_it():
    meter = Meter(4, now=100.0)
    meter.start("t0001.a1", 1, 110.0)
    assert meter.end("t0001.a1", 130.0) == 4 * 30.0


def test_steps_side_by_side_share_by_their_nodes_idle_ones_included():
    meter = Meter(4, now=0.0)
    meter.start("a", 2, 0.0)
    meter.start("b", 1, 0.0)
    assert meter.end("a", 30.0) == pytest.approx(4 * 30.0 * 2 / 3)
    assert meter.end("b", 40.0) == pytest.approx(4 * 30.0 / 3 + 4 * 10.0)


def test_what_is_owed_falls_on_the_first_step_and_on_no_other():
    meter = Meter(2, now=0.0)
    meter.owe(308.0)
    meter.start("a", 1, 0.0)
    meter.start("b", 1, 0.0)
    assert (meter.end("a", 10.0), meter.end("b", 10.0)) == (308.0 + 10.0, 10.0)


def test_a_step_that_could_not_be_started_pays_what_is_owed_by_then():
    meter = Meter(2, now=0.0)
    meter.owe(300.0)
    assert meter.pay(10.0) == 320.0
    meter.start("a", 1, 15.0)
    assert meter.pay(25.0) == 0.0, "one that runs pays"
    assert meter.end("a", 25.0) == 2 * 15.0


@pytest.mark.slow
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.integers(1, 2)), min_size=1, max_size=6),
)
def test_shares_add_up_to_the_time_until_the_last_end_and_cover_what_each_step_held(spare, steps):
    num_nodes = spare + sum(size for _, _, size in steps)
    moments = sorted(
        [(begin, 0, number) for number, (begin, _, _) in enumerate(steps)]
        + [(begin + lasts, 1, number) for number, (begin, lasts, _) in enumerate(steps)]
    )
    meter, shares = Meter(num_nodes, now=0.0), {}
    meter.owe(7.0)
    for moment, is_end, number in moments:
        if is_end:
            shares[number] = meter.end(str(number), moment)
        else:
            meter.start(str(number), steps[number][2], moment)
    last = max(moment for moment, _, _ in moments)
    assert sum(shares.values()) == pytest.approx(7.0 + num_nodes * last)
    assert all(shares[number] >= lasts * size - 1e-6 for number, (_, lasts, size) in enumerate(steps))
