"""Objects inside an outcome: the measurement, the layout check, the fingerprint. Absent keys are unknown. Standard
library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypedDict, get_type_hints

from search_spaces.decoding import decode_value
from trials.json_types import is_finite_number, is_integer, is_text


class TimeParts(TypedDict, total=False):
    """Seconds of a step by what they were spent on. Measured with `measure.profile`; they add up to the step time."""

    compute: float
    tensor: float
    """Communication of tensor parallelism."""
    context: float
    """Communication of context parallelism: keys, values, or positions for heads."""
    expert: float
    """Communication of expert parallelism: tokens to their experts and back, and waiting for their counts."""
    pipeline: float
    """Communication between pipeline stages."""
    data_parallel: float
    """Communication of data parallelism."""
    bubble: float
    """Waiting for other pipeline stages."""
    optimizer: float
    offload: float
    """Copies between device and host."""


@dataclass(frozen=True, kw_only=True)
class MeasuredMetrics:
    """`measured` of an outcome: the measurement of a run, or of a layout over its runs. What is unknown is absent in
    JSON.

    A trial that was pruned has it too: `tokens_per_sec_high` is then an upper bound.
    """

    warmup_steps: int | None = None
    """Steps dropped as warm-up."""
    measured_steps: int
    step_time_s: float
    """Median, of the slowest rank."""
    step_time_low_s: float | None = None
    """Lower end of its 95 % interval."""
    step_time_high_s: float | None = None
    """Upper end of its 95 % interval."""
    step_time_p95_s: float | None = None
    """95th percentile."""
    fastest_rank_step_time_s: float | None = None
    """Median, of the fastest rank."""
    tokens_per_sec: float
    """Over all ranks, by the median step time."""
    tokens_per_sec_low: float | None = None
    """Lower end of its 95 % interval."""
    tokens_per_sec_high: float | None = None
    """Upper end of its 95 % interval."""
    tokens_per_sec_per_gpu: float
    """`tokens_per_sec` over the number of ranks."""
    samples_per_sec: float
    """Sequences, over all ranks."""
    model_tflops_per_gpu: float | None = None
    """10^12 model FLOPs a second and rank, without recomputed ones."""
    mfu: float | None = None
    """Model FLOPs over the accelerator's peak, a fraction; docs/measuring.md."""
    mfu_causal: float | None = None
    """`mfu` with half the attention FLOPs."""
    hfu: float | None = None
    """`mfu` with recomputed FLOPs."""
    peak_memory_gib: float | None = None
    """Largest over the ranks: reserved on a GPU, resident on a CPU."""
    peak_memory_allocated_gib: float | None = None
    """Largest over the ranks, on a GPU."""
    peak_device_memory_gib: float | None = None
    """Largest over the ranks: used of a GPU, by anything, after a step."""
    allocated_memory_slope_mib_per_step: float | None = None
    """Growth of the largest over the ranks that is allocated to tensors after a step, on a GPU."""
    reserved_memory_slope_mib_per_step: float | None = None
    """The same of what is reserved by the allocator."""
    device_memory_slope_mib_per_step: float | None = None
    """The same of what is used of a GPU, by anything."""
    device_memory_full_at_step: int | None = None
    """Step at which a GPU would be full; absent unless it grows."""
    peak_host_memory_gib: float | None = None
    """Largest sum over the ranks of a node."""
    host_memory_available_gib: float | None = None
    """Least that is still available on a node after the last step."""
    host_memory_slope_mib_per_step: float | None = None
    """Absent unless it grows."""
    host_memory_full_at_step: int | None = None
    """Step at which host memory would be full; absent unless it grows."""
    data_wait_s: float | None = None
    """Median time of a step spent waiting for the batch."""
    joules_per_token: float | None = None
    """Energy of all ranks' GPUs over the measured steps, by their drivers' counters, over the tokens of these steps.
    Absent where it is not known of every rank; docs/measuring.md."""
    joules_per_token_low: float | None = None
    """Lower end of its interval, by the resolution of the counters."""
    joules_per_token_high: float | None = None
    """Upper end of its interval."""
    document_length: float | None = None
    """Tokens of a token's document in its sequence, a mean over the measured steps, where attention is by document. The
    FLOPs are those of these documents."""
    expert_tokens_mean: float | None = None
    """Tokens of an expert in a step over all ranks, the mean over a layer's experts. Absent without experts."""
    expert_tokens_most: float | None = None
    """The same of the most loaded expert of any layer, counted in the measured steps."""
    loss_first: float | None = None
    loss_last: float | None = None
    epoch_s: float | None = None
    """Time of the first epoch of a dataset, where it ended."""
    loss_after_epoch: float | None = None
    """Loss of the step after that epoch."""
    startup_s: float | None = None
    """From the start of rank 0's process to the first measured step."""
    startup_parts_s: Mapping[str, float] | None = None
    """Its parts, by `StartupPart`; they add up to it."""
    time_s: Mapping[str, float] | None = None
    """`TimeParts`, with `measure.profile`."""

    def to_json(self) -> dict[str, Any]:
        """The known values by name, in the order of the fields."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: dict(v) if name in _PARTS else v for name, v in known.items() if v is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MeasuredMetrics:
        """The inverse of `to_json`; ValueError for data with a `metrics_fault`."""
        if (fault := metrics_fault(data)) is not None:
            raise ValueError(fault)
        return cls(**data)


@dataclass(frozen=True)
class ThroughputBound:
    """`measured` of an outcome that ran out of time after three steps."""

    tokens_per_sec_high: float
    """Upper bound: the rate of the fastest step."""

    def to_json(self) -> dict[str, Any]:
        return {"tokens_per_sec_high": self.tokens_per_sec_high}


_PARTS = ("startup_parts_s", "time_s")
_POSITIVE = tuple(field.name for field in fields(MeasuredMetrics) if field.default is MISSING)
_COUNTS = ("warmup_steps", "measured_steps", "host_memory_full_at_step", "device_memory_full_at_step")
_SIGNED = ("loss_", "_slope_mib_per_step")
"""Parts of the names of metrics that may be below zero."""
_NAMES = tuple(field.name for field in fields(MeasuredMetrics))


def measured_of(data: Mapping[str, Any]) -> MeasuredMetrics | ThroughputBound | None:
    """Decode `measured` of an outcome; None if empty. ValueError for what is neither."""
    if not data:
        return None
    if set(data) != {"tokens_per_sec_high"}:
        return MeasuredMetrics.from_json(data)
    if not _is_positive(data["tokens_per_sec_high"]):
        raise ValueError(f"tokens_per_sec_high is {data['tokens_per_sec_high']!r:.80}, not a positive number")
    return ThroughputBound(data["tokens_per_sec_high"])


def metrics_fault(data: Mapping[str, Any]) -> str | None:
    """The reason why these are no metrics: an unknown name, a value of another type or below zero, a time or rate that
    is missing or not positive, an energy that is not positive."""
    for name, value in data.items():
        if name not in _NAMES:
            return f"{name:.80} is not a metric"
        if value is not None and (wanted := _unmet_type(name, value)) is not None:
            return f"{name} is {value!r:.80}, not {wanted}"
    positive = (*_POSITIVE, *(() if data.get("joules_per_token") is None else ("joules_per_token",)))
    wrong = (name for name in positive if not _is_positive(data.get(name)))
    return next((f"{name} is {data.get(name)!r:.80}, not a positive number" for name in wrong), None)


def _is_positive(value: Any) -> bool:
    return is_finite_number(value) and value > 0


def _unmet_type(name: str, value: Any) -> str | None:
    """The type that this metric has and the value does not."""
    if name in _PARTS:
        return None if _is_named_numbers(value) else "finite numbers by name"
    if name in _COUNTS and not is_integer(value):
        return "a whole number"
    if any(part in name for part in _SIGNED):
        return None if is_finite_number(value) else "a finite number"
    return None if _is_amount(value) else "a finite number, 0 or more"


def _is_named_numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(str(k).isidentifier() and is_finite_number(v) for k, v in value.items())


class SlowestRank(TypedDict):
    """`slowest_rank` of an outcome: the rank that computes longest, compared with those that have equal work."""

    rank: int
    host: str
    compute_s: float
    """Median of its compute time: a step's time without that for which it waited in collectives."""
    compute_p95_s: float
    """95th percentile."""
    peers_compute_s: float
    """Median of the ranks with equal work."""
    slowdown: float
    """Its compute time over that of its peers, the median of the steps."""
    steps: int
    """Timed steps."""
    stragglers: list[int]
    """Ranks more than 15 % slower than their peers, with 95 % confidence."""
    straggler_hosts: list[str]


