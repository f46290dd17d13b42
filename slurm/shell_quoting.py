"""Words of a shell script: plain ones, which are quoted, and those in which the shell fills in variables. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping


class Filled(str):
    """A word with variables of the script's, as in `$here/code`; it holds nothing else that a shell would read."""


def joined(*parts: str) -> str:
    """One word of several: with variables to fill in where one of them has such."""
    kind = Filled if any(isinstance(part, Filled) for part in parts) else str
    return kind("".join(parts))


def quoted(word: str) -> str:
    """The word as it stands in a script."""
    return f'"{word}"' if isinstance(word, Filled) else shlex.quote(word)


def command(words: Iterable[str]) -> str:
    """The words as one command."""
    return " ".join(quoted(word) for word in words)


def exports(variables: Mapping[str, str]) -> list[str]:
    """A line for each variable that is exported."""
    return [f"export {name}={quoted(value)}" for name, value in variables.items()]
