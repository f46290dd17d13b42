"""Step times and rates of attention compared with published ones, and the effect of each layout field on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search_spaces.cost_model.constants import CONSTANTS, Columns, typical_constants
from search_spaces.cost_model.exchange_time import EXPOSED
from search_spaces.cost_model.layer_time import (
    EXPERT_LAYER_LAUNCH_S,
    GROUPED_GEMM_SLOWDOWN,
    HALF_RATE_HIDDEN,
    HOST_CALL_S,
    LAYER_LAUNCH_S,
    attention_shares,
)
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.cluster import ACCELERATORS, Cluster, MeasuredSpeed
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.layout import CHOICES, Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from tests.kit import LLAMA, gpt

SELENE = Links((LinkDomain("node", 8, 235, 10.2),), Fabric(200, 5, p2p_gb_per_s=25))


def a100(num_nodes: int) -> Cluster:
    return Cluster(ACCELERATORS["a100-80gb"], 8, num_nodes, SELENE)


def seconds(model: ModelShape, layout: Layout, cluster: Cluster | None = None) -> float:
    cluster = cluster or a100(max(1, layout.num_gpus // 8))
    terms = StepTerms.of(model, cluster, LayoutTable.of([layout.canonical()]))
    return float(terms.seconds(typical_constants())[0])


MEGATRON = Layout(tensor_parallel=8, precision="fp16", engine="megatron-lm", activation_checkpointing="full")
SELECTIVE = {"activation_checkpointing": "selective", "sequence_parallel": True}
GPT_22B = gpt(48, 6144, 64, has_dropout=True), replace(MEGATRON, micro_batch_size=4)
GPT_175B = (
    gpt(96, 12288, 96, has_dropout=True),
    replace(MEGATRON, num_nodes=8, pipeline_parallel=8, virtual_pipeline_stages=3, grad_accum_steps=64),
)
GPT_530B = (
    gpt(105, 20480, 128, has_dropout=True),
    replace(MEGATRON, num_nodes=35, pipeline_parallel=35, virtual_pipeline_stages=3, grad_accum_steps=280),
)
GPT_1T = (
    gpt(128, 25600, 160, has_dropout=True),
    replace(MEGATRON, num_nodes=64, pipeline_parallel=64, pipeline_schedule="1f1b", grad_accum_steps=512),
)
KORTHIKANTI = [(GPT_22B, 1.42, 1.10), (GPT_175B, 18.13, 13.75), (GPT_530B, 49.05, 37.83), (GPT_1T, 94.42, 71.49)]


def test_the_eight_published_steps_that_such_models_are_judged_by_are_met_within_5_percent_on_average():
    # Korthikanti et al., arXiv 2205.05198, table 5: full recomputation, and selective with sequence parallelism.
    errors = [
        seconds(model, given) / published_s - 1
        for (model, layout), full_s, selective_s in KORTHIKANTI
        for given, published_s in ((layout, full_s), (replace(layout, **SELECTIVE), selective_s))
    ]
    assert np.abs(errors).mean() <= 0.05
    assert np.abs(errors).max() <= 0.09


MT_NLG = {"tensor_parallel": 8, "pipeline_parallel": 35, "pipeline_schedule": "1f1b"}
ZERO_3 = {"tensor_parallel": 1, "zero_stage": 3}


@pytest.mark.parametrize(
    ("model", "fields", "micro_batch_size", "batch", "data_parallel", "published_s"),
    [
        # Smith et al., arXiv 2201.11990, section 2.4: on 280, 350 and 420 nodes.
        *((GPT_530B[0], MT_NLG, 1, 1920, ranks, step_s) for ranks, step_s in ((8, 60.1), (10, 50.2), (12, 44.4))),
        # Narayanan et al., arXiv 2104.04473, table 2.
        *((GPT_175B[0], ZERO_3, size, 1536, 1536 // size, s) for size, s in ((4, 81.6), (2, 66.7), (1, 66.7))),
    ],
)
def test_published_steps_of_megatron_deepspeed_are_met_within_15_percent(
    model, fields, micro_batch_size, batch, data_parallel, published_s
):
    steps = batch // data_parallel // micro_batch_size
    sizes = {"data_parallel": data_parallel, "micro_batch_size": micro_batch_size, "grad_accum_steps": steps}
    layout = replace(MEGATRON, engine="megatron-deepspeed", **fields, **sizes)
    assert seconds(model, replace(layout, num_nodes=layout.num_gpus // 8)) == pytest.approx(published_s, rel=0.15)


SMALL = gpt(24, 2048, 16)
EIGHT = Layout(tensor_parallel=2, pipeline_parallel=2, data_parallel=2, grad_accum_steps=16, precision="bf16")


MODULES_OF_BOTH = {"activation_checkpointing": "selective", "recompute_modules": "core_attn+mlp"}


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ({}, {"activation_checkpointing": "selective"}),
        ({"activation_checkpointing": "full", "recompute_layers": 1}, {"activation_checkpointing": "full"}),
        (MODULES_OF_BOTH, {"activation_checkpointing": "full"}),
        ({"attention_kernel": "flash"}, {}),
        ({"precision": "bf16"}, {"precision": "fp32"}),
        ({"virtual_pipeline_stages": 2}, {}),
        ({}, {"offload": "optimizer"}),
        ({"zero_stage": 2}, {"zero_stage": 3}),
        ({"torch_compile": True, "micro_batch_size": 1}, {"micro_batch_size": 1}),
        ({"overlap_comm": True}, {}),
    ],
    ids=lambda changes: "-".join(f"{k}-{v}" for k, v in changes.items()) or "plain",
)
def test_what_costs_time_is_slower(faster, slower):
    assert seconds(SMALL, replace(EIGHT, **faster)) < seconds(SMALL, replace(EIGHT, **slower))


def _terms(model: ModelShape, layout: Layout, cluster: Cluster | None = None) -> dict[str, float]:
    """Seconds of a micro-batch by constants, which are all 1."""
    terms = StepTerms.of(model, cluster or a100(1), LayoutTable.of([layout]))
    return {**_by_constants(terms.device), "launches": terms.host_s[0], "sharded": terms.sharded_s[0]}


def _by_constants(columns: Columns) -> dict[str, float]:
    found: dict[str, float] = {}
    for (_, constants), seconds in zip(columns.keys, columns.values[:, 0].tolist(), strict=True):
        name = "+".join(constants)
        found[name] = found.get(name, 0.0) + seconds
    return {name: seconds for name, seconds in found.items() if seconds}


WITH_EXPERTS = replace(SMALL, num_experts=8, experts_per_token=2)


HALF_LAYER = LAYER_LAUNCH_S / 2


@pytest.mark.parametrize(
    ("model", "word", "captured_s", "experts"),
    [
        (SMALL, "attn", HALF_LAYER, 0),
        (SMALL, "attn+mlp", 2 * HALF_LAYER, 0),
        (WITH_EXPERTS, "attn+moe_router+moe_preprocess", HALF_LAYER, 1),
        (replace(WITH_EXPERTS, num_dense_layers=12), "mlp", HALF_LAYER / 2, 1 / 2),
    ],
)
def test_the_host_launches_what_no_graph_captures_and_the_device_waits_for_that_of_experts(
    model, word, captured_s, experts
):
    layout = Layout(engine="megatron-lm", precision="bf16")
    plain, graphs, whole = (
        _terms(model, replace(layout, cuda_graphs=each)) for each in ("none", word, "full_iteration")
    )
    layers, pass_s = model.num_layers, LAYER_LAUNCH_S + experts * EXPERT_LAYER_LAUNCH_S
    assert plain.pop("launches") == pytest.approx(3 * layers * pass_s + LAYER_LAUNCH_S)
    assert graphs.pop("launches") == pytest.approx(3 * layers * (pass_s - captured_s) + LAYER_LAUNCH_S)
    assert plain.pop("latency", 0) == pytest.approx(layers * experts * pass_s)
    assert graphs.pop("latency", 0) == pytest.approx(layers * experts * (pass_s - captured_s))
    assert whole.pop("launches") == whole.pop("latency", 0) == 0
    assert plain == graphs == whole


def test_grouped_gemms_are_launched_once_however_many_experts_a_rank_has():
    layout = Layout(engine="megatron-lm", precision="bf16")
    few, many = (_terms(replace(WITH_EXPERTS, num_experts=count), layout)["launches"] for count in (8, 64))
    assert few == many


def test_the_host_calls_each_module_that_is_recomputed():
    layout = Layout(engine="megatron-lm", precision="bf16", activation_checkpointing="selective")
    none, two = (
        _terms(WITH_EXPERTS, replace(layout, **fields))["launches"]
        for fields in ({"activation_checkpointing": "none"}, {"recompute_modules": "layernorm+moe_act"})
    )
    assert two - none == pytest.approx(SMALL.num_layers * 2 * HOST_CALL_S)
    assert 0.01 < two / none - 1 < 0.11


def test_nobody_waits_for_launches_on_a_cpu():
    layout = Layout(engine="megatron-core")
    host = Cluster(ACCELERATORS["cpu"], 1, 1)
    plain, experts = (_terms(model, layout, host) for model in (SMALL, WITH_EXPERTS))
    assert experts["launches"] == plain["launches"]
    assert "latency" not in experts


@pytest.mark.parametrize("kernel", ["math", "flash"])
def test_attention_takes_as_long_as_the_documents(kernel):
    """Its scores alone: products and traffic of everything else stay, and so does the time of whole sequences."""
    layout, long = Layout(precision="bf16", attention_kernel=kernel), replace(SMALL, seq_length=8192)
    whole, half, as_long = (_terms(m, layout)["gemm"] for m in (long, *map(long.with_documents, (4096.0, 8192.0))))
    without_scores = 2 * half - whole
    assert as_long == whole
    assert 0 < without_scores < half < whole
    quarter = _terms(long.with_documents(2048.0), layout)["gemm"]
    if kernel == "math":
        assert quarter - without_scores == pytest.approx((half - without_scores) / 2)


@pytest.mark.parametrize(
    ("dispatcher", "near", "far", "copies"),
    [
        # Of 3 experts of a token 3 / 8 are on each of 8 ranks, in two domains of 4.
        ("alltoall", 3 * 3 / 8, 3 / 2, 5),
        # A token's experts are on 8 (1 - (7 / 8)^3) ranks and in 2 (1 - (1 / 2)^3) domains.
        ("hybridep", 8 * (1 - (7 / 8) ** 3) * 3 / 4, 2 * (1 - 1 / 8) / 2, 3),
        ("deepep", 8 * (1 - (7 / 8) ** 3) * 3 / 4, 2 * (1 - 1 / 8) / 2, 3),
    ],
)
def test_a_dispatcher_sends_its_copies_of_a_token(dispatcher, near, far, copies):
    model = replace(WITH_EXPERTS, experts_per_token=3)
    layout = Layout(engine="megatron-lm", precision="bf16", data_parallel=8, num_nodes=2, expert_parallel=8)
    cluster = Cluster(ACCELERATORS["h100-80gb"], 4, 2)
    table = LayoutTable.of([replace(layout, expert_dispatcher=dispatcher), replace(layout, expert_parallel=1)])
    sent, alone = (_terms(model, layout, cluster) for layout in table)
    links = cluster.links_of_job(2)
    hidden = model.num_layers * model.seq_length * model.hidden_size * 2
    name = "dispatch" if dispatcher == "alltoall" else "dispatch+fused_dispatch"
    assert sent[name] == pytest.approx(4 * hidden * near / (1e9 * links.collective_gb_per_s(4, 1, 4, True)))
    rate = 0.9 * 1e9 * links.fabric.nic_gb_per_s / 4
    assert sent[f"{name}+across_domains"] == pytest.approx(4 * hidden * far / rate)
    moved = sent["memory_traffic"] - alone["memory_traffic"]
    assert moved == pytest.approx(4 * (copies - 1) * 3 * hidden / 3350e9)


@pytest.mark.parametrize(
    ("model", "expert_tensor", "collectives"),
    [({}, 1, 2), ({}, 2, 4), ({"shared_expert_ffn_hidden_size": 512}, 1, 4), ({"num_dense_layers": 12}, 1, 3)],
)
def test_whole_experts_need_no_tensor_parallel_collectives(model, expert_tensor, collectives):
    shape = replace(WITH_EXPERTS, **model)
    layout = Layout(engine="megatron-lm", tensor_parallel=2, expert_tensor_parallel=expert_tensor)
    exchanged = collectives * shape.num_layers * SMALL.seq_length * SMALL.hidden_size * 4
    rate = 1e9 * a100(1).links_of_job(1).collective_gb_per_s(2, 1, 8)
    assert _terms(shape, layout)["collectives"] == pytest.approx(2 * (2 - 1) / 2 * exchanged / rate)


def test_gathered_tokens_are_received_from_all_other_ranks():
    fields = {"data_parallel": 8, "expert_parallel": 8, "expert_dispatcher": "allgather"}
    terms = _terms(WITH_EXPERTS, Layout(engine="megatron-lm", precision="bf16", **fields))
    hidden = SMALL.num_layers * SMALL.seq_length * SMALL.hidden_size * 2
    rate = 1e9 * a100(1).links_of_job(1).collective_gb_per_s(8, 1, 8, True)
    assert terms["dispatch"] == pytest.approx(4 * hidden * 7 / rate)


# With gw_hp of three products one is left in bf16.
@pytest.mark.parametrize(
    ("recipe", "share"), [("fp8_rowwise", 989 / 1979), ("fp8_rowwise_with_gw_hp", (2 * 989 / 1979 + 1) / 3)]
)
def test_linear_layers_in_8_bits_take_the_share_of_time_that_the_data_sheet_says(recipe, share):
    """Without attention's products and the head, which stay in bf16: with a model as wide as long."""
    model = replace(gpt(48, 8192, 64), seq_length=1, vocab_size=1)
    layout = Layout(engine="torchtitan", precision="bf16")
    one = Cluster(ACCELERATORS["h100-80gb"], 1, 1)
    plain, low = (_terms(model, each, one) for each in (layout, replace(layout, matmul_precision=recipe)))
    assert (low.pop("gemm") + low.pop("gemm+low_precision")) / plain.pop("gemm") == pytest.approx(share, rel=1e-3)
    # Inputs of four products, (1 + 1 + 1 + 4) h, and gradients of their outputs, (3 + 1 + 4 + 1) h.
    moved = low.pop("memory_traffic") - plain.pop("memory_traffic")
    assert moved * 3350e9 == pytest.approx(6 * 16 * model.hidden_size * model.num_layers)
    assert low == plain


