"""Import of a command that trains by torchtitan: its options, the configuration that it names, and its ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.importers.bash.script import Script, Word
from orchestrator.importers.command_settings import command_settings
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launcher_options import LAUNCHER_GROUPS
from orchestrator.importers.option_table import Handling, OptionGroup, OptionTable
from orchestrator.importers.ranks import ranks_of
from orchestrator.importers.settings import CODE, Setting, Settings
from orchestrator.importers.slurm_header import SlurmHeader
from orchestrator.importers.source_file import ReadFile
from orchestrator.importers.torchtitan.config import imported_settings, settings_of
from orchestrator.importers.torchtitan.module import module_settings
from orchestrator.importers.torchtitan.options import TORCHTITAN_OPTIONS
from orchestrator.importers.torchtitan.registry import CONFIGS, OTHER_MODULES, REFUSED_CONFIGS
from search_spaces.errors import InputError

_PROGRAM = re.compile(r"torchtitan\.train|(.*/)?torchtitan/train\.py")
_RUN_TRAIN = "run_train.sh"
_OF_RUN_TRAIN = {"NGPU": "8", "MODULE": "llama3", "CONFIG": "llama3_debugmodel"}
"""Variables of torchtitan's run_train.sh, with its defaults."""
_STARTS_FILES = re.compile(r"(.*/)?(bash|sh|exec|time|nohup)|-\w+")
_POLICY = re.compile(r"activation[-_]checkpoint:(.*)")
_LLAMA3 = ("llama3", "torchtitan.models.llama3", "torchtitan.models.llama3.config_registry")
_FLAGS = TORCHTITAN_OPTIONS.flags


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


def _without(name: str) -> str:
    """The option that turns a flag off."""
    section, _, flag = name.rpartition(".")
    return f"{section}.no_{flag}"


_LAUNCHER = OptionTable("the launcher", TORCHTITAN_OPTIONS.source, LAUNCHER_GROUPS, prefix="--").with_groups(
    (OptionGroup(Handling.READ, "", "module= config="),)
)
"""Options that torchtitan does not have among those of its configuration."""
_COMMAND_OPTIONS = _LAUNCHER.with_groups(
    (
        *(replace(group, names=_hyphens(group.names)) for group in TORCHTITAN_OPTIONS.groups),
        OptionGroup(Handling.READ, "", " ".join(_hyphens(_without(flag)) for flag in sorted(_FLAGS))),
    )
)
"""Options as `command_settings` names them, with hyphens."""
_THEIRS = {_hyphens(name): name for name in TORCHTITAN_OPTIONS.group_of}
_OFF = {_hyphens(_without(flag)): flag for flag in _FLAGS}


def is_torchtitan_command(words: Sequence[Word], exported: Mapping[str, str]) -> bool:
    """True for a command that starts torchtitan's training program, by itself or by torchtitan's run_train.sh."""
    if any(_PROGRAM.fullmatch(word.text) for word in words):
        return True
    names = (word.text.partition("=")[0].removeprefix("--").replace("-", "_") for word in words)
    is_known = bool({"MODULE", "CONFIG"} & exported.keys()) or any(
        name in TORCHTITAN_OPTIONS.group_of for name in names
    )
    return _run_train(words) is not None and is_known


def _run_train(words: Sequence[Word]) -> int | None:
    """Index of run_train.sh, where the command runs it."""
    index = next((i for i, word in enumerate(words) if word.text.rpartition("/")[2] == _RUN_TRAIN), None)
    return index if index is not None and all(_STARTS_FILES.fullmatch(word.text) for word in words[:index]) else None


def _by_torchrun(words: Sequence[Word], exported: Mapping[str, str]) -> tuple[Sequence[Word], list[str]]:
    """(the command that run_train.sh starts, a note on the variables that have its defaults)"""
    index = _run_train(words)
    if index is None:
        return words, []
    values = {name: exported.get(name, default) for name, default in _OF_RUN_TRAIN.items()}
    text = "torchrun --nproc_per_node {NGPU} -m torchtitan.train --module {MODULE} --config {CONFIG}".format(**values)
    assumed = [f"{name} {value}" for name, value in values.items() if name not in exported]
    note = f"{_RUN_TRAIN} is taken for torchtitan's own" + (f", with its {', '.join(assumed)}." if assumed else ".")
    return [*(Word(part, words[index].line) for part in text.split()), *words[index + 1 :]], [note]


