"""Runs a probe job on two nodes, or on the only one, and turns its results into findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.doctor.engine_packages import node_package_findings
from orchestrator.diagnostics.doctor.finding import Finding, error, note, ok, warning
from orchestrator.diagnostics.doctor.nccl_log import NcclLog, merge_logs, parse_nccl_log
from orchestrator.diagnostics.doctor.ranks import old_torch_finding, selftest_findings
from orchestrator.diagnostics.job import Program, ProgramFailed, run_on_cluster
from orchestrator.diagnostics.preflight.trainer import python_of
from orchestrator.launchers.attempt_runner import AttemptRunner
from search_spaces.engines import PARLAY
from search_spaces.hardware.cluster import Cluster
from search_spaces.plain_file import open_plain
from trials.diagnostics.calibration import SMALL_BYTES, Collective
from trials.diagnostics.node_probe import NodeProbeReport, RankProbe
from trials.files.folders import AttemptFolder, SearchFolder
from trials.files.text import plural
from trials.ledger.location import home_folder

TIME_LIMIT_S = 600.0
_LOG_BYTES = 4 * 2**20
CLOCK_SLACK_S = 5.0
OK_SHARE, ERROR_SHARE = 0.7, 0.4
"""Shares of the links' expected bandwidth: at least OK_SHARE is fine, below ERROR_SHARE is an error."""
_NETWORK_FIX = (
    "see that the container or module brings the fabric's libraries (libibverbs; on Slingshot and EFA the libfabric"
    " plugin, aws-ofi-nccl), and what NCCL_NET, NCCL_IB_DISABLE, NCCL_IB_HCA and NCCL_SOCKET_IFNAME are set to; the"
    " site's documents have the right ones, launcher.slurm.env takes them"
)


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


@dataclass(frozen=True)
class JobTimestamps:
    """UTC seconds by this machine's clock: submission of the job, and arrival of its results."""

    submitted: float
    answered: float


def probe_findings(
    probe: NodeProbeReport, cluster: Cluster, nccl: NcclLog, timestamps: JobTimestamps
) -> Iterator[Finding]:
    """All findings from the probe of the ranks of `cluster`; `nccl` is the merged log of all ranks."""
    yield software_finding(probe.ranks)
    yield sharing_finding(probe.ranks)
    yield clock_finding(probe.ranks, timestamps)
    if cluster.accelerator.name != "cpu":
        yield gpus_finding(probe.ranks)
    yield cores_finding(probe.ranks)
    yield from communication_findings(probe, cluster, nccl)


def software_finding(ranks: Sequence[RankProbe]) -> Finding:
    """Compare Python and torch of all ranks."""
    found = {(r.python, r.torch, r.cuda): r for r in reversed(ranks)}
    words = "; ".join(
        f"Python {r.python} at {r.executable}, torch {r.torch}" + (f", CUDA or ROCm {r.cuda}" if r.cuda else "")
        for r in found.values()
    )
    if len(found) == 1:
        return ok("ranks_python", words)
    fix = "have trainer.python name one that all nodes share, and modules that all of them have"
    return error("ranks_python", f"the nodes' software differs: {words}", fix)


def sharing_finding(ranks: Sequence[RankProbe]) -> Finding:
    """Check that every rank saw the files of all others in the job's folder."""
    blind = [rank for rank in ranks if rank.unseen]
    if not blind:
        return ok("shared", f"each of the {len(ranks)} ranks saw the files of all others in the work directory")
    by_rank = {rank.rank: rank.node for rank in ranks}
    first = blind[0]
    others = sorted({by_rank.get(rank, "another node") for rank in first.unseen})
    words = f"{first.node} does not see files that {', '.join(others)} wrote to the work directory"
    return error("shared", words, "use a folder on a file system that all nodes share: work_dir, or --work-dir")


def clock_finding(ranks: Sequence[RankProbe], timestamps: JobTimestamps) -> Finding:
    """Compare the nodes' clocks with each other and with this machine's."""
    clocks = [rank.clock_s for rank in ranks]
    between_s = max(clocks) - min(clocks)
    off_s = max(max(clocks) - timestamps.answered, timestamps.submitted - min(clocks), 0.0)
    fix = "report it to the site: munge, heartbeats and time limits depend on clocks"
    if between_s > CLOCK_SLACK_S:
        return warning("clocks", f"the nodes' clocks are {between_s:.0f} s apart", fix)
    if off_s > CLOCK_SLACK_S:
        return warning("clocks", f"the nodes' clocks and this machine's are at least {off_s:.0f} s apart", fix)
    return ok("clocks", f"the nodes' clocks are {between_s:.2f} s apart, and agree with this machine's")


def gpus_finding(ranks: Sequence[RankProbe]) -> Finding:
    """Check that each rank has its own GPU."""
    users: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for rank in ranks:
        users[rank.node, rank.gpu].append(rank.rank)
    shared = {place: found for place, found in users.items() if len(found) > 1}
    if shared:
        (node, gpu), found = next(iter(shared.items()))
        words = f"ranks {', '.join(map(str, found))} share one GPU of {node} ({gpu})"
        fix = "request as many GPUs per node as ranks: cluster.gpus_per_node, launcher.slurm.gres"
        return error("gpus", words, fix)
    shown = sorted({len(rank.gpus) for rank in ranks})
    kinds = ", ".join(sorted({name for rank in ranks for name in rank.gpus}))
    return ok("gpus", f"each rank has its own GPU: {kinds}; {' or '.join(map(str, shown))} visible to each")


