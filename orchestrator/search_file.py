"""search.yaml -> SearchSpec: read, checked and resolved; and what may be tried of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.launchers.slurm_pilot_plan import pilot_nodes
from orchestrator.launchers.slurm_site import cpu_problems
from orchestrator.search_contradictions import contradictions
from orchestrator.search_notify import notify_problems
from orchestrator.search_schema import SearchFile
from orchestrator.search_spec import SearchSpec, located, placed
from search_spaces.axes import complete_axes
from search_spaces.cluster import Cluster
from search_spaces.errors import InputError, Problem
from search_spaces.layout import Layout
from search_spaces.schema import SpaceSection, resolved_path
from search_spaces.trainer_rules import engines_of
from search_spaces.validation import validated
from search_spaces.workload import Workload
from search_spaces.yaml_source import Document, dotted, parse_document, read_document, with_overrides
from trials.trainers.command_template import require_values

if TYPE_CHECKING:
    from search_spaces.space import SearchSpace


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
    """Every layout the search may try, and every rejected one; InputError where none is left, the baseline is bad, or a
    command's template has a placeholder without a value.

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
            space = listed(workload, spec.candidates, spec.baseline)
        else:
            space = search_space(workload, axes, spec.baseline, sample_seed=seed)
        if spec.trainer.kind == "command" and spec.launcher.kind != "recorded":
            launched = [*space.feasible, *([] if space.baseline is None else [space.baseline])]
            require_values(spec.trainer.command_template, launched)
        return space
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


def json_schema() -> dict[str, Any]:
    """The JSON schema of search.yaml (draft 2020-12), for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | SearchFile.model_json_schema()


def _resolved(file: SearchFile, document: Document, here: Path) -> SearchSpec:
    cluster, space = file.cluster.cluster(), _whole_space(file)
    places = {dotted(path): place for path, place in document.places.items()}
    problems = [placed(problem, places) for problem in contradictions(file)]
    baseline = _baseline_in(file, document, space, problems)
    candidates = _candidates_in(file, document, problems)
    _check_tables(file, document, cluster, problems)
    trainer, launcher = file.trainer, file.launcher
    with _collected(problems, document, "trainer", "data", "path"):
        trainer = trainer.model_copy(update={"data": trainer.data.pinned(file.model.shape())})
    with _collected(problems, document, "launcher", "slurm", "site"):
        launcher = launcher.with_site()
    problems += [placed(problem, places) for problem in notify_problems(file.notify)]
    if launcher.uses_slurm:
        problems += [placed(problem, places) for problem in cpu_problems(launcher.slurm, cluster)]
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


def _whole_space(file: SearchFile) -> SpaceSection:
    """Every axis with its values, those that the file leaves out included; a table's layouts need none."""
    if file.space.candidates is not None:
        return file.space
    given = {"engine": (engines_of(file.trainer.kind)[-1],)} | file.space.given_axes()
    return file.space.model_copy(update=complete_axes(given, file.cluster.cluster().num_nodes))


def _baseline_in(file: SearchFile, document: Document, space: SpaceSection, problems: list[Problem]) -> Layout | None:
    if file.baseline is not None:
        with _collected(problems, document, "baseline"):
            workload = Workload(file.model.shape(), file.cluster.cluster(), file.global_batch_size)
            return file.baseline.layout(space.given_axes(), workload)
    return None


def _candidates_in(file: SearchFile, document: Document, problems: list[Problem]) -> tuple[Layout, ...] | None:
    if file.space.candidates is not None:
        with _collected(problems, document, "space", "candidates"):
            return _layouts_in(resolved_path(document.folder, file.space.candidates), file)
    return None


def _check_tables(file: SearchFile, document: Document, cluster: Cluster, problems: list[Problem]) -> None:
    """What is wrong with the tables that the launcher plays from and that the models learn from."""
    if file.launcher.table is not None and not _is_candidates(Path(file.launcher.table), document, file.space):
        with _collected(problems, document, "launcher", "table"):
            _layouts_in(Path(file.launcher.table), file)
    if (table := file.search.earlier_table) is not None:
        with _collected(problems, document, "search", "earlier_trials"):
            _require_rows_of(table, cluster)


def _is_candidates(table: Path, document: Document, space: SpaceSection) -> bool:
    """Whether this table is the one of `space.candidates`, which is checked anyhow."""
    return space.candidates is not None and table == resolved_path(document.folder, space.candidates)


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
