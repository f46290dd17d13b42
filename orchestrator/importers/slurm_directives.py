"""Parser of sbatch's and srun's options, as getopt reads them."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.importers.bash.script import Word
from orchestrator.importers.option_table import OptionTable
from orchestrator.importers.slurm_options import OPTIONAL_VALUES, SBATCH_LETTERS, SBATCH_OPTIONS


@dataclass
class GivenOptions:
    """Options by their long names; of two the last one counts. `rest` are the words after them."""

    values: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_header: bool = False


def read_directives(text: str) -> GivenOptions:
    """The options of the `#SBATCH` lines before the script's first command."""
    given = GivenOptions()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith("#SBATCH"):
            if line.strip() and not line.lstrip().startswith("#"):
                break
            continue
        given.has_header = True
        words = _words(line.removeprefix("#SBATCH"))
        if words is None:
            given.notes.append(f"The #SBATCH line {number} was left out: a quote in it is not closed.")
            continue
        if words and words[0].lower() in ("hetjob", "packjob"):
            given.notes.append(
                f"The job has several components (line {number}); only the first is read: trials run on equal nodes."
            )
            break
        is_stray, rest = False, deque(words)
        while rest:
            _take_options(given, rest, SBATCH_OPTIONS, SBATCH_LETTERS, f"#SBATCH --{{}} (line {number})")
            if rest:
                is_stray = True
                rest.popleft()
        if is_stray:
            given.notes.append(f"The #SBATCH line {number} has a word that is no option: fill in what it stands for.")
    return given


def read_submission(command: Sequence[Word], script: str) -> GivenOptions:
    """The options of a job that a script submits: those of the sbatch, which prevail, and of the job's own header."""
    given = read_directives(script)
    words = [word.text for word in command[1:]]
    on_line = read_options(words, SBATCH_OPTIONS, SBATCH_LETTERS, f"sbatch --{{}} (line {command[0].line})")
    on_line.values.pop("wrap", None)
    given.values |= on_line.values
    given.origins |= on_line.origins
    given.has_header = True
    return given


def _words(line: str) -> list[str] | None:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return None


def read_options(words: Sequence[str], table: OptionTable, letters: Mapping[str, str], origin: str) -> GivenOptions:
    """The options up to the first word that is none. `origin` is where they stand, with `{}` for the option."""
    given, rest = GivenOptions(), deque(words)
    _take_options(given, rest, table, letters, origin)
    given.rest = list(rest)
    return given


def _take_options(
    given: GivenOptions, rest: deque[str], table: OptionTable, letters: Mapping[str, str], origin: str
) -> None:
    """Move the options from the start of these words to those that are given."""
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.popleft()
        if word == "--":
            break
        for name, value in _long(word, rest, table) if word.startswith("--") else _short(word, rest, table, letters):
            given.values[name] = value
            given.origins[name] = origin.format(name)


def _long(word: str, rest: deque[str], table: OptionTable) -> Iterator[tuple[str, str]]:
    written, equals, value = word[2:].partition("=")
    name = _full_name(written, table)
    takes_next = not equals and _needs_value(name, table) and rest
    yield name, rest.popleft() if takes_next else value


def _full_name(written: str, table: OptionTable) -> str:
    """The option; a prefix that only one option has stands for it."""
    matches = [name for name in table.group_of if name.startswith(written)]
    return matches[0] if written not in table.group_of and len(matches) == 1 else written


def _short(word: str, rest: deque[str], table: OptionTable, letters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """One letter with its value, or several without values."""
    for index, letter in enumerate(word[1:], start=2):
        name = letters.get(letter, letter)
        if not _needs_value(name, table):
            yield name, ""
            continue
        attached = word[index:].removeprefix("=")
        yield name, attached or (rest.popleft() if rest else "")
        return


def _needs_value(name: str, table: OptionTable) -> bool:
    return name in table.group_of and name not in table.flags and name not in OPTIONAL_VALUES
