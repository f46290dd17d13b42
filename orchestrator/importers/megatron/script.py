"""Import of a Megatron launch script as model, layout and batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.importers.bash.script import Script, read_script
from orchestrator.importers.command_options import CommandOptions
from orchestrator.importers.deepspeed_config import read_ds_config
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launcher_options import LAUNCHER_GROUPS
from orchestrator.importers.megatron.megatron_deepspeed_options import MEGATRON_DEEPSPEED_OPTIONS
from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.option_table import DO_WITHOUT
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE, layout_mesh
from trials.trainers.common.megatron_options import MAIN_GRADIENT_BYTES
from trials.trainers.common.options import option_name, option_names

MEGATRON_LM, MEGATRON_DEEPSPEED = "megatron-lm", "megatron-deepspeed"
GPT2_VOCAB_SIZE = 50257
_TABLES = {
    MEGATRON_LM: MEGATRON_LM_OPTIONS.with_groups(LAUNCHER_GROUPS),
    MEGATRON_DEEPSPEED: MEGATRON_DEEPSPEED_OPTIONS.with_groups(LAUNCHER_GROUPS),
}

_CHARACTERISTIC_OPTIONS = ("num-layers", "hidden-size", "tensor-model-parallel-size", "micro-batch-size")
_DEEPSPEED_MARKS = ("deepspeed", "deepspeed-config", "zero-stage", "no-pipeline-parallel")
_NODES, _GPUS = ("nnodes", "num-nodes"), ("nproc-per-node", "num-gpus", "num-accelerators", "gpus-per-node")
_DROPOUTS = ("attention-dropout", "hidden-dropout")


def read_megatron_script(text: str) -> ImportedConfig:
    """The values of the script's training command; nothing is executed.

    Absent options have Megatron's own defaults. Every option is read, has no effect on a trial, is left out with a note
    or is refused. A value that only the environment has is reported, not guessed. InputError when no command has
    Megatron's options, for another program than a GPT's, for options that no search file expresses, and when the
    numbers contradict each other.
    """
    script = read_script(text)
    command = _training_command(script)
    source = MEGATRON_DEEPSPEED if option_names(command) & {*_DEEPSPEED_MARKS} else MEGATRON_LM
    options = CommandOptions(command, [*script.notes, *_default_notes(script)], _TABLES[source])
    if problems := [*_other_program(command), *options.problems(), *_unsupported_values(options)]:
        raise InputError(*problems)
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
    options.notes += [*options.left_out(), *_differences(options, model, layout)]
    notes, engine = tuple(dict.fromkeys(options.notes)), "torch" if source == MEGATRON_LM else "deepspeed"
    return ImportedConfig(source, model, layout, batch, num_nodes, gpus_per_node, notes=notes, nearest_engine=engine)


def _training_command(script: Script) -> list[str]:
    """The command with most of Megatron's characteristic options, the first of equals."""
    commands = ([word.text for word in command] for command in script.commands)
    best = max(commands, key=_num_characteristic_options, default=[])
    if _num_characteristic_options(best) < 2:
        raise InputError.of(
            "megatron_script",
            "no command with Megatron's options was found",
            rule="the launch script's training command carries options like --num-layers and --micro-batch-size",
            fix="give the script that starts pretrain_gpt.py, with its options in it",
        )
    return best


def _default_notes(script: Script) -> Iterator[str]:
    for name, value in script.defaults.items():
        if value.isdigit():
            yield f"{name} is taken as its default {value}; the environment may set another."


def _num_characteristic_options(words: list[str]) -> int:
    return sum(option_name(word) in _CHARACTERISTIC_OPTIONS for word in words)


def _other_program(command: list[str]) -> Iterator[Problem]:
    """A problem if the command starts another program of Megatron's than a GPT's."""
    for word in command:
        program = re.fullmatch(r"(?:.*/)?((?:pretrain|finetune|train)_\w+\.py)", word)
        if program and "gpt" not in program[1]:
            yield Problem(
                "megatron_script",
                f"starts {program[1]}",
                rule="a search trains a decoder-only GPT, as pretrain_gpt.py does",
                fix="give a script that starts pretrain_gpt.py",
            )


def _unsupported_values(options: CommandOptions) -> Iterator[Problem]:
    """Problems with values of options that are read, which no search file expresses."""
    for name, is_supported, rule in _VALUE_RULES:
        if options.has(name) and not is_supported(options):
            yield Problem(
                "megatron_script",
                f"is {options.text(name)!r}",
                rule=rule,
                fix=DO_WITHOUT,
                key=f"--{name}",
                value=options.text(name),
            )


