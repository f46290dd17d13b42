"""search.yaml -> SearchSpec: everything a search is, checked, resolved and frozen; written down as search.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboards.schema import TrackingSection
from orchestrator.launchers.schema import LauncherSection
from orchestrator.launchers.slurm_pilot_plan import pilot_nodes
from orchestrator.launchers.slurm_site import cpu_problems
from orchestrator.search_notify import notify_problems
from orchestrator.search_schema import NotifySection, SearchFile, SearchSection
from search_spaces.axes import complete_axes
from search_spaces.cluster import Cluster
from search_spaces.errors import InputError, Problem, shown
from search_spaces.layout import Layout
from search_spaces.memory_floor import MemoryFloor, rank_memory_gib
from search_spaces.model_shape import ModelShape
from search_spaces.schema import ConstraintsSection, SpaceSection, resolved_path
from search_spaces.trainer_rules import engines_of
from search_spaces.validation import Section, restored, validated
from search_spaces.workload import Workload
from search_spaces.yaml_source import Document, Place, dotted, parse_document, read_document, with_overrides
from trials.external.measuring import log_format_of
from trials.ledger.schema import LedgerSection
from trials.ranking import Objective, Ranking, objective_json, objectives_of, rank
from trials.trainer_schema import TrainerSection
from trials.trainers.command_template import placeholders_in
from trials.trial import MeasureRules, Trial, require_schema

if TYPE_CHECKING:
    from search_spaces.space import SearchSpace

SEARCH_SCHEMA = "parlay.search/1"


@dataclass(frozen=True)
class SearchSpec:
    """A search with everything resolved: presets, tables and defaults that change later do not change it.

    `global_batch_size` counts sequences; only layouts of this global batch compete to be the best, by the first of
    the `objectives`. `space` holds every axis, defaults included; `candidates` the layouts of `space.candidates`,
    None where the axes say what may be tried. `baseline` is canonical. `work_dir` is absolute. `yaml_text` is the
    file as it was read, and `places` says where each of its keys was given, for errors found later; a spec that was
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
    places: Mapping[str, Place] = field(default_factory=dict, compare=False, repr=False)

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
    def memory_floor(self) -> MemoryFloor | None:
        """The memory that the best layout leaves free, where some has to stay so."""
        floor_gib = self.constraints.min_free_memory_gib
        return MemoryFloor.of(self.cluster.accelerator, self.measure.memory_limit_gib, floor_gib)

    def ranking_of(self, trials: Sequence[Trial]) -> Ranking:
        """The measured layouts of these trials by the search's own objective, batch and constraints."""
        return rank(trials, self.objective, self.global_batch_size, self.memory_floor, self.objectives[1:])

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
        """The inverse of `to_json`; InputError for a newer schema, a wrong value or a missing one.

        The search's record holds the same, and its folder.
        """
        if not isinstance(data, Mapping):
            raise _damaged("it is no JSON object")
        try:
            require_schema(data, SEARCH_SCHEMA)
        except ValueError as error:
            raise InputError.of("schema", str(error), key="schema", value=data.get("schema")) from None
        try:
            return cls(**_restored_fields(data))
        except InputError:
            raise
        except KeyError as error:
            raise _damaged(f"{error.args[0]} is missing") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise _damaged(str(error)) from None


def load_search_file(path: Path, overrides: Iterable[str] = ()) -> SearchSpec:
    """The search in this file, with each `key.key=value` of `overrides` on top.

    InputError carries every problem found, with file, line, key, value, rule and fix.
    """
    document = with_overrides(read_document(path), overrides)
    return _resolved(validated(SearchFile, document), document, Path.cwd())


def load_search_text(text: str, folder: Path, overrides: Iterable[str] = ()) -> SearchSpec:
    """The search in this text; relative paths in it, and its `work_dir`, start in `folder`. InputError as above."""
    document = with_overrides(parse_document(text.encode("utf-8", "surrogatepass"), "search.yaml", folder), overrides)
    return _resolved(validated(SearchFile, document), document, folder)


