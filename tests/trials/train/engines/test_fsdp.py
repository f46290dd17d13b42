"""What torch's FSDP and pipeline hold in addition to the training. For the training see the parity tests."""

from __future__ import annotations

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.parity import PROGRAMS
from trials.diagnostics.parity_cases import named_case
from trials.train.engines.factory import torch_modules

PP2 = {"activation_checkpointing": "full", "pipeline_parallel": 2}


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("more", "options", "copies"),
    [
        ({"zero_stage": 2}, {}, 2),
        ({"zero_stage": 3}, {}, 1),
        ({"zero_stage": 2, **PP2}, {}, 2),
        ({"zero_stage": 3, **PP2}, {}, 1),
        ({"zero_stage": 2}, {"gives_back": True}, 1),
        ({"zero_stage": 3}, {"gives_back": False}, 2),
    ],
    ids=["zero-2", "zero-3", "zero-2-pipeline", "zero-3-pipeline", "zero-2-as-3", "zero-3-as-2"],
)
def test_weights_held_between_forward_and_backward_are_counted_as_they_are_there(ranks, more, options, copies):
    given = named_case("held", "gpt2-tied", data_parallel=2, **more)
    arguments = {"case": given.to_json(), **options}
    held = ranks.run(f"{PROGRAMS}:held_parameters", given.layout.num_gpus, arguments)
    assert sum(held) == copies * given.model.parameters


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)])
def test_no_stage_keeps_the_logits_of_a_whole_step(ranks, schedule, chunks):
    fields = {"pipeline_parallel": 2, "pipeline_schedule": schedule, "virtual_pipeline_stages": chunks}
    answers = ranks.run(f"{PROGRAMS}:outputs_of_a_pipeline", 2, {"case": named_case("logits", **fields).to_json()})
    assert answers == [{"kept": 0, "returned": 0}] * 2


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("shape", "splits_sequence"), [("gpt2", False), ("llama", True)])
def test_a_tensor_parallel_block_compiles_to_one_graph_for_all_layers(ranks, shape, splits_sequence):
    """With graph breaks a layout would be called compiled that hardly is."""
    arguments = {"case": named_case("compiled", shape).to_json(), "splits_sequence": splits_sequence}
    assert ranks.run(f"{PROGRAMS}:graphs_of_compiled_blocks", 1, arguments) == [1]


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_the_compiler_is_imported_where_a_layout_needs_it_only(engine):
    plain = {"engine": engine, "data_parallel": 2, "zero_stage": 1}
    assert "torch._dynamo" not in list(torch_modules(Layout(**plain)))
    for needs_it in ("full", "selective"):
        assert "torch._dynamo" in list(torch_modules(Layout(**plain, activation_checkpointing=needs_it)))
    assert "torch._inductor.compile_fx" in list(torch_modules(Layout(**plain, torch_compile=True)))
