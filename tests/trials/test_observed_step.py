"""An observed step: what it proves of a trial, and what it contradicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.adapters import Adapters
from search_spaces.layouts.layout import Layout
from tests.kit import SPEC, TINY
from trials.observed_step import ObservedStep, observed_step_fault, of_all_ranks, real_tokens, unproven
from trials.trial import TrialSpec

LENGTH, PARAMETERS, LAYER = TINY.seq_length, TINY.parameters, round(TINY.layer_parameters)


def spec_of(**fields: Any) -> TrialSpec:
    layout = Layout(**{"micro_batch_size": 2, "grad_accum_steps": 3, "data_parallel": 2, "engine": "command", **fields})
    return replace(
        SPEC, model=TINY, layout=layout, global_batch_size=layout.global_batch_size, num_gpus=layout.num_gpus
    )


DDP = ObservedStep(
    world_size=2,
    parameters=PARAMETERS,
    trainable_parameters=PARAMETERS,
    inputs=((2, LENGTH, 3),),
    wrapper="DistributedDataParallel",
    ranks=2,
)


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({}, {}),
        ({}, {"inputs": ((2, LENGTH + 1, 3),)}),
        ({}, {"inputs": ((1, 2 * LENGTH, 3),)}),
        ({}, {"parameters": PARAMETERS + LAYER // 2 - 1}),
        ({"context_parallel": 2}, {"world_size": 4, "ranks": 4, "inputs": ((2, LENGTH // 2, 3),)}),
        ({"tensor_parallel": 2}, {"world_size": 4, "ranks": 4, "parameters": PARAMETERS // 2}),
        ({"tensor_parallel": 2}, {"world_size": 4, "ranks": 4, "local_parameters": PARAMETERS // 2}),
        ({"pipeline_parallel": 2}, {"world_size": 4, "ranks": 4, "inputs": ((6, LENGTH, 1),), "batches": 4}),
        ({"precision": "fp16"}, {"inputs": ((2, LENGTH, 9),)}),
        ({"zero_stage": 1}, {"optimizer_parameters": None}),
        ({}, {"optimizer_parameters": PARAMETERS - LAYER // 2 + 1}),
        ({"zero_stage": 2}, {"wrapper": "DeepSpeedEngine", "zero_stage": 2, "optimizer_parameters": PARAMETERS // 2}),
        ({}, {"wrapper": "ReplicateModule"}),
        ({"zero_stage": 2}, {"wrapper": "DeepSpeedEngine", "zero_stage": 2}),
        ({}, {"wrapper": None, "is_reduced": True, "batches": 2}),
    ],
)
def test_what_the_layout_says_is_proven(fields, changes):
    spec, seen = spec_of(**fields), replace(DDP, **changes)
    assert observed_step_fault(spec, seen) is None
    assert [*unproven(spec, seen)] == []


@pytest.mark.parametrize(
    ("fields", "changes", "words"),
    [
        ({}, {"world_size": 1}, "a world size of 1, the trial 2 ranks"),
        ({}, {"inputs": ((2, LENGTH, 1),)}, "trains 2 sequences a step, the layout has 6"),
        ({}, {"inputs": ((6, LENGTH, 1),)}, "micro-batches have 6 sequences, the layout's have 2"),
        ({}, {"inputs": ((2, LENGTH // 2, 3),)}, f"have {LENGTH // 2} tokens, model.seq_length is {LENGTH}"),
        ({}, {"parameters": PARAMETERS - LAYER}, f"{PARAMETERS - LAYER:,} parameters, the model section's"),
        ({"tensor_parallel": 2}, {"world_size": 4, "local_parameters": PARAMETERS}, "the layout splits it: tensor 2"),
        ({}, {"trainable_parameters": LAYER}, f"it trains {LAYER:,} of {PARAMETERS:,}"),
        ({}, {"optimizer_parameters": LAYER}, f"its optimizer has {LAYER:,} of {PARAMETERS:,} parameters"),
        ({"context_parallel": 2}, {"world_size": 4, "ranks": 4, "batches": 4}, "different batches at once, the layout"),
        ({}, {"wrapper": "FullyShardedDataParallel", "zero_stage": 3}, "ZeRO stage 3, the layout has zero_stage 0"),
        ({"zero_stage": 2}, {"wrapper": None, "is_reduced": True}, "every rank has all gradients"),
        ({}, {"other_inputs": (((1, LENGTH, 3),),)}, "trains 3 sequences a step, the layout has 6"),
        ({"zero_stage": 1}, {"optimizer_parameters": PARAMETERS}, "every rank's optimizer has all"),
        ({}, {"is_reduced": False}, "its 2 ranks have different gradients"),
    ],
)
def test_what_contradicts_the_layout_is_a_fault_with_both_numbers(fields, changes, words):
    assert words in (observed_step_fault(spec_of(**fields), replace(DDP, **changes)) or "")


TUNED = replace(TINY, adapters=Adapters(2, target_modules=("c_attn",)), trainable=(), is_finetuned=True)
TRAINED = TUNED.trainable_parameters
SHORT, WANTED = 5, 2 * 3 * 2
"""Tokens of a short sequence, and sequences of a step."""


def tuned(**changes: Any) -> tuple[TrialSpec, ObservedStep]:
    """A fine-tuning of adapters, and what is seen of a step of it."""
    spec = replace(spec_of(), model=TUNED)
    counted = {"parameters": TUNED.parameters, "trainable_parameters": TRAINED, "optimizer_parameters": TRAINED}
    return spec, replace(DDP, **counted | changes)


@pytest.mark.parametrize(
    ("changes", "names", "share"),
    [
        ({"inputs": ((2, SHORT, 2), (2, 1, 1))}, [], 1.0),
        (padded := {"documents": WANTED, "real_tokens": 48, "squared_lengths": 240}, [], 48 / (WANTED * LENGTH)),
        (padded | {"inputs": ((1, 8, 3),)}, [], 48 / (WANTED * LENGTH)),
        (padded | {"inputs": ((1, 2 * LENGTH, 3),), "documents": 70}, [], 48 / (WANTED * LENGTH)),
        (padded | {"inputs": ((1, LENGTH - 1, 3),), "documents": 70}, ["global_batch_size"], 48 / (WANTED * LENGTH)),
    ],
    ids=["shorter", "padded", "flattened, a document each", "packed full", "packed, perhaps of fewer sequences"],
)
def test_a_fine_tunings_sequences_are_as_long_as_their_examples(changes, names, share):
    spec, seen = tuned(**changes)
    assert observed_step_fault(spec, seen) is None
    assert [*unproven(spec, seen)] == names
    assert real_tokens(spec, seen) == (pytest.approx(share), 5.0 if share < 1 else None)
    assert real_tokens(spec_of(), seen) == (1.0, None), "a pretraining has whole sequences"
    whole = replace(spec, model=replace(TINY, is_finetuned=True))
    everything = dict.fromkeys(("parameters", "trainable_parameters", "optimizer_parameters"), PARAMETERS)
    assert observed_step_fault(whole, replace(seen, **everything)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"trainable_parameters": TUNED.parameters, "optimizer_parameters": TUNED.parameters},
            f"it trains {TUNED.parameters:,} of {TUNED.parameters:,} parameters; of the trial's {TRAINED:,} of ",
        ),
        ({"parameters": PARAMETERS - LAYER}, f"the model section's {TUNED.parameters:,}"),
        ({"optimizer_parameters": TRAINED // 2}, f"its optimizer has {TRAINED // 2:,} of {TRAINED:,}"),
        ({"inputs": ((2, LENGTH + 2, 3),)}, f"its sequences have {LENGTH + 2} tokens"),
        ({"inputs": ((1, SHORT, 3),), "documents": 6}, "trains 3 sequences a step, the layout has 6"),
        ({"inputs": ((1, 2 * LENGTH + 1, 3),), "documents": 70}, f"have {2 * LENGTH + 1} tokens, the layout's at most"),
    ],
)
def test_another_fine_tuning_than_the_trials_is_a_fault(changes, words):
    assert words in (observed_step_fault(*tuned(**changes)) or "")


def test_what_was_not_seen_is_unproven_and_no_fault():
    spec = spec_of()
    assert [*unproven(spec, replace(DDP, ranks=1))] == ["data_parallel"]
    assert [*unproven(spec, replace(DDP, reduces=False, batches=1))] == ["data_parallel"]
    assert [*unproven(spec, replace(DDP, reduces=False, is_reduced=True))] == [], "the script reduces itself"
    assert observed_step_fault(spec, ObservedStep()) is None
    assert [*unproven(spec, None)] == ["world_size", "global_batch_size", "parameters", "data_parallel"]
    ranks = [DDP, replace(DDP, inputs=((1, LENGTH, 3),)), DDP]
    assert of_all_ranks(ranks).other_inputs == (((1, LENGTH, 3),),)
    assert of_all_ranks([DDP, DDP]).other_inputs == ()
    counted = replace(DDP, documents=3, real_tokens=9, squared_lengths=27)
    assert of_all_ranks([counted, counted]).squared_lengths == 54


@pytest.mark.parametrize(
    ("sums", "norms", "is_reduced"),
    [
        ((1.0, 2.0), ((3.0, 4.0), (3.0, 4.0)), True),
        ((1.0, 2.0), ((3.0, 4.0), (3.1, 4.0)), False),
        ((1.0, 1.0), ((3.0, 4.0), (3.0, 4.0)), None),
        ((1.0, 2.0), ((3.0, 4.0), ()), None),
    ],
)
def test_gradients_were_reduced_where_different_batches_have_the_same(sums, norms, is_reduced):
    ranks = [ObservedStep(input_sum=total, gradient_norms=norm) for total, norm in zip(sums, norms, strict=True)]
    assert of_all_ranks(ranks).is_reduced is is_reduced


@pytest.mark.parametrize(
    "change",
    [{"world_size": "2"}, {"inputs": [[2, "a"]]}, {"other_inputs": [[2]]}, {"gradient_norms": [None]}, {"other": 1}],
)
def test_a_report_of_another_form_is_refused(change):
    assert ObservedStep.from_json(DDP.to_json()) == DDP
    with pytest.raises(ValueError, match=next(iter(change))):
        ObservedStep.from_json(DDP.to_json() | change)