def read_torchtitan_command(
    words: Sequence[Word],
    script: Script,
    header: SlurmHeader,
    read_file: ReadFile | None = None,
) -> ImportedConfig:
    """The values of this training command of the script. Its options prevail over the configuration that it names.

    InputError for a configuration of another model, and as `imported_settings` says.
    """
    words, taken = _by_torchrun(words, script.exported)
    policies = [word for word in words if _POLICY.fullmatch(word.text)]
    options = command_settings([word for word in words if word not in policies], _COMMAND_OPTIONS, script)
    is_launchers = {name: name in _LAUNCHER.group_of for name in options.given}
    of_launcher = {name: each for name, each in options.given.items() if is_launchers[name]}
    launcher = Settings(of_launcher, _LAUNCHER, options.notes)
    if problems := [*launcher.problems()]:
        raise InputError(*problems)
    ranks = ranks_of([word.text for word in words], launcher, header, script.exported)
    named, unread = _config(launcher, read_file)
    own = dict(_own(name, each) for name, each in options.given.items() if not is_launchers[name])
    found = imported_settings({**named, **own, **dict(map(_chosen, policies))}, unread, ranks, prefix="--")
    notes = [*taken, *found.notes, *launcher.notes, *launcher.left_out()]
    return replace(found, notes=tuple(dict.fromkeys(notes)))


def _own(name: str, setting: Setting) -> tuple[str, Setting]:
    """An option by the name that it has in torchtitan's configuration, also one that torchtitan does not know."""
    if name in _OFF:
        return _OFF[name], replace(setting, value=False)
    return _THEIRS.get(name, name), replace(setting, value=None) if setting.value == "None" else setting


def _chosen(word: Word) -> tuple[str, Setting]:
    found = _POLICY.fullmatch(word.text)
    assert found is not None
    return "activation_checkpoint", Setting(found[1], word.line, doubt=word.placeholder)


def _config(options: Settings, read_file: ReadFile | None) -> tuple[Mapping[str, Setting], str | None]:
    """(settings of the configuration that the command names; its name where it was not read)"""
    module, name = options.text("module"), options.text("config")
    unknown = [option for option in ("module", "config") if options.is_in_doubt(option)]
    if module is None or name is None:
        if unknown:
            return {}, f"behind {' and '.join(f'--{option}' for option in unknown)}"
        raise InputError.of(
            CODE,
            "the training command has no --module and --config",
            rule="torchtitan 0.3 takes its configuration from a function that --module and --config name",
            fix="give a command of torchtitan 0.3, or the configuration that it saves (debug.save_config_file)",
        )
    if module in OTHER_MODULES:
        raise InputError(options.problem("module", OTHER_MODULES[module], "give a training of llama3"))
    if module in _LLAMA3:
        if name in REFUSED_CONFIGS:
            raise InputError(options.problem("config", REFUSED_CONFIGS[name], "give a training in bf16 or fp32"))
        if name in CONFIGS:
            return settings_of(CONFIGS[name], f"torchtitan's {name}"), None
        return {}, f"{name} of {module}"
    return _of_a_file(module, name, read_file)


def _of_a_file(module: str, name: str, read_file: ReadFile | None) -> tuple[Mapping[str, Setting], str | None]:
    """The settings of a module beside the script, without their lines, which are not the script's."""
    path = module.replace(".", "/")
    for file in (f"{path}/config_registry.py", f"{path}.py"):
        try:
            text = None if read_file is None or not re.fullmatch(r"[\w/]{1,200}", path) else read_file(file)
        except (InputError, OSError):
            continue
        if text is not None:
            given = module_settings(text, name)
            return {key: replace(each, line=None, origin=each.origin or file) for key, each in given.items()}, None
    return {}, f"{name} of {module}"
