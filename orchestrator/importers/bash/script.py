"""Commands, here-documents and variables of a bash launch script. Nothing is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.importers.bash.files import Files
from orchestrator.importers.bash.placeholders import has_placeholder_form
from orchestrator.importers.bash.reader import Reader
from orchestrator.importers.bash.syntax import parse_script
from orchestrator.importers.bash.values import Value, known_text, names_in, text_of
from search_spaces.errors import InputError


@dataclass(frozen=True)
class Word:
    """A word of a command, expanded; a part with an unknown value stays as written, `$` included.

    `line` is the script's line, from 1, where the word is written: for an element of an array or a word of a string
    of options, the line in there. `variables` are those whose values are in the word. `placeholder` is the reason to
    ask about the value, None where it can be believed.
    """

    text: str
    line: int
    variables: tuple[str, ...] = ()
    placeholder: str | None = None


@dataclass(frozen=True)
class Script:
    """A script that was read.

    `files` are, for each command, those that the script has written before it. `variables` and `exported` are the
    scalars whose values are known at the end. `defaults` are the values of `${X:-default}` that were taken, by
    variable: the environment may set another. `started_by` has for each command the one in whose script it is,
    None outside of all; `jobs` the texts of the scripts that sbatch commands start, by the command.
    """

    commands: tuple[tuple[Word, ...], ...]
    files: tuple[Files, ...]
    notes: tuple[str, ...]
    variables: Mapping[str, str]
    exported: Mapping[str, str]
    defaults: Mapping[str, str]
    started_by: tuple[int | None, ...] = ()
    jobs: Mapping[int, str] = field(default_factory=dict)

    def chain(self, command: Sequence[Word]) -> list[int]:
        """This command of the script, by its index, and those that start it, the innermost first."""
        found: list[int] = []
        index = next((i for i, words in enumerate(self.commands) if words is command), None)
        while index is not None:
            found.append(index)
            index = self.started_by[index]
        return found

    def files_before(self, command: Sequence[Word]) -> dict[str, Word | None]:
        """Text of each file that the script has written before this command of it, by path; None where it is not known
        as a whole."""
        files = next(files for words, files in zip(self.commands, self.files, strict=True) if words is command)
        is_known = {name: text is not None and known_text(text) is not None for name, text in files.items()}
        return {name: _word(text) if text is not None and is_known[name] else None for name, text in files.items()}


def read_script(
    text: str, read_file: Callable[[str], str] | None = None, environment: Mapping[str, str] | None = None
) -> Script:
    """Read a bash script that starts with these variables. InputError when it is too long, as written or once expanded.

    `read_file` returns the text of a sourced file, or raises InputError or OSError. The script's own folder and the
    one it is started in are both taken as ".", so that paths relative to the script can be found.
    """
    reader = Reader(read_file)
    started_with = environment or {}
    reader.environment.start_with(started_with)
    try:
        reader.read(parse_script(text, reader.log.budget))
    except RecursionError:
        raise InputError.of(
            "script_size",
            "the script is nested too deeply",
            rule="a launch script is at most a few dozen levels deep",
            fix="give a script with the training command alone",
        ) from None
    at_end, log = reader.environment, reader.log
    return Script(
        tuple(map(_words, reader.commands)),
        tuple(reader.files_before),
        tuple(log.notes),
        dict(at_end.known(at_end.variables)),
        {**reader.prefix_exports, **dict(at_end.known(sorted(at_end.exported - started_with.keys())))},
        log.defaults,
        tuple(reader.started_by),
        {index: text_of(script) for index, script in reader.jobs.items()},
    )


def _words(command: Sequence[Value]) -> tuple[Word, ...]:
    return tuple(map(_word, command))


def _word(value: Value) -> Word:
    text = text_of(value)
    placeholder = next((piece.placeholder for piece in value if piece.placeholder), None)
    if placeholder is None and has_placeholder_form(text.partition("=")[2] if text.startswith("--") else text):
        placeholder = "it is a placeholder"
    return Word(text, value[0].line if value else 1, names_in(value), placeholder)