class FullestRank(TypedDict, total=False):
    """`fullest_rank` of an outcome: the rank that has least memory left, and what takes it, in GiB at the peak.

    On a GPU `allocated_gib`, `cached_gib` and `outside_gib` add up to `used_gib`; on a CPU that is resident.
    """

    rank: int
    host: str
    device_gib: float
    """Memory of its GPU."""
    limit_gib: float
    """`measure.memory_limit_gib`, which a GPU's allocator and a CPU rank's process are held to."""
    used_gib: float
    """GiB of the GPU in use, by anything."""
    free_gib: float
    """GiB that may still be taken, of the GPU or of the limit, whichever leaves less."""
    allocated_gib: float
    """Tensors."""
    cached_gib: float
    """Kept free by the allocator."""
    outside_gib: float
    """Outside of the allocator: the driver's context, communication libraries, captured graphs, other processes."""
    inactive_split_gib: float
    """Part of what is kept free, in blocks of which another part is in use: fragments that cannot be given back."""
    alloc_retries: int
    """Allocations that failed until the allocator had given back what it kept."""


def fullest_rank_fault(data: Mapping[str, Any]) -> str | None:
    """The reason why this is no `FullestRank`; None where it is, or is empty."""
    if not data:
        return None
    checks = {"host": is_text, "rank": _is_rank, "alloc_retries": _is_rank, "free_gib": is_finite_number}
    for name, value in data.items():
        if name not in get_type_hints(FullestRank) or not checks.get(name, _is_amount)(value):
            return f"fullest_rank.{name:.80} is {value!r:.80}"
    together = ("allocated_gib", "cached_gib")
    required = ("rank", "host", "used_gib", *(together if any(name in data for name in together) else ()))
    return next((f"fullest_rank has no {name}" for name in required if name not in data), None)


