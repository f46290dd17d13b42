"""Text of a script without its quotes' escapes."""

from __future__ import annotations

import re


def unescaped(text: str) -> str:
    """Text between double quotes."""
    return re.sub(r"\\([$`\"\\\n])", lambda found: found[1].strip("\n"), text)


def unquoted(text: str) -> str:
    """Text outside quotes."""
    return re.sub(r"\\(.)", lambda found: found[1].strip("\n"), text, flags=re.DOTALL)


def ansi_c(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ANSI_C.get(found[1], found[0]), text, flags=re.DOTALL)


_ANSI_C = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
