"""Checks of a search as a whole: those that refuse it before anything is written, and that the doctor reports."""

from __future__ import annotations

import os

from orchestrator.config.spec import SearchSpec, with_locations
from orchestrator.diagnostics.preflight.trainer import require_checkout, require_software, require_trainer
from orchestrator.diagnostics.preflight.work_dir import require_directories
from orchestrator.launchers.local.launcher import local_slots
from orchestrator.planning.candidates import candidates_of, require_affordable, require_pilot_room
from search_spaces.errors import InputError
from search_spaces.search_space import SearchSpace


def validate_space(spec: SearchSpec) -> SearchSpace:
    """Run all checks that write and launch nothing, and return the search space. InputError with the location."""
    try:
        require_directories(spec)
        space = require_search(spec)
        require_software(spec, ((layout, spec.model) for layout in space.layouts))
    except InputError as error:
        raise with_locations(error, spec) from error
    return space


def require_search(spec: SearchSpec) -> SearchSpace:
    """The search space. InputError for what would refuse a new search, but for folders, the ranks' software and Slurm,
    which have areas of their own in the doctor's report."""
    spec.trainer.data.pinned(spec.model)  # the file may have been removed since the search was created
    space = candidates_of(spec)
    require_affordable(spec, space)
    require_pilot_room(spec, space)
    if spec.launcher.ranks_run_here:
        local_slots(spec.cluster, spec.search.parallel_trials, os.environ)
    require_trainer(spec)
    require_checkout(spec, space.layouts)
    return space
