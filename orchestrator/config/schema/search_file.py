"""Schema of the search file: its top-level keys, the search section, and the sections of others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from dashboards.schema import TrackingSection
from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.config.schema.notify import NotifySection
from search_spaces.adapters import Adapters
from search_spaces.errors import InputError
from search_spaces.model_shape import ModelShape
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.declared_section import DeclaredSection, section_of
from search_spaces.schema.durations import Duration
from search_spaces.schema.sections import BaselineSection, ConstraintsSection, ModelSection, SpaceSection, resolved_path
from search_spaces.schema.validation import Section, folder_from_context
from trials.analysis.finals import DEFAULT_FINALS, Finals
from trials.analysis.ranking import Objective
from trials.schema.ledger_section import LedgerSection
from trials.schema.sections import MeasureSection
from trials.schema.trainer_section import TrainerSection

SAMPLERS: Mapping[str, str] = {
    "guided": "Bayesian optimisation with a cost model; the search ends once no remaining layout is likely to be"
    " faster",
    "deephyper": "Bayesian optimisation by DeepHyper, without a cost model",
    "cost_model": "in the order of the uncalibrated cost model",
    "random": "in random order",
    "grid": "in the order of enumeration",
}
"""Samplers by name, with a description; the first is the default."""

SamplerName: TypeAlias = Literal[tuple(SAMPLERS)]  # type: ignore[valid-type]
"""A name in SAMPLERS, for pydantic."""

FROM_LEDGER, FROM_NOTHING = "ledger", "none"
"""Values of `search.warm_start` other than a table's path."""
_NAME = "^[a-z0-9][a-z0-9-]{0,40}$"


def _require_name(name: str) -> str:
    """Raise InputError for a name that cannot begin a search's id, which is also a folder name."""
    if re.fullmatch(_NAME, name) is None:
        raise InputError.of(
            "pattern",
            f"is {name!r}",
            rule="1 to 41 characters of a-z, 0-9 and -, not beginning with -",
            fix="for example gpt2-on-8-gpus",
            value=name,
        )
    return name


def _objectives(given: Any) -> Any:
    """Normalize to a tuple of different objectives; the field validates each."""
    if not isinstance(given, list):
        return (given,)
    if not given or len(set(map(repr, given))) < len(given):
        raise InputError.of(
            "repeat" if given else "missing_key",
            "has a duplicate" if given else "is an empty list",
            rule="one objective, or a list of different ones; the first decides",
            fix="give each once" if given else f"for example [{', '.join(o.value for o in Objective)}]",
            value=given,
        )
    return tuple(given)


_OBJECTIVE = {"enum": [objective.value for objective in Objective]}
_ONE_OR_MORE = {"minItems": 1, "maxItems": len(Objective), "uniqueItems": True}


class SearchSection(Section):
    """Sampler, limits and repeats of the search."""

    sampler: SamplerName = Field(
        default=next(iter(SAMPLERS)),
        description="How the next layout is chosen. "
        + " ".join(f"{name}: {description}." for name, description in SAMPLERS.items()),
    )
    sample_space: bool = Field(
        default=False, description="Allow more than 1000000 combinations; a random sample of 100000 is used."
    )
    max_trials: int = Field(
        default=30, ge=1, le=1_000_000, description="Upper limit of layouts tried; retries and repeats do not count."
    )
    parallel_trials: int = Field(default=1, ge=1, le=10_000, description="Number of concurrent trials.")
    budget_node_hours: float | None = Field(
        default=None,
        gt=0,
        le=10**9,
        description="Upper limit of the node-hours of all attempts and of the fabric check. Default: no limit.",
    )
    max_wall_time_s: Duration | None = Field(
        default=None,
        alias="max_wall_time",
        description="Time after which the search ends; running trials are cancelled. Default: no limit.",
    )
    finalists: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Number of best layouts that are measured again at the end, with the baseline and the Pareto set of"
        " several objectives or node counts; 0: none.",
    )
    finalist_repeats: int = Field(
        default=2, ge=1, le=100, description="Repeats of each finalist; at most that many, with finals: until_decided."
    )
    finals: Finals = Field(
        default=DEFAULT_FINALS,
        strict=False,
        description="When the repeats end. until_decided: after the round in which one layout is clearly faster than"
        " the others, or in which further repeats would hardly separate layouts that are still tied; what is clearly"
        " slower drops out before (docs/measuring.md). fixed: after finalist_repeats of each.",
    )
    against: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A second software stack: the same few layouts are measured with both in turns, and the two are"
        " compared (docs/how_to/compare_software.md). A Python, or with launcher.slurm.container an image; a path"
        " starts from the search file's folder.",
    )
    against_layouts: int = Field(
        default=3,
        ge=1,
        le=100,
        description="against: number of layouts, the baseline and those predicted to be the fastest. max_trials,"
        " finalists and sampler have no effect.",
    )
    idle_limit_s: Duration | None = Field(
        default=None,
        alias="idle_limit",
        description="Time without a trial starting, running or ending, as in a full queue, after which the search ends."
        " Default: no limit.",
    )
    seed: int = Field(default=1234, ge=0, le=2**32 - 1, description="Seed of all random choices of the search.")
    warm_start: str = Field(
        default=FROM_LEDGER,
        min_length=1,
        max_length=4096,
        description="Trials that the cost model learns from before the search. ledger: those of earlier searches on the"
        " same kind of machine, read when the search is created. none: no trials. Otherwise a measured table (CSV).",
    )

    @field_validator("warm_start")
    @classmethod
    def _resolve(cls, given: str, info: ValidationInfo) -> str:
        return given if given in (FROM_LEDGER, FROM_NOTHING) else str(resolved_path(folder_from_context(info), given))

    @property
    def warm_start_table(self) -> Path | None:
        """The measured table named by `warm_start`, None without one."""
        return None if self.warm_start in (FROM_LEDGER, FROM_NOTHING) else Path(self.warm_start)


