"""Epoch time and loss of a trial: one pass over its dataset. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trials.measurement.step_log import StepRecord
from trials.trial import TrialSpec


def steps_per_epoch(spec: TrialSpec) -> int | None:
    """Steps until every sequence of the dataset has been trained on once (docs/data.md); None for synthetic data.

    The last of them may begin it again, where the epoch is not a multiple of the global batch.
    """
    num_tokens = spec.trainer.get("data", {}).get("num_tokens") if spec.reads_tokens else None
    if num_tokens is None:
        return None
    samples = (num_tokens - 1) // spec.model.seq_length
    return -(-samples // spec.global_batch_size)


def epoch_fields(spec: TrialSpec, records: Sequence[StepRecord]) -> dict[str, Any]:
    """The contract's `epoch_s` and `loss_after_epoch` of outcome.measured, as far as the steps went.

    The time is that of the first epoch's steps, warm-up included. The loss is that of the step that follows, taken
    before its update: with an epoch of whole steps on the first step's batch, so that compared with `loss_first` it
    shows what the epoch taught. Empty where steps were shorter than a full one.
    """
    steps = steps_per_epoch(spec)
    if steps is None or len(records) < steps or any(r.samples != spec.global_batch_size for r in records[:steps]):
        return {}
    after = records[steps].loss if len(records) > steps else None
    fields = {"epoch_s": sum(record.step_time_s for record in records[:steps])}
    return fields if after is None else fields | {"loss_after_epoch": after}