@pytest.mark.parametrize(("engine", "share_of_experts"), [("megatron-lm", 1 / 2), ("torchtitan", 1)])
def test_torchao_multiplies_routed_experts_in_16_bits(engine, share_of_experts):
    model = replace(gpt(48, 8192, 64), seq_length=1, vocab_size=1, num_experts=8, experts_per_token=2)
    layout = Layout(engine=engine, precision="bf16")
    one = Cluster(ACCELERATORS["h100-80gb"], 1, 1)
    plain, low = (
        sum(seconds for name, seconds in _terms(model, each, one).items() if name.startswith("gemm"))
        for each in (layout, replace(layout, matmul_precision="fp8_tensorwise"))
    )
    routed = 2 * model.parameters_per_expert / model.active_layer_parameters
    of_experts = GROUPED_GEMM_SLOWDOWN * routed
    expected = (of_experts * share_of_experts + (1 - routed) / 2) / (of_experts + 1 - routed)
    assert low / plain == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_gradients_added_up_whole_are_reduced_once_a_step(zero_stage):
    def step_s(engine: str, accumulation: int) -> float:
        layout = Layout(
            num_nodes=2, data_parallel=16, zero_stage=zero_stage, engine=engine, grad_accum_steps=accumulation
        )
        return seconds(SMALL, layout, replace(a100(2), given_links=Links(SELENE.domains, Fabric(20, 5))))

    assert step_s("accelerate", 1) == pytest.approx(step_s("torch", 1))
    assert step_s("accelerate", 8) < step_s("torch", 8)


