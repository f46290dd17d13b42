"""Calibration: one job of the search's launcher measures compute, memory and links of its cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.answer import Answer
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.job import Program
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import CHOICES
from search_spaces.model_shape import ModelShape
from trials.diagnostics.calibration import Measurements, calibration_section
from trials.files.folders import SearchFolder

START_S = 300.0
MEASURING_S = 300.0
"""Limit on all measurements, generous for large clusters; two cores take half a minute."""


class CalibrateAnswer(Answer):
    """Printed by calibrate."""

    schema_: Literal["parlay.calibrate/1"] = "parlay.calibrate/1"
    file: str
    """The cluster file."""
    folder: str
    cluster: Mapping[str, Any]
    """Content of the cluster file."""
    measurements: Mapping[str, Any]
    """Content of measurements.json; groups also have `bus_gb_per_s`, pairs `gb_per_s`."""

    @classmethod
    def of(cls, file: Path, folder: SearchFolder, cluster: Mapping[str, Any], found: Measurements) -> CalibrateAnswer:
        groups = [asdict(time) | {"bus_gb_per_s": time.bus_gb_per_s} for time in found.groups]
        pairs = [asdict(time) | {"gb_per_s": time.gb_per_s} for time in found.pairs]
        measurements = found.to_json() | {"groups": groups, "pairs": pairs}
        return cls(file=str(file), folder=str(folder.path), cluster=cluster, measurements=measurements)


def calibration_cluster(spec: SearchSpec, num_nodes: int | None = None) -> Cluster:
    """Return the part of the cluster to measure: `num_nodes`, or as many nodes as a trial may use.

    At least two nodes if the cluster has several, since one node alone shows nothing of the links between nodes. Raises
    InputError if `num_nodes` is out of range.
    """
    cluster, most = spec.cluster, spec.cluster.num_nodes
    fewest = min(2, most)
    if num_nodes is not None and not fewest <= num_nodes <= most:
        rule = f"from {fewest} to the cluster's {most}" if most > 1 else "the cluster has 1 node"
        raise InputError.of("nodes", f"is {num_nodes}", key="--nodes", value=num_nodes, rule=rule, fix="leave it out")
    return replace(cluster, num_nodes=num_nodes or max(fewest, _nodes_of_a_trial(spec)))


def precisions_of(spec: SearchSpec) -> list[str]:
    """Precisions of the search, and fp32, in which every optimizer computes."""
    axis, candidates = spec.space.given_axes().get("precision", ()), spec.candidates or ()
    searched = {"fp32", *axis, *(layout.precision for layout in candidates)}
    known = [p for p in CHOICES["precision"] if p in searched]
    return [p for p in known if not (p == "bf16" and spec.cluster.accelerator.lacks_bf16)]


def calibration(cluster: Cluster, model: ModelShape, precisions: Sequence[str], python: str) -> Program[Measurements]:
    """The program that measures all ranks of `cluster`."""
    return Program(cluster, model, calibration_section(precisions), python, START_S + MEASURING_S, Measurements.read)


def _nodes_of_a_trial(spec: SearchSpec) -> int:
    """Largest number of nodes of a trial."""
    axis = spec.space.given_axes().get("num_nodes", (spec.cluster.num_nodes,))
    nodes = [layout.num_nodes for layout in spec.candidates or ()] or axis
    return min(max(nodes), spec.constraints.max_nodes or spec.cluster.num_nodes, spec.cluster.num_nodes)
