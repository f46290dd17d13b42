"""Rule against comparing engines where a CPU only emulates the device of one of them (docs/measuring.md)."""

from __future__ import annotations

from collections.abc import Iterable

from search_spaces.engines import is_emulated
from search_spaces.errors import Problem

RULE = (
    "engines are compared only on the device that they are written for: on a CPU that emulates a GPU the comparison"
    " would be one of the emulation"
)


def mixed_engines_problem(engines: Iterable[str], accelerator: str, fix: str, key: str) -> Problem | None:
    """Problem of several engines of which one is emulated on this accelerator; None where they may be compared."""
    names = sorted(set(engines))
    emulated = [name for name in names if is_emulated(name, accelerator)]
    if len(names) < 2 or not emulated:
        return None
    words = f"compares {' and '.join(names)} on {accelerator}, which emulates the GPU of {' and '.join(emulated)}"
    return Problem("emulated_engine", words, rule=RULE, fix=fix, key=key, value=names)
