"""Engines whose device a CPU only emulates (docs/measuring.md): the rule against comparing them, and a remark."""

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
    emulated = _emulated(names, accelerator)
    if len(names) < 2 or not emulated:
        return None
    words = f"compares {' and '.join(names)} on {accelerator}, which emulates the GPU of {' and '.join(emulated)}"
    return Problem("emulated_engine", words, rule=RULE, fix=fix, key=key, value=names)


def emulation_remark(engines: Iterable[str], accelerator: str) -> str | None:
    """Sentence on those of these engines whose device is emulated; None without one."""
    if not (emulated := _emulated(sorted(set(engines)), accelerator)):
        return None
    return f"a CPU emulates the GPU of {' and '.join(emulated)}: measured speeds will be those of the emulation"


def _emulated(engines: Iterable[str], accelerator: str) -> list[str]:
    return [engine for engine in engines if is_emulated(engine, accelerator)]
