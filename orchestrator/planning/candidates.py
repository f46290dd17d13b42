"""Candidate layouts of a search, and checks of its budget and pilots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.config.spec import SearchSpec, with_locations
from search_spaces.errors import InputError
from search_spaces.layouts.layout import SETTINGS
from search_spaces.layouts.settings import Settings, settings_of
from search_spaces.layouts.workload import Workload
from trials.trainers.command.trainer import require_distinct, require_values
from trials.trainers.registry import TRAINERS, invocation
from trials.trial import TrialKind, TrialSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from search_spaces.layouts.layout import Layout
    from search_spaces.layouts.table import LayoutTable
    from search_spaces.search_space import SearchSpace
    from trials.schema.trainer_section import TrainerSection
    from trials.trainers.base import Invocation


def candidates_of(spec: SearchSpec) -> SearchSpace:
    """The candidates and the rejected layouts of a search.

    InputError if no candidate is left, if the baseline is invalid, or if placeholders have no value or do not tell the
    trainer all that differs between layouts. Deterministic: candidates, their order and the sample of a space too large
    to list. The layouts of a table are not checked if it is only replayed, and against every rule if they are to run.
    """
    # Imported here, because reading a search file should not import numpy.
    from search_spaces.search_space import closed_space, runnable_space, search_space

    axes = spec.space.given_axes()
    workload = Workload(
        spec.model,
        spec.cluster,
        spec.global_batch_size,
        batch_is_free="grad_accum_steps" in axes,
        allow_tensor_parallel_across_nodes=spec.space.allow_tensor_parallel_across_nodes,
        max_nodes=spec.constraints.max_nodes,
    )
    engines = TRAINERS[spec.trainer.kind].rules
    seed = spec.search.seed if spec.search.sample_space else None
    try:
        if spec.candidates is None:
            space = search_space(workload, axes, spec.baseline, engines=engines, sample_seed=seed)
        elif spec.launcher.kind == "simulated":
            space = closed_space(workload, spec.candidates, spec.baseline)
        else:
            space = runnable_space(workload, spec.candidates, spec.baseline, engines=engines)
        if spec.launcher.kind != "simulated":
            _require_told(spec.trainer, space.layouts)
            _require_options_told(spec, space.layouts)
        return space
    except InputError as error:
        raise with_locations(error, spec) from None


def _require_told(trainer: TrainerSection, layouts: Sequence[Layout]) -> None:
    """InputError unless the texts with placeholders tell the trainer each of these layouts."""
    texts = trainer.texts_with_placeholders
    for key, text in texts.items():
        require_values(text, layouts, key)
    key = "trainer.template" if trainer.is_command_line else "trainer.arguments"
    require_distinct(texts, layouts, TRAINERS[trainer.kind].placeholder_axes, key)


def _require_options_told(spec: SearchSpec, layouts: LayoutTable) -> None:
    """InputError for an option that each trial sets to its own value, whatever the search's."""
    for name in sorted({name for text in layouts.values(SETTINGS) for name in settings_of(text).options}):
        values = {text: Settings(options={name: text}).text for text in ("a", "b")}
        tried = [_started(spec, replace(layouts[0], settings=text)) for text in values.values()]
        if tried[0] is not None and tried[0] == tried[1]:
            raise InputError.of(
                "contradiction",
                "is set for each trial",
                rule="an option of space.options is one that no trial sets itself",
                fix="remove it",
                key=f"space.options.{name}",
                value=name,
            )


def _started(spec: SearchSpec, layout: Layout) -> Invocation | None:
    """How the ranks of a layout are started; None where that depends on a script which is not on this machine."""
    section, shape = spec.trainer.for_trials(), (layout.global_batch_size, layout.num_gpus, spec.cluster.gpus_per_node)
    trial = TrialSpec(
        *("plan", "t0001", "a1", "0" * 32, TrialKind.SEARCH, layout, spec.model, *shape),
        accelerator=spec.cluster.accelerator.name,
        measure=spec.measure,
        trainer=section,
    )
    try:
        return invocation(trial, "python", ".")
    except (InputError, OSError):
        return None


def valid_candidates(spec: SearchSpec) -> Sequence[Layout]:
    """The candidates of a search; none where its space is invalid, which `candidates_of` tells."""
    try:
        return candidates_of(spec).layouts
    except InputError:
        return ()


def require_affordable(spec: SearchSpec, space: SearchSpace) -> None:
    """Raise InputError if `search.budget_node_hours` does not pay for one attempt of the smallest layout."""
    from orchestrator.search.node_hours import reservation_node_hours

    budget = spec.search.budget_node_hours
    num_nodes = min(space.layouts.values("num_nodes"), default=1)
    cost = reservation_node_hours(spec.measure, spec.launcher, num_nodes, spec.nodes_per_pilot)
    if budget is None or cost <= budget:
        return
    has_pilots = spec.launcher.has_pilots
    held = f"pilot_nodes {spec.nodes_per_pilot}" if has_pilots else f"num_nodes {num_nodes}"
    longest_s = cost * 3600 / (spec.nodes_per_pilot if has_pilots else num_nodes)
    error = InputError.of(
        "budget",
        f"{budget:g} node-hours are less than one trial may cost: {held} x {longest_s:g} s = {cost:.3g} node-hours",
        rule="the maximum cost of a trial, or of the pilot for it, is reserved before it starts",
        fix="raise search.budget_node_hours, or lower measure.time_limit",
        key="search.budget_node_hours",
        value=budget,
    )
    raise with_locations(error, spec)


def require_pilot_room(spec: SearchSpec, space: SearchSpace) -> None:
    """Raise InputError if a layout needs more nodes than a pilot has."""
    num_nodes = max(space.layouts.values("num_nodes"), default=1)
    if spec.launcher.kind != "slurm_pilot" or spec.nodes_per_pilot >= num_nodes:
        return
    error = InputError.of(
        "pilot_nodes",
        f"is {spec.nodes_per_pilot}, but a layout needs num_nodes {num_nodes}",
        rule="each trial runs on nodes of one pilot",
        fix=f"at least {num_nodes}, or leave it out",
        key="launcher.slurm.pilot_nodes",
        value=spec.nodes_per_pilot,
    )
    raise with_locations(error, spec)
