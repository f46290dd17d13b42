"""torchtitan's own training program on a CPU: torchtitan.train with its arguments, after the patches of trials.

torchrun ... -m tests.trials.external.torchtitan_on_cpu --module MODULE --config FUNCTION ...
"""

from __future__ import annotations

import runpy

import torch

from trials.train.cpu_device.torchtitan import emulate_device


def main() -> None:
    emulate_device()
    if not hasattr(torch.distributed, "set_timeout"):  # of torch 2.14
        torch.distributed.set_timeout = lambda *_, **__: None
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
