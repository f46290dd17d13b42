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


_STEPS: dict[str, Any] = {"ge": _LEAST_STEPS, "le": _MOST_STEPS}


def _rule(name: str, description: str, **options: Any) -> Any:
    """Field with the default of the rule of this name; a time has its key without the unit."""
    default = getattr(_DEFAULTS, name)
    if name.endswith("_s"):
        options |= {"alias": name.removesuffix("_s"), "json_schema_extra": {"default": format_duration(default)}}
    return Field(default=default, description=description, **options)


class MeasureSection(Section):
    """Section `measure`: rules of the measurement."""

    min_steps: int = _rule(
        "min_steps", "Fewest measured steps of a result; max_steps by default where that is less.", **_STEPS
    )
    max_steps: int = _rule("max_steps", "Measured steps after which a trial ends in any case.", **_STEPS)
    max_warmup_steps: int = _rule(
        "max_warmup_steps",
        "Steps after which warm-up ends even if the step time is not stable yet; half of max_steps by default where"
        " that is less.",
        **_STEPS | {"ge": 1},
    )
    ci_relative_width: float = _rule(
        "ci_relative_width",
        "Width of the median step time's 95 % interval, over the median, at which measuring stops.",
        gt=0,
        le=1,
    )
    time_limit_s: Duration = _rule("time_limit_s", "Longest time one trial may take, start-up included.")
    memory_limit_gib: float | None = _rule(
        "memory_limit_gib", "Memory of one rank, in GiB, above which a trial counts as out of memory.", gt=0, le=2**20
    )
    early_stopping: bool = _rule(
        "early_stopping",
        "A trial ends itself once it cannot reach the best one on as many nodes or fewer; the baseline and repeats"
        " never do.",
    )
    finalist_steps: int = _rule(
        "finalist_steps",
        "Fewest measured steps of a finalist, also beyond max_steps, unless finalist_time ends it before.",
        **_STEPS,
    )
    finalist_time_s: Duration = _rule(
        "finalist_time_s",
        "Time of a finalist's measured steps together after which fewer than finalist_steps are enough.",
    )
    profile: bool = _rule("profile", "Profile a few more steps after the measurement, to break down the step time.")
    warm_start: Annotated[
        bool | None,
        PlainValidator(_warm_start),
        WithJsonSchema({"anyOf": [{"enum": ["auto"]}, {"type": "boolean"}]}),
    ] = _rule(
        "warm_start",
        "Fork the ranks from a process of their node that has already imported torch. auto: with launcher local, ray"
        " or slurm_pilot and Parlay's own trainer. false: start each rank by itself.",
        json_schema_extra={"default": "auto"},
    )
    routing: Annotated[
        str | None,
        PlainValidator(_routing),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = _rule(
        "routing",
        "Experts of each token, forced while a trial runs. balanced: equally many tokens for all, as in published"
        " measurements. skewed(s): the most loaded expert of each layer has s times the mean. learned: the router"
        " chooses. Default: balanced where the trainer can force it, else learned.",
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
        for name, is_too_many, limit in (
            ("min_steps", self.min_steps > self.max_steps, "at most"),
            ("max_warmup_steps", self.max_warmup_steps >= self.max_steps, "less than"),
        ):
            if is_too_many:
                given, relation = getattr(self, name), "more than" if limit == "at most" else "not less than"
                raise InputError.of(
                    "steps",
                    f"{name} {given} is {relation} max_steps {self.max_steps}",
                    rule=f"{name} is {limit} max_steps",
                    fix=f"raise max_steps, or lower {name}",
                    key=name,
                    value=given,
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
