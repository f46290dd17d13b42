"""The launcher.slurm section of the search file: job options of the user's site."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue

from search_spaces.errors import InputError, Problem, format_value
from search_spaces.hardware.cluster import Cluster
from search_spaces.schema.declared_section import DeclaredSection, section_of
from search_spaces.schema.durations import Duration
from search_spaces.schema.sections import resolved_path, with_other_form
from search_spaces.schema.validation import folder_from_context, restore
from slurm.environment import InheritedOption
from slurm.option_checks import option_problems, requests_gpus
from slurm.request import Container, JobOptions

_REFUSED = {
    "time": "the time limit is derived from measure.time_limit and the trials' durations",
    "nodes": "the number of nodes is the layout's: cluster.num_nodes, or space.num_nodes",
    "requeue": "Slurm does not requeue jobs: Parlay retries trials itself",
    "array": "trials differ in size and time, and each job needs its own name to be found after a crash",
}


def _require_sharing(value: Any) -> Any:
    """InputError unless it is a boolean or a string; slurm/option_checks.py checks the string."""
    if isinstance(value, (bool, str)):
        return value
    raise InputError.of(
        "type",
        f"is {format_value(value)}",
        rule="true, false, user, mcs or topo",
        fix="true for whole nodes",
        value=value,
    )


Sharing = Annotated[
    bool | str,
    BeforeValidator(_require_sharing),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": ["user", "mcs", "topo"]}]}),
]
"""Exclusive nodes, or the users they may be shared with, or exclusive blocks."""


class _ContainerFile(DeclaredSection):
    """A container that may be given as the command before the ranks' own."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return with_other_form(handler(core_schema), {"type": "array", "items": {"type": "string", "minLength": 1}})

    @model_validator(mode="before")
    @classmethod
    def _from_command(cls, data: Any) -> Any:
        return {"command": data} if isinstance(data, list) else data

    @field_validator("image", check_fields=False)
    @classmethod
    def _resolve(cls, image: str | None, info: ValidationInfo) -> str | None:
        return None if image is None else resolved_image(folder_from_context(info), image)


def resolved_image(folder: Path, image: str) -> str:
    """Resolve an image's path relative to the file's folder; anything else is a name that the runtime knows."""
    is_path = image.startswith((".", "~")) or image.endswith(_IMAGE_FILES)
    return str(resolved_path(folder, image)) if is_path else image


_IMAGE_FILES = (".sif", ".sqsh", ".img")

NonEmptyText = Annotated[str, Field(min_length=1, max_length=4096)]


class _SlurmFile(DeclaredSection):
    site: NonEmptyText | None = Field(
        default=None,
        description="Site profile with defaults for this section: a name from docs/sites.md, or a TOML file's path.",
    )


if TYPE_CHECKING:
    SlurmFields = _SlurmFile
else:
    _CONTAINER = section_of(Container, _ContainerFile)
    SlurmFields = section_of(
        JobOptions,
        _SlurmFile,
        exclusive=Sharing,
        switch_wait_s=Duration,
        container=Annotated[_CONTAINER | None, BeforeValidator(lambda given: None if given == [] else given)],
    )


class SlurmSection(SlurmFields):
    __doc__ = SlurmFields.__doc__

    gpus_as: Literal["gpus_per_node", "gres"] = Field(
        default="gpus_per_node",
        description="Option that requests the GPUs where neither gpus_per_node nor gres is given.",
    )
    usable_cpus: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="CPUs of a node that jobs may use, as Slurm counts them: some sites reserve a few.",
    )
    poll_interval_s: Duration | None = Field(
        default=None,
        alias="poll_interval",
        description="Time between two queries of Slurm. Default: 30 s, and 1 s on a slurm-sandbox.",
    )
    pilot_nodes: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="slurm_pilot: nodes of the job whose steps are the trials. Default: cluster.num_nodes for each of"
        " search.parallel_trials.",
    )
    pilot_time_s: Duration | None = Field(
        default=None,
        alias="pilot_time",
        description="slurm_pilot: longest time to request at once. Default: 4 h; less where less is left to try.",
    )

    refused = _REFUSED

    @field_validator("setup_file")
    @classmethod
    def _resolve(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else str(resolved_path(folder_from_context(info), path))

    @field_validator("site")
    @classmethod
    def _resolve_site(cls, site: str | None, info: ValidationInfo) -> str | None:
        """Resolve a path relative to the file's folder; anything else names a profile that comes with Parlay."""
        is_path = site is not None and ("/" in site or site.endswith(".toml"))
        return str(resolved_path(folder_from_context(info), site)) if site is not None and is_path else site

    def value(self) -> JobOptions:
        """Return the options as slurm/ defines them. InputError for what cannot be in a script."""
        options: JobOptions = super().value()
        container = options.container
        if container is not None and container.runtime is None and not container.command:
            raise InputError.of(
                "missing_key",
                "required, but missing",
                rule="a container has a runtime and an image, or is a command as a list",
                fix="name pyxis, apptainer or shifter",
                key="container.runtime",
            )
        if found := option_problems(options):
            raise InputError(
                *(Problem("slurm_option", f"is {p.value!r}", p.rule, p.fix, p.key, p.value) for p in found)
            )
        return options

    job_options = value

    def nodes_per_pilot(self, cluster: Cluster, parallel_trials: int) -> int:
        """Nodes of each pilot: as given, or room for all parallel trials of the size of the search's cluster."""
        return self.pilot_nodes or cluster.num_nodes * parallel_trials

    def unset_options(
        self, inherited: Mapping[str, InheritedOption], given: Collection[str]
    ) -> dict[str, InheritedOption]:
        """Return those options from the environment that the file does not set.

        `given` are the keys in the file: what follows from a site's profile yields to the user's own shell.
        """
        asks_for_gpus = self.gpus_per_node is not None or requests_gpus(self.gres)
        return {
            name: option
            for name, option in inherited.items()
            if (getattr(self, name) in (None, False) or (self.site is not None and name not in given))
            and not (asks_for_gpus and _is_of_gpus(name, option.value))
        }

    def with_inherited(self, inherited: Mapping[str, InheritedOption]) -> SlurmSection:
        """Return the section with these options from the environment. InputError names a refused one's variable."""
        values = {name: _typed(name, option.value) for name, option in inherited.items()}
        try:
            return restore(SlurmSection, self.model_dump(mode="json", by_alias=True) | values)
        except InputError as error:
            raise InputError(*(_problem_at_variable(problem, inherited) for problem in error.problems)) from None


def _is_of_gpus(name: str, value: str) -> bool:
    return name == "gpus_per_node" or (name == "gres" and requests_gpus(value))


def _typed(name: str, value: str) -> Any:
    """Convert a variable's text to the section's type."""
    if name == "gpus_per_node" and value.isdigit():
        return int(value)
    if name == "exclusive" and value in ("", "exclusive"):
        return True
    return value


def _problem_at_variable(problem: Problem, inherited: Mapping[str, InheritedOption]) -> Problem:
    """Return the problem of an option from a variable, located at that variable instead of a file."""
    option = inherited.get(problem.key or "")
    if option is None:
        return problem
    variable, key = option.variable, f"launcher.slurm.{problem.key}"
    fix = f"correct or unset {variable}, or set {key} in the search file"
    return replace(problem, file=variable, key=key, fix=fix)
