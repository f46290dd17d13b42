"""Log format of Megatron-LM and of the trainers that descend from it. Standard library only."""

from __future__ import annotations

from dataclasses import replace

from trials.trainers.common.log_lines import END, MIB_PER_GIB, LogFormat, labelled, number_in

_OF_STEP = {
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
_ELSEWHERE = {
    "memory_gib": number_in(r"memory \(MB\) \|.*\bmax reserved: ([\d.]+)", 1 / MIB_PER_GIB),
    "memory_allocated_gib": number_in(r"memory \(MB\) \|.*?\bmax allocated: ([\d.]+)", 1 / MIB_PER_GIB),
    "world_size": number_in(r"using world size: (\d+),"),
    "data_parallel": number_in(r"using world size: .*\bdata-parallel size: (\d+),"),
    "tensor_parallel": number_in(r"using world size: .* tensor-model-parallel size: (\d+),"),
    "pipeline_parallel": number_in(r"using world size: .* pipeline-model-parallel size: (\d+)\b"),
    "micro_batches_per_step": number_in(r"setting number of micro-?batches to constant (\d+)\b"),
    "vocab_size": number_in(r"> padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)"),
}
MEGATRON_LOG = LogFormat(_OF_STEP, _ELSEWHERE)
# Since core_v0.16 the second line has the means of the first two iterations: should_reset in training_log().
MEGATRON_LM_LOG = replace(MEGATRON_LOG, least_warmup_steps=2)
