"""Device memory compared with published measurements, and the sharding rules."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from search_spaces.cost_model.memory import GIB, LayerActivations, StageMemory, stage_memory
from search_spaces.cost_model.stage_table import StageTable, in_flight
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import MODELS, preset
from search_spaces.schema.sections import ModelSection
from search_spaces.schema.validation import validate
from tests.kit import gpt
from tests.search_spaces.cost_model.test_step_time import GPT_1T, GPT_22B, GPT_175B, GPT_530B

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "published"


def memory(model: ModelShape, layout: Layout) -> StageMemory:
    """Memory of every stage."""
    return stage_memory(model, LayoutTable.of([layout]), StageTable.of_layout(model, layout))


FRONTIER_LOGGED = Layout(
    num_nodes=16,
    tensor_parallel=4,
    pipeline_parallel=16,
    data_parallel=2,
    grad_accum_steps=640,
    zero_stage=1,
    activation_checkpointing="full",
    precision="fp16",
    attention_kernel="flash",
    engine="megatron-deepspeed",
).canonical()
"""The log's own command line, launch_gpt175b_tflops_149.slurm of Megatron-DeepSpeed-ORNL."""


class TestPublished:
    @pytest.mark.parametrize(
        ("of", "activations_gib", "stored_gib", "state_gib"),
        [
            (GPT_22B, 59.25, 9.56, None),
            (GPT_175B, 66.84, 12.35, 45.56),
            (GPT_530B, 114.02, 23.08, 31.64),
            (GPT_1T, 131.25, 26.56, 32.96),
        ],
        ids=["22B", "175B", "530B", "1T"],
    )
    def test_activations_and_state_are_those_of_korthikanti(self, of, activations_gib, stored_gib, state_gib):
        # arXiv 2205.05198, figure 1.
        model, layout = of[0], replace(of[1], activation_checkpointing="none")
        found = memory(model, layout.canonical())
        assert found.activations[0, 0] == pytest.approx(activations_gib, abs=0.01)
        if state_gib is not None:
            inner = (found.weights + found.gradients + found.optimizer)[0, 1]
            assert inner == pytest.approx(state_gib, rel=0.002)
        # The figure is of what is stored; the scores of the one layer at work come on top of it.
        layout = replace(layout, sequence_parallel=True, activation_checkpointing="selective").canonical()
        scores = layout.micro_batch_size * model.num_attention_heads / 8 * model.seq_length**2 * 5
        stored = memory(model, layout).activations[0, 0] - scores / GIB
        assert stored == pytest.approx(stored_gib, abs=0.01)

    def test_mt_nlg_has_20_bytes_a_parameter(self):
        # Smith et al., arXiv 2201.11990, section 2.1.
        model = gpt(105, 20480, 128)
        layout = Layout(tensor_parallel=8, pipeline_parallel=35, precision="fp16", engine="megatron-deepspeed")
        found = memory(model, layout)
        state = (found.weights + found.gradients + found.optimizer + found.update).sum() * 8 * GIB
        assert state / model.parameters == pytest.approx(20, rel=1e-3)
        assert state > 10e12

    @pytest.mark.parametrize(("precision", "zero_stage", "ranks"), [("bf16", 0, 1), ("fp32", 1, 4)])
    def test_megatron_core_holds_the_roots_of_its_second_moments_in_an_update(self, precision, zero_stage, ranks):
        model = gpt(24, 2048, 16)
        layout = Layout(data_parallel=4, precision=precision, zero_stage=zero_stage, engine="megatron-core")
        assert memory(model, layout).update[0].sum() * GIB == pytest.approx(4 * model.parameters / ranks, rel=1e-6)

    @pytest.mark.parametrize("engine", ["megatron-deepspeed", "gpt-neox"])
    @pytest.mark.parametrize(("precision", "zero_stage", "held"), [("fp16", 1, 2), ("bf16", 0, 2), ("bf16", 1, 6)])
    def test_a_deepspeed_that_sums_gradients_in_fp32_holds_them_beside_the_16_bit_ones(
        self, engine, precision, zero_stage, held
    ):
        model = gpt(24, 2048, 16)
        layout = Layout(data_parallel=4, precision=precision, zero_stage=zero_stage, engine=engine)
        gradients = memory(model, layout).gradients.sum() * GIB
        assert gradients / model.parameters == pytest.approx(held, rel=1e-3)

    def test_and_its_layer_inputs_take_16_9_tb_at_once_and_8_8_gb_one_by_one(self):
        model = gpt(105, 20480, 128)
        twice = replace(model, num_layers=2 * model.num_layers)
        for size, stored in ((1920, 16.9e12), (1, 8.8e9)):
            layout = Layout(micro_batch_size=size, activation_checkpointing="full", precision="fp16", engine="torch")
            none_at_work = _stored_bytes(twice, layout) - _stored_bytes(model, layout)
            assert none_at_work == pytest.approx(stored, rel=2e-3)

    def test_every_stage_of_a_real_175b_run_is_met_within_a_few_percent(self):
        if not PUBLISHED.is_dir():
            pytest.skip("no measured tables beside the checkout")
        found = memory(gpt(96, 12288, 96, vocab_size=50688, has_dropout=True), FRONTIER_LOGGED)
        # The log was taken after a first step, which fp16 passes over: there was no update yet.
        assert found.in_backward[0] * 1024 == pytest.approx(_logged_mib_by_stage(), rel=0.05)

    def test_the_fullest_stage_of_uneven_experts_is_met_within_3_percent(self):
        # 114 GiB: MooreThreads/SimuMax, docs/b200, b200_release_v1.2_summary.json. Its loss is fused.
        model = replace(DEEPSEEK_V3, num_layers=4, num_dense_layers=1, num_mtp_layers=0, fuses_loss=True)
        ranks = {"pipeline_parallel": 2, "data_parallel": 4, "expert_parallel": 4, "grad_accum_steps": 4}
        found = memory(model, replace(EXPERTS_16_BITS, **ranks).canonical())
        assert found.peak[0] == pytest.approx(114, rel=0.03)
        assert found.total[0].argmax() == 1  # the other stage has the dense layer


