"""InputError, raised for a user's own input with field, value, rule and fix, and ExternalError for other systems."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One mistake in the user's input.

    `code` is a short stable id (`unknown_key`, `batch`, `torch.micro_batches`); `rule` is the sentence that was
    violated, `fix` the remedy. `file`, `line` and `key` are absent when the input did not come from a file.
    """

    code: str
    message: str
    rule: str | None = None
    fix: str | None = None
    key: str | None = None
    value: Any = None
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        where = ":".join(shorten(str(part)) for part in (self.file, self.line) if part is not None)
        subject = f"{shorten(self.key)}: " if self.key else ""
        message = shorten(self.message)
        text = f"{where}: {subject}{message}" if where else f"{subject}{message}"
        rule = f"\n  rule: {shorten(self.rule)}" if self.rule and self.rule not in text else ""
        return text + (f"\n  fix: {shorten(self.fix)}" if self.fix else "") + rule

    def to_json(self) -> dict[str, Any]:
        """The contract's `{code, message, file, line, key, value, rule, fix}`, plain finite JSON."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


class InputError(ValueError):
    """Invalid input or usage; nothing was launched. Carries every problem found, not only the first."""

    def __init__(self, *problems: Problem):
        if not problems:
            raise TypeError("an InputError names at least one problem")
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems

    @classmethod
    def of(cls, code: str, message: str, **details: Any) -> InputError:
        """An error with a single problem; `details` are the other fields of `Problem`."""
        return cls(Problem(code, message, **details))

    def at(self, *, file: str | None = None, line: int | None = None, key: str | None = None) -> InputError:
        """The same error with file, line and key filled in for problems that lack them.

        The line belongs to `file`: it is not filled in for a problem that names another file.
        """
        return InputError(
            *(
                replace(p, file=p.file or file, line=p.line or (None if p.file else line), key=p.key or key)
                for p in self.problems
            )
        )


class ExternalError(Exception):
    """Failure of another system: it refused, is unreachable, or its data is damaged. The message is the system's own.

    `fix` is the remedy, None where only the message can tell.
    """

    def __init__(self, message: str, fix: str | None = None):
        super().__init__(message)
        self.fix = fix


def did_you_mean(word: Any, known: Iterable[str]) -> str | None:
    """`did you mean X?`, or None where nothing known is close."""
    close = difflib.get_close_matches(str(word).lower(), list(known), n=1)
    return f"did you mean {close[0]}?" if close else None


def choice_fix(word: Any, known: Iterable[str]) -> str:
    """The fix for a word that is not among the choices: the closest one, where there is one."""
    return did_you_mean(word, known) or "choose one of these"


def format_value(value: Any) -> str:
    """A value as YAML and JSON write it: null, true, false; everything else as its repr."""
    return _LITERALS[value] if value is None or isinstance(value, bool) else repr(value)


_LITERALS = {None: "null", True: "true", False: "false"}


def shorten(text: str) -> str:
    """The text with the middle cut out of very long words and texts."""
    text = _LONG_WORD.sub(lambda word: _cut(word[0], _MAX_WORD), text)
    return _cut(text, _MAX_TEXT)


_MAX_WORD, _MAX_TEXT, _MAX_VALUES = 500, 5000, 100
_LONG_WORD = re.compile(rf"\S{{{_MAX_WORD + 1},}}")
_MAX_BITS = 1024


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]}... ({len(text)} characters) ...{text[-longest // 4 :]}"


def _plain(value: Any) -> Any:
    """The value as finite JSON: lists and mappings recursively, anything else as its repr, long texts shortened."""
    if isinstance(value, str):
        return shorten(value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a whole number of {value.bit_length()} bits"
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {shorten(str(key)): _plain(inner) for key, inner in islice(value.items(), _MAX_VALUES)}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value[:_MAX_VALUES]]
    return shorten(repr(value))
