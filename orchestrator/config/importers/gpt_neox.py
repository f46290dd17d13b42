"""Import of a GPT-NeoX configuration as model, layout and batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.rows import ReadFields, read_rows
from orchestrator.config.importers.settings import (
    CODE,
    FieldReaders,
    FileSettings,
    ValueRule,
    ValueRules,
    document_settings,
    one_of,
)
from orchestrator.config.importers.source_file import yaml_document
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import AXES, WORLD_RULE, layout_mesh
from search_spaces.schema.yaml_document import Document, KeyPath
from trials.trainers.common.deepspeed_config import MICRO, STEPS, TOTAL
from trials.trainers.gpt_neox.trainer import GPT_NEOX, PADDED_TO, PIPELINE, TENSOR, degree

_REQUIRED_KEYS = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
_CHARACTERISTIC_KEYS = (
    *(PIPELINE, TENSOR, "num_layers", "attention_config", "pos_emb"),
    *("data_path", "train_data_paths", "vocab_file", "tokenizer_type"),
)
_VOCABULARIES = {"gpt2bpetokenizer": 50257, "hfgpt2tokenizer": 50257, "charleveltokenizer": 512}
_EXTRA, _WORLD = "deepspeed_extra_args", "global_num_gpus"
_OF_THE_LAYOUT = dict.fromkeys(row.field for row in GPT_NEOX.rows if row.field in AXES)


def looks_like_gpt_neox(data: Mapping[str, Any]) -> bool:
    """True for a mapping with keys that only GPT-NeoX has at the top."""
    return any(_key(name) in _CHARACTERISTIC_KEYS for name in data)


def read_gpt_neox(text: str) -> ImportedConfig:
    """The values of a GPT-NeoX configuration; absent keys have GPT-NeoX's own defaults.

    A training often has several files. In one that lacks what GPT-NeoX requires, absent keys stay open. InputError for
    text that is no YAML mapping, for keys and values that no search file expresses, and for numbers that contradict
    each other.
    """
    document = yaml_document(text)
    keys = document_settings(document, GPT_NEOX, _paths(document))
    missing = _missing_keys(keys)
    read = read_rows(GPT_NEOX, keys, _OTHERS, _RULES, has_defaults=not missing)
    read.complete(keys)
    changed = tuple(_changes(keys, read.layout))
    notes = [*_differences(keys, read, missing), *keys.in_template()]
    left_open = tuple(name for name in _OF_THE_LAYOUT if name not in read.layout) if missing else ()
    return read.imported("gpt-neox", keys, notes, engine="gpt-neox", left_open=left_open, changed=changed)


def _key(name: str) -> str:
    """GPT-NeoX takes keys with hyphens too."""
    return name.replace("-", "_")


def _paths(document: Document) -> Mapping[str, KeyPath]:
    """Path of each key; those of deepspeed_extra_args are DeepSpeed's own."""
    found: dict[str, KeyPath] = {}
    for name in document.data:
        if _key(name) in found:
            raise InputError.of(
                CODE,
                f"is given a second time, as {_key(name)}",
                rule="GPT-NeoX reads a key with hyphens as the one with underscores",
                fix="remove one of them",
                key=name,
                line=document.location((name,)).line,
            )
        found[_key(name)] = (name,)
    extra = document.value(found.pop(_EXTRA)) if _EXTRA in found else None
    return {**found, **{name: (_EXTRA, name) for name in extra}} if isinstance(extra, Mapping) else found


def _missing_keys(keys: FileSettings) -> list[str]:
    """Keys that GPT-NeoX requires and the file lacks; another file of the training has it."""
    given = {name for name, setting in keys.given.items() if setting.value is not None}
    missing = [name for name in _REQUIRED_KEYS if name not in given]
    return missing if given & {TOTAL, MICRO} else [*missing, f"{TOTAL} or {MICRO}"]