DEEPSEEK_V3 = validate(ModelSection, preset(MODELS, "deepseek-v3")).shape()
EXPERTS_16_BITS = Layout(zero_stage=1, precision="bf16", attention_kernel="flash", engine="megatron-lm")


def test_the_fullest_stage_is_looked_at_wherever_it_is():
    """Of 61 stages of a layer each the fourth is the first with experts; the last has the loss."""
    ranks = {"pipeline_parallel": 61, "data_parallel": 8, "expert_parallel": 8, "grad_accum_steps": 64}
    layouts = [
        replace(EXPERTS_16_BITS, **ranks, **more).canonical()
        for more in ({}, {"activation_checkpointing": "full"}, {"first_stage_layers": 1})
    ]
    every = [memory(DEEPSEEK_V3, layout) for layout in layouts]
    assert [found.total[0].argmax() for found in every] == [3, 60, 3]
    assert stage_memory(DEEPSEEK_V3, LayoutTable.of(layouts)).peak == pytest.approx([found.peak[0] for found in every])


@pytest.mark.parametrize(
    ("stages", "experts"), [({"pipeline_parallel": 4}, [0, 2, 1, 2]), ({"virtual_pipeline_stages": 2}, [1, 4])]
)
def test_a_stage_has_the_experts_of_its_layers(stages, experts):
    """Of twelve layers each second one from the fourth on, and the one for further tokens beside the head."""
    model = replace(gpt(12, 64, 4), num_experts=8, experts_per_token=2, num_dense_layers=2, expert_layer_every=2)
    model = replace(model, num_mtp_layers=1)
    layout = Layout(**{"pipeline_parallel": 2, "engine": "megatron-lm"} | stages).canonical()
    found = StageTable.of_layout(model, layout)
    assert found.expert_layers[0].tolist() == experts
    a_layer = model.routed_parameters_per_layer
    assert found.routed[0].tolist() == [a_layer * count for count in [*experts[:-1], experts[-1] + 1]]
    assert found.parameters.sum() == model.parameters


