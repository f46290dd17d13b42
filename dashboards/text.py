"""Escaping and masking of untrusted text."""

from __future__ import annotations

import re
import shutil
import unicodedata
from textwrap import TextWrapper
from typing import TextIO

MORE = "\N{HORIZONTAL ELLIPSIS}"
"""Stands for what is left out."""
_COMMAND = re.compile(r" {4}\S")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~!&])")


def printable(text: str) -> str:
    """Text in one line, with control characters escaped."""
    return "".join(_visible(character) for character in text)


def printable_lines(text: str) -> str:
    """Text as whole lines, with control characters escaped: no file name or trial output can control the terminal."""
    return "".join(f"{printable(line)}\n" for line in text.rstrip("\n").split("\n"))


def command_line(command: str) -> str:
    """Line with nothing but this command, which `lines_for` keeps whole, so that it can be copied."""
    return f"    {command}"


def lines_for(stream: TextIO, text: str) -> str:
    """Text as printable lines; those that are too long for a terminal are broken between words, but for commands. A
    path stays in one piece."""
    lines = printable_lines(text)
    if not stream.isatty():
        return lines
    width = shutil.get_terminal_size().columns
    wrapper = TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "".join(
        f"{line if len(line) <= width or _COMMAND.match(line) else wrapper.fill(line)}\n"
        for line in lines[:-1].split("\n")
    )


def with_full_stop(words: str) -> str:
    """Words with the full stop of a sentence."""
    return words if words.endswith((".", "!", "?")) else f"{words}."


def sentence_of(words: str) -> str:
    """Words as a sentence."""
    return with_full_stop(upper_first(words))


def upper_first(words: str) -> str:
    return words[0].upper() + words[1:]


def lower_first(words: str) -> str:
    return words[0].lower() + words[1:]


def cut_word(word: str, most: int, differs_from: int | None = None) -> str:
    """The word, if longer than `most` characters: its start, and its end or what begins with the index
    `differs_from`."""
    if len(word) <= most:
        return word
    start = most // 2
    if differs_from is not None and differs_from < start:
        return word[: most - 1] + MORE
    rest = most - start - len(MORE)
    if differs_from is None or differs_from + rest >= len(word):
        return word[:start] + MORE + word[-rest:]
    return word[:start] + MORE + word[differs_from : differs_from + rest - 1] + MORE


def escape_markdown(text: str) -> str:
    """Text in one line, escaped for Markdown and HTML, since users and trials write parts of it."""
    return _MARKDOWN.sub(r"\\\1", printable(text))


def mask_credentials(uri: str) -> str:
    """Address, or text with addresses, with user names and passwords masked."""
    return re.sub(r"://[^/@\s]+@", "://***@", uri)


def one_line(error: Exception) -> str:
    """Type of the error and the first line of its message."""
    first = (str(error).splitlines() or [""])[0]
    return mask_credentials(printable(f"{type(error).__name__}: {first[:300]}"))


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] != "C" and category not in ("Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode("ascii")
