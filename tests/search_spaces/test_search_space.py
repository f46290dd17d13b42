from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.layout import LAYOUT_FIELDS, Layout
from search_spaces.layouts.matmul_recipes import MATMUL_RECIPES
from search_spaces.layouts.table import LayoutTable, combinations_of
from search_spaces.layouts.workload import Workload
from search_spaces.rules.layout_rules import LAYOUT_RULES
from search_spaces.rules.rule import violations
from search_spaces.search_space import (
    SAMPLED_POINTS,
    RejectedLayout,
    SearchSpace,
    closed_space,
    runnable_space,
    search_space,
)
from tests.kit import model
from tests.search_spaces.layouts.strategies import layouts

MODEL = model(
    num_layers=6, hidden_size=96, num_attention_heads=12, num_key_value_heads=12, ffn_hidden_size=384, seq_length=64
)


def workload(accelerator="cpu", gpus_per_node=4, num_nodes=1, global_batch_size=16, **changes) -> Workload:
    model = replace(MODEL, **{k: changes.pop(k) for k in list(changes) if hasattr(MODEL, k)})
    cluster = Cluster(ACCELERATORS[accelerator], gpus_per_node, num_nodes)
    return Workload(model, cluster, global_batch_size, **changes)


def rejections(space: SearchSpace) -> dict[str, list[RejectedLayout]]:
    by_rule: dict[str, list[RejectedLayout]] = {}
    for rejected in space.rejected():
        by_rule.setdefault(rejected.problem.code, []).append(rejected)
    return by_rule


