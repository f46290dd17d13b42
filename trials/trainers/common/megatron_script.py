"""Import of a Megatron launch script as model, layout and batch. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE, layout_mesh
from trials.trainers.common.deepspeed_config import read_ds_config
from trials.trainers.common.imported_config import ImportedConfig
from trials.trainers.common.megatron_options import MAIN_GRADIENT_BYTES
from trials.trainers.common.options import option_name
from trials.trainers.common.shell_script import Script, read_script

MEGATRON_LM, MEGATRON_DEEPSPEED = "megatron-lm", "megatron-deepspeed"
GPT2_VOCAB_SIZE = 50257

_CHARACTERISTIC_OPTIONS = ("num-layers", "hidden-size", "tensor-model-parallel-size", "micro-batch-size")
_DEEPSPEED_MARKS = ("deepspeed", "deepspeed-config", "zero-stage", "no-pipeline-parallel")
_FLAGS = (
    "bf16",
    "checkpoint-activations",
    "deepspeed",
    "deepspeed-activation-checkpointing",
    "fp16",
    "group-query-attention",
    "overlap-grad-reduce",
    "recompute-activations",
    "sequence-parallel",
    "swiglu",
    "untie-embeddings-and-output-weights",
    "use-distributed-optimizer",
    "use-megatron-fsdp",
)
"""Common options without a value: a variable after one of them is not theirs."""
_NODES, _GPUS = ("nnodes", "num-nodes"), ("nproc-per-node", "num-gpus", "gpus-per-node")
_NOT_IN_A_LAYOUT = ("context-parallel-size", "expert-model-parallel-size", "num-experts", "ds-sequence-parallel-size")


def read_megatron_script(text: str) -> ImportedConfig:
    """The values of the script's training command; nothing is executed.

    Absent options have Megatron's own defaults. A value that only the environment has is reported, not guessed.
    InputError when no command has Megatron's options, or when the numbers contradict each other.
    """
    script = read_script(text)
    options = _Options(_training_command(script), list(script.notes))
    source = MEGATRON_DEEPSPEED if options.has(*_DEEPSPEED_MARKS) else MEGATRON_LM
    model, layout, batch = _model(options), _layout(options), options.count("global-batch-size")
    config = _here_config(script, options)
    if config is not None:
        _require_agreement(layout, batch, config)
        layout, batch = {**config.layout, **layout}, batch or config.global_batch_size
    gpus_per_node = options.count(*_GPUS)
    num_nodes = _num_nodes(options, gpus_per_node)
    _add_data_parallel(layout, num_nodes, gpus_per_node)
    batch = batch or _default_batch(layout, options)
    _add_accumulation(layout, batch)
    notes, engine = tuple(dict.fromkeys(options.notes)), "torch" if source == MEGATRON_LM else "deepspeed"
    return ImportedConfig(source, model, layout, batch, num_nodes, gpus_per_node, notes, engine)


def _training_command(script: Script) -> list[str]:
    """The command with most of Megatron's characteristic options, the first of equals."""
    best = max(script.commands, key=_num_characteristic_options, default=[])
    if _num_characteristic_options(best) < 2:
        raise InputError.of(
            "megatron_script",
            "no command with Megatron's options was found",
            rule="the launch script's training command carries options like --num-layers and --micro-batch-size",
            fix="give the script that starts pretrain_gpt.py, with its options in it",
        )
    return best


def _num_characteristic_options(words: list[str]) -> int:
    return sum(option_name(word) in _CHARACTERISTIC_OPTIONS for word in words)


class _Options:
    """The options of one command line, and the notes made while reading them."""

    def __init__(self, words: list[str], notes: list[str]):
        self.notes = notes
        self._values: dict[str, str] = {}
        takes_value = False
        for word, following in zip(words, [*words[1:], "--"], strict=True):
            if name := option_name(word):
                value = word.partition("=")[2] or ("" if following.startswith("--") else following)
                self._values[name] = value
                takes_value = name not in _FLAGS and "=" not in word
                continue
            if _is_unknown_word(word) and not takes_value:
                notes.append(f"{word} is in the training command, but the script does not set it.")
            takes_value = False

    def has(self, *names: str) -> bool:
        return any(name in self._values for name in names)

    def text(self, name: str) -> str | None:
        """The option's value; None, with a note, where the script does not set it."""
        value = self._values.get(name)
        if value is not None and ("$" in value or "`" in value):
            self.notes.append(f"--{name} is {value}, whose value the script does not set.")
            return None
        return value

    def count(self, *names: str) -> int | None:
        """The whole number of the first of these options that is given."""
        name = next((n for n in names if n in self._values), None)
        value = None if name is None else self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[1-9]\d{0,11}", value):
            raise InputError.of(
                "megatron_script", f"--{name} is {value!r}", key=f"--{name}", rule="a whole number of at least 1"
            )
        return int(value)


