"""Model, layout and batch, read from torchtitan's options. None for what a command does not say of a configuration that
is not known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.settings import SWITCH, FieldReaders, Settings, ValueRule, ValueRules, head_size, one_of
from search_spaces.layouts.layout import V_SCHEDULES
from search_spaces.layouts.matmul_recipes import TORCHAO_RECIPES
from search_spaces.layouts.pipeline_split import GivenSplit
from trials.trainers.torchtitan.config import ATTENTION, CONVERTERS, DTYPES, SCHEDULES

_P, _T, _M = "parallelism.", "training.", "model_spec."
FLOAT8 = f"{_M}float8."
"""Section of the arguments of a Float8LinearConverter."""
CONVERTED = {word: f"{_M}{word}.fqns" for word in CONVERTERS}
"""Names of the layers that a converter of this recipe converts, all where there are none."""
POLICIES = {"none": "none", "selective": "selective", "full": "full"}
_SCHEDULES = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
_PRECISIONS = {theirs: ours for ours, theirs in DTYPES.items()}
_KERNELS = {**{theirs: ours for ours, theirs in ATTENTION.items()}, "flex_flash": "flex"}
_RECIPES = {word.removeprefix("fp8_"): word for word in TORCHAO_RECIPES if word not in CONVERTERS}
_RESHARD = {"default": None, "always": 3, "never": 2}


def stages(keys: Settings) -> int | None:
    """Pipeline stages."""
    return keys.count(f"{_P}pipeline_parallel_degree")


def _tensor(keys: Settings) -> int | None:
    return keys.count(f"{_P}tensor_parallel_degree")


def count_or_default(keys: Settings, name: str) -> int | None:
    """A whole number; None for -1, with which torchtitan computes it."""
    return None if str(keys.value(name)) == "-1" else keys.count(name)


def _shards(keys: Settings) -> int | None:
    return count_or_default(keys, f"{_P}data_parallel_shard_degree")


def _data_parallel(keys: Settings) -> int | None:
    """Replicas x shards; None where the shards are all other ranks."""
    replicas, shards = keys.count(f"{_P}data_parallel_replicate_degree"), _shards(keys)
    return replicas * shards if replicas and shards else None


def _context(keys: Settings) -> int | None:
    degree = keys.count(f"{_P}context_parallel_degree")
    return None if degree == 1 else degree


def _is_whole(keys: Settings) -> bool:
    """True where every rank has whole weights: context-parallel ranks shard them, too."""
    return _shards(keys) == 1 and _context(keys) is None


def _zero_stage(keys: Settings) -> int | None:
    """By default weights are resharded after the forward pass unless there is a pipeline."""
    name = f"{_P}fsdp_reshard_after_forward"
    if _is_whole(keys):
        return 0
    stated = keys.chosen(name, _RESHARD, None)
    pipeline = stages(keys)
    if stated is not None or pipeline is None or keys.value(name) is None:
        return stated
    return 2 if pipeline > 1 else 3


def _replicas(keys: Settings) -> int | None:
    """Replicas that are themselves sharded."""
    return 1 if _is_whole(keys) else keys.count(f"{_P}data_parallel_replicate_degree")


def micro_batch_size(keys: Settings) -> int | None:
    """Sequences of a micro-batch: a pipeline cuts the local batch into them."""
    pipeline = stages(keys)
    name = f"{_P}pipeline_parallel_microbatch_size" if (pipeline or 1) > 1 else f"{_T}local_batch_size"
    return keys.count(name) if pipeline else None


def micro_batches_of_a_pass(keys: Settings) -> int | None:
    """Micro-batches that go through a pipeline one after the other, 1 without a pipeline."""
    local, micro = keys.count(f"{_T}local_batch_size"), micro_batch_size(keys)
    return local // micro if local and micro else None


def _grad_accum_steps(keys: Settings) -> int | None:
    """None with a global batch, from which it follows."""
    if count_or_default(keys, f"{_T}global_batch_size"):
        return None
    return micro_batches_of_a_pass(keys)


def _checkpointing(keys: Settings) -> str | None:
    return keys.chosen("activation_checkpoint", POLICIES, None)


def _recompute_modules(keys: Settings) -> str | None:
    return "ops" if _checkpointing(keys) == "selective" else None


def _recompute_layers(keys: Settings) -> int | None:
    return keys.count("activation_checkpoint.layers") if _checkpointing(keys) == "full" else None


def _sequence_parallel(keys: Settings) -> bool | None:
    """Without effect on one tensor-parallel rank."""
    is_on = keys.chosen(f"{_P}enable_sequence_parallel", SWITCH, None)
    return False if _tensor(keys) == 1 else is_on


def _schedule(keys: Settings) -> str | None:
    if (stages(keys) or 1) == 1:
        return None
    return keys.chosen(f"{_P}pipeline_parallel_schedule", _SCHEDULES, None)


def _chunks(keys: Settings) -> int | None:
    """Model chunks of a stage: by their lists of modules, by the layers of each, or by the schedule."""
    pipeline, schedule = stages(keys), _schedule(keys)
    if pipeline is None or pipeline == 1:
        return None
    if parts := keys.listed(f"{_P}module_fqns_per_model_part"):
        return len(parts) // pipeline
    each, layers = keys.count(f"{_P}pipeline_parallel_layers_per_stage"), keys.count(f"{_M}n_layers")
    if each and layers:
        less = (f"{_P}pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
        return max(1, ceil((layers + sum(_whole(keys, name) for name in less)) / each) // pipeline)
    if schedule is None or each:
        return None
    return 2 if schedule in ("interleaved_1f1b", *V_SCHEDULES) else 1


def _pipeline_split(keys: Settings) -> str | None:
    """Parts that torchtitan counts as layers: the first and last stage have so many layers fewer, if they divide."""
    pipeline, chunks, layers = stages(keys), _chunks(keys), keys.count(f"{_M}n_layers")
    less = tuple(keys.value(f"{_P}pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last"))
    word = {(0, 0): "even", (1, 0): "embedding", (0, 1): "loss", (1, 1): "embedding+loss"}.get(less)
    if not (pipeline and chunks and layers and word) or keys.listed(f"{_P}module_fqns_per_model_part"):
        return None
    return word if pipeline > 1 and GivenSplit(pipeline, chunks, word, None, None).chunk_layers(layers) else None


def _whole(keys: Settings, name: str) -> int:
    """A whole number from 0 on, 1 by default."""
    return 0 if str(keys.value(name)) == "0" else keys.counted(name, 1) or 1


def _precision(keys: Settings) -> str | None:
    """Weights in bf16 decide it; else the dtype of computation."""
    weights = keys.chosen(f"{_T}dtype", _PRECISIONS, None)
    computed = keys.chosen(f"{_T}mixed_precision_param", _PRECISIONS, None)
    return weights if weights == "bf16" else computed if weights else None


def components(keys: Settings) -> list[str]:
    """Parts that are compiled."""
    return [word for part in keys.listed("compile.components") for word in str(part).split(",")]


def _compile(keys: Settings) -> bool | None:
    """Only blocks count: the loss alone is a small part of a step."""
    is_on = keys.chosen("compile.enable", SWITCH, None)
    return False if is_on and "model" not in components(keys) else is_on


def _tensor_overlap(keys: Settings) -> bool | None:
    """Without effect on one tensor-parallel rank."""
    is_on = keys.chosen("compile.enable_async_tensor_parallel", SWITCH, None)
    return False if _tensor(keys) == 1 else is_on


def _matmul_precision(keys: Settings) -> str | None:
    found = (word for word, name in CONVERTED.items() if keys.has(name))
    return next(found, None) or keys.chosen(f"{FLOAT8}recipe_name", _RECIPES, None)


def _expert_parallel(keys: Settings) -> int | None:
    degree = keys.count(f"{_P}expert_parallel_degree")
    return None if degree == 1 else degree


def _expert_tensor(keys: Settings) -> int | None:
    """Tensor-parallel ranks split every expert where none distributes them."""
    return _tensor(keys) if keys.has(f"{_M}num_experts") and _expert_parallel(keys) is None else None


LAYOUT_FIELDS: FieldReaders = {
    "tensor_parallel": _tensor,
    "pipeline_parallel": stages,
    "data_parallel": _data_parallel,
    "micro_batch_size": micro_batch_size,
    "grad_accum_steps": _grad_accum_steps,
    "zero_stage": _zero_stage,
    "data_parallel_replicas": _replicas,
    "activation_checkpointing": _checkpointing,
    "recompute_layers": _recompute_layers,
    "pipeline_split": _pipeline_split,
    "recompute_modules": _recompute_modules,
    "sequence_parallel": _sequence_parallel,
    "virtual_pipeline_stages": _chunks,
    "pipeline_schedule": _schedule,
    "precision": _precision,
    "attention_kernel": lambda keys: keys.chosen(f"{_M}attn_backend", _KERNELS, None),
    "torch_compile": _compile,
    "tensor_parallel_overlap": _tensor_overlap,
    "matmul_precision": _matmul_precision,
    "context_parallel": _context,
    "expert_parallel": _expert_parallel,
    "expert_tensor_parallel": _expert_tensor,
}


def _of_llama3(value: Any) -> Any:
    """Reader of what every llama3 has; None where the model is not known."""
    return lambda keys: value if keys.has(f"{_M}n_layers") else None


def _key_value_heads(keys: Settings) -> int | None:
    """Null is one of each head's own."""
    name = f"{_M}n_kv_heads"
    return keys.count(f"{_M}n_heads") if keys.is_null(name) else keys.count(name, f"{_M}n_heads")


