"""Specs of jobs that run one of Parlay's programs on all ranks of a cluster, and train nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.measure_rules import MeasureRules
from trials.trial import Attempt, TrialKind, TrialSpec


def program_spec(
    cluster: Cluster,
    model: ModelShape,
    trainer: Mapping[str, Any],
    search_id: str,
    attempt: Attempt,
    time_limit_s: float,
) -> TrialSpec:
    """spec.json of an attempt: a pure function of the record, so that it is the same after a crash.

    `trainer` selects the program, which ends itself after `time_limit_s`.
    """
    layout = Layout(num_nodes=cluster.num_nodes, data_parallel=cluster.num_gpus)
    return TrialSpec(
        search_id=search_id,
        trial=attempt.trial,
        attempt=attempt.attempt,
        nonce=attempt.nonce,
        kind=TrialKind.SEARCH,
        layout=layout,
        model=model,
        global_batch_size=layout.global_batch_size,
        num_gpus=cluster.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        accelerator=cluster.accelerator.name,
        measure=MeasureRules(time_limit_s=time_limit_s),
        trainer=trainer,
    )