def _is_unknown_word(word: str) -> bool:
    """True for a word that is only an unset variable, which may hold options."""
    return re.fullmatch(r"\$\{?\w+(\[[@*]\])?\}?", word) is not None


def _model(options: _Options) -> dict[str, Any]:
    gated = options.has("swiglu")
    hidden = options.count("hidden-size")
    heads = options.count("num-attention-heads")
    model = {
        "num_layers": options.count("num-layers"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(options) or heads,
        "ffn_hidden_size": options.count("ffn-hidden-size") or _default_ffn(hidden, gated),
        "gated_mlp": gated,
        "vocab_size": _vocab_size(options),
        "seq_length": options.count("seq-length"),
        "tied_embeddings": not options.has("untie-embeddings-and-output-weights"),
        "position_embedding": _position_embedding(options),
        "norm": "rmsnorm" if (options.text("normalization") or "").lower() == "rmsnorm" else "layernorm",
    }
    return {name: value for name, value in model.items() if value is not None}


def _key_value_heads(options: _Options) -> int | None:
    """Megatron-LM counts query groups, and only with --group-query-attention; Megatron-DeepSpeed counts the heads."""
    if options.has("group-query-attention"):
        return options.count("num-query-groups")
    return options.count("num-key-value-heads")


def _default_ffn(hidden: int | None, gated: bool) -> int | None:
    """Megatron's own default: 4 h, and with SwiGLU two thirds of it in steps of 64."""
    if hidden is None:
        return None
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _position_embedding(options: _Options) -> str:
    is_rotary = options.text("position-embedding-type") == "rope" or options.has("use-rotary-position-embeddings")
    return "rotary" if is_rotary else "learned"


def _vocab_size(options: _Options) -> int | None:
    """The padded vocabulary: a multiple of --make-vocab-size-divisible-by (128) times the tensor degree."""
    stated = options.count("padded-vocab-size")
    if stated:
        return stated
    size = options.count("vocab-size")
    if size is None and options.text("tokenizer-type") == "GPT2BPETokenizer":
        size = GPT2_VOCAB_SIZE
        options.notes.append(f"vocab_size: {size} of GPT-2's tokenizer was taken, padded as Megatron pads it.")
    if size is None:
        options.notes.append("vocab_size is not in the script: the tokenizer decides it.")
        return None
    if options.text("tokenizer-type") == "NullTokenizer":
        size += 1  # its end-of-document token
    multiple = (options.count("make-vocab-size-divisible-by") or 128) * (_degree(options, "tensor") or 1)
    return -(-size // multiple) * multiple


def _layout(options: _Options) -> dict[str, Any]:
    _note_what_no_layout_says(options)
    flash = options.has("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-v2")
    layout = {
        "tensor_parallel": _degree(options, "tensor"),
        "pipeline_parallel": 1 if options.has("no-pipeline-parallel") else _degree(options, "pipeline"),
        "micro_batch_size": options.count("micro-batch-size"),
        "zero_stage": _zero_stage(options),
        "offload": "optimizer" if options.has("cpu-optimizer", "optimizer-cpu-offload") else None,
        "activation_checkpointing": _checkpointing(options),
        "sequence_parallel": True if options.has("sequence-parallel") else None,
        "virtual_pipeline_stages": _chunks(options),
        "precision": next((p for p in ("bf16", "fp16") if options.has(p)), "fp32"),
        "attention_kernel": "flash" if flash else _attention_kernel(options),
        "rank_order": "tp-pp-dp" if options.has("use-tp-pp-dp-mapping") else None,
        "overlap_comm": True if options.has("overlap-grad-reduce") else None,
        "bucket_mib": _bucket_mib(options),
    }
    return {name: value for name, value in layout.items() if value is not None}


def _note_what_no_layout_says(options: _Options) -> None:
    for name in _NOT_IN_A_LAYOUT:
        if (options.count(name) or 1) > 1:
            options.notes.append(f"--{name} is more than 1, which no layout field expresses; it was left out.")


def _degree(options: _Options, axis: str) -> int | None:
    """Tensor or pipeline ranks: 1 when the option is absent, None when its value is unknown."""
    name = f"{axis}-model-parallel-size"
    return options.count(name) if options.has(name) else 1


def _zero_stage(options: _Options) -> int | None:
    stage = options.text("zero-stage")
    if stage is not None and stage in ("0", "1", "2", "3"):
        return int(stage)
    if options.has("use-megatron-fsdp"):
        return _FSDP_STAGES.get(options.text("data-parallel-sharding-strategy") or "no_shard")
    return 1 if options.has("use-distributed-optimizer") else None


_FSDP_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _bucket_mib(options: _Options) -> int | None:
    """Megatron counts a bucket in parameters."""
    parameters = options.count("ddp-bucket-size")
    return None if parameters is None else max(1, round(parameters * MAIN_GRADIENT_BYTES / 2**20))


def _checkpointing(options: _Options) -> str | None:
    granularity = options.text("recompute-granularity")
    if granularity in ("full", "selective"):
        return granularity
    if options.has("checkpoint-activations", "deepspeed-activation-checkpointing"):
        return "full"
    return "selective" if options.has("recompute-activations") else None


def _chunks(options: _Options) -> int | None:
    """Model chunks a pipeline rank; Megatron-LM may say layers a chunk instead."""
    chunks = options.count("num-virtual-stages-per-pipeline-rank")
    layers_a_chunk = options.count("num-layers-per-virtual-pipeline-stage")
    layers, stages = options.count("num-layers"), _degree(options, "pipeline")
    if chunks or not (layers_a_chunk and layers and stages):
        return chunks
    return max(1, layers // (stages * layers_a_chunk))


def _attention_kernel(options: _Options) -> str | None:
    backend = options.text("attention-backend")
    return {"flash": "flash", "fused": "flash", "unfused": "math", "local": "math"}.get(backend or "")


def _here_config(script: Script, options: _Options) -> ImportedConfig | None:
    """The DeepSpeed config that the script writes as a here-document, if all its values are known."""
    for document in script.documents:
        if '"train_batch_size"' not in document and '"train_micro_batch_size_per_gpu"' not in document:
            continue
        if "$" not in document:
            return read_ds_config(document)
        options.notes.append("The DeepSpeed config in the script has values that the script does not set.")
    if options.has("deepspeed-config") and not script.documents:
        options.notes.append("The file behind --deepspeed-config was not read; values that only it has are missing.")
    return None


def _require_agreement(layout: Mapping[str, Any], batch: int | None, config: ImportedConfig) -> None:
    pairs = {"global_batch_size": (batch, config.global_batch_size)} | {
        name: (layout.get(name), config.layout.get(name)) for name in ("micro_batch_size", "zero_stage", "precision")
    }
    for name, (in_options, in_config) in pairs.items():
        if None not in (in_options, in_config) and in_options != in_config:
            raise InputError.of(
                "contradiction",
                f"{name} is {in_options} in the command and {in_config} in its DeepSpeed config",
                key=name,
                rule="a command and its DeepSpeed config must agree",
                fix="write the same value in both",
            )


def _num_nodes(options: _Options, gpus_per_node: int | None) -> int | None:
    """The number of nodes; 1 where the launcher is not told of any."""
    if options.has(*_NODES) or options.has("hostfile") or gpus_per_node is None:
        return options.count(*_NODES)
    return 1


def _add_data_parallel(layout: dict[str, Any], num_nodes: int | None, gpus_per_node: int | None) -> None:
    tensor, pipeline = layout.get("tensor_parallel"), layout.get("pipeline_parallel")
    if not (num_nodes and gpus_per_node and tensor and pipeline):
        return
    world, ranks = num_nodes * gpus_per_node, layout_mesh(layout).without("dp").world_size
    if world % ranks:
        raise InputError.of(
            "world",
            f"{num_nodes} nodes x {gpus_per_node} = {world} ranks are not a multiple of tensor {tensor} x pipeline "
            f"{pipeline} = {ranks}",
            rule=WORLD_RULE,
            fix="in the command, correct the model parallel sizes, the nodes or the processes of a node",
        )
    layout["num_nodes"] = num_nodes
    _add(layout, "data_parallel", world // ranks, WORLD_RULE)


def _add(layout: dict[str, Any], name: str, value: int, rule: str) -> None:
    stated = layout.setdefault(name, value)
    if stated != value:
        raise InputError.of(
            "contradiction",
            f"{name} is {stated} in the DeepSpeed config, but {value} follows from the command",
            key=name,
            rule=rule,
            fix="correct the batch sizes of the DeepSpeed config, or the command's batch and ranks",
        )


def _default_batch(layout: Mapping[str, Any], options: _Options) -> int | None:
    """Megatron's default: one micro-batch on every data-parallel rank."""
    micro, data = layout.get("micro_batch_size"), layout.get("data_parallel")
    if options.has("global-batch-size") or not (micro and data):
        return None
    return micro * data


def _add_accumulation(layout: dict[str, Any], batch: int | None) -> None:
    micro, data = layout.get("micro_batch_size"), layout.get("data_parallel")
    if not (micro and data and batch):
        return
    if batch % (micro * data):
        raise InputError.of(
            "batch",
            f"global batch {batch} is not a multiple of micro batch {micro} x data {data} = {micro * data}",
            key="global_batch_size",
            value=batch,
            rule=BATCH_RULE,
            fix=f"a global batch that is a multiple of {micro * data}, or another micro batch",
        )
    _add(layout, "grad_accum_steps", batch // (micro * data), BATCH_RULE)
