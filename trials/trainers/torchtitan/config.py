"""torchtitan's table: its names for the fields of a layout and of a model, how they are written and read. Standard
library only.

Names: torchtitan 0.3.0 torchtitan/config/configs.py; torch.distributed.pipelining. Batches in tokens are those of the
releases after it. What a configuration has as objects is plain values here: `model_spec.*` are arguments of
`torchtitan_parts.Model`, `activation_checkpoint.policy` is the policy's name.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from search_spaces.adapters import NAMES_OF_LIBRARY, TORCHTITAN
from search_spaces.layouts.layout import V_SCHEDULES, Layout
from search_spaces.layouts.matmul_recipes import TORCHAO_RECIPES
from search_spaces.layouts.pipeline_split import GivenSplit, chunk_layers
from search_spaces.model_shape import ModelShape
from trials.trainers.common.adapter_rows import adapter_rows
from trials.trainers.table import SWITCH, Keys, Row, Table, number, plain, switch, word

_P, _T, _M = "parallelism.", "training.", "model_spec."
LISTS, _SCHEDULE = f"{_P}module_fqns_per_model_part", f"{_P}pipeline_parallel_schedule"
_TENSOR, _PIPELINE, _CONTEXT, _EXPERT = (
    f"{_P}{name}_parallel_degree" for name in ("tensor", "pipeline", "context", "expert")
)
TOKENS = {
    "micro_batch": f"{_T}num_tokens_per_microbatch_per_dp_rank",
    "step": f"{_T}num_tokens_per_train_step",
    "length": f"{_T}max_context_length",
    "passes": f"{_P}num_pp_microbatches",
}
"""Options of the releases after 0.3.0 that say the batch in tokens."""
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Names of torch's schedules."""
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def is_qwen3(model: ModelShape) -> bool:
    """True for a model that torchtitan's qwen3 builds, false for one of its llama3."""
    return model.qk_norm or model.num_experts is not None


# -- readers


def stages(keys: Keys) -> int | None:
    """Pipeline stages."""
    return keys.count(_PIPELINE)


def _count_unless_computed(keys: Keys, name: str) -> int | None:
    """A whole number; None for -1, with which torchtitan computes it."""
    return None if str(keys.value(name)) == "-1" else keys.count(name)


def _data_parallel(keys: Keys) -> int | None:
    """Replicas x shards; None where the shards are all other ranks."""
    replicas, shards = keys.count(f"{_P}data_parallel_replicate_degree"), _shards(keys)
    return replicas * shards if replicas and shards else None


def _shards(keys: Keys) -> int | None:
    return _count_unless_computed(keys, f"{_P}data_parallel_shard_degree")


def _is_whole(keys: Keys) -> bool:
    """True where every rank has whole weights: context-parallel ranks shard them, too."""
    return _shards(keys) == 1 and keys.count(_CONTEXT) in (None, 1)


def _replicas(keys: Keys) -> int | None:
    """Replicas that are themselves sharded."""
    replicas = keys.count(f"{_P}data_parallel_replicate_degree")
    return 1 if _is_whole(keys) else replicas


def _zero_stage(keys: Keys) -> int | None:
    """By default weights are resharded after the forward pass unless there is a pipeline."""
    if _is_whole(keys):
        return 0
    rule = "torchtitan's policies are default, always and never"
    stage = keys.chosen(f"{_P}fsdp_reshard_after_forward", {"default": _DEFAULT, "always": 3, "never": 2}, None, rule)
    pipeline = stages(keys) if stage == _DEFAULT else None
    return stage if stage != _DEFAULT else pipeline and (2 if pipeline > 1 else 3)


_DEFAULT = -1


def seq_length(keys: Keys) -> int | None:
    """Tokens of a sequence; in the releases after 0.3.0 the longest context that tokens are packed into."""
    return keys.count(TOKENS["length"], f"{_T}seq_len")


def is_in_tokens(keys: Keys) -> bool:
    """True where an option says the batch in tokens."""
    return keys.has(*TOKENS.values())


def micro_batch_size(keys: Keys) -> int | None:
    """Sequences of a micro-batch. None for tokens that are no whole sequences, and while it is not known if there is a
    pipeline, which cuts 0.3.0's local batch into micro-batches."""
    if is_in_tokens(keys):
        return _sequences(keys, keys.count(TOKENS["micro_batch"]) or _local_tokens(keys))
    pipeline = stages(keys)
    name = f"{_P}pipeline_parallel_microbatch_size" if (pipeline or 1) > 1 else f"{_T}local_batch_size"
    return keys.count(name) if pipeline else None


