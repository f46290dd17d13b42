"""Selftest: trains every kind of layout on the cluster and compares each with a plain GPT."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.diagnostics.job import Program, ProgramFailed, run_on_cluster
from orchestrator.launchers.attempt_runner import AttemptRunner
from search_spaces.engines import MEGATRON_CORE
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from trials.diagnostics.parity_cases import MOST_RANKS, NATIVE_ENGINES, compiled_cases, covering_cases, failing_cases
from trials.diagnostics.parity_models import SHAPES
from trials.diagnostics.selftest import Case, CaseResult, ExpectedResult, Results, selftest_section
from trials.files.folders import SearchFolder, read_json, write_json
from trials.ranks.cuda_connections import connections
from trials.ranks.engine_packages import PACKAGED_ENGINES
from trials.trial import utc_text

_log = logging.getLogger(__name__)


RECORD_SCHEMA = "parlay.selftest_record/1"
START_S = 300.0
CASE_S = 20.0
"""Limit per case on average; a single case may take longer."""
MOST_FAILED = 3
"""Cases of a group that may end their ranks, before the rest of it is given up."""


class SelftestAnswer(Answer):
    """Printed by selftest; also selftest.json in its folder."""

    schema_: Literal["parlay.selftest/1"] = "parlay.selftest/1"
    passed: bool
    num_cases: int
    results: list[CaseResult]
    fingerprint: Mapping[str, Any]
    """Software and hardware that it ran on."""

    @classmethod
    def of(cls, cases: Sequence[Case], found: Results) -> SelftestAnswer:
        passed = all(result.passed for result in found.results)
        return cls(passed=passed, num_cases=len(cases), results=list(found.results), fingerprint=found.fingerprint)

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
    compiled = [] if name == "cpu" else compiled_cases(name, (*NATIVE_ENGINES, *packaged_engines))
    in_question = [*covering_cases(name, ranks), *packaged, *compiled, *failing_cases(ranks)]
    every = [case for case in in_question if cluster_for(case.layout.num_gpus, cluster) is not None]
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
    """Run the cases, each group of them as an attempt on as many ranks as they need, one after another. `folder` is
    new; its name is the search id of the attempts. `on_result` is called once for each finished case.

    Raises LaunchRefused, and KeyboardInterrupt after a requested stop, with the attempt cancelled.
    """
    run = _Run(runner, folder, python, on_result)
    for group in groups_of(cases, cluster.accelerator.name):
        part = cluster_for(group[0].layout.num_gpus, cluster)
        assert part is not None, "a case that fits"
        run.group(group, part)
    return SelftestAnswer.of(cases, run.found)


def groups_of(cases: Sequence[Case], accelerator: str) -> list[list[Case]]:
    """Cases that one process of each rank can train in a row: of as many ranks, one engine and the same settings of a
    process (`prepare_process`). One that must fail is alone."""
    groups: dict[Hashable, list[Case]] = {}
    for case in cases:
        layout = case.layout
        queues = connections(layout, accelerator) if layout.engine == MEGATRON_CORE else {}
        alone = None if case.expected is ExpectedResult.AGREES else case.name
        key = layout.num_gpus, layout.engine, layout.torch_compile, *queues.values(), alone
        groups.setdefault(key, []).append(case)
    return list(groups.values())


def cluster_for(num_ranks: int, cluster: Cluster) -> Cluster | None:
    """The fewest nodes of the cluster with this many ranks, as many on each; None where no number of nodes has them."""
    wholes = (n for n in range(1, cluster.num_nodes + 1) if num_ranks % n == 0)
    nodes = next((n for n in wholes if num_ranks // n <= cluster.gpus_per_node), None)
    return None if nodes is None else Cluster(cluster.accelerator, num_ranks // nodes, nodes)


class _Run:
    """Attempts of a selftest and what they found."""

    def __init__(
        self, runner: AttemptRunner, folder: SearchFolder, python: str, on_result: Callable[[CaseResult], None]
    ):
        self.found = Results()
        self._runner = runner
        self._folder = folder
        self._python = python
        self._on_result = on_result
        self._number = 0

    def group(self, cases: Sequence[Case], cluster: Cluster) -> None:
        """Run the cases of a group. After one that ended its ranks those behind it have a new attempt, but for a group
        of which several did."""
        left, num_failed = list(cases), 0
        while left and num_failed < MOST_FAILED:
            num_before, began = len(self.found.results), self._runner.launcher.now()
            failed = self._attempt(left, cluster)
            left = left[len(self.found.results) - num_before :]
            if left:
                num_failed += 1
                self._add(_ending(left.pop(0), failed, self._runner.launcher.now() - began))
        for case in left:
            words = f"not run: {num_failed} cases of engine {case.layout.engine} on as many ranks failed before it"
            self._add(CaseResult(case.name, case.layout.num_gpus, False, None, None, 0.0, words))

    def _attempt(self, cases: Sequence[Case], cluster: Cluster) -> ProgramFailed | None:
        """Run the cases until the first that ends its ranks; return how it ended."""
        self._number += 1
        known, limit_s = self.found, START_S + CASE_S * len(cases)

        def read_new(place: Path) -> Results | None:
            now = Results.read(place)
            for result in now.results[len(self.found.results) - len(known.results) :]:
                self._add(result)
            self.found = replace(self.found, fingerprint={**known.fingerprint, **now.fingerprint})
            return now if len(now.results) == len(cases) or cases[0].expected is not ExpectedResult.AGREES else None

        section = selftest_section(cases)
        program = Program(cluster, SHAPES["gpt2"], section, self._python, limit_s, read_new, self._number)
        try:
            run_on_cluster(self._runner, self._folder, program, on_poll=read_new)
        except ProgramFailed as failed:
            read_new(failed.folder)
            return failed
        return None

    def _add(self, result: CaseResult) -> None:
        self.found = replace(self.found, results=(*self.found.results, result))
        self._on_result(result)


def _ending(case: Case, failed: ProgramFailed | None, seconds: float) -> CaseResult:
    """Result of a case at which an attempt ended: one that must fail passes when it did for its reason."""
    message = None
    if case.expected is ExpectedResult.AGREES:
        message = str(failed)
    elif failed is None or failed.reason != case.expected.value:
        message = f"ended as {failed or 'measured'} instead of {case.expected}"
    return CaseResult(case.name, case.layout.num_gpus, message is None, None, None, seconds, message)


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
