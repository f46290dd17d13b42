"""The engines of Parlay's trainer by name, each imported where it is wanted: a trial needs only one.

All imports of a training come before the ranks meet. torch and DeepSpeed import much where they first need it: while
the model is built, and in the first step, which all other ranks then wait for. The names are those of torch 2.13 and
DeepSpeed 0.19.8; what another release has moved is imported late again, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from importlib import import_module

from search_spaces.adapters import Adapters
from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from search_spaces.layouts.layout import Layout
from trials.train.engines.engine import Engine, TrainingConfig
from trials.train.parallel.process_groups import World


def build_engine(training: TrainingConfig, world: World) -> Engine:
    """Build the layout's engine, on a CPU with what stands for the device that it is written for."""
    on_cpu = training.device.type == "cpu"
    if on_cpu:
        _emulate_device(training.layout)
    return engine_builder(training.layout.engine, on_cpu)(training, world)


def engine_builder(engine: str, on_cpu: bool) -> Callable[[TrainingConfig, World], Engine]:
    """Import an engine, torchtitan on a CPU after its patches; returns what builds it."""
    if engine == "deepspeed":
        from trials.train.engines.deepspeed_engine import build_deepspeed_engine

        return build_deepspeed_engine
    if engine == MEGATRON_CORE:
        from trials.train.engines.megatron_core_engine import MegatronCoreEngine

        return MegatronCoreEngine
    if engine == TORCHTITAN:
        if on_cpu:
            from trials.train.cpu_device.torchtitan import emulate_device

            emulate_device()
        from trials.train.engines.torchtitan_engine import TorchTitanEngine

        return TorchTitanEngine
    if engine == ACCELERATE:
        from trials.train.engines.accelerate_engine import AccelerateEngine

        return AccelerateEngine
    from trials.train.engines.torch_engine import TorchEngine

    return TorchEngine


def _emulate_device(layout: Layout) -> None:
    """Apply the patches that an engine needs on a CPU when it is built."""
    if layout.engine == MEGATRON_CORE:
        from trials.train.cpu_device import megatron_core

        megatron_core.emulate_device()
    if layout.engine == ACCELERATE and layout.zero_stage > 0:
        from trials.train.cpu_device import accelerate

        accelerate.emulate_device()


def import_training(layout: Layout, on_cpu: bool, adapters: Adapters | None = None) -> None:
    """Import what a training of this layout needs, and nothing else."""
    engine_builder(layout.engine, on_cpu)
    if adapters is not None and layout.engine == ACCELERATE:
        of_kind = ["bitsandbytes.nn"] if adapters.kind == "qlora" else []
        for name in ("peft", "trials.train.engines.peft_model", *of_kind):
            import_module(name)
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
