"""The options of a training command as settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.importers.bash.environment import default_note
from orchestrator.importers.bash.script import Script, Word
from orchestrator.importers.launcher_options import LAUNCHER_OPTIONS
from orchestrator.importers.option_table import OptionTable
from orchestrator.importers.settings import Setting, Settings
from trials.trainers.common.options import option_name

_UNSET = re.compile(r"\$\{?\w+(\[[@*]\])?\}?|\$@")
_UNNAMED = "the script does not set which option it is"
_STARTERS = re.compile(r"(.*/)?(torchrun|ft_launcher|deepspeed|accelerate|python[\d.]*)")
_OF_RANKS = re.compile(r"(.*/)?(srun|mpirun|mpiexec|orterun)")


def command_settings(words: Sequence[Word], table: OptionTable, script: Script) -> Settings:
    """The options of this command of the script; the last one counts where one is given twice.

    Noted are variables in the command that the script does not set, and values that are a variable's default.
    """
    notes = list(script.notes)
    given: dict[str, Setting] = {}
    words = _from_starter(words)
    for option, values in _options(words):
        if re.search(r"[$`]", option.text.partition("=")[0]):
            given[option.text.removeprefix("--")] = Setting(True, option.line, doubt=_UNNAMED)
            continue
        name = option_name(option.text)
        own = [_own_value(option)] if "=" in option.text else []
        taken = own or _values(name, values, table)
        given[name] = _setting(name, option, taken, table)
        notes += _unset_words(values[0 if own else len(taken) :])
        notes += default_notes(taken, script.defaults)
    notes += _unset_words(_before_options(words))
    return Settings(given, table, notes)


def _from_starter(words: Sequence[Word]) -> Sequence[Word]:
    """The command from the program that starts the ranks on; options before it are srun's or a container's."""
    starts = [index for index, word in enumerate(words) if _STARTERS.fullmatch(word.text)]
    if not starts and words and _OF_RANKS.fullmatch(words[0].text):
        starts = [index for index, word in enumerate(words) if word.text.endswith(".py")]
    return words[starts[0] :] if starts else words


def _options(words: Sequence[Word]) -> Iterator[tuple[Word, list[Word]]]:
    """Each long option with the words up to the next one."""
    option: Word | None = None
    values: list[Word] = []
    for word in words:
        if option_name(word.text):
            if option:
                yield option, values
            option, values = word, []
        else:
            values.append(word)
    if option:
        yield option, values


def _before_options(words: Sequence[Word]) -> Sequence[Word]:
    first = next((index for index, word in enumerate(words) if option_name(word.text)), len(words))
    return words[:first]


def _own_value(option: Word) -> Word:
    """The value of `--name=value`."""
    return Word(option.text.partition("=")[2], option.line, option.variables, option.placeholder)


def _values(name: str, following: list[Word], table: OptionTable) -> list[Word]:
    """The words that are the option's value: none of a flag's, one of a launcher's. A later word that is an unset
    variable may hold options."""
    if name in table.flags:
        return []
    if name in LAUNCHER_OPTIONS:
        return following[:1]
    end = (index for index, word in enumerate(following) if index and _UNSET.fullmatch(word.text))
    other = (index for index, word in enumerate(following) if re.search(r"^-[a-z]|\.py$", word.text))
    return following[: min([*end, *other], default=len(following))]


def _setting(name: str, option: Word, values: list[Word], table: OptionTable) -> Setting:
    words = (option.text.partition("=")[0], *(word.text for word in values))
    if name in table.flags or not values:
        return Setting(True, option.line, words=words[:1])
    text = " ".join(word.text for word in values)
    # A variable that holds the option too is a list of options.
    variable = next((v for word in values for v in word.variables if v not in option.variables), None)
    doubt = next(filter(None, map(_doubt, values)), None)
    return Setting(text, option.line, variable, doubt, words=words)


def _doubt(word: Word) -> str | None:
    return _why_unknown(word) if re.search(r"[$`]", word.text) else word.placeholder


def _why_unknown(word: Word) -> str:
    """Reason why the variables in the word have no value; those that the script sets somewhere are the word's."""
    names = re.findall(r"\$\{?([A-Za-z_]\w*)", word.text)
    if names and {*names} <= {*word.variables}:
        return "what the script sets it to depends on a condition or a command that it does not decide"
    return "the script does not set it"


def _unset_words(words: Sequence[Word]) -> Iterator[str]:
    """Notes on words that are only an unset variable, which may hold options."""
    for word in words:
        if _UNSET.fullmatch(word.text):
            yield f"{word.text} is in the training command, but {_why_unknown(word)}."


def default_notes(words: Sequence[Word], defaults: Mapping[str, str]) -> Iterator[str]:
    """Notes on the variables in these words that have their default."""
    for variable in dict.fromkeys(variable for word in words for variable in word.variables if variable in defaults):
        yield default_note(variable, defaults[variable])
