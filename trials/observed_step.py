"""Second optimizer step of a third-party trainer as an observer in its ranks saw it (trials/external/observer), and
what of it contradicts the trial. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isclose
from typing import Any

from search_spaces.adapters import describe_trained
from search_spaces.layouts.layout import Layout
from trials.outcome_types import ObservedStep
from trials.trial import TrialSpec

GRADIENT_TOLERANCE = 1e-5
"""Relative difference of a gradient's norm on two ranks that reduced it: 0 where both got the same sum, a rounding
where each added in its own order. The norms of two batches differ in the second or third digit."""

_REPLICATED = "DistributedDataParallel"


def of_all_ranks(ranks: Sequence[ObservedStep]) -> ObservedStep:
    """The first rank's, with what the ranks together show; the first of the pipeline's stages gets the tokens."""
    sums = {rank.input_sum for rank in ranks if rank.input_sum is not None}
    norms = [rank.gradient_norms for rank in ranks]
    is_reduced = None
    if len(ranks) > 1 and all(norms):
        is_alike = all(_is_close(norms[0], other) for other in norms)
        # The same batch on every rank has the same gradients, reduced or not.
        is_reduced = is_alike if len(sums) > 1 or not is_alike else None
    others = dict.fromkeys(rank.inputs for rank in ranks if rank.inputs and rank.inputs != ranks[0].inputs)
    together: dict[str, Any] = {"ranks": len(ranks), "other_inputs": tuple(others), "batches": len(sums) or None}
    counts = ("documents", "real_tokens", "squared_lengths")
    together |= {name: sum(getattr(rank, name) or 0 for rank in ranks) for name in counts}
    return replace(ranks[0], **together, is_reduced=is_reduced)


def _is_close(some: Sequence[float], others: Sequence[float]) -> bool:
    return len(some) == len(others) and all(
        isclose(one, other, rel_tol=GRADIENT_TOLERANCE) for one, other in zip(some, others, strict=True)
    )


def unproven(spec: TrialSpec, seen: ObservedStep | None) -> Iterator[str]:
    """Names of what `seen` does not show of the trial."""
    seen = seen or ObservedStep()
    layout = spec.layout
    if seen.world_size is None:
        yield "world_size"
    if not seen.inputs or not all(_shows_batch(spec, seen, inputs) for inputs in (seen.inputs, *seen.other_inputs)):
        yield "global_batch_size"
    if seen.parameters is None and _holds_whole_model(layout):
        yield "parameters"
    is_reduced = seen.is_reduced or (seen.wrapper is not None and seen.reduces is not False)
    if layout.data_parallel > 1 and not (is_reduced and seen.ranks == spec.num_gpus):
        yield "data_parallel"


def observed_step_fault(spec: TrialSpec, seen: ObservedStep) -> str | None:
    """Contradiction between the step and the trial, with both numbers; None without any."""
    faults = (
        *(_world_fault, _batch_fault, _parameters_fault, _optimizer_fault, _split_fault, _wrapper_fault),
        _reduction_fault,
    )
    return next((fault for find in faults if (fault := find(spec, seen)) is not None), None)


def _world_fault(spec: TrialSpec, seen: ObservedStep) -> str | None:
    if seen.world_size in (None, spec.num_gpus):
        return None
    return f"torch.distributed has a world size of {seen.world_size}, the trial {spec.num_gpus} ranks"


def _batch_fault(spec: TrialSpec, seen: ObservedStep) -> str | None:
    """Compare the first data-parallel rank's and, where every rank gets tokens, the others'."""
    others = seen.other_inputs if spec.layout.pipeline_parallel == 1 else ()
    faults = (_inputs_fault(spec, seen, inputs) for inputs in (seen.inputs, *others))
    return next((fault for fault in faults if fault is not None), None)


def _inputs_fault(spec: TrialSpec, seen: ObservedStep, inputs: Sequence[Sequence[int]]) -> str | None:
    layout = spec.layout
    if _is_flattened(spec, seen, inputs):
        longest, most = max(length for _, length, _ in inputs), layout.micro_batch_size * spec.model.seq_length
        return f"its micro-batches have {longest} tokens, the layout's at most {most}" if longest > most else None
    batches = [(*_sequences_and_length(dims, spec), calls) for *dims, calls in inputs]
    for _, length, _ in batches:
        if length not in _lengths(spec):
            return f"its sequences have {length} tokens, model.seq_length is {spec.model.seq_length}"
    trained = sum(sequences * calls for sequences, _, calls in batches)
    wanted = layout.micro_batch_size * layout.grad_accum_steps
    # The loss scale of fp16 skips optimizer steps at first.
    if batches and trained != wanted and not (layout.precision == "fp16" and trained % wanted == 0):
        return (
            f"a data-parallel rank trains {trained} sequences a step, the layout has {wanted}: micro-batch"
            f" {layout.micro_batch_size} x accumulation {layout.grad_accum_steps}"
        )
    sizes = {sequences for sequences, _, _ in batches}
    if layout.pipeline_parallel == 1 and sizes - {layout.micro_batch_size}:
        return f"its micro-batches have {max(sizes)} sequences, the layout's have {layout.micro_batch_size}"
    return None


def _is_flattened(spec: TrialSpec, seen: ObservedStep, inputs: Sequence[Sequence[int]]) -> bool:
    """True where a fine-tuning's micro-batches are rows of several documents, one for all of its sequences."""
    is_row = all(len(dims) == 3 and dims[0] == 1 for dims in inputs)
    rows = sum(calls for *_, calls in inputs) * (seen.ranks or 1)
    several = spec.layout.micro_batch_size > 1 and (seen.documents or 0) > rows
    return spec.model.is_finetuned and is_row and several


