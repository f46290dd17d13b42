"""Plan of a search: order, estimates, memory by stage, expected hours, unknowns."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.cli.plan_table import plan_text
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.plan import (
    STARTUP_S,
    Estimates,
    Fits,
    Plan,
    PlannedLayout,
    expected_trial_s,
    plan_of,
    predictor,
    stage_memory_gib,
    task_of,
)
from orchestrator.planning.plan_notes import assumed_speed_notes, plan_notes
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.verification import Verification
from tests.kit import MINIMAL, loaded
from trials.analysis.training_rate import Checkpoints, training_rate
from trials.measure_rules import MeasureRules

SEARCH = {
    "model": "gpt2-1.3b",
    "cluster": {"accelerator": "a100-40gb", "gpus_per_node": 8, "num_nodes": 2},
    "global_batch_size": 64,
    "space": {
        "tensor_parallel": [1, 2, 4, 8],
        "pipeline_parallel": [1, 2, 4],
        "micro_batch_size": [1, 2, 4, 8],
        "activation_checkpointing": ["none", "full"],
        "precision": "bf16",
    },
}
A100_BF16_FLOPS = 312e12
"""Peak of one GPU a second."""
ON_CPU = ("cluster.accelerator=cpu", "space.precision=fp32")


@pytest.fixture
def spec(tmp_path: Path) -> SearchSpec:
    return searched(tmp_path)


def searched(folder: Path, *overrides: str) -> SearchSpec:
    return loaded(folder, MINIMAL, *overrides, **SEARCH)


def on_cpu(folder: Path) -> SearchSpec:
    return searched(folder, *ON_CPU)


def planned(spec: SearchSpec) -> Plan:
    return plan_of(spec, candidates_of(spec))


def test_the_layouts_that_may_fit_come_first_and_the_fast_ones_of_them(spec):
    plan = planned(spec)
    assert set(plan.layouts) == set(candidates_of(spec).layouts)
    assert {Fits.YES, Fits.NO, Fits.UNSURE} == set(plan.fits)
    assert sorted(plan.fits, key=lambda fit: fit is Fits.NO) == plan.fits
    sure = plan.estimates.step_time_s[plan.estimates.fit_probability > 0.999]
    assert (np.diff(sure) >= -1e-3 * sure[:-1]).all()
    assert sure[-1] > 1.2 * sure[0]


def test_layouts_of_another_batch_do_not_compete_and_come_last(tmp_path):
    plan = planned(searched(tmp_path, "space.grad_accum_steps=[1, 2, 4, 8]"))
    batches = [layout.global_batch_size for layout in plan.layouts]
    assert batches[0] == 64
    assert sorted(batches, key=lambda batch: batch != 64) == batches
    assert set(batches) > {64}


def test_a_rows_numbers_agree_with_each_other(spec):
    plan = planned(spec)
    rows = plan.first()
    assert [row["layout_key"] for row in rows] == [layout.key for layout in plan.layouts]
    for row, layout in zip(rows, plan.layouts, strict=True):
        assert row["tokens_per_sec"] * row["step_time_s"] == pytest.approx(64 * spec.model.seq_length)
        assert sum(row["time_s"].values()) == pytest.approx(row["step_time_s"])
        assert min(row["time_s"].values()) >= 0
        flops = spec.model.model_flops_per_token * row["tokens_per_sec"]
        assert row["mfu"] * 312e12 * 16 == pytest.approx(flops)
        assert len(row["memory_gib"]) == layout.pipeline_parallel
        assert max(row["memory_gib"]) == pytest.approx(row["peak_memory_gib"])
        assert row["relative_step_time"] == pytest.approx(row["step_time_s"] / rows[0]["step_time_s"])


def test_rows_that_are_printed_as_they_are_have_the_form_of_the_schema(spec, tmp_path):
    for row in (planned(spec).first(1)[0], planned(on_cpu(tmp_path)).first(1)[0]):
        assert PlannedLayout(**row).plain() == row


@pytest.mark.parametrize("checkpoints", [None, Checkpoints(every_s=3600.0, write_gb_per_s=2.0)], ids=["none", "stated"])
def test_rows_listed_together_say_what_each_layout_alone_does(spec, checkpoints):
    plan = replace(planned(spec), checkpoints=checkpoints)
    for place, (row, layout) in enumerate(zip(plan.first(), plan.layouts, strict=True)):
        assert (row["layout"], row["fits"]) == (layout.to_json(), plan.fits[place])
        flops_per_s = row["tokens_per_sec"] * spec.model.model_flops_per_token
        assert row["mfu"] == pytest.approx(flops_per_s / (layout.num_gpus * A100_BF16_FLOPS))
        assert row["verified"] == Verification.of(layout).to_json()
        assert row["training_rate"] == asdict(training_rate(row["tokens_per_sec"], spec.model, layout, checkpoints))


def test_a_row_has_the_interval_of_its_step_time_and_a_note_says_how_many_may_be_faster_than_the_first(spec):
    plan = planned(spec)
    for row in plan.first(5):
        assert row["step_time_low_s"] < row["step_time_s"] < row["step_time_high_s"]
        assert row["step_time_low_s"] * row["step_time_high_s"] == pytest.approx(row["step_time_s"] ** 2)
    text = plan_text(plan, spec, candidates_of(spec), 1, False, True)
    assert "  95 %  " in text
    assert 0 < plan.num_in_doubt < 20
    assert f"{plan.num_in_doubt} of the next 19 layouts may be faster than the first" in text


def test_without_details_ten_rows_of_six_columns_and_the_cost_are_printed(spec):
    plan, space = planned(spec), candidates_of(spec)
    heading, *rows = plan_text(plan, spec, space, None, False, False).split("note: ")[0].splitlines()[2:]
    assert re.split(r" {2,}", heading.strip()) == ["#", "s/step", "tokens/s", "fits", "peak GiB of 37.99", "layout"]
    assert [int(row.split()[0]) for row in rows[:10]] == [*range(1, 11)]
    assert rows[10].startswith("  72 more (--top N lists N)")
    few, all_of_it = (plan_text(plan, spec, space, None, False, has_details) for has_details in (False, True))
    for words in ("node-hours with the planner", "upper limit", "are rejected"):
        assert words in few
        assert words in all_of_it
    for words in ("pipeline  ", "predicted for the first", "for example "):
        assert words not in few
        assert words in all_of_it


def test_speeds_that_nobody_measured_are_named():
    cluster = {"accelerator": "a100-40gb", "gpus_per_node": 8, "num_nodes": 2}
    described = {
        "links": {
            "domains": [{"name": "node", "num_ranks": 8, "bus_gb_per_s": 235, "latency_us": 10}],
            "fabric": {"nic_gb_per_s": 200, "latency_us": 5, "kind": "efa"},
        }
    }
    measured = described | {"measured": {"matmul_tflops": {"bf16": 220}}}
    measured["links"] = {**described["links"], "fabric": described["links"]["fabric"] | {"all_to_all_gb_per_s": 9}}
    notes = [[*assumed_speed_notes(cluster_of(cluster | known), True)] for known in ({}, described, measured)]
    gemms, links, all_to_alls = notes[0]
    assert gemms.startswith("GEMMs are assumed to reach 72% of a a100-40gb's peak")
    assert "the links are assumed" in links
    assert "90% of the NICs" in all_to_alls
    assert [("35% of the NICs" in note) for note in notes[1]] == [False, True]
    assert notes[2] == []


def cluster_of(fields: dict) -> Cluster:
    return ClusterSection.model_validate(fields).cluster()


def test_memory_by_stage_is_that_of_each_layout_alone(spec):
    layouts = planned(spec).layouts[:40]
    together = stage_memory_gib(task_of(spec), LayoutTable.of(layouts))
    assert {len(stages) for stages in together} == {1, 2, 4}
    for layout, stages in zip(layouts, together, strict=True):
        assert stage_memory_gib(task_of(spec), LayoutTable.of([layout])) == [pytest.approx(stages)]


def test_memory_that_has_to_stay_free_is_taken_off_what_layouts_are_judged_by_and_said(tmp_path):
    whole, part = (planned(searched(tmp_path, *more)) for more in ((), ("constraints.min_free_memory_gib=20",)))
    fitting = [plan.fits.count(Fits.YES) for plan in (whole, part)]
    assert fitting[0] > fitting[1] > 0
    words = "a layout fits if it leaves 20 GiB of the 37.99 GiB that a rank can allocate"
    assert [any(words in note for note in plan_notes(plan)) for plan in (whole, part)] == [False, True]
    spec = searched(tmp_path, "constraints.min_free_memory_gib=20")
    assert "peak GiB of 17.99" in plan_text(part, spec, candidates_of(spec), None, False, True)
    full = planned(searched(tmp_path, "constraints.min_free_memory_gib=37.9"))
    assert "no layout is expected to fit into the ranks' memory with that much left free" in plan_notes(full)


def test_where_a_fit_is_in_doubt_the_allocators_known_cure_is_said_unless_the_search_has_it(tmp_path):
    plain = planned(searched(tmp_path))
    tight = plain.fits.count(Fits.UNSURE)
    assert tight > 0
    assert any(note.startswith(f"whether {tight} layouts fit is in doubt") for note in plan_notes(plain))
    for more in (("space.env={PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'}",), ON_CPU):
        assert not any("expandable_segments" in note for note in plan_notes(planned(searched(tmp_path, *more))))


@pytest.mark.parametrize(("ranks", "is_said"), [(8, False), (16, True)])
def test_an_expert_group_of_hybridep_beyond_a_link_domain_is_said(tmp_path, ranks, is_said):
    axes = {"expert_parallel": ranks, "expert_dispatcher": "hybridep", "precision": "bf16", "attention_kernel": "flash"}
    changed = {"model": "qwen3-30b-a3b", "space": axes, "trainer": {"kind": "megatron-lm", "script": "pretrain_gpt.py"}}
    plan = planned(loaded(tmp_path, MINIMAL, **SEARCH | changed))
    assert any("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN" in note for note in plan_notes(plan)) is is_said


def test_assumed_links_are_said_and_described_ones_are_not(spec):
    assert any("links are assumed" in note for note in plan_notes(planned(spec)))
    described = Cluster(spec.cluster.accelerator, 8, 2, spec.cluster.links)
    assert not any("links" in note for note in plan_notes(planned(replace(spec, cluster=described))))


def test_the_routing_of_experts_by_which_memory_is_judged_is_said(spec):
    experts = replace(spec.model, num_experts=8, experts_per_token=2)
    routed = replace(spec, model=experts, measure=replace(spec.measure, routing="skewed(3)"))
    assert ["3 times the mean" in note for note in plan_notes(planned(routed)) if "measure.routing" in note] == [True]
    assert not any("measure.routing" in note for note in plan_notes(planned(spec)))


@pytest.mark.parametrize(("sizes", "is_said"), [((1, 2), True), ((2,), False)])
def test_a_loss_that_depends_on_the_micro_batch_is_said(spec, sizes, is_said):
    experts = replace(spec.model, num_experts=8, experts_per_token=2, aux_loss_coefficient=0.01)
    plan = planned(spec)
    layouts = LayoutTable.of(Layout(micro_batch_size=size) for size in sizes)
    estimates = plan.estimates.take(np.arange(len(sizes)))
    plan = replace(plan, task=replace(plan.task, model=experts), layouts=layouts, estimates=estimates)
    words = "layouts with 1 and 2 sequences in a micro-batch train different losses"
    assert any(words in note for note in plan_notes(plan)) is is_said


def test_that_a_cpu_emulates_the_gpu_of_an_engine_is_said(tmp_path):
    changes = (*ON_CPU, "space.engine=megatron-core"), ON_CPU, ("space.engine=megatron-core",)
    notes = ["\n".join(plan_notes(planned(searched(tmp_path, *each)))) for each in changes]
    assert ["a CPU emulates the GPU of megatron-core" in each for each in notes] == [True, False, False]


def test_of_an_unknown_accelerator_only_order_and_ratios_are_reported(tmp_path):
    spec = on_cpu(tmp_path)
    plan = planned(spec)
    first, second = plan.first(top=2)
    for name in ("step_time_s", "tokens_per_sec", "mfu", "time_s", "fits"):
        assert first[name] is None
    assert first["relative_step_time"] == 1 <= second["relative_step_time"]
    assert (plan.expected.guided, plan.expected.every_layout) == (None, None)
    assert any("ratios" in note for note in plan_notes(plan))
    assert "1.000x" in plan_text(plan, spec, candidates_of(spec), None, False, True)


def test_a_search_by_the_planner_costs_less_than_every_layout_and_more_with_repeats(tmp_path):
    plain, more = (planned(searched(tmp_path, f"search.finalist_repeats={n}")).expected for n in (2, 20))
    assert plain.guided_trials == 12
    assert None not in (plain.guided, plain.every_layout, more.guided)
    assert plain.guided < plain.every_layout / 3
    assert more.guided > plain.guided
    assert planned(searched(tmp_path, "search.max_trials=4")).expected.guided_trials == 4


def test_a_trial_takes_its_start_its_warm_up_and_its_steps(spec):
    layouts = LayoutTable.of([Layout(), Layout(), Layout(), Layout(grad_accum_steps=240)])
    seconds, fit = np.array([2.0, 2.0, 25.0, 40.0]), np.array([1.0, 0.0, 1.0, 1.0])
    estimates = replace(Estimates.of(task_of(spec), layouts), step_time_s=seconds, fit_probability=fit)
    seconds = expected_trial_s(MeasureRules(min_steps=8, time_limit_s=300), layouts, estimates)
    # A long step is measured by one of 20 micro-batches and one of 40.
    assert seconds.tolist() == [STARTUP_S + 14 * 2, STARTUP_S, STARTUP_S + 300, STARTUP_S + 14 * 40 * 30 / 240]


def test_a_prediction_is_what_the_plan_shows(spec):
    plan = planned(spec)
    found = predictor(task_of(spec))(plan.layouts[7])
    assert found is not None
    row = plan.first(top=8)[7]
    assert found["step_time_s"] == pytest.approx(row["step_time_s"])
    assert found["peak_memory_gib"] == pytest.approx(row["peak_memory_gib"])
    assert len(found["model_hash"]) == 64


def test_the_baseline_has_a_line_of_its_own_wherever_it_is_in_the_order(spec):
    space, plan = candidates_of(spec), planned(spec)
    for place in (0, 5):
        text = plan_text(plan, spec, replace(space, baseline=plan.layouts[place]), 2, False, True)
        listed = [line for line in text.split("\n\n")[0].splitlines() if "; compute" in line]
        assert [int(line.split()[0]) for line in listed] == [1, 2, *([6] if place == 5 else [])]
        assert ["(the baseline)" in line for line in listed].index(True) == (0 if place == 0 else 2)
