"""Objects inside an outcome: the measurement, the layout check, the fingerprint. Absent keys are unknown. Standard
library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypedDict

from search_spaces.decoding import Amount, Bound, Count, JsonObject, Positive

_Name = Annotated[str, Bound("an identifier", str.isidentifier)]
_Calls = Annotated[tuple[int, ...], Bound("a shape and a number of calls", lambda shape: len(shape) > 1)]


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
class MeasuredMetrics(JsonObject):
    """`measured` of an outcome: the measurement of a run, or of a layout over its runs. What is unknown is absent in
    JSON.

    A trial that was pruned has it too: `tokens_per_sec_high` is then an upper bound.
    """

    OMITS_UNKNOWN = True

    warmup_steps: Count | None = None
    """Steps dropped as warm-up."""
    measured_steps: Count
    step_time_s: Positive
    """Median, of the slowest rank."""
    step_time_low_s: Amount | None = None
    """Lower end of its 95 % interval."""
    step_time_high_s: Amount | None = None
    """Upper end of its 95 % interval."""
    step_time_p95_s: Amount | None = None
    """95th percentile."""
    fastest_rank_step_time_s: Amount | None = None
    """Median, of the fastest rank."""
    tokens_per_sec: Positive
    """Over all ranks, by the median step time."""
    tokens_per_sec_low: Amount | None = None
    """Lower end of its 95 % interval."""
    tokens_per_sec_high: Amount | None = None
    """Upper end of its 95 % interval."""
    tokens_per_sec_per_gpu: Positive
    """`tokens_per_sec` over the number of ranks."""
    samples_per_sec: Positive
    """Sequences, over all ranks."""
    real_tokens_per_sec: Positive | None = None
    """`tokens_per_sec` without padding."""
    real_token_share: Positive | None = None
    """Tokens without padding over all, a sequence counted as `model.seq_length` tokens. The FLOPs are those of the
    former. Absent where no padding is known of."""
    model_tflops_per_gpu: Amount | None = None
    """10^12 model FLOPs a second and rank, without recomputed ones."""
    mfu: Amount | None = None
    """Model FLOPs over the accelerator's peak, a fraction; docs/measuring.md."""
    mfu_causal: Amount | None = None
    """`mfu` with half the attention FLOPs."""
    hfu: Amount | None = None
    """`mfu` with recomputed FLOPs."""
    peak_memory_gib: Amount | None = None
    """Largest over the ranks: reserved on a GPU, resident on a CPU."""
    peak_memory_allocated_gib: Amount | None = None
    """Largest over the ranks, on a GPU."""
    peak_device_memory_gib: Amount | None = None
    """Largest over the ranks: used of a GPU, by anything, after a step."""
    allocated_memory_slope_mib_per_step: float | None = None
    """Growth of the largest over the ranks that is allocated to tensors after a step, on a GPU."""
    reserved_memory_slope_mib_per_step: float | None = None
    """The same of what is reserved by the allocator."""
    device_memory_slope_mib_per_step: float | None = None
    """The same of what is used of a GPU, by anything."""
    device_memory_full_at_step: Count | None = None
    """Step at which a GPU would be full; absent unless it grows."""
    peak_host_memory_gib: Amount | None = None
    """Largest sum over the ranks of a node."""
    host_memory_available_gib: Amount | None = None
    """Least that is still available on a node after the last step."""
    host_memory_slope_mib_per_step: float | None = None
    """Absent unless it grows."""
    host_memory_full_at_step: Count | None = None
    """Step at which host memory would be full; absent unless it grows."""
    data_wait_s: Amount | None = None
    """Median time of a step spent waiting for the batch."""
    joules_per_token: Positive | None = None
    """Energy of all ranks' GPUs over the measured steps, by their drivers' counters, over the tokens of these steps.
    Absent where it is not known of every rank; docs/measuring.md."""
    joules_per_token_low: Amount | None = None
    """Lower end of its interval, by the resolution of the counters."""
    joules_per_token_high: Amount | None = None
    """Upper end of its interval."""
    document_length: Amount | None = None
    """Tokens of a token's document in its sequence, a mean over the measured steps, where attention is by document. The
    FLOPs are those of these documents."""
    expert_tokens_mean: Amount | None = None
    """Tokens of an expert in a step over all ranks, the mean over a layer's experts. Absent without experts."""
    expert_tokens_most: Amount | None = None
    """The same of the most loaded expert of any layer, counted in the measured steps."""
    loss_first: float | None = None
    loss_last: float | None = None
    epoch_s: Amount | None = None
    """Time of the first epoch of a dataset, where it ended."""
    loss_after_epoch: float | None = None
    """Loss of the step after that epoch."""
    startup_s: Amount | None = None
    """From the start of rank 0's process to the first measured step."""
    startup_parts_s: Mapping[_Name, float] | None = None
    """Its parts, by `StartupPart`; they add up to it."""
    time_s: Mapping[_Name, float] | None = None
    """`TimeParts`, with `measure.profile`."""


