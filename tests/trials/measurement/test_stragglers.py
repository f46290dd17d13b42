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


@pytest.mark.parametrize(
    ("seconds", "count", "rank"), [((1.0, 1.14, 1.0, 1.0), 6, 1), ((1.0, 1.0, 1.0, 2.0), 5, 3)], ids=["alike", "few"]
)
def test_the_slowest_of_ranks_that_are_alike_or_of_few_steps_is_no_straggler(seconds, count, rank):
    found = slowest_rank(rank_times(DATA, None, steps(*seconds, count=count)), HOSTS, count)
    assert (found["rank"], found["stragglers"], found["straggler_hosts"]) == (rank, [], [])


STAGE_OF = [STAGES.mesh.coordinates(rank)["pp"] for rank in range(4)]
UNEVEN = [2.0 if stage else 1.0 for stage in STAGE_OF]


@pytest.mark.parametrize(
    ("layout", "found", "names"),
    [
        (DATA, steps(1.0, 1.0, 1.3, 1.3), [2, 3]),
        (Layout(data_parallel=2), steps(1.3, 1.0), [0]),
        (DATA, [*steps(1.0, 1.0, 1.0, 2.0), *steps(1.0, 1.0, 1.0, 1.0)], []),
        (STAGES, steps(*UNEVEN), []),
        (STAGES, steps(*UNEVEN[:3], 1.3 * UNEVEN[3]), [3]),
        (Layout(pipeline_parallel=4), steps(1.0, 2.0, 1.0, 1.0), None),
        (DATA, steps(0.0, 0.0, 0.0, 0.0), None),
    ],
    ids=["half-a-world", "two", "some-steps", "stages", "in-a-stage", "no-peers", "no-time"],
)
def test_a_straggler_is_slower_than_those_with_equal_work_in_most_steps(layout, found, names):
    assert stragglers(layout, found) == names


def test_with_packed_documents_only_tensor_parallel_ranks_have_equal_work():
    layout = Layout(tensor_parallel=2, data_parallel=2)
    longer_documents = steps(1.0, 1.0, 1.5, 1.5)
    assert not any(one.is_straggler for one in rank_times(layout, None, longer_documents, by_document=True))
    assert [one.is_straggler for one in rank_times(layout, None, steps(1.0, 1.0, 1.5, 1.8), by_document=True)][3]
    assert rank_times(DATA, None, steps(1.0, 1.0, 1.0, 1.5), by_document=True)[3].slowdown is None


@pytest.mark.parametrize(("routing", "found"), [("balanced", [3]), ("skewed(2)", None), ("learned", None)])
def test_ranks_with_other_experts_have_equal_work_only_where_tokens_are_shared_evenly(routing, found):
    assert stragglers(WITH_EXPERTS, steps(1.0, 1.0, 1.0, 2.0), routing) == found
    alike = replace(WITH_EXPERTS, expert_parallel=1)
    assert stragglers(alike, steps(1.0, 1.0, 1.0, 2.0), routing) == [3]


def test_times_of_nothing_tell_nothing():
    assert rank_times(DATA, None, []) == []
    assert slowest_rank([], HOSTS, 0) is None


def test_slow_devices_and_stragglers_are_suspect():
    assert suspect_ranks({"probe_ms_by_rank": [1.0, 1.0, 1.0, 2.0]}, {"stragglers": [0, 3]}) == (0, 3)
    assert suspect_ranks({}, {}) == ()
