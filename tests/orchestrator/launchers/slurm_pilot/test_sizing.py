"""Size, time and placement in pilots, and the reservation for them."""

from __future__ import annotations

import pytest

from orchestrator.launchers.slurm_pilot.sizing import (
    IDLE_S,
    LONGEST_PILOT_S,
    ROOM_S,
    STARTUP_S,
    TAIL_S,
    PilotRules,
    RemainingWork,
    choose_nodes,
    max_share_s,
    min_pilot_s,
    pilot_nodes,
    planned_pilot_s,
)
from search_spaces.hardware.cluster import ACCELERATORS, Cluster

RULES = PilotRules(num_nodes=4, tasks_per_node=8)
NODES = ("n3", "n1", "n4", "n2")
"""In Slurm's order."""


def test_a_pilot_has_room_for_all_trials_side_by_side_unless_the_file_says_otherwise():
    cluster = Cluster(ACCELERATORS["cpu"], 4, 2)
    assert pilot_nodes(None, cluster, parallel_trials=3) == 6
    assert pilot_nodes(5, cluster, parallel_trials=3) == 5


def test_it_is_asked_for_what_is_left_to_try_and_one_that_is_tried_again():
    work = RemainingWork(attempts=5, parallel=2)
    assert planned_pilot_s(RULES, work, 600.0) == (3 + 1) * (600.0 + 15.0) + STARTUP_S + ROOM_S


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (RemainingWork(1000, 1), LONGEST_PILOT_S),
        (RemainingWork(1000, 1, node_hours=8.0), 2 * 3600.0),
        (RemainingWork(1000, 1, wall_s=5000.0), 5000.0),
    ],
)
def test_but_for_no_more_than_the_search_may_use(work, seconds):
    assert planned_pilot_s(RULES, work, 600.0) == seconds


def test_and_for_no_less_than_one_attempt_needs():
    work = RemainingWork(10, 1, node_hours=0.0, wall_s=0.0)
    assert planned_pilot_s(RULES, work, 600.0) == min_pilot_s(600.0) > 600.0 + ROOM_S


def test_the_first_free_nodes_are_taken_in_the_pilots_own_order():
    assert choose_nodes(NODES, 2, busy=(), avoided=(), suspects=()) == ("n3", "n1")
    assert choose_nodes(NODES, 2, busy={"n3"}, avoided={"n1"}, suspects=()) == ("n4", "n2")


def test_a_node_in_doubt_is_taken_last_but_taken():
    assert choose_nodes(NODES, 2, busy=(), avoided=(), suspects={"n3"}) == ("n1", "n4")
    assert choose_nodes(NODES, 4, busy=(), avoided=(), suspects={"n3"}) == NODES


def test_where_too_few_are_free_an_attempt_waits():
    assert choose_nodes(NODES, 3, busy={"n1"}, avoided={"n2"}, suspects=()) is None


def test_what_is_reserved_covers_a_pilot_of_ones_own_and_what_others_hold_that_is_in_no_book_yet():
    whole_s = STARTUP_S + IDLE_S + 600.0 + 15.0 + TAIL_S
    assert 2 * max_share_s(RULES, 600.0, 2, unbooked_node_s=100.0) == 4 * whole_s + 100.0
