"""The engines of Parlay's trainer by name, each imported where it is wanted: a trial needs only one."""

from __future__ import annotations

from collections.abc import Callable

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
