"""Registry of the formats that `parlay init --from` reads: which reader takes a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.config.importers.accelerate import looks_like_accelerate, read_accelerate
from orchestrator.config.importers.deepspeed_config import looks_like_deepspeed, read_ds_config
from orchestrator.config.importers.gpt_neox import looks_like_gpt_neox, read_gpt_neox
from orchestrator.config.importers.hf_config import looks_like_hf, read_hf_config
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.launch_script import read_launch_script
from orchestrator.config.importers.megatron_bridge import looks_like_megatron_bridge, read_bridge_config
from orchestrator.config.importers.nanotron import looks_like_nanotron, read_nanotron
from orchestrator.config.importers.rows import read_rows
from orchestrator.config.importers.settings import document_settings
from orchestrator.config.importers.source_file import json_object, read_beside, read_utf8, yaml_document
from orchestrator.config.importers.torchtitan.saved import looks_like_torchtitan, read_module, read_saved_config
from search_spaces.errors import InputError
from trials.trainers.nemo_automodel.trainer import NEMO_AUTOMODEL

Format = tuple[str, Callable[[Mapping[str, Any]], bool], Callable[[str], ImportedConfig]]
"""A configuration format: its name in messages, how its mappings are known, and its reader."""


def read_automodel(text: str) -> ImportedConfig:
    """The values of a recipe of NeMo Automodel, whose model is in its checkpoint; absent keys have its own defaults."""
    keys = document_settings(yaml_document(text), NEMO_AUTOMODEL)
    read = read_rows(NEMO_AUTOMODEL, keys)
    read.complete(keys)
    return read.imported("nemo-automodel", keys, [*keys.in_template()], engine="command", finetunes=True)


_GPT_NEOX: Format = ("GPT-NeoX's configuration", looks_like_gpt_neox, read_gpt_neox)
_ACCELERATE: Format = ("accelerate's configuration", looks_like_accelerate, read_accelerate)
_JSON_FORMATS: tuple[Format, ...] = (
    ("a Hugging Face config.json", looks_like_hf, read_hf_config),
    _GPT_NEOX,
    ("a DeepSpeed config", looks_like_deepspeed, read_ds_config),
    _ACCELERATE,
    ("a configuration that torchtitan saved", looks_like_torchtitan, read_saved_config),
)
_YAML_FORMATS: tuple[Format, ...] = (
    ("nanotron's configuration", looks_like_nanotron, read_nanotron),
    ("a recipe of NeMo Automodel", lambda data: "step_scheduler" in data, read_automodel),
    _GPT_NEOX,
    ("overrides of Megatron-Bridge", looks_like_megatron_bridge, read_bridge_config),
    _ACCELERATE,
)
_NAMES = dict.fromkeys(name for name, *_ in (*_JSON_FORMATS, *_YAML_FORMATS))
_RULE = f"`parlay init` starts from a launch script, {', '.join(_NAMES)}, a module with torchtitan's configuration"
_FIX = "give the script that starts the training, or the configuration that it starts with"


def read_source(path: Path) -> ImportedConfig:
    """The values of this file. InputError if it cannot be read, and as its reader says."""
    text, read_file = read_utf8(path), read_beside(path)
    if not text.strip():
        raise InputError.of("file", "is empty", rule=_RULE, fix=_FIX)
    if path.suffix in (".yaml", ".yml"):
        data, formats = yaml_document(text).data, _YAML_FORMATS
    elif path.suffix == ".py":
        return read_module(text)
    elif path.suffix == ".json" or text.lstrip().startswith("{"):
        data, formats = json_object(text, "file", "a configuration"), _JSON_FORMATS
    else:
        return read_launch_script(text, read_file)
    read = next((read for _, looks_like, read in formats if looks_like(data)), None)
    if read is None:
        names = " nor ".join(name for name, *_ in formats)
        fix = "this is a search file: use it directly, parlay plan FILE" if "space" in data else _FIX
        raise InputError.of("file", f"is neither {names}", rule=_RULE, fix=fix)
    return read_accelerate(text, read_file) if read is read_accelerate else read(text)
