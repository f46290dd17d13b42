"""The search file as a whole: its own keys, the search section, and every room's section put together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from dashboards.schema import TrackingSection
from orchestrator.launchers.schema import LauncherSection
from search_spaces.errors import InputError
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.durations import Duration
from search_spaces.schema.sections import BaselineSection, ConstraintsSection, ModelSection, SpaceSection, resolved_path
from search_spaces.schema.validation import Section, folder_from_context
from trials.analysis.ranking import Objective
from trials.ledger.schema import LedgerSection
from trials.schema.sections import MeasureSection
from trials.schema.trainer_section import TrainerSection

FROM_LEDGER, FROM_NOTHING = "ledger", "none"
"""What `search.warm_start` says instead of a table's path."""
_NAME = "^[a-z0-9][a-z0-9-]{0,40}$"


def _require_name(name: str) -> str:
    """InputError for a name that could not begin a search's id, which is a folder's name too."""
    if re.fullmatch(_NAME, name) is None:
        raise InputError.of(
            "pattern",
            f"is {name!r}",
            rule="1 to 41 of a-z, 0-9 and -, of which the first is no -",
            fix="for example gpt2-on-8-gpus",
            value=name,
        )
    return name


def _objectives(given: Any) -> Any:
    """One objective, or a list of different ones; each is checked by the field."""
    if not isinstance(given, list):
        return (given,)
    if not given or len(set(map(repr, given))) < len(given):
        raise InputError.of(
            "repeat" if given else "missing_key",
            "names one twice" if given else "is an empty list",
            rule="one objective, or a list of different ones, of which the first decides",
            fix="give each once" if given else f"for example [{', '.join(o.value for o in Objective)}]",
            value=given,
        )
    return tuple(given)


_OBJECTIVE = {"enum": [objective.value for objective in Objective]}
_ONE_TO_THREE = {"minItems": 1, "maxItems": len(Objective), "uniqueItems": True}


class SearchSection(Section):
    """How long and how widely to search."""

    sampler: Literal["guided", "deephyper", "deephyper_filtered", "cost_model", "random", "grid"] = Field(
        default="guided",
        description="Who proposes the next layout: DeepHyper's Bayesian search guided by models of memory and time,"
        " plain, or behind the memory filter; the models' own order; chance; or one by one. Guided, the search ends"
        " once no remaining layout is likely to be faster.",
    )
    sample_space: bool = Field(
        default=False, description="Allow more than 1000000 combinations, of which 100000 are drawn at random."
    )
    max_trials: int = Field(
        default=30, ge=1, le=1_000_000, description="Layouts to try at most; retries and repeats are not counted."
    )
    parallel_trials: int = Field(default=1, ge=1, le=10_000, description="Trials in flight at the same time.")
    budget_node_hours: float | None = Field(
        default=None,
        gt=0,
        le=10**9,
        description="Node-hours all attempts together may use; a driver's own job (--as-job) is not among them."
        " Default: no limit.",
    )
    max_wall_time_s: Duration | None = Field(
        default=None,
        alias="max_wall_time",
        description="Time after which the search ends; trials that still run then are cancelled. Default: no limit.",
    )
    finalists: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="How many of the best layouts are measured again at the end, with the baseline and whatever else"
        " answers several goals; 0: none.",
    )
    finalist_repeats: int = Field(default=2, ge=1, le=100, description="How often each of them is measured again.")
    idle_limit_s: Duration | None = Field(
        default=None,
        alias="idle_limit",
        description="Time without any trial starting, running or ending, as in a full queue, after which the search"
        " ends. Default: no limit.",
    )
    seed: int = Field(default=1234, ge=0, le=2**32 - 1, description="Where all chance of the search comes from.")
    warm_start: str = Field(
        default=FROM_LEDGER,
        min_length=1,
        max_length=4096,
        description="What else the models of memory and time learn from. ledger: trials of earlier searches on such a"
        " machine, as they are when the search is made. none: nothing. Else a measured table (CSV).",
    )

    @field_validator("warm_start")
    @classmethod
    def _resolve(cls, given: str, info: ValidationInfo) -> str:
        return given if given in (FROM_LEDGER, FROM_NOTHING) else str(resolved_path(folder_from_context(info), given))

    @property
    def earlier_table(self) -> Path | None:
        """The measured table of earlier trials, where the file names one."""
        return None if self.warm_start in (FROM_LEDGER, FROM_NOTHING) else Path(self.warm_start)


class NotifySection(Section):
    """Who is told when the search has ended, once. Both get what `parlay status --json` prints."""

    command: list[Annotated[str, Field(min_length=1, max_length=4096)]] = Field(
        default=[],
        max_length=100,
        description="Program and arguments, started without a shell; the search as JSON is its standard input. It may"
        " take 30 s.",
    )
    webhook: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A file that only you can read (mode 0600) with the http or https address that gets the search as"
        " JSON by POST: an address may hold a token, so it stands in no search file.",
    )

    @field_validator("command")
    @classmethod
    def _resolve_program(cls, given: list[str], info: ValidationInfo) -> list[str]:
        """A program that is named by its path is looked for from the search file's folder."""
        if not given or not ("/" in given[0] or given[0].startswith("~")):
            return given
        return [str(resolved_path(folder_from_context(info), given[0])), *given[1:]]

    @field_validator("webhook")
    @classmethod
    def _resolve_webhook(cls, given: str | None, info: ValidationInfo) -> str | None:
        if given is None:
            return None
        if "://" in given:
            raise InputError.of(
                "secret",
                "is an address, and an address may hold a token",
                rule="secrets do not belong in a configuration file or on a command line",
                fix="write the address into a file that only you can read (mode 0600), and name that file here",
            )
        return str(resolved_path(folder_from_context(info), given))


class SearchFile(Section):
    """A search for the fastest layout: what is trained, on what, and what may be tried.

    Sections are described by their own docstrings.
    """

    schema_version: Literal["parlay.search/1"] = Field(
        default="parlay.search/1", alias="schema", description="Which version of this format the file is written in."
    )
    name: Annotated[str, AfterValidator(_require_name)] = Field(
        json_schema_extra={"pattern": _NAME},
        description="Begins the search's id: a-z, 0-9 and -, at most 41 characters.",
    )
    model: ModelSection
    cluster: ClusterSection
    global_batch_size: int = Field(
        ge=1,
        le=10**9,
        description="Sequences per optimizer step. Fixed: accumulation follows from it and from the layout.",
    )
    baseline: BaselineSection | None = None
    space: SpaceSection
    objective: Annotated[
        tuple[Annotated[Objective, Field(strict=False)], ...],
        BeforeValidator(_objectives),
        WithJsonSchema({"anyOf": [_OBJECTIVE, {"type": "array", "items": _OBJECTIVE, **_ONE_TO_THREE}]}),
    ] = Field(
        default=(Objective.TOKENS_PER_SEC,),
        description="What is optimised; node_hours_per_billion_tokens is minimised, the others are maximised. Of"
        " several the first decides which layout is the best, and the answer has every layout that no other one beats"
        " in all of them; so it has with one, where layouts on several numbers of nodes were measured.",
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
        description="Folder in which each search gets its own; relative to where parlay is started.",
    )
