"""The options of a training command as settings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.config.importers.bash.expansion import default_note
from orchestrator.config.importers.bash.script import Script, Word
from orchestrator.config.importers.settings import FileSettings, Setting
from trials.trainers.common.options import option_name
from trials.trainers.table import Table

_FLAGS = """
    standalone module no-python run-path no-local-rank no-ssh no-ssh-check force-multi save-pid quiet virtual-local-rank
    bind-cores-to-rank elastic-training
    """
_WITH_VALUE = """
    nnodes nproc-per-node num-nodes num-gpus num-accelerators gpus-per-node num-machines num-processes hostfile launcher
    rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method role log-dir redirects tee
    local-ranks-filter node-rank master-addr master-port local-addr logs-specs launcher-args enable-each-rank-log
    ssh-port venv-script duplicate-stderr-filters duplicate-stdout-filters event-log-handler numa-binding
    shutdown-timeout log-level signals-to-handle bind-core-list include exclude min-elastic-nodes max-elastic-nodes
    autotuning
    """

LAUNCHER = Table(
    "the launcher",
    "",
    trains_another=dict.fromkeys(
        ("include", "exclude", "elastic-training", "min-elastic-nodes", "max-elastic-nodes", "autotuning"),
        "it chooses among a node's GPUs, or changes their number while the training runs",
    ),
    flags=frozenset(_FLAGS.split()),
    prefix="--",
)
LAUNCHER_OPTIONS = LAUNCHER.flags | {*_WITH_VALUE.split()}
"""Options of torchrun, DeepSpeed's launcher and accelerate's; those with a value have one word.

torch 2.13, torch/distributed/run.py; DeepSpeed 0.19, deepspeed/launcher/runner.py; accelerate 1.15, commands/launch.py.
"""


_UNSET = re.compile(r"\$[\w@*]+|\$\{[^{}]*\}|\$\(.*\)", re.DOTALL)
_MORE_WORDS = re.compile(r"\$\{\w+\[[@*]\]\}|\$@")
"""Those that hold any number of words, and so are no option's only value."""
_FLAG = re.compile("(no|use|disable|enable|overlap|log)-")
"""Names of options that nearly always have no value."""
_UNNAMED = "the script does not set which option it is"
_STARTERS = re.compile(r"(.*/)?(torchrun|ft_launcher|deepspeed|accelerate|python[\d.]*)")
_OF_RANKS = re.compile(r"(.*/)?(srun|mpirun|mpiexec|orterun)")


def command_settings(words: Sequence[Word], table: Table, script: Script) -> FileSettings:
    """The options of this command of the script; the last one counts where one is given twice.

    Noted are variables in the command that the script does not set, and values that are a variable's default.
    """
    notes = list(script.notes)
    given: dict[str, Setting] = {}
    first, *options = _by_option(from_starter(words))
    for option, *following in options:
        if re.search(r"[$`]", option.text.partition("=")[0]):
            given[option.text.removeprefix("--")] = Setting(True, option.line, doubt=_UNNAMED)
            continue
        name, (_, is_own, own) = option_name(option.text), option.text.partition("=")
        count = 0 if is_own else _num_values(name, following, table)
        values = [replace(option, text=own)] if is_own else following[:count]
        given[name] = setting = _setting(name, option, values, table)
        if setting.doubt is not None and setting.value is True:  # one whose value is read gets its own note
            notes.append(f"{setting.words[0]} was not used: {setting.doubt}.")
        notes += _unset_words(following[count:])
        notes += default_notes(values, script.defaults)
    notes += _unset_words(first)
    return FileSettings(given, table, notes)


def from_starter(words: Sequence[Word]) -> Sequence[Word]:
    """The command from the program that starts the ranks on; options before it are srun's or a container's."""
    starts = [index for index, word in enumerate(words) if _STARTERS.fullmatch(word.text)]
    if not starts and words and _OF_RANKS.fullmatch(words[0].text):
        starts = [index for index, word in enumerate(words) if re.search(r"\.(py|sh)$", word.text)]
    return words[starts[0] :] if starts else words


def either_command(words: Sequence[Word], others: Iterable[Sequence[Word]]) -> Sequence[Word]:
    """The first command where another may be the one that runs: options that another has not, or otherwise, are in
    doubt, and so are those that only another has."""
    first, *own = _by_option(words)
    theirs = [_by_option(other)[1:] for other in others]
    shared = Counter(texts for parts in theirs for texts in {*map(_texts, parts)})
    names = {option_name(part[0].text) for part in own}
    added = {option_name(part[0].text): part for parts in theirs for part in parts}
    own = [part if shared[_texts(part)] == len(theirs) else _doubted(part) for part in own]
    own += [_doubted(part) for name, part in added.items() if name not in names]
    return [*first, *(word for part in own for word in part)]


def _texts(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.text for word in words)


def _doubted(words: Sequence[Word]) -> list[Word]:
    reason = "another command, which may run instead, has it otherwise"
    return [replace(word, doubt=word.doubt or reason) for word in words]


def _by_option(words: Sequence[Word]) -> list[list[Word]]:
    """The words before the first long option, and each option with the words up to the next one."""
    parts: list[list[Word]] = [[]]
    for word in words:
        if option_name(word.text):
            parts.append([])
        parts[-1].append(word)
    return parts


def _num_values(name: str, following: list[Word], table: Table) -> int:
    """How many of the following words are the option's value: none of a flag's, one of a launcher's. A later word that
    is an unset variable may hold options."""
    if name in table.flags or (following and _UNSET.fullmatch(following[0].text) and _FLAG.match(name)):
        return 0
    if name in LAUNCHER_OPTIONS:
        return min(1, len(following))
    end = (index for index, word in enumerate(following) if (_UNSET if index else _MORE_WORDS).fullmatch(word.text))
    other = (index for index, word in enumerate(following) if re.search(r"^-[a-z]|\.py$", word.text))
    return min([*end, *other], default=len(following))


def _setting(name: str, option: Word, values: list[Word], table: Table) -> Setting:
    words = (option.text.partition("=")[0], *(word.text for word in values))
    if name in table.flags or not values:
        return Setting(True, option.line, doubt=option.doubt, words=words[:1])
    text = " ".join(word.text for word in values)
    # A variable that holds the option too is a list of options.
    variable = next((v for word in values for v in word.variables if v not in option.variables), None)
    doubt = next((word.doubt for word in (option, *values) if word.doubt), None)
    return Setting(text, option.line, variable, doubt, words=words)


def _unset_words(words: Sequence[Word]) -> Iterator[str]:
    """Notes on words that are only an unset variable, which may hold options."""
    for word in words:
        if word.doubt and _UNSET.fullmatch(word.text):
            yield f"{word.text} is in the training command, but {word.doubt}."


def default_notes(words: Sequence[Word], defaults: Mapping[str, str]) -> Iterator[str]:
    """Notes on the variables in these words that have their default."""
    for variable in dict.fromkeys(variable for word in words for variable in word.variables if variable in defaults):
        yield default_note(variable, defaults[variable])
