"""Scripts that a command has another shell run: in its words, on its input, or in a file that was written before."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from orchestrator.importers.bash.files import Files, path_of
from orchestrator.importers.bash.values import Piece, Value, text_of

_SHELLS = ("bash", "sh", "zsh", "dash")
_READ_STANDARD_INPUT = (*_SHELLS, "sbatch", "ssh")
_RUN_FILES = ("srun", "sbatch", "mpirun", "mpiexec", "exec", "env", "nohup", "time")


def assigned_by_env(words: Sequence[Value]) -> dict[str, str]:
    """Variables that `env A=1 ...` and `sbatch --export=ALL,A=1` set for what they start."""
    texts = [text_of(word) for word in words]
    if posixpath.basename(texts[0]) == "env":
        given = list(takewhile(lambda text: "=" in text or text.startswith("-"), texts[1:]))
    else:
        given = [part for text in texts[1:] if text.startswith("--export=") for part in text[9:].split(",")]
    found = (re.fullmatch(r"([A-Za-z_]\w*)=([^$`]*)", text) for text in given)
    return {match[1]: match[2] for match in found if match}


def nested_script(words: Sequence[Value]) -> Value | None:
    """The script that a command passes to a shell in its words; None where it passes none."""
    texts = [text_of(word) for word in words]
    for index, text in enumerate(texts):
        if posixpath.basename(text) in _SHELLS:
            return _after_c(words[index + 1 :])
    if texts[0] in ("ssh", "pdsh"):
        return _remote(words[1:])
    if texts[0] == "sbatch" and "--wrap" in texts[:-1]:
        return words[texts.index("--wrap") + 1]
    wrapped = next((word for word, text in zip(words, texts, strict=True) if text.startswith("--wrap=")), None)
    return None if texts[0] != "sbatch" or wrapped is None else _without_start(wrapped, len("--wrap="))


def _without_start(word: Value, count: int) -> Value:
    """The word without its first characters."""
    pieces = []
    for piece in word:
        pieces.append(replace(piece, text=piece.text[count:]))
        count = max(0, count - len(piece.text))
    return tuple(pieces)


def _after_c(words: Sequence[Value]) -> Value | None:
    for word, script in pairwise(words):
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", text_of(word)):
            return script
        if not text_of(word).startswith("-"):
            return None
    return None


def _remote(words: Sequence[Value]) -> Value | None:
    """The command behind the options and the host: it is the last word, or begins where the words have blanks."""
    first = next((i for i, word in enumerate(words) if i and re.search(r"\s", text_of(word))), None)
    if first is None:
        return None
    return tuple(piece for word in words[first:] for piece in (*word, Piece(" ", word[0].line if word else 1)))


def heredoc_is_script(command: Sequence[str]) -> bool:
    """True for a command that runs the script on its standard input."""
    programs = [posixpath.basename(word) for word in command if not word.startswith("-")]
    return bool(programs) and (programs[0] in _READ_STANDARD_INPUT or programs[-1] in _SHELLS)


def script_of_file(words: Sequence[Value], files: Files) -> tuple[Value, tuple[Value, ...]] | None:
    """(script, its arguments) of a command that runs one of the files; None for any other."""
    texts = [text_of(word) for word in words]
    before = ""
    for index, text in enumerate(texts):
        script = files.get(path_of(text))
        is_run = not index or posixpath.basename(texts[0]) in _RUN_FILES
        if script and (before in _SHELLS or (is_run and text_of(script).startswith("#!"))):
            return script, tuple(words[index + 1 :])
        before = before if text.startswith("-") else posixpath.basename(text)
    return None
