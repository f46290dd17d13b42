"""Selftest: trains every kind of layout on the cluster in one job and compares each with a plain GPT."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.diagnostics.job import Program, ProgramFailed, run_on_cluster
from orchestrator.launchers.attempt_runner import AttemptRunner
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from trials.diagnostics.parity_cases import MOST_RANKS, NATIVE_ENGINES, compiled_cases, covering_cases, failing_cases
from trials.diagnostics.parity_models import SHAPES
from trials.diagnostics.selftest import Case, CaseResult, Results, write_cases
from trials.files.folders import SearchFolder, read_json, write_json
from trials.ranks.engine_packages import PACKAGED_ENGINES
from trials.trial import utc_text

_log = logging.getLogger(__name__)


RECORD_SCHEMA = "parlay.selftest_record/1"
START_S = 300.0
CASE_S = 20.0
"""Limit per case on average; a single case may take longer."""


class SelftestAnswer(Answer):
    """Printed by selftest; also selftest.json in its folder."""

    schema_: Literal["parlay.selftest/1"] = "parlay.selftest/1"
    passed: bool
    num_cases: int
    results: list[CaseResult]
    fingerprint: Mapping[str, Any]
    """Software and hardware that it ran on."""
    detail: str | None
    """Reason why not all cases were run."""

    @classmethod
    def of(cls, cases: Sequence[Case], found: Results, detail: str | None = None) -> SelftestAnswer:
        passed = detail is None and all(result.passed for result in found.results)
        results = list(found.results)
        return cls(passed=passed, num_cases=len(cases), results=results, fingerprint=found.fingerprint, detail=detail)

    @property
    def failed(self) -> list[CaseResult]:
        return [result for result in self.results if not result.passed]


class SelftestCase(AnswerPart):
    """A case that fits the cluster."""

    name: str
    ranks: int


class SelftestListAnswer(Answer):
    """Printed by selftest --list."""

    schema_: Literal["parlay.selftest_list/1"] = "parlay.selftest_list/1"
    cases: list[SelftestCase]


def selftest_cluster(cluster: Cluster) -> Cluster:
    """Return the part of the cluster to test: up to eight ranks, on at least two nodes if there are several."""
    ranks = min(MOST_RANKS, cluster.num_gpus)
    nodes = min(cluster.num_nodes, ranks, max(2, -(-ranks // cluster.gpus_per_node)))
    return Cluster(cluster.accelerator, ranks // nodes, nodes)


def cases_for(cluster: Cluster, names: Sequence[str] = (), engines: Sequence[str] = ()) -> list[Case]:
    """Return the cases that fit, or those with the given names: of torch and DeepSpeed, and of other engines
    where the search's `engines` name them. Raises InputError for an unknown name."""
    name, ranks = cluster.accelerator.name, cluster.num_gpus
    # On a CPU each compiled case takes minutes and needs a C++ compiler.
    packaged_engines = tuple(engine for engine in PACKAGED_ENGINES if engine in engines)
    packaged = [case for engine in packaged_engines for case in covering_cases(name, ranks, (engine,))]
    in_question = [] if name == "cpu" else compiled_cases(name, (*NATIVE_ENGINES, *packaged_engines))
    compiled = [case for case in in_question if case.layout.num_gpus <= ranks]
    every = [*covering_cases(name, ranks), *packaged, *compiled, *failing_cases(ranks)]
    unknown = set(names) - {case.name for case in every}
    if unknown:
        raise InputError.of(
            "case",
            f"no case is named {min(unknown)!r}",
            key="--case",
            value=min(unknown),
            rule=f"one of the {len(every)} cases for {cluster.num_gpus} ranks",
            fix="parlay selftest SEARCH.YAML --list shows them",
        )
    return [case for case in every if not names or case.name in names]


def selftest(
    runner: AttemptRunner,
    folder: SearchFolder,
    cluster: Cluster,
    cases: Sequence[Case],
    python: str,
    on_result: Callable[[CaseResult], None] = lambda result: None,
) -> SelftestAnswer:
    """Run the cases as one attempt. `folder` is new; its name is the search id of the attempt. `on_result` is called
    once for each finished case.

    Raises LaunchRefused, and KeyboardInterrupt after a requested stop, with the attempt cancelled.
    """
    reader = _ResultReader(len(cases), on_result)
    program = Program(
        cluster,
        SHAPES["gpt2"],
        {"kind": "selftest"},
        python,
        START_S + CASE_S * len(cases),
        reader.read_new,
        lambda place: write_cases(place, cases),
    )
    detail = None
    try:
        run_on_cluster(runner, folder, program, on_poll=reader.read_new)
    except ProgramFailed as failed:
        reader.read_new(failed.folder)
        detail = f"{len(reader.results.results)} of {len(cases)} cases were run: {failed}"
    return SelftestAnswer.of(cases, reader.results, None if reader.is_complete else detail)


def record_result(
    report: SelftestAnswer,
    launcher: str,
    cluster: Cluster,
    home: Path,
) -> None:
    """Write date and result of the selftest of this kind of machine to selftest.json in Parlay's home.

    A damaged file is reported and replaced. A file that cannot be read or written is reported.
    """
    path = home / "selftest.json"
    entry = {
        "at": utc_text(),
        "passed": report.passed,
        "num_cases": report.num_cases,
        "failed": [result.name for result in report.failed],
        "launcher": launcher,
        "num_nodes": cluster.num_nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "fingerprint": dict(report.fingerprint),
        "detail": report.detail,
    }
    try:
        known = _read_entries(path)
        write_json(path, {"schema": RECORD_SCHEMA, "selftests": {**known, cluster.accelerator.name: entry}})
    except OSError as error:
        _log.warning(f"{path} has no record of this selftest: {error}")


def _read_entries(path: Path) -> Mapping[str, Any]:
    """Last selftests by accelerator; empty if the file is damaged."""
    try:
        known = (read_json(path) or {}).get("selftests", {})
        if isinstance(known, dict):
            return known
        _log.warning(f"{path}: selftests is {type(known).__name__}, not an object: overwritten with this selftest only")
    except ValueError as damage:
        _log.warning(f"{damage}: overwritten with this selftest only")
    return {}


class _ResultReader:
    """Results so far; each is reported once."""

    def __init__(self, num_cases: int, on_result: Callable[[CaseResult], None]):
        self.results = Results()
        self._num_cases = num_cases
        self._on_result = on_result

    @property
    def is_complete(self) -> bool:
        return len(self.results.results) == self._num_cases

    def read_new(self, folder: Path) -> Results | None:
        """Report new results; return all of them once every case has one."""
        found = Results.read(folder)
        for result in found.results[len(self.results.results) :]:
            self._on_result(result)
        self.results = found
        return found if self.is_complete else None
