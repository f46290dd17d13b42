"""Rank of a trainer that logs its steps. Standard library only."""

from __future__ import annotations

from trials.trial import TrialSpec


def log_rank_of(spec: TrialSpec) -> int:
    """The rank that the search file names, else the one on which this trainer logs."""
    wanted, last = spec.trainer.get("log_rank"), spec.num_gpus - 1
    if wanted is None:
        return _default_log_rank(spec, last)
    return {"first": 0, "last": last}.get(wanted, wanted)


def _default_log_rank(spec: TrialSpec, last: int) -> int:
    """The trainer's default. Megatron logs on the last rank, nanotron on the first rank of the last stage, DeepSpeed on
    the first rank."""
    if spec.trainer["kind"] in ("megatron-lm", "megatron-deepspeed"):
        return last
    if spec.trainer["kind"] == "nanotron":
        return spec.layout.mesh.rank(pp=spec.layout.pipeline_parallel - 1)
    return 0
