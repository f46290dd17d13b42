"""Import of a GPT-NeoX configuration as model, layout and batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.batch import complete_batch
from orchestrator.importers.deepspeed_config import bucket_notes
from orchestrator.importers.differences import biases_of, other_number_of_positions
from orchestrator.importers.gpt_neox_fields import (
    BATCH_FIELDS,
    CLUSTER_FIELDS,
    GATED,
    LAYOUT_FIELDS,
    MODEL_FIELDS,
    VALUE_RULES,
    missing_keys,
)
from orchestrator.importers.gpt_neox_options import GPT_NEOX_OPTIONS
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.settings import CODE, Settings, read_fields, turn_off_sequence_parallel
from orchestrator.importers.yaml_config import document_settings, yaml_document
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import layout_mesh
from search_spaces.schema.yaml_document import Document, KeyPath

_CHARACTERISTIC_KEYS = (
    *("pipe_parallel_size", "model_parallel_size", "num_layers", "attention_config", "pos_emb"),
    *("data_path", "train_data_paths", "vocab_file", "tokenizer_type"),
)
_EXTRA = "deepspeed_extra_args"


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
    keys = document_settings(document, GPT_NEOX_OPTIONS, _paths(document))
    if problems := [*keys.problems(VALUE_RULES)]:
        raise InputError(*problems)
    model, model_origins = read_fields(keys, "model", MODEL_FIELDS)
    layout, layout_origins = read_fields(keys, "baseline", LAYOUT_FIELDS)
    top, top_origins = read_fields(keys, "", BATCH_FIELDS)
    cluster, cluster_origins = read_fields(keys, "cluster", CLUSTER_FIELDS)
    origins = {**model_origins, **layout_origins, **top_origins, **cluster_origins}
    left_open: tuple[str, ...] = ()
    if missing := missing_keys(keys):
        _leave_defaults_open(model, "model", origins)
        _leave_defaults_open(layout, "baseline", origins)
        left_open = tuple(name for name in LAYOUT_FIELDS if name not in layout)
        keys.notes.append(
            f"The file has no {', '.join(missing)}: GPT-NeoX combines several files. What this one does not set was"
            " left open."
        )
        if not model and not layout:
            raise _no_model_and_layout(missing)
    turn_off_sequence_parallel(layout, keys)
    nodes, gpus = cluster.get("num_nodes"), cluster.get("gpus_per_node")
    batch = complete_batch(layout, top.get("global_batch_size"), nodes, gpus, keys.in_doubt)
    return ImportedConfig(
        "gpt-neox",
        model,
        layout,
        batch,
        nodes,
        gpus,
        origins={"global_batch_size": _BATCH_ORIGIN, **origins},
        notes=tuple(
            dict.fromkeys(
                [*keys.notes, *keys.left_out(keys.given.keys() - _REPLACED), *_differences(keys, model, layout)]
            )
        ),
        engine="gpt-neox",
        left_open=left_open,
        in_doubt=tuple(keys.in_doubt),
        changed=tuple(_changes(keys, layout)),
    )


_REPLACED = {"use_qk_layernorm"}
"""Keys of a template that a trial replaces; it has the others as they are."""
_BATCH_ORIGIN = "micro-batch x accumulation x data-parallel ranks"


def _key(name: str) -> str:
    """GPT-NeoX takes keys with hyphens too."""
    return name.replace("-", "_")


def _paths(document: Document) -> Mapping[str, KeyPath]:
    """Path of each key; those of deepspeed_extra_args are DeepSpeed's own."""
    found: dict[str, KeyPath] = {}
    for name in document.data:
        if _key(name) in found:
            raise _given_twice(name, document)
        found[_key(name)] = (name,)
    extra = document.value(found.pop(_EXTRA)) if _EXTRA in found else None
    return {**found, **{name: (_EXTRA, name) for name in extra}} if isinstance(extra, Mapping) else found


def _given_twice(name: str, document: Document) -> InputError:
    return InputError.of(
        CODE,
        f"is given a second time, as {_key(name)}",
        rule="GPT-NeoX reads a key with hyphens as the one with underscores",
        fix="remove one of them",
        key=name,
        line=document.location((name,)).line,
    )


def _leave_defaults_open(values: dict[str, Any], section: str, origins: dict[str, str]) -> None:
    """Remove the values that are defaults."""
    default = f"{GPT_NEOX_OPTIONS.trainer}'s default"
    for name in [name for name in values if origins[f"{section}.{name}"] == default]:
        del values[name], origins[f"{section}.{name}"]


def _no_model_and_layout(missing: list[str]) -> InputError:
    return InputError.of(
        CODE,
        f"has no {', '.join(missing)}",
        rule="a GPT-NeoX configuration describes a model or a layout",
        fix="give the file of the training that has num_layers in it, or one that combines all of them",
    )


def _changes(keys: Settings, layout: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    count = keys.count("checkpoint_num_layers") or 1
    if count > 1 and layout.get("activation_checkpointing") == "full":
        yield keys.problem("checkpoint_num_layers", reasons.EACH_LAYER, "set it to 1")


def _differences(keys: Settings, model: Mapping[str, Any], layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    yield from _of_a_layer(keys, model)
    yield from bucket_notes(keys)
    if keys.has("te_mha"):
        yield "te_mha: Transformer Engine chooses the attention kernel; flash is taken in half precision."
    if keys.has("hostfile"):
        yield "hostfile was not read: it has the nodes and their GPUs."
    if layout.get("data_parallel"):
        ranks = layout_mesh(layout).world_size
        yield f"The training runs on {ranks} rank{'s' if ranks > 1 else ''}."


def _of_a_layer(keys: Settings, model: Mapping[str, Any]) -> Iterator[str]:
    activation = keys.text("activation")
    if activation is not None and activation not in ("gelu", "swiglu"):
        yield f"activation {activation}: trials have {'SiLU in the gate' if activation in GATED else 'GELU'}."
    names = ("use_bias_in_attn_linear", "use_bias_in_mlp")
    for name in names if model.get("norm") == "rmsnorm" else (*names, "use_bias_in_norms"):
        has_biases = keys.flag(name, default=True)
        if "norm" in model and has_biases == (model["norm"] == "rmsnorm"):
            yield f"{name} is {str(has_biases).lower()}; {biases_of(model['norm'])}."
    positions = keys.value("max_position_embeddings")
    if model.get("position_embedding") == "learned" and positions not in (None, model.get("seq_length")):
        yield other_number_of_positions("max_position_embeddings", positions)