@pytest.mark.parametrize(
    ("engine", "bandwidth"), [("deepspeed", {"p2p_gb_per_s": 2.5}), ("torch", {"nic_gb_per_s": 2.8})]
)
def test_what_zero_3_moves_runs_beside_the_device_and_is_waited_for_where_it_takes_longer(engine, bandwidth):
    model = gpt(24, 4096, 32)
    layout = Layout(num_nodes=2, data_parallel=16, zero_stage=3, precision="bf16", engine=engine)
    far = Links(SELENE.domains, replace(SELENE.fabric, **bandwidth))
    near_s, far_s = (seconds(model, layout, replace(a100(2), given_links=links)) for links in (SELENE, far))
    moved_s = 1.45 * model.parameters * 8 * 15 / 16 / 25e9
    assert near_s < moved_s + seconds(model, replace(layout, zero_stage=1), a100(2))
    assert far_s == pytest.approx(10 * moved_s, rel=0.2)


@pytest.mark.parametrize(("num_nodes", "tokens_per_s"), [(1, 4792), (2, 4767), (4, 4811), (8, 4800)])
def test_fsdp_gathers_with_all_adapters_of_a_node_while_it_computes(num_nodes, tokens_per_s):
    # mosaicml/llm-foundry, scripts/train/benchmarking/README.md: MPT-13B, micro-batches of two sequences.
    model = replace(gpt(40, 5120, 40), vocab_size=50368, tied_embeddings=True)
    layout = Layout(
        num_nodes=num_nodes,
        data_parallel=8 * num_nodes,
        micro_batch_size=2,
        zero_stage=3,
        precision="bf16",
        attention_kernel="flash",
        engine="accelerate-launch",
    )
    h100 = Cluster(ACCELERATORS["h100-80gb"], 8, num_nodes)
    assert 2 * 2048 / seconds(model, layout, h100) == pytest.approx(tokens_per_s, rel=0.25)


