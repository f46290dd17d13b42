"""Import of a command that trains with a Megatron-Bridge recipe: its overrides, and the ranks that it starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.importers.bash.script import Script, Word
from orchestrator.importers.command_settings import command_settings
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launcher_options import LAUNCHER_GROUPS
from orchestrator.importers.megatron_bridge.config import config_settings, imported_overrides
from orchestrator.importers.megatron_bridge.options import MEGATRON_BRIDGE_OPTIONS
from orchestrator.importers.option_table import Handling, OptionGroup, OptionTable
from orchestrator.importers.ranks import ranks_of
from orchestrator.importers.settings import Setting, Settings
from orchestrator.importers.slurm_header import SlurmHeader
from orchestrator.importers.source_file import ReadFile
from orchestrator.importers.yaml_config import yaml_document
from search_spaces.errors import InputError

_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
_OVERRIDE_OF = {
    "tensor-model-parallel-size": "model.tensor_model_parallel_size",
    "pipeline-model-parallel-size": "model.pipeline_model_parallel_size",
    "virtual-pipeline-model-parallel-size": "model.virtual_pipeline_model_parallel_size",
    "context-parallel-size": "model.context_parallel_size",
    "expert-model-parallel-size": "model.expert_model_parallel_size",
    "expert-tensor-parallel-size": "model.expert_tensor_parallel_size",
    "micro-batch-size": "train.micro_batch_size",
    "global-batch-size": "train.global_batch_size",
    "seq-length": "dataset.seq_length",
}
"""Overrides that options of the script stand for."""
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
_COMMAND_OPTIONS = OptionTable(
    "the launcher",
    "Megatron-Bridge of 2026-08-22 (067f987d), scripts/training/run_recipe.py",
    (
        *LAUNCHER_GROUPS,
        OptionGroup(
            Handling.READ,
            "",
            "recipe= model= mode= config-file= " + " ".join(f"{name}=" for name in _OVERRIDE_OF),
        ),
        OptionGroup(
            Handling.NO_EFFECT,
            "it changes neither layout nor model",
            """
            dataset= dry-run dryrun dump-env load-dir= lr= max-steps= min-lr=
            pretrained-checkpoint= save-dir= save-interval= warmup-iters=
            """,
        ),
        OptionGroup(Handling.NOTED, "it changes which kernels run", "deterministic"),
        OptionGroup(Handling.NOTED, "it may choose another training step than a GPT's", "step-func="),
    ),
    prefix="--",
)


def is_bridge_command(words: Sequence[Word]) -> bool:
    """True for Megatron-Bridge's script, and for a command with several overrides of its keys."""
    texts = [word.text for word in words]
    overrides = [found[1] for text in texts if (found := _OVERRIDE.fullmatch(text))]
    known = [name for name in overrides if "." in name and _table_name(name) in MEGATRON_BRIDGE_OPTIONS.group_of]
    return any(text.endswith("run_recipe.py") for text in texts) or len(known) > 1


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
    options = command_settings(rest, _COMMAND_OPTIONS, script)
    if problems := [*options.problems(), *_other_mode(options)]:
        raise InputError(*problems)
    ranks = ranks_of([word.text for word in words], options, header, script.exported)
    given = {**_config_file(options, read_file), **_from_options(options), **dict(_from_overrides(overrides, script))}
    recipe = options.text("recipe") or options.text("model")
    found = imported_overrides(Settings(given, MEGATRON_BRIDGE_OPTIONS), recipe, ranks.num_nodes, ranks.gpus_per_node)
    notes = [*found.notes, *options.notes, *options.left_out(), *_unknown_short_options(rest)]
    return replace(found, origins={**found.origins, **ranks.origins}, notes=tuple(dict.fromkeys(notes)))


def _other_mode(options: Settings) -> Iterator[Any]:
    if options.text("mode") not in (None, "pretrain"):
        yield options.problem("mode", "a search pretrains a GPT", "give the command of a pretraining")


def _config_file(options: Settings, read_file: ReadFile | None) -> Mapping[str, Setting]:
    """The settings of the file behind --config-file, without their lines, which are not the script's."""
    path = options.text("config-file")
    if path is None:
        return {}
    try:
        if read_file is not None:
            return {name: replace(each, line=None) for name, each in config_settings(read_file(path)).given.items()}
    except (InputError, OSError):
        pass
    options.notes.append("The file behind --config-file was not read; what only it sets is missing.")
    return {}


def _from_options(options: Settings) -> dict[str, Setting]:
    return {theirs: options.given[name] for name, theirs in _OVERRIDE_OF.items() if options.has(name)}


def _from_overrides(words: Iterable[Word], script: Script) -> Iterator[tuple[str, Setting]]:
    """Each override as a setting; one inside a section that is handled as a whole has that section's name."""
    for word in words:
        if found := _OVERRIDE.fullmatch(word.text):
            name = _table_name(found[1])
            inner = found[1][len(name) + 1 :]
            value, doubt = _value(found[2]), word.placeholder
            if re.search(r"[$`]", found[2]):
                doubt = "the script does not set it"
            variable = next((each for each in word.variables if each in script.variables), None)  # no list of words
            yield name, Setting({inner: value} if inner else value, word.line, variable, doubt)


def _table_name(name: str) -> str:
    """The key itself, or the section around it that the table has as a whole."""
    parts = name.split(".")
    sections = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    return next((section for section in sections if section in MEGATRON_BRIDGE_OPTIONS.group_of), name)


def _value(text: str) -> Any:
    """The value as YAML has it, else the text itself."""
    try:
        return yaml_document(f"value: {text}").data["value"]
    except InputError:
        return text


def _unknown_short_options(words: Sequence[Word]) -> Iterator[str]:
    for word in words:
        if re.fullmatch(r"-[a-z]{2,3}", word.text):
            yield f"{word.text} was left out: it is no option of {_COMMAND_OPTIONS.source}."
