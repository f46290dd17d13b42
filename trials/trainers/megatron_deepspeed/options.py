"""Megatron-DeepSpeed's table: what it shares with Megatron-LM, and its own options. Standard library only.

Option names: megatron/arguments.py (2025-07).
"""

from __future__ import annotations

from collections.abc import Sequence

from trials.trainers.common.megatron_core import CORE_ROWS
from trials.trainers.common.megatron_layout import KERNELS
from trials.trainers.common.megatron_options import (
    ALSO,
    FLAGS,
    GPT2_VOCAB_SIZE,
    LM_SPELLING,
    OF_BOTH,
    OLDER,
    TRAINS_ANOTHER,
    USERS,
    flattened,
    num_tokens,
    of_the_trial,
    padded,
    refused_argument,
)
from trials.trainers.common.megatron_spelling import Option, Spelling
from trials.trainers.common.options import option_names
from trials.trainers.table import Keys, Row, Table, Trained, Values, word
from trials.trial import TrialSpec


def _checkpointing(keys: Keys) -> str | None:
    """--checkpoint-activations prevails over the granularity. The pipeline recomputes layers by the method uniform
    alone (megatron/model/gpt_model.py)."""
    if keys.has("checkpoint_activations"):
        return "full"
    granularity, method = keys.text("recompute_granularity"), keys.text("recompute_method")
    if granularity != "full":
        return granularity
    has_pipeline = keys.has("deepspeed") and not keys.has("no_pipeline_parallel")
    return "full" if method == "uniform" or not has_pipeline else None


def _deepspeed(spec: Trained) -> Values:
    layout = spec.layout
    return {
        "deepspeed": True,
        "zero_stage": str(layout.zero_stage),
        "no_pipeline_parallel": layout.pipeline_parallel == 1,
        "deepspeed_activation_checkpointing": layout.activation_checkpointing == "full",
    }


_STAGES = {str(stage): stage for stage in range(4)}
_OF_THE_FORK = (
    Row("zero_stage", _deepspeed, lambda keys: keys.chosen("zero_stage", _STAGES, None, "zero_stage is 0 to 3")),
    Row(
        "pipeline_parallel",
        read=lambda keys: 1 if keys.has("no_pipeline_parallel") else keys.count("pipeline_model_parallel_size") or 1,
    ),
    Row(
        "offload",
        lambda spec: {"cpu_optimizer": spec.layout.offload == "optimizer"},
        lambda keys: "optimizer" if keys.has("cpu_optimizer") else None,
    ),
    Row("activation_checkpointing", read=_checkpointing),
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
    *("rank_order", "tensor_parallel_overlap", "expert_overlap"),
)
"""Fields that the fork says by options of its own, or does not have."""
_FLASH = ("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-triton", "use-flash-attn-builder")

DEEPSPEED_SPELLING = Spelling(
    flags={
        **FLAGS,
        "use-rotary-position-embeddings": {"position_embedding_type": "rope"},
        "use-flash-attn-v2": {"attention_backend": "flash"},
    },
    older={**OLDER, **{flag: {"attention_backend": "flash"} for flag in _FLASH}},
    names={"num_query_groups": "num-key-value-heads", "rotary_base": "rotary-position-embeddings-theta"},
    also=ALSO,
    defaults={**LM_SPELLING.defaults, "position_embedding_type": "learned_absolute", "normalization": "layernorm"},
    implied=LM_SPELLING.implied | {"bias_activation_fusion"},
)
_PARTIAL = "partial recomputation is no value of activation_checkpointing"
_ROWS = (*(row for row in CORE_ROWS if row.field not in _OF_LM_ALONE), *OF_BOTH, *_OF_THE_FORK)
MEGATRON_DEEPSPEED = Table(
    "Megatron-DeepSpeed",
    "2025-07-16 (4efb479d)",
    _ROWS,
    {
        **{name: why for name, why in TRAINS_ANOTHER.items() if name != "checkpoint_activations"},
        "num_moe_experts": "its experts are not read",
        "num_experts": "its experts are not read",
        "*ds_sequence_parallel*": "sequences split over ranks (Ulysses) are no axis of a layout",
        "fp8_*": "8-bit arithmetic is no value of precision",
        "checkpoint_in_cpu": _PARTIAL,
        "distribute_checkpointed_activations": _PARTIAL,
        "partition_activations": _PARTIAL,
        "enable_zbh1_*": "this pipeline schedule is no value of pipeline_schedule",
        "remote_device": "parameters in host memory are no value of offload",
        "standalone_embedding_stage": "uneven pipeline stages are no axis of a layout with this trainer",
        **dict.fromkeys(("data_efficiency_*", "kd", "mos", "random_ltd"), "a search pretrains a whole GPT"),
    },
    flags=DEEPSPEED_SPELLING.all_flags(_ROWS) | {"checkpoint-activations"},
    prefix="--",
)


def megatron_deepspeed_options(spec: TrialSpec, config_file: str, arguments: Sequence[str]) -> list[str]:
    """All options of Megatron-DeepSpeed's script, whose DeepSpeed configuration is `config_file`."""
    options = [*megatron_deepspeed_layout(spec), ["--deepspeed_config", config_file], *of_the_trial(spec)]
    given = option_names(arguments)
    return flattened(options, given) + list(arguments)


def megatron_deepspeed_layout(spec: TrialSpec) -> list[Option]:
    """Megatron-DeepSpeed's options for layout, model and batch, besides those of its DeepSpeed configuration."""
    return [*DEEPSPEED_SPELLING.options(MEGATRON_DEEPSPEED.written(spec))]


_OURS = frozenset({"train-iters", "log-interval", "eval-iters", "eval-interval", "seed", "deepspeed-config"})
_OURS |= DEEPSPEED_SPELLING.all_options(_ROWS) - USERS


def unsupported_option_reason(name: str) -> str | None:
    """The reason why the user's arguments may not have an option of this name; None where they may."""
    return refused_argument(name, _OURS, MEGATRON_DEEPSPEED)