def _has_usual_head_size(options: CommandOptions) -> bool:
    size, hidden = options.count("kv-channels"), options.count("hidden-size")
    heads = options.count("num-attention-heads")
    return not (size and hidden and heads) or size * heads == hidden


def _recomputes_whole_stages(options: CommandOptions) -> bool:
    """True unless only the first layers of a stage are recomputed."""
    count, layers, stages = options.count("recompute-num-layers"), _num_layers(options), _degree(options, "pipeline")
    if options.text("recompute-method") != "block" or options.text("recompute-granularity") != "full":
        return True
    chunks = _chunks(options) or 1
    return bool(count and layers and stages and count * stages * chunks >= layers)


_VALUE_RULES: tuple[tuple[str, Callable[[CommandOptions], bool], str], ...] = (
    (
        "position-embedding-type",
        lambda options: options.text("position-embedding-type") in (None, "learned_absolute", "rope"),
        "a model's position_embedding is learned or rotary",
    ),
    ("kv-channels", _has_usual_head_size, "a model's head size is hidden_size / num_attention_heads"),
    (
        "recompute-modules",
        lambda options: options.text("recompute-modules") in (None, "core_attn"),
        "activation_checkpointing selective recomputes the core attention; other modules are no value of it",
    ),
    (
        "recompute-method",
        _recomputes_whole_stages,
        "partial recomputation is no value of activation_checkpointing: full recomputes every layer",
    ),
    (
        "optimizer-offload-fraction",
        lambda options: options.text("optimizer-offload-fraction") in (None, "1", "1.0"),
        "offload moves the whole optimizer",
    ),
)
"""Option, whether the search file expresses its value, and the rule otherwise."""


