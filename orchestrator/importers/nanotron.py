"""Import of a nanotron configuration as model, layout and batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.batch import complete_batch
from orchestrator.importers.differences import biases_of
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.nanotron_options import NANOTRON_OPTIONS
from orchestrator.importers.settings import (
    SWITCH,
    FieldReaders,
    Settings,
    ValueRules,
    one_of,
    read_fields,
    rotary_base,
    turn_off_sequence_parallel,
)
from orchestrator.importers.yaml_config import document_settings, yaml_document
from search_spaces.errors import InputError
from search_spaces.layouts.layout import layout_mesh

_MODEL = "model.model_config."
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_SCHEDULES = {"1f1b": "1f1b", "afab": "gpipe"}
_SEQUENCE_PARALLEL = {"reduce_scatter": True, "all_reduce": False}
_RECOMPUTATION = {"true": "full", "false": "none"}
_KERNELS = {"flash_attention_2": "flash", "sdpa": "flash"}


def looks_like_nanotron(data: Mapping[str, Any]) -> bool:
    """True for a mapping with the sections that every configuration of nanotron has."""
    return isinstance(data.get("parallelism"), Mapping) and bool({"tokens", "general"} & data.keys())


def read_nanotron(text: str) -> ImportedConfig:
    """The values of a nanotron configuration; absent keys have nanotron's own defaults.

    InputError for text that is no YAML mapping, and for keys and values that no search file expresses.
    """
    keys = document_settings(yaml_document(text), NANOTRON_OPTIONS)
    if problems := [*keys.problems(_VALUE_RULES)]:
        raise InputError(*problems)
    model, model_origins = read_fields(keys, "model", _MODEL_FIELDS)
    layout, layout_origins = read_fields(keys, "baseline", _LAYOUT_FIELDS)
    turn_off_sequence_parallel(layout, keys)
    batch = complete_batch(layout, None, None, None, keys.in_doubt)
    return ImportedConfig(
        "nanotron",
        model,
        layout,
        batch,
        origins={**model_origins, **layout_origins, "global_batch_size": _BATCH_ORIGIN},
        notes=tuple(
            dict.fromkeys([*keys.notes, *keys.left_out(keys.given.keys() - _REPLACED), *_differences(keys, layout)])
        ),
        engine="nanotron",
        in_doubt=tuple(keys.in_doubt),
    )


_REPLACED = {f"{_MODEL}hidden_act"}
"""Keys of a template that a trial replaces; it has the others as they are."""
_BATCH_ORIGIN = "tokens.micro_batch_size x tokens.batch_accumulation_per_replica x parallelism.dp"


def _key_value_heads(keys: Settings) -> int | None:
    is_given = keys.has(f"{_MODEL}num_key_value_heads")
    return keys.counted(f"{_MODEL}num_{'key_value' if is_given else 'attention'}_heads", 32)


def _vocab_size(keys: Settings) -> int | None:
    """The padded vocabulary; None for -1, with which the tokens decide it."""
    if keys.value(f"{_MODEL}vocab_size") == -1:
        keys.notes.append("model.model_config.vocab_size is -1: the tokenized data decide it.")
        return None
    size = keys.counted(f"{_MODEL}vocab_size", 32000)
    multiple = (keys.count("model.make_vocab_size_divisible_by") or 1) * (keys.count("parallelism.tp") or 1)
    return None if size is None else -(-size // multiple) * multiple


_MODEL_FIELDS: FieldReaders = {
    "num_layers": lambda keys: keys.counted(f"{_MODEL}num_hidden_layers", 32),
    "hidden_size": lambda keys: keys.counted(f"{_MODEL}hidden_size", 4096),
    "num_attention_heads": lambda keys: keys.counted(f"{_MODEL}num_attention_heads", 32),
    "num_key_value_heads": _key_value_heads,
    "ffn_hidden_size": lambda keys: keys.counted(f"{_MODEL}intermediate_size", 11008),
    "gated_mlp": lambda keys: True,
    "vocab_size": _vocab_size,
    "seq_length": lambda keys: keys.count("tokens.sequence_length"),
    "tied_embeddings": lambda keys: keys.chosen(f"{_MODEL}tie_word_embeddings", SWITCH, False),
    "position_embedding": lambda keys: "rotary",
    "norm": lambda keys: "rmsnorm",
    "rotary_base": lambda keys: rotary_base(keys, f"{_MODEL}rope_theta"),
}


def _schedule(keys: Settings) -> str | None:
    """The schedule of more than one stage: by default all forward passes come first."""
    has_stages = (keys.count("parallelism.pp") or 1) > 1
    return keys.chosen("parallelism.pp_engine", _SCHEDULES, "gpipe") if has_stages else None


_LAYOUT_FIELDS: FieldReaders = {
    "tensor_parallel": lambda keys: keys.count("parallelism.tp"),
    "pipeline_parallel": lambda keys: keys.count("parallelism.pp"),
    "data_parallel": lambda keys: keys.count("parallelism.dp"),
    "micro_batch_size": lambda keys: keys.count("tokens.micro_batch_size"),
    "grad_accum_steps": lambda keys: keys.count("tokens.batch_accumulation_per_replica"),
    "zero_stage": lambda keys: keys.chosen("optimizer.zero_stage", {"0": 0, "1": 1}, None),
    "activation_checkpointing": lambda keys: keys.chosen("parallelism.recompute_layer", _RECOMPUTATION, "none"),
    "sequence_parallel": lambda keys: keys.chosen("parallelism.tp_mode", _SEQUENCE_PARALLEL, False),
    "pipeline_schedule": _schedule,
    "precision": lambda keys: keys.chosen("model.dtype", _PRECISIONS, "bf16"),
    "attention_kernel": lambda keys: keys.chosen(f"{_MODEL}_attn_implementation", _KERNELS, "flash"),
}


_VALUE_RULES: ValueRules = (
    one_of("model.dtype", _PRECISIONS, reasons.PRECISION),
    one_of("optimizer.zero_stage", ("0", "1"), "nanotron has ZeRO 0 and 1"),
    one_of("parallelism.pp_engine", _SCHEDULES, "pipeline_schedule is 1f1b or gpipe"),
    one_of("parallelism.tp_mode", _SEQUENCE_PARALLEL, "nanotron's tp_mode is ALL_REDUCE or REDUCE_SCATTER"),
    one_of(
        f"{_MODEL}_attn_implementation",
        _KERNELS,
        "attention_kernel is math or flash; ring attention is context parallelism, which is no axis of a layout",
    ),
)


def _differences(keys: Settings, layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    if keys.has(f"{_MODEL}attention_bias"):
        yield f"{_MODEL}attention_bias was left out: {biases_of('rmsnorm')}."
    if keys.text(f"{_MODEL}_attn_implementation") == "sdpa":
        yield "PyTorch chooses the kernel of sdpa; it is taken as flash, its choice on current GPUs."
    if lengths := _other_lengths(keys):
        yield f"data_stages train with sequences of {' and '.join(lengths)} tokens too; trials have one length."
    if layout.keys() >= {"tensor_parallel", "pipeline_parallel", "data_parallel"}:
        yield f"The training runs on {layout_mesh(layout).world_size} ranks; the file does not say on how many nodes."


def _other_lengths(keys: Settings) -> list[str]:
    """Sequence lengths of the training's stages that are not the model's."""
    given = [stage.get("sequence_length") for stage in keys.listed("data_stages") if isinstance(stage, Mapping)]
    own = keys.value("tokens.sequence_length")
    return list(dict.fromkeys(str(length) for length in given if length not in (None, own)))
