"""Fabric check: one job of the search's launcher over the nodes that its trials may get, which times the group shapes
of its layouts (docs/fabric.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.cluster_file import measured_links
from orchestrator.diagnostics.doctor.finding import Finding, error, ok, warning
from orchestrator.diagnostics.job import Program, ProgramFailed, run_on_cluster
from orchestrator.diagnostics.preflight.trainer import python_of
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.search.fabric_check import FabricProgram
from orchestrator.search.node_hours import CHECK_TIME_LIMIT_S, LAUNCHER_GRACE_S
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.links import Links
from search_spaces.layouts.groups import group_names, rank_groups
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from slurm.interface import SlurmUnreachable
from slurm.nodes import num_up
from trials.diagnostics.calibration import Collective
from trials.diagnostics.fabric import MAX_SHAPES, FabricTimes, GroupShape, exchanges_of, fabric_check_section
from trials.diagnostics.fabric_findings import FabricFindings, judge, links_measurements, speeds
from trials.files.folders import AttemptFolder, SearchFolder, read_json
from trials.files.text import plural
from trials.trial import Outcome

MIN_NODES_TO_TELL = 3

_SLOW_FIX = (
    "have the site look at its links, clocks and other work, or leave it out: launcher.slurm.exclude; with"
    " launcher.fabric_check a search excludes it"
)
_SHAPE_FIX = (
    "see the transport with parlay doctor --submit-test, and other jobs on the fabric; launcher.fabric_check makes the"
    " measured numbers the search's links"
)

_GATHERS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
_OF_CONTEXT = {
    "p2p": (Collective.RING_SHIFT,),
    "all_gather": _GATHERS,
    "a2a": (Collective.ALL_TO_ALL,),
    "a2a_p2p": (Collective.ALL_TO_ALL, Collective.RING_SHIFT),
}


def fabric_cluster(spec: SearchSpec) -> Cluster:
    """The nodes of the check: the cluster's, or those of one pilot."""
    num_nodes = spec.nodes_per_pilot if spec.launcher.kind == "slurm_pilot" else spec.cluster.num_nodes
    return replace(spec.cluster, num_nodes=min(num_nodes, spec.cluster.num_nodes))


def fabric_program(spec: SearchSpec, layouts: Sequence[Layout]) -> FabricProgram | None:
    """The check that a search begins with; None where it asks for none, or has one rank."""
    cluster = fabric_cluster(spec)
    if not spec.launcher.fabric_check or cluster.num_gpus == 1:
        return None
    trainer = fabric_check_section(group_shapes(layouts, cluster.num_gpus))
    return FabricProgram(cluster, trainer, lambda found: conclude(found, cluster, spec.cluster, _num_available(spec)))


def conclude(found: FabricTimes, checked: Cluster, whole: Cluster, num_available: int | None) -> dict[str, Any]:
    """Consequences for a search on `whole` of the check of `checked`: the fields of a FabricCheck. `num_available` are
    the nodes that trials may get, None where the launcher cannot keep them off a node."""
    judged = judge(found, checked)
    slow = judged.slow_names if num_available is not None and len(set(found.nodes)) > 1 else ()
    links = measured_links(checked, links_measurements(found, checked, slow))
    if links is not None and whole.num_nodes > checked.num_nodes:
        links = _with_what_joins_nodes(links, whole)
    return {
        "slow_nodes": list(slow),
        "num_available": num_available or 0,
        "findings": judged.sentences(),
        "links": None if links is None else links.to_json(),
    }


def _with_what_joins_nodes(links: Links, whole: Cluster) -> Links | None:
    """The links with the outer domains and the fabric as described, where one node was checked that says nothing about
    them; None where they are unknown."""
    known = whole.links
    if links.fabric is not None:
        return links
    if known is None or known.fabric is None:
        return None
    inside = links.ranks_per_domain(whole.gpus_per_node)
    outer = (domain for domain in known.domains if domain.num_ranks > inside)
    return replace(links, domains=(*links.domains, *outer), fabric=known.fabric)


