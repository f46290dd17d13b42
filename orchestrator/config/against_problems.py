"""Problems with an experiment of two software stacks, `search.against`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.schema.search_file import SearchFile
from search_spaces.errors import Problem
from slurm.request import Runtime


def against_problems(file: SearchFile) -> Iterator[Problem]:
    """Problems of the key, where a launcher cannot start the other stack or side by side trials would disturb it; and
    of a number of layouts without it."""
    if (given := file.search.against) is None:
        yield from _without_effect(file)
        return
    launcher = file.launcher
    container = launcher.slurm.container if launcher.uses_slurm else None
    if launcher.kind == "simulated":
        found, rule, fix = "with launcher.kind simulated", "a table of measurements starts no software", "remove it"
    elif container is not None and (launcher.kind != "slurm"):
        found, rule = f"{given} with trials that share a job", "the image of a job is that of all its steps"
        fix = "use launcher.kind slurm"
    elif container is not None and container.runtime not in (Runtime.PYXIS, Runtime.APPTAINER, Runtime.SHIFTER):
        found, rule = f"{given} with a container's command", "an image replaces launcher.slurm.container.image"
        fix = "write the container with a runtime and an image"
    elif file.search.parallel_trials > 1:
        found, rule = "with parallel trials", "the stacks are measured in turns, so that both meet the same machine"
        fix = "set search.parallel_trials to 1"
    else:
        return
    yield Problem("contradiction", f"is given {found}", rule=rule, fix=fix, key="search.against", value=given)


def _without_effect(file: SearchFile) -> Iterator[Problem]:
    key = "against_layouts"
    if key in file.search.model_fields_set:
        rule = "it is the number of layouts that two software stacks measure"
        fix, value = "add search.against (--against), or remove it", file.search.against_layouts
        yield Problem("contradiction", "has no effect", rule=rule, fix=fix, key=f"search.{key}", value=value)