def _is_amount(value: Any) -> bool:
    return is_finite_number(value) and value >= 0


def slowest_rank_fault(data: Mapping[str, Any]) -> str | None:
    """The reason why this is no `SlowestRank`; None where it is, or is empty."""
    if not data:
        return None
    names = get_type_hints(SlowestRank)
    if data.keys() != names.keys():
        return f"slowest_rank has {', '.join(map(str, data)):.80}, not {', '.join(names)}"
    ranks, hosts = data["stragglers"], data["straggler_hosts"]
    if not (isinstance(ranks, list) and all(map(_is_rank, ranks)) and _is_rank(data["rank"])):
        return f"slowest_rank names ranks {data['rank']!r:.80}, {ranks!r:.80}"
    if not (isinstance(hosts, list) and all(isinstance(host, str) for host in (*hosts, data["host"]))):
        return f"slowest_rank names hosts {data['host']!r:.80}, {hosts!r:.80}"
    numbers = [name for name in names if name not in ("rank", "host", "stragglers", "straggler_hosts")]
    wrong = (name for name in numbers if not _is_amount(data[name]))
    return next((f"slowest_rank.{name} is {data[name]!r:.80}, not a number" for name in wrong), None)


def _is_rank(value: Any) -> bool:
    return is_integer(value) and value >= 0


class CrossCheck(TypedDict):
    """A rate or time that a third-party trainer prints, against ours."""

    name: str
    """`tokens_per_sec`, `samples_per_sec`, `tflops` or `seconds_between_lines`."""
    printed: float
    ours: float
    agrees: bool
    """True within 10 %; of seconds between lines up to 1.5 times those printed, and 0.1."""


