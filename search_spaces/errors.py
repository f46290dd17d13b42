"""The one error a person's own input can raise: it names field, value, rule and fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing wrong with what the user gave.

    `code` is a short stable word (`unknown_key`, `batch`, `torch.micro_batches`); `rule` is the sentence that was
    broken, `fix` what to do about it. `file`, `line` and `key` are absent when the input did not come from a file.
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
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        subject = f"{self.key}: " if self.key else ""
        text = f"{where}: {subject}{self.message}" if where else f"{subject}{self.message}"
        if self.rule and self.rule not in text:
            text += f"\n  rule: {self.rule}"
        return text + (f"\n  fix: {self.fix}" if self.fix else "")

    def to_json(self) -> dict[str, Any]:
        """The contract's `{code, message, file, line, key, value, rule, fix}`."""
        return asdict(self)


class InputError(ValueError):
    """Bad input or usage: nothing was launched. Carries every problem found, not only the first."""

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
        """The same error with the place filled in wherever a problem does not know its own."""
        return InputError(
            *(replace(p, file=p.file or file, line=p.line or line, key=p.key or key) for p in self.problems)
        )


class OutsideRefused(Exception):
    """A system outside of Parlay refused, is out of reach, or holds something damaged; the words are its own."""
