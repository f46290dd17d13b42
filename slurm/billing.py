"""Billing of jobs by Slurm: a partition's TRESBillingWeights applied to what a job is allocated. Pure.

A job is billed in billing units (the billing TRES, `billing=` in AllocTRES) for as long as it holds its nodes: units
times hours are billing hours. Rules: slurm.conf(5), TRESBillingWeights and PriorityFlags. A run of 22.05 agrees with
them (tests/slurm/test_billing.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm.association_limits import AssociationLimits
from slurm.job_state import JobSnapshot
from slurm.nodes import NodeSnapshot, cpus_requested, gpus_requested, memory_mib, usable_nodes
from slurm.request import JobRequest

_WEIGHT = re.compile(r"(-?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)([KMGTP]?)")
_SUFFIXES = {suffix: 1024**power for power, suffix in enumerate(("", "K", "M", "G", "T", "P"))}
_MIB = "M"
_IN_BYTES = ("mem", "bb/")


@dataclass(frozen=True)
class BillingRules:
    """Rules by which a partition's jobs are billed.

    `weights` are units for one of a resource (of memory, for a MiB), by its name in lower case; None: jobs are billed
    their CPUs. The largest weighted resource of the nodes counts alone with `takes_max` (MAX_TRES), and beside the GPUs
    with `adds_gres` (MAX_TRES_GRES); otherwise all are added. `tracks_memory`: jobs are allocated memory.
    """

    weights: Mapping[str, float] | None = None
    takes_max: bool = False
    adds_gres: bool = False
    tracks_memory: bool = False


def parse_weights(text: str) -> Mapping[str, float] | None:
    """Parse `CPU=1.0,Mem=0.25G,GRES/gpu=2.0`; None for none, or where one of them is no weight."""
    pairs = [pair.partition("=")[::2] for pair in text.split(",")] if text and text != "(null)" else []
    found = {name.lower(): _weight(name.lower(), value) for name, value in pairs}
    weights = {name: value for name, value in found.items() if value is not None}
    return weights if weights and len(weights) == len(found) else None


def parse_billing(tres: str) -> float | None:
    """Parse the billing units in `billing=40,cpu=8,gres/gpu=4,node=2`; None without them."""
    match = re.search(r"(?:^|,)billing=([0-9]{1,18})(?:,|$)", tres)
    return float(match[1]) if match else None


def billing_with_factor(job: JobSnapshot, limits: AssociationLimits | None) -> float | None:
    """Return what the job is billed in an hour: its billing units, times the usage factor of its QOS.

    `limits` is None without accounting, where there are no QOS. None where the units or the QOS are not known.
    """
    if job.billing is None or limits is None:
        return job.billing
    qos = limits.qos(job.qos)
    return None if qos is None else qos.usage_factor * job.billing


def job_billing(request: JobRequest, nodes: Sequence[NodeSnapshot], rules: BillingRules, whole_nodes: bool) -> float:
    """Return the billing units that the job would be billed while it runs.

    `nodes` are those that it may run on; it is billed as on the smallest that it fits. Slurm bills what it allocates: a
    job with `whole_nodes` all CPUs and GPUs, others perhaps more CPUs than requested, since a core is not divided.
    Slurm drops the fraction.
    """
    node = min(usable_nodes(request, nodes), key=lambda node: (node.cpus, node.memory_mib or 0), default=None)
    allocated = _allocated(request, node, rules, whole_nodes)
    if rules.weights is None:
        return allocated["cpu"]
    each = {name: rules.weights.get(name, 0.0) * count for name, count in allocated.items()}
    return math.floor(_combined(each, rules) + 1e-9)


def _allocated(
    request: JobRequest, node: NodeSnapshot | None, rules: BillingRules, whole_nodes: bool
) -> dict[str, float]:
    """Count the resources of the whole job, memory in MiB."""
    is_whole = whole_nodes and node is not None
    cpus = node.cpus if is_whole and node is not None else cpus_requested(request)
    gpus = node.gpus if is_whole and node is not None else gpus_requested(request)
    memory = 0
    if rules.tracks_memory:  # without --mem, and with --mem=0, all of a node, where the site has no other default
        memory = memory_mib(request.options.mem) or (0 if node is None else node.memory_mib or 0)
    kinds = () if node is None or len(node.gpu_kinds) != 1 else node.gpu_kinds
    per_node = {"cpu": cpus, "mem": memory, "node": 1, "gres/gpu": gpus} | {f"gres/gpu:{kind}": gpus for kind in kinds}
    return {name: float(count * request.num_nodes) for name, count in per_node.items()}


def _combined(each: Mapping[str, float], rules: BillingRules) -> float:
    gres = [value for name, value in each.items() if name.startswith("gres/")]
    others = [value for name, value in each.items() if not name.startswith("gres/")]
    if rules.adds_gres:
        return max(others) + sum(gres)
    return max((*others, *gres)) if rules.takes_max else sum((*others, *gres))


def _weight(name: str, text: str) -> float | None:
    match = _WEIGHT.fullmatch(text.strip())
    if match is None:
        return None
    base = _SUFFIXES[_MIB] if name.startswith(_IN_BYTES) else 1
    unit = _SUFFIXES[match[2]] if match[2] else base
    return float(match[1]) * base / unit