def _local_tokens(keys: Keys) -> int | None:
    """Tokens of a local batch: what the configurations of later releases have in place of one in sequences."""
    local, length = keys.count(f"{_T}local_batch_size"), keys.count(f"{_T}seq_len")
    return local * length if local and length else None


def _sequences(keys: Keys, tokens: int | None) -> int | None:
    length = seq_length(keys)
    return tokens // length if tokens and length and tokens % length == 0 else None


def micro_batches_of_a_pass(keys: Keys) -> int | None:
    """Micro-batches that go through a pipeline one after the other, 1 without a pipeline."""
    pipeline = stages(keys)
    if is_in_tokens(keys):
        return 1 if pipeline == 1 else keys.count(TOKENS["passes"]) or 1
    local, micro = keys.count(f"{_T}local_batch_size"), micro_batch_size(keys)
    return local // micro if local and micro else None


def _global_batch_size(keys: Keys) -> int | None:
    """None for -1: a pass of every data-parallel rank."""
    if is_in_tokens(keys):
        return _sequences(keys, _count_unless_computed(keys, TOKENS["step"]))
    return _count_unless_computed(keys, f"{_T}global_batch_size")


def _grad_accum_steps(keys: Keys) -> int | None:
    """None with a global batch, from which it follows."""
    batch = TOKENS["step"] if is_in_tokens(keys) else f"{_T}global_batch_size"
    return None if _count_unless_computed(keys, batch) else micro_batches_of_a_pass(keys)


def _checkpointing(keys: Keys) -> str | None:
    words = {word: word for word in ("none", "selective", "full")}
    rule = "activation_checkpointing is none, selective or full, without a memory budget"
    return keys.chosen("activation_checkpoint.policy", words, None, rule)


def _recompute_layers(keys: Keys) -> int | None:
    return keys.count("activation_checkpoint.layers") if _checkpointing(keys) == "full" else None


def _schedule(keys: Keys) -> str | None:
    names = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
    rule = f"pipeline_schedule is one of {', '.join(SCHEDULES)}, torch's {', '.join(SCHEDULES.values())}"
    has_stages = (stages(keys) or 1) > 1
    return keys.chosen(_SCHEDULE, names, None, rule) if has_stages else None


def _chunks(keys: Keys) -> int | None:
    """Model chunks of a stage: by their lists of modules, by the layers of each, or by the schedule."""
    pipeline, schedule = stages(keys), _schedule(keys)
    if pipeline is None or pipeline == 1:
        return None
    if parts := keys.listed(LISTS):
        return len(parts) // pipeline or None
    each, layers = keys.count(f"{_P}pipeline_parallel_layers_per_stage"), keys.count(f"{_M}n_layers")
    if each and layers:
        return max(1, ceil((layers + sum(less or 0 for less in _less_layers(keys))) / each) // pipeline)
    if schedule is None or each:
        return None
    return 2 if schedule in ("interleaved_1f1b", *V_SCHEDULES) else 1


def _less_layers(keys: Keys) -> tuple[int | None, ...]:
    """Layers that the first and the last stage have less."""
    return tuple(keys.whole(f"{_P}pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last"))


def listed_layers(keys: Keys) -> tuple[int, ...]:
    """Layers of each list of modules, the chunks of the model."""
    parts = [part if isinstance(part, list) else [] for part in keys.listed(LISTS)]
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)


def _split(keys: Keys) -> GivenSplit | None:
    """The split that the lists of modules say, else torchtitan's own: it counts parts as layers, by which the first and
    the last stage have fewer. None where a layout says neither."""
    pipeline, chunks, layers = stages(keys) or 1, _chunks(keys), keys.count(f"{_M}n_layers")
    if pipeline == 1 or keys.listed(LISTS):
        return GivenSplit.found(listed_layers(keys), pipeline) if pipeline > 1 else None
    words: dict[Any, str] = {(0, 0): "even", (1, 0): "embedding", (0, 1): "loss", (1, 1): "embedding+loss"}
    word = words.get(_less_layers(keys))
    split = GivenSplit(pipeline, chunks, word, None, None) if chunks and layers and word else None
    return split if split is not None and split.chunk_layers(layers or 0) else None


def _precision(keys: Keys) -> str | None:
    """Weights in bf16 decide it; else the dtype of computation."""
    names = {theirs: ours for ours, theirs in _DTYPES.items()}
    weights, computed = (keys.chosen(f"{_T}{name}", names, None) for name in ("dtype", "mixed_precision_param"))
    return weights if weights == "bf16" else computed if weights else None


