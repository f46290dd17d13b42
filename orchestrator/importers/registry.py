"""Registry of the formats that `parlay init --from` reads: which reader takes a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.importers.accelerate import looks_like_accelerate, read_accelerate
from orchestrator.importers.deepspeed_config import CHARACTERISTIC_KEYS, looks_like_deepspeed, read_ds_config
from orchestrator.importers.gpt_neox import looks_like_gpt_neox, read_gpt_neox
from orchestrator.importers.hf_config import looks_like_hf, read_hf_config
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.json_text import json_object
from orchestrator.importers.launch_script import read_launch_script
from orchestrator.importers.megatron_bridge import looks_like_megatron_bridge, read_bridge_config
from orchestrator.importers.nanotron import looks_like_nanotron, read_nanotron
from orchestrator.importers.source_file import ReadFile, read_beside, read_utf8
from orchestrator.importers.torchtitan.saved import looks_like_torchtitan, read_module, read_saved_config
from orchestrator.importers.yaml_config import yaml_document
from search_spaces.errors import InputError

_YAML_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Format:
    """A configuration format: its name and the mark of its files in messages, and its reader, which may read the files
    that a configuration names."""

    name: str
    mark: str
    looks_like: Callable[[Mapping[str, Any]], bool]
    read: Callable[[str, ReadFile], ImportedConfig]


def _alone(read: Callable[[str], ImportedConfig]) -> Callable[[str, ReadFile], ImportedConfig]:
    """The reader of a format whose files name no others."""
    return lambda text, read_file: read(text)


_GPT_NEOX = Format(
    "GPT-NeoX's configuration", "num_layers and pipe_parallel_size", looks_like_gpt_neox, _alone(read_gpt_neox)
)
_ACCELERATE = Format("accelerate's configuration", "distributed_type", looks_like_accelerate, read_accelerate)
_JSON_FORMATS = (
    Format("a Hugging Face config.json", "model_type", looks_like_hf, _alone(read_hf_config)),
    _GPT_NEOX,
    Format(
        "a DeepSpeed config", f"one of {', '.join(CHARACTERISTIC_KEYS)}", looks_like_deepspeed, _alone(read_ds_config)
    ),
    _ACCELERATE,
    Format(
        "a configuration that torchtitan saved",
        "model_spec, parallelism and training",
        looks_like_torchtitan,
        _alone(read_saved_config),
    ),
)
_YAML_FORMATS = (
    Format("nanotron's configuration", "parallelism and tokens", looks_like_nanotron, _alone(read_nanotron)),
    _GPT_NEOX,
    Format("overrides of Megatron-Bridge", "model and train", looks_like_megatron_bridge, _alone(read_bridge_config)),
    _ACCELERATE,
)
_MODULE = "a module with torchtitan's configuration"
_NAMES = dict.fromkeys(each.name for each in (*_JSON_FORMATS, *_YAML_FORMATS))
_SOURCES = ", ".join(["a launch script", *_NAMES, _MODULE])
"""Formats that can be read, in words."""
_FIX = "give the script that starts the training, or the configuration that it starts with"


def read_source(path: Path) -> ImportedConfig | None:
    """The values of this file; None for YAML that is no trainer's configuration.

    InputError if it cannot be read, and as its reader says.
    """
    text = read_utf8(path)
    if not text.strip():
        raise InputError.of("file", "is empty", rule=f"`parlay init` starts from {_SOURCES}", fix=_FIX)
    if path.suffix in _YAML_SUFFIXES:
        found = _format_of(yaml_document(text).data, _YAML_FORMATS)
        return None if found is None else found.read(text, read_beside(path))
    if path.suffix == ".py":
        return read_module(text)
    if path.suffix != ".json" and not text.lstrip().startswith("{"):
        return read_launch_script(text, read_beside(path))
    found = _format_of(json_object(text, "file", "a configuration"), _JSON_FORMATS)
    if found is None:
        raise InputError.of(
            "file",
            "is neither " + " nor ".join(each.name for each in _JSON_FORMATS),
            rule=", ".join(f"{each.name} has {each.mark}" for each in _JSON_FORMATS),
            fix=_FIX,
        )
    return found.read(text, read_beside(path))


def _format_of(data: Mapping[str, Any], formats: tuple[Format, ...]) -> Format | None:
    return next((each for each in formats if each.looks_like(data)), None)
