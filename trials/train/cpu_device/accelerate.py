"""accelerate 1.15 on a CPU, over gloo: FSDP, which accelerate gives to accelerators only."""

from __future__ import annotations

import os

from trials.train.cpu_device.patch import Patch, apply_all


def emulate_device() -> None:
    """Apply all patches. RuntimeError where there is a GPU."""
    apply_all(PATCHES)


def _name_device() -> None:
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"


def _take_gloo() -> None:
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    prepare = PartialState._prepare_backend

    def with_gloo(self: PartialState, cpu: bool = False, *arguments: object, **options: object) -> tuple:
        backend, kind = prepare(self, cpu, *arguments, **options)
        if kind is DistributedType.NO and "LOCAL_RANK" in os.environ and not cpu:
            return "gloo", DistributedType.MULTI_GPU
        return backend, kind

    PartialState._prepare_backend = with_gloo


PATCHES = (
    Patch("device", "accelerate/state.py PartialState.set_device, cuda for the type below", _name_device),
    Patch("backend", "accelerate/state.py PartialState._prepare_backend: no ranks on a CPU but MULTI_CPU", _take_gloo),
)
