"""Log formats of the DeepSpeed engine and of its pipeline. Standard library only."""

from __future__ import annotations

import re

from trials.trainers.common.log_lines import NUMBER, Finding, LogFormat

DEEPSPEED_LOG = LogFormat(
    re.compile(r"\bglobal_step=\d+, RunningAvgSamplesPerSec=[\d.]+, CurrSamplesPerSec=[\d.]+,"),
    {
        "iteration": (Finding(re.compile(r"\bglobal_step=(\d+),")),),
        "samples_per_sec": (Finding(re.compile(r"\bCurrSamplesPerSec=([\d.]+(?:[eE][-+]?\d+)?),")),),
        "memory_allocated_gib": (Finding(re.compile(r"\bMaxMemAllocated=([\d.]+)GB")),),
    },
    {},
)
DEEPSPEED_PIPELINE_LOG = LogFormat(
    re.compile(r"\bsteps: \d+ loss: \S+ .*?iter time \(s\): [\d.]+ samples/sec: [\d.]+\s*$"),
    {
        "iteration": (Finding(re.compile(r"\bsteps: (\d+) loss:")),),
        "loss": (Finding(re.compile(r"\bloss: " + NUMBER + r"\s")),),
        "step_time_s": (Finding(re.compile(r"iter time \(s\): ([\d.]+) samples/sec:")),),
        "samples_per_sec": (Finding(re.compile(r"samples/sec: ([\d.]+)\s*$")),),
    },
    {},
)
