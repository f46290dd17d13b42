"""Sections of the search file about a trial: measurement and training data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from search_spaces.errors import InputError, did_you_mean, format_value
from search_spaces.model_shape import ModelShape
from search_spaces.routing import Routing
from search_spaces.schema.durations import Duration, format_duration
from search_spaces.schema.sections import resolved_path
from search_spaces.schema.validation import Section, folder_from_context
from trials.data.indexed_dataset import IndexedDataset, require_tokens
from trials.measure_rules import MeasureRules

_DEFAULTS = MeasureRules()
_LEAST_STEPS = 5
_MOST_STEPS = 100_000
_CHECKSUM = "^sha256:[0-9a-f]{64}$"


_WARM_STARTS = {"auto": None, True: True, False: False}


def _warm_start(given: Any) -> bool | None:
    """True, False, or None for `auto`; InputError for anything else."""
    if isinstance(given, (str, bool)) and given in _WARM_STARTS:
        return _WARM_STARTS[given]
    raise InputError.of(
        "choice",
        f"is {format_value(given):.80}",
        rule="auto, true or false",
        fix=did_you_mean(given, ("auto",)) or "auto: ranks are forked where launcher and trainer can",
        value=given,
    )


def _routing(given: Any) -> str | None:
    """The routing as `Routing` writes it; InputError for anything else."""
    return None if given is None else str(Routing.of(given if isinstance(given, str) else format_value(given)))


class MeasureSection(Section):
    """Section `measure`: rules of the measurement."""

    min_steps: int = Field(
        default=_DEFAULTS.min_steps,
        ge=_LEAST_STEPS,
        le=_MOST_STEPS,
        description="Fewest measured steps of a result; max_steps by default where that is less.",
    )
    max_steps: int = Field(
        default=_DEFAULTS.max_steps,
        ge=_LEAST_STEPS,
        le=_MOST_STEPS,
        description="Measured steps after which a trial ends in any case.",
    )
    max_warmup_steps: int = Field(
        default=_DEFAULTS.max_warmup_steps,
        ge=1,
        le=_MOST_STEPS,
        description="Steps after which warm-up ends even if the step time is not stable yet; half of max_steps by"
        " default where that is less.",
    )
    ci_relative_width: float = Field(
        default=_DEFAULTS.ci_relative_width,
        gt=0,
        le=1,
        description="Width of the median step time's 95 % interval, over the median, at which measuring stops.",
    )
    time_limit_s: Duration = Field(
        default=_DEFAULTS.time_limit_s,
        alias="time_limit",
        description="Longest time one trial may take, start-up included.",
        json_schema_extra={"default": format_duration(_DEFAULTS.time_limit_s)},
    )
    memory_limit_gib: float | None = Field(
        default=None,
        gt=0,
        le=2**20,
        description="Memory of one rank, in GiB, above which a trial counts as out of memory.",
    )
    early_stopping: bool = Field(
        default=_DEFAULTS.early_stopping,
        description="A trial ends itself once it cannot reach the best one on as many nodes or fewer; the baseline and"
        " repeats never do.",
    )
    finalist_steps: int = Field(
        default=_DEFAULTS.finalist_steps,
        ge=_LEAST_STEPS,
        le=_MOST_STEPS,
        description="Fewest measured steps of a finalist, also beyond max_steps, unless finalist_time ends it before.",
    )
    finalist_time_s: Duration = Field(
        default=_DEFAULTS.finalist_time_s,
        alias="finalist_time",
        description="Time of a finalist's measured steps together after which fewer than finalist_steps are enough.",
        json_schema_extra={"default": format_duration(_DEFAULTS.finalist_time_s)},
    )
    profile: bool = Field(
        default=_DEFAULTS.profile,
        description="Profile a few more steps after the measurement, to break down the step time.",
    )
    warm_start: Annotated[
        bool | None,
        PlainValidator(_warm_start),
        WithJsonSchema({"anyOf": [{"enum": ["auto"]}, {"type": "boolean"}]}),
    ] = Field(
        default=_DEFAULTS.warm_start,
        json_schema_extra={"default": "auto"},
        description="Fork the ranks from a process of their node that has already imported torch. auto: with launcher"
        " local, ray or slurm_pilot and Parlay's own trainer. false: start each rank by itself.",
    )

    routing: Annotated[
        str | None,
        PlainValidator(_routing),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = Field(
        default=_DEFAULTS.routing,
        description="Experts of each token, forced while a trial runs. balanced: equally many tokens for all, as in"
        " published measurements. skewed(s): the most loaded expert of each layer has s times the mean. learned: the"
        " router chooses. Default: balanced where the trainer can force it, else learned.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fits_what_is_not_written(cls, given: Any) -> Any:
        most = given.get("max_steps") if isinstance(given, Mapping) else None
        if not isinstance(most, int) or most < _LEAST_STEPS:
            return given
        fitting = {
            "min_steps": min(_DEFAULTS.min_steps, most),
            "max_warmup_steps": min(_DEFAULTS.max_warmup_steps, most // 2),
        }
        return {**fitting, **given}

    @model_validator(mode="after")
    def _leaves_steps_to_measure(self) -> Self:
        if self.min_steps > self.max_steps:
            raise InputError.of(
                "steps",
                f"min_steps {self.min_steps} is more than max_steps {self.max_steps}",
                rule="min_steps is at most max_steps",
                fix="raise max_steps, or lower min_steps",
                key="min_steps",
                value=self.min_steps,
            )
        if self.max_warmup_steps >= self.max_steps:
            raise InputError.of(
                "steps",
                f"max_warmup_steps {self.max_warmup_steps} is not less than max_steps {self.max_steps}",
                rule="max_warmup_steps is less than max_steps",
                fix="lower max_warmup_steps, or raise max_steps",
                key="max_warmup_steps",
                value=self.max_warmup_steps,
            )
        return self

    def rules(self) -> MeasureRules:
        return MeasureRules(**{name: getattr(self, name) for name in type(self).model_fields})


def _require_checksum(checksum: str) -> str:
    """InputError for anything but a SHA-256."""
    if re.fullmatch(_CHECKSUM, checksum) is None:
        raise InputError.of(
            "pattern",
            f"is {checksum!r:.100}",
            rule="sha256: and 64 hexadecimal digits",
            fix="copy it from sha256sum of the .idx file, or remove the key",
            value=checksum,
        )
    return checksum


class DataSection(Section):
    """Section `trainer.data`: the training data; docs/data.md."""

    kind: Literal["synthetic", "tokens"] = Field(
        default="synthetic",
        description="synthetic: generated sequences, without waiting. tokens: a dataset; the time a step waits for it"
        " is part of the step.",
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="tokens: prefix of the .bin and .idx of a Megatron dataset, where compute nodes can read them.",
    )
    num_tokens: int | None = Field(
        default=None, ge=1, description="tokens: number of tokens in the dataset. Default: the current number."
    )
    checksum: Annotated[str, AfterValidator(_require_checksum)] | None = Field(
        default=None,
        json_schema_extra={"pattern": _CHECKSUM},
        description="tokens: SHA-256 of the .idx file. Default: the current one.",
    )
    attention_mask: Literal["causal", "block_causal"] | None = Field(
        default=None,
        description="tokens: what a token attends to. causal: all tokens before it in its sequence. block_causal: only"
        " those of its own document, and positions start again with each document. Default: causal.",
    )

    @field_validator("path")
    @classmethod
    def _resolve(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else str(resolved_path(folder_from_context(info), path))

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if self.kind == "tokens" and self.path is None:
            raise InputError.of(
                "missing_key",
                "required with kind tokens, and not given",
                rule="tokens are read from a dataset",
                fix="name the prefix that --data-path of Megatron takes",
                key="path",
            )
        of_tokens = ("path", "num_tokens", "checksum", "attention_mask")
        given = [name for name in of_tokens if getattr(self, name) is not None]
        if self.kind == "synthetic" and given:
            raise InputError.of(
                "contradiction",
                f"{given[0]} is given with kind synthetic",
                rule="synthetic data is read from no dataset",
                fix=f"write kind: tokens, or remove {', '.join(given)}",
                key=given[0],
                value=getattr(self, given[0]),
            )
        return self

    def for_trials(self) -> Mapping[str, Any]:
        """The section as spec.json has it."""
        return self.model_dump(mode="json", exclude_none=True)

    def pinned(self, model: ModelShape) -> Self:
        """The section with the current number and checksum of the tokens; InputError where `model` cannot train on
        them."""
        if self.kind == "synthetic":
            return self
        dataset = require_tokens(self.for_trials(), model)
        return self.model_copy(update={"num_tokens": dataset.num_tokens, "checksum": dataset.checksum})

    def trained_model(self, model: ModelShape) -> ModelShape:
        """The model as it trains on this data: with the dataset's documents where tokens attend only to their own."""
        if self.path is None or self.attention_mask != "block_causal":
            return model
        return model.with_documents(IndexedDataset(Path(self.path)).mean_document_length(model.seq_length))
