"""The fabric check on real ranks, with one node slower than the others."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from trials.diagnostics.calibration import Collective
from trials.diagnostics.fabric import FabricTimes, GroupShape, exchanges_of
from trials.diagnostics.fabric_findings import judge

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

EVERY = tuple(kind for kind in Collective if kind is not Collective.PING_PONG)


@pytest.mark.parametrize(("gpus_per_node", "num_nodes"), [(1, 4), (2, 2), (1, 3)])
def test_every_exchange_is_timed_on_every_group(ranks, gpus_per_node, num_nodes):
    shapes = [GroupShape(2, 1, EVERY), GroupShape(gpus_per_node * num_nodes, 1, EVERY)]
    found = run(ranks, gpus_per_node, num_nodes, shapes)
    assert [time.exchange for time in found.times] == exchanges_of(shapes, gpus_per_node, num_nodes)
    for time in found.times:
        assert len(time.seconds) == len(time.exchange.groups(gpus_per_node, gpus_per_node * num_nodes)) > 0
        assert min(time.seconds) > 0


def test_the_node_whose_exchanges_are_delayed_is_named(ranks):
    found = run(ranks, 1, 4, [GroupShape(2, 1, EVERY), GroupShape(2, 2, EVERY)], slow=2, delay_s=0.05)
    assert found.nodes == ("n0", "n1", "n2", "n3")
    assert judge(found, Cluster(ACCELERATORS["cpu"], 1, 4)).slow_names == ("n2",)


def run(ranks, gpus_per_node, num_nodes, shapes, **of_the_slow_node):
    arguments = {"gpus_per_node": gpus_per_node, "num_nodes": num_nodes, "shapes": [asdict(s) for s in shapes]}
    program = "tests.trials.train.fabric_programs:check_fabric"
    answers = ranks.run(program, gpus_per_node * num_nodes, {**arguments, **of_the_slow_node})
    assert all(answer == answers[0] for answer in answers)
    return FabricTimes.from_json(answers[0])