ALL, ADAPTERS = "all", "adapters"
"""Words of `trainable`; otherwise it names modules."""

if TYPE_CHECKING:
    AdaptersSection = DeclaredSection
else:
    AdaptersSection = section_of(Adapters)


def _trainable(given: Any) -> Any:
    """InputError for anything but the words, or names of modules."""
    is_list = isinstance(given, list) and given and all(isinstance(name, str) for name in given)
    if given in (None, ALL, ADAPTERS) or is_list:
        return given
    rule = "all, adapters, or a list of modules"
    raise InputError.of("type", f"is {given!r:.80}", rule=rule, fix="for example [lm_head, norms]", value=given)


class SearchFile(Section):
    """A search for the fastest layout: the model, the cluster, and the layouts to try.

    Sections are described by their own docstrings.
    """

    hints: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("adapters", "lora", "qlora", "peft"), "adapters"),
        **dict.fromkeys(("lora_r", "lora_rank", "lora_dim"), "adapters.rank"),
    }

    schema_version: Literal["parlay.search/1"] = Field(
        default="parlay.search/1", alias="schema", description="Version of the file's format."
    )
    name: Annotated[str, AfterValidator(_require_name)] = Field(
        json_schema_extra={"pattern": _NAME},
        description="Beginning of the search's id: a-z, 0-9 and -, at most 41 characters.",
    )
    model: ModelSection
    task: Literal["pretrain", "finetune"] = Field(
        default="pretrain",
        description="pretrain: all weights train. finetune: adapters and trainable say which do (docs/trainers.md).",
    )
    adapters: AdaptersSection | None = Field(
        default=None, description="Low-rank adapters beside frozen weights, with task finetune."
    )
    trainable: Annotated[
        str | list[str] | None,
        PlainValidator(_trainable),
        WithJsonSchema({"anyOf": [{"enum": [ALL, ADAPTERS]}, {"type": "array", "items": {"type": "string"}}]}),
    ] = Field(
        default=None,
        description="With task finetune, what trains: all weights, the adapters alone, or these modules beside them:"
        " linear modules of the layers, norms, embed_tokens, lm_head. Default: the adapters where there are any, else"
        " all.",
    )
    cluster: ClusterSection
    global_batch_size: int = Field(
        ge=1,
        le=10**9,
        description="Sequences per optimizer step. Fixed: accumulation follows from it and the layout.",
    )
    baseline: BaselineSection | None = None
    space: SpaceSection
    objective: Annotated[
        tuple[Annotated[Objective, Field(strict=False)], ...],
        BeforeValidator(_objectives),
        WithJsonSchema({"anyOf": [_OBJECTIVE, {"type": "array", "items": _OBJECTIVE, **_ONE_OR_MORE}]}),
    ] = Field(
        default=(Objective.TOKENS_PER_SEC,),
        description="Objective, or a list of them; node_hours_per_billion_tokens and joules_per_token are minimised,"
        " the others are maximised; joules_per_token needs GPUs whose drivers report energy. The first one decides the"
        " best layout. With several objectives, or layouts on several numbers of nodes, the result also has the Pareto"
        " set.",
        json_schema_extra={"default": Objective.TOKENS_PER_SEC.value},
    )
    constraints: ConstraintsSection = ConstraintsSection()
    search: SearchSection = SearchSection()
    measure: MeasureSection = MeasureSection()
    trainer: TrainerSection = TrainerSection()
    launcher: LauncherSection = LauncherSection()
    tracking: TrackingSection = TrackingSection()
    ledger: LedgerSection = LedgerSection()
    notify: NotifySection = NotifySection()
    work_dir: str = Field(
        default="runs",
        min_length=1,
        max_length=4096,
        description="Folder in which each search gets its own folder; relative to the working directory.",
    )

    @model_validator(mode="after")
    def _trains_what_its_task_says(self) -> Self:
        if self.task == "pretrain":
            for name in ("adapters", "trainable"):
                if getattr(self, name) not in (None, ALL):
                    raise _contradiction(name, "given", "a pretraining trains all weights", "write task: finetune")
        if self.trainable == ADAPTERS and self.adapters is None:
            raise _contradiction("trainable", ADAPTERS, "the search has no adapters", "give adapters, or remove it")
        if self.trainable == ALL and self.adapters is not None:
            rule = "weights beside adapters are frozen"
            raise _contradiction("trainable", ALL, rule, "remove it, or remove adapters")
        self.shape()
        return self

    def shape(self) -> ModelShape:
        """The model with the part of it that trains."""
        adapters = None if self.adapters is None else self.adapters.value()
        named = tuple(self.trainable) if isinstance(self.trainable, list) else ()
        is_whole = adapters is None and not named
        trainable, is_finetuned = None if is_whole else named, self.task == "finetune"
        return replace(self.model.shape(), adapters=adapters, trainable=trainable, is_finetuned=is_finetuned)


def _contradiction(key: str, given: Any, rule: str, fix: str) -> InputError:
    return InputError.of("contradiction", f"is {given!s:.80}", key=key, value=str(given), rule=rule, fix=fix)
