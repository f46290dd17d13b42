"""Differences between Megatron's training and a trial."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.differences import other_number_of_positions
from orchestrator.importers.megatron.model_fields import CORE, has_clamped_swiglu, is_megatron_deepspeed
from orchestrator.importers.settings import Settings
from search_spaces.errors import Problem


def changes(options: Settings, layout: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    if layout.get("activation_checkpointing") == "full" and options.text("recompute-method") != "block":
        for name in ("recompute-num-layers", "checkpoint-num-layers"):
            if options.text(name) not in (None, "1"):
                yield options.problem(name, reasons.EACH_LAYER, "set it to 1")


def differences(options: Settings, model: Mapping[str, Any], layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    yield from _of_a_layer(options, model)
    yield from _of_the_layout(options, layout)
    yield from _of_the_batch(options)


def _of_a_layer(options: Settings, model: Mapping[str, Any]) -> Iterator[str]:
    positions = options.text("max-position-embeddings")
    if model.get("position_embedding") == "learned" and positions not in (None, str(model.get("seq_length"))):
        yield other_number_of_positions("--max-position-embeddings", positions)
    if options.has("quick-geglu") and not has_clamped_swiglu(options):
        yield "--quick-geglu: the MLP is gated, with SiLU in place of GELU."
    if CORE.is_latent(options) and not options.has("qk-layernorm"):
        yield "The latent vectors of trials are normalised; without --qk-layernorm those of the training are not."


def _of_the_layout(options: Settings, layout: Mapping[str, Any]) -> Iterator[str]:
    is_auto = options.text("attention-backend") in (None, "auto") and not is_megatron_deepspeed(options)
    if is_auto and layout.get("attention_kernel") == "flash":
        yield "Megatron-LM's default --attention-backend auto is taken as flash, its choice on current GPUs."
    if "activation_checkpointing" not in layout:
        yield from _of_no_recomputation(options)
    if is_megatron_deepspeed(options) and re.fullmatch(r"0*(\.0*)?", options.text("clip-grad") or "1.0"):
        yield "--clip-grad is 0; trials clip the gradients' norm, which costs a reduction over the ranks."


def _of_no_recomputation(options: Settings) -> Iterator[str]:
    if options.text("recompute-granularity") == "full" and not options.is_in_doubt("recompute-method"):
        yield (
            "--recompute-granularity full recomputes nothing in Megatron-DeepSpeed's pipeline without"
            " --recompute-method uniform."
        )
    elif options.has("deepspeed-activation-checkpointing"):
        yield "--deepspeed-activation-checkpointing recomputes nothing without --checkpoint-activations."


def _of_the_batch(options: Settings) -> Iterator[str]:
    for name in ("rampup-batch-size", "step-batch-size-schedule"):
        if options.has(name):
            yield f"--{name}: the batch grows in the training; trials have the last global batch."