def the_rejection(axes, **changes) -> RejectedLayout:
    """The only rejected layout of these axes; a layout that is always valid is added to the space."""
    work = workload(**changes)
    valid = Layout(data_parallel=4, micro_batch_size=work.global_batch_size // 4)
    with_valid = {name: [getattr(valid, name), *values] for name, values in axes.items()}
    space = search_space(work, with_valid)
    (rejected,) = [r for r in space.rejected() if all(r.fields[name] == values[0] for name, values in axes.items())]
    return rejected


def test_a_space_is_every_valid_layout_once_in_canonical_form():
    axes = {
        "tensor_parallel": [4, 1, 2],
        "pipeline_parallel": [1, 2],
        "micro_batch_size": [2, 1],
        "pipeline_schedule": ["gpipe", "1f1b"],
    }
    space = search_space(workload(), axes)
    expected = set()
    for tp, pp, mb, schedule in itertools.product(*axes.values()):
        dp = 4 // (tp * pp)
        if dp and 16 % (mb * dp) == 0:
            layout = Layout(1, tp, pp, dp, mb, 16 // (mb * dp), pipeline_schedule=schedule)
            expected.add(layout.canonical())
    assert set(space.layouts) == expected
    assert len(space.layouts) == len({layout.key for layout in space.layouts})
    assert all(layout == layout.canonical() for layout in space.layouts)


def test_every_combination_is_either_valid_or_rejected_with_its_rule():
    axes = {
        "tensor_parallel": [1, 2, 3, 4],
        "pipeline_parallel": [1, 2, 4],
        "micro_batch_size": [1, 2, 3],
        "engine": ["torch", "deepspeed"],
        "zero_stage": [0, 1],
    }
    space = search_space(workload(), axes)
    rejected = list(space.rejected())
    assert space.rejected_by_rule == {code: len(rows) for code, rows in rejections(space).items()}
    assert all(r.problem.message and r.problem.rule and r.problem.fix for r in rejected)
    seen = {tuple(r.fields[name] for name in axes) for r in rejected}
    seen |= {tuple(getattr(layout, name) for name in axes) for layout in space.layouts}
    assert {(tp, pp, mb) for tp, pp, mb, *_ in seen} == set(itertools.product(*list(axes.values())[:3]))
    assert space.num_points == 4 * 3 * 3 * 2 * 2


def test_with_accumulation_as_an_axis_the_global_batch_varies():
    space = search_space(workload(batch_is_free=True), {"micro_batch_size": [1, 3], "grad_accum_steps": [1, 4]})
    assert {x.global_batch_size for x in space.layouts} == {4, 16, 12, 48}
    assert not space.rejected_by_rule
    with pytest.raises(InputError, match=r"no layout has the global batch 16; they have \[8, 12\]"):
        search_space(workload(batch_is_free=True), {"grad_accum_steps": [2, 3]})


@pytest.mark.bad_input(7, 9, 10, 21)
@pytest.mark.parametrize(
    ("axes", "code", "unknown", "words"),
    [
        ({"pipeline_parallel": [3]}, "world", "data_parallel", "world size num_nodes 1 x gpus_per_node 4 = 4"),
        ({"num_nodes": [2]}, "world", None, "num_nodes is 2, but the cluster has 1"),
        (
            {"pipeline_parallel": [2], "virtual_pipeline_stages": [4]},
            "interleave",
            None,
            "stages is 4 with pipeline_parallel 2 and model.num_layers",
        ),
        ({"micro_batch_size": [3]}, "batch", "grad_accum_steps", "4 = 12 does not divide global_batch_size 16"),
    ],
)
def test_what_does_not_come_out_is_rejected_with_all_numbers(axes, code, unknown, words):
    rejected = the_rejection(axes)
    assert (rejected.problem.code, words in rejected.problem.message) == (code, True)
    assert unknown is None or rejected.fields[unknown] is None


@pytest.mark.parametrize(
    ("engine", "refused"), [("torch", [4, 8]), ("megatron-core", [4, 8]), ("megatron-lm", []), ("command", [])]
)
def test_megatron_lm_copies_key_value_heads_to_more_ranks_than_there_are(engine, refused):
    """As transformer_config.py has it: tensor_parallel divides the two heads, or is a multiple of them."""
    task = workload("h100-80gb", 8, num_attention_heads=24, num_key_value_heads=2, hidden_size=192)
    found = {
        tp: [*violations(LAYOUT_RULES, Layout(tensor_parallel=tp, data_parallel=8 // tp, engine=engine), task)]
        for tp in (1, 2, 4, 8)
    }
    assert [tp for tp, problems in found.items() if "kv_heads" in {each.code for each in problems}] == refused
    three = replace(task, model=replace(task.model, num_key_value_heads=3))
    codes = [
        each.code for each in violations(LAYOUT_RULES, Layout(tensor_parallel=4, data_parallel=2, engine=engine), three)
    ]
    assert "kv_heads" in codes


@pytest.mark.bad_input(9)
def test_a_stage_without_a_layer_and_what_an_engine_cannot_split_are_rejected_by_their_rules():
    rejected = the_rejection({"pipeline_parallel": [4]}, num_layers=3)
    assert rejected.problem.code == "layers"
    assert "pipeline_parallel is 4 with model.num_layers 3" in rejected.problem.message
    assert search_space(workload(num_layers=7), {"pipeline_parallel": [4]}).layouts
    codes = rejections(search_space(workload(), {"micro_batch_size": [4, 16], "pipeline_parallel": [1, 4]}))
    assert [r.fields["grad_accum_steps"] for r in codes["torch.micro_batches"]] == [1]


@pytest.mark.parametrize(("num_nodes", "refused"), [(2, []), (4, []), (6, [8]), (8, [])])
def test_a_tensor_group_may_span_the_nodes_of_one_link_domain(num_nodes: int, refused: list[int]):
    # Domains of four nodes with four ranks; six nodes fill two parts of three.
    links = Links((LinkDomain("node", 4, 680, 6), LinkDomain("rack", 16, 680, 25)), Fabric(200, 5))
    plain = workload("gb200-186gb", 4, num_nodes, 96, num_attention_heads=48, num_key_value_heads=48)
    given = replace(plain, cluster=replace(plain.cluster, given_links=links))
    degrees = [4, 8, *([16] if num_nodes > 2 else [])]
    rejected = rejections(search_space(given, {"tensor_parallel": degrees})).get("tp_across_nodes", [])
    assert [each.fields["tensor_parallel"] for each in rejected] == refused
    ranks = "tensor_parallel is 8 with num_nodes 6 and ranks of a link domain 12"
    assert all(ranks in each.problem.message for each in rejected)


@pytest.mark.bad_input(11)
def test_a_tensor_group_wider_than_a_node_is_rejected_and_the_switch_named():
    two_nodes = {"num_nodes": 2, "gpus_per_node": 4}
    space = search_space(workload(**two_nodes), {"tensor_parallel": [4, 8]})
    (rejected,) = rejections(space)["tp_across_nodes"]
    assert "tensor_parallel is 8 with num_nodes 2 and ranks of a link domain 4" in rejected.problem.message
    assert "space.allow_tensor_parallel_across_nodes" in rejected.problem.fix
    allowed = workload(
        **two_nodes, allow_tensor_parallel_across_nodes=True, num_attention_heads=8, num_key_value_heads=8
    )
    assert [x.tensor_parallel for x in search_space(allowed, {"tensor_parallel": [4, 8]}).layouts] == [4, 8]
    straddling = workload(num_nodes=3, gpus_per_node=4, global_batch_size=12)
    assert list(rejections(search_space(straddling, {"tensor_parallel": [2, 3]}))) == ["tp_across_nodes"]


@pytest.mark.bad_input(14)
def test_an_empty_space_is_refused_with_each_rule_how_many_it_removed_and_what_to_relax():
    axes = {"tensor_parallel": [5, 8, 16], "micro_batch_size": [32]}
    with pytest.raises(InputError) as caught:
        search_space(workload(), {**axes, "tensor_parallel": [1, 8, 16]})
    (problem,) = caught.value.problems
    assert problem.code == "space_empty"
    assert "world rejected 2, batch rejected 1" in problem.message
    assert "world: change tensor_parallel" in problem.fix
    assert "batch: use a micro_batch_size" in problem.fix
    with pytest.raises(InputError, match=r"torch\.overlap_comm rejected 1"):
        search_space(workload(), {"zero_stage": [3], "overlap_comm": [True]})


@pytest.mark.bad_input(15)
def test_over_a_million_points_need_the_sampling_switch():
    many = {name: list(range(1, 102)) for name in ("tensor_parallel", "pipeline_parallel", "micro_batch_size")}
    with pytest.raises(InputError, match="1030301 combinations of 101 tensor_parallel x 101") as caught:
        search_space(workload(), many)
    assert "search.sample_space" in caught.value.problems[0].fix


@pytest.mark.slow
@pytest.mark.bad_input(15)
def test_a_sample_is_the_same_for_the_same_seed_and_holds_valid_layouts_only():
    many = {name: list(range(1, 102)) for name in ("tensor_parallel", "pipeline_parallel", "micro_batch_size")}
    one, again, other = (search_space(workload(), many, sample_seed=seed) for seed in (1, 1, 2))
    assert one.is_sampled
    assert [*one.layouts] == [*again.layouts]
    assert one.rejected_by_rule != other.rejected_by_rule
    assert len(one.layouts) + sum(one.rejected_by_rule.values()) <= SAMPLED_POINTS
    assert all(layout.num_gpus == 4 and layout.global_batch_size == 16 for layout in one.layouts)


def test_several_numbers_of_nodes_are_several_worlds_up_to_the_constraint():
    space = search_space(workload(num_nodes=4, max_nodes=2), {"num_nodes": [1, 2, 4]})
    assert [(x.num_nodes, x.data_parallel, x.grad_accum_steps) for x in space.layouts] == [(1, 4, 4), (2, 8, 2)]
    assert space.rejected_by_rule == {"max_nodes": 1}


EXPERTS = {"gpus_per_node": 8, "num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 48}
OF_EIGHT = {"tensor_parallel": 2, "data_parallel": 4, "grad_accum_steps": 4, "engine": "megatron-lm"}
DISPATCHED = {**OF_EIGHT, "expert_parallel": 2}
DENSE = {"gpus_per_node": 8}
TP2 = {"tensor_parallel": 2, "data_parallel": 2, "grad_accum_steps": 8}
DATA4 = {"data_parallel": 4, "grad_accum_steps": 4}
DEEPSPEED_FP16 = {**DATA4, "zero_stage": 1, "precision": "fp16", "engine": "deepspeed"}
CORE_SEQUENCE = {"tensor_parallel": 2, "data_parallel": 2, "grad_accum_steps": 8, "sequence_parallel": True}
CORE_SEQUENCE |= {"engine": "megatron-core"}
FLEX = {**DATA4, "engine": "torchtitan", "attention_kernel": "flex"}
OVERLAPPED = {**FLEX, "data_parallel": 1, "grad_accum_steps": 16, "tensor_parallel_overlap": True}
EIGHT_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 256}
TWO_NODES = {"num_nodes": 2, "allow_tensor_parallel_across_nodes": True, **EIGHT_HEADS}
FLASH = {**DATA4, "engine": "accelerate", "attention_kernel": "flash"}
BF16 = {"precision": "bf16"}
SHARED_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SIX_HEADS = {"num_attention_heads": 6, "num_key_value_heads": 6}
ON_CPU = {
    "megatron-core": [{"attention_kernel": "flash"}],
    "torchtitan": [{"attention_kernel": "flash"}, {"torch_compile": True}],
    "accelerate-launch": [{"zero_stage": 3}, {"precision": "fp16"}],
}


@pytest.mark.bad_input(8)
@pytest.mark.parametrize(
    ("accelerator", "model", "fields", "rule", "message"),
    [
        ("cpu", {"num_attention_heads": 6, "num_key_value_heads": 3}, TP2, "kv_heads", "num_key_value_heads 3"),
        ("cpu", {"num_attention_heads": 3, "num_key_value_heads": 1}, TP2, "heads kv_heads", "num_attention_heads 3"),
        ("cpu", {"ffn_hidden_size": 383}, TP2, "ffn", "tensor_parallel is 2 with model.ffn_hidden_size 383"),
        ("cpu", {"vocab_size": 50257}, TP2, "vocab", "vocab_size 50257"),
        # Overlapped tensor parallelism stays within a node also where groups may span them.
        (
            *("h100-80gb", TWO_NODES, {**OVERLAPPED, "num_nodes": 2, "tensor_parallel": 8}, "tp_overlap_across_nodes"),
            "tensor_parallel_overlap is true with tensor_parallel 8 and cluster.gpus_per_node 4",
        ),
        ("h100-80gb", EIGHT_HEADS, {**OVERLAPPED, "tensor_parallel": 4}, None, None),
        ("h100-80gb", EXPERTS, {**OF_EIGHT, "expert_parallel": 8}, None, None),
        ("h100-80gb", EXPERTS, {**OF_EIGHT, "expert_parallel": 4, "expert_tensor_parallel": 2}, None, None),
        ("h100-80gb", EXPERTS, {**OF_EIGHT, "expert_parallel": 8, "expert_tensor_parallel": 2}, "expert_ranks", "8"),
        ("h100-80gb", EXPERTS, {**OF_EIGHT, "expert_parallel": 3}, "experts expert_ranks", "model.num_experts 8"),
        (
            *("h100-80gb", EXPERTS | {"expert_ffn_hidden_size": 50}, {**OF_EIGHT, "expert_tensor_parallel": 4}),
            *("expert_width", "expert_tensor_parallel is 4 with model.expert_width 50"),
        ),
        ("h100-80gb", DENSE, OF_EIGHT, None, None),
        ("h100-80gb", DENSE, DISPATCHED, "experts", "model.num_experts null"),
        ("h100-80gb", EXPERTS, {**DISPATCHED, "expert_dispatcher": "deepep"}, None, None),
        ("gb200-186gb", EXPERTS, {**DISPATCHED, "expert_dispatcher": "deepep"}, "expert_dispatcher", "gb200"),
        ("gb200-186gb", EXPERTS, {**DISPATCHED, "expert_dispatcher": "hybridep"}, None, None),
        ("mi300x-192gb", EXPERTS, {**DISPATCHED, "expert_dispatcher": "hybridep"}, "expert_dispatcher", "mi300x"),
        (
            "v100-32gb",
            {},
            {**DATA4, **BF16},
            "precision",
            "precision is bf16 with engine torch and cluster.accelerator v100-32gb",
        ),
        ("v100-32gb", {}, DATA4, None, None),
        ("cpu", {}, DEEPSPEED_FP16, "precision", "precision is fp16 with engine deepspeed and cluster.accelerator cpu"),
        ("a100-80gb", {}, DEEPSPEED_FP16, None, None),
        ("cpu", {}, {**DEEPSPEED_FP16, "engine": "torch"}, None, None),
        *(
            (
                "cpu",
                {},
                {**DATA4, **BF16, "engine": engine, **fields},
                "gpu_only",
                f"with engine {engine} and cluster.accelerator cpu",
            )
            for engine, rows in ON_CPU.items()
            for fields in rows
        ),
        *(("cpu", {}, {**DATA4, **BF16, **fields}, None, None) for rows in ON_CPU.values() for fields in rows),
        ("a100-80gb", {}, CORE_SEQUENCE, "sequence_parallel", ""),
        ("a100-80gb", {}, {**CORE_SEQUENCE, **BF16}, None, None),
        ("a100-80gb", {}, {**CORE_SEQUENCE, "engine": "torch"}, None, None),
        ("cpu", {}, CORE_SEQUENCE, None, None),
        ("h100-80gb", SIX_HEADS, FLEX, None, None),
        ("h100-80gb", {}, FLEX, "flex_head_size", "flex with model.head_size 8 and cluster.accelerator h100-80gb"),
        ("h100-80gb", {}, {**FLEX, "attention_kernel": "flash", **BF16}, None, None),
        ("cpu", {}, FLEX, None, None),
        ("h100-80gb", SHARED_HEADS, FLASH, "grouped_flash", ""),
        ("h100-80gb", SHARED_HEADS, {**FLASH, **BF16}, None, None),
        ("h100-80gb", SHARED_HEADS, {**FLASH, "attention_kernel": "math"}, None, None),
        ("h100-80gb", SHARED_HEADS, {**FLASH, "engine": "torch"}, None, None),
        ("cpu", SHARED_HEADS, FLASH, None, None),
        ("mi355x-288gb", SIX_HEADS, {**FLEX, **BF16, "matmul_precision": "mxfp8"}, "matmul_precision", ""),
        ("b200-180gb", SIX_HEADS, {**FLEX, **BF16, "matmul_precision": "mxfp8"}, None, None),
    ],
)
def test_a_layout_is_rejected_by_rules_of_the_model_and_of_the_machine(accelerator, model, fields, rule, message):
    found = [*violations(LAYOUT_RULES, Layout(**fields), workload(accelerator, **model))]
    assert [problem.code for problem in found] == (rule.split() if rule else [])
    assert all(problem.fix for problem in found)
    assert not found or message in found[0].message


@pytest.mark.parametrize(
    ("accelerator", "lacking"),
    [
        ("cpu", MATMUL_RECIPES.keys()),
        ("a100-80gb", MATMUL_RECIPES.keys()),
        *((name, {"mxfp8", "nvfp4"}) for name in ("h100-80gb", "h200-141gb", "mi300x-192gb")),
        ("mi355x-288gb", {"nvfp4"}),
        ("gb200-186gb", set()),
    ],
)
@pytest.mark.parametrize("word", [*MATMUL_RECIPES, "same"])
def test_8_and_4_bit_products_are_on_accelerators_that_have_them(accelerator, lacking, word):
    found = [*violations(LAYOUT_RULES, Layout(**DATA4, **BF16, matmul_precision=word), workload(accelerator))]
    message = f"matmul_precision is {word} with cluster.accelerator {accelerator}"
    assert [(each.code, each.message) for each in found] == [("matmul_precision", message)] * (word in lacking)


def test_the_baseline_joins_the_candidates_wherever_it_lies_and_saves_no_empty_space():
    inside = Layout(data_parallel=4, micro_batch_size=1, grad_accum_steps=4)
    outside = Layout(tensor_parallel=2, data_parallel=2, micro_batch_size=4, grad_accum_steps=2)
    axes = {"micro_batch_size": [1, 2]}
    assert len(search_space(workload(), axes, inside).layouts) == 2
    space = search_space(workload(), axes, outside)
    assert space.baseline == outside
    assert space.layouts[-1] == outside
    assert len(space.layouts) == 3
    with pytest.raises(InputError, match="none of 1 layouts is valid"):
        search_space(workload(), {"micro_batch_size": [32]}, Layout(data_parallel=4, grad_accum_steps=4))


def test_a_baseline_that_breaks_rules_is_refused_with_all_of_them():
    broken = Layout(tensor_parallel=8, micro_batch_size=3, grad_accum_steps=2, offload="optimizer", engine="deepspeed")
    with pytest.raises(InputError) as caught:
        search_space(workload(), {}, broken)
    problems = caught.value.problems
    assert {p.key for p in problems} == {"baseline"}
    assert [p.code for p in problems] == ["world", "heads", "kv_heads", "batch", "deepspeed.offload"]
    ranks = "tensor_parallel 8 x pipeline_parallel 1 x data_parallel 1 = 8 ranks"
    assert f"{ranks}, but the world size is num_nodes 1 x" in problems[0].message
    assert "= 6, but global_batch_size is 16" in problems[3].message


def test_a_closed_space_is_the_table_and_asks_no_rule():
    layouts = [Layout(tensor_parallel=7, engine="nanotron"), Layout(tensor_parallel=7, engine="nanotron", zero_stage=1)]
    space = closed_space(workload(), layouts, layouts[0])
    assert [*space.layouts] == [layouts[0]]
    assert space.baseline == layouts[0]
    with pytest.raises(InputError, match="is not a layout of the table"):
        closed_space(workload(), layouts, Layout())


def test_of_a_table_that_is_to_be_run_every_layout_that_cannot_be_is_rejected_by_its_rule():
    runs = Layout(data_parallel=4, grad_accum_steps=4)
    bad = {
        "world": replace(runs, tensor_parallel=4),
        "tp_across_nodes": Layout(num_nodes=2, tensor_parallel=8, grad_accum_steps=16),
        "batch": replace(runs, grad_accum_steps=3),
        "torch.overlap_comm": replace(runs, zero_stage=3, overlap_comm=True),
        "nanotron.engine_mismatch": replace(runs, engine="nanotron"),
    }
    space = runnable_space(workload(num_nodes=2), [*bad.values(), runs, runs], runs)
    assert ([*space.layouts], space.baseline) == ([runs], runs)
    assert space.rejected_by_rule == dict.fromkeys(bad, 1)
    assert [*space.examples()] == [*space.rejected_by_rule] == [*bad]
    assert {r.problem.code: r.fields for r in space.rejected()} == {c: x.to_json() for c, x in bad.items()}


def test_a_table_of_which_nothing_can_be_run_and_a_baseline_that_is_not_valid_and_of_it_are_refused():
    with pytest.raises(InputError, match=r"nanotron\.engine_mismatch rejected 1") as caught:
        runnable_space(workload(), [Layout(data_parallel=4, grad_accum_steps=4, engine="nanotron")])
    assert "launcher.kind to simulated" in caught.value.problems[0].fix
    runs, other = Layout(data_parallel=4, grad_accum_steps=4), Layout(tensor_parallel=7)
    with pytest.raises(InputError, match="is not a layout of the table"):
        runnable_space(workload(), [runs], other)
    with pytest.raises(InputError, match="tensor_parallel 7 x pipeline_parallel 1 x data_parallel 1 = 7 ranks"):
        runnable_space(workload(), [runs, other], other)


def test_rejected_layouts_of_one_rule_are_told_apart_by_the_fields_that_vary():
    axes = {"tensor_parallel": [1, 3], "micro_batch_size": [1, 2], "overlap_comm": [False, True], "zero_stage": [2]}
    texts = [rejected.text for rejected in search_space(workload(), axes).rejected()]
    assert len(texts) == len(set(texts)) == 6
    varying = "tensor_parallel 1, micro_batch_size 2, overlap_comm true"
    assert texts[-1] == f"{varying}: overlap_comm is true with zero_stage 2"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(layouts, min_size=1, max_size=20))
def test_a_table_makes_layouts_canonical_as_a_layout_does_itself(rows: list[Layout]):
    table = LayoutTable.of(rows)
    assert [*table] == rows
    assert [*table.canonical()] == [layout.canonical() for layout in rows]
    distinct = table.canonical().distinct()
    assert len(distinct) == len({layout.key for layout in rows})
    assert set(distinct) == {layout.canonical() for layout in rows}


@settings(max_examples=60, deadline=None)
@given(st.lists(layouts, max_size=20))
def test_a_table_has_the_keys_and_the_numbers_of_its_layouts(rows: list[Layout]):
    table = LayoutTable.of(rows)
    assert table.canonical().keys == [layout.key for layout in rows]
    for number in ("num_gpus", "global_batch_size", "shards", "expert_shards"):
        assert getattr(table, number).tolist() == [getattr(layout, number) for layout in rows]
    assert [table[row] for row in range(len(rows))] == rows
    assert all(layout in table and rows[table.index(layout)] == layout for layout in rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(layouts, max_size=30))
def test_a_question_is_asked_once_for_each_combination_of_the_fields_that_it_reads(rows: list[Layout]):
    asked = []

    def ask(layout: Layout) -> tuple[int, bool | None]:
        asked.append((layout.num_nodes, layout.sequence_parallel if layout.num_nodes > 2 else None))
        return asked[-1]

    found, of_row = LayoutTable.of(rows).answers(ask)
    assert [found[index] for index in of_row] == [ask(layout) for layout in rows]
    assert len(found) <= 4 * 2
    assert len(asked) <= len(rows) + 1 + 4 + len(found)  # before it is known that the second field matters, too


def test_a_question_may_change_a_layout_and_ask_for_what_follows_from_it():
    table = LayoutTable.of([Layout(tensor_parallel=size, sequence_parallel=True) for size in (1, 2, 4)])
    found, of_row = table.answers(lambda layout: replace(layout, tensor_parallel=1).canonical().key)
    assert [found[index] for index in of_row] == [Layout().key] * 3
    assert table.column_of(lambda layout: layout.mesh.world_size + layout.shards).tolist() == [2, 3, 5]


def test_combinations_of_more_values_than_a_number_holds_are_told_apart():
    many = np.array([0, 2**40, 0, 5, 2**40])
    firsts, of_row = combinations_of([many, many[::-1], many, many], 5)
    assert (firsts.tolist(), of_row.tolist()) == ([2, 0, 3, 4, 1], [1, 4, 0, 2, 3])


def test_distinct_rows_come_in_the_order_of_the_layout_fields():
    rows = [Layout(tensor_parallel=tp, micro_batch_size=mb) for tp in (4, 1) for mb in (8, 2, 8)]
    found = [(x.tensor_parallel, x.micro_batch_size) for x in LayoutTable.of(rows).distinct()]
    assert found == [(1, 2), (1, 8), (4, 2), (4, 8)]
    assert set(LayoutTable.of(rows).columns) == set(LAYOUT_FIELDS)


def test_an_expert_is_sharded_over_the_ranks_that_hold_it():
    assert Layout(**OF_EIGHT, expert_parallel=4).expert_shards == 2
    assert Layout(**OF_EIGHT, expert_parallel=2, expert_tensor_parallel=2).expert_shards == 2
    assert Layout(**OF_EIGHT).expert_shards == 8