def test_what_zero_3_moves_inside_a_node_is_held_up_by_no_single_link_of_it():
    layout = Layout(data_parallel=8, zero_stage=3, precision="bf16")
    meshed = Links((LinkDomain("node", 8, 120, 10.2, p2p_gb_per_s=20),), Fabric(50, 5, p2p_gb_per_s=12.5))
    switched = Links((LinkDomain("node", 8, 120, 10.2),), meshed.fabric)
    same = [_terms(SMALL, layout, replace(a100(1), given_links=links)) for links in (meshed, switched)]
    assert same[0] == pytest.approx(same[1])


def test_sequence_parallelism_talks_at_the_rate_of_gathers():
    layout = Layout(tensor_parallel=8, sequence_parallel=True, micro_batch_size=8, precision="bf16")
    slow = replace(a100(1), given_links=Links((LinkDomain("node", 8, 235, 10.2, gather_gb_per_s=47),), Fabric(200, 5)))
    fast, slower = (_terms(SMALL, layout, machine)["collectives"] for machine in (a100(1), slow))
    assert slower == pytest.approx(5 * fast)
    whole = replace(layout, sequence_parallel=False)
    assert _terms(SMALL, whole, slow)["collectives"] == _terms(SMALL, whole, a100(1))["collectives"]


