"""Start of an interpreter: FSDP for the launcher and the script, nothing before any other program. Imported by site."""

from __future__ import annotations

import os
import sys

PROGRAMS = ("launch.py", "train.py", "lora.py")

if any(os.path.basename(word) in PROGRAMS for word in sys.orig_argv[1:3]) and "RANK" in os.environ:
    from trials.train.cpu_device.accelerate import emulate_device

    emulate_device()
