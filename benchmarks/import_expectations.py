"""Values that an import must have read, from those of the trainer's own parser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

from search_spaces.layouts.layout import Layout
from search_spaces.schema.validation import FILL_IN

Values = Mapping[str, Any]
MISSING = object()
"""A value that the search file lacks or leaves to be filled in."""


@dataclass(frozen=True)
class Expected:
    """Value of a field of the search file, and the options that decide it."""

    field: str
    value: Any
    options: tuple[str, ...]


class SearchFile:
    """A rendered search file, by field: `model.num_layers`, `layout.zero_stage`, `cluster.num_nodes`."""

    def __init__(self, text: str):
        self._data = yaml.safe_load(text)

    @property
    def layout(self) -> Values:
        """The present layout: the baseline, or without one the single values of the space."""
        axes = {name: value for name, value in self._data.get("space", {}).items() if not isinstance(value, list)}
        return axes | (self._data.get("baseline") or {})

    def value(self, field: str) -> Any:
        """The field's value; MISSING where it is to be filled in, and for degrees and sizes that are not there."""
        section, _, name = field.rpartition(".")
        if section == "layout":
            value = self.layout.get(name, MISSING if name in _WITHOUT_DEFAULT else getattr(Layout(), name))
        else:
            value = (self._data.get(section, {}) if section else self._data).get(name, MISSING)
        return MISSING if value == FILL_IN else value

    def tries(self, expected: Expected) -> bool:
        """True if there is no baseline, and the value is one of the axis' values."""
        section, _, name = expected.field.rpartition(".")
        values = self._data.get("space", {}).get(name)
        is_axis = section == "layout" and isinstance(values, list)
        return is_axis and not self._data.get("baseline") and expected.value in values


_WITHOUT_DEFAULT = ("tensor_parallel", "pipeline_parallel", "micro_batch_size")


def megatron(values: Values, launcher: Mapping[str, int], is_deepspeed: bool) -> Iterator[Expected]:
    """Expectations from the options of both Megatrons. Values that nobody can tell are left out."""
    for field, options, read in _MEGATRON:
        if (value := read(values)) is not None:
            yield Expected(field, value, options)
    for field, value in launcher.items():
        yield Expected(f"cluster.{field}", value, _LAUNCHER_OPTIONS[field])
    if (values.get("tensor_model_parallel_size") or 1) > 1:
        is_split = bool(values.get("sequence_parallel"))
        yield Expected("layout.sequence_parallel", is_split, ("sequence-parallel",))
    if not (is_deepspeed and values.get("deepspeed")):
        # DeepSpeed takes these from its own configuration.
        yield Expected("layout.zero_stage", _zero_stage(values), _ZERO_OPTIONS)
        yield Expected("layout.overlap_comm", bool(values.get("overlap_grad_reduce")), ("overlap-grad-reduce",))
    batch = values.get("global_batch_size")
    if batch and (
        values.get("_is_global_batch_size_explicitly_specified", True) or launcher.keys() >= {*_LAUNCHER_OPTIONS}
    ):
        yield Expected("global_batch_size", batch, ("global-batch-size", "step-batch-size-schedule"))


_LAUNCHER_OPTIONS = {
    "num_nodes": ("nnodes", "num-nodes"),
    "gpus_per_node": ("nproc-per-node", "num-gpus", "num-accelerators", "gpus-per-node"),
}
_ZERO_OPTIONS = (
    "zero-stage",
    "use-distributed-optimizer",
    "use-megatron-fsdp",
    "data-parallel-sharding-strategy",
    "use-torch-fsdp2",
    "deepspeed-config",
)
_MEBI = 2**20
_FP32_BYTES = 4


def launcher_sizes(words: Sequence[str]) -> dict[str, int]:
    """num_nodes and gpus_per_node that a launcher is told."""
    found = {}
    for word, following in pairwise([*words, ""]):
        name, _, value = word.removeprefix("--").replace("_", "-").partition("=")
        for field, options in _LAUNCHER_OPTIONS.items():
            if word.startswith("--") and name in options and (value or following).isdigit():
                found[field] = int(value or following)
    return found


def _layers(values: Values) -> Any:
    return values.get("num_layers") or values.get("encoder_num_layers")


def _ffn(values: Values) -> int | None:
    hidden = values.get("hidden_size")
    if values.get("ffn_hidden_size") or not hidden:
        return values.get("ffn_hidden_size")
    return int((4 * hidden * 2 / 3) / 64) * 64 if values.get("swiglu") else 4 * hidden


def _key_value_heads(values: Values) -> int | None:
    if values.get("group_query_attention"):
        return values.get("num_query_groups")
    return values.get("num_key_value_heads") or values.get("num_attention_heads")