def test_torchtitans_compiled_step_is_met_within_15_percent():
    # pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1: H100s with 500 W and 2.4 TB/s.
    model = gpt(32, 4096, 32, num_key_value_heads=8, ffn_hidden_size=14336, vocab_size=128256, seq_length=8192, **LLAMA)
    layout = Layout(
        data_parallel=8,
        micro_batch_size=2,
        zero_stage=3,
        activation_checkpointing="selective",
        precision="bf16",
        attention_kernel="flash",
        engine="torchtitan",
        torch_compile=True,
    )
    accelerator = replace(ACCELERATORS["h100-80gb"], memory_gb_per_s=2400, peak_flops={"fp16": 912e12})
    found = 2 * 8192 / seconds(model, layout, Cluster(accelerator, 8, 1))
    assert found == pytest.approx(6667, rel=0.15)


def test_a_host_starts_collectives_too():
    layouts = [
        Layout(tensor_parallel=2, data_parallel=4, precision="bf16"),
        Layout(tensor_parallel=2, data_parallel=4, precision="bf16", sequence_parallel=True),
        Layout(data_parallel=8, precision="bf16"),
        Layout(data_parallel=8, precision="bf16", zero_stage=3),
    ]
    launches = StepTerms.of(SMALL, a100(1), LayoutTable.of(layouts)).host_s
    assert launches[1] > launches[0] > launches[2] < launches[3]


def test_more_stages_than_work_is_bubble():
    few, many = (replace(EIGHT, grad_accum_steps=steps) for steps in (2, 64))
    table = LayoutTable.of([few, many])
    parts = StepTerms.of(SMALL, a100(1), table).parts(typical_constants())
    share = parts["bubble"] / (parts["bubble"] + parts["compute"] + parts["tensor"])
    # (p - 1) / (m + p - 1), a little less where the other stage is the faster one.
    assert share[0] == pytest.approx(1 / 3, abs=0.05)
    assert share[1] == pytest.approx(1 / 65, abs=0.01)


def test_the_parts_of_a_step_add_up_to_it_and_many_draws_of_the_constants_are_computed_at_once():
    layouts = [replace(EIGHT, micro_batch_size=size, zero_stage=stage) for size in (1, 4) for stage in (0, 1, 2, 3)]
    terms = StepTerms.of(SMALL, a100(1), LayoutTable.of(layouts))
    assert sum(terms.parts(typical_constants()).values()) == pytest.approx(terms.seconds(typical_constants()))
    terms = StepTerms.of(SMALL, a100(1), LayoutTable.of([EIGHT, replace(EIGHT, micro_batch_size=2)]))
    twice = np.where(np.array(CONSTANTS) == "machine", 2, 1)
    draws = np.stack([typical_constants(), twice * typical_constants(), np.ones(len(CONSTANTS))])
    assert terms.seconds(draws) == pytest.approx(np.stack([terms.seconds(draw) for draw in draws]))
    assert terms.seconds(draws)[1] == pytest.approx(2 * terms.seconds(draws)[0])


def test_communication_inside_layers_is_of_the_groups_that_communicate():
    whole = replace(EIGHT, tensor_parallel=1, pipeline_parallel=1, data_parallel=8, engine="megatron-lm")
    tensor = replace(whole, tensor_parallel=2, data_parallel=4)
    context = replace(whole, context_parallel=2, data_parallel=4)
    terms = StepTerms.of(SMALL, a100(1), LayoutTable.of([whole, tensor, context]))
    parts = terms.parts(typical_constants())
    assert [[name for name in ("tensor", "context", "expert") if parts[name][row] > 0] for row in range(3)] == [
        [],
        ["tensor"],
        ["context"],
    ]
    terms = StepTerms.of(WITH_EXPERTS, a100(1), LayoutTable.of([whole, replace(whole, expert_parallel=2)]))
    parts = terms.parts(typical_constants())
    assert parts["tensor"].tolist() == parts["context"].tolist() == [0, 0]
    assert min(parts["expert"]) > 0  # the device waits for the host, too
    assert sum(parts.values()) == pytest.approx(terms.seconds(typical_constants()))


