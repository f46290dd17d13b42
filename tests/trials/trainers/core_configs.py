"""Megatron-core's configurations of the words in a recipe's megatron_args.txt, as pretrain_gpt.py of core_v0.16.1 makes
them: megatron/training/arguments.py and training.py, field by field of the same name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tests.trials.trainers.verified_options import MEGATRON_LM, parsed_options

Fields = dict[str, Any]


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


_DTYPES = {
    "fp32": lambda: _torch_dtype("float32"),
    "bf16": lambda: _torch_dtype("bfloat16"),
    "fp8": lambda: _torch_dtype("uint8"),
}


def core_configs(words: Sequence[str], world_size: int) -> tuple[Fields, dict[str, Any]]:
    """(the options by name, with what follows from them; the configurations)."""
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import AdamOptimizerConfig
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    given = vars(parsed_options(words, MEGATRON_LM))
    dtype = torch.bfloat16 if given["bf16"] else torch.float16 if given["fp16"] else torch.float32
    model_ranks = given["tensor_model_parallel_size"] * given["pipeline_model_parallel_size"]
    model_ranks *= given["context_parallel_size"] or 1
    values = given | {
        "params_dtype": dtype,
        "data_parallel_size": world_size // model_ranks,
        "sequence_parallel": given["sequence_parallel"] and given["tensor_model_parallel_size"] > 1,
        "rotary_base": given["rotary_base"] or 10_000,
        "accumulate_allreduce_grads_in_fp32": given["accumulate_allreduce_grads_in_fp32"]
        or (given["bf16"] and not given["grad_reduce_in_bf16"]),
        **{name: _DTYPES[given[name] or "fp32"]() for name in ("exp_avg_dtype", "exp_avg_sq_dtype")},
    }
    transformer = MLATransformerConfig if values["multi_latent_attention"] else TransformerConfig
    made = ((transformer, _transformer), (DistributedDataParallelConfig, _ddp), (AdamOptimizerConfig, _optimizer))
    configs = [kind(**_of_same_name(kind, values), **of(values)) for kind, of in made]
    return values, dict(zip(("transformer", "ddp", "optimizer"), configs, strict=True))


def _of_same_name(config: type, values: Fields) -> Fields:
    """Options that were given and that the configuration has under their own name."""
    names = {field.name for field in dataclasses.fields(config)} - _NAMED_OTHERWISE
    return {name: value for name, value in values.items() if name in names and value is not None}


_NAMED_OTHERWISE = {
    *("cp_comm_type", "hierarchical_context_parallel_sizes"),
    *("attention_backend", "num_query_groups", "add_qkv_bias", "window_size", "window_attn_skip_freq"),
    *("moe_layer_freq", "q_lora_rank"),
}


def _transformer(values: Fields) -> Fields:
    """core_transformer_config_from_args."""
    from megatron.core.transformer.enums import AttnBackend

    chunks, has_biases = values["num_virtual_stages_per_pipeline_rank"], not values["disable_bias_linear"]
    window, every = values["window_size"], values["window_attn_skip_freq"]
    is_latent, layers = values["multi_latent_attention"], values["moe_layer_freq"]
    sizes = values["hierarchical_context_parallel_sizes"]
    return {
        "virtual_pipeline_model_parallel_size": chunks,
        "overlap_p2p_comm": chunks is not None,
        "batch_p2p_comm": chunks is None,
        "pipeline_dtype": values["params_dtype"],
        "attention_backend": AttnBackend[values["attention_backend"]],
        "num_query_groups": values["num_query_groups"] if values["group_query_attention"] else None,
        "gated_linear_unit": values["swiglu"] or values["quick_geglu"],
        "activation_func": _activation(values),
        "bias_activation_fusion": values["swiglu"] or (has_biases and not values["no_bias_gelu_fusion"]),
        "add_bias_linear": has_biases,
        "add_qkv_bias": has_biases or values["add_qkv_bias"],
        "window_size": window and tuple(int(size) for size in window.split(",")),
        "window_attn_skip_freq": every,
        "cp_comm_type": (values["cp_comm_type"] or ["p2p"])[0],
        **({"hierarchical_context_parallel_sizes": [*map(int, sizes)]} if sizes else {}),
        "fp8": values["fp8_format"],
        "fp8_param": values["fp8_param_gather"],
        "fp4": values["fp4_format"],
        "fp4_param": values["fp4_param_gather"],
        "apply_rope_fusion": values["position_embedding_type"] == "rope" and not values["no_rope_fusion"],
        "bias_dropout_fusion": not values["no_bias_dropout_fusion"],
        "num_moe_experts": values["num_experts"],
        "moe_layer_freq": 1 if layers is None else _pattern(layers),
        **({"q_lora_rank": values["q_lora_rank"], "rotary_scaling_factor": 1.0} if is_latent else {}),
        "num_layers_in_first_pipeline_stage": values["decoder_first_pipeline_num_layers"],
        "num_layers_in_last_pipeline_stage": values["decoder_last_pipeline_num_layers"],
        "cpu_offloading": bool(values["cpu_offloading_num_layers"]),
        "gradient_accumulation_fusion": not values["no_gradient_accumulation_fusion"],
        **_TRANSFORMER_DEFAULTS,
    }


def _pattern(layers: str) -> list[int]:
    """moe_freq_type."""
    runs = [run.split("*") for run in layers.strip("()").split("+")]
    return [int(value.strip("[]")) for value, count in runs for _ in range(int(count))]


def _activation(values: Fields) -> Any:
    import torch
    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu

    if values["swiglu"]:
        return torch.nn.functional.silu
    if values["quick_geglu"]:
        return quick_gelu
    return squared_relu if values["squared_relu"] else torch.nn.functional.gelu


_TRANSFORMER_DEFAULTS = {
    "use_cpu_initialization": None,
    "deallocate_pipeline_outputs": True,
    "attention_softmax_in_fp32": False,
    "masked_softmax_fusion": True,
    "persist_layer_norm": True,
    "inference_sampling_seed": 1234,
}
"""pretrain_gpt.py's own defaults that are not the configuration's."""


def _ddp(values: Fields) -> Fields:
    """get_model, which gives data parallelism no bucket size without overlap, and else one of its own."""
    default_size = max(40_000_000, 1_000_000 * values["data_parallel_size"])
    return {
        "grad_reduce_in_fp32": values["accumulate_allreduce_grads_in_fp32"],
        "bucket_size": (values["ddp_bucket_size"] or default_size) if values["overlap_grad_reduce"] else None,
        "check_for_nan_in_grad": not values["fp16"],
        "align_param_gather": values["num_virtual_stages_per_pipeline_rank"] is not None,
        "use_custom_fsdp": values["use_megatron_fsdp"],
    }


def _optimizer(values: Fields) -> Fields:
    """get_megatron_optimizer_config, with pretrain_gpt.py's own defaults that are not the configuration's."""
    return {
        "min_lr": 0.0,
        **({} if values["fp8_recipe"] else {"fp8_recipe": "delayed"}),
        "muon_momentum": 0.9,
        "optimizer_offload_fraction": 1.0,
        "barrier_with_L1_time": True,
    }
