"""search.yaml -> SearchSpec: read, validated and resolved."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.consistency import consistency_problems, needs_energy, routing_of
from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.config.schema.notify import notify_problems
from orchestrator.config.schema.search_file import SearchFile, SearchSection
from orchestrator.config.schema.slurm import resolved_image
from orchestrator.config.setting_problems import candidate_problems
from orchestrator.config.site import cpu_problems, in_segments, with_site
from orchestrator.config.spec import SearchSpec, with_location
from search_spaces.engines import engines_of
from search_spaces.errors import InputError, Problem
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.axes import complete_axes
from search_spaces.layouts.layout import SETTINGS, Layout
from search_spaces.layouts.workload import Workload
from search_spaces.model_shape import ModelShape
from search_spaces.plain_file import open_named, refusing_unreadable
from search_spaces.rules.check import mixed_engines_problem
from search_spaces.schema.presets import preset_search_path
from search_spaces.schema.sections import SpaceSection, resolved_path
from search_spaces.schema.validation import sections_of, validate
from search_spaces.schema.yaml_document import (
    MAX_BYTES,
    Document,
    Override,
    format_key_path,
    parse_document,
    with_overrides,
)
from trials.measure_rules import MeasureRules
from trials.schema.trainer_section import TrainerSection, resolved_python
from trials.trainers.registry import TRAINERS


def load_search_file(path: Path, overrides: Iterable[Override | str] = (), compares_speeds: bool = True) -> SearchSpec:
    """Load the search in this file, with each `key.key=value` of `overrides` applied; errors name its source.

    If there is no such file, `path` may be the name of a search that comes with Parlay. InputError carries every
    problem, with file, line, key, value, rule and fix. Where no speeds are compared, engines may be mixed on a device
    that is emulated for one of them.
    """
    found = path if os.path.lexists(path) else preset_search_path(str(path)) or path
    with refusing_unreadable(found), open_named(found) as stream:
        raw = stream.read(MAX_BYTES + 1)
    document = parse_document(raw, str(found), found.absolute().parent)
    return _resolve_spec(document, overrides, Path.cwd(), compares_speeds)


def load_search_text(text: str, folder: Path, overrides: Iterable[Override | str] = ()) -> SearchSpec:
    """Load the search in this text. Its relative paths, `work_dir` included, start in `folder`. InputError as above."""
    document = parse_document(text.encode("utf-8", "surrogatepass"), "search.yaml", folder)
    return _resolve_spec(document, overrides, folder)


GivenSearch = Path | str | Mapping[str, Any]
"""A search file's path, its YAML text (more than one line), or its content as a mapping."""


def load_search(given: GivenSearch, changes: Mapping[str, Any]) -> SearchSpec:
    """Load a search with these changes. Relative paths in text and mappings start in the working directory.

    InputError carries every problem, with key, value, rule and fix, and the line in a file.
    """
    overrides = [*overrides_of(changes)]
    if isinstance(given, Mapping):
        return load_search_text(_json(given, None), Path.cwd(), overrides)
    if isinstance(given, str) and "\n" in given:
        return load_search_text(given, Path.cwd(), overrides)
    return load_search_file(Path(given), overrides)


def overrides_of(changes: Mapping[str, Any]) -> Iterator[Override]:
    """Changes of a program: each key of a section's mapping separately, other values as they are.

    A mapping without keys changes nothing in a section; elsewhere it is a value to validate.
    """
    known = {name for name, _ in sections_of(SearchFile)}
    for section, value in changes.items():
        if isinstance(value, Mapping) and (value or section in known):
            for key, inner in value.items():
                yield Override(f"{section}.{key}={_json(inner, f'{section}.{key}')}", None)
        else:
            yield Override(f"{section}={_json(value, section)}", None)


def _json(value: Any, key: str | None) -> str:
    """The value as text that YAML reads."""
    try:
        return json.dumps(value, default=_path_text, indent=2)
    except (TypeError, ValueError) as error:
        rule = "a search file has mappings, lists, text, numbers, true, false and null"
        raise InputError.of("type", f"cannot be written as YAML: {error}", rule=rule, key=key) from None


