"""Ranks that compute longer than those with equal work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from trials.measurement.stragglers import rank_times, slowest_rank, suspect_ranks

HOSTS = ("n1", "n1", "n2", "n2")
DATA = Layout(data_parallel=4)
STAGES = Layout(data_parallel=2, pipeline_parallel=2)
WITH_EXPERTS = Layout(data_parallel=4, expert_parallel=2)


def steps(*seconds: float, count: int = 6) -> list[list[float]]:
    """Steps that differ in length, with these compute times of the ranks relative to each other."""
    return [[length * one for one in seconds] for length in range(1, count + 1)]


def stragglers(layout: Layout, found: list[list[float]], routing: str | None = None) -> list[int] | None:
    slowest = slowest_rank(rank_times(layout, routing, found), HOSTS, len(found))
    return None if slowest is None else slowest["stragglers"]


def test_the_slowest_rank_is_named_with_its_host_and_its_peers():
    found = slowest_rank(rank_times(DATA, None, steps(1.0, 1.1, 1.0, 1.5)), HOSTS, 6)
    assert (found["rank"], found["host"], found["steps"]) == (3, "n2", 6)
    assert (found["compute_s"], found["compute_p95_s"], found["peers_compute_s"]) == (5.25, 9.0, 3.5)
    assert (found["slowdown"], found["stragglers"], found["straggler_hosts"]) == (1.5, [3], ["n2"])


def test_the_slowest_of_ranks_that_are_alike_is_no_straggler():
    found = slowest_rank(rank_times(DATA, None, steps(1.0, 1.14, 1.0, 1.0)), HOSTS, 6)
    assert (found["rank"], found["stragglers"], found["straggler_hosts"]) == (1, [], [])


def test_a_slow_node_is_found_though_half_of_the_ranks_are_on_it():
    assert stragglers(DATA, steps(1.0, 1.0, 1.3, 1.3)) == [2, 3]
    assert stragglers(Layout(data_parallel=2), steps(1.3, 1.0)) == [0]


def test_with_packed_documents_only_tensor_parallel_ranks_have_equal_work():
    layout = Layout(tensor_parallel=2, data_parallel=2)
    longer_documents = steps(1.0, 1.0, 1.5, 1.5)
    assert not any(one.is_straggler for one in rank_times(layout, None, longer_documents, by_document=True))
    assert [one.is_straggler for one in rank_times(layout, None, steps(1.0, 1.0, 1.5, 1.8), by_document=True)][3]
    assert rank_times(DATA, None, steps(1.0, 1.0, 1.0, 1.5), by_document=True)[3].slowdown is None


def test_too_few_steps_name_the_slowest_but_accuse_nobody():
    found = slowest_rank(rank_times(DATA, None, steps(1.0, 1.0, 1.0, 2.0, count=5)), HOSTS, 5)
    assert (found["rank"], found["slowdown"], found["stragglers"]) == (3, 2.0, [])


def test_a_rank_that_was_slow_in_some_steps_only_is_no_straggler():
    assert stragglers(DATA, [*steps(1.0, 1.0, 1.0, 2.0), *steps(1.0, 1.0, 1.0, 1.0)]) == []


def test_stages_are_not_compared_with_each_other():
    stage_of = [STAGES.mesh.coordinates(rank)["pp"] for rank in range(4)]
    uneven = [2.0 if stage else 1.0 for stage in stage_of]
    assert stragglers(STAGES, steps(*uneven)) == []
    uneven[3] *= 1.3
    assert stragglers(STAGES, steps(*uneven)) == [3]
    assert stragglers(Layout(pipeline_parallel=4), steps(1.0, 2.0, 1.0, 1.0)) is None


@pytest.mark.parametrize(("routing", "found"), [("balanced", [3]), ("skewed(2)", None), ("learned", None)])
def test_ranks_with_other_experts_have_equal_work_only_where_tokens_are_shared_evenly(routing, found):
    assert stragglers(WITH_EXPERTS, steps(1.0, 1.0, 1.0, 2.0), routing) == found
    alike = replace(WITH_EXPERTS, expert_parallel=1)
    assert stragglers(alike, steps(1.0, 1.0, 1.0, 2.0), routing) == [3]


def test_times_of_nothing_tell_nothing():
    assert rank_times(DATA, None, []) == []
    assert slowest_rank([], HOSTS, 0) is None
    assert stragglers(DATA, steps(0.0, 0.0, 0.0, 0.0)) is None


def test_slow_devices_and_stragglers_are_suspect():
    assert suspect_ranks({"probe_ms_by_rank": [1.0, 1.0, 1.0, 2.0]}, {"stragglers": [0, 3]}) == (0, 3)
    assert suspect_ranks({}, {}) == ()
