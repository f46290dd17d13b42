"""Log formats of trainers: what their lines report. Patterns are data. Pure, standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from search_spaces.errors import did_you_mean
from trials.files.text import without_escapes

NAMES = (
    "iteration",
    "step_time_s",
    "step_time_ms",
    "loss",
    "grad_norm",
    "global_batch_size",
    "consumed_samples",
    "samples_per_sec",
    "tokens_per_sec",
    "tokens_per_sec_per_gpu",
    "tflops",
    "memory_gib",
    "memory_allocated_gib",
    "skipped",
    "nan",
    "world_size",
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "micro_batches_per_step",
    "parameters",
    "local_parameters_sum",
)
"""Metrics that a pattern may extract. `tflops` are TFLOP/s of one GPU, `memory_gib` the peak that one rank's allocator
reserved; `skipped` and `nan` count iterations. The last seven prove the layout."""

STEP_NAMES = ("step_time_s", "step_time_ms", "samples_per_sec", "tokens_per_sec")
"""Metrics that give the step time, the most direct first: one is needed."""
PROOF_NAMES = NAMES[NAMES.index("world_size") :]
LONGEST_LINE = 64 * 1024
"""Characters of a line that are searched: longer lines are no report of a step."""

MIB_PER_GIB = 1024
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
_LARGEST = 1e18


@dataclass(frozen=True)
class Finding:
    """A regular expression whose first group is a number, and what that has to be multiplied with.

    A second group, where there is one, is a unit prefix (K, M, G ...).
    """

    pattern: re.Pattern[str]
    factor: float = 1.0


@dataclass(frozen=True)
class LogFormat:
    """Patterns of a trainer's log. A line reports a step when `step` matches it; it is then searched for `findings`,
    any other line for `elsewhere`."""

    step: re.Pattern[str]
    findings: Mapping[str, tuple[Finding, ...]]
    elsewhere: Mapping[str, tuple[Finding, ...]]


@dataclass(frozen=True)
class Line:
    """Values of one line, by `NAMES`; times in seconds, never in milliseconds."""

    is_step: bool
    values: Mapping[str, float]


def read_line(text: str, log_format: LogFormat) -> Line:
    """The values of a complete line, whatever its colours. Impossible numbers (negative, beyond 1e18) are left out; nan
    and inf are kept."""
    text = without_escapes(text[:LONGEST_LINE])
    is_step = log_format.step.search(text) is not None
    wanted = log_format.findings if is_step else log_format.elsewhere
    values = dict(_values(text, wanted))
    if "step_time_ms" in values:
        values["step_time_s"] = values.pop("step_time_ms") / 1e3
    return Line(is_step, values)


def _values(text: str, wanted: Mapping[str, tuple[Finding, ...]]) -> Iterator[tuple[str, float]]:
    for name, findings in wanted.items():
        for finding in findings:
            found = finding.pattern.search(text)
            value = None if found is None else _number(found, finding.factor)
            if value is not None:
                yield name, value
                break


def _number(found: re.Match[str], factor: float) -> float | None:
    """The number of the first group; None where it did not match, is not a number, or is impossible."""
    groups = found.groups()
    text = groups[0]
    if text is None:
        return None
    try:
        value = float(text) * factor
    except ValueError:
        return None
    prefix = groups[1] if len(groups) > 1 and groups[1] else ""
    value *= _SCALES.get(prefix, math.nan)
    return value if not math.isfinite(value) or 0 <= value <= _LARGEST else None


def command_format(patterns: Mapping[str, str]) -> LogFormat:
    """The user's own patterns, by `NAMES`. A line reports a step when the first given one of `STEP_NAMES` matches it.

    The patterns must be free of faults.
    """
    findings = {name: (Finding(re.compile(text)),) for name, text in patterns.items()}
    step = next(patterns[name] for name in STEP_NAMES if name in patterns)
    return LogFormat(re.compile(step), findings, findings)


# A number is complete only with the character after it: a line that another rank's output interrupts must not give half
# a number.
_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf|NAN|INF))"
_END = r"\s*[|/]"


def _finding(label: str, number: str = _NUMBER, factor: float = 1.0) -> Finding:
    return Finding(re.compile(label + r"\s*" + number + _END), factor)


_MEGATRON_STEP = re.compile(r"\biteration\s+\d+/\s*\d+ \|.*elapsed time per iteration \(ms\):\s*[\d.]+" + _END)
_MEGATRON_FINDINGS = {
    "iteration": (Finding(re.compile(r"\biteration\s+(\d+)/\s*\d+ \|")),),
    "step_time_ms": (_finding(r"elapsed time per iteration \(ms\):"),),
    "loss": (_finding(r"\blm[ _]loss:"),),
    "grad_norm": (_finding(r"\bgrad norm:"),),
    "global_batch_size": (_finding(r"\bglobal batch size:"),),
    "consumed_samples": (_finding(r"\bconsumed samples:"),),
    "tflops": (
        _finding(r"throughput per GPU \(TFLOP/s/GPU\):"),
        _finding(r"\bTFLOPs:"),
        Finding(re.compile(r"approx flops per GPU:\s*([\d.]+)([KMGTP]?)FLOPS" + _END), 1e-12),
    ),
    "samples_per_sec": (_finding(r"\bsamples per second:"), _finding(r"\bsamples/sec:")),
    "tokens_per_sec_per_gpu": (_finding(r"tokens per gpu per second \(tgs\):"),),
    "skipped": (_finding(r"number of skipped iterations:"),),
    "nan": (_finding(r"number of nan iterations:"),),
}
_MEGATRON_ELSEWHERE = {
    "memory_gib": (Finding(re.compile(r"memory \(MB\) \|.*\bmax reserved: ([\d.]+)"), 1 / MIB_PER_GIB),),
    "memory_allocated_gib": (Finding(re.compile(r"memory \(MB\) \|.*?\bmax allocated: ([\d.]+)"), 1 / MIB_PER_GIB),),
    "world_size": (Finding(re.compile(r"using world size: (\d+),")),),
    "data_parallel": (Finding(re.compile(r"using world size: .*\bdata-parallel size: (\d+),")),),
    "tensor_parallel": (Finding(re.compile(r"using world size: .* tensor-model-parallel size: (\d+),")),),
    "pipeline_parallel": (Finding(re.compile(r"using world size: .* pipeline-model-parallel size: (\d+)\b")),),
    "micro_batches_per_step": (Finding(re.compile(r"setting number of micro-?batches to constant (\d+)\b")),),
}
_MEGATRON = LogFormat(_MEGATRON_STEP, _MEGATRON_FINDINGS, _MEGATRON_ELSEWHERE)

_PREFIXED = r"([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)([KMBGTP]?)"
_NANOTRON = LogFormat(
    re.compile(r"\biteration: \d+ / \d+ \|.*\belapsed_time_per_iteration_ms: [\d.]+"),
    {
        "iteration": (Finding(re.compile(r"\biteration: (\d+) / \d+ \|")),),
        "step_time_ms": (_finding(r"\belapsed_time_per_iteration_ms:", _PREFIXED),),
        "loss": (_finding(r"\blm_loss:", _PREFIXED),),
        "grad_norm": (_finding(r"\bgrad_norm:", _PREFIXED),),
        # Only whole numbers: a larger batch is rounded to three digits, such as 1.02K.
        "global_batch_size": (_finding(r"\bglobal_batch_size:", r"(\d+)"),),
        "tokens_per_sec": (_finding(r"\btokens_per_sec:", _PREFIXED),),
        "tokens_per_sec_per_gpu": (_finding(r"\btokens_per_sec_per_gpu:", _PREFIXED),),
        "tflops": (_finding(r"\bmodel_tflops_per_gpu:", _PREFIXED),),
        "memory_gib": (_finding(r"\bcuda_max_memory_reserved:", _PREFIXED, 2**-30),),
    },
    {"memory_gib": (Finding(re.compile(r"Peak reserved: ([\d.]+)MiB"), 1 / MIB_PER_GIB),)},
)

_DEEPSPEED = LogFormat(
    re.compile(r"\bglobal_step=\d+, RunningAvgSamplesPerSec=[\d.]+, CurrSamplesPerSec=[\d.]+,"),
    {
        "iteration": (Finding(re.compile(r"\bglobal_step=(\d+),")),),
        "samples_per_sec": (Finding(re.compile(r"\bCurrSamplesPerSec=([\d.]+(?:[eE][-+]?\d+)?),")),),
        "memory_allocated_gib": (Finding(re.compile(r"\bMaxMemAllocated=([\d.]+)GB")),),
    },
    {},
)
_DEEPSPEED_PIPELINE = LogFormat(
    re.compile(r"\bsteps: \d+ loss: \S+ .*?iter time \(s\): [\d.]+ samples/sec: [\d.]+\s*$"),
    {
        "iteration": (Finding(re.compile(r"\bsteps: (\d+) loss:")),),
        "loss": (Finding(re.compile(r"\bloss: " + _NUMBER + r"\s")),),
        "step_time_s": (Finding(re.compile(r"iter time \(s\): ([\d.]+) samples/sec:")),),
        "samples_per_sec": (Finding(re.compile(r"samples/sec: ([\d.]+)\s*$")),),
    },
    {},
)

FORMATS: Mapping[str, LogFormat] = {
    "megatron-lm": _MEGATRON,
    "megatron-deepspeed": _MEGATRON,
    "gpt-neox": _MEGATRON,
    "nanotron": _NANOTRON,
    "deepspeed": _DEEPSPEED,
    "deepspeed-pipeline": _DEEPSPEED_PIPELINE,
}
"""The formats by name; a trainer's own has the name of its kind."""


def pattern_faults(patterns: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """(name, fault, rule, fix) of every unusable pattern of the user's."""
    for name, text in patterns.items():
        if name not in NAMES:
            rule = "patterns are named " + ", ".join(NAMES)
            yield name, "is an unknown metric", rule, did_you_mean(name, NAMES) or "use one of these names"
            continue
        try:
            groups = re.compile(text).groups
        except re.error as error:
            rule = "a pattern is a regular expression as Python's re reads it"
            yield (
                name,
                f"is not a regular expression: {error}",
                rule,
                "correct it; escape special characters of the log, for example \\(",
            )
            continue
        if groups != 1:
            fix = "put ( ) around the number alone; (?: ) groups without counting"
            yield name, f"has {groups} groups", "a pattern has one group, which is the number", fix
    if not set(STEP_NAMES) & set(patterns):
        fix = "for example step_time_ms: 'iteration took ([0-9.]+) ms'"
        yield "", "do not match a step's time", "one of them is " + ", ".join(STEP_NAMES), fix
