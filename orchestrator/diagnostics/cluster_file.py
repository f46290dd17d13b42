"""Cluster file from measurements: link domains, the fabric between nodes, and the context of the measurement.

Pure, except for reading the first line of a file. docs/calibrate.md derives each number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from search_spaces.hardware.cluster import Cluster, MeasuredSpeed
from search_spaces.hardware.links import NIC_EFFICIENCY, Bandwidth, Fabric, LinkDomain, Links
from search_spaces.plain_file import open_named
from trials.diagnostics.calibration import SMALL_BYTES, Collective, GroupTime, Measurements, PairTime, block_sizes
from trials.files.text import plural

CLUSTER_SCHEMA = "parlay.cluster/1"
FIRST_LINE = "# Written by parlay calibrate, which overwrites it at the next run."
MIN_RELATIVE_DIFFERENCE = 0.15
"""Minimum relative difference in bandwidth between a domain and the next outer one; closer ones are merged."""

_NAMES = {2: "pair", 4: "quad"}
_VERSIONS = ("torch", "cuda", "python")


@dataclass(frozen=True)
class CalibrationContext:
    """Search, launcher and part of the cluster that were measured; `busy` describes other load on the machine."""

    search: str
    launcher: str
    measured: Cluster
    busy: str | None = None


def calibrated_cluster(cluster: Cluster, found: Measurements) -> Cluster:
    """Return the cluster with the measured links and speeds, rounded to four digits."""
    return replace(cluster, given_links=measured_links(cluster, found), measured=_speed(found))


def measured_links(cluster: Cluster, found: Measurements) -> Links | None:
    """Links by the groups and pairs that were measured on all ranks of `cluster`; None for one rank."""
    return Links(tuple(_domains(cluster, found)), _fabric(cluster, found)) if cluster.num_gpus > 1 else None


def cluster_file(cluster: Cluster, found: Measurements, context: CalibrationContext) -> str:
    """Text of the cluster file, which search files may name."""
    return "".join(f"{line}\n" for line in [*_heading(found, context), *_body(cluster, found)])


def cluster_fields(cluster: Cluster) -> dict[str, Any]:
    """Keys and values of the file; unknown ones are left out."""
    links, measured = cluster.given_links, cluster.measured
    fields: dict[str, Any] = {
        "schema": CLUSTER_SCHEMA,
        "accelerator": cluster.accelerator.name,
        "gpus_per_node": cluster.gpus_per_node,
        "num_nodes": cluster.num_nodes,
    }
    if links is not None:
        fields["links"] = _given(links)
    if measured is not None:
        fields["measured"] = _given(measured)
    return fields


def _given(value: Any) -> Any:
    """A declared value as the file has it: what is unknown or usual is left out."""
    if isinstance(value, tuple):
        return [_given(each) for each in value]
    if not is_dataclass(value):
        return value
    said = {f.name: (getattr(value, f.name), f.default) for f in dataclass_fields(value)}
    return {name: _given(each) for name, (each, usual) in said.items() if each not in (None, (), {}, usual)}


def is_written_by_calibrate(path: Path) -> bool:
    """True if calibrate wrote this file. Raises OSError if it cannot be read."""
    with open_named(path) as stream:
        return stream.readline(len(FIRST_LINE) + 1).decode(errors="replace").rstrip("\n") == FIRST_LINE


def _domains(cluster: Cluster, found: Measurements) -> Iterator[LinkDomain]:
    """Yield link domains from inner to outer: blocks of ranks with a notably different bandwidth, then the node."""
    sizes = block_sizes(cluster.gpus_per_node, 1)
    kept: list[int] = []
    for size in reversed(sizes):
        if not kept or _differ(_bus_gb_per_s(found, size), _bus_gb_per_s(found, kept[-1])):
            kept.append(size)
    for size in reversed(kept):
        apart = [1, *sizes][sizes.index(size)]
        yield LinkDomain(
            name="node" if size == cluster.gpus_per_node else _NAMES.get(size, f"{size}-ranks"),
            num_ranks=size,
            bus_gb_per_s=_rounded(_bus_gb_per_s(found, size)),
            latency_us=_rounded(_latency_us(found, size)),
            p2p_gb_per_s=_rounded(_pair(found, apart, alone=True).gb_per_s),
            gather_gb_per_s=_rounded(_bus_gb_per_s(found, size, Collective.ALL_GATHER)),
        )

    if (wide := _wide_domain(cluster, found)) is not None:
        yield wide


def _wide_domain(cluster: Cluster, found: Measurements) -> LinkDomain | None:
    """The cluster's link domain of several nodes, as fast as most of its nodes that were measured together."""
    ranks, inside = cluster.gpus_per_node, _ranks_in_domain(cluster, found)
    if inside <= ranks or cluster.links is None:
        return None
    size = max(size for size in _sizes(found) if inside % size == 0)
    return replace(
        cluster.links.domains[-1],
        bus_gb_per_s=_rounded(_bus_gb_per_s(found, size)),
        latency_us=_rounded(_latency_us(found, size)),
        p2p_gb_per_s=_rounded(_pair(found, ranks, alone=True).gb_per_s),
        gather_gb_per_s=_rounded(_bus_gb_per_s(found, size, Collective.ALL_GATHER)),
    )