def _shows_batch(spec: TrialSpec, seen: ObservedStep, inputs: Sequence[Sequence[int]]) -> bool:
    """False for flattened rows, unless each sequence is a document, or too long for fewer sequences."""
    layout = spec.layout
    of_step = layout.micro_batch_size * layout.grad_accum_steps * (seen.ranks or 1)
    if seen.documents == of_step or not _is_flattened(spec, seen, inputs):
        return True
    return all(-(-length // spec.model.seq_length) == layout.micro_batch_size for _, length, _ in inputs)


def real_tokens(spec: TrialSpec, seen: ObservedStep | None) -> tuple[float, float | None]:
    """Share of the step's tokens that are no padding, and the mean over them of their document's length; (1, None)
    where sequences are whole, or were not seen."""
    if not spec.model.is_finetuned or seen is None or not seen.real_tokens:
        return 1.0, None
    layout, whole = spec.layout, spec.model.seq_length
    sequences = sum(rows * calls for rows, _, calls in seen.inputs)
    if _is_flattened(spec, seen, seen.inputs):
        sequences = layout.micro_batch_size * layout.grad_accum_steps
    share = seen.real_tokens / (sequences * (seen.ranks or 1) * whole)
    length = (seen.squared_lengths or 0) / seen.real_tokens
    return min(1.0, share), length if length < whole else None


def _sequences_and_length(dims: Sequence[int], spec: TrialSpec) -> tuple[int, int]:
    """Sequences of a tensor of tokens and their length, whichever dimension comes first, or packed into one."""
    rows, length = (1, dims[0]) if len(dims) == 1 else dims[:2]
    if spec.model.is_finetuned:
        return rows, length
    if length not in _lengths(spec) and rows in _lengths(spec):
        rows, length = length, rows
    if rows == 1 and length not in _lengths(spec) and length % spec.model.seq_length == 0:
        rows, length = length // spec.model.seq_length, spec.model.seq_length
    return rows, length


def _lengths(spec: TrialSpec) -> Sequence[int]:
    """Lengths that a rank may be given: whole or its own part, with or without the last target."""
    whole, parts = spec.model.seq_length, spec.layout.context_parallel
    if spec.model.is_finetuned:
        return range(1, whole + 2)
    return (whole, whole + 1, whole // parts, whole // parts + 1)


def _parameters_fault(spec: TrialSpec, seen: ObservedStep) -> str | None:
    """Compare where a rank has the whole model. Half a layer is tolerated, of what trains half of its share of a layer:
    biases, norms and padding differ between models of one shape, and one layer more or less is another model."""
    model, found = spec.model, seen.parameters
    if found is None or not _holds_whole_model(spec.layout):
        return None
    # Beside adapters peft keeps a module that trains whole twice: as it was, and as it is trained.
    copied = model.trainable_parameters - int(model.num_layers * model.trained.adapters) if model.adapters else 0
    if min(abs(found - model.parameters), abs(found - model.parameters - copied)) >= model.layer_parameters / 2:
        return f"its model has {found:,} parameters, the model section's {model.parameters:,}"
    trainable, wanted = seen.trainable_parameters or 0, model.trainable_parameters
    tolerated = max(model.trained.layer, model.trainable_parameters / model.num_layers) / 2
    if abs(trainable - (found if model.trainable is None else wanted)) > tolerated:
        return (
            f"it trains {trainable:,} of {found:,} parameters; of the trial's {describe_trained(model) or 'all train'}"
        )
    return None


def _optimizer_fault(spec: TrialSpec, seen: ObservedStep) -> str | None:
    """Compare what the optimizers hold where nothing shards their state: the rest is frozen."""
    held, trainable = seen.optimizer_parameters, seen.trainable_parameters
    is_sharded = spec.layout.zero_stage > 0 or seen.wrapper not in (None, _REPLICATED)
    if held is None or trainable is None or is_sharded or not _holds_whole_model(spec.layout):
        return None
    if trainable - held > spec.model.trained.layer / 2:
        return f"its optimizer has {held:,} of {trainable:,} parameters that train"
    return None


def _split_fault(spec: TrialSpec, seen: ObservedStep) -> str | None:
    """Compare where the layout splits the model, which takes at least half a layer from every rank."""
    model, layout, found = spec.model, spec.layout, seen.local_parameters
    if found is None or _holds_whole_model(layout) or found < model.parameters - model.layer_parameters / 2:
        return None
    return (
        f"a rank holds {found:,} parameters, the whole model has {model.parameters:,} and the layout splits it: tensor"
        f" {layout.tensor_parallel}, pipeline {layout.pipeline_parallel}, expert {layout.expert_parallel}"
    )


def _holds_whole_model(layout: Layout) -> bool:
    return layout.tensor_parallel == layout.pipeline_parallel == layout.expert_parallel == 1


def _wrapper_fault(spec: TrialSpec, seen: ObservedStep) -> str | None:
    """Compare what is sharded by the class that does it."""
    layout = spec.layout
    if layout.data_parallel == 1:
        return None
    if (
        layout.zero_stage == 1
        and seen.wrapper == _REPLICATED
        and seen.optimizer_parameters == seen.trainable_parameters
    ):
        return f"every rank's optimizer has all {seen.optimizer_parameters:,} parameters, the layout has zero_stage 1"
    of_class = {
        _REPLICATED: layout.zero_stage >= 2,
        "ReplicateModule": layout.zero_stage >= 1,
        "FSDPModule": layout.zero_stage < 2,
    }
    if of_class.get(seen.wrapper or "") or seen.zero_stage not in (None, layout.zero_stage):
        found = seen.wrapper if seen.zero_stage is None else f"{seen.wrapper} with ZeRO stage {seen.zero_stage}"
        return f"its model is wrapped by {found}, the layout has zero_stage {layout.zero_stage}"
    if seen.wrapper is None and seen.is_reduced and layout.zero_stage >= 2:
        return f"every rank has all gradients, the layout has zero_stage {layout.zero_stage}"
    return None


def _reduction_fault(spec: TrialSpec, seen: ObservedStep) -> str | None:
    """Compare the ranks with each other. Later stages of a pipeline get no tokens."""
    layout = spec.layout
    if layout.pipeline_parallel > 1:
        return None
    has_whole_gradients = layout.zero_stage == 0 or seen.wrapper == _REPLICATED
    if layout.data_parallel == spec.num_gpus and has_whole_gradients and seen.is_reduced is False:
        return f"its {spec.num_gpus} ranks have different gradients, the layout has data_parallel {spec.num_gpus}"
    most = layout.data_parallel * (layout.context_parallel if _gets_parts(spec, seen) else 1)
    if (seen.batches or 0) > most:
        return f"its ranks train {seen.batches} different batches at once, the layout's {most}"
    return None


def _gets_parts(spec: TrialSpec, seen: ObservedStep) -> bool:
    """True where a context-parallel rank is given its own part of the sequences."""
    longest = spec.model.seq_length // spec.layout.context_parallel + 1
    return any(_sequences_and_length(dims, spec)[1] <= longest for *dims, _ in seen.inputs)
