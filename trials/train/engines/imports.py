"""Imports of a training, all of them before the ranks meet.

torch and DeepSpeed import much where they first need it: while the model is built, and in the first step, which all
other ranks then wait for. The names are those of torch 2.13 and DeepSpeed 0.19.8; what another release has moved is
imported late again, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from importlib import import_module

from search_spaces.layouts.layout import Layout
from trials.train.engines.factory import engine_builder


def import_training(layout: Layout, on_cpu: bool) -> None:
    """Import what a training of this layout needs, and nothing else."""
    engine_builder(layout.engine, on_cpu)
    if layout.engine == "torch":
        _import_parts(layout)
    for name in torch_modules(layout):
        _import_if_there(name)
    if layout.engine == "deepspeed":
        from trials.train.engines.deepspeed_patches import without_compiler

        with nullcontext() if layout.torch_compile else without_compiler():
            for name in deepspeed_modules(layout):
                _import_if_there(name)


def _import_parts(layout: Layout) -> None:
    """Import the parts of engine torch that it imports where a layout has them."""
    if _is_fsdp(layout):
        import trials.train.engines.fsdp
    else:
        import trials.train.engines.flat_buffers
    if layout.pipeline_parallel > 1:
        import trials.train.engines.torch_pipeline  # noqa: F401


def torch_modules(layout: Layout) -> Iterator[str]:
    """Modules that torch imports late."""
    yield "torch.profiler._cupti_monitor"  # by the first range, which every optimizer step opens
    if layout.activation_checkpointing != "none" or _is_fsdp(layout) or layout.torch_compile:
        yield "torch._dynamo"  # to disable the compiler for functions of its own
    if layout.torch_compile:
        yield "torch._inductor.compile_fx"
    if layout.pipeline_parallel > 1:
        yield "torch.fx.experimental.symbolic_shapes"  # by a backward pass that begins with gradients
    if layout.zero_stage == 3:
        yield "torch._subclasses.schema_check_mode"


def deepspeed_modules(layout: Layout) -> Iterator[str]:
    """Modules that DeepSpeed imports late."""
    yield "deepspeed.comm.mori"
    yield "deepspeed.module_inject.auto_ep_config"
    yield "deepspeed.module_inject.auto_ep_layer"
    if layout.zero_stage >= 1:
        yield "deepspeed.runtime.zero.muon.muon_optimizer"
    if layout.zero_stage == 3:
        yield "deepspeed.runtime.superoffload.superoffload_stage3"
    if layout.offload != "none":
        yield "deepspeed.utils.pin_memory"


def _is_fsdp(layout: Layout) -> bool:
    return layout.engine == "torch" and layout.zero_stage >= 2 and layout.data_parallel > 1


def _import_if_there(name: str) -> None:
    """Import a module by its name in one release of its library; another may have no such module."""
    with suppress(ImportError):
        import_module(name)
