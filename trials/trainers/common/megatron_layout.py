"""Rows of megatron-core's table for a layout. Standard library only.

Names and defaults: megatron/core/transformer/transformer_config.py,
distributed/distributed_data_parallel_config.py and optimizer/optimizer_config.py of core_v0.16.1 and of main (2026-08).
A row writes all of its fields; None is the core's default.
"""

from __future__ import annotations

from search_spaces.errors import InputError
from search_spaces.layouts.layout import AXES, CHOICES, INNER_CONTEXT
from search_spaces.layouts.matmul_recipes import MATMUL_RECIPES, TRANSFORMER_ENGINE_RECIPES
from search_spaces.layouts.pipeline_split import GivenSplit
from search_spaces.rules.engine_rules import MEGATRON_SCHEDULES
from trials.trainers.table import SWITCH, Keys, Row, Trained, Values, number, switch, word

_SHARDING_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stage of Megatron-FSDP's strategies."""
KERNELS = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "math", "local": "math"}
"""Attention kernel of Megatron's backends; auto is flash or fused in half precision."""
_TRANSPORTS = {"p2p": "p2p", "all_gather": "all_gather", "a2a": "a2a", "a2a_p2p": "a2a+p2p"}
_RECIPES = {word: word.removeprefix("fp8_") for word in TRANSFORMER_ENGINE_RECIPES}


# -- parts of a row


def is_on(keys: Keys, name: str, default: bool = False) -> bool | None:
    """A switch; None where another file decides it."""
    return keys.chosen(name, SWITCH, keys.default(name, default))


def has_experts(keys: Keys) -> bool:
    """False without experts; where their number may be another file's, only if it is said to be none."""
    count = keys.value("num_moe_experts")
    return keys.default("num_moe_experts", False) is None if count is None else str(count) != "0"


# -- parallelism


_CHUNKS, PIPELINE_LAYOUT = "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"


def _stages(spec: Trained) -> Values:
    """Interleaved stages overlap what they send, others send in one batch: Megatron-LM's own choice."""
    chunks = spec.layout.virtual_pipeline_stages
    return {
        _CHUNKS: chunks if chunks > 1 and not GivenSplit.of(spec.layout).has_uneven_stage else None,
        "overlap_p2p_comm": chunks > 1,
        "batch_p2p_comm": chunks == 1,
    }


def _counted(spec: Trained) -> Values:
    return {_account(part): part in spec.layout.pipeline_split for part in AXES["pipeline_split"].parts}


def _stage_layers(spec: Trained) -> Values:
    """The layers of the first and the last stage, or where the chunks of one differ, the modules of every chunk:
    `Ett|tt|tt|tL`. MTP layers are in the last one."""
    split, further = GivenSplit.of(spec.layout), "m" * (spec.model.num_mtp_layers or 0)
    chunks = (split.chunk_layers(spec.model.num_layers) or ()) if split.has_uneven_stage else ()
    return {
        PIPELINE_LAYOUT: f"E{'|'.join('t' * layers for layers in chunks)}{further}L" if chunks else None,
        "num_layers_in_first_pipeline_stage": None if chunks else split.first,
        "num_layers_in_last_pipeline_stage": None if chunks else split.last,
    }


def _account(part: str) -> str:
    return f"account_for_{part}_in_pipeline_split"


def _pipeline_split(keys: Keys) -> str | None:
    """None where the recipe decides something that counts as a layer."""
    axis = AXES["pipeline_split"]
    counted = {part: is_on(keys, _account(part)) for part in axis.parts}
    if None in counted.values():
        return None
    return axis.joined([part for part, is_counted in counted.items() if is_counted]) or "own"


def _transport(keys: Keys) -> str | None:
    """One transport, or one for each layer, which are the same."""
    if not (given := keys.words("cp_comm_type")):
        return keys.default("cp_comm_type", "p2p")
    words = {name.replace("_", ""): word for word, name in _TRANSPORTS.items()}
    found = {words.get(name.lower().replace("_", "")) for name in given}
    if len(found) > 1 or None in found:
        raise InputError(
            keys.problem("cp_comm_type", "context_transport is p2p, all_gather, a2a or a2a+p2p, of all layers")
        )
    return found.pop()


