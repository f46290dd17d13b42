"""Runs a probe job on two nodes, or on the only one, and turns its results into findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.doctor.engine_packages import node_package_findings
from orchestrator.diagnostics.doctor.finding import Finding, error, ok
from orchestrator.diagnostics.doctor.nccl_log import NcclLog, merge_logs, parse_nccl_log
from orchestrator.diagnostics.doctor.node_findings import JobTimestamps, probe_findings
from orchestrator.diagnostics.doctor.ranks import old_torch_finding, selftest_findings
from orchestrator.diagnostics.job import Program, ProgramFailed, run_on_cluster
from orchestrator.diagnostics.preflight.trainer import python_of
from orchestrator.launchers.attempt_runner import AttemptRunner
from search_spaces.engines import PARLAY
from search_spaces.hardware.cluster import Cluster
from search_spaces.plain_file import open_plain
from trials.diagnostics.node_probe import NodeProbeReport
from trials.files.folders import AttemptFolder, SearchFolder
from trials.files.text import plural
from trials.ledger.location import home_folder

TIME_LIMIT_S = 600.0
_LOG_BYTES = 4 * 2**20


def probe_cluster(cluster: Cluster) -> Cluster:
    """Two whole nodes, or the only one."""
    return replace(cluster, num_nodes=min(2, cluster.num_nodes))


def submit_test(runner: AttemptRunner, folder: SearchFolder, spec: SearchSpec) -> Iterator[Finding]:
    """Run the probe job and yield findings. `folder` is new; its name is the search id of the job.

    Raises LaunchRefused, and KeyboardInterrupt after a requested stop.
    """
    cluster = probe_cluster(spec.cluster)
    program = Program(cluster, spec.model, {"kind": "doctor"}, python_of(spec), TIME_LIMIT_S, NodeProbeReport.read)
    submitted = runner.launcher.now()
    try:
        attempt, probe = run_on_cluster(runner, folder, program)
    except ProgramFailed as failed:
        hint = "; a rank that finds no spec.json is on a node that does not share the work directory"
        yield error("job", f"the job ended without a report: {failed}", f"see {failed.log}{hint}")
        return
    nodes = list(dict.fromkeys(rank.node for rank in probe.ranks))
    words = f"{plural(len(probe.ranks), 'rank')} on {', '.join(nodes)} responded; logs in {attempt.path}"
    yield ok("job", words)
    yield from probe_findings(probe, cluster, nccl_log(attempt), JobTimestamps(submitted, runner.launcher.now()))
    if not spec.launcher.ranks_run_here:  # else check_ranks has probed this machine's interpreter
        first = probe.ranks[0]
        if spec.trainer.kind == PARLAY and (old := old_torch_finding(first.torch, first.executable)):
            yield old
        yield from node_package_findings(probe.ranks, spec)
        yield from selftest_findings(spec, home_folder(), first.torch)


def nccl_log(attempt: AttemptFolder) -> NcclLog:
    """NCCL's output in the logs of all ranks."""
    return merge_logs(parse_nccl_log(_read(log)) for log in attempt.rank_logs())


def _read(log: Path) -> str:
    """Beginning of the log, where transports are chosen."""
    with open_plain(log) as stream:
        return stream.read(_LOG_BYTES).decode("utf-8", errors="replace")
