"""Values of options that are read, which no search file expresses."""

from __future__ import annotations

import re

from orchestrator.importers.megatron.layout_fields import chunks
from orchestrator.importers.megatron.model_fields import degree, num_layers
from orchestrator.importers.settings import Settings
from orchestrator.importers.value_rules import ValueRules, one_of


def last_of_schedule(options: Settings) -> int | None:
    """The last global batch of --step-batch-size-schedule, `0:768 250B:1536`."""
    found = re.search(r":(\d{1,9})$", (options.text("step-batch-size-schedule") or "").strip())
    return int(found[1]) if found else None


def _has_usual_head_size(options: Settings) -> bool:
    size, hidden = options.count("kv-channels"), options.count("hidden-size")
    heads = options.count("num-attention-heads")
    return not (size and hidden and heads) or size * heads == hidden


def _recomputes_whole_stages(options: Settings) -> bool:
    """True unless only the first layers of a stage are recomputed."""
    count, layers, stages = options.count("recompute-num-layers"), num_layers(options), degree(options, "pipeline")
    if options.text("recompute-method") != "block" or options.text("recompute-granularity") != "full":
        return True
    return bool(count and layers and stages and count * stages * (chunks(options) or 1) >= layers)


def _ends_in_the_global_batch(options: Settings) -> bool:
    last = last_of_schedule(options)
    return last is not None and last == (options.count("global-batch-size") or last)


MEGATRON_VALUE_RULES: ValueRules = (
    one_of(
        "position-embedding-type", ("learned_absolute", "rope"), "a model's position_embedding is learned or rotary"
    ),
    one_of("normalization", ("layernorm", "rmsnorm"), "a model's norm is layernorm or rmsnorm"),
    ("kv-channels", _has_usual_head_size, "a model's head size is hidden_size / num_attention_heads"),
    one_of(
        "recompute-modules",
        ("core_attn",),
        "activation_checkpointing selective recomputes the core attention; other modules are no value of it",
    ),
    (
        "recompute-method",
        _recomputes_whole_stages,
        "partial recomputation is no value of activation_checkpointing: full recomputes every layer",
    ),
    one_of("recompute-granularity", ("full", "selective"), "activation_checkpointing is none, selective or full"),
    one_of(
        "data-parallel-sharding-strategy",
        ("no_shard", "optim", "optim_grads", "optim_grads_params"),
        "zero_stage is 0 to 3",
    ),
    one_of("zero-stage", ("0", "1", "2", "3"), "zero_stage is 0 to 3"),
    one_of("optimizer-offload-fraction", ("1", "1.0"), "offload moves the whole optimizer"),
    (
        "step-batch-size-schedule",
        _ends_in_the_global_batch,
        "the global batch of a search is fixed: the last one of the schedule",
    ),
)