def components(keys: Keys) -> list[str]:
    """Parts that are compiled."""
    return [word for part in keys.listed("compile.components") for word in str(part).split(",")]


def _compile(keys: Keys) -> bool | None:
    """Only blocks count: the loss alone is a small part of a step."""
    is_on = keys.chosen("compile.enable", SWITCH, None)
    return False if is_on and "model" not in components(keys) else is_on


def _tensor_overlap(keys: Keys) -> bool | None:
    """Without effect on one tensor-parallel rank."""
    return False if keys.count(_TENSOR) == 1 else keys.chosen("compile.enable_async_tensor_parallel", SWITCH, None)


def _matmul_precision(keys: Keys) -> str | None:
    if keys.has(f"{_M}mxfp8.fqns"):
        return "mxfp8"
    return keys.chosen(f"{_M}float8.recipe_name", {word.removeprefix("fp8_"): word for word in _OF_FLOAT8}, None)


_OF_FLOAT8 = [word for word in TORCHAO_RECIPES if word != "mxfp8"]


def _expert_tensor(keys: Keys) -> int | None:
    """Tensor-parallel ranks split every expert where none distributes them."""
    return keys.count(_TENSOR) if keys.has(f"{_M}num_experts") and keys.count(_EXPERT) in (None, 1) else None


# -- what is written


def _dtypes(layout: Layout) -> dict[str, Any]:
    """Weights, gradients and optimizer states stay in fp32."""
    return {f"{_T}dtype": "float32", f"{_T}mixed_precision_param": _DTYPES[layout.precision]}


def _degrees(layout: Layout) -> dict[str, Any]:
    """Without ZeRO every data-parallel rank is a replica."""
    replicas = layout.data_parallel if layout.zero_stage == 0 else layout.data_parallel_replicas
    return {
        f"{_P}data_parallel_replicate_degree": replicas,
        f"{_P}data_parallel_shard_degree": layout.data_parallel // replicas,
    }


def reshard_policy(layout: Layout) -> str:
    """ZeRO 3 reshards after the forward pass, which torchtitan does by default without a pipeline."""
    if layout.zero_stage < 3:
        return "never"
    return "default" if layout.pipeline_parallel == 1 else "always"


def _batch_sizes(layout: Layout) -> dict[str, Any]:
    """The local batch is one micro-batch, or in a pipeline a step's."""
    passes = layout.grad_accum_steps if layout.pipeline_parallel > 1 else 1
    return {
        f"{_P}pipeline_parallel_microbatch_size": layout.micro_batch_size,
        f"{_T}local_batch_size": layout.micro_batch_size * passes,
        f"{_T}global_batch_size": layout.global_batch_size,
    }


def modules_by_chunk(model: ModelShape, layout: Layout) -> list[list[str]] | None:
    """Names of the modules of each chunk, in the model's order; None without a pipeline."""
    if layout.pipeline_parallel == 1:
        return None
    names, first = [], 0
    for count in chunk_layers(model, layout):
        names.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return names


def _converter(trained: Any) -> dict[str, Any]:
    """Arguments of the conversion of linear layers to products in 8 bits.

    All but the head, as in torchtitan's llama3_405b, and but routers, as in its deepseek_v3. Routed experts are no
    linear layers. The recipe's name is torchao's, which has tensorwise, too: components/quantization/float8.py hands it
    on.
    """
    recipe = trained.layout.matmul_precision
    if recipe == "same":
        return {}
    if recipe == "mxfp8":
        return {f"{_M}mxfp8.fqns": ["layers."]}
    kept = ["lm_head", *(["router.gate"] if trained.model.num_experts is not None else [])]
    return {f"{_M}float8.recipe_name": recipe.removeprefix("fp8_"), f"{_M}float8.filter_fqns": kept}


# -- the table


def _size(name: str, key: str) -> Row:
    """A whole number, also one with a point."""
    return plain(name, f"{_M}{key}", lambda keys: keys.whole(f"{_M}{key}"))


def _of_every_model(name: str, value: Any) -> Row:
    """A field with one value, unless the model is not known."""
    return Row(name, read=lambda keys: value if keys.has(f"{_M}n_layers") else None, values=(value,))