def _vocabulary(values: Values) -> int | None:
    if values.get("padded_vocab_size"):
        return values["padded_vocab_size"]
    tokenizer = values.get("tokenizer_type") or "GPT2BPETokenizer"
    size = 50257 if tokenizer == "GPT2BPETokenizer" else values.get("vocab_size")
    if size is None:
        return None
    if tokenizer == "NullTokenizer" and "deepspeed" in values:
        size += 1  # Megatron-DeepSpeed's own
    if values.get("pad_vocab_size") is False:
        return size
    multiple = values.get("make_vocab_size_divisible_by", 128) * (values.get("tensor_model_parallel_size") or 1)
    return -(-size // multiple) * multiple


def _position_embedding(values: Values) -> str:
    is_rotary = values.get("position_embedding_type") == "rope" or values.get("use_rotary_position_embeddings")
    return "rotary" if is_rotary else "learned"


def _norm(values: Values) -> str:
    return "rmsnorm" if str(values.get("normalization") or "").lower() == "rmsnorm" else "layernorm"


def _precision(values: Values) -> str:
    return "bf16" if values.get("bf16") else "fp16" if values.get("fp16") else "fp32"


def _zero_stage(values: Values) -> int:
    if values.get("use_megatron_fsdp"):
        strategy = values.get("data_parallel_sharding_strategy")
        return {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}[str(strategy)]
    return 3 if values.get("use_torch_fsdp2") else int(bool(values.get("use_distributed_optimizer")))


def _recomputation(values: Values) -> str:
    if values.get("checkpoint_activations"):
        return "full"
    granularity = "selective" if values.get("recompute_activations") else values.get("recompute_granularity")
    has_deepspeeds_pipeline = values.get("deepspeed") and not values.get("no_pipeline_parallel")
    if granularity == "full" and has_deepspeeds_pipeline and values.get("recompute_method") != "uniform":
        return "none"
    return str(granularity or "none")


def _chunks(values: Values) -> int:
    stages, layers = values.get("pipeline_model_parallel_size") or 1, _layers(values)
    if values.get("num_virtual_stages_per_pipeline_rank"):
        return int(values["num_virtual_stages_per_pipeline_rank"])
    if values.get("num_layers_per_virtual_pipeline_stage") and layers:
        return max(1, layers // stages // values["num_layers_per_virtual_pipeline_stage"])
    return 1


def _bucket(values: Values) -> int | None:
    parameters = values.get("ddp_bucket_size")
    return None if not parameters else max(1, round(parameters * _FP32_BYTES / _MEBI))


def _kernel(values: Values) -> str | None:
    backend = str(values.get("attention_backend", "")).rpartition(".")[2]
    if backend == "flash" or any(values.get(f"use_flash_attn_{kind}") for kind in ("v1", "v2", "triton", "builder")):
        return "flash"
    return "math" if backend in ("unfused", "local") else None


def _named(name: str) -> Callable[[Values], Any]:
    return lambda values: values.get(name)


_MEGATRON: tuple[tuple[str, tuple[str, ...], Callable[[Values], Any]], ...] = (
    ("model.num_layers", ("num-layers", "encoder-num-layers"), _layers),
    ("model.hidden_size", ("hidden-size",), _named("hidden_size")),
    ("model.num_attention_heads", ("num-attention-heads",), _named("num_attention_heads")),
    (
        "model.num_key_value_heads",
        ("group-query-attention", "num-query-groups", "num-key-value-heads"),
        _key_value_heads,
    ),
    ("model.ffn_hidden_size", ("ffn-hidden-size", "swiglu"), _ffn),
    (
        "model.gated_mlp",
        ("swiglu", "quick-geglu"),
        lambda values: bool(values.get("swiglu") or values.get("quick_geglu")),
    ),
    (
        "model.vocab_size",
        ("vocab-size", "padded-vocab-size", "make-vocab-size-divisible-by", "tokenizer-type"),
        _vocabulary,
    ),
    (
        "model.seq_length",
        ("seq-length", "encoder-seq-length"),
        lambda values: values.get("seq_length") or values.get("encoder_seq_length"),
    ),
    (
        "model.tied_embeddings",
        ("untie-embeddings-and-output-weights",),
        lambda values: not values.get("untie_embeddings_and_output_weights"),
    ),
    (
        "model.position_embedding",
        ("position-embedding-type", "use-rotary-position-embeddings"),
        _position_embedding,
    ),
    ("model.norm", ("normalization",), _norm),
    ("layout.tensor_parallel", ("tensor-model-parallel-size",), _named("tensor_model_parallel_size")),
    (
        "layout.pipeline_parallel",
        ("pipeline-model-parallel-size", "no-pipeline-parallel"),
        _named("pipeline_model_parallel_size"),
    ),
    ("layout.micro_batch_size", ("micro-batch-size",), _named("micro_batch_size")),
    ("layout.precision", ("bf16", "fp16"), _precision),
    (
        "layout.activation_checkpointing",
        (
            "recompute-granularity",
            "recompute-activations",
            "checkpoint-activations",
            "deepspeed-activation-checkpointing",
            "recompute-method",
            "recompute-modules",
        ),
        _recomputation,
    ),
    (
        "layout.virtual_pipeline_stages",
        ("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"),
        _chunks,
    ),
    ("layout.bucket_mib", ("ddp-bucket-size",), _bucket),
    ("layout.attention_kernel", ("attention-backend", "use-flash-attn", "transformer-impl"), _kernel),
    (
        "layout.rank_order",
        ("use-tp-pp-dp-mapping",),
        lambda values: "tp-pp-dp" if values.get("use_tp_pp_dp_mapping") else "tp-dp-pp",
    ),
    (
        "layout.offload",
        ("cpu-optimizer", "optimizer-cpu-offload"),
        lambda values: "optimizer" if values.get("cpu_optimizer") or values.get("optimizer_cpu_offload") else "none",
    ),
)