def test_a_narrow_model_is_slow_on_an_accelerator_and_not_on_a_cpu():
    narrow, wide = (gpt(2, h, 2, vocab_size=512, seq_length=64) for h in (64, 1024))
    loss = {}
    for name in ("cpu", "a100-80gb"):
        seconds = [_terms(model, Layout(), Cluster(ACCELERATORS[name], 1, 1))["gemm"] for model in (narrow, wide)]
        flops = [2 * 3 * 64 * m.layer_parameters * m.num_layers + 4 * 3 * 64**2 * m.hidden_size for m in (narrow, wide)]
        loss[name] = seconds[0] / seconds[1] / (flops[0] / flops[1])
    assert loss["a100-80gb"] > 3 * loss["cpu"]


def test_what_was_measured_takes_the_place_of_the_data_sheet():
    cluster, (model, layout) = a100(1), GPT_22B
    # Measured GEMMs are the model's own, whose width costs nothing more.
    reached = MeasuredSpeed({"fp16": 0.72 * 312 / 2}, memory_gb_per_s=2039 / 4)
    narrow = 1 + HALF_RATE_HIDDEN / model.hidden_size
    data_sheet, slower = (
        _terms(model, layout.canonical(), each) for each in (cluster, replace(cluster, measured=reached))
    )
    assert slower.pop("gemm") == pytest.approx(2 * data_sheet.pop("gemm") / narrow, rel=0.01)  # and the head's
    assert slower.pop("memory_traffic") == pytest.approx(4 * data_sheet.pop("memory_traffic"))
    assert slower == data_sheet


def test_a_precision_that_was_not_measured_keeps_its_data_sheet_and_on_a_cpu_goes_by_fp32():
    def matmul(cluster: Cluster, precision: str) -> float:
        return _terms(gpt(2, 512, 8), Layout(precision=precision), cluster)["gemm"]

    fp32_alone = MeasuredSpeed({"fp32": 0.02})
    known = replace(a100(1), measured=fp32_alone)
    assert matmul(known, "bf16") == matmul(a100(1), "bf16")
    assert matmul(known, "fp32") > 100 * matmul(a100(1), "fp32")
    host = Cluster(ACCELERATORS["cpu"], 4, 1, measured=fp32_alone)
    slower = Cluster(ACCELERATORS["cpu"], 4, 1, measured=MeasuredSpeed({"fp32": 0.01}))
    assert matmul(host, "bf16") == matmul(host, "fp32") == pytest.approx(matmul(slower, "fp32") / 2)


# Nodes of four with two of them in a rack, and the same nodes on an ordinary network.
RACK = LinkDomain("rack", 8, 680, 25)
GB200_NODE = LinkDomain("node", 4, 680, 6.4)
NETWORK = Fabric(200, 5, p2p_gb_per_s=50)


def gb200(*domains: LinkDomain, num_nodes: int = 4) -> Cluster:
    return Cluster(ACCELERATORS["gb200-186gb"], 4, num_nodes, Links((GB200_NODE, *domains), NETWORK))


@pytest.mark.parametrize(
    ("change", "part", "faster"),
    [
        ({"tensor_parallel": 8, "data_parallel": 2}, "tensor", True),
        ({"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2}, "data_parallel", True),
        ({"tensor_parallel": 16}, "tensor", False),
        ({"tensor_parallel": 4, "data_parallel": 4}, "data_parallel", False),
    ],
)
def test_groups_over_the_nodes_of_a_link_domain_have_its_speed(change: dict, part: str, faster: bool):
    layout = replace(MEGATRON, num_nodes=4, **({"tensor_parallel": 8} | change)).canonical()
    inside, across = (_parts(cluster, layout)[part] for cluster in (gb200(RACK), gb200()))
    assert (inside < 0.5 * across) == faster


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_parallel": 2, "data_parallel": 4},
        {"tensor_parallel": 2, "context_parallel": 2, "data_parallel": 2},
        {"tensor_parallel": 1, "context_parallel": 2, "data_parallel": 4, "data_parallel_replicas": 2},
    ],
)
def test_data_parallel_ranks_in_one_link_domain_are_faster(change: dict):
    """With tp-dp-pp the ranks of a stage fill one of two racks of eight; with tp-pp-dp they are in both."""
    layout = replace(MEGATRON, num_nodes=4, zero_stage=1, pipeline_parallel=2, **change)
    inside, outside = (_parts(gb200(RACK), replace(layout, rank_order=order)) for order in CHOICES["rank_order"])
    assert inside["data_parallel"] < 0.8 * outside["data_parallel"]
    assert outside["pipeline"] < inside["pipeline"]


