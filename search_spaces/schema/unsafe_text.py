"""Text that a search file may not have: secrets, and characters that a terminal would act on."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from search_spaces.errors import Problem

HIDDEN = "<hidden>"
PRINTABLE = "text has only printable characters"

_SECRET_KEY = re.compile(r"(^|_|-)(password|passwd|passphrase|secret|api_?key|access_?key|token|credentials?)$", re.I)
_SECRET_VALUE = re.compile(
    r"AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|xox[abprs]-[\w-]{10,}"
    r"|sk-[\w-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY|eyJ[\w-]{10,400}\.[\w-]{10,}\.|://[^/@:\s]*:[^/@\s]+@"
)


def is_printable(text: str) -> bool:
    """True if the text has no control, escape or bidirectional character that a terminal would act on."""
    return all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


def looks_secret(text: str, key: str | int | None) -> bool:
    """True if the text has the form of a secret, or its key the name of one."""
    return bool(_SECRET_VALUE.search(text) or (text and _SECRET_KEY.search(str(key))))


def hidden(value: Any, *keys: str | int | None) -> Any:
    """The value for a message: `<hidden>` if it looks like a secret under any of these keys."""
    return HIDDEN if any(looks_secret(str(value), key) for key in (None, *keys)) else value


def safe_text(text: str) -> str:
    """The text with a blank for what a terminal would act on, and `<hidden>` for what has the form of a secret."""
    return "".join(c if is_printable(c) else " " for c in hide_secrets(text))


def hide_secrets(text: str) -> str:
    """The text with `<hidden>` for what has the form of a secret."""
    return _SECRET_VALUE.sub(HIDDEN, text)


def secret_problem(**where: Any) -> Problem:
    """The problem at this place; it does not show the secret."""
    return Problem(
        "secret",
        "looks like a secret",
        rule="secrets do not belong in a configuration file or on a command line",
        fix="put it into the environment, or into a file with mode 0600",
        **where,
    )
