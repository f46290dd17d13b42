"""Import of a launch script: its training command, and the header of its Slurm job."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from orchestrator.config.importers.bash.script import Script, Word, read_script
from orchestrator.config.importers.command_settings import LAUNCHER_OPTIONS, either_command, from_starter
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.megatron.script import num_characteristic_options, read_megatron_command
from orchestrator.config.importers.megatron_bridge import is_bridge_command, read_bridge_command
from orchestrator.config.importers.settings import CODE
from orchestrator.config.importers.slurm_header import SlurmHeader, job_variables, read_slurm_header
from orchestrator.config.importers.slurm_launch import SET_FOR_TRIALS, variables_for_speed
from orchestrator.config.importers.slurm_options import listed
from orchestrator.config.importers.source_file import ReadFile
from orchestrator.config.importers.torchtitan.command import (
    is_torchtitan_command,
    read_torchtitan_command,
    variables_read,
)
from orchestrator.config.importers.transformers_script import is_transformers_command, read_transformers_command
from search_spaces.errors import InputError
from trials.trainers.common.options import option_names

Words = tuple[Word, ...]
ReadCommand = Callable[[Sequence[Word], Script, SlurmHeader, ReadFile | None], ImportedConfig]


def read_launch_script(text: str, read_file: ReadFile | None = None) -> ImportedConfig:
    """The values of the script's training command and of its Slurm header; nothing is executed.

    InputError when no command trains with a known trainer, and as its reader says.
    """
    script = read_script(text, read_file, job_variables(text))
    commands = [command for command in script.commands if command[0].text not in ("echo", "printf")]
    trainings, read_command = _trainings(script, commands)
    words = max(trainings, key=_num_options)
    script = _with_variables_of(words, script)
    around = [command for command in script.commands if command is words or not _starts_step(command)]
    header = read_slurm_header(text, words, around, script.exported)
    others = [each for each in trainings if each is not words]
    known = words if words[0].doubt is None else either_command(words, others)
    imported = read_command(known, script, header, read_file)
    return replace(
        imported,
        accelerator=header.accelerator,
        launcher=header.launcher,
        origins={**header.origins, **imported.origins},
        notes=(
            *_note_on_others(words, others),
            *imported.notes,
            *header.notes,
            *_exports(script, words, variables_for_speed(script.exported) if header.job else {}),
        ),
    )


def _exports(script: Script, words: Words, kept: Collection[str]) -> Iterator[str]:
    """Notes on exported variables that neither the search file has nor the training command's words."""
    needless = {*kept, *variables_read(words, script.exported), *(name for word in words for name in word.variables)}
    others, in_doubt = (
        [name for name in names if name not in needless and not SET_FOR_TRIALS.fullmatch(name)]
        for names in (script.exported, script.exported_in_doubt)
    )
    if others:
        where = "Add those that matter to speed to space.env."
        yield f"Exported variables that were not read: {listed(others)}. {where}"
    if in_doubt:
        yield f"Exported variables whose values are not known: {', '.join(in_doubt)}."


def _trainings(script: Script, commands: Sequence[Words]) -> tuple[Sequence[Words], ReadCommand]:
    """The commands that train with one trainer, no two alike, and its reader; InputError without one."""
    readers: tuple[tuple[Callable[[Words], bool], ReadCommand, Sequence[Words]], ...] = (
        (is_bridge_command, read_bridge_command, script.commands),
        (partial(is_torchtitan_command, exported=script.exported), read_torchtitan_command, commands),
        (lambda words: num_characteristic_options(words) >= 2, read_megatron_command, commands),
        (is_transformers_command, read_transformers_command, commands),
    )
    for is_theirs, read_command, among in readers:
        found: dict[tuple[str, ...], Words] = {}
        for command in filter(is_theirs, among):
            found.setdefault(tuple(word.text for word in command), command)
        if found:
            return [*found.values()], read_command
    hidden = next(_hidden_options(commands), None)
    fix = "give a script that itself starts pretrain_gpt.py, run_recipe.py or torchtitan.train, with its options"
    raise InputError.of(
        CODE,
        hidden or "no command with Megatron's options was found",
        rule="the launch script's training command carries options like --num-layers and --micro-batch-size",
        fix="write the options out, in the command or in a list" if hidden else fix,
    )


def _num_options(command: Words) -> int:
    """Number of options that are the trainer's."""
    return len(option_names(word.text for word in from_starter(command)) - LAUNCHER_OPTIONS)


def _hidden_options(commands: Sequence[Words]) -> Iterator[str]:
    """Commands that start a trainer with options that are not known."""
    for command in commands:
        program: Word | None = None
        for word in command:
            if program and word.doubt and word.variables:
                yield f"{program.text} (line {program.line}) has options in ${word.variables[-1]}: {word.doubt}"
            elif re.search(r"pretrain\w*\.py$", word.text):
                program = word


def _with_variables_of(words: Words, script: Script) -> Script:
    """The script with what programs before the trainer set for it: `env A=1`, `mpirun -x A=1`, `srun --export=A=1`."""
    exported, in_doubt = dict(script.exported), [*script.exported_in_doubt]
    for word in words[: len(words) - len(from_starter(words))]:
        for part in re.split(r",(?=[A-Z_]\w*=)", re.sub("^--(export|env)=", "", word.text)):
            if (found := re.fullmatch(r"([A-Z_]\w*)=(.*)", part)) and word.doubt:
                in_doubt.append(found[1])
            elif found:
                exported[found[1]] = found[2]
    return replace(script, exported=exported, exported_in_doubt=tuple(in_doubt))


def _starts_step(command: Sequence[Word]) -> bool:
    """True for an srun, also behind a word such as `time`."""
    return "srun" in [word.text for word in command[:3]]


def _note_on_others(words: Words, others: Sequence[Words]) -> Iterator[str]:
    if others:
        lines = " and ".join(f"that of line {line}" for line in dict.fromkeys(other[0].line for other in others))
        yield f"The script has {len(others) + 1} training commands; that of line {words[0].line} was read, not {lines}."
