"""SearchSpec: everything a search is, resolved and frozen; written down as search.json, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dashboards.schema import TrackingSection
from orchestrator.config.schema import NotifySection, SearchSection
from orchestrator.launchers.schema import LauncherSection
from search_spaces.errors import InputError, Problem, format_value
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.schema.sections import ConstraintsSection, SpaceSection
from search_spaces.schema.validation import Section, restore
from search_spaces.schema.yaml_document import SourceLocation
from trials.analysis.ranking import Objective, Ranking, objective_json, objectives_of, rank
from trials.ledger.schema import LedgerSection
from trials.schema.trainer_section import TrainerSection
from trials.trial import MeasureRules, Trial, require_schema

SEARCH_SCHEMA = "parlay.search/1"


@dataclass(frozen=True)
class SearchSpec:
    """A search with everything resolved: presets, tables and defaults that change later do not change it.

    `global_batch_size` counts sequences; only layouts of this global batch compete to be the best, by the first of
    the `objectives`. `space` holds every axis, defaults included; `candidates` the layouts of `space.candidates`,
    None where the axes say what may be tried. `baseline` is canonical. `work_dir` is absolute. `yaml_text` is the
    file as it was read, and `locations` says where each of its keys was given, for errors found later; a spec that was
    read back has neither.
    """

    name: str
    model: ModelShape
    cluster: Cluster
    global_batch_size: int
    baseline: Layout | None
    space: SpaceSection
    candidates: tuple[Layout, ...] | None
    objectives: tuple[Objective, ...]
    constraints: ConstraintsSection
    search: SearchSection
    measure: MeasureRules
    trainer: TrainerSection
    launcher: LauncherSection
    tracking: TrackingSection
    ledger: LedgerSection
    notify: NotifySection
    work_dir: Path
    yaml_text: str = field(default="", compare=False, repr=False)
    locations: Mapping[str, SourceLocation] = field(default_factory=dict, compare=False, repr=False)

    @property
    def objective(self) -> Objective:
        """By which the best is decided, and what samplers look for."""
        return self.objectives[0]

    @property
    def baseline_key(self) -> str | None:
        """The layout key of what runs today, where the file says so."""
        return None if self.baseline is None else self.baseline.key

    @property
    def num_node_counts(self) -> int:
        """How many different numbers of nodes the layouts of the space may have, at most."""
        if self.candidates is not None:
            return len({layout.num_nodes for layout in self.candidates})
        return len(self.space.given_axes()["num_nodes"])

    @property
    def memory_headroom(self) -> MemoryHeadroom | None:
        """The memory that the best layout leaves free, where some has to stay so."""
        floor_gib = self.constraints.min_free_memory_gib
        return MemoryHeadroom.of(self.cluster.accelerator, self.measure.memory_limit_gib, floor_gib)

    def ranking_of(self, trials: Sequence[Trial]) -> Ranking:
        """The measured layouts of these trials by the search's own objective, batch and constraints."""
        return rank(trials, self.objective, self.global_batch_size, self.memory_headroom, self.objectives[1:])

    def to_json(self) -> dict[str, Any]:
        """search.json."""
        sections = {name: _section_json(getattr(self, name)) for name in _SECTIONS}
        return {
            "schema": SEARCH_SCHEMA,
            "name": self.name,
            "model": self.model.to_json(),
            "cluster": self.cluster.to_json(),
            "global_batch_size": self.global_batch_size,
            "baseline": None if self.baseline is None else self.baseline.to_json(),
            "candidates": None if self.candidates is None else [layout.to_json() for layout in self.candidates],
            "objective": objective_json(self.objectives),
            "measure": asdict(self.measure),
            **sections,
            "work_dir": str(self.work_dir),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchSpec:
        """The inverse of `to_json`; InputError for another schema, a wrong value or a missing one.

        The search's record holds the same, and its folder.
        """
        if not isinstance(data, Mapping):
            raise _damaged("it is no JSON object")
        try:
            require_schema(data, SEARCH_SCHEMA)
        except ValueError as error:
            fix = "a search goes on with the Parlay that began it"
            raise InputError.of("schema", str(error), key="schema", value=data.get("schema"), fix=fix) from None
        try:
            return cls(**_restored_fields(data))
        except InputError:
            raise
        except KeyError as error:
            raise _damaged(f"{error.args[0]} is missing") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise _damaged(str(error)) from None


def with_locations(error: InputError, spec: SearchSpec) -> InputError:
    """The error with file and line of every key of its problems that the search file has."""
    return InputError(*(with_location(problem, spec.locations) for problem in error.problems))


def with_location(problem: Problem, locations: Mapping[str, SourceLocation]) -> Problem:
    """The problem with file and line of its key, or of the nearest one around it; as it is where it has a file."""
    key = problem.key or ""
    while key and key not in locations:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    if problem.file is not None or not key:
        return problem
    return replace(problem, **locations[key]._asdict())


_SECTIONS: Mapping[str, type[Section]] = {
    "space": SpaceSection,
    "constraints": ConstraintsSection,
    "search": SearchSection,
    "trainer": TrainerSection,
    "launcher": LauncherSection,
    "tracking": TrackingSection,
    "ledger": LedgerSection,
    "notify": NotifySection,
}
"""The sections a SearchSpec keeps as they are; the others are resolved."""


def _restored_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    candidates = data["candidates"]
    sections = {name: restore(kind, data[name]) for name, kind in _SECTIONS.items()}
    return {
        "name": _typed(data, "name", str),
        "model": ModelShape.from_json(data["model"]),
        "cluster": Cluster.from_json(data["cluster"]),
        "global_batch_size": _typed(data, "global_batch_size", int),
        "baseline": None if data["baseline"] is None else Layout.from_json(data["baseline"]),
        "candidates": None if candidates is None else tuple(Layout.from_json(layout) for layout in candidates),
        "objectives": objectives_of(data["objective"]),
        "measure": MeasureRules(**data["measure"]),
        "work_dir": Path(_typed(data, "work_dir", str)),
        **sections,
    }


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    if type(data[key]) is not kind:
        raise TypeError(f"{key} is {format_value(data[key])}")
    return data[key]


def _damaged(why: str) -> InputError:
    return InputError.of(
        "search_json",
        f"is no search as Parlay writes it down: {why}",
        fix="put it back from a copy, or begin a new search with the search.yaml beside it",
    )


def _section_json(section: Any) -> dict[str, Any]:
    return section.model_dump(mode="json", by_alias=True, exclude_none=True)