def candidates_of(spec: SearchSpec) -> SearchSpace:
    """Every layout the search may try, and every rejected one; InputError where none is left, or the baseline is bad.

    The same for the same spec: candidates, their order, and what is drawn of a space too large to list. A table's
    layouts are asked for nothing where it answers itself, and for every rule where they are to be run.
    """
    # numpy is not needed to read a file, and reading one should be instant.
    from search_spaces.space import closed_space, runnable_space, search_space

    axes = spec.space.given_axes()
    workload = Workload(
        spec.model,
        spec.cluster,
        spec.global_batch_size,
        batch_is_free="grad_accum_steps" in axes,
        allow_tensor_parallel_across_nodes=spec.space.allow_tensor_parallel_across_nodes,
        max_nodes=spec.constraints.max_nodes,
        engines=engines_of(spec.trainer.kind),
    )
    seed = spec.search.seed if spec.search.sample_space else None
    try:
        if spec.candidates is not None:
            listed = closed_space if spec.launcher.kind == "recorded" else runnable_space
            return listed(workload, spec.candidates, spec.baseline)
        return search_space(workload, axes, spec.baseline, sample_seed=seed)
    except InputError as error:
        raise located(error, spec) from None


def require_affordable(spec: SearchSpec, space: SearchSpace) -> None:
    """InputError where `search.budget_node_hours` does not pay for one attempt at the smallest layout."""
    from orchestrator.search.attempts import longest_attempt_s

    budget = spec.search.budget_node_hours
    num_nodes = min((layout.num_nodes for layout in space.feasible), default=1)
    longest_s = longest_attempt_s(spec.measure, spec.launcher, num_nodes, nodes_of_pilots(spec))
    cost = num_nodes * longest_s / 3600
    if budget is None or cost <= budget:
        return
    error = InputError.of(
        "budget",
        f"{budget:g} node-hours do not pay for one trial: num_nodes {num_nodes} x {longest_s:g} s"
        f" = {cost:.3g} node-hours",
        rule="what a trial may take at most is reserved for it before it begins",
        fix="raise search.budget_node_hours, or lower measure.time_limit",
        key="search.budget_node_hours",
        value=budget,
    )
    raise located(error, spec)


def nodes_of_pilots(spec: SearchSpec) -> int:
    """The nodes of each pilot, where the launcher has pilots."""
    return pilot_nodes(spec.launcher.slurm.pilot_nodes, spec.cluster, spec.search.parallel_trials)


def require_pilot_room(spec: SearchSpec, space: SearchSpace) -> None:
    """InputError where a layout needs more nodes than a pilot has."""
    num_nodes = max((layout.num_nodes for layout in space.feasible), default=1)
    if spec.launcher.kind != "slurm_pilot" or nodes_of_pilots(spec) >= num_nodes:
        return
    error = InputError.of(
        "pilot_nodes",
        f"is {nodes_of_pilots(spec)}, and a layout needs num_nodes {num_nodes}",
        rule="each trial runs on nodes of one pilot",
        fix=f"{num_nodes} at least, or leave it out",
        key="launcher.slurm.pilot_nodes",
        value=nodes_of_pilots(spec),
    )
    raise located(error, spec)


def located(error: InputError, spec: SearchSpec) -> InputError:
    """The error with file and line of every key of its problems that the search file has."""
    return InputError(*(_placed(problem, spec.places) for problem in error.problems))