def cores_finding(ranks: Sequence[RankProbe]) -> Finding:
    """Check the cores that ranks may use; a wrong binding puts all ranks on one core."""
    by_node: dict[str, list[RankProbe]] = defaultdict(list)
    for rank in ranks:
        by_node[rank.node].append(rank)
    for node, there in by_node.items():
        together = {core for rank in there for core in rank.cores}
        if len(together) < len(there):
            words = f"the {len(there)} ranks of {node} share cores {_listed(together)}"
            fix = "set launcher.slurm.cpus_per_task, and see how the site binds tasks to cores"
            return warning("cores", words, fix)
    counts = sorted({len(rank.cores) for rank in ranks})
    return ok("cores", f"each rank may run on {' or '.join(map(str, counts))} cores")


def communication_findings(probe: NodeProbeReport, cluster: Cluster, nccl: NcclLog) -> Iterator[Finding]:
    """Transport and bandwidth, within a node and over all ranks."""
    whole = _reached_gb_per_s(probe, cluster.num_gpus)
    wanted = _wanted_gb_per_s(cluster, cluster.num_gpus)
    if cluster.accelerator.name == "cpu":
        yield ok("transport", "gloo over TCP, as expected on CPUs")
    elif cluster.num_nodes > 1:
        yield transport_finding(nccl, cluster, whole, wanted)
    elif nccl.in_node:
        yield ok("transport", f"in the node {', '.join(sorted(nccl.in_node))}")
    if cluster.num_nodes > 1 and cluster.gpus_per_node > 1:
        in_node = _reached_gb_per_s(probe, cluster.gpus_per_node)
        expected = _wanted_gb_per_s(cluster, cluster.gpus_per_node)
        yield from _bandwidth_findings("bandwidth_in_node", cluster.gpus_per_node, in_node, expected, cluster)
    yield from _bandwidth_findings("bandwidth", cluster.num_gpus, whole, wanted, cluster)


def transport_finding(nccl: NcclLog, cluster: Cluster, reached: float | None, wanted: float | None) -> Finding:
    """Transport between nodes; TCP is an error if there is a fabric, unless it is as fast."""
    if not nccl.name:
        words = "the ranks' logs do not show NCCL's transport"
        return warning("transport", words, "check whether the setup file or a module changes NCCL_DEBUG")
    in_node = f"; in a node {', '.join(sorted(nccl.in_node))}" if nccl.in_node else ""
    if not nccl.is_tcp:
        return ok("transport", f"between nodes {nccl.name}{in_node}")
    if reached is not None and wanted is not None and reached >= OK_SHARE * wanted:
        return note("transport", f"between nodes TCP ({nccl.name}), at the bandwidth of the links", "nothing")
    why = f"; NCCL says: {'; '.join(nccl.reasons[:4])}" if nccl.reasons else ""
    words = f"between nodes TCP ({nccl.name}){in_node}{why}"
    if cluster.links is None or cluster.links.fabric is None:
        return warning("transport", f"{words}; no fabric is configured", _NETWORK_FIX)
    fabric = f"the fabric carries {cluster.links.fabric.nic_gb_per_s:g} GB/s a node"
    return error("transport", f"{words}; {fabric}{_assumed(cluster)}", _NETWORK_FIX)


def _bandwidth_findings(
    name: str, num_ranks: int, reached: float | None, wanted: float | None, cluster: Cluster
) -> Iterator[Finding]:
    if reached is None:  # a single rank communicates with nobody
        return
    words = f"all-reduce over {num_ranks} ranks: {reached:.3g} GB/s bus bandwidth"
    if wanted is None:
        yield ok(name, f"{words}; the links are unknown, so there is no reference")
        return
    words = f"{words}, {reached / wanted:.0%} of {wanted:.3g}{_assumed(cluster)}"
    if reached >= OK_SHARE * wanted:
        yield ok(name, words)
        return
    fix = "check the transport above and other jobs on the nodes; parlay calibrate records the measured bandwidth"
    severity = error if reached < ERROR_SHARE * wanted and not cluster.links_are_assumed else warning
    yield severity(name, words, fix)


def _reached_gb_per_s(probe: NodeProbeReport, num_ranks: int) -> float | None:
    """Bus bandwidth of the large all-reduces of this many ranks; None if not measured."""
    found = [
        time.bus_gb_per_s
        for time in probe.groups
        if time.kind is Collective.ALL_REDUCE and time.num_ranks == num_ranks and time.num_bytes > SMALL_BYTES
    ]
    return found[-1] if found else None


def _wanted_gb_per_s(cluster: Cluster, num_ranks: int) -> float | None:
    links = cluster.links_of_job(cluster.num_nodes)
    if links is None or num_ranks == 1:
        return None
    return links.collective_gb_per_s(num_ranks, 1, cluster.gpus_per_node)


def _assumed(cluster: Cluster) -> str:
    return " (assumed: this cluster's links are not described)" * cluster.links_are_assumed


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
