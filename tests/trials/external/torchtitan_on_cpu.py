"""Start of an interpreter: a CPU for torchtitan's own program, nothing before any other. Imported by site."""

from __future__ import annotations

import os
import sys

if "torchtitan.train" in sys.orig_argv and "RANK" in os.environ:
    import torch

    from trials.train.cpu_device.torchtitan import emulate_device

    emulate_device()
    if not hasattr(torch.distributed, "set_timeout"):  # of torch 2.14
        torch.distributed.set_timeout = lambda *_, **__: None
