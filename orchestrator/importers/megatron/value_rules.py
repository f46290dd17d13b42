"""Values of options that are read, which no search file expresses."""

from __future__ import annotations

import re

from orchestrator.importers import reasons
from orchestrator.importers.deepspeed_config import ZERO_STAGES
from orchestrator.importers.megatron.layout_fields import (
    FSDP_STAGES,
    GRAPH_MODULES,
    LAYOUT_FIELDS,
    MEGATRON_LAYERS_IN_BF16,
    STAGE_LAYOUT,
    chunks,
    context_transport,
    inner_context,
    pipeline_parallel,
    recompute_modules,
    recomputes_blocks,
)
from orchestrator.importers.megatron.model_fields import CORE, is_megatron_deepspeed, num_layers, window
from orchestrator.importers.settings import Settings, ValueRule, ValueRules, one_of
from search_spaces.layouts.layout import CHOICES
from trials.trainers.common.megatron_options import RECIPE_NAMES


def last_of_schedule(options: Settings) -> int | None:
    """The last global batch of --step-batch-size-schedule, `0:768 250B:1536`."""
    found = re.search(r":([0-9]{1,9})$", (options.text("step-batch-size-schedule") or "").strip())
    return int(found[1]) if found else None


def _recomputes_whole_stages(options: Settings) -> bool:
    """True unless Megatron-DeepSpeed recomputes only the first layers of a stage."""
    if not is_megatron_deepspeed(options) or not recomputes_blocks(options):
        return True
    count, layers, stages = options.count("recompute-num-layers"), num_layers(options), pipeline_parallel(options)
    return bool(count and layers and stages and count * stages * (chunks(options) or 1) >= layers)


def _says_how_many_layers(options: Settings) -> bool:
    counts = options.has("recompute-num-layers") or options.is_in_doubt("recompute-num-layers")
    return is_megatron_deepspeed(options) or not recomputes_blocks(options) or counts


def _recomputes_known_modules(options: Settings) -> bool:
    names = (options.text("recompute-modules") or "").split()
    return options.text("recompute-granularity") == "full" or recompute_modules(names) is not None


def _ends_in_the_global_batch(options: Settings) -> bool:
    last = last_of_schedule(options)
    return last is not None and last == (options.count("global-batch-size") or last)


def _keeps_as_many_layers_at_both_ends(options: Settings) -> bool:
    names = (f"num-layers-at-{end}-in-bf16" for end in ("start", "end"))
    first, last = (options.counted(name, MEGATRON_LAYERS_IN_BF16) for name in names)
    return first == last


def _has_equal_moments(options: Settings) -> bool:
    names = ("exp-avg-dtype", "exp-avg-sq-dtype")
    first, second = (str(options.text(name) or "fp32").lower() for name in names)
    return first == second and first in CHOICES["moment_dtype"]


def _skips_regularly(options: Settings) -> bool:
    return re.fullmatch(r"[1-9][0-9]*", options.text("window-attn-skip-freq") or "1") is not None


def _has_one_transport(options: Settings) -> bool:
    return context_transport((options.text("cp-comm-type") or "").split()) is not None


def _has_two_sizes(options: Settings) -> bool:
    return inner_context((options.text("hierarchical-context-parallel-sizes") or "").split()) is not None


def _captures_known_modules(options: Settings) -> bool:
    return LAYOUT_FIELDS["cuda_graphs"](options) is not None


def _captures_known_layers(options: Settings) -> bool:
    return options.has(*GRAPH_MODULES) or _captures_known_modules(options)


MEGATRON_VALUE_RULES: ValueRules = (
    *(ValueRule(name, _captures_known_modules, reasons.CUDA_GRAPHS) for name in GRAPH_MODULES),
    *(
        ValueRule(name, _captures_known_layers, reasons.CUDA_GRAPHS)
        for name in ("cuda-graph-impl", "enable-cuda-graph", "external-cuda-graph")
    ),
    *STAGE_LAYOUT.rules,
    ValueRule("cp-comm-type", _has_one_transport, reasons.CONTEXT_TRANSPORT),
    ValueRule("hierarchical-context-parallel-sizes", _has_two_sizes, reasons.CONTEXT_INNER),
    one_of("fp8-recipe", RECIPE_NAMES.values(), reasons.RECIPE),
    one_of("fp4-recipe", ("nvfp4",), reasons.RECIPE),
    ValueRule("num-layers-at-start-in-bf16", _keeps_as_many_layers_at_both_ends, reasons.LAYERS_IN_BF16),
    ValueRule("num-layers-at-end-in-bf16", _keeps_as_many_layers_at_both_ends, reasons.LAYERS_IN_BF16),
    ValueRule("exp-avg-dtype", _has_equal_moments, reasons.MOMENTS),
    ValueRule("exp-avg-sq-dtype", _has_equal_moments, reasons.MOMENTS),
    ValueRule("moe-token-dispatcher-type", CORE.has_known_dispatcher, reasons.DISPATCHER),
    ValueRule("moe-flex-dispatcher-backend", CORE.has_known_dispatcher, reasons.DISPATCHER),
    ValueRule("moe-layer-freq", CORE.has_known_layers, reasons.EXPERT_LAYERS),
    ValueRule("window-size", lambda options: window(options) is not None, reasons.WINDOW),
    ValueRule("window-attn-skip-freq", _skips_regularly, "full_attention_every is a whole number"),
    one_of("softmax-type", ("vanilla", "learnable"), "attention_sinks are learned, or none"),
    one_of("position-embedding-type", ("learned_absolute", "rope"), reasons.MEGATRON_POSITIONS),
    one_of("normalization", ("layernorm", "rmsnorm"), reasons.NORM),
    ValueRule("recompute-modules", _recomputes_known_modules, reasons.MODULES),
    ValueRule("recompute-method", _recomputes_whole_stages, reasons.WHOLE_STAGES),
    ValueRule(
        "recompute-method",
        _says_how_many_layers,
        "Megatron-LM's method block needs --recompute-num-layers",
        "add it to the file",
    ),
    one_of("recompute-granularity", ("full", "selective"), reasons.CHECKPOINTING),
    one_of(
        "data-parallel-sharding-strategy",
        FSDP_STAGES,
        reasons.ZERO_STAGE,
    ),
    one_of("zero-stage", ZERO_STAGES, reasons.ZERO_STAGE),
    one_of("optimizer-offload-fraction", ("1", "1.0"), reasons.WHOLE_OPTIMIZER),
    ValueRule(
        "step-batch-size-schedule",
        _ends_in_the_global_batch,
        "the global batch of a search is fixed: the last one of the schedule",
    ),
)
