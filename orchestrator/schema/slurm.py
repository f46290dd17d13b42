"""The launcher.slurm section of the search file: job options of the user's site."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from orchestrator.schema.slurm_start import ContainerSection, LaunchSection, NonEmptyText
from search_spaces.errors import InputError, Problem, format_value
from search_spaces.schema.durations import Duration
from search_spaces.schema.sections import resolved_path
from search_spaces.schema.validation import Section, folder_from_context, restore
from slurm.environment import InheritedOption
from slurm.option_checks import option_problems, requests_gpus
from slurm.request import JobOptions, Placement

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


class SlurmSection(Section):
    """Options of each trial's job. Everything is optional; see `sbatch --help` of your site."""

    site: NonEmptyText | None = Field(
        default=None,
        description="Site profile with defaults for this section: a name from docs/sites.md, or a TOML file's path.",
    )
    account: NonEmptyText | None = Field(default=None, description="Account (project) that pays.")
    partition: NonEmptyText | None = Field(default=None, description="Partition, or several with commas.")
    qos: NonEmptyText | None = Field(default=None, description="Quality of service.")
    reservation: NonEmptyText | None = Field(default=None, description="Reservation to run in.")
    constraint: NonEmptyText | None = Field(default=None, description="Features the nodes must have.")
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="GPUs requested on each node. Default: cluster.gpus_per_node; none on CPU or with gres.",
    )
    gpus_as: Literal["gpus_per_node", "gres"] = Field(
        default="gpus_per_node",
        description="Option that requests the GPUs where neither gpus_per_node nor gres is given.",
    )
    gres: NonEmptyText | None = Field(default=None, description="Generic resources, for example gpu:4.")
    cpus_per_task: int | None = Field(default=None, ge=1, le=4096, description="CPU cores of each rank.")
    threads_per_core: int | None = Field(
        default=None, ge=1, le=8, description="Hardware threads used per core, 1 for no hyper-threads."
    )
    usable_cpus: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="CPUs of a node that jobs may use, as Slurm counts them: some sites reserve a few.",
    )
    mem: NonEmptyText | None = Field(
        default=None,
        description="Memory of each node, 0 for all of it. slurm_pilot: with that of fork servers added.",
    )
    exclusive: Sharing = Field(
        default=False,
        description="Whole nodes, for steadier measurements; user: shared with your own jobs only; topo: whole blocks"
        " of topology/block.",
    )
    segment: int | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Nodes of a job that lie in one block of topology/block, or less where that does not divide the"
        " job's nodes; 0: anywhere. The cluster's last link domain is then as large. Default: that domain's nodes.",
    )
    dependency: NonEmptyText | None = Field(
        default=None,
        description="Jobs that the search's first jobs wait for, as in sbatch --dependency: afterok:12345. Later ones"
        " do not.",
    )
    repeat_placement: Literal["any", "one_switch", "one_block", "contiguous"] = Field(
        default="any",
        description="Nodes of the finalists' repeats, of pilots and of replays. one_switch: below one leaf switch"
        " (--switches=1); one_block: in one block of topology/block (--segment); contiguous: next to each other.",
    )
    switch_wait_s: Duration | None = Field(
        default=None,
        alias="switch_wait",
        description="Longest wait for nodes below one switch, then any start. Default: the site's, often 5 minutes.",
    )
    exclude: list[NonEmptyText] = Field(default=[], description="Nodes to avoid.")
    nodelist: list[NonEmptyText] = Field(default=[], description="Nodes to run on.")
    network: NonEmptyText | None = Field(default=None, description="Network options of the site (Frontier).")
    licenses: NonEmptyText | None = Field(default=None, description="Licenses; file systems on some sites.")
    comment: NonEmptyText | None = Field(
        default=None, description="Comment, used by some sites for accounting or routing."
    )
    signal: NonEmptyText | None = Field(
        default=None, description="Signal before the time limit, as in sbatch --signal."
    )
    modules: list[NonEmptyText] = Field(default=[], description="Modules loaded before the ranks start.")
    env: dict[str, str] = Field(default={}, description="Environment variables of the ranks.")
    setup_file: NonEmptyText | None = Field(
        default=None,
        description="Shell file that is sourced after the modules and before the ranks; each trial keeps a copy.",
    )
    container: Annotated[ContainerSection | None, BeforeValidator(lambda given: None if given == [] else given)] = None
    launch: LaunchSection = LaunchSection()
    directives: list[NonEmptyText] = Field(default=[], description="More #SBATCH options, each as --key=value.")
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

    @model_validator(mode="after")
    def _has_a_whole_container(self) -> Self:
        container = self.container
        if container is None or container.runtime is not None or container.command:
            return self
        raise InputError.of(
            "missing_key",
            "required, but missing",
            rule="a container has a runtime and an image, or is a command as a list",
            fix="name pyxis, apptainer or shifter",
            key="container.runtime",
        )

    @model_validator(mode="after")
    def _is_safe_in_a_script(self) -> Self:
        found = option_problems(self.job_options())
        if found:
            raise InputError(
                *(
                    Problem("slurm_option", f"is {p.value!r}", rule=p.rule, fix=p.fix, key=p.key, value=p.value)
                    for p in found
                )
            )
        return self

    def job_options(self) -> JobOptions:
        """Return the options as slurm/ defines them."""
        names = JobOptions.__dataclass_fields__.keys() - {"container", "launch"}
        values: dict[str, Any] = {name: _frozen(getattr(self, name)) for name in names}
        container = None if self.container is None else self.container.container()
        values["repeat_placement"] = Placement(self.repeat_placement)
        return JobOptions(**values, container=container, launch=self.launch.launch())

    def unset_options(
        self, inherited: Mapping[str, InheritedOption], given: Container[str]
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


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
