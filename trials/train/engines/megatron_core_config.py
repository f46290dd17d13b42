"""Configurations of megatron-core for a layout: the fields of its table, and what the engine sets besides.

Written for megatron-core 0.16.1; defaults: Megatron-LM megatron/training/arguments.py and training.py at core_v0.16.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
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

from search_spaces.model_shape import NORM_EPSILON, ModelShape
from search_spaces.routing import BALANCED
from trials.train.engines.engine import TrainingConfig
from trials.trainers.common.megatron_core import core_fields

_LEAST_BUCKET, _BUCKET_PER_RANK = 40_000_000, 1_000_000
"""Parameters of a bucket by default."""


def transformer_config(training: TrainingConfig, has_te_layers: bool) -> TransformerConfig:
    """Configuration of the model and its schedule; fused kernels only where there is one for the device."""
    layout, model, dtype = training.layout, training.model, training.dtype
    said = core_fields(layout, model)
    ours = {
        "layernorm_epsilon": NORM_EPSILON,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": False,
        "attention_backend": AttnBackend[said["attention_backend"]],
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "init_method": _leave,
        "output_layer_init_method": _leave,
        "embedding_init_method": _leave,
        "deallocate_pipeline_outputs": True,
        "moe_router_force_load_balancing": training.routing.kind == BALANCED,
        "moe_grouped_gemm": model.num_experts is not None and has_te_layers,
        **_activation(model),
        **_fusions(training.device, has_te_layers),
    }
    return TransformerConfig(**_of(TransformerConfig, said) | ours)


def ddp_config(training: TrainingConfig) -> DistributedDataParallelConfig:
    """Configuration of the gradient buffers. Without overlap there is one bucket."""
    layout, said = training.layout, core_fields(training.layout, training.model)
    bucket = said["bucket_size"] or max(_LEAST_BUCKET, _BUCKET_PER_RANK * layout.data_parallel)
    ours = {
        "check_for_nan_in_grad": layout.precision != "fp16",
        "align_param_gather": layout.virtual_pipeline_stages > 1,
        "bucket_size": bucket if layout.overlap_comm else None,
    }
    return DistributedDataParallelConfig(**_of(DistributedDataParallelConfig, said) | ours)


def optimizer_config(training: TrainingConfig) -> MegatronOptimizerConfig:
    """Configuration of AdamW, with Parlay's settings."""
    settings = training.optimizer
    ours = {
        "optimizer": "adam",
        "lr": settings.learning_rate,
        "adam_beta1": settings.beta1,
        "adam_beta2": settings.beta2,
        "adam_eps": settings.epsilon,
        "weight_decay": settings.weight_decay,
        "clip_grad": settings.max_grad_norm,
        "params_dtype": training.dtype,
        "initial_loss_scale": 2.0**settings.loss_scale_power,
        "min_loss_scale": 1.0,
    }
    said = core_fields(training.layout, training.model)
    return MegatronOptimizerConfig(**_of(MegatronOptimizerConfig, said) | ours)


def _of(config: type, said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of this configuration that have another value than the core's default."""
    names = {field.name for field in fields(config)}
    return {name: value for name, value in said.items() if name in names and value is not None}


def _leave(weights: torch.Tensor) -> torch.Tensor:
    """Initialization that draws nothing: named_weights.py sets the weights."""
    return weights


def _activation(model: ModelShape) -> dict[str, Any]:
    """Activation of the MLP, fused where megatron-core has a kernel: gated SiLU and GELU, and GELU with biases; of
    experts gated SiLU alone.

    Megatron's fused GELU is the tanh approximation; F.gelu by itself is exact.
    """
    name, is_gated = model.mlp_activation, model.gated_mlp
    has_gelu = model.num_experts is None and (is_gated or model.has_biases)
    is_fused = (name == "silu" and is_gated) or (name == "gelu" and has_gelu)
    function = F.gelu if is_fused and name == "gelu" else _ACTIVATIONS[name]
    return {"activation_func": function, "bias_activation_fusion": is_fused}


_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "squared_relu": squared_relu,
}
"""Activations without a fused kernel."""


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