def _path_text(value: Any) -> str:
    """A path as text; TypeError naming any other type."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise TypeError(f"it is of type {type(value).__name__}")


def json_schema() -> dict[str, Any]:
    """JSON schema of search.yaml (draft 2020-12), for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | SearchFile.model_json_schema()


def _resolve_spec(
    document: Document, overrides: Iterable[Override | str], here: Path, compares_speeds: bool = True
) -> SearchSpec:
    document = with_overrides(document, overrides)
    file = validate(SearchFile, document)
    cluster, space = file.cluster.cluster(), _complete_space(file)
    locations = {format_key_path(path): location for path, location in document.locations.items()}
    problems = [with_location(problem, locations) for problem in consistency_problems(file)]
    baseline = _baseline_in(file, document, space, problems)
    candidates = _candidates_in(file, document, problems)
    if compares_speeds:
        problems += [with_location(problem, locations) for problem in _mixed_engines(file, space, baseline, candidates)]
    _check_tables(file, document, cluster, problems)
    trainer, model = _trainer_with_data(file, document, problems)
    launcher = _launcher_with_site(file, document, problems)
    problems += [with_location(problem, locations) for problem in notify_problems(file.notify)]
    if launcher.uses_slurm:
        problems += [with_location(problem, locations) for problem in cpu_problems(launcher.slurm, cluster)]
        with _collect_problems(problems, document, "launcher", "slurm", "segment"):
            cluster = in_segments(launcher.slurm, cluster)
    with _collect_problems(problems, document, "work_dir"):
        work_dir = resolved_path(here, file.work_dir)
    if problems:
        raise InputError(*problems)
    return SearchSpec(
        name=file.name,
        model=model,
        cluster=cluster,
        global_batch_size=file.global_batch_size,
        baseline=baseline,
        space=space,
        candidates=candidates,
        objectives=file.objective,
        constraints=file.constraints,
        search=_search_section(file, document),
        measure=_measure_rules(file),
        trainer=trainer,
        launcher=launcher,
        tracking=file.tracking,
        ledger=file.ledger,
        notify=file.notify,
        work_dir=work_dir,
        yaml_text=document.text,
        locations=locations,
    )


def _search_section(file: SearchFile, document: Document) -> SearchSection:
    """The section of the file. An experiment tries each of its layouts with both stacks, and repeats all of them; its
    other stack is named in full."""
    given, both = file.search.against, 2 * file.search.against_layouts
    if given is None:
        return file.search
    if file.launcher.uses_slurm and file.launcher.slurm.container is not None:
        against = resolved_image(document.folder, given)
    else:
        against = resolved_python(document.folder, given)
    return file.search.model_copy(update={"against": against, "max_trials": both, "finalists": both})


def _measure_rules(file: SearchFile) -> MeasureRules:
    """The rules of the file and what follows from other sections. In an experiment every run is measured to its end."""
    rules = replace(file.measure.rules(), routing=routing_of(file), energy=needs_energy(file))
    return rules if file.search.against is None else replace(rules, early_stopping=False)


def _complete_space(file: SearchFile) -> SpaceSection:
    """The space with every axis, defaults included. The layouts of a table need no axes."""
    if file.space.candidates is not None:
        return file.space
    given = {"engine": (engines_of(file.trainer.kind)[-1],)} | file.space.given_axes()
    complete = complete_axes(given, file.cluster.cluster().num_nodes)
    return file.space.model_copy(update={name: complete[name] for name in complete if name != SETTINGS})


def _mixed_engines(
    file: SearchFile, space: SpaceSection, baseline: Layout | None, candidates: tuple[Layout, ...] | None
) -> Iterator[Problem]:
    """Problem with engines that the search would compare on a device that one of them is not written for."""
    tried = _tried_engines(file, space, candidates)
    compared = tried if baseline is None else tried | _known_engines({baseline.engine}, file, candidates)
    key, fix = "space.engine", "give it one value"
    if len(tried) == 1:
        key, fix = "baseline.engine", f"use {' '.join(tried)}, as the layouts that it is compared with"
    elif candidates is not None:
        key, fix = "space.candidates", "keep the rows of one engine"
    problem = mixed_engines_problem(compared, file.cluster.cluster().accelerator.name, fix, key)
    if problem is not None:
        yield problem