_MODEL = (
    Row("qk_norm", lambda trained: {f"{_M}name": "qwen3" if is_qwen3(trained.model) else "llama3"}),
    number("num_layers", f"{_M}n_layers"),
    number("hidden_size", f"{_M}dim"),
    number("num_attention_heads", f"{_M}n_heads"),
    number("num_key_value_heads", f"{_M}n_kv_heads", instead=(f"{_M}n_heads",)),
    _size("attention_head_size", "head_dim"),
    _size("rotary_base", "rope_theta"),
    number("ffn_hidden_size", f"{_M}hidden_dim"),
    number("vocab_size", f"{_M}vocab_size"),
    switch("tied_embeddings", f"{_M}enable_weight_tying"),
    switch("qk_norm", f"{_M}qk_norm"),
    _size("num_experts", "num_experts"),
    _size("experts_per_token", "experts_per_token"),
    Row(
        "expert_ffn_hidden_size",
        lambda trained: {f"{_M}expert_hidden_dim": trained.model.expert_width} if trained.model.num_experts else {},
        lambda keys: keys.count(f"{_M}expert_hidden_dim"),
    ),
    _size("shared_expert_ffn_hidden_size", "shared_expert_hidden_dim"),
    _size("num_dense_layers", "num_dense_layers"),
    _size("expert_layer_every", "expert_layer_every"),
    _of_every_model("gated_mlp", True),
    _of_every_model("norm", "rmsnorm"),
    _of_every_model("position_embedding", "rotary"),
    word("attention_kernel", f"{_M}attn_backend", {"flex": "flex", "flash": "varlen"}, also={"flex_flash": "flex"}),
    Row("matmul_precision", _converter, _matmul_precision),
    *adapter_rows(
        {name: f"{_M}lora.{name}" for name in ("rank", "alpha", "target_modules")},
        {name: name for name in NAMES_OF_LIBRARY[TORCHTITAN]},
        lambda keys: "lora" if keys.has(f"{_M}lora.rank") else None,
    ),
)
_BATCH = (
    plain("seq_length", f"{_T}seq_len", seq_length),
    Row("micro_batch_size", lambda trained: _batch_sizes(trained.layout), micro_batch_size),
    Row("grad_accum_steps", read=_grad_accum_steps),
    Row("global_batch_size", read=_global_batch_size),
)
_LAYOUT = (
    Row("precision", lambda trained: _dtypes(trained.layout), _precision, tuple(_DTYPES)),
    Row("cuda_graphs", lambda trained: {f"{_T}disable_cuda_graphs": True}, None, ("none",)),
    Row("data_parallel", lambda trained: _degrees(trained.layout), _data_parallel),
    Row("data_parallel_replicas", read=_replicas),
    Row(
        "zero_stage",
        lambda trained: {f"{_P}fsdp_reshard_after_forward": reshard_policy(trained.layout)},
        _zero_stage,
        (0, 2, 3),
    ),
    number("tensor_parallel", _TENSOR),
    switch("sequence_parallel", f"{_P}enable_sequence_parallel"),
    number("context_parallel", _CONTEXT),
    number("expert_parallel", _EXPERT),
    Row("expert_tensor_parallel", read=_expert_tensor),
    number("pipeline_parallel", _PIPELINE),
    Row(
        "pipeline_schedule",
        lambda trained: {_SCHEDULE: SCHEDULES.get(trained.layout.pipeline_schedule, "1F1B")},
        _schedule,
    ),
    Row("virtual_pipeline_stages", lambda trained: {LISTS: modules_by_chunk(trained.model, trained.layout)}, _chunks),
    Row("pipeline_split", read=lambda keys: getattr(_split(keys), "split", None)),
    Row("first_stage_layers", read=lambda keys: getattr(_split(keys), "first", None)),
    Row("last_stage_layers", read=lambda keys: getattr(_split(keys), "last", None)),
    plain("activation_checkpointing", "activation_checkpoint.policy", _checkpointing),
    Row("recompute_modules", read=lambda keys: "ops" if _checkpointing(keys) == "selective" else None),
    plain("recompute_layers", "activation_checkpoint.layers", _recompute_layers),
    plain("torch_compile", "compile.enable", _compile),
    plain("tensor_parallel_overlap", "compile.enable_async_tensor_parallel", _tensor_overlap),
)
_FLAGS = {
    "compile": ("enable", "enable_async_tensor_parallel"),
    "parallelism": ("enable_sequence_parallel",),
    "training": ("disable_cuda_graphs", "enable_cpu_offload"),
}
TORCHTITAN_TABLE = Table(
    "torchtitan",
    "0.3.0",
    (*_MODEL, *_BATCH, *_LAYOUT),
    trains_another={
        f"{_T}enable_cpu_offload": "parameters in host memory are no value of offload",
        f"{_P}pipeline_parallel_schedule_csv": "the order of a pipeline's work is one of pipeline_schedule",
    },
    flags=frozenset(f"{section}.{no}{name}" for section in _FLAGS for name in _FLAGS[section] for no in ("", "no_")),
)
