"""Text that a search file may not have: secrets, and characters that a terminal would act on."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from search_spaces.errors import Problem

HIDDEN = "<hidden>"
PRINTABLE = "text has only printable characters"

_NAME = (
    r"[\w.-]{0,80}?(?:"
    r"(?:password|passwd|passphrase|secret)(?![\w.-]{0,80}(?:file|path|dir|folder|name))[\w.-]{0,80}"
    r"|(?:(?<!by)(?<!com)(?<!ward[_-])pass|(?<!old)(?:(?<=\w)|(?<=\w-))pwd|credentials?|creds|authorization"
    r"|(?<!(?:[be]os|eod|pad|unk|sep|cls|per)[_-])(?<!(?:mask|stop)[_-])(?<!image[_-])token|git(?:hub|lab)[_-]pat"
    r"|(?:access|account|api|app|auth|encryption|license|master|private|signing|ssh|storage)[_-]?key|(?-i:[A-Z0-9]_KEY|_PAT))"
    r"(?![\w.-]))"
)
"""Name of a secret; one that ends in `_KEY` only where it is a variable's: a data set has a text_key, a tokenizer an
eos_token."""
_HARMLESS = r"(?:\d{1,4}|true|false|yes|no|on|off|none|null|auto|--[a-z][\w-]*|<[^<>]*>|\[\w*\]|\{\w*\})"
"""Value of such a name that is none: a switch, a small number, the next option, `<pad>`, a placeholder (`{rank}`)."""
_SECRET_NAME = re.compile(_NAME, re.I)
_NAMED_VALUE = re.compile(
    rf"((?<![\w.-])(--)?{_NAME}[\"']?(?:\s{{0,4}}[=:]\s{{0,4}}(?:bearer\s|basic\s)?|(?(2)\s|(?!))))"
    rf"(?!{_HARMLESS}(?![^\s,;&\"']))"
    r"(?:\"[^\"\n]+\"|'[^'\n]+'|[^\s,;&\"'(){}\[\]]{4,})",
    re.I,
)
"""Name and value in one text: `NAME=VALUE`, `--name VALUE`, `"name": "value"`."""
_SECRET_VALUE = re.compile(
    r"A[KS]IA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w*|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|xox[abprs]-[\w-]{10,}|(?<![^\W_])sk-[\w-]{20,}|[rs]k_(?:live|test)_\w{10,}|AIza[\w-]{35}|nvapi-[\w-]{20,}"
    r"|npm_[A-Za-z0-9]{36}|hooks\.slack\.com/\w+/\S+|discord(?:app)?\.com/api/webhooks/\S+"
    r"|(?<=[?&]sig=)[^\s&]+|(?<=[?&]key=)[^\s&]+|(?<=Bearer )[\w.~+/-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|eyJ[\w-]{10,400}\.[\w-]{10,}\.|://[^/@:\s]*:[^/@\s]+@"
)


def is_printable(text: str) -> bool:
    """True if the text has no control, escape or bidirectional character that a terminal would act on."""
    return all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


def looks_secret(text: str, key: str | int | None) -> bool:
    """True if the text has the form of a secret or holds one by its name, or if its key has the name of one."""
    if _SECRET_VALUE.search(text) or _NAMED_VALUE.search(text):
        return True
    return bool(text and _SECRET_NAME.fullmatch(str(key)) and not re.fullmatch(_HARMLESS, text, re.I))


def hidden(value: Any, *keys: str | int | None) -> Any:
    """The value for a message: `<hidden>` if it looks like a secret under any of these keys."""
    return HIDDEN if any(looks_secret(str(value), key) for key in (None, *keys)) else value


def safe_text(text: str) -> str:
    """The text with a blank for what a terminal would act on, and `<hidden>` for what has the form of a secret."""
    return without_controls(hide_secrets(text))


def without_controls(text: str) -> str:
    """The text with a blank for what a terminal would act on."""
    return "".join(c if is_printable(c) else " " for c in text)


def hide_secrets(text: str) -> str:
    """The text with `<hidden>` for what has the form of a secret, and for values with the name of one."""
    return _SECRET_VALUE.sub(HIDDEN, _NAMED_VALUE.sub(rf"\1{HIDDEN}", text))


def secret_problem(**where: Any) -> Problem:
    """The problem at this place; it does not show the secret."""
    return Problem(
        "secret",
        "looks like a secret",
        rule="secrets do not belong in a configuration file or on a command line",
        fix="put it into the environment, or into a file with mode 0600",
        **where,
    )
