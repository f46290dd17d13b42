"""Configurations of megatron-core for a layout, with the values that Megatron-LM's options give them.

Written for megatron-core 0.16.1; option names and defaults: Megatron-LM megatron/training/arguments.py at
core_v0.16.1. `tests/trials/trainers/test_megatron_core.py` compares them with a
recipe's megatron_args.txt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import TransformerConfig

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import NORM_EPSILON, ModelShape
from search_spaces.routing import BALANCED
from trials.train.engines.engine import TrainingConfig
from trials.trainers.common.megatron_experts import moe_layer_freq
from trials.trainers.common.megatron_options import bucket_parameters

_DEFAULT_BUCKET_PARAMETERS = 40_000_000
_DEFAULT_BUCKET_PARAMETERS_PER_RANK = 1_000_000


def transformer_config(training: TrainingConfig, has_te_layers: bool) -> TransformerConfig:
    """Configuration of the model and its schedule; fused kernels only where there is one for the device."""
    layout, model, dtype = training.layout, training.model, training.dtype
    is_interleaved = layout.virtual_pipeline_stages > 1
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads,
        kv_channels=model.head_size,
        qk_layernorm=model.qk_norm,
        normalization="RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        layernorm_epsilon=NORM_EPSILON,
        add_bias_linear=model.has_biases,
        add_qkv_bias=model.has_biases or model.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=False,
        attention_backend=AttnBackend.flash if layout.attention_kernel == "flash" else AttnBackend.unfused,
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline_stages if is_interleaved else None,
        account_for_embedding_in_pipeline_split="embedding" in layout.pipeline_split,
        account_for_loss_in_pipeline_split="loss" in layout.pipeline_split,
        num_layers_in_first_pipeline_stage=layout.first_stage_layers,
        num_layers_in_last_pipeline_stage=layout.last_stage_layers,
        sequence_parallel=layout.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=layout.precision == "bf16",
        fp16=layout.precision == "fp16",
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        overlap_p2p_comm=is_interleaved,
        batch_p2p_comm=not is_interleaved,
        deallocate_pipeline_outputs=True,
        **_activation(model),
        **_experts(model, layout, has_te_layers),
        moe_router_force_load_balancing=training.routing.kind == BALANCED,
        **_recomputation(layout),
        **_fusions(training.device, has_te_layers),
    )


def ddp_config(layout: Layout) -> DistributedDataParallelConfig:
    """Configuration of the gradient buffers. Without overlap there is one bucket."""
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=layout.overlap_comm,
        use_distributed_optimizer=layout.zero_stage == 1,
        check_for_nan_in_grad=layout.precision != "fp16",
        align_param_gather=layout.virtual_pipeline_stages > 1,
        bucket_size=_bucket_parameters(layout) if layout.overlap_comm else None,
    )


def optimizer_config(training: TrainingConfig) -> MegatronOptimizerConfig:
    """Configuration of AdamW, with Parlay's settings."""
    layout, settings = training.layout, training.optimizer
    return MegatronOptimizerConfig(
        optimizer="adam",
        lr=settings.learning_rate,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        clip_grad=settings.max_grad_norm,
        bf16=layout.precision == "bf16",
        fp16=layout.precision == "fp16",
        params_dtype=training.dtype,
        use_distributed_optimizer=layout.zero_stage == 1,
        initial_loss_scale=2.0**settings.loss_scale_power,
        min_loss_scale=1.0,
    )


def _leave(weights: torch.Tensor) -> torch.Tensor:
    """Initialization that draws nothing: megatron_core_weights.py sets the weights."""
    return weights


def _bucket_parameters(layout: Layout) -> int:
    return bucket_parameters(layout) or max(
        _DEFAULT_BUCKET_PARAMETERS, _DEFAULT_BUCKET_PARAMETERS_PER_RANK * layout.data_parallel
    )


def _activation(model: ModelShape) -> dict[str, Any]:
    """Activation of the MLP, fused where megatron-core has a kernel: gated SiLU and GELU, and GELU with biases; of
    experts gated SiLU alone.

    Megatron's fused GELU is the tanh approximation; F.gelu by itself is exact.
    """
    name, is_gated = model.mlp_activation, model.gated_mlp
    has_gelu = model.num_experts is None and (is_gated or model.has_biases)
    is_fused = (name == "silu" and is_gated) or (name == "gelu" and has_gelu)
    return {
        "gated_linear_unit": is_gated,
        "activation_func": F.gelu if is_fused and name == "gelu" else _ACTIVATIONS[name],
        "bias_activation_fusion": is_fused,
    }


def _experts(model: ModelShape, layout: Layout, has_te_layers: bool) -> dict[str, Any]:
    """Experts, chosen by the softmax of their logits in fp32, with a loss that balances them if the model has one.
    Their products are grouped where Transformer Engine has a kernel."""
    if model.num_experts is None:
        return {}
    return {
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.expert_width,
        "moe_shared_expert_intermediate_size": model.shared_expert_ffn_hidden_size,
        "moe_layer_freq": moe_layer_freq(model),
        "moe_router_load_balancing_type": "none" if model.aux_loss_coefficient is None else "aux_loss",
        "moe_aux_loss_coeff": model.aux_loss_coefficient or 0.0,
        "moe_router_dtype": "fp32",
        "moe_token_dispatcher_type": layout.expert_dispatcher,
        "moe_grouped_gemm": has_te_layers,
        "expert_model_parallel_size": layout.expert_parallel,
        "expert_tensor_parallel_size": layout.expert_tensor_parallel,
    }


_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "squared_relu": squared_relu,
}
"""Activations without a fused kernel."""


def _recomputation(layout: Layout) -> dict[str, Any]:
    if layout.activation_checkpointing == "none":
        return {}
    if layout.activation_checkpointing == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": list(layout.modules_recomputed)}
    method = "uniform" if layout.recompute_layers is None else "block"
    return {
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": layout.recompute_layers or 1,
    }


def _fusions(device: torch.device, has_te_layers: bool) -> dict[str, Any]:
    """Megatron-LM's fused kernels, on a GPU; those of its own CUDA code only where that is installed."""
    on_gpu = device.type == "cuda"
    return {
        "bias_dropout_fusion": on_gpu,
        "masked_softmax_fusion": on_gpu and find_spec("scaled_upper_triang_masked_softmax_cuda") is not None,
        # By Apex also where the layers are Transformer Engine's: the head is always megatron-core's own.
        "gradient_accumulation_fusion": on_gpu and find_spec("fused_weight_gradient_mlp_cuda") is not None,
        "apply_rope_fusion": has_te_layers,
        "persist_layer_norm": has_te_layers,
    }
