"""Text from elsewhere, made fit for a terminal."""

from __future__ import annotations

import re
import unicodedata


def printable(text: str) -> str:
    """The text in one line, without anything that could steer a terminal."""
    return "".join(_visible(character) for character in text)


def masked(uri: str) -> str:
    """The address, or a text with addresses in it, without a user's name and password."""
    return re.sub(r"://[^/@\s]+@", "://***@", uri)


def one_line(error: Exception) -> str:
    """The kind of error and the first line of what it says."""
    first = (str(error).splitlines() or [""])[0]
    return masked(printable(f"{type(error).__name__}: {first[:300]}"))


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] != "C" and category not in ("Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode("ascii")