def test_masks_of_dropout_and_the_copies_of_a_loss_that_is_not_fused_are_kept():
    """In 16 bits: a byte for each element of two masks and three for each score; of a logit 2 + 2 bytes, not 10."""
    table = LayoutTable.of([Layout(precision="bf16", engine="megatron-lm")])
    plain, dropped = (LayerActivations.of(model, table) for model in (SMALL, replace(SMALL, has_dropout=True)))
    assert dropped.whole - plain.whole == 2 * 2048 * 1024 + 3 * 16 * 2048**2
    logits = [stage_memory(model, table).logits.max() * GIB for model in (SMALL, replace(SMALL, fuses_loss=True))]
    assert logits == [10 * 2048 * 1024, 4 * 2048 * 1024]


def _stored_bytes(model: ModelShape, layout: Layout) -> float:
    return float(memory(model, layout).activations[0, 0] * GIB)


def _logged_mib_by_stage() -> list[float]:
    lines = (PUBLISHED / "frontier_175b_log_memory_by_rank.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return list({int(row["pp_stage"]): float(row["max_allocated_mb"]) for row in rows}.values())


SMALL = gpt(8, 1024, 16, vocab_size=1024)
DATA4 = Layout(data_parallel=4, grad_accum_steps=8, precision="bf16")


def test_the_softmax_of_attention_sinks_is_in_fp32_beside_its_copy():
    sinks, layout = replace(SMALL, attention_sinks=True), Layout(precision="bf16", attention_kernel="math")
    scores = SMALL.num_attention_heads * SMALL.seq_length**2
    a_layer = (_stored_bytes(sinks, layout) - _stored_bytes(SMALL, layout)) / SMALL.num_layers
    assert a_layer == pytest.approx(4 * scores)


class TestSharing:
    @pytest.mark.parametrize(
        ("zero_stage", "bytes_each"), [(0, 2 + 4 + 12), (1, 2 + 4 + 3), (2, 2 + 1 + 3), (3, 0.5 + 1 + 3)]
    )
    def test_zero_shares_out_optimizer_gradients_and_weights_in_this_order(self, zero_stage, bytes_each):
        found = memory(SMALL, replace(DATA4, zero_stage=zero_stage))
        state = (found.weights + found.gradients + found.optimizer) * GIB
        assert state[0, 0] == pytest.approx(SMALL.parameters * bytes_each)

    @pytest.mark.parametrize(
        ("fields", "bytes_each"),
        [
            ({}, 1),
            ({"pipeline_parallel": 2}, 1 + 4),
            ({"pipeline_parallel": 2, "grad_accum_steps": 1}, 1),
            ({"pipeline_parallel": 2, "zero_stage": 1}, 4),
            ({"engine": "accelerate"}, 1 + 2),
            ({"engine": "accelerate", "precision": "fp32"}, 1 + 4),
            ({"engine": "accelerate", "data_parallel": 1}, 4),
            ({"engine": "accelerate", "zero_stage": 0}, 4 + 4),  # DDP's buckets
            ({"engine": "accelerate-launch", "zero_stage": 0, "precision": "fp32"}, 4 + 4),
            ({"engine": "megatron-lm"}, 1),
        ],
    )
    def test_gradients_that_a_rank_adds_up_whole_are_beside_its_share(self, fields, bytes_each):
        layout = replace(DATA4, **{"zero_stage": 3} | fields)
        found = memory(SMALL, layout.canonical())
        parameters = StageTable.of_layout(SMALL, layout).parameters
        assert found.gradients[0, 0] * GIB == pytest.approx(parameters[0, 0] * bytes_each)

    def test_what_is_offloaded_is_not_on_the_device_and_only_the_stage_of_the_head_has_logits(self):
        found = memory(SMALL, replace(DATA4, zero_stage=2, offload="optimizer"))
        assert (found.optimizer == 0).all()
        assert (found.gradients > 0).all()
        found = memory(replace(SMALL, vocab_size=65536), Layout(pipeline_parallel=4, precision="bf16"))
        assert found.logits[0].tolist() == [0, 0, 0, 2048 * 65536 * 10 / GIB]

    @pytest.mark.parametrize(
        ("schedule", "chunks", "held"),
        [
            ("1f1b", 1, [4, 3, 2, 1]),
            ("gpipe", 1, [16, 16, 16, 16]),
            # Narayanan et al., arXiv 2104.04473, section 2.2.2: 1 + (p - 1) / (p v) of a whole model on the first.
            ("interleaved_1f1b", 2, [4 * (1 + 3 / 8), 4.5, 3.5, 2.5]),
        ],
    )
    def test_a_stage_holds_as_many_micro_batches_as_its_schedule_says(self, schedule, chunks, held):
        layout = Layout(
            pipeline_parallel=4, grad_accum_steps=16, pipeline_schedule=schedule, virtual_pipeline_stages=chunks
        )
        few, every_stage = replace(layout, grad_accum_steps=2), np.arange(4)[None, :]
        assert in_flight(LayoutTable.of([layout]), every_stage)[0] == pytest.approx(held)
        assert in_flight(LayoutTable.of([few]), every_stage)[0].tolist() == [min(2, each) for each in held]

    def test_the_stages_have_the_parameters_of_the_model(self):
        tied = replace(SMALL, tied_embeddings=True)
        whole, halves = Layout(), Layout(pipeline_parallel=2)
        assert StageTable.of_layout(SMALL, halves).parameters.sum() == SMALL.parameters
        assert StageTable.of_layout(tied, whole).parameters.sum() == tied.parameters
        # The second copy of the token table.
        assert StageTable.of_layout(tied, halves).parameters.sum() == SMALL.parameters

    def test_sequence_parallelism_divides_what_tensor_parallelism_leaves_whole(self):
        two = Layout(tensor_parallel=2, precision="bf16")
        plain, split = memory(SMALL, two), memory(SMALL, replace(two, sequence_parallel=True))
        one = memory(SMALL, Layout(precision="bf16"))
        assert split.activations[0, 0] == pytest.approx(one.activations[0, 0] / 2)
        assert split.activations[0, 0] < plain.activations[0, 0] < one.activations[0, 0]

    @pytest.mark.parametrize(("stages", "share"), [(1, 1), (2, 2 / 4)])
    def test_nanotron_keeps_the_inputs_it_gathered_and_in_a_pipeline_a_part_of_them(self, stages, share):
        other = Layout(tensor_parallel=4, pipeline_parallel=stages, sequence_parallel=True, precision="bf16")
        layout = replace(other, pipeline_schedule="1f1b" if stages > 1 else "none")
        table = LayoutTable.of([replace(layout, engine=engine) for engine in ("torch", "nanotron")])
        own, theirs = LayerActivations.of(SMALL, table).kept
        # Two column-parallel layers' inputs: 2048 tokens of 1024 in 16 bits.
        assert theirs - own == pytest.approx(2 * 2048 * 1024 * 2 * share)

    def test_recomputed_layers_and_modules_are_not_kept(self):
        none = replace(DATA4, engine="megatron-core", pipeline_parallel=2, micro_batch_size=2)
        full, selective = (replace(none, activation_checkpointing=word) for word in ("full", "selective"))
        modules = [replace(selective, recompute_modules=word) for word in ("mlp", "core_attn+mlp")]
        table = LayoutTable.of([none, full, replace(full, recompute_layers=1), selective, *modules])
        layer = LayerActivations.of(SMALL, table)
        whole, inputs, one_of_four, without_scores, without_mlp, without_both = layer.kept
        # Of an MLP its two products' 4096 wide inside, of 4096 tokens in 16 bits; its input is kept.
        assert whole - without_mlp == pytest.approx(2 * 4096 * 4096 * 2)
        assert without_scores - without_both == pytest.approx(whole - without_mlp)
        assert one_of_four == pytest.approx((3 * whole + inputs) / 4)
        scores, mlp = whole - without_scores, whole - without_mlp
        assert layer.working == pytest.approx([0, whole, 0, scores, mlp, max(scores, mlp)])

    def test_modules_of_experts_and_of_latent_attention_are_not_kept(self):
        """4096 tokens in 16 bits, of which half the layers send two to experts of 512."""
        widths = {"expert_ffn_hidden_size": 512, "shared_expert_ffn_hidden_size": 256}
        experts = replace(SMALL, num_experts=8, experts_per_token=2, expert_layer_every=2, **widths)
        heads = {"attention_head_size": 96, "rotary_head_size": 32, "value_head_size": 64}
        latent = replace(SMALL, key_value_latent_size=128, **heads)
        # Tokens are weighted inside the experts, so that no outputs are kept.
        dispatched = 2 * 1024 + 2 * 8
        assert _saved(experts, "moe_act") == pytest.approx(0.5 * 2 * 512)
        assert _saved(experts, "shared_experts") == pytest.approx(0.5 * 2 * 256)
        assert _saved(experts, "mlp") == pytest.approx(0.5 * 2 * 4096)
        assert _saved(experts, "moe") == pytest.approx(0.5 * (2 * (2 * 512 + 256) + dispatched))
        assert _saved(experts, "moe+moe_act+shared_experts") == pytest.approx(_saved(experts, "moe"))
        assert _saved(experts, "layernorm") == pytest.approx(0.5 * 1024)
        assert _saved(experts, "layernorm+moe_act") == pytest.approx(0.5 * (1024 + 2 * 512))
        assert _saved(latent, "layernorm") == pytest.approx(1024)
        assert _saved(latent, "mla_up_proj") == pytest.approx(3 * 16 * 96)

    def test_a_stage_has_the_layers_that_a_layout_gives_it(self):
        stages = Layout(pipeline_parallel=4, engine="megatron-core", pipeline_schedule="1f1b")
        for given, layers in (
            ({"first_stage_layers": 2, "last_stage_layers": 4}, [2, 1, 1, 4]),
            ({"pipeline_split": "even"}, [2, 2, 2, 2]),
        ):
            layout = replace(stages, **given)
            assert StageTable.of_layout(SMALL, layout).layers[0].tolist() == layers
        counted = replace(stages, pipeline_split="embedding+loss")
        assert StageTable.of_layout(replace(SMALL, num_layers=10), counted).layers[0].tolist() == [2, 3, 3, 2]
        v = replace(
            counted, pipeline_parallel=2, virtual_pipeline_stages=2, pipeline_schedule="zbv", engine="torchtitan"
        )
        assert StageTable.of_layout(replace(SMALL, num_layers=10), v).layers[0].tolist() == [4, 6]

    def test_an_offloaded_optimizer_is_on_the_host(self):
        none = replace(DATA4, zero_stage=1, engine="megatron-lm")
        whole, some = memory(SMALL, none), memory(SMALL, replace(none, offload="optimizer"))
        assert whole.on_host[0, 0] == 0
        assert some.on_host[0, 0] == pytest.approx(whole.optimizer[0, 0])

    def test_the_ends_of_many_layouts_are_those_of_each(self):
        layouts = [
            replace(DATA4, pipeline_parallel=p, zero_stage=z, data_parallel=d, activation_checkpointing=c).canonical()
            for p in (1, 2, 3, 8)
            for d, z in ((1, 0), (4, 1), (4, 3))
            for c in ("none", "selective", "full")
        ]
        peaks = stage_memory(SMALL, LayoutTable.of(layouts)).peak
        assert peaks == pytest.approx(np.array([memory(SMALL, layout).peak[0] for layout in layouts]))


def test_the_rank_of_the_most_loaded_expert_holds_more_activations():
    experts = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 48}
    model = replace(gpt(4, 64, 4), **experts, num_dense_layers=1)
    layout = Layout(data_parallel=8, expert_parallel=4, precision="bf16", engine="megatron-core").canonical()

    def kept(expert_parallel: int, skew: float) -> float:
        table = LayoutTable.of([replace(layout, expert_parallel=expert_parallel)])
        return float(LayerActivations.of(model, table, skew).whole[0])

    # Of 2 x 2048 tokens a rank, in bf16: experts' inputs, and two tensors inside, in three of four layers.
    balanced = 2 * 2048 * (64 + 2 * 48) * 2 * 3 / 4
    # The first expert has three times the mean, the other seven 5 / 7 of it; the fullest rank holds two.
    assert kept(4, 3.0) - kept(4, 1.0) == pytest.approx(balanced * ((3 + 5 / 7) / 2 - 1))
    assert kept(1, 3.0) == pytest.approx(kept(1, 1.0))