def _comm_type(spec: Trained) -> Values:
    """The transport; of a hierarchy its sizes, too, the inner groups first."""
    transport, count = spec.layout.context_transport, spec.layout.context_parallel
    return {
        "cp_comm_type": _TRANSPORTS[transport] if count > 1 else None,
        "hierarchical_context_parallel_sizes": [INNER_CONTEXT, count // INNER_CONTEXT]
        if transport == "a2a_p2p"
        else None,
    }


_PARALLELISM = (
    number("tensor_parallel", "tensor_model_parallel_size", 1),
    number("pipeline_parallel", "pipeline_model_parallel_size", 1),
    Row("virtual_pipeline_stages", _stages, number("virtual_pipeline_stages", _CHUNKS, 1).read),
    Row("pipeline_split", _counted, _pipeline_split),
    Row("first_stage_layers", _stage_layers, number("first_stage_layers", "num_layers_in_first_pipeline_stage").read),
    Row("last_stage_layers", read=number("last_stage_layers", "num_layers_in_last_pipeline_stage").read),
    Row("pipeline_schedule", values=MEGATRON_SCHEDULES),
    switch("sequence_parallel", "sequence_parallel", False),
    switch("tensor_parallel_overlap", "tp_comm_overlap", False),
    number("context_parallel", "context_parallel_size", 1),
    Row("context_transport", _comm_type, _transport),
    word("rank_order", "use_tp_pp_dp_mapping", {"tp-pp-dp": True, "tp-dp-pp": False}, "tp-dp-pp"),
    number("micro_batch_size", "micro_batch_size"),
)


# -- data parallelism and the optimizer


def _sharding(spec: Trained) -> Values:
    """ZeRO 2 and 3 are Megatron-FSDP, which has its own checkpoint format and gradients."""
    stage = spec.layout.zero_stage
    names = {stage: name for name, stage in _SHARDING_STAGES.items()}
    return {
        "use_distributed_optimizer": stage > 0,
        "use_megatron_fsdp": stage > 1,
        "data_parallel_sharding_strategy": names[stage] if stage > 1 else "no_shard",
        "ckpt_format": "fsdp_dtensor" if stage > 1 else None,
        "gradient_accumulation_fusion": False if stage > 1 else None,
    }


def _zero_stage(keys: Keys) -> int | None:
    is_sharded = is_on(keys, "use_distributed_optimizer")
    if keys.has("use_megatron_fsdp"):
        strategy = "data_parallel_sharding_strategy"
        stage: int | None = keys.chosen(strategy, _SHARDING_STAGES, keys.default(strategy, 3), "zero_stage is 0 to 3")
        return stage
    return None if is_sharded is None else int(is_sharded)


_GRADIENT_BYTES = {True: 2, False: 4}
"""Bytes of a gradient by `gradients_in_bf16`: otherwise Megatron keeps and reduces them in fp32, by default with bf16,
by an option with fp16. A bucket is counted in parameters."""


def _bucket(spec: Trained) -> Values:
    mib, width = spec.layout.bucket_mib, _GRADIENT_BYTES[spec.layout.gradients_in_bf16]
    return {"bucket_size": None if mib is None else mib * 2**20 // width}


def _bucket_mib(keys: Keys) -> int | None:
    if (parameters := keys.count("bucket_size")) is None:
        return None
    width = _GRADIENT_BYTES[is_on(keys, "grad_reduce_in_fp32", True) is False]
    return max(1, round(parameters * width / 2**20))


def _offloading(spec: Trained) -> Values:
    """The optimizer that knows types of moments offloads, too."""
    offloads = spec.layout.offload == "optimizer"
    return {
        "optimizer_cpu_offload": offloads,
        "optimizer_offload_fraction": 1.0 if offloads else None,
        "use_precision_aware_optimizer": True if offloads or spec.layout.moment_dtype != "fp32" else None,
    }


def _offload(keys: Keys) -> str | None:
    """Megatron-Bridge offloads nothing unless told what fraction."""
    if not (offloads := is_on(keys, "optimizer_cpu_offload")):
        return None if offloads is None else "none"
    fraction = keys.text("optimizer_offload_fraction") or keys.default("optimizer_offload_fraction", "1")
    if fraction not in (None, "1", "1.0"):
        raise InputError(keys.problem("optimizer_offload_fraction", "offload moves the whole optimizer"))
    return None if fraction is None else "optimizer"


def _moments(spec: Trained) -> Values:
    dtype = None if spec.layout.moment_dtype == "fp32" else spec.layout.moment_dtype
    return {"exp_avg_dtype": dtype, "exp_avg_sq_dtype": dtype}


def _moment_dtype(keys: Keys) -> str | None:
    rule = "moment_dtype is the type of both moments: fp32, bf16 or fp8"
    names = {"float32": "fp32", "bfloat16": "bf16", "uint8": "fp8"}
    words = {word: word for word in CHOICES["moment_dtype"]} | {f"torch.{name}": word for name, word in names.items()}
    first, second = (
        keys.chosen(name, words, keys.default(name, "fp32"), rule) for name in ("exp_avg_dtype", "exp_avg_sq_dtype")
    )
    if None not in (first, second) and first != second:
        raise InputError(keys.problem("exp_avg_dtype" if keys.has("exp_avg_dtype") else "exp_avg_sq_dtype", rule))
    return first


_DATA_PARALLELISM = (
    Row("zero_stage", _sharding, _zero_stage),
    switch("overlap_comm", "overlap_grad_reduce", False),
    Row("bucket_mib", _bucket, _bucket_mib),
    number("data_parallel_replicas", "num_distributed_optimizer_instances", 1),
    switch("gradients_in_bf16", "grad_reduce_in_fp32", False, is_inverted=True),
    Row("offload", _offloading, _offload),
    Row("moment_dtype", _moments, _moment_dtype),
)


# -- arithmetic, recomputation and kernels


def precision_of(keys: Keys) -> str | None:
    on = {name: is_on(keys, name) for name in ("bf16", "fp16")}
    found = next((name for name, is_set in on.items() if is_set), "fp32")
    return None if found == "fp32" and None in on.values() else found


def _quantization(spec: Trained) -> Values:
    """Products of 8 and 4 bits, by Transformer Engine, in the formats of Megatron-Bridge's recipes
    (src/megatron/bridge/training/mixed_precision.py)."""
    layout = spec.layout
    precision = layout.matmul_precision
    in_4_bits = precision != "same" and MATMUL_RECIPES[precision].arithmetic == "fp4"
    in_8_bits, are_quantized = precision != "same" and not in_4_bits, layout.quantized_weights
    return {
        "fp8": ("e4m3" if precision == "mxfp8" else "hybrid") if in_8_bits else None,
        "fp8_recipe": _RECIPES[precision] if in_8_bits else None,
        "fp4": "e2m1" if in_4_bits else None,
        "fp8_param": are_quantized and in_8_bits,
        "fp4_param": are_quantized and in_4_bits,
        # Otherwise the gathered weights have a buffer of their own, in 16 bits.
        "reuse_grad_buf_for_mxfp8_param_ag": are_quantized and precision == "mxfp8",
    }


def _matmul_precision(keys: Keys) -> str | None:
    """Delayed scaling is the default of 8 bits."""
    rule = "matmul_precision has the recipes delayed, tensorwise, blockwise, mxfp8 and nvfp4"
    if keys.has("fp4"):
        return keys.chosen("fp4_recipe", {"nvfp4": "nvfp4"}, "nvfp4", rule)
    if keys.has("fp8"):
        return keys.chosen("fp8_recipe", {name: word for word, name in _RECIPES.items()}, "fp8_delayed", rule)
    return keys.default("fp8", "same")


def _quantized_weights(keys: Keys) -> bool | None:
    found = [is_on(keys, "fp8_param"), is_on(keys, "fp4_param")]
    return True if True in found else None if None in found else False


def _recomputation(spec: Trained) -> Values:
    """The method uniform recomputes every layer by itself; block the first layers of each model chunk."""
    granularity, layers = spec.layout.activation_checkpointing, spec.layout.recompute_layers
    is_full, is_default = granularity == "full", spec.layout.recompute_modules == AXES["recompute_modules"].default
    return {
        "recompute_granularity": None if granularity == "none" else granularity,
        "recompute_method": ("uniform" if layers is None else "block") if is_full else None,
        "recompute_num_layers": (layers or 1) if is_full else None,
        "recompute_modules": None if is_default else list(spec.layout.modules_recomputed) or None,
    }


_GRANULARITY = word(
    "activation_checkpointing",
    "recompute_granularity",
    {"none": None, "selective": "selective", "full": "full"},
    "none",
)


def _recompute_layers(keys: Keys) -> int | None:
    """None where the method block recomputes all layers of a chunk, or more than it has."""
    if keys.text("recompute_method") != "block" or keys.text("recompute_granularity") != "full":
        return None
    count, layers = keys.count("recompute_num_layers"), keys.count("num_layers")
    if count is None and keys.default("recompute_num_layers", True):
        raise InputError(keys.problem("recompute_method", "Megatron-LM's method block needs --recompute-num-layers"))
    parts = (keys.count("pipeline_model_parallel_size") or 1) * (keys.count(_CHUNKS) or 1)
    return None if count and layers and count * parts >= layers else count


def _recompute_modules(keys: Keys) -> str | None:
    axis, names = AXES["recompute_modules"], keys.words("recompute_modules")
    if not names:
        return keys.default("recompute_modules", axis.default)
    if (found := axis.joined(names)) is None and keys.text("recompute_granularity") != "full":
        choice = axis.choice_of(axis.values_of("megatron-lm") or axis.words)
        raise InputError(keys.problem("recompute_modules", f"recompute_modules is {choice}"))
    return found


def _backend(spec: Trained) -> Values:
    """Kernel of the layout. With sinks the flash one is cuDNN's: transformer_engine/pytorch/attention/
    dot_product_attention/utils.py, get_attention_backend, has no flash-attn for a learnable softmax."""
    flash = "fused" if spec.model.attention_sinks else "flash"
    return {"attention_backend": flash if spec.layout.attention_kernel == "flash" else "unfused"}


def _attention_kernel(keys: Keys) -> str | None:
    """By default a fused one in half precision."""
    precision = precision_of(keys)
    if keys.text("transformer_impl") == "local" or precision == "fp32":
        return "math"
    rule = "attention_kernel is math or flash"
    return keys.chosen("attention_backend", KERNELS, None if precision is None else "flash", rule)


def _cuda_graphs(spec: Trained) -> Values:
    """A graph of all passes is Megatron's local one, in which the host cannot look at the loss. Captured experts have
    room for half as many tokens more; where these are too many, the step is run again without the graph. The factor is
    that of Megatron-Bridge's recipes (src/megatron/bridge/perf_recipes/qwen/common.py)."""
    layout = spec.layout
    word, experts = layout.cuda_graphs, layout.captures_experts
    captured = [] if word == "none" else list(layout.modules_captured or (word,))
    return {
        "cuda_graph_impl": {"none": "none", "full_iteration": "local"}.get(word, "transformer_engine"),
        "cuda_graph_scope": captured,
        "use_te_rng_tracker": True if captured else None,
        "check_for_nan_in_grad": False if word == "full_iteration" else None,
        "moe_paged_stash": True if experts else None,
        "moe_expert_rank_capacity_factor": 1.5 if experts else None,
        "use_transformer_engine_op_fuser": True if experts else None,
    }


def _captured(keys: Keys) -> str | None:
    """What graphs capture; None where the recipe decides it."""
    implementation = keys.text("cuda_graph_impl") or keys.default("cuda_graph_impl", "none")
    if implementation in (None, "none", "full_iteration"):
        return implementation
    names, scope = keys.words("cuda_graph_scope"), "cuda_graph_scope"
    if not names and not keys.has(scope) and keys.default(scope, True) is None:
        return None
    of_layers = None if has_experts(keys) else "attn+mlp"
    found = of_layers if names in ([], ["full"]) else AXES["cuda_graphs"].joined(names)
    found = "full_iteration" if names == ["full_iteration"] else found
    if found is None:
        choice = AXES["cuda_graphs"].choice_of(AXES["cuda_graphs"].words)
        raise InputError(keys.problem(scope if names else "cuda_graph_impl", f"cuda_graphs is {choice}"))
    return found


_ARITHMETIC = (
    Row("precision", lambda spec: {word: spec.layout.precision == word for word in ("bf16", "fp16")}, precision_of),
    Row("matmul_precision", _quantization, _matmul_precision),
    Row("quantized_weights", read=_quantized_weights),
    Row("activation_checkpointing", _recomputation, _GRANULARITY.read),
    Row("recompute_layers", read=_recompute_layers),
    Row("recompute_modules", read=_recompute_modules),
    Row("attention_kernel", _backend, _attention_kernel),
    Row("cuda_graphs", _cuda_graphs, _captured),
)

LAYOUT_ROWS = (*_PARALLELISM, *_DATA_PARALLELISM, *_ARITHMETIC)
