"""SearchSpec: a search with everything resolved, immutable; saved as search.json and loaded from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from dashboards.schema import TrackingSection
from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.config.schema.notify import NotifySection
from orchestrator.config.schema.search_file import SearchSection
from search_spaces.decoding import UNWRITTEN, Bound, JsonObject, WrittenAs, decode, decode_value, require_schema
from search_spaces.errors import InputError, Problem
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.links import Links
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.schema.sections import ConstraintsSection, SpaceSection
from search_spaces.schema.yaml_document import SourceLocation
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, Ranking, rank
from trials.analysis.training_rate import Checkpoints, TrainingRate, training_rate
from trials.measure_rules import MeasureRules
from trials.schema.ledger_section import LedgerSection
from trials.schema.trainer_section import TrainerSection
from trials.trial import Trial

if TYPE_CHECKING:
    from trials.ledger.events import FabricCheck


def _path(given: Any) -> Path:
    return Path(decode_value(str, given, "the path"))


@dataclass(frozen=True)
class SearchSpec(JsonObject):
    """A search with everything resolved: later changes of presets, tables and defaults do not affect it.

    `global_batch_size` counts sequences; only layouts of this global batch compete, by the first of the `objectives`.
    `space` has every axis, defaults included; `candidates` are the layouts of `space.candidates`, None where the axes
    define the space. `baseline` is canonical, `work_dir` absolute. `yaml_text` is the file as read, and `locations` the
    position of each key in it, for later errors; a spec loaded from JSON has neither.
    """

    SCHEMA = "parlay.search_spec/1"

    name: str
    model: ModelShape
    cluster: Cluster
    global_batch_size: int
    baseline: Layout | None
    space: SpaceSection
    candidates: tuple[Layout, ...] | None
    objectives: Annotated[tuple[Objective, ...], Bound("one or more", bool)]
    constraints: ConstraintsSection
    search: SearchSection
    measure: MeasureRules
    trainer: TrainerSection
    launcher: LauncherSection
    tracking: TrackingSection
    ledger: LedgerSection
    notify: NotifySection
    work_dir: Annotated[Path, WrittenAs(str, _path)]
    yaml_text: str = field(default="", compare=False, repr=False, metadata=UNWRITTEN)
    locations: Mapping[str, SourceLocation] = field(default_factory=dict, compare=False, repr=False, metadata=UNWRITTEN)

    @property
    def objective(self) -> Objective:
        """The objective that decides the best layout and that samplers maximize."""
        return self.objectives[0]

    @property
    def baseline_key(self) -> str | None:
        """Layout key of the baseline, None without one."""
        return None if self.baseline is None else self.baseline.key

    @property
    def num_node_counts(self) -> int:
        """Upper limit of the different node counts in the space."""
        if self.candidates is not None:
            return len({layout.num_nodes for layout in self.candidates})
        return len(self.space.given_axes()["num_nodes"])

    @property
    def nodes_per_pilot(self) -> int:
        """Nodes of each pilot, if the launcher uses pilots."""
        return self.launcher.slurm.nodes_per_pilot(self.cluster, self.search.parallel_trials)

    @property
    def memory_headroom(self) -> MemoryHeadroom | None:
        """Memory that the best layout has to leave free; None without such a constraint."""
        min_free_gib = self.constraints.min_free_memory_gib
        return MemoryHeadroom.of(self.cluster.accelerator, self.measure.memory_limit_gib, min_free_gib)

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Checkpoints of the training that the search is for; None where they are not stated."""
        section = self.trainer.checkpoint
        return None if section is None else section.checkpoints()

    def with_measured_links(self, check: FabricCheck | None) -> SearchSpec:
        """The spec with the links that the search's fabric check measured; unchanged without any."""
        if check is None or check.links is None:
            return self
        return replace(self, cluster=replace(self.cluster, given_links=decode(Links, check.links)))

    def training_rate(self, measured: RankedLayout) -> TrainingRate:
        """Tokens a day of the training with a measured layout."""
        return training_rate(measured.measured.tokens_per_sec, self.model, measured.layout, self.checkpoints)

    def ranking_of(self, trials: Sequence[Trial]) -> Ranking:
        """Rank the measured layouts of these trials by the search's objective, batch and constraints."""
        return rank(trials, self.objective, self.global_batch_size, self.memory_headroom, self.objectives[1:])

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; InputError for another schema, or for a wrong or missing value.

        The search's record holds the same data and, in addition, its folder.
        """
        try:
            require_schema(data, cls.SCHEMA)
        except ValueError as error:
            fix = "continue a search with the version of Parlay that started it"
            key, given = ("schema", data.get("schema")) if isinstance(data, Mapping) else (None, None)
            raise InputError.of("schema", str(error), key=key, value=given, fix=fix) from None
        try:
            known = {"schema", *(field.name for field in fields(cls))}
            return decode(cls, {name: value for name, value in data.items() if name in known})
        except InputError:
            raise
        except ValueError as error:
            raise InputError.of(
                "search_json",
                f"is not a valid search record: {error}",
                fix="restore it from a backup, or start a new search with the search.yaml next to it",
            ) from None


def with_locations(error: InputError, spec: SearchSpec) -> InputError:
    """The error with file and line of every key that the search file has."""
    return InputError(*(with_location(problem, spec.locations) for problem in error.problems))


def with_location(problem: Problem, locations: Mapping[str, SourceLocation]) -> Problem:
    """The problem with file and line of its key, or of the nearest enclosing one; unchanged if it has a file."""
    key = problem.key or ""
    while key and key not in locations:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    if problem.file is not None or not key:
        return problem
    return replace(problem, **locations[key]._asdict())