def _ranks_in_domain(cluster: Cluster, found: Measurements) -> int:
    """Measured ranks in one link domain."""
    return cluster.nodes_per_domain(_sizes(found)[-1] // cluster.gpus_per_node) * cluster.gpus_per_node


def _fabric(cluster: Cluster, found: Measurements) -> Fabric | None:
    """Fabric between the nodes; None for a single node.

    Nodes that share a link domain do not use it: there only groups that leave the domain are measurements of it.
    """
    if cluster.num_nodes == 1:
        return None
    ranks = cluster.gpus_per_node
    if (inside := _ranks_in_domain(cluster, found)) > ranks:
        known = cluster.links.fabric if cluster.links is not None else None
        if known is None:
            return None
        return replace(known, by_nodes=_curve(found, ranks, inside), all_to_all_gb_per_s=_all_to_all(found, inside))
    together = ranks * _pair(found, ranks, alone=False).gb_per_s
    return Fabric(
        nic_gb_per_s=_rounded(together / NIC_EFFICIENCY),
        latency_us=_rounded(_hop_us(found, ranks)),
        by_nodes=_curve(found, ranks, ranks),
        p2p_gb_per_s=_rounded(_pair(found, ranks, alone=True).gb_per_s),
        kind="infiniband" if cluster.links is None or cluster.links.fabric is None else cluster.links.fabric.kind,
        all_to_all_gb_per_s=_all_to_all(found, ranks),
    )


def _all_to_all(found: Measurements, inside: int) -> float | None:
    """GB/s that each rank sends out of blocks of `inside` ranks in an all-to-all over the most ranks; None where none
    that leaves them was measured."""
    times = [time for time in found.groups if time.kind is Collective.ALL_TO_ALL and time.num_ranks > inside]
    if not times:
        return None
    widest = max(times, key=lambda time: time.num_ranks)
    return _rounded(widest.num_bytes * (1 - inside / widest.num_ranks) / widest.seconds / 1e9)


def _curve(found: Measurements, ranks_per_node: int, inside: int) -> tuple[Bandwidth, ...]:
    """Bandwidths by number of nodes, of groups with more ranks than `inside`."""
    across = [size for size in _sizes(found) if size > inside]
    kinds = (Collective.ALL_REDUCE, Collective.ALL_GATHER)
    rates = [[_rounded(_bus_gb_per_s(found, size, kind)) for kind in kinds] for size in across]
    return tuple(Bandwidth(size // ranks_per_node, *rate) for size, rate in zip(across, rates, strict=True))


def _hop_us(found: Measurements, gpus_per_node: int) -> float:
    """Latency in us of a hop between nodes: the extra time of a small all-reduce over most nodes compared with one
    node, divided by its hops. If there is no extra time, the time of one message."""
    most = _sizes(found)[-1]
    inside = _latency_us(found, gpus_per_node) if gpus_per_node > 1 else 0.0
    hop = (_latency_us(found, most) - inside) / (2 * math.ceil(math.log2(most // gpus_per_node)))
    return hop if hop > 0 else 1e6 * _pair(found, gpus_per_node, alone=True, small=True).seconds


def _speed(found: Measurements) -> MeasuredSpeed:
    precisions = dict.fromkeys(rate.precision for rate in found.products)
    rates = {precision: _gemm_tflops(found, precision) for precision in precisions}
    to_and_from = [rate for rate in (found.to_host_gb_per_s, found.from_host_gb_per_s) if rate is not None]
    return MeasuredSpeed(
        {precision: _rounded(tflops) for precision, tflops in rates.items()},
        None if found.memory_gb_per_s is None else _rounded(found.memory_gb_per_s),
        _rounded(min(to_and_from)) if to_and_from else None,
    )


def _gemm_tflops(found: Measurements, precision: str) -> float:
    """TFLOP/s of a training's GEMMs: the model's products in a row, or of the squares where none of them was
    measured."""
    rates = [rate for rate in found.products if rate.precision == precision]
    of_model = [rate for rate in rates if not rate.product.is_square] or rates
    return sum(rate.product.flops for rate in of_model) / sum(rate.product.flops / rate.tflops for rate in of_model)


def _sizes(found: Measurements) -> list[int]:
    return sorted({time.num_ranks for time in found.groups})


def _bus_gb_per_s(found: Measurements, size: int, kind: Collective = Collective.ALL_REDUCE) -> float:
    return _group(found, size, kind).bus_gb_per_s


def _latency_us(found: Measurements, size: int) -> float:
    return 1e6 * _group(found, size, Collective.ALL_REDUCE, small=True).seconds


def _group(found: Measurements, size: int, kind: Collective, small: bool = False) -> GroupTime:
    return next(
        time
        for time in found.groups
        if (time.num_ranks, time.kind, time.num_bytes == SMALL_BYTES) == (size, kind, small)
    )


def _pair(found: Measurements, apart: int, alone: bool, small: bool = False) -> PairTime:
    return next(
        time for time in found.pairs if (time.apart, time.alone, time.num_bytes == SMALL_BYTES) == (apart, alone, small)
    )


def _differ(a: float, b: float) -> bool:
    return abs(a - b) > MIN_RELATIVE_DIFFERENCE * max(a, b)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _heading(found: Measurements, context: CalibrationContext) -> Iterator[str]:
    """Comment lines: date, hosts, versions, and measurements that have no key below."""
    measured, known = context.measured, found.fingerprint
    nodes = plural(measured.num_nodes, "node")
    hosts, versions = known.get("hosts", []), [f"{name} {known[name]}" for name in _VERSIONS if name in known]
    yield FIRST_LINE
    yield "#"
    yield f"# Measured {found.ended_at} for the search {context.search}, by its launcher {context.launcher}:"
    yield f"# {nodes} x {measured.gpus_per_node} {measured.accelerator.name}: {' '.join(hosts)}"
    yield f"# {known.get('device', 'unknown device')}; {', '.join(versions)}"
    if context.busy is not None:
        yield f"# NOTE: {context.busy}"
    yield "#"
    yield "# The numbers are explained in docs/clusters.md, their measurement in docs/calibrate.md."
    yield "# Further measurements:"
    for precision, rates in groupby(found.products, lambda rate: rate.precision):
        yield f"#   {precision} products, TFLOP/s of each rank:"
        for rate in rates:
            p = rate.product
            yield f"#     {rate.tflops:<8.4g} {p.name} ({p.rows} x {p.inner} x {p.columns})"
    if found.to_host_gb_per_s is not None and found.from_host_gb_per_s is not None:
        yield f"#   to host memory {found.to_host_gb_per_s:.4g} GB/s, from it {found.from_host_gb_per_s:.4g}"


def _body(cluster: Cluster, found: Measurements) -> Iterator[str]:
    fields = cluster_fields(cluster)
    for name in ("schema", "accelerator", "gpus_per_node", "num_nodes"):
        yield f"{name}: {fields[name]}"
    if "links" in fields:
        yield "links:"
        yield from _link_lines(fields["links"], fields["gpus_per_node"], found)
    yield "measured:  # of each rank by itself"
    for name, value in fields.get("measured", {}).items():
        yield f"  {name}: {_flow(value)}"


def _link_lines(links: Mapping[str, Any], gpus_per_node: int, found: Measurements) -> Iterator[str]:
    large = max((time.num_bytes for time in found.groups), default=0) / 2**20
    if "domains" in links:
        yield f"  domains:  # exchanges of up to {large:.4g} MiB, all groups at once; p2p: one pair of ranks a node"
        yield from (f"    - {_flow(domain)}" for domain in links["domains"])
    if (fabric := links.get("fabric")) is not None:
        is_wide = links["domains"][-1]["num_ranks"] > gpus_per_node if "domains" in links else False
        yield "  fabric:" + "  # not measured, but for by_nodes" * is_wide
        measured = {
            "nic_gb_per_s": f"all ranks of a node at once, over {NIC_EFFICIENCY}",
            "p2p_gb_per_s": "one pair alone",
            "all_to_all_gb_per_s": "each rank to other nodes",
        }
        for name in (name for name in fabric if name != "by_nodes"):
            remark = f"  # {measured[name]}" if name in measured and not is_wide else ""
            yield f"    {name}: {_flow(fabric[name])}{remark}"
        if "by_nodes" in fabric:
            yield "    by_nodes:"
            yield from (f"      - {_flow(point)}" for point in fabric["by_nodes"])


def _flow(value: Any) -> str:
    """A value as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").rstrip("\n")
