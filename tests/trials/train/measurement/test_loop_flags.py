"""Flags of the training loop that follow from the spec."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.kit import SPEC
from trials.ranks.startup import Startup
from trials.train.measurement.loop import TrainingLoop
from trials.train.parallel.device import Device
from trials.trial import Flag


class NoChunks:
    chunks = ()


@pytest.mark.parametrize(
    ("engine", "accelerator", "flags"),
    [
        ("megatron-core", "cpu", (Flag.EMULATED_DEVICE,)),
        ("megatron-core", "a100-80gb", ()),
        ("torchtitan", "cpu", (Flag.EMULATED_DEVICE,)),
        ("torch", "cpu", ()),
        ("deepspeed", "cpu", ()),
    ],
)
def test_a_measurement_on_an_emulated_device_is_flagged(engine, accelerator, flags):
    spec = replace(SPEC, layout=replace(SPEC.layout, engine=engine), accelerator=accelerator)
    loop = TrainingLoop(spec, NoChunks(), data=None, device=Device(torch.device("cpu")), report=None, startup=Startup())
    assert loop.flags == flags