def _whole_from_0(name: str) -> Callable[[Settings], int | None]:
    """Reader of a whole number that may be 0."""
    return lambda keys: 0 if str(keys.value(f"{_M}{name}")) == "0" else keys.count(f"{_M}{name}")


def _qk_norm(keys: Settings) -> bool | None:
    is_qwen3 = keys.value(f"{_M}name") == "qwen3"
    return True if is_qwen3 and keys.chosen(f"{_M}qk_norm", SWITCH, True) else None


def _head_size(keys: Settings) -> int | None:
    return head_size(keys, f"{_M}head_dim", f"{_M}dim", f"{_M}n_heads")


MODEL_FIELDS: FieldReaders = {
    "num_layers": lambda keys: keys.count(f"{_M}n_layers"),
    "hidden_size": lambda keys: keys.count(f"{_M}dim"),
    "num_attention_heads": lambda keys: keys.count(f"{_M}n_heads"),
    "num_key_value_heads": _key_value_heads,
    "ffn_hidden_size": lambda keys: keys.count(f"{_M}hidden_dim"),
    "gated_mlp": _of_llama3(True),
    "vocab_size": lambda keys: keys.count(f"{_M}vocab_size"),
    "seq_length": lambda keys: keys.count(f"{_T}seq_len"),
    "tied_embeddings": lambda keys: keys.chosen(f"{_M}enable_weight_tying", SWITCH, None),
    "position_embedding": _of_llama3("rotary"),
    "norm": _of_llama3("rmsnorm"),
    "attention_head_size": _head_size,
    "qk_norm": _qk_norm,
    "rotary_base": lambda keys: keys.count(f"{_M}rope_theta") if keys.has(f"{_M}rope_theta") else None,
    "num_experts": lambda keys: keys.count(f"{_M}num_experts"),
    "experts_per_token": lambda keys: keys.count(f"{_M}experts_per_token"),
    "expert_ffn_hidden_size": lambda keys: keys.count(f"{_M}expert_hidden_dim"),
    "shared_expert_ffn_hidden_size": lambda keys: keys.count(f"{_M}shared_expert_hidden_dim"),
    "num_dense_layers": _whole_from_0("num_dense_layers"),
    "expert_layer_every": lambda keys: keys.count(f"{_M}expert_layer_every"),
}
BATCH_FIELDS: FieldReaders = {"global_batch_size": lambda keys: count_or_default(keys, f"{_T}global_batch_size")}


