"""Findings of the doctor: a sentence, a level, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Literal

from orchestrator.config.answer import Answer, AnswerPart
from search_spaces.errors import Problem


class Severity(str, Enum):
    """OK: as expected. NOTE: worth knowing. WARNING: may cost time or results. ERROR: a search would fail or measure
    wrong."""

    __str__ = str.__str__

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Area(str, Enum):
    """Areas of the report, in their order."""

    __str__ = str.__str__

    SEARCH = "search file"
    MACHINE = "this machine"
    SLURM = "Slurm"
    JOBS = "the search's jobs"
    FOLDERS = "work directory"
    RECORDS = "ledger and MLflow"
    RANKS = "ranks"
    JOB = "a job that ran"
    FABRIC = "fabric"


@dataclass(frozen=True)
class Finding:
    """`name` is a short stable identifier, `message` a sentence with the numbers; `fix` is set unless the level is
    OK."""

    name: str
    level: Severity
    message: str
    fix: str | None = None

    def __post_init__(self) -> None:
        if (self.fix is None) != (self.level is Severity.OK):
            raise ValueError(f"{self.name}: every finding but ok says what to do")


class FindingAnswer(AnswerPart):
    """One finding of the doctor."""

    area: Area
    name: str
    """Short stable identifier."""
    level: Severity
    message: str
    """One sentence with the numbers."""
    fix: str | None
    """Null when ok."""


class DoctorAnswer(Answer):
    """Printed by doctor. Exit code 8 where there are errors."""

    schema_: Literal["parlay.doctor/1"] = "parlay.doctor/1"
    findings: list[FindingAnswer]
    errors: int
    warnings: int


@dataclass(frozen=True)
class DoctorReport:
    """All findings, by area."""

    areas: tuple[tuple[Area, tuple[Finding, ...]], ...]

    @property
    def findings(self) -> Iterator[Finding]:
        return (finding for _, findings in self.areas for finding in findings)

    def count(self, level: Severity) -> int:
        return sum(finding.level is level for finding in self.findings)

    @property
    def answer(self) -> DoctorAnswer:
        return DoctorAnswer(
            findings=[FindingAnswer(area=area, **asdict(one)) for area, findings in self.areas for one in findings],
            errors=self.count(Severity.ERROR),
            warnings=self.count(Severity.WARNING),
        )


def ok(name: str, message: str) -> Finding:
    return Finding(name, Severity.OK, message)


def note(name: str, message: str, fix: str) -> Finding:
    return Finding(name, Severity.NOTE, message, fix)


def warning(name: str, message: str, fix: str) -> Finding:
    return Finding(name, Severity.WARNING, message, fix)


def error(name: str, message: str, fix: str) -> Finding:
    return Finding(name, Severity.ERROR, message, fix)


def problem_findings(problems: Iterable[Problem]) -> Iterator[Finding]:
    """Problems of user input as errors, each named by its code."""
    for problem in problems:
        where = ":".join(str(part) for part in (problem.file, problem.line) if part is not None)
        subject = ": ".join(part for part in (where, problem.key) if part)
        message = f"{subject}: {problem.message}" if subject else problem.message
        yield error(problem.code, message, problem.fix or problem.rule or "change the value")
