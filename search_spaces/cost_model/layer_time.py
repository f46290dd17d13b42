"""Seconds of a micro-batch in one layer, and in the head: GEMMs, attention, memory traffic, and kernels that the host
launches. Pure; numpy. docs/cost_model.md has the constants with their sources."""

from __future__ import annotations

import numpy as np

from search_spaces.adapters import BYTES_OF_4_BITS, adapted_modules, module_sizes
from search_spaces.cost_model.constants import Key
from search_spaces.cost_model.exchange_time import sorted_bytes
from search_spaces.cost_model.machine_speed import MachineSpeed
from search_spaces.cost_model.memory import LayerActivations, element_bytes, engine_column, tokens_of_rank
from search_spaces.cost_model.recomputation import RecomputedShares
from search_spaces.hardware.arithmetic import speedup_over_fp16
from search_spaces.hardware.cluster import BLACKWELL, HOPPER, Accelerator, chip_of
from search_spaces.layouts.layout import CHOICES
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape


def layer_compute(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, shares: RecomputedShares
) -> dict[Key, np.ndarray]:
    """Forward and backward of a micro-batch through one layer, a mean over the layers where some are recomputed."""
    per_flop = 1 / machine.flops(layouts) / layouts["tensor_parallel"]
    flops = _gemm_flops(model, machine, layouts, shares)
    narrow = _narrow_slowdown(model, machine, layouts)
    scores = 2 * tokens_of_rank(model, layouts) * model.scored_size * _positions_scored(model, layouts, shares)
    attention = scores * _attention_slowdown(machine, layouts, narrow)
    found = {("compute", constants): seconds * narrow * per_flop for constants, seconds in flops.items()}
    found["compute", ("gemm",)] += attention * per_flop
    accessed = _bytes_accessed(model, layouts, shares) + _adapter_bytes(model, layouts, shares)
    traffic = accessed / machine.memory_bytes_per_s
    return found | {("compute", ("memory_traffic",)): traffic}


