"""Memory of devices over a trial, and ranks that compute longer than those with equal work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import FULLEST
from tests.trials.measurement.test_metrics import records
from trials.measurement.device_memory import RankMemory, device_memory_fields, fullest_rank
from trials.measurement.step_log import StepRecord
from trials.measurement.stragglers import rank_times, slowest_rank, suspect_ranks

GPU = RankMemory(60.0, 50.0, outside_gib=4.0, total_gib=80.0, inactive_split_gib=2.0, alloc_retries=1)
HOSTS = ("n1", "n1", "n2")
FREE_16 = {"device_gib": 80.0, "used_gib": 64.0, "free_gib": 16.0, "cached_gib": 10.0}


def steps(mib_a_step: tuple[float, float, float], count: int = 200) -> list[StepRecord]:
    """Steps after which allocated, reserved and used memory have grown by so much each; the first six are warm-up."""
    allocated, reserved, used = mib_a_step
    return [
        replace(
            record,
            memory_allocated_gib=30 + allocated * record.step / 1024,
            memory_reserved_gib=60 + reserved * record.step / 1024,
            memory_device_gib=64 + used * record.step / 1024,
        )
        for record in records([1.0] * count, warmup=6)
    ]


def test_the_parts_of_the_fullest_rank_add_up_and_say_what_is_left():
    fuller = RankMemory(61.0, 45.0, outside_gib=5.0, total_gib=80.0, inactive_split_gib=3.0, alloc_retries=0)
    assert fullest_rank([GPU, GPU, fuller], HOSTS, None) == FULLEST | {"rank": 2}

    for limit_gib, free_gib in ((62.0, 2.0), (79.0, 16.0)):
        found = fullest_rank([GPU], HOSTS, limit_gib)
        assert (found["free_gib"], found["limit_gib"]) == (free_gib, limit_gib), "the allocator's limit may leave less"


@pytest.mark.parametrize(("limit_gib", "left"), [(None, {}), (0.5, {"limit_gib": 0.5, "free_gib": 0.25})])
def test_on_a_cpu_only_a_limit_says_what_is_left(limit_gib, left):
    ranks = [RankMemory(0.125), RankMemory(0.25), RankMemory(0.125)]
    assert fullest_rank(ranks, HOSTS, limit_gib) == {"rank": 1, "host": "n1", "used_gib": 0.25, **left}


def test_memory_that_stays_as_it_is_has_slopes_of_zero_and_no_end_and_without_a_device_there_is_none():
    slopes = {f"{kind}_memory_slope_mib_per_step": 0.0 for kind in ("allocated", "reserved", "device")}
    assert device_memory_fields(steps((0.0, 0.0, 0.0)), FREE_16) == {"peak_device_memory_gib": 64.0, **slopes}
    unknown = dict.fromkeys(("memory_allocated_gib", "memory_reserved_gib", "memory_device_gib"))
    assert device_memory_fields([replace(record, **unknown) for record in steps((1.0, 1.0, 1.0))], {}) == {}


LIMITED = fullest_rank([GPU], HOSTS, limit_gib=62.0)


@pytest.mark.parametrize(
    ("mib_a_step", "fullest", "full_at"),
    [
        ((0.0, 4.0, 4.0), FREE_16, 200 + 16 * 256),
        ((2.0, 0.0, 0.0), FREE_16, 200 + (16 + 10) * 512),
        ((0.2, 0.2, 0.2), FREE_16, None),
        ((2.0, 2.0, 2.0), {}, None),
        ((0.0, 2.0, 2.0), LIMITED, 200 + 2 * 512),
        ((2.0, 0.0, 0.0), LIMITED, 200 + (2 + 10) * 512),
    ],
)
def test_the_step_at_which_a_device_is_full_follows_from_what_grows_and_its_room(mib_a_step, fullest, full_at):
    """A limit of the allocator leaves less room for what grows in it alone."""
    fields = device_memory_fields(steps(mib_a_step), fullest)
    assert fields.get("device_memory_full_at_step") == full_at
    assert fields["device_memory_slope_mib_per_step"] == pytest.approx(mib_a_step[2])


def test_blocks_that_the_allocator_takes_now_and_then_are_growth_after_hundreds_of_steps_only():
    """It takes 20 MiB at once every twenty steps, as where memory is in fragments."""
    taken = [
        replace(record, memory_device_gib=64 + 20 * (record.step // 20) / 1024) for record in steps((0.0, 0.0, 0.0))
    ]
    assert "device_memory_full_at_step" not in device_memory_fields(taken[:20], FREE_16)
    fields = device_memory_fields(taken, FREE_16)
    assert fields["device_memory_slope_mib_per_step"] == pytest.approx(1.0, rel=0.1)
    assert fields["device_memory_full_at_step"] == pytest.approx(200 + 16 * 1024, rel=0.1)


RANK_HOSTS = ("n1", "n1", "n2", "n2")
DATA = Layout(data_parallel=4)
STAGES = Layout(data_parallel=2, pipeline_parallel=2)
WITH_EXPERTS = Layout(data_parallel=4, expert_parallel=2)


def compute_steps(*seconds: float, count: int = 6) -> list[list[float]]:
    """Steps that differ in length, with these compute times of the ranks relative to each other."""
    return [[length * one for one in seconds] for length in range(1, count + 1)]


def stragglers(layout: Layout, found: list[list[float]], routing: str | None = None) -> list[int] | None:
    slowest = slowest_rank(rank_times(layout, routing, found), RANK_HOSTS, len(found))
    return None if slowest is None else slowest["stragglers"]


def test_the_slowest_rank_is_named_with_its_host_and_its_peers_and_is_no_straggler_of_ranks_alike_or_few_steps():
    found = slowest_rank(rank_times(DATA, None, compute_steps(1.0, 1.1, 1.0, 1.5)), RANK_HOSTS, 6)
    assert (found["rank"], found["host"], found["steps"]) == (3, "n2", 6)
    assert (found["compute_s"], found["compute_p95_s"], found["peers_compute_s"]) == (5.25, 9.0, 3.5)
    assert (found["slowdown"], found["stragglers"], found["straggler_hosts"]) == (1.5, [3], ["n2"])
    for seconds, count, rank in (((1.0, 1.14, 1.0, 1.0), 6, 1), ((1.0, 1.0, 1.0, 2.0), 5, 3)):
        found = slowest_rank(rank_times(DATA, None, compute_steps(*seconds, count=count)), RANK_HOSTS, count)
        assert (found["rank"], found["stragglers"], found["straggler_hosts"]) == (rank, [], [])


STAGE_OF = [STAGES.mesh.coordinates(rank)["pp"] for rank in range(4)]
UNEVEN = [2.0 if stage else 1.0 for stage in STAGE_OF]


@pytest.mark.parametrize(
    ("layout", "found", "names"),
    [
        (Layout(data_parallel=2), compute_steps(1.3, 1.0), [0]),
        (DATA, [*compute_steps(1.0, 1.0, 1.0, 2.0), *compute_steps(1.0, 1.0, 1.0, 1.0)], []),
        (STAGES, compute_steps(*UNEVEN), []),
        (STAGES, compute_steps(*UNEVEN[:3], 1.3 * UNEVEN[3]), [3]),
        (Layout(pipeline_parallel=4), compute_steps(1.0, 2.0, 1.0, 1.0), None),
    ],
    ids=["two", "some-steps", "stages", "in-a-stage", "no-peers"],
)
def test_a_straggler_is_slower_than_those_with_equal_work_in_most_steps(layout, found, names):
    assert stragglers(layout, found) == names


def test_with_packed_documents_only_tensor_parallel_ranks_have_equal_work():
    layout = Layout(tensor_parallel=2, data_parallel=2)
    longer_documents = compute_steps(1.0, 1.0, 1.5, 1.5)
    assert not any(one.is_straggler for one in rank_times(layout, None, longer_documents, by_document=True))
    assert rank_times(layout, None, compute_steps(1.0, 1.0, 1.5, 1.8), by_document=True)[3].is_straggler
    assert rank_times(DATA, None, compute_steps(1.0, 1.0, 1.0, 1.5), by_document=True)[3].slowdown is None


@pytest.mark.parametrize(("routing", "found"), [("balanced", [3]), ("skewed(2)", None), ("learned", None)])
def test_ranks_with_other_experts_have_equal_work_only_where_tokens_are_shared_evenly(routing, found):
    assert stragglers(WITH_EXPERTS, compute_steps(1.0, 1.0, 1.0, 2.0), routing) == found
    alike = replace(WITH_EXPERTS, expert_parallel=1)
    assert stragglers(alike, compute_steps(1.0, 1.0, 1.0, 2.0), routing) == [3]


def test_slow_devices_and_stragglers_are_suspect():
    assert suspect_ranks({"probe_ms_by_rank": [1.0, 1.0, 1.0, 2.0]}, {"stragglers": [0, 3]}) == (0, 3)
    assert suspect_ranks({}, None) == ()
