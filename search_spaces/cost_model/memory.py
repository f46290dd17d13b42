"""Device memory of a rank by pipeline stage and purpose. Pure; numpy. docs/cost_model.md derives it.

Weights, gradients and optimizer states are bytes per parameter, sharded by ZeRO (Rajbhandari et al., arXiv 1910.02054).
Activations follow Korthikanti et al. (arXiv 2205.05198, section 4), written out term by term, so that they hold for 16
and 32 bits, with and without dropout, for plain and gated MLPs and grouped-query attention. The number of micro-batches
in flight on a stage follows from its schedule (Narayanan et al., arXiv 2104.04473, section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from search_spaces.adapters import BYTES_OF_4_BITS, adapted_modules
from search_spaces.cost_model.recomputation import RecomputedShares
from search_spaces.cost_model.stage_table import StageTable, in_flight, layers_alike
from search_spaces.engines import BYTES_OF_MOMENT, ENGINE_PROFILES, ENGINES, EngineProfile, GradientSums
from search_spaces.layouts.layout import CHOICES
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.routing import load_of_fullest_rank

GIB = 2**30


@dataclass(frozen=True)
class StageMemory:
    """GiB of a rank by purpose, each of shape (layouts, selected stages): `on_host` in host memory, the others on the
    device."""

    weights: np.ndarray
    gradients: np.ndarray
    optimizer: np.ndarray
    update: np.ndarray
    activations: np.ndarray
    logits: np.ndarray
    buffers: np.ndarray
    on_host: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """GiB at the peak: of the backward pass, or of the optimizer step."""
        return np.maximum(self.in_backward, self._always + self.update)

    @property
    def in_backward(self) -> np.ndarray:
        """GiB at the peak of the backward pass."""
        return self._always + self.activations + self.logits

    @property
    def _always(self) -> np.ndarray:
        return self.weights + self.gradients + self.optimizer + self.buffers

    @property
    def peak(self) -> np.ndarray:
        """GiB on the fullest of the selected stages, for each layout."""
        return self.total.max(axis=1)


def stage_memory(
    model: ModelShape, layouts: LayoutTable, stages: StageTable | None = None, expert_skew: float = 1.0
) -> StageMemory:
    """Peak memory of each layout's ranks, without that of the driver and the communication libraries.

    `stages` selects stages: by default those of `StageTable.ends`. `expert_skew` is that of `Routing`.
    """
    stages = StageTable.ends(model, layouts) if stages is None else stages
    kept, working, copies, gathered = (np.zeros(stages.layers.shape) for _ in range(4))
    # An MTP layer is one like the last, with logits of its own.
    of_mtp, mtp_has_experts = stages.has_head * model.num_mtp_layers, model.has_experts(model.num_layers - 1)
    for alike, layers in layers_alike(model, stages.layers, stages.expert_layers):
        layer = LayerActivations.of(alike, layouts, expert_skew)
        layers = layers + of_mtp * (mtp_has_experts == (alike.num_experts is not None))
        kept = kept + layers * _column(layer.kept)
        working = np.maximum(working, (layers > 0) * _column(layer.working))
        copies = copies + layers * _column(_quantized_copies(alike, layouts))
        gathered = np.maximum(gathered, (layers > 0) * _column(_gathered_bytes(alike, layouts)))
    state = _state(layouts, stages)
    weights = state["weights"] + copies / GIB - stages.layers * _column(_bytes_saved_by_4_bits(model, layouts)) / GIB
    return StageMemory(
        **state | {"weights": weights},
        activations=(in_flight(layouts, stages.index) * kept + working) / GIB,
        logits=(stages.has_head + of_mtp) * _column(_logit_bytes(model, layouts)) / GIB,
        buffers=(gathered + _column(_message_bytes(model, layouts))) / GIB,
    )


def _state(layouts: LayoutTable, stages: StageTable) -> dict[str, np.ndarray]:
    """GiB of weights, gradients and optimizer of a rank on the device, and `on_host`, where the optimizer is with
    offload."""
    every = stages.of_rank(layouts), stages.routed_of_rank(layouts)
    trained = stages.trained_of_rank(layouts)
    is_here = ~layouts.equals("offload", "optimizer")
    moment = np.array([BYTES_OF_MOMENT[word] for word in CHOICES["moment_dtype"]])[layouts["moment_dtype"]]
    optimizer = _by_engine(layouts, "optimizer") - 2 * (BYTES_OF_MOMENT["fp32"] - moment)
    gradients = _by_engine(layouts, "gradients") + _gradient_copies(layouts) - 2 * (layouts["gradients_in_bf16"] > 0)
    unsharded = sums_whole_gradients(layouts) * reduced_gradient_bytes(layouts)

    def held(
        parts: Sequence[np.ndarray],
        per_parameter: np.ndarray,
        sharded_from: int,
        beside: np.ndarray | float = 0.0,
    ) -> np.ndarray:
        is_sharded = layouts["zero_stage"] >= sharded_from
        of_each = (
            parameters * _column(per_parameter / np.where(is_sharded, shards, 1) + beside)
            for parameters, shards in zip(parts, (layouts.shards, layouts.expert_shards), strict=True)
        )
        return sum(of_each) / GIB

    frozen = tuple(of_all - of_trained for of_all, of_trained in zip(every, trained, strict=True))
    copy = engine_column(layouts, lambda engine: engine.frozen_copy_bytes) * ~layouts.equals("precision", "fp32")
    return {
        "weights": held(every, _by_engine(layouts, "weights"), 3) + held(frozen, copy, 2),
        "gradients": held(trained, gradients, 2, unsharded),
        "optimizer": held(trained, optimizer * is_here, 1),
        "update": held(trained, _by_engine(layouts, "update") * is_here, 1),
        "on_host": held(trained, optimizer * ~is_here, 1),
    }


def _bytes_saved_by_4_bits(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Bytes of a layer on each rank that its frozen linear modules take less in 4 bits."""
    shards = np.where(layouts["zero_stage"] == 3, layouts.shards, 1)
    saved = _by_engine(layouts, "weights") - BYTES_OF_4_BITS
    return model.linear_parameters_in_4_bits * saved / layouts["tensor_parallel"] / shards


