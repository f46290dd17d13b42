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
        "a waiting time before any resubmission; if a duplicate still appears, the younger is cancelled",
    ),
    5: Fault("sbatch prints the id and a warning", "`--parsable`, the id is taken"),
    6: Fault(
        'queue limits reached, "temporarily unable to accept job"',
        "back off, the trial stays SUBMITTED without a job id, the reason is shown, no failure counted",
    ),
    7: Fault("account, partition or QOS invalid", "the search stops at the first, with Slurm's message"),
    8: Fault(
        "squeue, sacct, scontrol time out for an hour",
        'states stay, with "unknown since"; no resubmission, no false failure, slower polling',
    ),
    9: Fault("controller down and back", "the search continues"),
    10: Fault("accounting disabled or its daemon down", "result files, squeue and scontrol instead; one warning"),
    11: Fault("accounting lags", "waiting time, then scontrol, then the result file"),
    12: Fault(
        "job ids reset and reused",
        "matched on name, user and submit time; another user's job is never adopted or cancelled",
    ),
    13: Fault("job finished and purged before the first poll", "result file or accounting"),
    14: Fault(
        "two drivers on one search",
        "the second is refused with host, pid and heartbeat; takeover after the lease expires; the old one is fenced",
    ),
    15: Fault(
        "the driver's job reaches its time limit", "state saved, successor queued, exit code 0; at most one waits"
    ),
    16: Fault(
        "ctrl-C once / twice; SIGTERM, also to the whole process group",
        "once: no new trials, running ones finish; twice, or SIGTERM: stops at the next safe point, state safe, jobs"
        " left and listed",
    ),
    17: Fault("scancel fails or hangs", "retried, reported with ids, non-zero exit code; cancel can be repeated"),
    18: Fault(
        "job requeued by Slurm under the same id",
        "the next restart of the attempt (same job name, SLURM_RESTART_COUNT); files of older restarts are ignored",
    ),
    19: Fault("NODE_FAIL, BOOT_FAIL", "retried at most twice without that node"),
    20: Fault("TIMEOUT", "with enough steps measured, with a flag; else `time_limit`"),
    21: Fault(
        "GPU out of memory on any rank",
        "gpu_oom with rank and phase; the other ranks end within seconds, the allocation is released",
    ),
    22: Fault("host memory killed by the kernel or cgroup", "host_oom"),
    23: Fault("a rank hangs, process alive", "the trial's watchdog ends it; `--kill-on-bad-exit=1`; reason hang"),
    24: Fault("rank 0 dies after writing the result", "result accepted, flagged"),
    25: Fault(
        "result file late, empty or cut on a network file system",
        "not read before it is complete; folder reopened for a limited time",
    ),
    26: Fault("NaN, infinite, negative, or above the hardware's peak", "result_invalid, never best"),
    27: Fault("disk full or quota during a write", "pauses with a message, nothing corrupted, then continues"),
    28: Fault("results directory read-only or hanging", "that trial waits, others continue"),
    29: Fault("database locked by a reader or a backup", "waits with jitter; no write lost"),
    30: Fault(
        "database process killed inside a transaction, power loss", "intact; brought up to date from the folders"
    ),
    31: Fault("Postgres restarts", "reconnects and repeats the transaction, idempotently"),
    32: Fault(
        "schema older / newer than the code",
        "older: copied, then migrated; newer or unknown: refused, with the versions",
    ),
    33: Fault("MLflow down, slow, refusing", "the search is unaffected; a later sync sends the same runs, none twice"),
    34: Fault("an MLflow reply lost", "the repeated call makes no duplicate"),
    35: Fault("Ray head or worker dies", "supervisors restart from the ledger; no trial changes"),
    36: Fault("Ray cannot use a port, socket or temporary path", "launcher `local` takes over, with one warning"),
    37: Fault("GPU memory in use at the start", "gpu_memory_in_use, node excluded, retried"),
    38: Fault(
        "slow node, throttling",
        "measurement has a flag and is repeated elsewhere; the best is never a single suspect run",
    ),
    39: Fault(
        "rendezvous port in use", "another port, same allocation, at most fifty times; never from the ephemeral range"
    ),
    40: Fault("clock jumps, skew between nodes", "monotonic clock for waiting, UTC in records, no negative duration"),
    41: Fault(
        "every layout fails", 'the search ends with "no feasible layout", the reasons in a table, and what to relax'
    ),
    42: Fault("the user's script is broken", "the search stops after three alike, with the traceback"),
    43: Fault("the sampler repeats itself or runs out", 'deduplicated by layout key; ends with "space exhausted"'),
    44: Fault("the sampler raises or hangs", "timeout; cost model order or random takes over, with one warning"),
    45: Fault(
        "code or environment changed between trials", "the fingerprint differs: a message, and a flag: not comparable"
    ),
    46: Fault(
        "the budget is reached while jobs are queued",
        "pending jobs cancelled, running ones finish; total within the budget",
    ),
    47: Fault(
        "a trial's own folder or code moved away, stale, full or failing under a rank",
        "launch_failure, which is retried; errors of the user's program or data stay script_error",
    ),
    48: Fault(
        "a forked rank or the stub that stands for it is killed",
        "the other and their session end with it, and no other rank; judged as a killed rank",
    ),
    49: Fault(
        "a fork server or its owner is killed while ranks run",
        "ranks and stubs end within moments, the attempt as `node_failure` or `interrupted`; the next one has a new"
        " server",
    ),
    50: Fault(
        "a fork server cannot be forked, or ends during its imports", "ranks start plain, with the reason in their logs"
    ),
    51: Fault(
        "in a pilot, a forked rank, its stub or its fork server is killed",
        "its attempt ends as `node_failure`; those on other nodes go on, and the next one is forked again",
    ),
    52: Fault(
        "the kernel kills a forked rank or its fork server for memory, which Slurm accounts to the servers' step",
        "`host_oom` of the attempt on that node, and of no other",
    ),
    53: Fault("fork servers of a pilot end between attempts", "started again; after the second time ranks start plain"),
    54: Fault(
        "Slurm refuses the fork servers' step, or they cannot be forked",
        "ranks start plain, with the reason in a warning of the driver",
    ),
    55: Fault(
        "scancel of a step of forked ranks, or of their fork servers",
        "`cancelled_by_user`, or `node_failure` and servers anew; no rank is left",
    ),
    56: Fault(
        "the agent, the driver or a node is lost while forked ranks run",
        "as with plain ranks: the pilot ends with all its processes; a later driver finds them; `node_failure`",
    ),
}
