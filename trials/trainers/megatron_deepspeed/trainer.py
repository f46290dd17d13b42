"""Megatron-DeepSpeed, started with its options and a DeepSpeed configuration. Standard library only.

Rules: Megatron-DeepSpeed megatron/arguments.py, and DeepSpeed's own.
"""

from __future__ import annotations

from typing import Any

from search_spaces.rules.engine_rules import DEEPSPEED_RULES, bf16_reductions, even_stages, half_precision_flash
from search_spaces.rules.rule import Rule, activations, engine_limits
from trials.ranks.cuda_connections import ONE
from trials.trainers.base import SCRIPT_KEYS, Invocation, LayoutExport, Trainer, last_rank
from trials.trainers.common.deepspeed_config import ZERO, ds_config, fp32_sums
from trials.trainers.common.megatron_log import MEGATRON_LOG
from trials.trainers.common.megatron_options import NO_DROPOUT_OPTIONS, trained_model
from trials.trainers.common.plain_yaml import plain_yaml
from trials.trainers.common.recipe import (
    arguments_from,
    option_lines,
    script_or,
    torchrun,
    user_arguments,
)
from trials.trainers.megatron_deepspeed.options import MEGATRON_DEEPSPEED, megatron_deepspeed_options
from trials.trial import TrialSpec

NAME = "megatron-deepspeed"
MAX_GRAD_NORM = 1.0
"""Megatron's own default of --clip-grad."""

_CONFIG_FILE, _ARGUMENTS_FILE = "megatron_deepspeed_config.json", "megatron_deepspeed_args.txt"


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    given = tuple(spec.trainer.get("arguments", ()))
    words = megatron_deepspeed_options(spec, f"{folder}/{_CONFIG_FILE}", given)
    files = {_CONFIG_FILE: plain_yaml(_config(spec))}
    return Invocation((python, spec.trainer["script"], *words), files, ONE)


def _config(spec: TrialSpec) -> dict[str, Any]:
    """The DeepSpeed configuration for Megatron-DeepSpeed's options; the ZeRO stages of both must agree."""
    config = ds_config(spec.layout, MAX_GRAD_NORM)
    config.pop("data_types", None)
    config[ZERO]["stage"] = spec.layout.zero_stage
    return config | fp32_sums(spec.layout)


def _files(spec: TrialSpec) -> dict[str, str]:
    return {
        _ARGUMENTS_FILE: option_lines([*MEGATRON_DEEPSPEED.options(spec), *NO_DROPOUT_OPTIONS]),
        _CONFIG_FILE: plain_yaml(_config(spec)),
    }


def _start(spec: TrialSpec) -> str:
    start, script = torchrun(spec, ONE), script_or(spec, NAME, "pretrain_gpt.py")
    return (
        f"{start} {script} {arguments_from(_ARGUMENTS_FILE)}"
        f" --deepspeed_config recipe/{_CONFIG_FILE} {user_arguments(spec, NAME)}"
    )


RULES: tuple[Rule, ...] = (
    even_stages,
    *DEEPSPEED_RULES,
    half_precision_flash,
    *bf16_reductions,
    activations(("silu",), ("gelu", "squared_relu")),
    *engine_limits(NAME, MEGATRON_DEEPSPEED.table.limits),
)

TRAINER = Trainer(
    rules={NAME: RULES},
    required_keys=("script",),
    optional_keys=SCRIPT_KEYS,
    invocation=_invocation,
    log_format=MEGATRON_LOG,
    log_rank=last_rank,
    argument_error=MEGATRON_DEEPSPEED.refusal,
    trained_model=trained_model,
    shows_layout=True,
    export=LayoutExport(NAME, "Megatron-DeepSpeed", NAME, RULES, _files, _start),
)
