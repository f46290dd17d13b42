"""Placeholders: values of a launch script that its user is meant to replace."""

from __future__ import annotations

import re

from search_spaces.schema.unsafe_text import hide_secrets

_FORM = re.compile(
    r"""<[^<>\n]+>
      | (?<![A-Za-z0-9])(?:YOUR|your)[_-]
      | (?<![A-Za-z0-9])[Xx]{3,}(?![A-Za-z0-9])
      | \bTODO\b
      | \bCHANGE_?ME\b | \bchange_?me\b
      | ^/?path/to\b | /path/to/
      | ^FILL(?:[_-]|\b)""",
    re.VERBOSE,
)
_ASKS = re.compile(
    r"""\W*(?:please\s+|remember\s+to\s+|you\s+(?:should|must|need\s+to|may|can)\s+)?
        (?:(?:change|adjust|adapt|replace|edit|modify|customi[sz]e|fill|todo|fixme)\b
         |(?:set|update|specify|put|point)\s+(?:\w+\s+){0,3}?(?:your|yours|this|these)\b)""",
    re.VERBOSE | re.IGNORECASE,
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


def asking_comments(text: str) -> tuple[dict[int, str], dict[int, str]]:
    """Comments that ask for a value, by line: of the line itself, and of the paragraph that it is in.

    A comment on a line of its own holds up to the next one or the next blank line.
    """
    of_line, of_paragraph = {}, {}
    current, after_comment = None, False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        is_comment = stripped.startswith("#")
        if not stripped or (is_comment and not after_comment):
            current = None
        after_comment = is_comment
        if is_comment:
            current = current or _asking(stripped)
        elif current:
            of_paragraph[number] = current
        if not is_comment and (trailing := re.search(r"\s#(.*)$", line)) and (comment := _asking(trailing[1])):
            of_line[number] = comment
    return of_line, of_paragraph


def _asking(comment: str) -> str | None:
    comment = hide_secrets(comment.lstrip("# \t").strip())
    if not _ASKS.match(comment):
        return None
    short = comment if len(comment) <= _LONGEST_COMMENT else comment[: _LONGEST_COMMENT - 3] + "..."
    return f"its comment says: {short}"
