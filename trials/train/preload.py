"""Imports of all layouts of an engine, for a process from which their ranks are forked."""

# ruff: noqa: F401 (imported for the processes that are forked afterwards)

from __future__ import annotations


def import_engine(engine: str) -> None:
    """Import what some rank of this engine imports, but for torch's code generator, which compiled layouts need."""
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.utils.checkpoint

    import trials.train.measurement.profile
    import trials.train.trial_run

    if engine == "deepspeed":
        import trials.train.engines.deepspeed_engine

        return
    import trials.train.engines.flat_buffers
    import trials.train.engines.fsdp
    import trials.train.engines.torch_engine
    import trials.train.engines.torch_pipeline
