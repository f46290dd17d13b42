"""NeMo's Megatron-Bridge, which drives Megatron-LM's core. Recipes have its overrides; it runs no trials.

Its attention backend is an enum, fp32 a dtype, an activation a function and a window a tuple, none of which a text
override can set: it takes a flash kernel where it can, and a precision by name, whose fp16 keeps gradients in fp16.
Types of gradients and moments are dtypes, too. Standard library only.

Key names: Megatron-Bridge 0.6.0 src/megatron/bridge/training/config.py and models/gpt_provider.py, with megatron-core
0.16.1. Its recipes set much themselves, so features that a layout does not use are switched off by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.adapters import MEGATRON, NAMES_OF_LIBRARY
from search_spaces.layouts.layout import Layout
from search_spaces.routing import BALANCED, Routing
from search_spaces.rules.engine_rules import names_modules_as
from search_spaces.rules.rule import Rule, activations, allows_only, builds_only, clashes
from trials.trainers.base import LayoutExport, Trainer
from trials.trainers.common.adapter_rows import adapter_rows
from trials.trainers.common.megatron_core import ANY_MODEL, CORE_ROWS, core_fields
from trials.trainers.common.megatron_layout import is_on
from trials.trainers.common.megatron_options import TRAINS_ANOTHER, padded
from trials.trainers.common.recipe import arguments_from
from trials.trainers.megatron_lm.trainer import NAME as ENGINE
from trials.trainers.megatron_lm.trainer import RULES as MEGATRON_LM_RULES
from trials.trainers.megatron_lm.trainer import megatron_torchrun
from trials.trainers.table import Keys, Row, Table, Trained, Values, number
from trials.trial import TrialSpec

QUANTIZATION = ("matmul_precision", "quantized_weights")
"""Fields of a layout that one of Megatron-Bridge's precisions decides together."""
MIXED_PRECISIONS: Mapping[tuple[Any, ...], str] = {
    ("same", False): "bf16_mixed",
    ("fp8_delayed", True): "bf16_with_fp8_delayed_scaling_mixed",
    ("fp8_tensorwise", True): "bf16_with_fp8_current_scaling_mixed",
    ("fp8_blockwise", False): "bf16_with_fp8_subchannel_scaling_mixed",
    ("mxfp8", True): "bf16_with_mxfp8_mixed",
    ("nvfp4", True): "bf16_with_nvfp4_mixed",
}
"""Names of Megatron-Bridge's precisions (training/mixed_precision.py); a text override chooses one as it is."""
KEEPS_ENDS = "bf16_with_fp8_current_scaling_mixed"
"""The precision that keeps a layer at each end of the model in 16 bits."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OF_MIXED_PRECISION = _names(
    """
    bf16 fp16 grad_reduce_in_fp32 fp8 fp8_recipe fp8_param fp4 fp4_param
    """
)
"""Fields that a precision decides."""
_NO_TEXT = _names(
    """
    attention_backend activation_func glu_linear_offset activation_func_clamp_value bias_activation_fusion exp_avg_dtype
    exp_avg_sq_dtype reuse_grad_buf_for_mxfp8_param_ag
    """
)
"""Fields whose values are enums, functions and types, which no text override sets, or follow from such."""
_FIELDS_OF = {
    "": "mixed_precision comm_overlap",
    "train": "micro_batch_size global_batch_size",
    "dataset": "seq_length",
    "model": "seq_length",
    "dist": "use_tp_pp_dp_mapping use_megatron_fsdp",
    "ddp": """
        use_megatron_fsdp use_distributed_optimizer overlap_param_gather data_parallel_sharding_strategy
        overlap_grad_reduce num_distributed_optimizer_instances bucket_size check_for_nan_in_grad
        """,
    "optimizer": """
        use_distributed_optimizer overlap_param_gather optimizer_cpu_offload optimizer_offload_fraction
        use_precision_aware_optimizer exp_avg_dtype exp_avg_sq_dtype
        """,
    "rerun_state_machine": "check_for_nan_in_loss",
    "checkpoint": "ckpt_format",
    "peft": "dim alpha target_modules",
}
"""Fields by section; others are in `model`, or a mixed precision has them."""


def override_sections(name: str) -> tuple[str, ...]:
    """Sections of the configuration that have this field."""
    return tuple(section for section, names in _FIELDS_OF.items() if name in names.split()) or ("model",)


_CLEARED = _names(
    """
    bucket_size comm_overlap expert_tensor_parallel_size hierarchical_context_parallel_sizes moe_expert_capacity_factor
    moe_router_group_topk moe_router_num_groups moe_router_topk_scaling_factor moe_shared_expert_intermediate_size
    moe_z_loss_coeff mtp_num_layers num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage num_moe_experts
    q_lora_rank recompute_granularity recompute_method recompute_modules recompute_num_layers
    pipeline_model_parallel_layout virtual_pipeline_model_parallel_size window_size
    """
)
"""Fields that null sets to the core's default, in place of a recipe's value."""


def _of_the_recipe(spec: Trained) -> Values:
    """What recipes set that no layout has. The host cannot look at losses in a graph of all passes."""
    return {
        "mixed_precision": MIXED_PRECISIONS[quantization_of(spec.layout)],
        "comm_overlap": None,  # otherwise it overrides the keys beside it
        "overlap_param_gather": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "cpu_offloading": False,
        "cpu_offloading_weights": False,
        "cpu_offloading_num_layers": 0,
        "overlap_moe_expert_parallel_comm": False,
        "check_for_nan_in_loss": False if spec.layout.cuda_graphs == "full_iteration" else None,
    }


def _routing(spec: Trained) -> Values:
    """Routing as Parlay's engines have it, in place of a recipe's own."""
    if spec.model.num_experts is None:
        return {}
    return {
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": False,
        "moe_router_enable_expert_bias": False,
        **dict.fromkeys(("moe_router_num_groups", "moe_router_group_topk", "moe_router_topk_scaling_factor")),
        **dict.fromkeys(("moe_z_loss_coeff", "moe_expert_capacity_factor")),
        "moe_shared_expert_overlap": False,
    }


def _vocab_size(keys: Keys) -> int | None:
    """The padded vocabulary; None where it depends on what the recipe says about padding."""
    size, pads = keys.count("vocab_size"), is_on(keys, "should_pad_vocab", True)
    if pads is None and (size is None or padded(keys, size) != size or not keys.has("tensor_model_parallel_size")):
        return None
    return padded(keys, size)


LORA, LORA_CLASS = "peft._target_", "megatron.bridge.peft.lora.LoRA"
"""Key and name of the class of adapters."""


def _kind(keys: Keys) -> str | None:
    is_given = any(map(keys.has, (LORA, "dim", "alpha", "target_modules")))
    words = {LORA_CLASS.lower(): "lora"}
    return keys.chosen(LORA, words, "lora", f"adapters are those of {LORA_CLASS}") if is_given else None


_ADAPTERS = {"rank": "dim", "alpha": "alpha", "target_modules": "target_modules"}
MEGATRON_BRIDGE = Table(
    "Megatron-Bridge",
    "2026-08-22 (067f987d)",
    (
        *CORE_ROWS,
        number("global_batch_size", "global_batch_size"),
        Row(
            "vocab_size",
            lambda spec: {"vocab_size": spec.model.vocab_size, "should_pad_vocab": False},
            _vocab_size,
        ),
        Row("precision", _of_the_recipe),
        Row("num_experts", _routing),
        *adapter_rows(_ADAPTERS, {name: name for name in NAMES_OF_LIBRARY[MEGATRON]}, _kind),
    ),
    {
        **TRAINS_ANOTHER,
        **dict.fromkeys(("model.kd_config", "model.teacher"), "a search trains a GPT by itself"),
        "peft.exclude_modules": "adapters are those of peft.target_modules",
    },
)


def bridge_overrides(spec: TrialSpec) -> dict[str, Any]:
    """The values by their dotted keys; None clears a recipe's value. The layout is canonical and violates no rule.

    An activation function cannot be given as text: the recipe's own has to be SiLU for a gated MLP and GELU for any
    other.
    """
    fields = MEGATRON_BRIDGE.written(spec)
    if Routing.of(spec.measure.routing).kind == BALANCED:  # the recipes force none
        fields["moe_router_force_load_balancing"] = True
    return {
        f"{section}.{name}".removeprefix("."): value
        for name, value in fields.items()
        if name not in OF_MIXED_PRECISION | _NO_TEXT and (value is not None or name in _CLEARED)
        if name != "q_lora_rank" or fields["multi_latent_attention"]
        for section in override_sections(name)
    }


def precision_fields(name: str) -> dict[str, Any] | None:
    """The core's fields that a precision decides, by its name; None for one that is not known."""
    known = {
        "fp16_mixed": Layout(precision="fp16"),
        **{
            word: Layout(precision="bf16", **dict(zip(QUANTIZATION, values, strict=True)))
            for values, word in MIXED_PRECISIONS.items()
        },
    }
    if name not in known:
        return None
    fields = core_fields(known[name], ANY_MODEL)
    return {field: fields[field] for field in OF_MIXED_PRECISION}