@dataclass(frozen=True)
class ThroughputBound(JsonObject):
    """`measured` of an outcome that ran out of time after three steps."""

    tokens_per_sec_high: Positive
    """Upper bound: the rate of the fastest step."""


class SlowestRank(TypedDict):
    """`slowest_rank` of an outcome: the rank that computes longest, compared with those that have equal work."""

    rank: Count
    host: str
    compute_s: Amount
    """Median of its compute time: a step's time without that for which it waited in collectives."""
    compute_p95_s: Amount
    """95th percentile."""
    peers_compute_s: Amount
    """Median of the ranks with equal work."""
    slowdown: Amount
    """Its compute time over that of its peers, the median of the steps."""
    steps: Count
    """Timed steps."""
    stragglers: list[Count]
    """Ranks more than 15 % slower than their peers, with 95 % confidence."""
    straggler_hosts: list[str]


class _RankUsage(TypedDict):
    rank: Count
    host: str
    used_gib: Amount
    """GiB of the GPU in use, by anything; on a CPU that are resident."""


class FullestRank(_RankUsage, total=False):
    """`fullest_rank` of an outcome: the rank that has least memory left, and what takes it, in GiB at the peak.

    On a GPU `allocated_gib`, `cached_gib` and `outside_gib` add up to `used_gib`.
    """

    device_gib: Amount
    """Memory of its GPU."""
    limit_gib: Amount
    """`measure.memory_limit_gib`, which a GPU's allocator and a CPU rank's process are held to."""
    free_gib: float
    """GiB that may still be taken, of the GPU or of the limit, whichever leaves less."""
    allocated_gib: Amount
    """Tensors."""
    cached_gib: Amount
    """Kept free by the allocator."""
    outside_gib: Amount
    """Outside of the allocator: the driver's context, communication libraries, captured graphs, other processes."""
    inactive_split_gib: Amount
    """Part of what is kept free, in blocks of which another part is in use: fragments that cannot be given back."""
    alloc_retries: Count
    """Allocations that failed until the allocator had given back what it kept."""


class CrossCheck(TypedDict):
    """A rate or time that a third-party trainer prints, against ours."""

    name: str
    """`tokens_per_sec`, `samples_per_sec`, `tflops` or `seconds_between_lines`."""
    printed: float
    ours: float
    agrees: bool
    """True within 10 %; of seconds between lines up to 1.5 times those printed, and 0.1."""


@dataclass(frozen=True)
class ObservedStep(JsonObject):
    """One rank's second optimizer step; a field that could not be seen is None or empty.

    `at_s` is when its optimizer began, by the node's monotonic clock. `parameters` are those of all shards, each once;
    `local_parameters` those of this rank's shards, `optimizer_parameters` those that torch's own optimizers hold.
    `inputs` are the shapes of the token tensors that the outermost module got, each followed by its number of calls;
    `input_sum` is the sum of the first one. `documents` counts the sequences, or the documents that positions show in
    them, `real_tokens` their tokens that an attention mask shows to be no padding, and `squared_lengths` is the sum of
    these tokens' squares by document. `wrapper` is the class that reduces or shards gradients, `zero_stage` that
    of DeepSpeed or FSDP1. `reduces` is False where DDP did not reduce the last gradients (no_sync). `gradient_norms`
    are those of the first, the last and all gradients that every rank has whole.

    Of all ranks together, `ranks` counts those that reported, `other_inputs` are the inputs that differ from the first
    rank's, `documents` to `squared_lengths` are sums, `batches` counts their different first batches, and `is_reduced`
    tells whether ranks of different batches had the same gradients.
    """

    at_s: float | None = None
    world_size: int | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    local_parameters: int | None = None
    optimizer_parameters: int | None = None
    inputs: tuple[_Calls, ...] = ()
    input_sum: float | None = None
    documents: int | None = None
    real_tokens: int | None = None
    squared_lengths: int | None = None
    wrapper: str | None = None
    zero_stage: int | None = None
    reduces: bool | None = None
    gradient_norms: tuple[float, ...] = ()
    ranks: int | None = None
    other_inputs: tuple[tuple[_Calls, ...], ...] = ()
    batches: int | None = None
    is_reduced: bool | None = None


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
    trainable_parameters: int
    """Parameters that require gradients in the model that ran, of a fine-tuning."""
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
    observed_step: ObservedStep
    """Of a third-party trainer whose ranks were observed."""
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
    probe_ms_by_rank: list[Positive]
    """Time of one matrix product of fixed size before training, on GPUs."""
    recorded: str | None
    """Source of the row of a measured table that answers in place of a trial."""
    slow_hosts: list[str]
    """Hosts of ranks more than 15 % slower than the median at it."""
