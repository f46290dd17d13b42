"""Selftest: whether a cluster trains every kind of layout as a plain GPT does, in one job of a search's launcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.code_snapshot import snapshot_code
from orchestrator.launchers.base import Launcher, LaunchPostponed, LaunchRequest
from search_spaces.cluster import Cluster
from search_spaces.errors import InputError
from search_spaces.layout import Layout
from trials.classify import Ending, Life
from trials.folder import SearchFolder, read_json, write_json
from trials.parity_cases import MOST_RANKS, SHAPES, compiled_cases, covering_cases, failing_cases
from trials.selftest import Case, CaseResult, Results, write_cases
from trials.trial import MeasureRules, Rendezvous, TrialKind, TrialSpec, utc_text

SELFTEST_SCHEMA = "parlay.selftest/1"
RECORD_SCHEMA = "parlay.selftest_record/1"
START_S = 300.0
CASE_S = 20.0
"""What a case takes at most on average; a single one may take longer."""
POLL_INTERVAL_S = 0.5
RESULTS_GRACE_S = 90.0
"""As for an outcome: NFS may show what another machine wrote a minute late."""


@dataclass(frozen=True)
class SelftestReport:
    """What a selftest found. `detail` says why not all cases were run, where they were not."""

    cases: tuple[Case, ...]
    found: Results
    detail: str | None = None

    @property
    def passed(self) -> bool:
        return self.detail is None and all(result.passed for result in self.found.results)

    @property
    def failed(self) -> list[CaseResult]:
        return [result for result in self.found.results if not result.passed]

    def to_json(self) -> dict[str, Any]:
        """The contract's object for `parlay selftest --json`."""
        return {
            "schema": SELFTEST_SCHEMA,
            "passed": self.passed,
            "num_cases": len(self.cases),
            "results": [result.to_json() for result in self.found.results],
            "fingerprint": dict(self.found.fingerprint),
            "detail": self.detail,
        }


@dataclass(frozen=True)
class SelftestWatcher:
    """Who is told of each result as it comes; `is_told_to_stop` is asked meanwhile."""

    result: Callable[[CaseResult], None] = lambda result: None
    note: Callable[[str], None] = lambda text: None
    is_told_to_stop: Callable[[], bool] = lambda: False


