"""Placeholders: values of a launch script that its user is meant to replace."""

from __future__ import annotations

import re
from textwrap import shorten

from search_spaces.schema.unsafe_text import hide_secrets

_FORM = re.compile(
    r"""<[^<>\n]+>
      | (?<![A-Za-z0-9])(?:YOUR|your)[_-]
      | (?<![A-Za-z0-9])[Xx]{3,}(?![A-Za-z0-9])
      | \bTODO\b
      | \bCHANGE_?ME\b | \bchange_?me\b
      | ^/?path/to\b | /path/to/
      | ^FILL(?:[_-]|\b)
      | \{\{ | ^\.\.\.$ | ^__[A-Za-z]\w*__$ | ^@\w+@$ | ^%[A-Z_]+%$""",
    re.VERBOSE,
)
_ASKS = re.compile(
    r"""\W*(?:please\s+|remember\s+to\s+|you\s+(?:should|must|need\s+to|may|can)\s+)?
        (?:(?:change|adjust|adapt|replace|edit|modify|customi[sz]e|fill|todo|fixme)\b
         |(?:set|update|specify|put|point)\s+(?:\w+\s+){0,3}?(?:your|yours|this|these)\b)""",
    re.VERBOSE | re.IGNORECASE,
)
_LITERALS = re.compile(
    r"""\s*(?:(?:export|local|readonly)\s+)?
        (?:\w+=(?:"[^"$`]*"|'[^']*'|[^\s"'$`(;]*)(?:[;\s]+|$))+(?:\#.*)?$""",
    re.VERBOSE,
)
_LONGEST_COMMENT = 60
_MARK = "\ue000", "\ue001", "\ue002"
_ANGLED = re.compile(r"""(?<=[\s="'/])<(?=[A-Za-z])[^<>\n|&;()$"'`\\]{0,200}[^<>\n|&;()$"'`\\\s]>""")


def has_placeholder_form(text: str) -> bool:
    return _FORM.search(text) is not None


def masked(text: str) -> str:
    """The script with `<a placeholder>` as one word: bash would take its angles for redirections."""
    return _ANGLED.sub(lambda found: found[0].translate(str.maketrans("<> ", "".join(_MARK))), text)


def unmasked(text: str) -> str:
    return text.translate(str.maketrans("".join(_MARK), "<> "))


def asking_comments(text: str) -> dict[int, str]:
    """The comment that asks for the values of a line, by line: one behind them, or one above that is not yet ended by
    another or by a blank line and speaks of what the line writes out."""
    found: dict[int, str] = {}
    above, after_comment = None, False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        is_comment = stripped.startswith("#")
        if not stripped or (is_comment and not after_comment):
            above = None
        after_comment = is_comment
        if is_comment:
            above = above or _asking(stripped)
        elif (behind := re.search(r"\s#(.*)$", line)) and (asked := _asking(behind[1])):
            found[number] = asked
        elif above and _LITERALS.match(line):
            found[number] = above
    return found


def _asking(comment: str) -> str | None:
    comment = hide_secrets(comment.lstrip("# \t").strip())
    return (
        f"its comment says: {shorten(comment, _LONGEST_COMMENT, placeholder='...')}" if _ASKS.match(comment) else None
    )
