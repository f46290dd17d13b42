"""Import of a command that trains with a Megatron-Bridge recipe: its overrides, and the ranks that it starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.importers.bash.script import Script, Word
from orchestrator.importers.command_settings import command_settings
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launcher_options import LAUNCHER, LAUNCHER_OPTIONS
from orchestrator.importers.megatron_bridge.config import Given, config_settings, imported_overrides
from orchestrator.importers.ranks import ranks_of
from orchestrator.importers.settings import Setting, Settings
from orchestrator.importers.slurm_header import SlurmHeader
from orchestrator.importers.source_file import ReadFile
from orchestrator.importers.yaml_config import yaml_document
from search_spaces.errors import InputError, Problem
from trials.trainers.common.megatron_core import all_fields
from trials.trainers.megatron_bridge.overrides import MEGATRON_BRIDGE, sections_of
from trials.trainers.table import Table

_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
_FIELDS = all_fields(MEGATRON_BRIDGE.rows)
_LONG = {
    "-tp": "--tensor-model-parallel-size",
    "-pp": "--pipeline-model-parallel-size",
    "-vp": "--virtual-pipeline-model-parallel-size",
    "-cp": "--context-parallel-size",
    "-ep": "--expert-model-parallel-size",
    "-etp": "--expert-tensor-parallel-size",
    "-mb": "--micro-batch-size",
    "-gb": "--global-batch-size",
    "-sl": "--seq-length",
    "-ms": "--max-steps",
}
_COMMAND = Table(
    "the launcher",
    "2026-08-22 (067f987d)",
    flags=LAUNCHER.flags | {"dry-run", "dryrun", "dump-env", "deterministic"},
    prefix="--",
)
"""scripts/training/run_recipe.py of Megatron-Bridge."""


def is_bridge_command(words: Sequence[Word]) -> bool:
    """True for Megatron-Bridge's script, and for a command with several overrides of its keys."""
    texts = [word.text for word in words]
    overrides = [found[1] for text in texts if (found := _OVERRIDE.fullmatch(text))]
    return any(text.endswith("run_recipe.py") for text in texts) or sum(map(_is_known, overrides)) > 1


def _is_known(key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in _FIELDS and section in sections_of(name) and bool(section)


def read_bridge_command(
    words: Sequence[Word],
    script: Script,
    header: SlurmHeader,
    read_file: ReadFile | None = None,
) -> ImportedConfig:
    """The values of this training command of the script. An override prevails over the file of --config-file, and the
    last one over others.

    InputError as `imported_overrides` says, and for another training than a GPT's.
    """
    program = next((index for index, word in enumerate(words) if word.text.endswith(".py")), 0)
    overrides = [word for word in words[program:] if _OVERRIDE.fullmatch(word.text)]
    rest = [replace(word, text=_LONG.get(word.text, word.text)) for word in words if word not in overrides]
    options = command_settings(rest, _COMMAND, script)
    if problems := [*Settings(options.given, LAUNCHER).problems(), *_other_mode(options)]:
        raise InputError(*problems)
    ranks = ranks_of([word.text for word in words], options, header, script.exported)
    given = {**_config_file(options, read_file), **_from_options(options), **dict(_from_overrides(overrides, script))}
    recipe = options.text("recipe") or options.text("model")
    found = imported_overrides(given, recipe, ranks.num_nodes, ranks.gpus_per_node)
    notes = [*found.notes, *options.notes, *_not_read(options, rest)]
    return replace(found, origins={**found.origins, **ranks.origins}, notes=tuple(dict.fromkeys(notes)))


def _other_mode(options: Settings) -> Iterator[Problem]:
    if options.text("mode") not in (None, "pretrain"):
        yield options.problem("mode", "a search pretrains a GPT", "give the command of a pretraining")


def _config_file(options: Settings, read_file: ReadFile | None) -> Given:
    """The settings of the file behind --config-file, without their lines, which are not the script's."""
    path = options.text("config-file")
    if path is None:
        return {}
    try:
        if read_file is not None:
            return {name: replace(each, line=None) for name, each in config_settings(read_file(path)).items()}
    except (InputError, OSError):
        pass
    options.notes.append("The file behind --config-file was not read; what only it sets is missing.")
    return {}


def _from_options(options: Settings) -> dict[str, Setting]:
    """Overrides that options of the script stand for."""
    names = (long.removeprefix("--") for short, long in _LONG.items() if short != "-ms")
    fields = {name: name.replace("-", "_") for name in names if options.has(name)}
    return {f"{sections_of(field)[0]}.{field}": options.given[name] for name, field in fields.items()}


def _from_overrides(words: Iterable[Word], script: Script) -> Iterator[tuple[str, Setting]]:
    """Each override as a setting; one inside a section that is read as a whole has that section's name."""
    for word in words:
        if found := _OVERRIDE.fullmatch(word.text):
            head, _, inner = found[1].partition(".")
            value = _value(found[2])
            variable = next((each for each in word.variables if each in script.variables), None)  # no list of words
            is_inside = inner and head in MEGATRON_BRIDGE.whole
            yield (
                head if is_inside else found[1],
                Setting({inner: value} if is_inside else value, word.line, variable, word.doubt),
            )


def _value(text: str) -> Any:
    """The value as YAML has it, else the text itself."""
    try:
        return yaml_document(f"value: {text}").data["value"]
    except InputError:
        return text


def _not_read(options: Settings, words: Sequence[Word]) -> Iterator[str]:
    names = [f"--{name}" for name in options.unread() if name not in LAUNCHER_OPTIONS]
    names += [word.text for word in words if re.fullmatch(r"-[a-z]{2,3}", word.text)]
    if names:
        yield f"Not read: {', '.join(names)}."
