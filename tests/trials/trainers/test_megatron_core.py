"""A recipe's options for Megatron-LM, loaded by the real megatron-core."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from search_spaces.engines import MEGATRON_CORE
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.routing import Routing
from search_spaces.rules.check import engine_violations
from tests.oracles.cases import Case, export_cases
from tests.oracles.configs import fields_of, transformer_engine_stubbed
from tests.oracles.meanings import differences, of_megatron_lm
from tests.orchestrator.recipe.test_exports_of_every_layout import words_of
from tests.trials.train.parity import needs_megatron
from tests.trials.train.trial_processes import make_spec
from tests.trials.trainers.verified_options import MEGATRON_LM, given_options
from trials.trainers.common.megatron_core import CORE_ROWS, all_fields
from trials.trainers.common.megatron_options import oldest_megatron_lm
from trials.trainers.megatron_lm.trainer import TRAINER
from trials.trial import TrialSpec

pytestmark = [needs_megatron, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

EXPORT = TRAINER.export


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Layouts that megatron-core 0.16.1 knows."""
    return [case for case in export_cases("megatron-lm") if oldest_megatron_lm(case.spec.layout) is None]


def differing(case: Case) -> list[str]:
    """Differences of the layout from what megatron-core is configured to train."""
    with transformer_engine_stubbed():
        values, configs = core_configs(words_of(case.files["megatron_args.txt"]), case.spec.num_gpus)
    return differences(case.spec, of_megatron_lm(values, {name: fields_of(made) for name, made in configs.items()}))


def test_megatron_core_is_configured_as_the_layout_says(cases):
    found = {case.spec.layout.key: differing(case) for case in cases}
    assert not {key: sentences for key, sentences in found.items() if sentences}


NOT_OF_THE_CORE = {
    *("micro_batch_size", "seq_length", "position_embedding_type", "share_embeddings_and_output_weights"),
    *("use_tp_pp_dp_mapping", "ckpt_format"),
}
"""Fields of GPTModel, of the ranks' mesh, of checkpoints and of the batch."""
NEWER = {"moe_paged_stash", "moe_expert_rank_capacity_factor", "use_transformer_engine_op_fuser"}
"""Fields of core_v0.18.0."""


def test_every_field_of_the_table_is_one_of_megatron_cores():
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import MLATransformerConfig

    configs = (MLATransformerConfig, DistributedDataParallelConfig, OptimizerConfig)
    known = {field.name for config in configs for field in dataclasses.fields(config)}
    assert all_fields(CORE_ROWS).keys() - known == NOT_OF_THE_CORE | NEWER


OF_A_CPU = {
    *("bias_dropout_fusion", "masked_softmax_fusion", "persist_layer_norm", "gradient_accumulation_fusion"),
    *("apply_rope_fusion", "moe_grouped_gemm"),
}
"""Fused kernels, which the engine takes where they are installed."""
WITHOUT_EFFECT = {
    *("cp_comm_type", "inference_sampling_seed", "use_cpu_initialization", "grad_reduce_in_fp32"),
    *("barrier_with_L1_time", "fp8_recipe", "muon_momentum", "optimizer_offload_fraction", "min_lr"),
}
"""Dtype of gradients where weights have fp32; parts that no layout has."""
PARLAYS_OWN = {
    *("init_method", "embedding_init_method", "output_layer_init_method", "adam_beta2", "lr", "initial_loss_scale")
}
"""Initial weights and optimizer settings of all of Parlay's engines."""


def test_the_engine_configures_megatron_core_as_the_options_do(cases):
    compared = 0
    for case in cases:
        few = {name: axis.values_of(MEGATRON_CORE) for name, axis in AXES.items()}
        others = {
            name: AXES[name].default
            for name, values in few.items()
            if values is not None and getattr(case.spec.layout, name) not in values
        }
        layout = replace(case.spec.layout, engine=MEGATRON_CORE, **others).canonical()
        if any(engine_violations(layout, case.spec.model)):
            continue
        compared += 1
        files = EXPORT.files(replace(case.spec, layout=replace(layout, engine="megatron-lm")))
        with transformer_engine_stubbed():
            ours = engine_configs(replace(case.spec, layout=layout))
            _, theirs = core_configs(words_of(files["megatron_args.txt"]), case.spec.num_gpus)
        for name, config in ours.items():
            mine, other = fields_of(config), fields_of(theirs[name])
            differing = {field for field in {*mine, *other} if mine.get(field) != other.get(field)}
            assert differing <= OF_A_CPU | WITHOUT_EFFECT | PARLAYS_OWN, layout.key
            assert "grad_reduce_in_fp32" not in differing or layout.precision == "fp32"
    assert compared >= 8


