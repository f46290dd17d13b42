"""Log format of nanotron. Standard library only."""

from __future__ import annotations

import re

from trials.trainers.common.log_lines import MIB_PER_GIB, Finding, LogFormat, labelled

_PREFIXED = r"([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)([KMBGTP]?)"
NANOTRON_LOG = LogFormat(
    re.compile(r"\biteration: \d+ / \d+ \|.*\belapsed_time_per_iteration_ms: [\d.]+"),
    {
        "iteration": (Finding(re.compile(r"\biteration: (\d+) / \d+ \|")),),
        "step_time_ms": (labelled(r"\belapsed_time_per_iteration_ms:", _PREFIXED),),
        "loss": (labelled(r"\blm_loss:", _PREFIXED),),
        "grad_norm": (labelled(r"\bgrad_norm:", _PREFIXED),),
        # Only whole numbers: a larger batch is rounded to three digits, such as 1.02K.
        "global_batch_size": (labelled(r"\bglobal_batch_size:", r"(\d+)"),),
        "tokens_per_sec": (labelled(r"\btokens_per_sec:", _PREFIXED),),
        "tokens_per_sec_per_gpu": (labelled(r"\btokens_per_sec_per_gpu:", _PREFIXED),),
        "tflops": (labelled(r"\bmodel_tflops_per_gpu:", _PREFIXED),),
        "memory_gib": (labelled(r"\bcuda_max_memory_reserved:", _PREFIXED, 2**-30),),
    },
    {"memory_gib": (Finding(re.compile(r"Peak reserved: ([\d.]+)MiB"), 1 / MIB_PER_GIB),)},
)
