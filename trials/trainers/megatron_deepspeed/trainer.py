"""Megatron-DeepSpeed: its table, and its options and DeepSpeed configuration for a layout. Standard library only.

The table has what it shares with Megatron-LM, and its own options. Option names and rules: Megatron-DeepSpeed
megatron/arguments.py (2025-07), and DeepSpeed's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from search_spaces.rules.engine_rules import DEEPSPEED_RULES, bf16_reductions, even_stages, half_precision_flash
from search_spaces.rules.rule import Rule, activations, engine_limits
from trials.ranks.cuda_connections import ONE
from trials.trainers.base import SCRIPT_KEYS, Invocation, LayoutExport, Trainer, last_rank
from trials.trainers.common.deepspeed_config import ZERO, ds_config, fp32_sums
from trials.trainers.common.log_lines import MEGATRON_LOG
from trials.trainers.common.megatron_core import CORE_ROWS
from trials.trainers.common.megatron_layout import KERNELS
from trials.trainers.common.megatron_options import (
    GPT2_VOCAB_SIZE,
    MEGATRON_LM,
    NO_DROPOUT_OPTIONS,
    OF_A_TRIAL,
    OF_BOTH,
    TRAINS_ANOTHER,
    Option,
    num_tokens,
    padded,
    trained_model,
    words_of_a_trial,
)
from trials.trainers.common.recipe import (
    arguments_from,
    option_lines,
    script_or,
    torchrun,
    user_arguments,
)
from trials.trainers.table import Keys, Row, Table, Trained, Values, plain_yaml, word
from trials.trial import TrialSpec


def _checkpointing(keys: Keys) -> str | None:
    """The pipeline recomputes layers by the method uniform alone (megatron/model/gpt_model.py)."""
    granularity, method = keys.text("recompute_granularity"), keys.text("recompute_method")
    if granularity != "full":
        return granularity
    has_pipeline = keys.has("deepspeed") and not keys.has("no_pipeline_parallel")
    return "full" if method == "uniform" or not has_pipeline else None


def _deepspeed(spec: Trained) -> Values:
    layout = spec.layout
    return {
        "deepspeed": True,
        "no_pipeline_parallel": layout.pipeline_parallel == 1,
        "deepspeed_activation_checkpointing": layout.activation_checkpointing == "full",
    }


_OF_THE_FORK = (
    word("zero_stage", "zero_stage", {stage: stage for stage in range(4)}),
    Row(
        "pipeline_parallel",
        read=lambda keys: 1 if keys.has("no_pipeline_parallel") else keys.count("pipeline_model_parallel_size") or 1,
    ),
    word("offload", "cpu_optimizer", {"none": False, "optimizer": True}),
    Row("activation_checkpointing", _deepspeed, _checkpointing),
    Row(
        "attention_kernel",
        lambda spec: {"attention_backend": "flash" if spec.layout.attention_kernel == "flash" else None},
        lambda keys: keys.chosen("attention_backend", KERNELS, None),
    ),
    word("norm", "normalization", {"rmsnorm": "rmsnorm", "layernorm": "layernorm"}, "layernorm"),
    Row(
        "vocab_size",
        # With its end-of-document token, which is one of Megatron-LM's tokens.
        read=lambda keys: padded(keys, (size := num_tokens(keys)) and size + (size != GPT2_VOCAB_SIZE)),
    ),
)
_OF_LM_ALONE = (
    *("zero_stage", "offload", "attention_kernel", "norm", "overlap_comm", "bucket_mib", "gradients_in_bf16"),
    *("rank_order", "tensor_parallel_overlap"),
)
"""Fields that the fork says by options of its own, or does not have."""
_PARTIAL = "partial recomputation is no value of activation_checkpointing"
_FLASH: Values = {"attention_backend": "flash"}
MEGATRON_DEEPSPEED = replace(
    MEGATRON_LM,
    table=Table(
        "Megatron-DeepSpeed",
        "2025-07-16 (4efb479d)",
        (*(row for row in CORE_ROWS if row.field not in _OF_LM_ALONE), *OF_BOTH, *_OF_THE_FORK),
        {
            **TRAINS_ANOTHER,
            **dict.fromkeys(("num_experts", "num_moe_experts"), "its experts are not read"),
            "*ds_sequence_parallel*": "sequences split over ranks (Ulysses) are no axis of a layout",
            "fp[48]*": "arithmetic in 8 or 4 bits is no value of precision",
            "checkpoint_in_cpu": _PARTIAL,
            "distribute_checkpointed_activations": _PARTIAL,
            "partition_activations": _PARTIAL,
            "enable_zbh1_*": "this pipeline schedule is no value of pipeline_schedule",
            "remote_device": "parameters in host memory are no value of offload",
            "standalone_embedding_stage": "uneven pipeline stages are no axis of a layout with this trainer",
            **dict.fromkeys(("data_efficiency_*", "kd", "mos", "random_ltd"), "the trainer pretrains a whole GPT"),
        },
        prefix="--",
    ),
    flags={
        **MEGATRON_LM.flags,
        "use-rotary-position-embeddings": {"position_embedding_type": "rope"},
        "use-flash-attn-v2": _FLASH,
    },
    older={
        **MEGATRON_LM.older,
        "checkpoint-activations": {"recompute_granularity": "full", "recompute_method": "uniform"},
        **{f"use-flash-attn{which}": _FLASH for which in ("", "-v1", "-triton", "-builder")},
    },
    names={
        "num_layers": "num-layers encoder-num-layers",
        "seq_length": "seq-length encoder-seq-length",
        "num_query_groups": "num-key-value-heads",
        "rotary_base": "rotary-position-embeddings-theta",
    },
    defaults={**MEGATRON_LM.defaults, "position_embedding_type": "learned_absolute", "normalization": "layernorm"},
    implied=MEGATRON_LM.implied | {"bias_activation_fusion"},
    of_a_trial=frozenset({*OF_A_TRIAL, "deepspeed-config"}),
)


def megatron_deepspeed_options(spec: TrialSpec, config_file: str, arguments: Sequence[str]) -> list[str]:
    """All options of Megatron-DeepSpeed's script, whose DeepSpeed configuration is `config_file`."""
    layout: list[Option] = [*MEGATRON_DEEPSPEED.options(spec), ["--deepspeed_config", config_file]]
    return words_of_a_trial(spec, layout, [], arguments)


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