@pytest.mark.parametrize("experts", [{}, {"num_experts": 8, "experts_per_token": 2, "num_dense_layers": 1}])
def test_an_mtp_layer_has_the_activations_of_the_last_layer_and_logits_of_its_own(experts):
    model = replace(SMALL, **experts)
    layout = Layout(pipeline_parallel=2, pipeline_schedule="1f1b", grad_accum_steps=4, precision="bf16")
    plain, with_mtp = memory(model, layout), memory(replace(model, num_mtp_layers=2), layout)
    last = model.with_experts_in_layers(model.has_experts(model.num_layers - 1))
    kept_gib = LayerActivations.of(last, LayoutTable.of([layout])).kept[0] / GIB
    assert (with_mtp.activations - plain.activations)[0].tolist() == pytest.approx([0, 2 * kept_gib])
    assert with_mtp.logits[0].tolist() == pytest.approx((3 * plain.logits[0]).tolist())


def _saved(model, modules):
    """Elements of a token that a layer does not keep where these modules are recomputed, a mean over the layers."""
    none = Layout(engine="megatron-core", precision="bf16")
    selective = replace(none, activation_checkpointing="selective", recompute_modules=modules)
    whole, kept = LayerActivations.of(model, LayoutTable.of([none, selective])).kept
    return (whole - kept) / (2 * model.seq_length)