def test_all_groups_of_a_job_in_one_link_domain_need_no_fabric():
    layout = replace(
        MEGATRON, tensor_parallel=1, context_parallel=2, pipeline_parallel=2, data_parallel=2, num_nodes=2, zero_stage=1
    )
    cluster = Cluster(ACCELERATORS["gb200-186gb"], 4, 2, Links((GB200_NODE, RACK), None))
    parts = [_parts(cluster, replace(layout, rank_order=order)) for order in CHOICES["rank_order"]]
    assert all(part["data_parallel"] > 0 for part in parts)


@pytest.mark.parametrize(
    ("ranks_per_domain", "expert", "inside"), [(72, 8, 8), (72, 16, 8), (64, 16, 16), (72, 144, 72)]
)
@pytest.mark.parametrize("fabric", [NETWORK, Fabric(200, 5)])
def test_tokens_for_experts_leave_the_link_domain_where_their_ranks_are_in_two(
    ranks_per_domain, expert, inside, fabric
):
    """Groups of 16 in a domain of 72 ranks are cut after eight; then each rank has one of the node's four adapters."""
    model = replace(gpt(2, 1024, 8), num_experts=144, experts_per_token=2)
    domains = (GB200_NODE, LinkDomain("nvl72", ranks_per_domain, 680, 0.0))
    cluster = Cluster(ACCELERATORS["gb200-186gb"], 4, 36, Links(domains, fabric))
    nodes = 2 * ranks_per_domain // 4
    layout = replace(CONTEXT, num_nodes=nodes, data_parallel=4 * nodes, expert_parallel=expert).canonical()
    terms = _terms(model, layout, cluster)
    sent = 2 * 2 * 2048 * 2 * 1024 * 2 * 2  # passes, to and fro, tokens, experts, bf16, of two layers
    near, far = 680e9, 0.9 * 50e9  # of one adapter
    assert terms["dispatch"] == pytest.approx(sent * (inside - 1) / near / expert)
    assert terms.get("dispatch+across_domains", 0) == pytest.approx(sent * (expert - inside) / far / expert)


def test_jobs_of_several_sizes_have_the_parts_of_domains_that_each_fills():
    layouts = [
        replace(MEGATRON, num_nodes=nodes, tensor_parallel=4, data_parallel=nodes).canonical()
        for nodes in (4, 1, 3, 2, 4)
    ]
    cluster = gb200(RACK)
    together = StepTerms.of(GPT_22B[0], cluster, LayoutTable.of(layouts)).seconds(typical_constants())
    alone = [seconds(GPT_22B[0], layout, cluster) for layout in layouts]
    assert together == pytest.approx(alone)
    assert len(StepTerms.of(GPT_22B[0], cluster, LayoutTable.of(layouts).take(np.zeros(5, dtype=bool)))) == 0


def _parts(cluster: Cluster, layout: Layout) -> dict[str, float]:
    parts = StepTerms.of(GPT_22B[0], cluster, LayoutTable.of([layout])).parts(typical_constants())
    return {name: float(seconds[0]) for name, seconds in parts.items()}


CONTEXT = Layout(engine="megatron-lm", precision="bf16", attention_kernel="flash")


def context_seconds(**fields: Any) -> float:
    """Seconds of a step's exchange between context-parallel ranks, with constants of 1, on a node without a fabric."""
    model = replace(gpt(2, 1024, 8), num_key_value_heads=4)
    cluster = Cluster(ACCELERATORS["a100-80gb"], 8, 1, Links((LinkDomain("node", 8, 100.0, 0.0),), None))
    layout = replace(CONTEXT, **fields).canonical()
    terms = _terms(model, layout, cluster)
    return terms.get("collectives", 0.0) + terms.get("collectives+overlap", 0.0)


