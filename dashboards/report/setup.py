"""Setup of a search for the report: model, batch, cluster, trainer and its version, origin of the numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.text import printable
from dashboards.trial_text import format_tokens
from search_spaces.adapters import describe_trained
from search_spaces.engines import PARLAY
from search_spaces.model_shape import ModelShape
from trials.analysis.ranked_layout import RankedLayout
from trials.attempt_result import COMPARABLE, PROGRAM
from trials.files.text import plural
from trials.ledger.events import replayed_table

_NO_SOFTWARE = ("device", *PROGRAM)
"""Comparable fields of a fingerprint that have no version."""


@dataclass(frozen=True)
class SetupRow:
    """One fact of the setup."""

    name: str
    text: str


def setup_rows(spec: Mapping[str, Any], layouts: Sequence[RankedLayout]) -> tuple[SetupRow, ...]:
    """Facts that a search's spec and its measured layouts tell; unknown ones are left out."""
    rows = (
        ("Model", _model(spec)),
        ("Batch", _batch(spec)),
        ("Cluster", cluster_size(spec)),
        ("Trainer", _trainer(spec, layouts)),
    )
    return tuple(SetupRow(name, printable(text)) for name, text in rows if text)


def model_size(spec: Mapping[str, Any]) -> str | None:
    """Number of the model's parameters, as in `124M parameters`."""
    shape = _shape(spec)
    return None if shape is None else f"{format_tokens(shape.parameters)} parameters"


def _model(spec: Mapping[str, Any]) -> str | None:
    if (shape := _shape(spec)) is None:
        return None
    size = f"{format_tokens(shape.parameters)} parameters"
    if shape.num_experts:
        size += f" ({format_tokens(shape.active_parameters)} active, {shape.num_experts} experts)"
    heads = f"{shape.num_attention_heads} attention heads"
    trained = "" if (words := describe_trained(shape)) is None else f"; {words}"
    return f"{size}: {plural(shape.num_layers, 'layer')}, hidden size {shape.hidden_size}, {heads}{trained}"


def _batch(spec: Mapping[str, Any]) -> str | None:
    shape, sequences = _shape(spec), spec.get("global_batch_size")
    if shape is None or not sequences:
        return None
    tokens = format_tokens(sequences * shape.seq_length)
    return f"{plural(sequences, 'sequence')} of {shape.seq_length} tokens, {tokens} tokens a step"


def cluster_size(spec: Mapping[str, Any]) -> str | None:
    """Nodes and accelerators, as in `8 nodes of 8 h100-80gb`."""
    cluster = spec.get("cluster") or {}
    accelerator, num_nodes = cluster.get("accelerator"), cluster.get("num_nodes")
    name = accelerator.get("name") if isinstance(accelerator, Mapping) else accelerator
    if not name or not num_nodes:
        return None
    return f"{plural(num_nodes, 'node')} of {cluster.get('gpus_per_node', 1)} {name}"


def _trainer(spec: Mapping[str, Any], layouts: Sequence[RankedLayout]) -> str | None:
    kind = (spec.get("trainer") or {}).get("kind")
    engines = " and ".join(dict.fromkeys(layout.layout.engine for layout in layouts))
    if not kind:
        return None
    name = "Parlay's own" + (f", engine {engines}" if engines else "") if kind == PARLAY else kind
    if replayed_table(spec.get("launcher")) is not None:
        name = engines
    versions = ", ".join(_versions(layouts))
    return ": ".join(filter(None, (name, versions))) or None


def _versions(layouts: Sequence[RankedLayout]) -> Iterator[str]:
    """Software of the first run that is known, with its versions."""
    outcomes = (last.outcome for layout in layouts for run in layout.runs if (last := run.last_attempt) is not None)
    fingerprint: Mapping[str, Any] = next((outcome.fingerprint for outcome in outcomes if outcome is not None), {})
    for name in COMPARABLE:
        if name not in _NO_SOFTWARE and fingerprint.get(name):
            yield f"{name} {fingerprint[name]}"


def _shape(spec: Mapping[str, Any]) -> ModelShape | None:
    try:
        return ModelShape.from_json(spec["model"])
    except (KeyError, ValueError):
        return None
