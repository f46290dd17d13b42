"""Commands, variables and written files of a bash launch script. The script is read, and nothing is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.config.importers.bash.placeholders import has_placeholder_form
from orchestrator.config.importers.bash.reader import Reader
from orchestrator.config.importers.bash.values import Piece, Value, Variable, doubt_of, names_in, text_of, too_large

Word = Piece
"""A word of a command, expanded, in one piece; a part with an unknown value stays as written, `$` included.

Its line is where it is written: for an element of an array or a word of a string of options, the line in there.
"""


@dataclass(frozen=True)
class Script:
    """A script that was read.

    `variables` and `exported` are the scalars whose values are certain at the end, `exported_in_doubt` the names of
    other exported ones. `defaults` are the values of `${X:-default}` that were taken, by variable: the environment may
    set another. `files` are the texts of those that the script writes by a here-document, by path; None for one whose
    text is not known.
    """

    commands: tuple[tuple[Word, ...], ...]
    notes: tuple[str, ...]
    variables: Mapping[str, str]
    exported: Mapping[str, str]
    exported_in_doubt: tuple[str, ...]
    defaults: Mapping[str, str]
    files: Mapping[str, Word | None]


def read_script(
    text: str, read_file: Callable[[str], str] | None = None, environment: Mapping[str, str] | None = None
) -> Script:
    """Read a bash script that starts with these variables. InputError when it is too long, as written or once expanded.

    `read_file` returns the text of a sourced file, or raises InputError or OSError. The script's own folder and the
    one it is started in are both taken as ".", so that paths relative to the script can be found.
    """
    started_with = environment or {}
    try:
        reader = Reader(text, read_file, started_with)
        reader.read_source(reader.source)
    except RecursionError:
        raise too_large("the script is nested too deeply", "is at most a few dozen levels deep") from None
    at_end = {name: reader.variables.get(name, value) for name, value in reader.exported.items()}
    own = {name: value for name, value in at_end.items() if name not in started_with and value}
    exported = {**reader.exported_for_one, **own}
    certain = _certain(exported.items())
    return Script(
        tuple(tuple(map(_word, command)) for command in reader.commands),
        tuple(dict.fromkeys(reader.notes)),
        _certain(reader.variables.items()),
        certain,
        tuple(name for name in exported if name not in certain),
        reader.defaults,
        {name: None if value is None else _word(value) for name, value in reader.files.items()},
    )


def _certain(variables: Iterable[tuple[str, Variable]]) -> dict[str, str]:
    """The texts of the scalars among these that are certain."""
    scalars = {name: elements[0] for name, elements in variables if len(elements) == 1 and name != "PWD"}
    return {name: text_of(value) for name, value in scalars.items() if doubt_of(value) is None}


def _word(value: Value) -> Word:
    text, doubt = text_of(value), doubt_of(piece for piece in value if piece.text)
    if doubt is None and has_placeholder_form(text.partition("=")[2] if text.startswith("--") else text):
        doubt = "it is a placeholder"
    return Word(text, value[0].line if value else 1, names_in(value), doubt)