QUANTIZED = gpt(4, 1024, 8)


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        ({}, 2),
        ({"matmul_precision": "fp8_rowwise"}, 2),
        ({"matmul_precision": "fp8_tensorwise"}, 2 + 2),
        ({"matmul_precision": "fp8_tensorwise", "quantized_weights": True}, 2),
        ({"matmul_precision": "nvfp4", "quantized_weights": True}, 2 * (1 / 2 + 1 / 16)),
    ],
)
def test_weights_in_8_and_4_bits_are_kept_as_they_are_and_transposed(changes, weights):
    """Bytes for each parameter of a layer, of a model of four layers without the rest."""
    layout = Layout(precision="bf16", engine="megatron-lm", zero_stage=1, data_parallel=2, **changes)
    plain = replace(layout, matmul_precision="same", quantized_weights=False)
    found = [stage_memory(QUANTIZED, LayoutTable.of([each])).weights.max() * GIB for each in (layout, plain)]
    a_layer = QUANTIZED.layer_parameters * QUANTIZED.num_layers
    assert found[0] - found[1] == pytest.approx((weights - 2) * a_layer)


@pytest.mark.parametrize(
    ("changes", "gradients", "optimizer"),
    [
        ({}, 4, 12),
        ({"gradients_in_bf16": True}, 2, 12),
        ({"moment_dtype": "bf16"}, 4, 8),
        ({"moment_dtype": "fp8"}, 4, 6),
    ],
)
def test_gradients_and_moments_of_other_types_take_their_bytes(changes, gradients, optimizer):
    layout = Layout(precision="bf16", engine="megatron-lm", **changes)
    found = stage_memory(QUANTIZED, LayoutTable.of([layout]))
    assert found.gradients.max() * GIB == gradients * QUANTIZED.parameters
    assert found.optimizer.max() * GIB == optimizer * QUANTIZED.parameters


def test_inputs_of_8_bit_products_are_kept_in_8_bits():
    """Those after the two norms and the MLP's last one, and a copy of attention's output."""
    plain, in_8_bits = (
        LayerActivations.of(
            QUANTIZED, LayoutTable.of([Layout(precision="bf16", engine="megatron-lm", matmul_precision=word)])
        ).kept[0]
        for word in ("same", "fp8_delayed")
    )
    hidden, width = QUANTIZED.hidden_size, QUANTIZED.ffn_hidden_size
    assert plain - in_8_bits == QUANTIZED.seq_length * (2 * hidden + width - hidden)