def _quantized_copies(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Bytes of a layer's weights in 8 or 4 bits, as they are and transposed, which Transformer Engine keeps for all
    micro-batches of a step (transformer_engine/pytorch/module/base.py, get_weight_workspace); less those in 16 bits
    where they replace these. With ZeRO 3 only gathered layers have any."""
    copies = 2 * layouts.of_recipe(lambda recipe: recipe.kept_bytes)
    replaced = np.where(layouts["quantized_weights"] > 0, element_bytes(layouts), 0)
    is_quantized = ~layouts.equals("matmul_precision", "same")
    return (layouts["zero_stage"] < 3) * is_quantized * _layer_weights(model, layouts) * (copies - replaced)


def _layer_weights(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Parameters of a rank's part of a layer, where all layers are alike."""
    routed = model.routed_parameters_per_layer
    return (model.layer_parameters - routed) / layouts["tensor_parallel"] + routed / layouts.ranks_of_expert_layer


@dataclass(frozen=True)
class LayerActivations:
    """Bytes of one layer and micro-batch on each rank, means over the layers: `whole`, all that its backward pass
    needs; `kept`, the part stored until then; `rewritten`, those of recomputed modules but the core attention;
    `working`, needed in addition while a layer is computed."""

    whole: np.ndarray
    rewritten: np.ndarray
    kept: np.ndarray
    working: np.ndarray

    @classmethod
    def of(cls, model: ModelShape, layouts: LayoutTable, expert_skew: float = 1.0) -> LayerActivations:
        parts, shares = _LayerParts.of(model, layouts, expert_skew), RecomputedShares.of(model, layouts)
        tokens, width, tensor = tokens_of_rank(model, layouts), element_bytes(layouts), layouts["tensor_parallel"]
        split = _sequence_split(layouts)
        whole, inputs = parts.whole, tokens * model.hidden_size * width / split
        # The layer's input, and the outputs of attention, of its first product, of the MLP's first and of its last.
        products = (
            2 * model.hidden_size / split
            + (2 * model.query_size + 2 * model.key_value_size + model.active_mlp_width) / tensor
        )
        again = parts.of_modules(model, layouts, shares)
        norms = inputs * _recomputed_norms(model) * shares.modules["layernorm"]
        saved = sum(again.values()) + norms
        kept_with_ops = whole - parts.scores - tokens * width * products
        # Recomputed layers are a chunk's first: at work when the backward pass has freed the others. A norm's output is
        # needed until the backward pass has left the module after it.
        is_whole = (shares.layers == 1) | (shares.ops == 1)
        return cls(
            whole=whole,
            rewritten=saved - again["core_attn"],
            kept=whole - (whole - inputs) * shares.layers - saved - kept_with_ops * shares.ops,
            working=np.where(is_whole, whole, reduce(np.maximum, again.values()) + norms),
        )


@dataclass(frozen=True)
class _LayerParts:
    """Bytes of one layer and micro-batch on each rank that its backward pass needs, by part, means over the layers.
    `first` is the share of an MLP's inside that its first product returns."""

    around: np.ndarray
    attention: np.ndarray
    scores: np.ndarray
    dense: np.ndarray
    routed: np.ndarray
    shared: np.ndarray
    dispatched: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, model: ModelShape, layouts: LayoutTable, expert_skew: float) -> _LayerParts:
        tokens, tensor, width = tokens_of_rank(model, layouts), layouts["tensor_parallel"], element_bytes(layouts)
        copied, less = _quantized_inputs(layouts)
        if model.trainable is not None:  # a frozen weight keeps no input, an adapter keeps it in 16 bits
            copied, less = np.zeros_like(copied), np.zeros_like(less)
        per_width = (_mlp_tensors(model, layouts) - ("mlp_product" not in model.trained.inputs)) * width - less
        dense, routed, shared = (tokens * size * per_width / tensor for size in model.mlp_widths)
        return cls(
            around=_bytes_around(model, layouts, less),
            attention=_attention_bytes(model, layouts)
            + tokens * model.attention_output_size * copied / tensor
            + tokens * _adapter_widths(model) * width / tensor,
            scores=_score_bytes(model, layouts, width),
            dense=dense,
            routed=routed,
            shared=shared,
            dispatched=tokens * _dispatched_bytes(model, layouts, expert_skew, less) / tensor,
            first=(2 if model.gated_mlp else 1) * width / per_width,
        )

    @property
    def experts(self) -> np.ndarray:
        return self.routed + self.shared + self.dispatched

    @property
    def whole(self) -> np.ndarray:
        return self.around + self.attention + self.dense + self.experts + self.scores

    def of_modules(self, model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> dict[str, np.ndarray]:
        """Bytes that are recomputed of each module but the norms."""
        beside_moe = 1 - shares.modules["moe"]
        outputs = (model.attention_output_size + model.latent_size) * element_bytes(layouts)
        sizes = {
            "mla_up_proj": self.attention - tokens_of_rank(model, layouts) * outputs / layouts["tensor_parallel"],
            "core_attn": self.scores,
            "mlp": self.dense,
            "moe": self.experts,
            "moe_act": self.routed * (1 - self.first) * beside_moe,
            "shared_experts": self.shared * beside_moe,
        }
        return {module: size * shares.modules[module] for module, size in sizes.items()}


def _sequence_split(layouts: LayoutTable) -> np.ndarray:
    """Ranks over which a sequence is split outside attention and MLP."""
    return np.where(layouts["sequence_parallel"] > 0, layouts["tensor_parallel"], 1)


def _bytes_around(model: ModelShape, layouts: LayoutTable, less: np.ndarray) -> np.ndarray:
    """Inputs of the norms and of the layers after them, `less` bytes an element less for the latter, which gradients of
    weights alone need; a byte each for the masks of the two dropouts. nanotron keeps what its column-parallel layers
    gathered, too: measured peaks of its pipelines include only a part of it."""
    tensor, split, width = layouts["tensor_parallel"], _sequence_split(layouts), element_bytes(layouts)
    unneeded = len({"attention_input", "mlp_input"} - model.trained.inputs) * width
    gathers = engine_column(layouts, lambda engine: engine.keeps_gathered_inputs)
    left = np.where(layouts["pipeline_parallel"] > 1, 2 / tensor, 1)
    gathered = np.where((split > 1) & gathers, 2 * width * left, 0)
    kept = (6 if model.post_norms else 4) * width - unneeded
    of_element = (kept + 2 * model.has_dropout - 2 * less) / split + gathered
    return tokens_of_rank(model, layouts) * model.hidden_size * of_element


def _attention_bytes(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Queries, keys, values, the output and latent vectors; queries and keys from before they were rotated and
    normalised, where those are kept."""
    heads = model.query_size + model.key_value_size
    rotates = engine_column(layouts, lambda engine: engine.keeps_unrotated)
    before = heads * rotates * (model.position_embedding == "rotary") + heads * model.qk_norm
    inputs = model.query_size + 2 * model.key_value_size + model.attention_output_size + model.latent_size
    return tokens_of_rank(model, layouts) * (inputs + before) * element_bytes(layouts) / layouts["tensor_parallel"]


def _adapter_widths(model: ModelShape) -> int:
    """Elements of a token between the two matrices of a layer's adapters."""
    return 0 if model.adapters is None else model.adapters.rank * len(adapted_modules(model))


def _quantized_inputs(layouts: LayoutTable) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of an element that linear layers in 8 or 4 bits keep, and that they keep less.

    Inputs after a norm and the MLP's last one are kept in these bits only, attention's output in 16 bits, too.
    """
    kept = layouts.of_recipe(lambda recipe: recipe.kept_bytes)
    return kept, np.where(kept > 0, element_bytes(layouts) - kept, 0)


def _mlp_tensors(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Tensors of an MLP's width that its backward pass needs: without a gate the first product's output and the
    activation's; with one the outputs of both first products, of the activation unless one kernel multiplies them, and
    of the product with the gate."""
    if not model.gated_mlp:
        return np.full(len(layouts), 2)
    return 4 - engine_column(layouts, lambda engine: engine.fuses_gate)


def _recomputed_norms(model: ModelShape) -> float:
    """Norms of a layer that are modules of their own, a mean over the layers: those before latent attention and before
    experts. Others are one kernel with the product after them (megatron/core/models/gpt/gpt_layer_specs.py)."""
    before_attention = model.key_value_latent_size is not None
    return before_attention + model.num_expert_layers / model.num_layers


def _dispatched_bytes(model: ModelShape, layouts: LayoutTable, expert_skew: float, less: np.ndarray) -> np.ndarray:
    """Bytes of a token at its experts, a mean over the layers, `less` an element that experts multiply: their inputs,
    sorted by expert, their outputs where these are weighted, and the router's fp32 weights. With a skew, the fullest
    rank has more tokens at its experts than of its own, and more of the experts' inside."""
    if model.num_experts is None or model.experts_per_token is None:
        return np.zeros(len(layouts))
    width, load = (
        element_bytes(layouts),
        load_of_fullest_rank(expert_skew, model.num_experts, layouts["expert_parallel"]),
    )
    copies = (2 - engine_column(layouts, lambda engine: engine.weighs_inside_experts)) * width - less
    inside = (_mlp_tensors(model, layouts) * width - less) * model.expert_width
    of_token = load * model.hidden_size * copies + (load - 1) * inside
    of_layer = model.experts_per_token * of_token + 2 * model.num_experts * width
    return of_layer * model.num_expert_layers / model.num_layers


def _score_bytes(model: ModelShape, layouts: LayoutTable, width: np.ndarray) -> np.ndarray:
    """Bytes of softmax's output, and with dropout its mask and output; a fused kernel keeps one fp32 per row and
    head."""
    heads = tokens_of_rank(model, layouts) * model.num_attention_heads / layouts["tensor_parallel"]
    # With sinks the softmax is in fp32 beside its copy in 16 bits.
    softmax = width + 4 * (width < 4) * model.attention_sinks
    plain = heads * model.attention_length * (softmax + model.has_dropout * (width + 1))
    return np.where(layouts.equals("attention_kernel", "math"), plain, 4 * heads)


def _logit_bytes(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Bytes of the head's output, its fp32 copy, and that copy's gradient; of a fused loss of the output and its
    gradient."""
    logits = tokens_of_rank(model, layouts) * model.vocab_size / layouts["tensor_parallel"]
    width = element_bytes(layouts)
    return logits * (2 * width if model.fuses_loss else width + 8)


def _message_bytes(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Bytes of the stages' send and receive buffers."""
    sent = tokens_of_rank(model, layouts) * model.hidden_size * element_bytes(layouts)
    return np.where(layouts["pipeline_parallel"] > 1, 2 * sent, 0)


def _gathered_bytes(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Bytes of the two layers that ZeRO 3 has gathered at a time."""
    return np.where(layouts["zero_stage"] == 3, 2 * _layer_weights(model, layouts) * element_bytes(layouts), 0)


def tokens_of_rank(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Tokens of a micro-batch on each context-parallel rank."""
    return layouts["micro_batch_size"] * model.seq_length / layouts["context_parallel"]


def element_bytes(layouts: LayoutTable) -> np.ndarray:
    """Bytes of an activation or a weight in each layout's precision."""
    return np.where(layouts.equals("precision", "fp32"), 4, 2)


def gathered_weight_bytes(layouts: LayoutTable) -> np.ndarray:
    """Bytes of a weight that ranks gather: one as it is multiplied where weights are kept so."""
    is_quantized = layouts["quantized_weights"] > 0
    return np.where(is_quantized, layouts.of_recipe(lambda recipe: recipe.kept_bytes), element_bytes(layouts))


def _by_engine(layouts: LayoutTable, name: str) -> np.ndarray:
    """Bytes per parameter in each layout's precision, by its engine's profile."""
    half = engine_column(layouts, lambda engine: getattr(engine.half, name))
    full = engine_column(layouts, lambda engine: getattr(engine.full, name))
    return np.where(layouts.equals("precision", "fp32"), full, half)


def _gradient_copies(layouts: LayoutTable) -> np.ndarray:
    """Bytes per parameter beside the gradients: fp32 sums of 16-bit ones, or the buckets of DDP."""
    sums = engine_column(layouts, lambda engine: engine.sums_bf16_in_fp32).astype(bool)
    in_fp32 = sums & layouts.equals("precision", "bf16") & (layouts["zero_stage"] > 0)
    return 4 * in_fp32 + 4 * (is_ddp(layouts) & (layouts["data_parallel"] > 1))


def reduced_gradient_bytes(layouts: LayoutTable) -> np.ndarray:
    """Bytes of a gradient in a reduction."""
    half = engine_column(layouts, lambda engine: engine.reduced_gradient_bytes)
    half = np.where(layouts["gradients_in_bf16"] > 0, 2, half)
    return np.where(layouts.equals("precision", "fp32") | is_ddp(layouts), 4, half)


def is_ddp(layouts: LayoutTable) -> np.ndarray:
    """True where torch's DistributedDataParallel reduces the gradients."""
    return engine_column(layouts, lambda engine: engine.is_ddp_without_zero) & (layouts["zero_stage"] == 0)


def sums_whole_gradients(layouts: LayoutTable) -> np.ndarray:
    """True where ranks that shard gradients (ZeRO 2, 3) add up those of a step unsharded and reduce them once."""
    always = engine_column(layouts, lambda engine: engine.gradient_sums is GradientSums.WHOLE)
    in_pipelines = engine_column(layouts, lambda engine: engine.gradient_sums is GradientSums.WHOLE_IN_PIPELINES)
    several = (layouts["grad_accum_steps"] > 1) & (layouts["zero_stage"] >= 2) & (layouts["data_parallel"] > 1)
    return several & (always | (in_pipelines & (layouts["pipeline_parallel"] > 1)))


def engine_column(layouts: LayoutTable, value_of: Callable[[EngineProfile], float]) -> np.ndarray:
    """A value for each layout from its engine's profile."""
    return np.array([value_of(ENGINE_PROFILES[name]) for name in ENGINES])[layouts["engine"]]


def _column(values: np.ndarray) -> np.ndarray:
    """The values in shape (layouts, 1), to broadcast over the stages."""
    return np.asarray(values)[:, None]
