"""Log lines of a trainer as numbers, by the patterns of its log format. Pure, standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from search_spaces.errors import Problem, did_you_mean
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
    "vocab_size",
)
"""Metrics that a pattern may extract. `tflops` are TFLOP/s of one GPU, `memory_gib` the peak that one rank's allocator
reserved; `skipped` and `nan` count iterations. `vocab_size` includes
padding. The last eight prove the layout."""

STEP_NAMES = ("step_time_s", "step_time_ms", "samples_per_sec", "tokens_per_sec")
"""Metrics that give the step time, the most direct first: one is needed."""
PROOF_NAMES = NAMES[NAMES.index("world_size") :]
LONGEST_LINE = 64 * 1024
"""Characters of a line that are searched: longer lines are no report of a step."""

MIB_PER_GIB = 1024
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
_LARGEST = 1e18


@dataclass(frozen=True)
class Pattern:
    """A regular expression whose first group is a number, and what that has to be multiplied with.

    A second group, where there is one, is a unit prefix (K, M, G ...).
    """

    expression: re.Pattern[str]
    factor: float = 1.0


Patterns = Mapping[str, tuple[Pattern, ...]]
"""Patterns by `NAMES`, several where trainers print a number in several ways."""


@dataclass(frozen=True)
class LogFormat:
    """Patterns of a trainer's log. A line reports a step where it has the number that gives the step time, the first of
    `STEP_NAMES`, and its iteration unless that may be missing. It is then searched for `of_step`, any other line for
    `elsewhere`. The first `least_warmup_steps` steps are never measured."""

    of_step: Patterns
    elsewhere: Patterns = field(default_factory=dict)
    least_warmup_steps: int = 0
    has_iterations: bool = True

    def is_step(self, text: str) -> bool:
        """True for a line that reports a step."""
        needed = next(name for name in STEP_NAMES if name in self.of_step), *(["iteration"] * self.has_iterations)
        return all(any(each.expression.search(text) for each in self.of_step[name]) for name in needed)


@dataclass(frozen=True)
class Line:
    """Values of one line, by `NAMES`; times in seconds, never in milliseconds."""

    is_step: bool
    values: Mapping[str, float]


def read_line(text: str, log_format: LogFormat) -> Line:
    """The values of a complete line, whatever its colours. Impossible numbers (negative, beyond 1e18) are left out; nan
    and inf are kept."""
    text = without_escapes(text[:LONGEST_LINE])
    is_step = log_format.is_step(text)
    values = dict(_values(text, log_format.of_step if is_step else log_format.elsewhere))
    if "step_time_ms" in values:
        values["step_time_s"] = values.pop("step_time_ms") / 1e3
    return Line(is_step, values)


def _values(text: str, wanted: Patterns) -> Iterator[tuple[str, float]]:
    for name, patterns in wanted.items():
        for pattern in patterns:
            found = pattern.expression.search(text)
            value = None if found is None else _number(found, pattern.factor)
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
    """The user's own patterns, by `NAMES`, which must be free of faults. Every line with a step's time reports one."""
    found = {name: number_in(text) for name, text in patterns.items()}
    return LogFormat(found, found, has_iterations=False)


# A number is complete only with the character after it: a line that another rank's output interrupts must not give half
# a number.
NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf|NAN|INF))"
END = r"\s*[|/]"


def number_in(text: str, factor: float = 1.0) -> tuple[Pattern, ...]:
    """The number that the first group of a regular expression is."""
    return (Pattern(re.compile(text), factor),)


def labelled(*labels: str, number: str = NUMBER, factor: float = 1.0) -> tuple[Pattern, ...]:
    """The number after a label, up to the next `|` or `/`."""
    return tuple(Pattern(re.compile(label + r"\s*" + number + END), factor) for label in labels)


def pattern_problems(patterns: Mapping[str, str]) -> Iterator[Problem]:
    """Every unusable pattern of the user's, by its key in the search file's section `trainer`."""
    for name, text in patterns.items():
        fault = partial(Problem, "pattern", key=f"patterns.{name}", value=text)
        if name not in NAMES:
            rule = "patterns are named " + ", ".join(NAMES)
            fix = did_you_mean(name, NAMES) or "use one of these names"
            yield fault("is an unknown metric", rule, fix)
            continue
        try:
            groups = re.compile(text).groups
        except re.error as error:
            rule = "a pattern is a regular expression as Python's re reads it"
            fix = "correct it; escape special characters of the log, for example \\("
            yield fault(f"is not a regular expression: {error}", rule, fix)
            continue
        if groups != 1:
            fix = "put ( ) around the number alone; (?: ) groups without counting"
            yield fault(f"has {groups} groups", "a pattern has one group, which is the number", fix)
    if not set(STEP_NAMES) & set(patterns):
        fix = "for example step_time_ms: 'iteration took ([0-9.]+) ms'"
        rule = "one of them is " + ", ".join(STEP_NAMES)
        yield Problem("pattern", "do not match a step's time", rule, fix, key="patterns")


_OF_A_MEGATRON_STEP = {
    "iteration": number_in(r"\biteration\s+(\d+)/\s*\d+ \|"),
    "step_time_ms": labelled(r"elapsed time per iteration \(ms\):"),
    "loss": labelled(r"\blm[ _]loss:"),
    "grad_norm": labelled(r"\bgrad norm:"),
    "global_batch_size": labelled(r"\bglobal batch size:"),
    "consumed_samples": labelled(r"\bconsumed samples:"),
    "tflops": (
        *labelled(r"throughput per GPU \(TFLOP/s/GPU\):", r"\bTFLOPs:"),
        *number_in(r"approx flops per GPU:\s*([\d.]+)([KMGTP]?)FLOPS" + END, 1e-12),
    ),
    "samples_per_sec": labelled(r"\bsamples per second:", r"\bsamples/sec:"),
    "tokens_per_sec_per_gpu": labelled(r"tokens per gpu per second \(tgs\):"),
    "skipped": labelled(r"number of skipped iterations:"),
    "nan": labelled(r"number of nan iterations:"),
}
_ELSEWHERE_IN_MEGATRON = {
    "memory_gib": number_in(r"memory \(MB\) \|.*\bmax reserved: ([\d.]+)", 1 / MIB_PER_GIB),
    "memory_allocated_gib": number_in(r"memory \(MB\) \|.*?\bmax allocated: ([\d.]+)", 1 / MIB_PER_GIB),
    "world_size": number_in(r"using world size: (\d+),"),
    "data_parallel": number_in(r"using world size: .*\bdata-parallel size: (\d+),"),
    "tensor_parallel": number_in(r"using world size: .* tensor-model-parallel size: (\d+),"),
    "pipeline_parallel": number_in(r"using world size: .* pipeline-model-parallel size: (\d+)\b"),
    "micro_batches_per_step": number_in(r"setting number of micro-?batches to constant (\d+)\b"),
    "vocab_size": number_in(r"> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)"),
}
MEGATRON_LOG = LogFormat(_OF_A_MEGATRON_STEP, _ELSEWHERE_IN_MEGATRON)
"""Log of Megatron-LM and of the trainers that descend from it."""
# Since core_v0.16 the second line has the means of the first two iterations: should_reset in training_log().
MEGATRON_LM_LOG = replace(MEGATRON_LOG, least_warmup_steps=2)