class LayoutProof(TypedDict, total=False):
    """`proof` of an outcome: counts that show that the layout took effect. Of a third-party trainer, what its log
    shows."""

    world_size: int
    tensor_parallel: int
    """Size of the tensor-parallel group."""
    pipeline_parallel: int
    """Size of the pipeline group."""
    data_parallel: int
    """Size of the data-parallel group."""
    context_parallel: int
    """Size of the context-parallel group, of a layout that has one."""
    expert_parallel: int
    """Size of the group that distributes experts, of a model that has some."""
    expert_tensor_parallel: int
    """Size of the group that splits every expert, of a model that has some."""
    parameters: int
    """Parameters of the model."""
    local_parameters_sum: int
    """Sum of the ranks' parameters."""
    optimizer_parameters_sum: int
    """Parameters with optimizer state, summed over the ranks: each data-parallel rank holds all, from ZeRO 1 on a
    share."""
    micro_batches_per_step: int | list[int]
    """Micro-batches of a measured step; both numbers, ascending, where the step time is extrapolated."""
    samples_per_data_rank: list[int]
    global_batch_size: int
    """Third-party trainers only."""
    vocab_size: int
    """Size of the model's vocabulary, padding included. Third-party trainers only."""
    unproven: list[str]
    """Fields among world size, global batch, parameters and data parallelism that neither the log nor the observed step
    shows. Third-party trainers only."""
    observed_step: Mapping[str, Any]
    """`ObservedStep`, of a third-party trainer whose ranks were observed."""
    cross_checks: list[CrossCheck]
    """Third-party trainers only."""


class Fingerprint(TypedDict, total=False):
    """`fingerprint` of an outcome: program, software and hardware. Measurements are compared only where scripts,
    script_python_files, python, torch, deepspeed, megatron_core, transformer_engine, megatron_layers, torchtitan,
    torchao, accelerate, transformers, cuda and device agree."""

    command: str
    """The command of a third-party trainer with all arguments; interpreter and attempt folder as placeholders."""
    scripts: dict[str, str]
    """Path and SHA-256 of trainer.script; of a command, its program where that is a script, and its first argument that
    is a text file."""
    script_commit: str
    """Commit of the script's git checkout. Absent where git tracks no Python file in the script's folder."""
    script_modified: dict[str, str]
    """Python files of the checkout that differ from what was last added to git, each with git's id of its content; ""
    for a deleted one."""
    script_python_files: str
    """SHA-256 over names and contents of the Python files that git tracks in the checkout; the commit where git's index
    cannot be read."""
    python: str
    torch: str
    deepspeed: str | None
    megatron_core: str | None
    """With engine megatron-core; with trainer megatron-lm that of the script's folder, else the installed one."""
    transformer_engine: str | None
    """Version whose layers engine megatron-core took; with another trainer the installed one."""
    megatron_layers: str | None
    """Layers that engine megatron-core took: `local` or `transformer_engine`."""
    torchtitan: str | None
    """With engine torchtitan only."""
    torchao: str | None
    """With 8-bit matmul_precision only."""
    accelerate: str | None
    """With engine or trainer accelerate only."""
    transformers: str | None
    """With engine or trainer accelerate only."""
    cuda: str | None
    device: str
    cpus: int
    kernel: str
    host: str
    """Host name of rank 0."""
    executable: str
    """Python interpreter of rank 0."""
    nccl: str | None
    gpu_driver: str | None
    energy_counter: str | None
    """Library that read the GPUs' energy: `nvml` or `amdsmi`. Absent where none did."""
    environment: dict[str, str]
    """Variables of rank 0 that configure libraries and transports, without secrets."""
    job_id: str | None
    """SLURM_JOB_ID."""
    hosts: list[str]
    """Nodes of all ranks by Slurm's names, or the hosts' without Slurm; without duplicates, in rank order."""
    probe_ms_by_rank: list[float]
    """Time of one matrix product of fixed size before training, on GPUs."""
    slow_hosts: list[str]
    """Hosts of ranks more than 15 % slower than the median at it."""


def ranks_fault(outcome: Mapping[str, Any]) -> str | None:
    """The reason why what an outcome says of its ranks and their layout, whatever became of the trial, has not the
    types of the contract; None where it has."""
    try:
        decode_value(LayoutProof, outcome.get("proof", {}), "proof")
        fingerprint = decode_value(Fingerprint, outcome.get("fingerprint", {}), "fingerprint")
    except ValueError as error:
        return str(error)
    if any(ms <= 0 for ms in fingerprint.get("probe_ms_by_rank", ())):
        return f"probe_ms_by_rank is {fingerprint['probe_ms_by_rank']!r:.80}, not a list of positive numbers"
    return slowest_rank_fault(outcome.get("slowest_rank", {})) or fullest_rank_fault(outcome.get("fullest_rank", {}))