def _has_known_schedule(keys: Settings) -> bool:
    name = f"{_P}pipeline_parallel_schedule"
    return (stages(keys) or 1) == 1 or str(keys.value(name)).lower() in _SCHEDULES


def _cuts_the_local_batch(keys: Settings) -> bool:
    local, micro = keys.count(f"{_T}local_batch_size"), micro_batch_size(keys)
    return not (local and micro) or local % micro == 0


def _has_chunks_for_each_stage(keys: Settings) -> bool:
    parts = keys.listed(f"{_P}module_fqns_per_model_part")
    return all(isinstance(part, list) for part in parts) and len(parts) % (stages(keys) or 1) == 0


def _converts_all_layers(keys: Settings, name: str) -> bool:
    return set(map(str, keys.listed(name))) <= {"layers", "layers."}


_ALL_LAYERS = 'set it to ["layers."] in a copy of the file'
VALUE_RULES: ValueRules = (
    one_of(f"{_M}name", ("llama3", "qwen3"), "a search's model is torchtitan's llama3 or qwen3"),
    one_of(f"{_M}attn_backend", _KERNELS, "attention_kernel is flex or flash, which is torchtitan's varlen"),
    one_of("activation_checkpoint", POLICIES, f"{reasons.CHECKPOINTING}, not a memory budget"),
    one_of(f"{_P}fsdp_reshard_after_forward", _RESHARD, "torchtitan's policies are default, always and never"),
    one_of(f"{_T}dtype", _PRECISIONS, reasons.PRECISION),
    one_of(f"{_T}mixed_precision_param", _PRECISIONS, reasons.PRECISION),
    one_of(f"{FLOAT8}recipe_name", _RECIPES, f"torchtitan's recipes are {' and '.join(_RECIPES)}"),
    *(
        ValueRule(name, partial(_converts_all_layers, name=name), "a search converts all layers, or none", _ALL_LAYERS)
        for name in CONVERTED.values()
    ),
    one_of(f"{FLOAT8}emulate", ("false",), "trials multiply 8-bit floats on GPUs that do, without emulation"),
    ValueRule(
        f"{_P}pipeline_parallel_schedule",
        _has_known_schedule,
        f"pipeline_schedule is one of {', '.join(SCHEDULES)}, torch's {', '.join(SCHEDULES.values())}",
    ),
    ValueRule(
        f"{_P}pipeline_parallel_microbatch_size",
        _cuts_the_local_batch,
        "training.local_batch_size is a multiple of it",
        "correct the batch sizes in the file",
    ),
    ValueRule(
        f"{_P}module_fqns_per_model_part",
        _has_chunks_for_each_stage,
        "every stage of a pipeline has as many lists of modules",
        "correct the lists, or the degree of the pipeline",
    ),
)
