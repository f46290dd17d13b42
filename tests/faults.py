"""Faults to survive and their consequences, as in docs/lifecycle.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Fault `what` and its consequence `then`, in Markdown."""

    what: str
    then: str


FAULTS = {
    1: Fault("driver killed between the ledger row and sbatch", "resume finds no job of that name, submits once"),
    2: Fault("driver killed after sbatch accepted, before the id is stored", "resume finds the job by name, adopts it"),
    3: Fault("sbatch times out, yet the job was accepted", "looked up by name, adopted"),
    4: Fault(
        "the same, and the job appears 30 s later",
        "a settle window before any resubmission; if a twin still appears, the younger is cancelled",
    ),
    5: Fault("sbatch prints the id and a warning", "`--parsable`, the id is taken"),
    6: Fault(
        'queue limits reached, "temporarily unable to accept job"',
        "back off, the trial stays SUBMITTED without a job id, the reason is shown, no failure counted",
    ),
    7: Fault("account, partition or QOS invalid", "stop at the first, with Slurm's words"),
    8: Fault(
        "squeue, sacct, scontrol time out for an hour",
        'states frozen as "unknown since", no resubmission, no false death, polling slows',
    ),
    9: Fault("controller down and back", "continue"),
    10: Fault("accounting disabled or its daemon down", "result files + squeue + scontrol; said once"),
    11: Fault("accounting lags", "grace, then scontrol, then the result file"),
    12: Fault(
        "job ids reset and reused",
        "matched on name, user and submit time; a stranger's job is never adopted nor cancelled",
    ),
    13: Fault("job finished and purged before the first poll", "result file or accounting"),
    14: Fault(
        "two drivers on one search",
        "the second refuses and names host, pid, heartbeat; takeover after the lease ran out; the old one is fenced",
    ),
    15: Fault("the driver's own job reaches its wall time", "saves, resubmits itself, ends 0; the chain is one deep"),
    16: Fault(
        "ctrl-C once / twice; SIGTERM, also to the whole process group",
        "once: nothing new is proposed, what runs may finish; twice, or SIGTERM: stops at the next safe point, state"
        " safe, jobs left and listed",
    ),
    17: Fault("scancel fails or hangs", "retried, reported with ids, non-zero exit; cancel can be run again"),
    18: Fault(
        "job requeued by Slurm under the same id",
        "the next restart of the attempt (same job name, SLURM_RESTART_COUNT); older files are ignored by their number",
    ),
    19: Fault("NODE_FAIL, BOOT_FAIL", "retried at most twice without that node"),
    20: Fault("TIMEOUT", "measured and flagged with enough measured steps, `time_limit` without"),
    21: Fault(
        "GPU out of memory on any rank",
        "gpu_oom with rank and phase; the other ranks end within seconds, the allocation is released",
    ),
    22: Fault("host memory killed by the kernel or cgroup", "host_oom"),
    23: Fault("a rank hangs, process alive", "the trial's watchdog ends it; `--kill-on-bad-exit=1`; reason hang"),
    24: Fault("rank 0 dies after writing the result", "result accepted, flagged"),
    25: Fault(
        "result file late, empty or cut on a network file system",
        "not read before it is whole; directory reopened until grace ends",
    ),
    26: Fault("NaN, infinite, negative, or above the hardware's peak", "result_invalid, never best"),
    27: Fault("disk full or quota during a write", "pause with a message, nothing corrupted, continues after"),
    28: Fault("results directory read-only or hanging", "that trial waits, others go on"),
    29: Fault("database locked by a reader or a backup", "waits with jitter; no write lost"),
    30: Fault("database process killed inside a transaction, power loss", "intact; reconciled from the folders"),
    31: Fault("Postgres restarts", "reconnect, the transaction is tried again once, idempotent"),
    32: Fault(
        "schema older / newer than the code",
        "older: a copy is kept, then migrated; newer, or one that no release had: refused, versions named",
    ),
    33: Fault("MLflow down, slow, refusing", "the search is unaffected; a later sync gives the same runs, none twice"),
    34: Fault("an MLflow reply lost", "the repeated call makes no duplicate"),
    35: Fault("Ray head or worker dies", "supervisors restart from the ledger; no trial changes"),
    36: Fault("port, socket or temp path trouble for Ray", "launcher `local` takes over, said once"),
    37: Fault("GPU memory in use at the start", "gpu_memory_in_use, node excluded, retried"),
    38: Fault(
        "slow node, throttling", "measurement marked suspect and repeated elsewhere; best is never one flagged run"
    ),
    39: Fault(
        "rendezvous port in use", "another port, same allocation, at most fifty times; never from the ephemeral range"
    ),
    40: Fault("clock jumps, skew between nodes", "monotonic for waiting, UTC stored, no negative duration"),
    41: Fault("every layout fails", 'a clean end: "no feasible layout", the causes in a table, what to relax'),
    42: Fault("the user's script is broken", "stops after three alike, with the traceback"),
    43: Fault("the proposer repeats itself or runs out", 'deduplicated by layout key; ends with "space exhausted"'),
    44: Fault("the proposer raises or hangs", "time-limited; the models' own order or random takes over, said once"),
    45: Fault("code or environment changed between trials", "fingerprint differs: said, marked not comparable"),
    46: Fault(
        "the budget is reached while jobs are queued",
        "pending ones cancelled, running ones finish or not by policy; total <= budget",
    ),
    47: Fault(
        "a trial's own folder or code moved away, stale, full or failing under a rank",
        "launch_failure, which is tried again; what the user's program or data lack stays script_error",
    ),
}