def world_of(cluster: Cluster) -> Cluster:
    """The part of the cluster a selftest takes: up to eight ranks, on two nodes or more where there are several."""
    ranks = min(MOST_RANKS, cluster.num_gpus)
    nodes = min(cluster.num_nodes, ranks, max(2, -(-ranks // cluster.gpus_per_node)))
    return Cluster(cluster.accelerator, ranks // nodes, nodes)


def cases_for(world: Cluster, names: Sequence[str] = ()) -> list[Case]:
    """The cases that fit, or those of these names. InputError for a name that is none of them."""
    name, ranks = world.accelerator.name, world.num_gpus
    # On a CPU each compiled case takes minutes, and a C++ compiler.
    compiled = [] if name == "cpu" else [c for c in compiled_cases(name) if c.layout.num_gpus <= ranks]
    every = [*covering_cases(name, ranks), *compiled, *failing_cases(ranks)]
    unknown = set(names) - {case.name for case in every}
    if unknown:
        raise InputError.of(
            "case",
            f"no case is named {min(unknown)!r}",
            key="--case",
            value=min(unknown),
            rule=f"one of the {len(every)} cases for {world.num_gpus} ranks",
            fix="parlay selftest SEARCH.YAML --list shows them",
        )
    return [case for case in every if not names or case.name in names]


def selftest(
    launcher: Launcher,
    folder: SearchFolder,
    world: Cluster,
    cases: Sequence[Case],
    python: str,
    watcher: SelftestWatcher = SelftestWatcher(),
) -> SelftestReport:
    """Run these cases as one attempt. `folder` is new; its name is the id the attempt runs under.

    Raises LaunchRefused as the launcher does, and KeyboardInterrupt once the watcher says that it is to stop, the
    attempt cancelled.
    """
    folder.path.mkdir(parents=True, mode=0o700)
    snapshot_code(folder.code)
    request = _request(folder, world, cases, python)
    request.folder.path.mkdir(parents=True, mode=0o700)
    write_json(request.folder.spec, request.spec.to_json())
    write_cases(request.folder.path, cases)
    seen = _Seen(request.folder.path, watcher)
    ending = _run(launcher, request, watcher, seen)
    found = _last_results(launcher, seen, 0 if ending.failed else len(cases))
    detail = None if len(found.results) == len(cases) else _why_unfinished(ending, found, len(cases))
    return SelftestReport(tuple(cases), found, detail)


def record(report: SelftestReport, launcher: str, world: Cluster, home: Path) -> None:
    """Note in selftest.json of Parlay's home when this kind of machine was tested last, and with what result."""
    path = home / "selftest.json"
    known = (read_json(path) or {}).get("selftests", {})
    entry = {
        "at": utc_text(),
        "passed": report.passed,
        "num_cases": len(report.cases),
        "failed": [result.name for result in report.failed],
        "launcher": launcher,
        "num_nodes": world.num_nodes,
        "gpus_per_node": world.gpus_per_node,
        "fingerprint": dict(report.found.fingerprint),
        "detail": report.detail,
    }
    write_json(path, {"schema": RECORD_SCHEMA, "selftests": {**known, world.accelerator.name: entry}})


def _request(folder: SearchFolder, world: Cluster, cases: Sequence[Case], python: str) -> LaunchRequest:
    time_limit_s = START_S + CASE_S * len(cases)
    layout = Layout(num_nodes=world.num_nodes, data_parallel=world.num_gpus)
    spec = TrialSpec(
        search_id=folder.search_id,
        trial="t0001",
        attempt="a1",
        nonce="0" * 32,
        kind=TrialKind.SEARCH,
        layout=layout,
        model=SHAPES["gpt2"],
        global_batch_size=layout.global_batch_size,
        num_gpus=world.num_gpus,
        gpus_per_node=world.gpus_per_node,
        accelerator=world.accelerator.name,
        measure=MeasureRules(time_limit_s=time_limit_s),
        trainer={"kind": "selftest"},
        rendezvous=Rendezvous("file" if world.num_nodes == 1 else "tcp"),
    )
    return LaunchRequest(spec, folder.attempt("t0001", "a1"), python, str(folder.code), time_limit_s)


class _Seen:
    """The results so far, each told once."""

    def __init__(self, folder: Path, watcher: SelftestWatcher):
        self.results = Results()
        self._folder = folder
        self._watcher = watcher

    def look(self) -> None:
        found = Results.read(self._folder)
        for result in found.results[len(self.results.results) :]:
            self._watcher.result(result)
        self.results = found


def _run(launcher: Launcher, request: LaunchRequest, watcher: SelftestWatcher, seen: _Seen) -> Ending:
    """Launch the attempt and wait for its end."""
    key = request.spec.attempt_key
    try:
        while not _is_launched(launcher, request, watcher):
            _wait(launcher, watcher)
        while (ending := launcher.poll([key])[key]).life is not Life.ENDED:
            seen.look()
            _wait(launcher, watcher)
    except KeyboardInterrupt:
        if launcher.cancel([key]):
            watcher.note(f"{key} may still run: it could not be cancelled")
        raise
    return ending


def _is_launched(launcher: Launcher, request: LaunchRequest, watcher: SelftestWatcher) -> bool:
    try:
        return launcher.launch(request) is not None
    except LaunchPostponed as postponed:
        watcher.note(str(postponed))
        return False


def _wait(launcher: Launcher, watcher: SelftestWatcher) -> None:
    if watcher.is_told_to_stop():
        raise KeyboardInterrupt
    launcher.wait(POLL_INTERVAL_S)


def _last_results(launcher: Launcher, seen: _Seen, num_cases: int) -> Results:
    """What is there at the end; so many may be waited for where another machine wrote them."""
    since = launcher.now()
    seen.look()
    while len(seen.results.results) < num_cases and launcher.now() - since < RESULTS_GRACE_S:
        launcher.wait(POLL_INTERVAL_S)
        seen.look()
    return seen.results


def _why_unfinished(ending: Ending, found: Results, num_cases: int) -> str:
    words = ending.detail or (str(ending.reason) if ending.reason else "the ranks' logs may say why")
    return f"{len(found.results)} of {num_cases} cases were run: {words}"
