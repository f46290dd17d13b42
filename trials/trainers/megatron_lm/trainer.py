"""Megatron-LM, started with its options. Standard library only.

Rules: Megatron-LM megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.rules.engine_rules import MEGATRON_RULES, quantized_products
from search_spaces.rules.rule import Rule, activations, clashes, engine_limits
from trials.ranks.cuda_connections import refused_connections
from trials.trainers.base import SCRIPT_KEYS, Invocation, LayoutExport, Trainer, last_rank
from trials.trainers.common.log_lines import MEGATRON_LM_LOG
from trials.trainers.common.megatron_options import (
    MEGATRON_LM,
    NO_DROPOUT_OPTIONS,
    environment_of,
    megatron_lm_layout,
    megatron_lm_options,
    newer_megatron_lm,
    oldest_megatron_lm,
    trained_model,
)
from trials.trainers.common.recipe import (
    arguments_from,
    option_lines,
    script_or,
    torchrun,
    user_arguments,
)
from trials.trainers.megatron_lm.checkout import gradient_options
from trials.trainers.megatron_lm.rules import TOGETHER
from trials.trial import TrialSpec

NAME = "megatron-lm"


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    script, given = spec.trainer["script"], tuple(spec.trainer.get("arguments", ()))
    words = megatron_lm_options(spec, given, gradient_options(spec.layout, script, given))
    return Invocation(
        (python, script, *words),
        environment=environment_of(spec.layout, spec.accelerator, spec.gpus_per_node),
        refused=refused_connections(spec.layout),
    )


_ARGUMENTS_FILE = "megatron_args.txt"


def _files(spec: TrialSpec) -> dict[str, str]:
    newer, oldest = option_lines(newer_megatron_lm(spec.layout)), oldest_megatron_lm(spec.layout)
    advice = f"# Megatron-LM from core_v0.17.0 on also needs {newer}" if newer else ""
    advice += f"# Megatron-LM before {oldest} does not know these options\n" if oldest else ""
    return {_ARGUMENTS_FILE: advice + option_lines([*megatron_lm_layout(spec), *NO_DROPOUT_OPTIONS])}


def _of_software(fingerprint: Mapping[str, Any]) -> str:
    """Options for the layers that engine megatron-core took, where they are not Megatron-LM's default."""
    if fingerprint.get("megatron_layers") != "local":
        return ""
    return f"--transformer-impl local\n--no-rope-fusion\n--no-persist-layer-norm\n{_WITHOUT_APEX}\n{_WITHOUT_TE}\n"


_WITHOUT_APEX = "# Where Apex is not installed, add --no-gradient-accumulation-fusion"
_WITHOUT_TE = "# Without Transformer Engine experts multiply one by one: leave --moe-grouped-gemm out"


def megatron_torchrun(spec: TrialSpec) -> str:
    """torchrun's command line with Megatron-LM's variables."""
    return torchrun(
        spec, environment_of(spec.layout, spec.accelerator, spec.gpus_per_node), refused_connections(spec.layout)
    )


def _start(spec: TrialSpec) -> str:
    start, script = megatron_torchrun(spec), script_or(spec, NAME, "pretrain_gpt.py")
    return f"{start} {script} {arguments_from(_ARGUMENTS_FILE)} {user_arguments(spec, NAME)}"


RULES: tuple[Rule, ...] = (
    *MEGATRON_RULES,
    *quantized_products(),
    *TOGETHER,
    activations(("silu", "clamped_swiglu"), ("gelu", "squared_relu")),
    *engine_limits(NAME, MEGATRON_LM.table.limits),
)

_NO_ADAPTERS = clashes("model.adapters", {}, "pretrain_gpt.py trains all weights; Megatron-Bridge has adapters")

TRAINER = Trainer(
    rules={NAME: (*RULES, _NO_ADAPTERS)},
    required_keys=("script",),
    optional_keys=SCRIPT_KEYS,
    invocation=_invocation,
    log_format=MEGATRON_LM_LOG,
    log_rank=last_rank,
    argument_error=MEGATRON_LM.refusal,
    trained_model=trained_model,
    shows_layout=True,
    export=LayoutExport(NAME, "Megatron-LM", NAME, (*RULES, _NO_ADAPTERS), _files, _start, _of_software),
)
