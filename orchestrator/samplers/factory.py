"""Samplers by the names a search file knows them by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from orchestrator.samplers.base import Sampler
from orchestrator.samplers.deephyper import DeepHyperSampler
from orchestrator.samplers.fallback import FallbackSampler
from orchestrator.samplers.ordered import GridSampler, RandomSampler
from search_spaces.errors import InputError, did_you_mean
from search_spaces.layout import Layout

SAMPLERS = ("deephyper", "random", "grid")
"""What `search.sampler` may say."""

_log = logging.getLogger(__name__)


def make_sampler(
    name: str, candidates: Sequence[Layout], seed: int, note: Callable[[str], None] = _log.warning
) -> Sampler:
    """The sampler of this name over `candidates`, all its chance drawn from `seed`.

    `note` hears, once, of a sampler that failed or hung and was replaced by `random`. InputError for an unknown name.
    """
    if name == "grid":
        return GridSampler(candidates)
    if name == "random":
        return RandomSampler(candidates, seed)
    if name == "deephyper":
        return FallbackSampler(DeepHyperSampler(candidates, seed), RandomSampler(candidates, seed), note)
    raise _unknown(name)


def _unknown(name: str) -> InputError:
    return InputError.of(
        "sampler",
        f"unknown sampler {name!r}",
        key="search.sampler",
        value=name,
        rule="one of " + ", ".join(SAMPLERS),
        fix=did_you_mean(name, SAMPLERS),
    )