def _num_available(spec: SearchSpec) -> int | None:
    """Nodes that trials may get: those of the partition that are up, where Slurm tells, and at least the cluster's.
    None without Slurm: Ray places ranks where it likes."""
    if not spec.launcher.uses_slurm:
        return None
    from slurm.client import SlurmClient

    with suppress(SlurmUnreachable):
        return max(spec.cluster.num_nodes, num_up(spec.launcher.slurm.job_options(), SlurmClient().nodes()))
    return spec.cluster.num_nodes


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
    try:
        attempt, found = run_on_cluster(runner, folder, fabric_times(cluster, spec.model, shapes, python_of(spec)))
    except ProgramFailed as failed:
        yield error("fabric", f"the job ended without times: {failed}", f"see {failed.log}")
        return
    num_exchanges = len(exchanges_of(shapes, cluster.gpus_per_node, cluster.num_nodes))
    nodes = list(dict.fromkeys(found.nodes))
    words = f"{plural(num_exchanges, 'exchange')} of {plural(len(shapes), 'group shape')} of the search's layouts"
    yield ok("fabric", f"{words} on {', '.join(nodes)}; times in {attempt.outcome()}")
    yield from (ok("exchange", words) for words in speeds(found, shapes))
    yield from findings_of(judge(found, cluster), cluster)


def fabric_times(
    cluster: Cluster, model: ModelShape, shapes: Sequence[GroupShape], python: str
) -> Program[FabricTimes]:
    """The program that times these group shapes on a cluster."""
    trainer = fabric_check_section(shapes)

    def read(place: Path) -> FabricTimes | None:
        folder = AttemptFolder(place)
        if (data := read_json(folder.outcome(folder.last_restart()))) is None:
            return None
        return FabricTimes.of(Outcome.from_json(data), trainer, cluster.gpus_per_node, cluster.num_nodes)

    return Program(cluster, model, trainer, python, CHECK_TIME_LIMIT_S - LAUNCHER_GRACE_S, read)


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


def group_shapes(layouts: Iterable[Layout], num_gpus: int, at_most: int = MAX_SHAPES) -> list[GroupShape]:
    """Group shapes of these layouts that fit `num_gpus` ranks, those of most layouts first, with their collectives."""
    found, of_layout = LayoutTable.of(layouts).answers(lambda layout: tuple(dict.fromkeys(_exchanges(layout))))
    counts: Counter[tuple[int, int]] = Counter()
    kinds: dict[tuple[int, int], Counter[Collective]] = defaultdict(Counter)
    for index, count in Counter(of_layout.tolist()).items():
        counts.update({shape: count for shape, _ in found[index]})
        for shape, kind in found[index]:
            kinds[shape][kind] += count
    fitting = [shape for shape, _ in counts.most_common() if shape[0] * shape[1] <= num_gpus]
    return [GroupShape(*shape, tuple(kind for kind, _ in kinds[shape].most_common())) for shape in fitting[:at_most]]


def _exchanges(layout: Layout) -> Iterator[tuple[tuple[int, int], Collective]]:
    """Sizes and strides of a layout's groups, with each collective that they run."""
    for name in group_names(layout.expert_parallel > 1):
        groups = rank_groups(name, layout, layout.rank_order)
        if groups.ranks > 1:
            yield from (((groups.ranks, groups.stride), kind) for kind in _kinds(name, layout))


def _kinds(group: str, layout: Layout) -> tuple[Collective, ...]:
    """Collectives that carry most bytes in these groups of a layout, in a fixed order."""
    if group == "pipeline":
        return (Collective.RING_SHIFT,)
    if group == "context":
        return _OF_CONTEXT[layout.context_transport]
    if group == "expert":
        return _GATHERS if layout.expert_dispatcher == "allgather" else (Collective.ALL_TO_ALL,)
    gathers = layout.sequence_parallel if group == "tensor" else group != "replicas" and layout.zero_stage > 0
    return _GATHERS if gathers else (Collective.ALL_REDUCE,)
