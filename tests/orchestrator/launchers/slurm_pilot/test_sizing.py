"""Size, time and placement in pilots."""

from __future__ import annotations

import pytest

from orchestrator.config.schema.slurm import SlurmSection
from orchestrator.launchers.slurm_pilot.sizing import (
    LONGEST_PILOT_S,
    ROOM_S,
    STARTUP_S,
    PilotRules,
    RemainingWork,
    choose_nodes,
    min_pilot_s,
    planned_pilot_s,
)
from search_spaces.hardware.cluster import ACCELERATORS, Cluster

RULES = PilotRules(num_nodes=4, tasks_per_node=8)
ENDING_S = 90.0
SHORTEST_H = 4 * (min_pilot_s(600.0) + ENDING_S) / 3600
NODES = ("n3", "n1", "n4", "n2")
"""In Slurm's order."""


def test_a_pilot_has_room_for_all_trials_side_by_side_unless_the_file_says_otherwise():
    cluster = Cluster(ACCELERATORS["cpu"], 4, 2)
    sections = (SlurmSection(), SlurmSection(pilot_nodes=5))
    assert [section.nodes_per_pilot(cluster, parallel_trials=3) for section in sections] == [6, 5]


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (RemainingWork(5, 2), (3 + 1) * (600.0 + 15.0) + STARTUP_S + ROOM_S),
        (RemainingWork(1000, 1), LONGEST_PILOT_S),
        (RemainingWork(1000, 1, node_hours=8.0), 2 * 3600.0 - 2 * 60.0),  # whole minutes beside what Slurm may add
        (RemainingWork(1000, 1, wall_s=5000.0), 5000.0),
        (RemainingWork(10, 1, wall_s=0.0), min_pilot_s(600.0)),
        (RemainingWork(10, 1, node_hours=SHORTEST_H), min_pilot_s(600.0)),
        (RemainingWork(10, 1, node_hours=SHORTEST_H - 1e-6), None),
    ],
)
def test_it_is_asked_for_what_is_left_to_try_and_one_again_for_no_more_than_the_search_may_use(work, seconds):
    assert planned_pilot_s(RULES, work, 600.0, ENDING_S) == seconds
    assert min_pilot_s(600.0) > 600.0 + ROOM_S, "no less than one attempt needs"


@pytest.mark.parametrize(
    ("count", "busy", "avoided", "suspects", "chosen"),
    [
        (2, (), (), (), ("n3", "n1")),
        (2, {"n3"}, {"n1"}, (), ("n4", "n2")),
        (2, (), (), {"n3"}, ("n1", "n4")),
        (4, (), (), {"n3"}, NODES),
        (3, {"n1"}, {"n2"}, (), None),
    ],
    ids=["the first", "the first free", "in doubt last", "in doubt but taken", "too few"],
)
def test_free_nodes_are_taken_in_the_pilots_own_order(count, busy, avoided, suspects, chosen):
    assert choose_nodes(NODES, count, busy, avoided, suspects) == chosen
