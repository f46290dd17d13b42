"""Factory of engines."""

from __future__ import annotations

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from trials.train.engines.engine import Engine, TrainingConfig
from trials.train.parallel.process_groups import World


def build_engine(training: TrainingConfig, world: World) -> Engine:
    """Build the layout's engine; `import_training` has imported it, since a trial needs only one."""
    if training.layout.engine == "deepspeed":
        from trials.train.engines.deepspeed_engine import build_deepspeed_engine

        return build_deepspeed_engine(training, world)
    if training.layout.engine == MEGATRON_CORE:
        if training.device.type == "cpu":
            from trials.train.cpu_device.megatron_core import emulate_device

            emulate_device()
        from trials.train.engines.megatron_core_engine import MegatronCoreEngine

        return MegatronCoreEngine(training, world)
    if training.layout.engine == TORCHTITAN:
        from trials.train.engines.imports import import_torchtitan

        import_torchtitan(training.device.type == "cpu")
        from trials.train.engines.torchtitan_engine import TorchTitanEngine

        return TorchTitanEngine(training, world)
    if training.layout.engine == ACCELERATE:
        if training.device.type == "cpu" and training.layout.zero_stage > 0:
            from trials.train.cpu_device.accelerate import emulate_device as emulate_accelerator

            emulate_accelerator()
        from trials.train.engines.accelerate_engine import AccelerateEngine

        return AccelerateEngine(training, world)
    from trials.train.engines.torch_engine import TorchEngine

    return TorchEngine(training, world)
