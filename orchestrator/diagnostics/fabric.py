"""Fabric check: one job of the search's launcher over the nodes that its trials may get (docs/fabric.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.doctor.finding import Finding, error, ok, warning
from orchestrator.diagnostics.job import RESULTS_GRACE_S, launcher_reason, new_job, rank_failure
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.planning.group_shapes import group_shapes
from orchestrator.preflight.trainer import python_of
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from trials.diagnostics.fabric import FabricTimes, exchanges_of, trainer_of
from trials.diagnostics.fabric_findings import FabricFindings, judge
from trials.files.folders import SearchFolder
from trials.files.text import plural

TIME_LIMIT_S = 600.0
"""Start and measurement together; an exchange takes half a second to a second."""
MIN_NODES_TO_TELL = 3

_SLOW_FIX = (
    "have the site look at its links, clocks and other work, or leave it out: launcher.slurm.exclude; with"
    " launcher.fabric_check a search excludes it"
)
_SHAPE_FIX = (
    "see the transport with parlay doctor --submit-test, and other jobs on the fabric; launcher.fabric_check makes the"
    " measured numbers the search's links"
)


def fabric_cluster(spec: SearchSpec) -> Cluster:
    """The nodes of the check: the cluster's, or those of one pilot."""
    num_nodes = spec.nodes_per_pilot if spec.launcher.kind == "slurm_pilot" else spec.cluster.num_nodes
    return replace(spec.cluster, num_nodes=min(num_nodes, spec.cluster.num_nodes))


def fabric_findings(
    runner: AttemptRunner, folder: SearchFolder, spec: SearchSpec, layouts: Sequence[Layout]
) -> Iterator[Finding]:
    """Run the check and yield findings. `folder` is new; its name is the search id of the job.

    Raises LaunchRefused, and KeyboardInterrupt after a requested stop.
    """
    cluster = fabric_cluster(spec)
    if cluster.num_gpus == 1:
        yield ok("fabric", "one rank exchanges nothing")
        return
    shapes = group_shapes(layouts, cluster.num_gpus)
    request = new_job(folder, cluster, spec.model, trainer_of(shapes), python_of(spec), TIME_LIMIT_S)
    status = runner.run(request)
    place = request.folder.path
    if not status.failed:
        runner.wait_until(lambda: FabricTimes.read(place) is not None, RESULTS_GRACE_S)
    found = FabricTimes.read(place)
    if status.failed or found is None:
        failure = rank_failure(request.folder, status)
        words = failure[1] if failure else launcher_reason(status, "its ranks left no times")
        yield error("fabric", f"the job ended without times: {words}", f"see the logs in {place}")
        return
    num_exchanges = len(exchanges_of(shapes, cluster.gpus_per_node, cluster.num_nodes))
    nodes = list(dict.fromkeys(found.nodes))
    words = f"{plural(num_exchanges, 'exchange')} of {plural(len(shapes), 'group shape')} of the search's layouts"
    yield ok("fabric", f"{words} on {', '.join(nodes)}; times in {place / 'fabric.json'}")
    yield from findings_of(judge(found, cluster), cluster)


def findings_of(found: FabricFindings, cluster: Cluster) -> Iterator[Finding]:
    """The judgement as findings of the doctor."""
    sentences = found.sentences()
    num_of_nodes = len(sentences) - len(found.slow_shapes)
    if not num_of_nodes:
        few = 1 < cluster.num_nodes < MIN_NODES_TO_TELL
        remark = "; two nodes with equally slow groups could not be told apart" if few else ""
        yield ok("slow_nodes", f"no group is notably slower than the others of its shape{remark}")
    yield from (warning("slow_nodes", words, _SLOW_FIX) for words in sentences[:num_of_nodes])
    if cluster.links is None:
        yield ok("group_bandwidth", "the links are unknown, so there is no reference")
    elif not found.slow_shapes:
        yield ok("group_bandwidth", "all group shapes reach what the links promise")
    assumed = " (assumed: this cluster's links are not described)" * cluster.links_are_assumed
    yield from (warning("group_bandwidth", words + assumed, _SHAPE_FIX) for words in sentences[num_of_nodes:])
