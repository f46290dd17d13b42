"""Factory of engines."""

from __future__ import annotations

from trials.train.engines.engine import Engine, TrainingConfig
from trials.train.parallel.process_groups import World


def build_engine(training: TrainingConfig, world: World) -> Engine:
    """Build the layout's engine; `import_training` has imported it, since a trial needs only one."""
    if training.layout.engine == "deepspeed":
        from trials.train.engines.deepspeed_engine import build_deepspeed_engine

        return build_deepspeed_engine(training, world)
    from trials.train.engines.torch_engine import TorchEngine

    return TorchEngine(training, world)