def quantization_of(layout: Layout) -> tuple[Any, ...]:
    return tuple(getattr(layout, name) for name in QUANTIZATION)


def format_overrides(overrides: Mapping[str, Any]) -> Iterator[str]:
    """`key=value` as Hydra reads them."""
    for key, value in overrides.items():
        yield f"{key}={_text(value)}"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


NAME = "megatron-bridge"

_TITLE = "Megatron-Bridge"
_OVERRIDES_FILE = "nemo_overrides.txt"
_KEPT_ENDS = f"# {KEEPS_ENDS} keeps the first and the last layer in 16 bits.\n"


def _files(spec: TrialSpec) -> dict[str, str]:
    overrides = "".join(f"{word}\n" for word in format_overrides(bridge_overrides(spec)))
    keeps_ends = MIXED_PRECISIONS[quantization_of(spec.layout)] == KEEPS_ENDS
    return {_OVERRIDES_FILE: (_KEPT_ENDS if keeps_ends else "") + overrides}


def _start(spec: TrialSpec) -> str:
    recipe = "YOUR_FINETUNE_RECIPE" if spec.model.adapters else "YOUR_PRETRAIN_RECIPE"
    return (
        f"{megatron_torchrun(spec)} scripts/training/run_recipe.py --recipe {recipe}"
        f" {arguments_from(_OVERRIDES_FILE)} YOUR_OVERRIDES"
    )


