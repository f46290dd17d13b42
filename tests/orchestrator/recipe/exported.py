"""Layouts of Parlay's own trainer, and their exports."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.recipe.exports import Export, exports
from search_spaces.engines import TORCHTITAN
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.trials.trainers.specs import GPT2, LLAMA, spec_of
from trials.trial import TrialSpec

NOT_OURS = ("megatron-lm", "megatron-deepspeed", "megatron-bridge", "gpt-neox", "nanotron", "accelerate", TORCHTITAN)
"""The trainers that only a layout's settings are exported to."""


def our_spec(layout: Layout, model: ModelShape = GPT2) -> TrialSpec:
    """A trial of Parlay's own trainer."""
    nodes = layout.num_nodes
    spec = replace(spec_of("megatron-lm", model), layout=layout, trainer={"kind": "parlay"})
    batch, ranks = layout.global_batch_size, layout.num_gpus
    return replace(spec, global_batch_size=batch, num_gpus=ranks, gpus_per_node=ranks // nodes)


def exported(spec: TrialSpec) -> dict[str, Export]:
    return {export.trainer: export for export in exports(spec, "/env/bin/python")}


def half(**fields) -> Layout:
    """A layout of Parlay's trainer that every trainer runs on a Llama, unless the fields say otherwise."""
    defaults = {"data_parallel": 2, "grad_accum_steps": 4, "precision": "bf16", "attention_kernel": "flash"}
    return Layout(**{**defaults, **fields}).canonical()


def lines_of(trainer: str, file: str, **fields) -> list[str]:
    export = exported(our_spec(half(**fields), LLAMA))[trainer]
    return [line for line in export.files[file].splitlines() if not line.startswith("#")]
