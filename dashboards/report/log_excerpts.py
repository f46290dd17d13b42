"""Excerpts of trials' logs for a page: short, secrets masked, control characters escaped. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.text import mask_credentials, printable
from search_spaces.schema.unsafe_text import hide_secrets
from trials.files.text import without_escapes
from trials.trial import Trial

_LONGEST = 2000
_SHORTEST = 240
_ALL_TOGETHER = 400_000
"""Characters of one excerpt and of all: a page with a thousand failures must open quickly on a phone."""


@dataclass(frozen=True)
class Excerpts:
    """Excerpts of at most `longest` characters each."""

    longest: int

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Excerpts:
        count = sum(_excerpt(trial) is not None for trial in trials)
        return cls(min(_LONGEST, max(_SHORTEST, _ALL_TOGETHER // max(1, count))))

    def shown(self, trial: Trial) -> str | None:
        """End of the log excerpt of the trial's last attempt; None without one."""
        text = _excerpt(trial)
        return None if text is None else format_excerpt(text, self.longest)


def format_excerpt(text: str, longest: int) -> str:
    """Last `longest` characters of a text, with likely secrets masked."""
    # Cut before the search, since logs may be long, and after, since escaping lengthens the text. Where the first cut
    # splits a secret's name, its value lies in the part that the second cut removes.
    lines = without_escapes(text[-4 * longest :]).replace("\r\n", "\n").split("\n")
    clean = "\n".join(printable(line).rstrip() for line in lines).strip("\n")
    clean = hide_secrets(mask_credentials(clean))
    return clean if len(clean) <= longest and len(text) <= 4 * longest else f"...{clean[-longest:]}"


def _excerpt(trial: Trial) -> str | None:
    last = trial.last_attempt
    return (last.excerpt or None) if last else None