# A precision by its name decides both.
_QUANTIZATION = tuple(
    clashes(
        "quantized_weights",
        {"matmul_precision": (word,)},
        f"{_TITLE}'s precision of {word} has quantized_weights {str(is_kept).lower()}",
        values=(not is_kept,),
        fix=f"set quantized_weights to {str(is_kept).lower()}, or leave this export out",
        name="quantization",
    )
    for word, is_kept in MIXED_PRECISIONS
    if word != "same"
)
RULES: tuple[Rule, ...] = (
    *allows_only(
        {
            "attention_kernel": ("flash",),
            "precision": ("bf16",),
            "gradients_in_bf16": (False,),
            "moment_dtype": ("fp32",),
        },
        owner=_TITLE,
    ),
    *_QUANTIZATION,
    *builds_only(
        (
            *("attention_head_size", "qkv_bias", "qk_norm", "activation", "rotary_base", "linear_biases"),
            *("attention_sinks", "num_experts", "key_value_latent_size", "num_mtp_layers", "adapters"),
        ),
        owner=_TITLE,
    ),
    activations(("silu",), ("gelu",), owner=_TITLE),
    *names_modules_as(MEGATRON),
    *MEGATRON_LM_RULES,
)

TRAINER = Trainer(
    rules={},
    export=LayoutExport(NAME, "NeMo Megatron-Bridge", ENGINE, RULES, _files, _start),
)
