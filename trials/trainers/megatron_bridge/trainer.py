"""NeMo's Megatron-Bridge, which drives Megatron-LM's core. Recipes have its overrides; it runs no trials.

Its attention backend is an enum, fp32 a dtype, an activation a function and a window a tuple, none of which a text
override can set: it takes a flash kernel where it can, and a precision by name, whose fp16 keeps gradients in fp16.
Standard library only.
"""

from __future__ import annotations

from search_spaces.rules.engine_rules import Rule, activations, allows_only, builds_only
from trials.trainers.base import LayoutExport, Trainer
from trials.trainers.common.recipe import arguments_from, first_violation
from trials.trainers.megatron_bridge.overrides import bridge_overrides, format_overrides
from trials.trainers.megatron_lm.trainer import NAME as ENGINE
from trials.trainers.megatron_lm.trainer import RULES as MEGATRON_LM_RULES
from trials.trainers.megatron_lm.trainer import megatron_torchrun
from trials.trial import TrialSpec

NAME = "megatron-bridge"

_TITLE = "Megatron-Bridge"
_OVERRIDES_FILE = "nemo_overrides.txt"


def _files(spec: TrialSpec) -> dict[str, str]:
    return {_OVERRIDES_FILE: "".join(f"{word}\n" for word in format_overrides(bridge_overrides(spec)))}


def _start(spec: TrialSpec) -> str:
    return (
        f"{megatron_torchrun(spec)} scripts/training/run_recipe.py --recipe YOUR_PRETRAIN_RECIPE"
        f" {arguments_from(_OVERRIDES_FILE)} YOUR_OVERRIDES"
    )


RULES: tuple[Rule, ...] = (
    allows_only({"attention_kernel": ("flash",), "precision": ("bf16",)}, owner=_TITLE),
    builds_only(
        (
            *("attention_head_size", "qkv_bias", "qk_norm", "activation", "rotary_base", "linear_biases"),
            *("num_experts", "key_value_latent_size", "num_mtp_layers"),
        ),
        owner=_TITLE,
    ),
    activations(("silu",), ("gelu",), owner=_TITLE),
    *MEGATRON_LM_RULES,
)

TRAINER = Trainer(
    rules={},
    export=LayoutExport(NAME, "NeMo Megatron-Bridge", ENGINE, first_violation(NAME, RULES, ENGINE), _files, _start),
)
