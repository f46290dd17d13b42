"""Every second of a pilot's nodes is charged to exactly one step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trials.pilot.cost_splitter import CostSplitter


@pytest.mark.parametrize(
    ("num_nodes", "debt", "steps", "costs"),
    [
        (4, 0.0, [(1, 110.0, 130.0)], [4 * 30.0]),  # and for the time before it
        (4, 0.0, [(2, 100.0, 130.0), (1, 100.0, 140.0)], [4 * 30.0 * 2 / 3, 4 * 30.0 / 3 + 4 * 10.0]),
        (2, 308.0, [(1, 100.0, 110.0), (1, 100.0, 110.0)], [308.0 + 10.0, 10.0]),
    ],
    ids=["alone", "side-by-side", "debt"],
)
def test_steps_share_all_nodes_by_their_own_and_the_first_pays_what_is_owed(num_nodes, debt, steps, costs):
    splitter = CostSplitter(num_nodes, now=100.0)
    splitter.add_debt(debt)
    for number, (nodes, begin, _) in enumerate(steps):
        splitter.start(f"t{number}", nodes, begin)
    assert [splitter.end(f"t{n}", end) for n, (_, _, end) in enumerate(steps)] == pytest.approx(costs)


def test_a_step_that_could_not_be_started_pays_what_is_owed_by_then():
    costs = CostSplitter(2, now=0.0)
    costs.add_debt(300.0)
    assert costs.settle(10.0) == 320.0
    costs.start("a", 1, 15.0)
    assert costs.settle(25.0) == 0.0, "one that runs pays"
    assert costs.end("a", 25.0) == 2 * 15.0


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
    costs, shares = CostSplitter(num_nodes, now=0.0), {}
    costs.add_debt(7.0)
    for moment, is_end, number in moments:
        if is_end:
            shares[number] = costs.end(str(number), moment)
        else:
            costs.start(str(number), steps[number][2], moment)
    last = max(moment for moment, _, _ in moments)
    assert sum(shares.values()) == pytest.approx(7.0 + num_nodes * last)
    assert all(shares[number] >= lasts * size - 1e-6 for number, (_, lasts, size) in enumerate(steps))
