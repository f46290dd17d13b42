"""All benchmarks on real ranks, also where some ranks have no partner."""

from __future__ import annotations

import pytest

from trials.diagnostics.calibration import Measurements, block_sizes, pair_distances

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("gpus_per_node", "num_nodes"), [(1, 1), (1, 3), (3, 1), (2, 3)])
def test_all_ranks_answer_alike_and_leave_nothing_out(ranks, gpus_per_node, num_nodes):
    arguments = {"gpus_per_node": gpus_per_node, "num_nodes": num_nodes}
    answers = ranks.run("tests.trials.train.calibrate_programs:measure", gpus_per_node * num_nodes, arguments)
    assert all(answer == answers[0] for answer in answers)
    found = Measurements.from_json(answers[0])
    assert {rate.precision for rate in found.products} == {"fp32", "bf16"}
    assert min(rate.tflops for rate in found.products) > 0
    assert found.memory_gb_per_s > 0
    assert found.to_host_gb_per_s is found.from_host_gb_per_s is None
    assert sorted({time.num_ranks for time in found.groups}) == block_sizes(gpus_per_node, num_nodes)
    assert sorted({time.apart for time in found.pairs}) == pair_distances(gpus_per_node, num_nodes)
    assert all(time.seconds > 0 for time in (*found.groups, *found.pairs))
