"""Import of a nanotron configuration as model, layout and batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.rows import read_rows
from orchestrator.config.importers.settings import FileSettings, document_settings
from orchestrator.config.importers.source_file import yaml_document
from search_spaces.layouts.layout import layout_mesh
from trials.trainers.nanotron.trainer import NANOTRON

_MODEL = "model.model_config."


def looks_like_nanotron(data: Mapping[str, Any]) -> bool:
    """True for a mapping with the sections that every configuration of nanotron has."""
    return isinstance(data.get("parallelism"), Mapping) and bool({"tokens", "general"} & data.keys())


def read_nanotron(text: str) -> ImportedConfig:
    """The values of a nanotron configuration; absent keys have nanotron's own defaults.

    InputError for text that is no YAML mapping, and for keys and values that no search file expresses.
    """
    keys = document_settings(yaml_document(text), NANOTRON)
    read = read_rows(NANOTRON, keys)
    read.complete(keys)
    notes = [*_differences(keys, read.layout), *keys.in_template()]
    return read.imported("nanotron", keys, notes, engine="nanotron")


def _differences(keys: FileSettings, layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    if keys.value(f"{_MODEL}vocab_size") == -1:
        yield f"{_MODEL}vocab_size is -1: the tokenized data decide it."
    if keys.has(f"{_MODEL}attention_bias") and not keys.has(f"{_MODEL}is_qwen2_config"):
        yield f"{_MODEL}attention_bias was left out: a model with norm rmsnorm has no biases."
    if keys.text(f"{_MODEL}_attn_implementation") == "sdpa":
        yield "PyTorch chooses the kernel of sdpa; it is taken as flash, its choice on current GPUs."
    if lengths := _other_lengths(keys):
        yield f"data_stages train with sequences of {' and '.join(lengths)} tokens too; trials have one length."
    if layout.keys() >= {"tensor_parallel", "pipeline_parallel", "data_parallel"}:
        yield f"The training runs on {layout_mesh(layout).world_size} ranks; the file does not say on how many nodes."


def _other_lengths(keys: FileSettings) -> list[str]:
    """Sequence lengths of the training's stages that are not the model's."""
    given = [stage.get("sequence_length") for stage in keys.listed("data_stages") if isinstance(stage, Mapping)]
    own = keys.value("tokens.sequence_length")
    return list(dict.fromkeys(str(length) for length in given if length not in (None, own)))
