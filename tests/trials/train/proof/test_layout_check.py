"""Proofs of a layout, and memory of a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.adapters import Adapters
from search_spaces.layouts.layout import Layout
from tests.kit import metrics
from tests.trials.train.trial_processes import MODEL, make_spec
from trials.attempt_result import LaunchStatus, Liveness, classify, expected_proof
from trials.measurement.device_memory import RankMemory
from trials.measurement.protocol import TwoPointExtrapolation
from trials.train.parallel.device import available_gib
from trials.train.proof.layout_check import RankCount, layout_proof, placement_error, samples_error
from trials.trial import Outcome, OutcomeStatus, TrialSpec, TrialState

PLANNED = [3] * 10
"""Micro-batches of each step."""
LAYOUT = Layout(pipeline_parallel=2, data_parallel=2, micro_batch_size=2, grad_accum_steps=3)
SPEC = make_spec(LAYOUT)
FIRST_STAGE = MODEL.parameters // 3
MEMORY = {"memory": RankMemory(1.0), "host_available_gib": 9.0}
DEGREES = {"tensor_parallel": 1, "pipeline_parallel": 2, "data_parallel": 2}
RIGHT = RankCount(FIRST_STAGE, FIRST_STAGE, FIRST_STAGE, micro_batches=30, samples=60, **DEGREES, **MEMORY)
# Rank order is tensor, data, stage: the first two ranks are the data-parallel ranks of the first stage.
LAST_STAGE = MODEL.parameters - FIRST_STAGE
COUNTS = [RIGHT, RIGHT, *[replace(RIGHT, parameters=LAST_STAGE, optimizer_parameters=LAST_STAGE)] * 2]


LONG = replace(SPEC, layout=replace(LAYOUT, grad_accum_steps=36), global_batch_size=144)
EXTRAPOLATION = TwoPointExtrapolation(4, 8, 36)
SHORT_PLAN = [4] + [4, 8] * 8
SHORT_COUNTS = [replace(count, micro_batches=100, samples=200) for count in COUNTS]


def believed(spec: TrialSpec, counts: list[RankCount], planned: list[int], extrapolation=None) -> bool:
    proof = layout_proof(spec, counts, planned, extrapolation)
    names = (spec.search_id, spec.trial, spec.attempt, spec.nonce, OutcomeStatus.MEASURED)
    flags = ("extrapolated",) if spec is LONG else ()
    outcome = Outcome(*names, measured=metrics(1.0, measured_steps=16), proof=proof, flags=flags)
    fault = samples_error(spec, proof, planned)
    return classify(spec, outcome, LaunchStatus(Liveness.ENDED)).state is TrialState.MEASURED and fault is None


def test_counts_that_are_the_specs_are_a_proof():
    assert believed(SPEC, COUNTS, PLANNED)
    assert not believed(SPEC, COUNTS[:3], PLANNED)
    assert layout_proof(SPEC, COUNTS, PLANNED) == {
        "world_size": 4,
        "tensor_parallel": 1,
        "pipeline_parallel": 2,
        "data_parallel": 2,
        "parameters": MODEL.parameters,
        "local_parameters_sum": MODEL.parameters,
        "optimizer_parameters_sum": MODEL.parameters,
        "micro_batches_per_step": 3,
        "samples_per_data_rank": [60, 60],
    }


ADAPTED = replace(MODEL, adapters=Adapters(4), trainable=())
OF_ADAPTERS = dict.fromkeys(("optimizer_parameters", "trainable_parameters"), ADAPTED.trainable_parameters)


@pytest.mark.parametrize("wrong", [{}, *({name: ADAPTED.parameters} for name in OF_ADAPTERS)], ids=str)
def test_the_running_model_and_its_optimizer_say_which_parameters_train(wrong):
    spec = make_spec(Layout(data_parallel=2, micro_batch_size=2, grad_accum_steps=3), model=ADAPTED)
    degrees = {"pipeline_parallel": 1, "parameters": ADAPTED.parameters}
    right = replace(RIGHT, **degrees | OF_ADAPTERS)
    counts = [replace(right, **wrong), right]
    assert layout_proof(spec, [right, right], PLANNED)["trainable_parameters"] == ADAPTED.trainable_parameters
    assert believed(spec, counts, PLANNED) == (not wrong)


WRONG = {"tensor_parallel": 2, "pipeline_parallel": 1, "data_parallel": 1, "parameters": 5, "optimizer_parameters": 5}
WRONG |= {"micro_batches": 29, "samples": 58}


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("name", WRONG)
def test_one_rank_that_counted_otherwise_spoils_it(rank, name):
    counts = list(COUNTS)
    counts[rank] = replace(counts[rank], **{name: WRONG[name]})
    assert not believed(SPEC, counts, PLANNED)


CONTEXT = make_spec(Layout(context_parallel=2, data_parallel=2, zero_stage=3, engine="torchtitan", micro_batch_size=2))


@pytest.mark.parametrize(
    ("wrong", "names"),
    [({}, set()), ({"context_parallel": 1}, {"context_parallel"}), ({"parameters": 5}, {"local_parameters_sum"})],
)
def test_context_parallel_ranks_are_counted_and_share_the_weights_of_their_data_parallel_ones(wrong, names):
    held = dict.fromkeys(("parameters", "optimizer_parameters"), MODEL.parameters / 4)
    quarter = replace(RIGHT, pipeline_parallel=1, context_parallel=2, micro_batches=10, samples=20, **held)
    proof = layout_proof(CONTEXT, [replace(quarter, **wrong), *[quarter] * 3], [1] * 10)
    expected = expected_proof(CONTEXT)
    assert {key for key in expected if proof[key] != expected[key]} == names
    assert proof["samples_per_data_rank"] == [20, 20]


def test_short_steps_are_proven_by_the_counts_that_ran():
    assert believed(LONG, SHORT_COUNTS, SHORT_PLAN, EXTRAPOLATION)
    assert layout_proof(LONG, SHORT_COUNTS, SHORT_PLAN, EXTRAPOLATION)["micro_batches_per_step"] == [4, 8]
    for wrong in ({"micro_batches": 104}, {"samples": 208}):
        longer = [replace(SHORT_COUNTS[0], **wrong), *SHORT_COUNTS[1:]]
        assert not believed(LONG, longer, SHORT_PLAN, EXTRAPOLATION), wrong
    full = [replace(count, micro_batches=360, samples=720) for count in COUNTS]
    assert layout_proof(LONG, full, [36] * 10)["micro_batches_per_step"] == 36
    assert not believed(LONG, full, [36] * 10), "full steps that are called short"


def test_the_fault_names_the_data_rank_and_both_numbers():
    proof = layout_proof(SPEC, [COUNTS[0], replace(RIGHT, samples=58), *COUNTS[2:]], PLANNED)
    error = "data-parallel rank 1 trained 58 samples in 10 steps, the spec says 60"
    assert samples_error(SPEC, proof, PLANNED) == error


@pytest.mark.parametrize(
    ("hosts", "fault"),
    [
        (["n1", "n1", "n2", "n2"], None),
        (["n1"] * 4, None),  # a sandbox shows one host as many
        (["n1", "n2", "n1", "n2"], "ranks 0 to 1 run on n1, n2"),
    ],
)
def test_ranks_dealt_to_nodes_by_turns_are_refused(hosts, fault):
    found = placement_error(replace(SPEC, gpus_per_node=2), hosts)
    assert found is fault is None or fault in found


GIB = 2**30
NONE = 2**63
"""Bytes of a cgroup of version 1 without a limit."""


@pytest.mark.parametrize(
    ("group", "limits", "gib"),
    [
        ("0::/job_7/step_0", {"job_7/step_0": ("max", 10 * GIB), "job_7": (32 * GIB, 20 * GIB)}, 12 + 4),
        ("0::/job_7", {"job_7": (4 * GIB, 9 * GIB)}, 0),
        ("0::/somewhere/else", {}, 100),  # it does not show inside of the container
        (None, {}, 100),
        ("5:cpu:/other\n4:memory,hugetlb:/slurm/job_7\n0::/", {"memory/slurm/job_7": (16 * GIB, 6 * GIB)}, 10 + 4),
        ("4:memory:/job_7", {"memory/job_7": (NONE, 6 * GIB)}, 100),
    ],
    ids=["limit-above", "overdrawn", "not-shown", "no-cgroups", "version-1", "version-1-without-limit"],
)
def test_a_node_has_what_it_and_the_limits_of_the_process_leave(tmp_path: Path, group, limits, gib):
    """Of 100 GiB; a group's cache, here 4 GiB, would be dropped."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(f"MemTotal: {200 * 2**20} kB\nMemAvailable: {100 * 2**20} kB\n")
    if group is not None:
        (tmp_path / "self/cgroup").write_text(group + "\n")
    for name, (limit, used) in limits.items():
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        is_first = name.startswith("memory")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_first else ("memory.max", "memory.current")
        cache = f"inactive_file 1\ntotal_inactive_file {4 * GIB}" if is_first else f"anon 5\ninactive_file {4 * GIB}"
        for file, text in zip((*names, "memory.stat"), (limit, used, cache), strict=True):
            (folder / file).write_text(f"{text}\n")
    assert available_gib(tmp_path, tmp_path) == gib
    assert available_gib() > 0, "of this machine"
