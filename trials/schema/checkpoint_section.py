"""Section of the search file about the checkpoints of the training that a search is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from search_spaces.errors import InputError
from search_spaces.schema.durations import Duration
from search_spaces.schema.validation import Section, restore
from trials.analysis.training_rate import Checkpoints

_PAIRS = (("every", "every_steps", "how often"), ("stall", "write_gb_per_s", "how long each stalls the training"))
"""Keys of which one is given, and what they say."""


class CheckpointSection(Section):
    """Section `trainer.checkpoint`: what checkpoints cost the training that the search is for. Trials write none; the
    recipe's tokens a day count them."""

    every_s: Duration | None = Field(
        default=None, alias="every", description="Time of training between two checkpoints; or give every_steps."
    )
    every_steps: int | None = Field(default=None, ge=1, le=10**9, description="Steps between two checkpoints.")
    stall_s: Duration | None = Field(
        default=None,
        alias="stall",
        description="Time for which a checkpoint stalls the training; or give write_gb_per_s.",
    )
    write_gb_per_s: float | None = Field(
        default=None,
        ge=0.001,
        le=10**6,
        description="GB (10^9 bytes) a second that all ranks together write. The training then stalls until all"
        " weights and optimizer states are written.",
    )

    @model_validator(mode="after")
    def _says_how_often_and_how_long(self) -> Self:
        given = self.model_dump(by_alias=True, exclude_none=True)
        for first, second, what in _PAIRS:
            if len(given.keys() & {first, second}) != 1:
                found = "both are given" if first in given else "neither is given"
                raise InputError.of(
                    "contradiction" if first in given else "missing_key",
                    f"of {first} and {second}, {found}",
                    rule=f"one of {first} and {second} says {what}",
                    fix=f"remove {second}" if first in given else f"add {first}, such as {first}: 30s",
                    key=first,
                    value=given.get(first),
                )
        return self

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.every_steps, self.every_s, self.stall_s, self.write_gb_per_s)


def checkpoints_of(spec: Mapping[str, Any]) -> Checkpoints | None:
    """Checkpoints that the record of a search (search.json) states; None without any."""
    trainer = spec.get("trainer")
    given = trainer.get("checkpoint") if isinstance(trainer, Mapping) else None
    return None if given is None else restore(CheckpointSection, given).checkpoints()
