"""Import of a launch script: its training command, and the header of its Slurm job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from orchestrator.importers.bash.script import Script, Word, read_script
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.megatron.script import num_characteristic_options, read_megatron_command
from orchestrator.importers.megatron_bridge import is_bridge_command, read_bridge_command
from orchestrator.importers.settings import CODE
from orchestrator.importers.slurm_header import SlurmHeader, job_variables, read_slurm_header
from orchestrator.importers.slurm_launch import SET_FOR_TRIALS, variables_for_speed
from orchestrator.importers.slurm_options import listed
from orchestrator.importers.source_file import ReadFile
from orchestrator.importers.torchtitan.command import is_torchtitan_command, read_torchtitan_command, variables_read
from search_spaces.errors import InputError

Words = tuple[Word, ...]
ReadCommand = Callable[[Sequence[Word], Script, SlurmHeader, ReadFile | None], ImportedConfig]


def read_launch_script(text: str, read_file: ReadFile | None = None) -> ImportedConfig:
    """The values of the script's training command and of its Slurm header; nothing is executed.

    InputError when no command trains with a known trainer, and as its reader says.
    """
    script = read_script(text, read_file, job_variables(text))
    commands = [command for command in script.commands if command[0].text not in ("echo", "printf")]
    words, read_command = _training_command(script, commands)
    around = [command for command in script.commands if command is words or not _starts_step(command)]
    header = read_slurm_header(text, words, around, script.exported)
    imported = read_command(words, script, header, read_file)
    return replace(
        imported,
        accelerator=header.accelerator,
        launcher=header.launcher,
        origins={**header.origins, **imported.origins},
        notes=(
            *_other_trainings(words, commands),
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


def _training_command(script: Script, commands: Sequence[Words]) -> tuple[Words, ReadCommand]:
    """The command that trains, and its trainer's reader; InputError without one."""
    readers: tuple[tuple[Callable[[Words], bool], ReadCommand, Sequence[Words]], ...] = (
        (is_bridge_command, read_bridge_command, script.commands),
        (partial(is_torchtitan_command, exported=script.exported), read_torchtitan_command, commands),
    )
    for is_theirs, read_command, among in readers:
        if (found := next(filter(is_theirs, among), None)) is not None:
            return found, read_command
    words = max(commands, key=num_characteristic_options, default=())
    if num_characteristic_options(words) < 2:
        raise InputError.of(
            CODE,
            "no command with Megatron's options was found",
            rule="the launch script's training command carries options like --num-layers and --micro-batch-size",
            fix="give a script that itself starts pretrain_gpt.py, run_recipe.py or torchtitan.train, with its options",
        )
    return words, read_megatron_command


def _starts_step(command: Sequence[Word]) -> bool:
    """True for an srun, also behind a word such as `time`."""
    return "srun" in [word.text for word in command[:3]]


def _other_trainings(words: Sequence[Word], commands: Sequence[Sequence[Word]]) -> Iterator[str]:
    """A note on training commands beside the one that is read."""
    texts = {tuple(word.text for word in each) for each in commands if num_characteristic_options(each) >= 2}
    if len(texts) > 1:
        yield f"The script has {len(texts)} training commands; that of line {words[0].line} was read."
