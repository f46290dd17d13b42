"""NeMo's Megatron-Bridge, which drives Megatron-LM's core. Recipes have its overrides; it runs no trials.

Its attention backend is an enum, fp32 a dtype, an activation a function and a window a tuple, none of which a text
override can set: it takes a flash kernel where it can, and a precision by name, whose fp16 keeps gradients in fp16.
Types of gradients and moments are dtypes, too.
Standard library only.
"""

from __future__ import annotations

from search_spaces.rules.rule import Rule, activations, allows_only, builds_only, clashes
from trials.trainers.base import LayoutExport, Trainer
from trials.trainers.common.recipe import arguments_from
from trials.trainers.megatron_bridge.overrides import (
    KEEPS_ENDS,
    MIXED_PRECISIONS,
    bridge_overrides,
    format_overrides,
    quantization_of,
)
from trials.trainers.megatron_lm.trainer import NAME as ENGINE
from trials.trainers.megatron_lm.trainer import RULES as MEGATRON_LM_RULES
from trials.trainers.megatron_lm.trainer import megatron_torchrun
from trials.trial import TrialSpec

NAME = "megatron-bridge"

_TITLE = "Megatron-Bridge"
_OVERRIDES_FILE = "nemo_overrides.txt"
_KEPT_ENDS = f"# {KEEPS_ENDS} keeps the first and the last layer in 16 bits.\n"


def _files(spec: TrialSpec) -> dict[str, str]:
    overrides = "".join(f"{word}\n" for word in format_overrides(bridge_overrides(spec)))
    keeps_ends = MIXED_PRECISIONS[quantization_of(spec.layout)] == KEEPS_ENDS
    return {_OVERRIDES_FILE: (_KEPT_ENDS if keeps_ends else "") + overrides}


def _start(spec: TrialSpec) -> str:
    return (
        f"{megatron_torchrun(spec)} scripts/training/run_recipe.py --recipe YOUR_PRETRAIN_RECIPE"
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
            *("attention_sinks", "num_experts", "key_value_latent_size", "num_mtp_layers"),
        ),
        owner=_TITLE,
    ),
    activations(("silu",), ("gelu",), owner=_TITLE),
    *MEGATRON_LM_RULES,
)

TRAINER = Trainer(
    rules={},
    export=LayoutExport(NAME, "NeMo Megatron-Bridge", ENGINE, RULES, _files, _start),
)