def head_compute(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> dict[Key, np.ndarray]:
    """Forward and backward of the head and the loss, which are never recomputed."""
    logits = tokens_of_rank(model, layouts) * model.vocab_size / layouts["tensor_parallel"]
    accessed = logits * (element_bytes(layouts) + 4) * ACCESSES_PER_BYTE
    return {
        ("compute", ("gemm",)): (2 + model.trains_head) * 2 * logits * model.hidden_size / machine.flops(layouts),
        ("compute", ("memory_traffic",)): accessed / machine.memory_bytes_per_s,
    }


# -- GEMMs


def _gemm_flops(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, shares: RecomputedShares
) -> dict[tuple[str, ...], np.ndarray]:
    """FLOPs of a layer's GEMMs on all tensor-parallel ranks by their constants, as those in 16 bits of one matrix that
    take as long."""
    tokens, routed = tokens_of_rank(model, layouts), _routed_share(model)
    # Frozen weights have no gradient, the third product of each.
    trained = 1 if model.trainable is None else model.trained.layer / model.active_layer_parameters
    passes = 2 + trained + shares.layers
    linear = 2 * tokens * (model.active_layer_parameters * passes + shares.parameters(model))
    in_16_bits = layouts.of_recipe(lambda recipe: recipe.products_in_16_bits) * trained / passes
    speedup = layouts.of_recipe(lambda recipe: speedup_over_fp16(machine.accelerator, recipe.arithmetic))
    low = ~layouts.equals("matmul_precision", "same") * (1 - in_16_bits)
    low_of_experts = low * layouts.of_recipe(lambda recipe: recipe.has_experts)
    dense, experts = linear * (1 - routed), linear * routed * GROUPED_GEMM_SLOWDOWN
    return {
        ("gemm",): dense * (1 - low),
        ("gemm", "experts"): experts * (1 - low_of_experts),
        ("gemm", "low_precision"): dense * low / np.maximum(speedup, 1),
        ("gemm", "experts", "low_precision"): experts * low_of_experts / np.maximum(speedup, 1),
    }


def _routed_share(model: ModelShape) -> float:
    """Share of routed experts in the GEMMs of a token, a mean over the layers."""
    routed = (model.experts_per_token or 0) * model.parameters_per_expert * model.num_expert_layers / model.num_layers
    return routed / model.active_layer_parameters


def _narrow_slowdown(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """Slowdown of GEMMs by the model's width and by the trainer. No width is slow where the model's own were measured,
    nor on a CPU: products as narrow as 128 reach the rate of large ones there (`parlay calibrate` shows it)."""
    measured = [CHOICES["precision"].index(precision) for precision in machine.measured_precisions]
    is_slow = machine.is_gpu & ~np.isin(layouts["precision"], measured)
    loss = 1 + is_slow * HALF_RATE_HIDDEN / model.hidden_size
    return loss * engine_column(layouts, lambda engine: engine.gemm_slowdown)


HALF_RATE_HIDDEN = 400
"""Hidden size at which GEMMs reach half the rate of large ones, fitted to Megatron-LM's models from 1.7B to 1T
(Narayanan et al., arXiv 2104.04473, table 1)."""
GROUPED_GEMM_SLOWDOWN = 1.6
"""Time of experts' grouped GEMMs over that of as many FLOPs in others: 0.30 and 0.485 of the peak in training shapes on
B200 (MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json, medians of 108 and 514)."""


# -- attention


def _positions_scored(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> np.ndarray:
    """Positions for which a token's two products of attention are computed in a step, a mean over the layers.

    The plain products are those of all positions of the sequence, or document. A fused kernel skips what a causal mask
    or a window hides, and recomputes the first product in its backward pass (Dao, arXiv 2307.08691).
    """
    passes = 3 + shares.layers
    plain = (passes + shares.modules["core_attn"]) * model.attention_length
    fused = (passes + 0.5) * model.causal_positions / model.num_layers
    return np.where(layouts.equals("attention_kernel", "math"), plain, fused)


def _attention_slowdown(machine: MachineSpeed, layouts: LayoutTable, of_gemm: np.ndarray) -> np.ndarray:
    """Slowdown of attention's FLOPs relative to large GEMMs; that of other GEMMs where no fused kernel is known."""
    shares = attention_shares(machine.accelerator)
    if shares is None:
        return of_gemm
    peak = machine.accelerator.peak_flops_for("fp16") or 0.0
    is_newest = engine_column(layouts, lambda engine: engine.has_newest_attention).astype(bool)
    share = np.where(is_newest & layouts.equals("attention_kernel", "flash"), *reversed(shares))
    fused = machine.flops(layouts) / (share * peak)
    return np.where(layouts.equals("attention_kernel", "math"), of_gemm, fused)


def attention_shares(accelerator: Accelerator) -> tuple[float, float] | None:
    """Shares of the 16-bit peak that FlashAttention 2 and the newest kernels reach; None where they are unknown."""
    return _ATTENTION_SHARES.get(chip_of(accelerator.name))


_ATTENTION_SHARES = {
    "a100": (0.5, 0.5),
    **dict.fromkeys(HOPPER, (0.3, 0.5)),
    **dict.fromkeys(BLACKWELL, (0.4, 0.4)),
}
"""Both passes under a causal mask at 2048 to 8192 positions. A100: 0.5 forward and 0.4 backward of cuDNN (SimuMax,
configs/system/a100_pcie.json), 0.55 of FlashAttention 2 (Dao, arXiv 2307.08691, figure 4). Hopper: Shah et al., arXiv
2407.08608, figures 5 and 6, FlashAttention 2 and 3. Blackwell: 0.36 of cuDNN on B200 (SimuMax, b200_bf16_ceperm.json),
0.43 of FlashAttention 4 in a step of Llama 3.1 8B (stas00/ml-engineering, insights/when-to-upgrade-gpus/README.md)."""


# -- memory traffic


def _bytes_accessed(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> np.ndarray:
    """Bytes that a rank reads and writes in one layer: activations, scales of low precision, tokens sorted by
    expert."""
    activations = LayerActivations.of(model, layouts)
    accessed = activations.whole * (ACCESSES_PER_BYTE + shares.layers + shares.ops) + activations.rewritten
    scaled = tokens_of_rank(model, layouts) * _scaled_bytes(model, layouts, shares)
    return accessed + scaled + sorted_bytes(model, layouts, shares)


def _adapter_bytes(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> np.ndarray:
    """Bytes that adapters read and write in a layer, whose products are too narrow to be limited by FLOPs: each
    reads its input, writes its output and adds it to the module's, and both again for the gradients. Weights in 4 bits
    are read, and written in 16 bits, before each product (bitsandbytes/autograd/_functions.py, MatMul4Bit)."""
    widths = sum(sum(module_sizes(model, name)) for name in adapted_modules(model))
    accessed = tokens_of_rank(model, layouts) * widths * element_bytes(layouts) * (2.5 * (2 + shares.layers))
    restored = model.linear_parameters_in_4_bits * (BYTES_OF_4_BITS + element_bytes(layouts)) * (2 + shares.layers)
    return (accessed + restored) / layouts["tensor_parallel"]


def _scaled_bytes(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> np.ndarray:
    """Bytes that are moved to scale a token's operands of 8- and 4-bit GEMMs in one layer: inputs in each forward pass,
    gradients of outputs in the backward pass."""
    tensor, experts = layouts["tensor_parallel"], model.num_expert_layers / model.num_layers
    whole = model.hidden_size * (2 + experts * ((model.experts_per_token or 1) - 1))
    widths_in = 2 if model.gated_mlp else 1
    inputs = whole + (model.attention_output_size + model.active_mlp_width) / tensor
    outputs = whole + (model.query_size + 2 * model.key_value_size + widths_in * model.active_mlp_width) / tensor
    low = 1 - layouts.of_recipe(lambda recipe: not recipe.has_experts) * _routed_share(model)
    return layouts.of_recipe(lambda recipe: recipe.moved_bytes) * (inputs * (1 + shares.layers) + outputs) * low


ACCESSES_PER_BYTE = 4
"""Reads and writes of each byte of an activation: written, read by the next operation, and both again in the backward
pass with gradients of its size."""


# -- launches


def pass_launch_s(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """Host time to launch a pass of one layer, a mean over the layers, without what CUDA graphs capture."""
    layer = LAYER_LAUNCH_S * np.where(layouts["torch_compile"] > 0, 0.5, 1)
    layer = layer + ADAPTER_LAUNCH_S * len(adapted_modules(model)) * np.where(layouts["torch_compile"] > 0, 0.5, 1)
    experts = model.num_expert_layers / model.num_layers
    of_experts = EXPERT_LAYER_LAUNCH_S * experts * machine.is_gpu
    captured = (
        layer / 2 * (layouts.has_part("cuda_graphs", "attn") + (1 - experts) * layouts.has_part("cuda_graphs", "mlp"))
    )
    launched = layer + of_experts - captured + _collectives(layouts) * HOST_CALL_S
    return np.where(layouts.equals("cuda_graphs", "full_iteration"), 0, launched)


def layer_launch_s(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares, pass_s: np.ndarray) -> np.ndarray:
    """Host time to launch a micro-batch's passes through one layer, with those that recompute; a recomputed module is
    another call."""
    passes = 3 + shares.layers + shares.mlps(model) / 2 + shares.ops
    modules = sum(shares.modules.values())
    return passes * pass_s + HOST_CALL_S * modules * (pass_s > 0)


def _collectives(layouts: LayoutTable) -> np.ndarray:
    """Collectives per layer and pass: two all-reduces, with sequence parallelism an all-gather and a reduce-scatter for
    each; with ZeRO 3 one more for its weights."""
    of_tensor = np.where(layouts["tensor_parallel"] > 1, np.where(layouts["sequence_parallel"] > 0, 4, 2), 0)
    return of_tensor + (layouts["zero_stage"] == 3)


LAYER_LAUNCH_S = 0.7e-3
"""Host time to launch one layer's kernels in a pass: 40 or so at 15 to 20 us each in eager PyTorch."""
ADAPTER_LAUNCH_S = 0.09e-3
"""Host time to launch an adapter's kernels in a pass: two products, a scale, a sum and a cast, as long each as those of
a layer."""
EXPERT_LAYER_LAUNCH_S = 2e-3
"""Host time to launch what a layer with experts has more in a pass: router, permutation, dispatch, grouped GEMMs."""
HOST_CALL_S = 0.09e-3
"""Host time to launch a collective, or to recompute a module: its tensors, states and streams."""
