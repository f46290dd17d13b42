"""Layouts of Parlay's own trainer, and their exports."""

from __future__ import annotations

from orchestrator.recipe.exports import Export, exports
from search_spaces.engines import TORCHTITAN
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.kit import trial_of
from tests.trials.trainers.specs import GPT2, LLAMA, RULES
from trials.trial import TrialSpec

NOT_OURS = (
    *("megatron-lm", "megatron-deepspeed", "megatron-bridge", "gpt-neox", "nanotron", "accelerate", TORCHTITAN),
    "nemo-automodel",
)
"""The trainers that only a layout's settings are exported to."""


def our_spec(layout: Layout, model: ModelShape = GPT2) -> TrialSpec:
    """A trial of Parlay's own trainer."""
    on_node = layout.num_gpus // layout.num_nodes
    return trial_of(layout, model=model, gpus_per_node=on_node, measure=RULES, trainer={"kind": "parlay"})


def exported(spec: TrialSpec) -> dict[str, Export]:
    return {export.trainer: export for export in exports(spec, "/env/bin/python")}


def half(**fields) -> Layout:
    """A layout of Parlay's trainer that every trainer runs on a Llama, unless the fields say otherwise."""
    defaults = {"data_parallel": 2, "grad_accum_steps": 4, "precision": "bf16", "attention_kernel": "flash"}
    return Layout(**{**defaults, **fields}).canonical()


def lines_of(trainer: str, file: str, **fields) -> list[str]:
    export = exported(our_spec(half(**fields), LLAMA))[trainer]
    return [line for line in export.files[file].splitlines() if not line.startswith("#")]
