"""What trials wrote, made fit for a page: short, masked, one spelling for what cannot be seen. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.text import masked, printable
from trials.files.text import without_escapes
from trials.trial import Trial

_LONGEST = 2000
_SHORTEST = 240
_ALL_TOGETHER = 400_000
"""Characters of one excerpt and of all: a page with a thousand failures still opens at once on a phone."""
_SECRET = re.compile(
    r"""(?ix) ( (?: password | passwd | secret | token | api_?key | access_?key | credential
    | authorization ) [\w-]{0,40} ["']? )
    ( \s{0,8} [=:] \s{0,8} (?: (?: bearer | basic ) \s )? ) (?: "[^"\n]+" | '[^'\n]+' | [^\s,;"'(){}\[\]]{6,} )"""
)
"""A value of some length that is given to a name that says what it is. Bounded, since logs are as long as they like."""


@dataclass(frozen=True)
class Excerpts:
    """How much of each excerpt there is room for: `longest` characters."""

    longest: int

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Excerpts:
        count = sum(_excerpt(trial) is not None for trial in trials)
        return cls(min(_LONGEST, max(_SHORTEST, _ALL_TOGETHER // max(1, count))))

    def shown(self, trial: Trial) -> str | None:
        """The end of what the trial's last attempt left, where what happened stands; None where it left nothing."""
        text = _excerpt(trial)
        return None if text is None else shown_excerpt(text, self.longest)


def shown_excerpt(text: str, longest: int) -> str:
    """The last `longest` characters of a text, without what may be a secret."""
    # Cut before it is searched, since logs are as long as they like, and after, since what is spelled out grows; where
    # the first cut goes through a secret's name, its value stands in the part that the second takes away.
    lines = without_escapes(text[-4 * longest :]).replace("\r\n", "\n").split("\n")
    clean = "\n".join(printable(line).rstrip() for line in lines).strip("\n")
    clean = _SECRET.sub(r"\1\2***", masked(clean))
    return clean if len(clean) <= longest and len(text) <= 4 * longest else f"...{clean[-longest:]}"


def _excerpt(trial: Trial) -> str | None:
    last = trial.last_attempt
    return (last.excerpt or None) if last else None