def json_schema() -> dict[str, Any]:
    """The JSON schema of search.yaml (draft 2020-12), for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | SearchFile.model_json_schema()


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


def _resolved(file: SearchFile, document: Document, here: Path) -> SearchSpec:
    cluster = file.cluster.cluster()
    space = file.space
    if space.candidates is None:
        engine = engines_of(file.trainer.kind)[-1]
        given = {"engine": (engine,)} | space.given_axes()
        space = space.model_copy(update=complete_axes(given, cluster.num_nodes))
    places = {dotted(path): place for path, place in document.places.items()}
    problems = [_placed(problem, places) for problem in (*_trainer_problems(file), *_memory_problems(file, cluster))]
    baseline = candidates = None
    if file.baseline is not None:
        with _collected(problems, document, "baseline"):
            workload = Workload(file.model.shape(), cluster, file.global_batch_size)
            baseline = file.baseline.layout(space.given_axes(), workload)
    if space.candidates is not None:
        with _collected(problems, document, "space", "candidates"):
            candidates = _layouts_in(resolved_path(document.folder, space.candidates), file)
    _check_tables(file, document, cluster, problems)
    trainer = file.trainer
    with _collected(problems, document, "trainer", "data", "path"):
        trainer = trainer.model_copy(update={"data": trainer.data.pinned(file.model.shape())})
    launcher = file.launcher
    with _collected(problems, document, "launcher", "slurm", "site"):
        launcher = launcher.with_site()
    problems += [_placed(problem, places) for problem in notify_problems(file.notify)]
    if launcher.kind.startswith("slurm"):
        problems += [_placed(problem, places) for problem in cpu_problems(launcher.slurm, cluster)]
    with _collected(problems, document, "work_dir"):
        work_dir = resolved_path(here, file.work_dir)
    if problems:
        raise InputError(*problems)
    return SearchSpec(
        name=file.name,
        model=file.model.shape(),
        cluster=cluster,
        global_batch_size=file.global_batch_size,
        baseline=baseline,
        space=space,
        candidates=candidates,
        objectives=file.objective,
        constraints=file.constraints,
        search=file.search,
        measure=file.measure.rules(),
        trainer=trainer,
        launcher=launcher,
        tracking=file.tracking,
        ledger=file.ledger,
        notify=file.notify,
        work_dir=work_dir,
        yaml_text=document.text,
        places=places,
    )


def _check_tables(file: SearchFile, document: Document, cluster: Cluster, problems: list[Problem]) -> None:
    """What is wrong with the tables that the launcher plays from and that the models learn from."""
    if file.launcher.table is not None and not _is_candidates(Path(file.launcher.table), document, file.space):
        with _collected(problems, document, "launcher", "table"):
            _layouts_in(Path(file.launcher.table), file)
    if (table := file.search.earlier_table) is not None:
        with _collected(problems, document, "search", "earlier_trials"):
            _require_rows_of(table, cluster)


def _trainer_problems(file: SearchFile) -> Iterator[Problem]:
    """Where other sections ask of the trainer what it has not."""
    of_its_log = chain(_untold_memory(file), _missing_log_rank(file))
    return chain(_foreign_engines(file), _unsaid_axes(file), _own_trainers_rules(file), of_its_log)


def _memory_problems(file: SearchFile, cluster: Cluster) -> Iterator[Problem]:
    """Where more memory is to stay free than there is, or of an amount that nobody knows."""
    wanted_gib, accelerator = file.constraints.min_free_memory_gib, cluster.accelerator
    capacity_gib = rank_memory_gib(accelerator, file.measure.memory_limit_gib)
    if wanted_gib is None or (capacity_gib is not None and wanted_gib < capacity_gib):
        return
    if capacity_gib is None:
        numbers = f"is {wanted_gib:g}, and nobody knows how much memory a rank on {accelerator.name} has"
        is_ours = file.trainer.kind == "parlay"
        fix = "set measure.memory_limit_gib" if is_ours else "remove it: only Parlay's own trainer limits its memory"
    else:
        numbers = f"is {wanted_gib:g}, and a rank's allocations may take {capacity_gib:.4g} GiB"
        fix = f"less than {capacity_gib:.4g}"
    yield Problem(
        "bounds",
        numbers,
        rule="what stays free is a part of what a rank may allocate: the accelerator's memory less what its context"
        " takes, and measure.memory_limit_gib at most",
        fix=fix,
        key="constraints.min_free_memory_gib",
        value=wanted_gib,
    )


def _foreign_engines(file: SearchFile) -> Iterator[Problem]:
    engines = engines_of(file.trainer.kind)
    foreign = [engine for engine in file.space.given_axes().get("engine", ()) if engine not in engines]
    if foreign:
        yield Problem(
            "engine",
            f"lists {foreign[0]} for trainer.kind {file.trainer.kind}",
            rule=f"trainer.kind {file.trainer.kind} has the engine {' or '.join(reversed(engines))}",
            fix="remove the key, or change trainer.kind",
            key="space.engine",
            value=foreign[0],
        )


def _unsaid_axes(file: SearchFile) -> Iterator[Problem]:
    """Axes that vary while the command line is the same whatever their value."""
    if file.trainer.kind != "command":
        return
    said = placeholders_in(file.trainer.command_template)
    for name, values in file.space.given_axes().items():
        if len(values) > 1 and name not in said and name != "num_nodes":
            yield Problem(
                "template",
                f"has no {{{name}}}, and space.{name} has {len(values)} values",
                rule="a command is told every value that is searched",
                fix=f"write {{{name}}} or {{{name}=value:TEXT}} into it, or give one value",
                key="trainer.template",
            )


def _own_trainers_rules(file: SearchFile) -> Iterator[Problem]:
    for key, rule in _OF_OUR_TRAINER.items():
        value = getattr(file.measure, key)
        if file.trainer.kind != "parlay" and value != type(file.measure).model_fields[key].default:
            yield Problem(
                "contradiction",
                f"has no effect with trainer.kind {file.trainer.kind}",
                rule=rule,
                fix="remove it",
                key=f"measure.{key}",
                value=value,
            )


_OF_OUR_TRAINER = {
    "memory_limit_gib": "only Parlay's own trainer limits its memory",
    "profile": "only Parlay's own trainer is profiled",
}
"""What the measure section may ask of Parlay's own trainer alone."""


