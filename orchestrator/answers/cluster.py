"""Answers about a cluster: doctor, selftest, calibrate, prepare, slurm-sandbox."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from orchestrator.diagnostics.doctor.finding import Area, Level


class FindingAnswer(TypedDict):
    """One finding of the doctor."""

    area: Area
    name: str
    """Short stable identifier."""
    level: Level
    message: str
    """One sentence with the numbers."""
    fix: str | None
    """Null when ok."""


class DoctorAnswer(TypedDict):
    """Printed by doctor. Exit code 8 where there are errors."""

    schema: Literal["parlay.doctor/1"]
    findings: list[FindingAnswer]
    errors: int
    warnings: int


class SelftestAnswer(TypedDict):
    """Printed by selftest; also selftest.json in its folder."""

    schema: Literal["parlay.selftest/1"]
    passed: bool
    num_cases: int
    results: list[dict[str, Any]]
    """`CaseResult` objects."""
    fingerprint: dict[str, Any]
    """A `Fingerprint`."""
    detail: str | None
    """Reason why not all cases were run."""


class SelftestCase(TypedDict):
    """A case that fits the cluster."""

    name: str
    ranks: int


class SelftestListAnswer(TypedDict):
    """Printed by selftest --list."""

    schema: Literal["parlay.selftest_list/1"]
    cases: list[SelftestCase]


class CalibrateAnswer(TypedDict):
    """Printed by calibrate."""

    schema: Literal["parlay.calibrate/1"]
    file: str
    """The cluster file."""
    folder: str
    cluster: dict[str, Any]
    """Content of the cluster file."""
    measurements: dict[str, Any]
    """`Measurements`; groups also have `bus_gb_per_s`, pairs `gb_per_s`."""


class PrepareAnswer(TypedDict):
    """Printed by prepare."""

    schema: Literal["parlay.prepare/1"]
    out: str
    num_documents: int
    num_skipped: int
    num_tokens: int
    vocab_size: int
    checksum: str


class CloudPartition(TypedDict):
    """A partition of nodes that do not exist, of --like."""

    partition: str
    nodes: int
    gpus_per_node: int
    cpus_per_node: int


class SandboxAnswer(TypedDict):
    """Printed by slurm-sandbox start and stop."""

    schema: Literal["parlay.slurm_sandbox/1"]
    folder: str
    slurm_conf: str
    nodes: int
    cpus_per_node: int
    gpus_per_node: int
    accounting: bool
    cloud: list[CloudPartition]
    running: bool