def _tried_engines(file: SearchFile, space: SpaceSection, candidates: tuple[Layout, ...] | None) -> set[str]:
    named = space.given_axes().get("engine", ()) if candidates is None else (layout.engine for layout in candidates)
    return _known_engines({*named}, file, candidates)


def _known_engines(engines: set[str], file: SearchFile, candidates: tuple[Layout, ...] | None) -> set[str]:
    """The engines without those that the trainer does not have, which are refused by themselves. Layouts of a table
    may name any."""
    return engines if candidates is not None else engines.intersection(engines_of(file.trainer.kind))


def _baseline_in(file: SearchFile, document: Document, space: SpaceSection, problems: list[Problem]) -> Layout | None:
    if file.baseline is not None:
        with _collect_problems(problems, document, "baseline"):
            workload = Workload(file.shape(), file.cluster.cluster(), file.global_batch_size)
            return file.baseline.layout(space.given_axes(), workload)
    return None


def _candidates_in(file: SearchFile, document: Document, problems: list[Problem]) -> tuple[Layout, ...] | None:
    if file.space.candidates is not None:
        with _collect_problems(problems, document, "space", "candidates"):
            layouts = _layouts_in(resolved_path(document.folder, file.space.candidates), file)
            if found := tuple(candidate_problems(layouts, file)):
                raise InputError(*found)
            return layouts
    return None


def _trainer_with_data(
    file: SearchFile, document: Document, problems: list[Problem]
) -> tuple[TrainerSection, ModelShape]:
    """The trainer, with number and checksum of its tokens, and the model as it trains on them with its options."""
    model = TRAINERS[file.trainer.kind].trained_model(file.shape(), file.trainer.arguments)
    with _collect_problems(problems, document, "trainer", "data", "path"):
        data = file.trainer.data.pinned(model)
        return file.trainer.model_copy(update={"data": data}), data.trained_model(model)
    return file.trainer, model


def _launcher_with_site(file: SearchFile, document: Document, problems: list[Problem]) -> LauncherSection:
    """The launcher, with the values of its site's profile."""
    with _collect_problems(problems, document, "launcher", "slurm", "site"):
        return file.launcher.model_copy(update={"slurm": with_site(file.launcher.slurm)})
    return file.launcher


def _check_tables(file: SearchFile, document: Document, cluster: Cluster, problems: list[Problem]) -> None:
    """Collect the problems of the tables that the launcher simulates and that the models learn from."""
    if file.launcher.table is not None and not _is_candidates(Path(file.launcher.table), document, file.space):
        with _collect_problems(problems, document, "launcher", "table"):
            _layouts_in(Path(file.launcher.table), file)
    if (table := file.search.warm_start_table) is not None:
        with _collect_problems(problems, document, "search", "warm_start"):
            _require_rows_of(table, cluster)


def _is_candidates(table: Path, document: Document, space: SpaceSection) -> bool:
    """True if this table is that of `space.candidates`, which is checked anyway."""
    return space.candidates is not None and table == resolved_path(document.folder, space.candidates)


@contextmanager
def _collect_problems(problems: list[Problem], document: Document, *path: str) -> Iterator[None]:
    """Add InputErrors raised inside to `problems`, at this key of the file."""
    try:
        yield
    except InputError as error:
        problems += error.at(key=".".join(path), **document.location(path)._asdict()).problems


def _layouts_in(table: Path, file: SearchFile) -> tuple[Layout, ...]:
    """Layouts of a measured table for this search; InputError without any."""
    from search_spaces.tables.benchmark_problem import problem_for
    from search_spaces.tables.measured_table import read_table

    observations = read_table(table)
    return problem_for(observations, file.shape(), file.cluster.cluster(), file.global_batch_size).layouts


def _require_rows_of(table: Path, cluster: Cluster) -> None:
    """Raise InputError for a table that is damaged, or that was measured on other machines."""
    from search_spaces.tables.benchmark_problem import measured_on
    from search_spaces.tables.measured_table import read_table

    measured_on(read_table(table), cluster)
