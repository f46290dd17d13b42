"""Answers of verbs whose work is done by rooms that know no answers: trials and slurm."""

from __future__ import annotations

from typing import Literal

from orchestrator.common.answer import Answer
from slurm.sandbox.config_files import CloudNodes


class SandboxAnswer(Answer):
    """Printed by slurm-sandbox start and stop."""

    schema_: Literal["parlay.slurm_sandbox/1"] = "parlay.slurm_sandbox/1"
    folder: str
    slurm_conf: str
    nodes: int
    cpus_per_node: int
    gpus_per_node: int
    accounting: bool
    cloud: list[CloudNodes]
    """Partitions of nodes that do not exist, of --like."""
    running: bool