def test_a_ring_gathering_and_all_to_alls_move_what_they_need():
    # Each of 4 ranks has 512 of 2048 tokens; keys and values are 2 x 512 wide, queries and outputs 2 x 1024, in bf16.
    keys = 512 * 2 * 512 * 2 / 100e9
    heads = 512 * 2 * (512 + 1024) * 2 / 100e9
    layers = 2
    assert context_seconds() == 0
    gathered = context_seconds(context_parallel=4, context_transport="all_gather")
    assert gathered == pytest.approx(layers * 3 * 3 * keys)
    assert context_seconds(context_parallel=4) == pytest.approx(gathered * EXPOSED)
    assert context_seconds(context_parallel=4, context_transport="a2a") == pytest.approx(layers * 2 * heads * 3 / 4)
    hierarchy = context_seconds(context_parallel=4, context_transport="a2a_p2p")
    assert hierarchy == pytest.approx(layers * (2 * heads / 2 + 3 * keys * EXPOSED))


LLAMA_8B = gpt(32, 4096, 32, num_key_value_heads=8, ffn_hidden_size=14336, vocab_size=128256, seq_length=8192, **LLAMA)
LAYOUT = Layout(precision="bf16", attention_kernel="flash", engine="torch")


def attention_s(accelerator: str = "h100-80gb", **fields: object) -> float:
    """Seconds of attention alone, by what another length of its documents saves."""
    one = Cluster(ACCELERATORS[accelerator], 1, 1)
    whole, none = (_terms(m, replace(LAYOUT, **fields), one)["gemm"] for m in (LONG, LONG.with_documents(1.0)))
    return whole - none


LONG = replace(LLAMA_8B, seq_length=2**17)


def test_kernels_for_hopper_are_faster_there_and_no_others_are():
    assert attention_s(engine="megatron-lm") == pytest.approx(attention_s() * 0.3 / 0.5, rel=1e-3)
    assert attention_s(engine="torchtitan") == attention_s(engine="megatron-lm")
    assert attention_s(engine="torchtitan", attention_kernel="flex") == attention_s()
    assert attention_s("a100-80gb", engine="megatron-lm") == attention_s("a100-80gb")
    assert attention_shares(ACCELERATORS["mi300x-192gb"]) is attention_shares(ACCELERATORS["cpu"]) is None


@pytest.mark.parametrize(("accelerator", "tflops"), [("h200-141gb", 447), ("b200-180gb", 834)])
def test_the_rates_within_published_steps_are_met(accelerator: str, tflops: float):
    # stas00/ml-engineering, insights/when-to-upgrade-gpus/README.md: three passes counted, 3.5 computed.
    device = ACCELERATORS[accelerator]
    _, newest = attention_shares(device)
    assert newest * device.peak_flops_for("bf16") / 1e12 * 3 / 3.5 == pytest.approx(tflops, rel=0.1)


# -- fabrics


@pytest.mark.parametrize(("kind", "share", "waits_s"), [("infiniband", 0.9, 0.0), ("efa", 0.35, 1500e-6)])
def test_all_to_alls_reach_the_share_of_the_adapters_of_their_fabric_and_dispatchers_wait_for_its_proxies(
    kind, share, waits_s
):
    model = replace(gpt(2, 1024, 8), num_experts=16, experts_per_token=2)
    links = Links((LinkDomain("node", 8, 370, 10.2),), Fabric(400, 5, kind=kind))
    cluster = Cluster(ACCELERATORS["h100-80gb"], 8, 2, links)
    layout = replace(CONTEXT, num_nodes=2, data_parallel=16, expert_parallel=16).canonical()
    sent = 2 * 2 * 2048 * 2 * 1024 * 2  # passes, to and fro, tokens, bf16, of two layers
    alltoall = _terms(model, layout, cluster)["dispatch+across_domains"]
    assert alltoall == pytest.approx(sent * 2 * (1 / 2) / (share * 50e9))
    fused = _terms(model, replace(layout, expert_dispatcher="deepep"), cluster)
    of_bytes = sent * 2 * (1 - 1 / 4) * (1 / 2) / (0.9 * 50e9)
    assert fused["dispatch+fused_dispatch+across_domains"] == pytest.approx(of_bytes + 2 * 4 * waits_s)


def test_an_all_to_all_that_was_measured_takes_the_place_of_the_fabrics_share():
    model = replace(gpt(2, 1024, 8), num_experts=16, experts_per_token=2)
    layout = replace(CONTEXT, num_nodes=2, data_parallel=16, expert_parallel=16).canonical()
    domains = (LinkDomain("node", 8, 370, 10.2),)
    assumed, measured = (
        _terms(model, layout, Cluster(ACCELERATORS["h100-80gb"], 8, 2, Links(domains, fabric)))
        for fabric in (Fabric(400, 5, kind="efa"), Fabric(400, 5, kind="efa", all_to_all_gb_per_s=35.0))
    )
    name = "dispatch+across_domains"
    assert measured[name] == pytest.approx(assumed[name] * 0.35 * 50 / 35)