def engine_configs(spec: TrialSpec) -> dict[str, Any]:
    """Configurations that the engine megatron-core makes of the layout."""
    import torch

    from trials.train.engines.engine import TrainingConfig
    from trials.train.engines.megatron_core_config import ddp_config, optimizer_config, transformer_config
    from trials.train.engines.optimizer import OptimizerConfig
    from trials.train.model.initial_weights import WeightSource

    weights = WeightSource(spec.seed, torch.device("cpu"))
    training = TrainingConfig(spec.model, spec.layout, weights, OptimizerConfig(), Routing.of(spec.measure.routing))
    has_grouped_products = "moe_act" in spec.layout.modules_recomputed
    return {
        "transformer": transformer_config(training, has_te_layers=has_grouped_products),
        "ddp": ddp_config(training),
        "optimizer": optimizer_config(training),
    }


@pytest.mark.parametrize(("kernel", "flash", "unfused"), [("flash", "1", "0"), ("math", "0", "1")])
def test_megatron_core_leaves_transformer_engine_one_kernel_of_attention(monkeypatch, kernel, flash, unfused):
    from megatron.core.models.common.language_module.language_module import LanguageModule

    layout = Layout(engine=MEGATRON_CORE, precision="bf16", attention_kernel=kernel)
    config = engine_configs(make_spec(layout))["transformer"]
    for name in ("FLASH", "FUSED", "UNFUSED"):
        monkeypatch.setenv(f"NVTE_{name}_ATTN", "to be restored")
        monkeypatch.delenv(f"NVTE_{name}_ATTN")
    LanguageModule._set_attention_backend(SimpleNamespace(config=config))
    found = {name: os.environ[f"NVTE_{name}_ATTN"] for name in ("FLASH", "FUSED", "UNFUSED")}
    assert found == {"FLASH": flash, "FUSED": "0", "UNFUSED": unfused}


# -- the configurations of pretrain_gpt.py

Fields = dict[str, Any]


_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp8": "uint8"}


def core_configs(words: Sequence[str], world_size: int) -> tuple[Fields, dict[str, Any]]:
    """(the options by name, with what follows from them; the configurations), as pretrain_gpt.py of core_v0.16.1 makes
    them of words: megatron/training/arguments.py and training.py, field by field of the same name."""
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import AdamOptimizerConfig
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    given = given_options(words, MEGATRON_LM)
    dtype = torch.bfloat16 if given["bf16"] else torch.float16 if given["fp16"] else torch.float32
    model_ranks = given["tensor_model_parallel_size"] * given["pipeline_model_parallel_size"]
    model_ranks *= given["context_parallel_size"] or 1
    values = given | {
        "params_dtype": dtype,
        "data_parallel_size": world_size // model_ranks,
        "sequence_parallel": bool(given["sequence_parallel"]) and given["tensor_model_parallel_size"] > 1,
        "rotary_base": given["rotary_base"] or 10_000,
        "accumulate_allreduce_grads_in_fp32": given["accumulate_allreduce_grads_in_fp32"]
        or (given["bf16"] and not given["grad_reduce_in_bf16"]),
        **{name: getattr(torch, _DTYPES[given[name] or "fp32"]) for name in ("exp_avg_dtype", "exp_avg_sq_dtype")},
    }
    transformer = MLATransformerConfig if values["multi_latent_attention"] else TransformerConfig
    made = ((transformer, _transformer), (DistributedDataParallelConfig, _ddp), (AdamOptimizerConfig, _optimizer))
    configs = [kind(**_of_same_name(kind, values) | of(values)) for kind, of in made]
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
        "gated_linear_unit": bool(values["swiglu"] or values["quick_geglu"]),
        "activation_func": _activation(values),
        "bias_activation_fusion": bool(values["swiglu"]) or (has_biases and not values["no_bias_gelu_fusion"]),
        "add_bias_linear": has_biases,
        "add_qkv_bias": bool(values["add_qkv_bias"]),
        "window_size": window and tuple(int(size) for size in window.split(",")),
        "window_attn_skip_freq": every,
        "cp_comm_type": (values["cp_comm_type"] or ["p2p"])[0],
        **({"hierarchical_context_parallel_sizes": [*map(int, sizes)]} if sizes else {}),
        "fp8": values["fp8_format"],
        "fp8_param": bool(values["fp8_param_gather"]),
        "fp4": values["fp4_format"],
        "fp4_param": bool(values["fp4_param_gather"]),
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
        "grad_reduce_in_fp32": bool(values["accumulate_allreduce_grads_in_fp32"]),
        "bucket_size": (values["ddp_bucket_size"] or default_size) if values["overlap_grad_reduce"] else None,
        "check_for_nan_in_grad": not values["fp16"],
        "align_param_gather": values["num_virtual_stages_per_pipeline_rank"] is not None,
        "use_custom_fsdp": bool(values["use_megatron_fsdp"]),
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
