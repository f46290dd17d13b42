"""DeepSpeed's configuration of a Megatron command: a file that its script writes, or one beside it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from orchestrator.config.importers.bash.script import Script, Word
from orchestrator.config.importers.command_settings import default_notes
from orchestrator.config.importers.deepspeed_config import CHARACTERISTIC_KEYS, read_ds_config
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.json_text import json_object
from orchestrator.config.importers.settings import CODE, FileSettings
from orchestrator.config.importers.source_file import ReadFile
from search_spaces.errors import InputError

_OF_THE_CONFIG = ("micro_batch_size", "global_batch_size", "zero_stage", "offload", "overlap_comm", "bucket_mib")
"""Fields that the configuration decides where the command does not."""


def named_ds_config(script: Script, options: FileSettings, read_file: ReadFile | None) -> ImportedConfig | None:
    """The values of the file that DeepSpeed opens when this command runs; None where the command names none.

    Where its text is not known, all that it decides is in doubt. A name that is not known is that of the only
    configuration that the script writes.
    """
    named, files = options.given.get("deepspeed-config"), script.files
    path = None if named is None else posixpath.normpath(str(named.value))
    if path is not None and path in files:
        return _written(path, files[path], script)
    if named is not None and named.doubt is None:
        return _beside(str(named.value), read_file)
    written = _configs(files)
    if len(written) == 1:
        ((path, document),) = written.items()
        options.notes.append(f"{path} is taken for the DeepSpeed config, whose name is not known.")
        return _written(path, document, script)
    return _unknown("The DeepSpeed config is not known") if named or written else None


def _written(path: str, document: Word | None, script: Script) -> ImportedConfig:
    """The values of a file that the script writes. It may be filled in by a program that is not known."""
    if document is None:
        return _unknown(f"The DeepSpeed config {path} is written in a way that is not known")
    try:
        json_object(document.text, CODE, "a DeepSpeed config")
    except InputError as error:
        return _unknown(f"The DeepSpeed config {path}, as the script writes it, is {error.problems[0].message}")
    config = read_ds_config(document.text)
    return replace(config, notes=(*default_notes([document], script.defaults), *config.notes))


def _beside(path: str, read_file: ReadFile | None) -> ImportedConfig:
    """The values of a file that is there before the script runs."""
    try:
        text = None if read_file is None else read_file(path)
    except (InputError, OSError):
        text = None
    if text is None:
        return _unknown(f"{path} behind --deepspeed-config was not read")
    try:
        return read_ds_config(text)
    except InputError as error:
        raise error.at(file=path) from None


def _configs(files: Mapping[str, Word | None]) -> dict[str, Word | None]:
    """Files that may be a DeepSpeed config, by their name or their keys."""
    return {
        path: file
        for path, file in files.items()
        if path.endswith(".json") or (file and any(f'"{key}"' in file.text for key in CHARACTERISTIC_KEYS))
    }


def _unknown(why: str) -> ImportedConfig:
    return ImportedConfig(
        "deepspeed", notes=(f"{why}: values that only it has are asked for.",), in_doubt=_OF_THE_CONFIG
    )
