"""Objects inside an outcome: the measurement, the layout check, the fingerprint. Absent keys are unknown."""

from __future__ import annotations

from typing import TypedDict


class TimeParts(TypedDict, total=False):
    """Seconds of a step by what they were spent on. Measured with `measure.profile`; they add up to the step time."""

    compute: float
    tensor: float
    """Communication of tensor parallelism."""
    pipeline: float
    """Communication between pipeline stages."""
    data_parallel: float
    """Communication of data parallelism."""
    bubble: float
    """Waiting for other pipeline stages."""
    optimizer: float
    offload: float
    """Copies between device and host."""


class MeasuredMetrics(TypedDict, total=False):
    """`measured` of an outcome. A trial that was pruned has it too: `tokens_per_sec_high` is then an upper bound. One
    that ran out of time after three steps has `tokens_per_sec_high` only."""

    warmup_steps: int
    """Steps dropped as warm-up."""
    measured_steps: int
    step_time_s: float
    """Median, of the slowest rank."""
    step_time_low_s: float
    """Lower end of its 95 % interval."""
    step_time_high_s: float
    """Upper end of its 95 % interval."""
    step_time_p95_s: float
    """95th percentile."""
    fastest_rank_step_time_s: float
    """Median, of the fastest rank."""
    tokens_per_sec: float
    tokens_per_sec_low: float
    """Lower end of its 95 % interval."""
    tokens_per_sec_high: float
    """Upper end of its 95 % interval."""
    tokens_per_sec_per_gpu: float
    samples_per_sec: float
    model_tflops_per_gpu: float
    mfu: float
    """Model FLOPs over the accelerator's peak, a fraction; docs/measuring.md."""
    mfu_causal: float
    """`mfu` with half the attention FLOPs."""
    hfu: float
    """`mfu` with recomputed FLOPs."""
    peak_memory_gib: float
    """Largest over the ranks: reserved on a GPU, resident on a CPU."""
    peak_memory_allocated_gib: float
    """Largest over the ranks, on a GPU."""
    peak_host_memory_gib: float
    """Largest sum over the ranks of a node."""
    host_memory_slope_mib_per_step: float
    """Absent unless it grows."""
    host_memory_full_at_step: int
    """Step at which host memory would be full; absent unless it grows."""
    data_wait_s: float
    """Median time of a step spent waiting for the batch."""
    loss_first: float
    loss_last: float
    epoch_s: float
    """Time of the first epoch of a token file, where it ended."""
    loss_after_epoch: float
    """Loss of the step after that epoch."""
    startup_s: float
    """From the launch to the first step."""
    startup_parts_s: dict[str, float]
    """Its parts."""
    time_s: TimeParts
    """With `measure.profile`."""


class CrossCheck(TypedDict):
    """A rate that a third-party trainer prints, against ours."""

    name: str
    """`tokens_per_sec`, `samples_per_sec` or `tflops`."""
    printed: float
    ours: float
    agrees: bool
    """True within 10 %."""


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
    unproven: list[str]
    """Fields that the log does not show. Third-party trainers only."""
    cross_checks: list[CrossCheck]
    """Third-party trainers only."""


class Fingerprint(TypedDict, total=False):
    """`fingerprint` of an outcome: software and hardware. Measurements are compared only where python, torch,
    deepspeed, cuda and device agree."""

    python: str
    torch: str
    deepspeed: str | None
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
    environment: dict[str, str]
    """Variables of rank 0 that configure libraries and transports, without secrets."""
    job_id: str | None
    """SLURM_JOB_ID."""
    hosts: list[str]
    """Host names of all ranks, without duplicates, in rank order."""
    probe_ms_by_rank: list[float]
    """Time of one matrix product of fixed size before training, on GPUs."""
    slow_hosts: list[str]
    """Hosts of ranks more than 15 % slower than the median at it."""