def _untold_memory(file: SearchFile) -> Iterator[Problem]:
    """Where memory has to stay free, and no trial could say how much it took."""
    wanted_gib = file.constraints.min_free_memory_gib
    if wanted_gib is None or file.trainer.kind == "parlay":
        return
    log_format = log_format_of(file.trainer.for_trials())
    if "memory_gib" not in (*log_format.findings, *log_format.elsewhere):
        yield Problem(
            "contradiction",
            "nothing that is read of the trainer's log tells of memory: every layout would count as too full",
            rule="where memory has to stay free, a layout whose peak nobody knows is never the best",
            fix="add memory_gib to trainer.patterns, or remove it",
            key="constraints.min_free_memory_gib",
            value=wanted_gib,
        )


def _missing_log_rank(file: SearchFile) -> Iterator[Problem]:
    rank, cluster = file.trainer.log_rank, file.cluster.cluster()
    ranks = min(file.space.given_axes().get("num_nodes", (cluster.num_nodes,))) * cluster.gpus_per_node
    if isinstance(rank, int) and rank >= ranks:
        yield Problem(
            "bounds",
            f"is {rank}, the smallest trial has {ranks} ranks",
            rule="every trial has the rank whose log is read",
            fix="use last",
            key="trainer.log_rank",
            value=rank,
        )


def _is_candidates(table: Path, document: Document, space: SpaceSection) -> bool:
    """Whether this table is the one of `space.candidates`, which is checked anyhow."""
    return space.candidates is not None and table == resolved_path(document.folder, space.candidates)


def _placed(problem: Problem, places: Mapping[str, Place]) -> Problem:
    """The problem with file and line of its key, or of the nearest one around it; as it is where it has a file."""
    key = problem.key or ""
    while key and key not in places:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    if problem.file is not None or not key:
        return problem
    return replace(problem, **places[key]._asdict())


def _restored_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    candidates = data["candidates"]
    data = {"notify": {}} | dict(data)  # searches of older versions have none
    sections = {name: restored(kind, data[name]) for name, kind in _SECTIONS.items()}
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
        raise TypeError(f"{key} is {shown(data[key])}")
    return data[key]


def _damaged(why: str) -> InputError:
    return InputError.of(
        "search_json",
        f"is no search as Parlay writes it down: {why}",
        fix="put it back from a copy, or begin a new search with the search.yaml beside it",
    )


@contextmanager
def _collected(problems: list[Problem], document: Document, *path: str) -> Iterator[None]:
    """Adds what goes wrong inside to `problems`, at this key of the file, instead of raising it."""
    try:
        yield
    except InputError as error:
        problems += error.at(key=".".join(path), **document.place(path)._asdict()).problems


def _layouts_in(table: Path, file: SearchFile) -> tuple[Layout, ...]:
    """The layouts a measured table has for this search; InputError where it has none."""
    from search_spaces.measured import read_table
    from search_spaces.measured_problem import problem_for

    observations = read_table(table).require_whole().observations
    return problem_for(observations, file.model.shape(), file.cluster.cluster(), file.global_batch_size).layouts


def _require_rows_of(table: Path, cluster: Cluster) -> None:
    """InputError for a table that cannot be read whole, or that was measured on other machines."""
    from search_spaces.measured import read_table
    from search_spaces.measured_problem import measured_on

    measured_on(read_table(table).require_whole().observations, cluster)


def _section_json(section: Any) -> dict[str, Any]:
    return section.model_dump(mode="json", by_alias=True, exclude_none=True)