def _differences(options: CommandOptions, model: Mapping[str, Any], layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    if dropout := [f"--{name} {options.text(name) or '0.1'}" for name in _DROPOUTS if _drops(options, name)]:
        yield f"Trials train without dropout; the script has {' and '.join(dropout)} (Megatron's default is 0.1)."
    if (model["norm"] == "layernorm") == options.has("disable-bias-linear"):
        biases = "no biases" if model["norm"] == "rmsnorm" else "biases"
        yield f"--disable-bias-linear was left out: a model with norm {model['norm']} has {biases}."
    positions = options.text("max-position-embeddings")
    if model["position_embedding"] == "learned" and positions not in (None, str(model.get("seq_length"))):
        yield f"--max-position-embeddings is {positions}; a model has seq_length learned positions."
    is_auto = options.text("attention-backend") in (None, "auto") and not options.has(*_FLASH)
    if is_auto and layout.get("attention_kernel") == "flash":
        yield "Megatron-LM's default --attention-backend auto is taken as flash, its choice on current GPUs."
    block = options.text("recompute-num-layers") or options.text("checkpoint-num-layers")
    is_uniform = layout.get("activation_checkpointing") == "full" and options.text("recompute-method") != "block"
    if is_uniform and block not in (None, "1"):
        yield f"Layers are recomputed {block} at a time; trials recompute one at a time."
    if options.has("quick-geglu"):
        yield "--quick-geglu: the MLP is gated, with SiLU in place of GELU."


def _drops(options: CommandOptions, name: str) -> bool:
    return not re.fullmatch(r"0*\.?0*", options.text(name) or "0.1")


def _num_layers(options: CommandOptions) -> int | None:
    return options.count("num-layers", "encoder-num-layers")


def _model(options: CommandOptions) -> dict[str, Any]:
    gated = options.has("swiglu", "quick-geglu")
    hidden = options.count("hidden-size")
    heads = options.count("num-attention-heads")
    model = {
        "num_layers": _num_layers(options),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(options) or heads,
        "ffn_hidden_size": options.count("ffn-hidden-size") or _default_ffn(hidden, options.has("swiglu")),
        "gated_mlp": gated,
        "vocab_size": _vocab_size(options),
        "seq_length": options.count("seq-length", "encoder-seq-length"),
        "tied_embeddings": not options.has("untie-embeddings-and-output-weights"),
        "position_embedding": _position_embedding(options),
        "norm": "rmsnorm" if (options.text("normalization") or "").lower() == "rmsnorm" else "layernorm",
    }
    return {name: value for name, value in model.items() if value is not None}


def _key_value_heads(options: CommandOptions) -> int | None:
    """Megatron-LM counts query groups, and only with --group-query-attention; Megatron-DeepSpeed counts the heads."""
    if options.has("group-query-attention"):
        return options.count("num-query-groups")
    return options.count("num-key-value-heads")


def _default_ffn(hidden: int | None, gated: bool) -> int | None:
    """Megatron's own default: 4 h, and with SwiGLU two thirds of it in steps of 64."""
    if hidden is None:
        return None
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _position_embedding(options: CommandOptions) -> str:
    is_rotary = options.text("position-embedding-type") == "rope" or options.has("use-rotary-position-embeddings")
    return "rotary" if is_rotary else "learned"


def _vocab_size(options: CommandOptions) -> int | None:
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
    if options.has("no-pad-vocab-size", "disable-pad-vocab-size"):
        return size
    multiple = (options.count("make-vocab-size-divisible-by") or 128) * (_degree(options, "tensor") or 1)
    return -(-size // multiple) * multiple


def _layout(options: CommandOptions) -> dict[str, Any]:
    precision = next((p for p in ("bf16", "fp16") if options.has(p)), "fp32")
    layout = {
        "tensor_parallel": _degree(options, "tensor"),
        "pipeline_parallel": 1 if options.has("no-pipeline-parallel") else _degree(options, "pipeline"),
        "micro_batch_size": options.count("micro-batch-size"),
        "zero_stage": _zero_stage(options),
        "offload": "optimizer" if options.has("cpu-optimizer", "optimizer-cpu-offload") else None,
        "activation_checkpointing": _checkpointing(options),
        "sequence_parallel": True if options.has("sequence-parallel") else None,
        "virtual_pipeline_stages": _chunks(options),
        "precision": precision,
        "attention_kernel": _attention_kernel(options, precision),
        "rank_order": "tp-pp-dp" if options.has("use-tp-pp-dp-mapping") else None,
        "overlap_comm": True if options.has("overlap-grad-reduce") else None,
        "bucket_mib": _bucket_mib(options),
    }
    return {name: value for name, value in layout.items() if value is not None}


def _degree(options: CommandOptions, axis: str) -> int | None:
    """Tensor or pipeline ranks: 1 when the option is absent, None when its value is unknown."""
    name = f"{axis}-model-parallel-size"
    return options.count(name) if options.has(name) else 1


def _zero_stage(options: CommandOptions) -> int | None:
    stage = options.text("zero-stage")
    if stage is not None and stage in ("0", "1", "2", "3"):
        return int(stage)
    if options.has("use-megatron-fsdp"):
        return _FSDP_STAGES.get(options.text("data-parallel-sharding-strategy") or "optim_grads_params")
    return 1 if options.has("use-distributed-optimizer") else None


_FSDP_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _bucket_mib(options: CommandOptions) -> int | None:
    """Megatron counts a bucket in parameters."""
    parameters = options.count("ddp-bucket-size")
    return None if parameters is None else max(1, round(parameters * MAIN_GRADIENT_BYTES / 2**20))


def _checkpointing(options: CommandOptions) -> str | None:
    granularity = options.text("recompute-granularity")
    if granularity in ("full", "selective"):
        return granularity
    if options.has("checkpoint-activations", "deepspeed-activation-checkpointing"):
        return "full"
    return "selective" if options.has("recompute-activations") else None


def _chunks(options: CommandOptions) -> int | None:
    """Model chunks a pipeline rank; Megatron-LM may say layers a chunk instead."""
    chunks = options.count("num-virtual-stages-per-pipeline-rank")
    layers_a_chunk = options.count("num-layers-per-virtual-pipeline-stage")
    layers, stages = _num_layers(options), _degree(options, "pipeline")
    if chunks or not (layers_a_chunk and layers and stages):
        return chunks
    return max(1, layers // (stages * layers_a_chunk))


def _attention_kernel(options: CommandOptions, precision: str) -> str | None:
    """None for Megatron-DeepSpeed's default, which is unfused. Megatron-LM's auto prefers flash in half precision."""
    if options.has(*_FLASH):
        return "flash"
    is_unfused = options.text("transformer-impl") == "local" or precision == "fp32"
    if options.table is _TABLES[MEGATRON_DEEPSPEED]:
        return None
    if is_unfused:
        return "math"
    return "math" if options.text("attention-backend") in ("unfused", "local") else "flash"


_FLASH = ("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-v2", "use-flash-attn-triton", "use-flash-attn-builder")


def _here_config(script: Script, options: CommandOptions) -> ImportedConfig | None:
    """The DeepSpeed config that the script writes as a here-document, if all its values are known."""
    for document in script.documents.values():
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


def _num_nodes(options: CommandOptions, gpus_per_node: int | None) -> int | None:
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


def _default_batch(layout: Mapping[str, Any], options: CommandOptions) -> int | None:
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