def _vocab_size(keys: FileSettings) -> int | None:
    """The tokenizer's vocabulary, padded to a multiple of make_vocab_size_divisible_by times the tensor degree."""
    tokenizer = keys.text("tokenizer_type")
    is_open = tokenizer is None and _missing_keys(keys)
    size = None if is_open else _VOCABULARIES.get((tokenizer or "GPT2BPETokenizer").lower())
    multiple = (keys.count(PADDED_TO) or 128) * (degree(keys, TENSOR) or 1)
    if size is None:
        keys.notes.append("vocab_size is not in the file: the tokenizer decides it.")
        return None
    which = tokenizer or "GPT-NeoX's default tokenizer, that of GPT-2,"
    is_unknown = keys.is_in_doubt(PADDED_TO) or keys.is_in_doubt(TENSOR)
    padding = "is padded to a multiple that is not known" if is_unknown else "was taken, padded as GPT-NeoX pads it"
    keys.notes.append(f"vocab_size: {size} of {which} {padding}.")
    return -(-size // multiple) * multiple


def _data_parallel(keys: FileSettings) -> int | None:
    """The ranks that are left."""
    world, ranks = keys.count(_WORLD), (degree(keys, TENSOR) or 1) * (degree(keys, PIPELINE) or 1)
    if world and world % ranks:
        raise InputError(keys.problem(_WORLD, WORLD_RULE, f"a multiple of {ranks}"))
    return world // ranks if world else None


def _num_nodes(keys: FileSettings) -> int | None:
    stated, world, gpus = _limit(keys, "num_nodes"), keys.count(_WORLD), _limit(keys, "num_gpus")
    return world // gpus if stated is None and world and gpus and world % gpus == 0 else stated


def _limit(keys: FileSettings, name: str) -> int | None:
    """A number of nodes or of GPUs; -1, like any other below 1, stands for all that there are."""
    value = keys.value(name)
    return None if isinstance(value, int) and value < 1 else keys.count(name)


_OTHERS: FieldReaders = {
    "vocab_size": _vocab_size,
    "data_parallel": _data_parallel,
    # One micro-batch unless told otherwise; null leaves it to the batch.
    "grad_accum_steps": lambda keys: None if keys.is_null(STEPS) else keys.count(STEPS) or 1,
    "num_nodes": _num_nodes,
    "gpus_per_node": lambda keys: _limit(keys, "num_gpus"),
}

_RULES: ValueRules = (
    one_of("dataset_impl", ("gpt2",), "a search pretrains a GPT"),
    one_of("train_impl", ("normal",), "a search pretrains a GPT"),
    ValueRule(
        "mlp_type",
        lambda keys: str(keys.value("mlp_type")) == "regular",
        "an MLP has its gate by its activation, swiglu, since September 2024 (GPT-NeoX #1276)",
        "remove it in a copy of the file, set activation to swiglu and intermediate_size to three times the width",
    ),
    ValueRule(
        "pipe_partition_method",
        lambda keys: degree(keys, PIPELINE) == 1 or str(keys.value("pipe_partition_method")).startswith("type:"),
        "uneven pipeline stages are no axis of a layout with this trainer",
    ),
)


def _changes(keys: FileSettings, layout: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    name = "checkpoint_num_layers"
    if (keys.count(name) or 1) > 1 and layout.get("activation_checkpointing") == "full":
        yield keys.problem(name, "trials recompute one layer at a time", "set it to 1")


def _differences(keys: FileSettings, read: ReadFields, missing: list[str]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    if missing:
        yield (
            f"The file has no {', '.join(missing)}: GPT-NeoX combines several files. What this one does not set was"
            " left open."
        )
    positions = keys.value("max_position_embeddings")
    if read.model.get("position_embedding") == "learned" and positions not in (None, read.model.get("seq_length")):
        yield f"max_position_embeddings is {positions}; a model has seq_length learned positions."
    if read.layout.get("data_parallel"):
        ranks = layout_mesh(read.layout).world_size
        yield f"The training runs on {ranks} rank{'s' if ranks > 1 else ''}."
