"""Words of a shell script: literal ones, which are quoted, and those with shell variables to expand. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping


class Filled(str):
    """A word with variables that the shell expands, as in `$here/code`, and no other shell syntax."""


def joined(*parts: str) -> str:
    """Concatenate parts into one word, a Filled one if any of the parts is."""
    kind = Filled if any(isinstance(part, Filled) for part in parts) else str
    return kind("".join(parts))


def quoted(word: str) -> str:
    """Quote a word for a script."""
    return f'"{word}"' if isinstance(word, Filled) else shlex.quote(word)


def command(words: Iterable[str]) -> str:
    """Join the words into one command line."""
    return " ".join(quoted(word) for word in words)


def exported(variables: Mapping[str, str]) -> list[str]:
    """Return an `export` line for each variable."""
    return [f"export {name}={quoted(value)}" for name, value in variables.items()]
