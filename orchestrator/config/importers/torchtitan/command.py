"""Import of a command that trains by torchtitan: its options, the configuration that it names, and its ranks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from orchestrator.config.importers.bash.script import Script, Word
from orchestrator.config.importers.command_settings import LAUNCHER, LAUNCHER_OPTIONS, command_settings
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.ranks import ranks_of
from orchestrator.config.importers.settings import CODE, FileSettings, Setting
from orchestrator.config.importers.slurm_header import SlurmHeader
from orchestrator.config.importers.source_file import ReadFile
from orchestrator.config.importers.torchtitan.config import as_settings, imported_settings
from orchestrator.config.importers.torchtitan.registry import CONFIGS, MODULES, refusal
from orchestrator.config.importers.torchtitan.saved import module_settings
from search_spaces.errors import InputError
from trials.trainers.torchtitan.config import TORCHTITAN_TABLE

_PROGRAM = re.compile(r"torchtitan\.train|(.*/)?torchtitan/train\.py")
_RUN_TRAIN = "run_train.sh"
_OF_RUN_TRAIN = {"NGPU": "8", "MODULE": "llama3", "CONFIG": "llama3_debugmodel"}
"""Variables of torchtitan's run_train.sh, with its defaults."""
_STARTS_FILES = re.compile(r"(.*/)?(bash|sh|exec|time|nohup)|-\w+")
_SUBCOMMAND = re.compile(r"^activation[-_]checkpoint:")
"""Choice of a policy, such as `activation-checkpoint:full`."""
_OPTION = re.compile(r"--(training|parallelism|compile|checkpoint|metrics|profiler|optimizer|dataloader)\..*")
_CHOICE = ("module", "config")
"""Options that choose the configuration; torchrun's --module is `-m`."""
_OPTIONS = replace(
    TORCHTITAN_TABLE,
    flags=(LAUNCHER.flags - {"module"}) | {name.replace("_", "-") for name in TORCHTITAN_TABLE.flags},
    prefix="--",
)


def is_torchtitan_command(words: Sequence[Word], exported: Mapping[str, str]) -> bool:
    """True for a command that starts torchtitan's training program, by itself or by torchtitan's run_train.sh."""
    if any(_PROGRAM.fullmatch(word.text) for word in words):
        return True
    has_choice = not exported.keys().isdisjoint(("MODULE", "CONFIG", "CONFIG_FILE"))
    return _run_train(words) is not None and (has_choice or any(_OPTION.fullmatch(word.text) for word in words))


def variables_read(words: Sequence[Word], exported: Mapping[str, str]) -> Collection[str]:
    """Variables that run_train.sh takes from the script, where the command runs torchtitan's."""
    return _OF_RUN_TRAIN if _run_train(words) is not None and is_torchtitan_command(words, exported) else ()


def _run_train(words: Sequence[Word]) -> int | None:
    """Index of run_train.sh, where the command runs it."""
    index = next((i for i, word in enumerate(words) if word.text.rpartition("/")[2] == _RUN_TRAIN), None)
    return index if index is not None and all(_STARTS_FILES.fullmatch(word.text) for word in words[:index]) else None


def _by_torchrun(words: Sequence[Word], exported: Mapping[str, str]) -> tuple[Sequence[Word], list[str]]:
    """(the command that run_train.sh starts, a note on the variables that have its defaults); that of a release before
    0.3, which takes a CONFIG_FILE, stays as it is."""
    index = _run_train(words)
    if index is None or ("CONFIG_FILE" in exported and exported.keys().isdisjoint(("MODULE", "CONFIG"))):
        return words, []
    values = {name: exported.get(name, default) for name, default in _OF_RUN_TRAIN.items()}
    text = "torchrun --nproc_per_node {NGPU} -m torchtitan.train --module {MODULE} --config {CONFIG}".format(**values)
    assumed = [f"{name} {value}" for name, value in values.items() if name not in exported]
    note = f"{_RUN_TRAIN} is taken for torchtitan's own" + (f", with its {', '.join(assumed)}." if assumed else ".")
    return [*(Word(part, words[index].line) for part in text.split()), *words[index + 1 :]], [note]


def read_torchtitan_command(
    words: Sequence[Word], script: Script, header: SlurmHeader, read_file: ReadFile | None = None
) -> ImportedConfig:
    """The values of this training command of the script. Its options prevail over the configuration that it names.

    InputError for a configuration of another model, and as `imported_settings` says.
    """
    words, taken = _by_torchrun(words, script.exported)
    as_options = [replace(word, text=_SUBCOMMAND.sub("--activation_checkpoint.policy=", word.text)) for word in words]
    options = command_settings(as_options, _OPTIONS, script)
    of_launcher = {n: each for n, each in options.given.items() if n in LAUNCHER_OPTIONS and n not in _CHOICE}
    launcher = FileSettings(of_launcher, LAUNCHER, options.notes)
    if problems := [*launcher.problems()]:
        raise InputError(*problems)
    ranks = ranks_of([word.text for word in words], launcher, header, script.exported)
    named, unread = _config(options, read_file)
    own = dict(_own(*each) for each in options.given.items() if each[0] not in (*of_launcher, *_CHOICE))
    found = imported_settings({**named, **own}, unread, ranks, prefix="--")
    return replace(found, notes=tuple(dict.fromkeys([*taken, *found.notes, *launcher.notes])))


def _own(name: str, setting: Setting) -> tuple[str, Setting]:
    """An option by the name that it has in torchtitan's configuration; `no_` before a flag's name turns it off."""
    name = name.replace("-", "_")
    if setting.value is True and ".no_" in name:
        return name.replace(".no_", "."), replace(setting, value=False)
    return name, replace(setting, value=None) if setting.value == "None" else setting


def _config(options: FileSettings, read_file: ReadFile | None) -> tuple[Mapping[str, Setting], str | None]:
    """(settings of the configuration that the command names; its name where it was not read)"""
    if unknown := [f"--{name}" for name in _CHOICE if options.is_in_doubt(name)]:
        return {}, f"The configuration behind {' and '.join(unknown)}"
    module, name = map(options.text, _CHOICE)
    if module is None or name is None:
        raise InputError.of(
            CODE,
            "the training command has no --module and --config",
            rule="torchtitan takes its configuration from a function that --module and --config name",
            fix="give a command of torchtitan 0.3, or the configuration that it saves (debug.save_config_file)",
        )
    for option, value in (("module", module), ("config", name if module in MODULES else "")):
        if reason := refusal(value):
            raise InputError(options.problem(option, reason, "give a training of llama3"))
    if module in MODULES and name in CONFIGS:
        return as_settings(CONFIGS[name], f"torchtitan's {name}"), None
    return _of_a_file(module, name, read_file)


def _of_a_file(module: str, name: str, read_file: ReadFile | None) -> tuple[Mapping[str, Setting], str | None]:
    """The settings of a recipe's module beside the script."""
    path = f"{module.replace('.', '/')}.py"
    try:
        text = read_file(path) if read_file is not None and re.fullmatch(r"[\w/]{1,200}\.py", path) else ""
        values = module_settings(text)
    except (InputError, OSError):
        return {}, f"The configuration {name} of {module}"
    return {key: replace(each, origin=path) for key, each in values.items()}, None
