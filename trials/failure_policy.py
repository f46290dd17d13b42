"""Policy of each failure reason: what follows from it, and how it is worded and drawn.

Standard library only: compute nodes import this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trials.trial import FailureReason, LowerStrEnum


class Ending(LowerStrEnum):
    """Way in which a trial ended without a value."""

    FAILED = "failed"
    """By an error."""
    STOPPED_EARLY = "stopped_early"
    """By itself, since it could not become the best; this is no failure."""
    PREEMPTED = "preempted"
    """By the cluster, for another job. It counts as failed."""
    CANCELLED = "cancelled"
    """On request."""


class Cause(LowerStrEnum):
    """Cause of an ending, as far as the reason shows."""

    LAYOUT = "layout"
    """The layout cannot run on this cluster."""
    PERHAPS_LAYOUT = "perhaps_layout"
    """The layout, or something that the reason does not show."""
    MACHINE = "machine"
    USER = "user"
    SEARCH = "search"
    """A decision of the search, or its driver's end."""
    UNKNOWN = "unknown"


class NodeBlame(LowerStrEnum):
    """Nodes of an attempt that are avoided after it."""

    NONE = "none"
    BY_RETRIES = "by_retries"
    """All its nodes, by the retries of the trial: one of them may be at fault."""
    BY_ALL = "by_all"
    """All its nodes, by all trials of the search."""
    REPORTED_BY_ALL = "reported_by_all"
    """The node of the reporting rank, by all trials of the search."""


class Memory(LowerStrEnum):
    ACCELERATOR = "accelerator"
    """Memory of a rank's GPU; on a CPU, the rank's own limit."""
    HOST = "host"
    """Memory of a node."""


@dataclass(frozen=True)
class FailurePolicy:
    """Consequences and words of a failure reason."""

    label: str
    """Short enough for a figure."""
    abbreviation: str
    """At most 11 characters, for a terminal's table."""
    explanation: str
    """Meaning on the pages, in Markdown."""
    cause: Cause = Cause.UNKNOWN
    ending: Ending = Ending.FAILED
    retries: float = 0
    """Number of retries after attempts that ended so."""
    baseline_retries: int = 0
    """Number of further retries of the baseline, without which nothing can be compared."""
    blame: NodeBlame = NodeBlame.NONE
    only_rank_knows: bool = False
    """True if only a rank can find it, so that it holds whatever the launcher reports. A rank's other reasons may be
    consequences of another rank's end."""
    peers_report_it: bool = False
    """True if ranks report it that waited for another one, which may still report the cause."""
    exceeded: Memory | None = None
    """Memory that was too small."""
    bounds_throughput: bool = False
    """True if the steps before the end give samplers an upper bound of the layout's throughput."""
    may_be_setting: bool = False
    """True if a value of the settings may be the cause: a variable or a launch option with which no rank gets far."""
    stops_search: bool = False
    """True if the search stops after several such trials in a row whose logs end alike."""
    stops_search_at_once: bool = False
    """True if the search stops after one such trial where nothing was measured: every other would end alike."""
    color: str = "c8"
    """Name of the colour in the report's page.css."""
    advice: str | None = None
    """Changes of the search file to try; None if only the logs help."""

    @property
    def may_be_layout_fault(self) -> bool:
        """True if the layout may be the cause, so that samplers learn from it."""
        return self.cause in (Cause.LAYOUT, Cause.PERHAPS_LAYOUT)

    @property
    def needs_outcome(self) -> bool:
        """False if an outcome would change nothing: after a cancellation, and before a retry in any case."""
        return self.ending is not Ending.CANCELLED and self.retries < math.inf

    @property
    def shows_training(self) -> bool:
        """True if an attempt that ended so had started and connected its ranks."""
        return self.exceeded is not None or self.ending is Ending.STOPPED_EARLY

    def exceeds_rank_memory(self, accelerator: str) -> bool:
        """True if the layout needs more memory than its ranks have; those on a "cpu" compute in host memory."""
        return self.exceeded is Memory.ACCELERATOR or (self.exceeded is Memory.HOST and accelerator == "cpu")


_POLICIES: Mapping[FailureReason, FailurePolicy] = {
    FailureReason.INVALID_LAYOUT: FailurePolicy(
        "refused by the engine",
        "refused",
        "A rule or the engine refused the layout.",
        cause=Cause.LAYOUT,
        only_rank_knows=True,
        color="c3",
        advice="other values of the axes named in the engine's message",
    ),
    FailureReason.GPU_OOM: FailurePolicy(
        "out of memory",
        "OOM",
        "A rank ran out of accelerator memory; on a CPU, of its memory limit.",
        cause=Cause.LAYOUT,
        only_rank_knows=True,
        exceeded=Memory.ACCELERATOR,
        color="c2",
        advice="a smaller micro_batch_size, more activation_checkpointing, a higher zero_stage, more"
        " tensor_parallel or pipeline_parallel, more nodes; where a GPU was just too small,"
        " PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True in space.env",
    ),
    FailureReason.HOST_OOM: FailurePolicy(
        "out of host memory",
        "host OOM",
        "A node ran out of memory.",
        cause=Cause.LAYOUT,
        only_rank_knows=True,
        exceeded=Memory.HOST,
        color="c5",
        advice="offload: none, more nodes",
    ),
    FailureReason.PRUNED: FailurePolicy(
        "stopped early",
        "pruned",
        "Stopped early, provably slower than the best on as many nodes or fewer.",
        cause=Cause.SEARCH,
        ending=Ending.STOPPED_EARLY,
        only_rank_knows=True,
        bounds_throughput=True,
        color="muted",
    ),
    FailureReason.TIME_LIMIT: FailurePolicy(
        "time limit",
        "time limit",
        "The limit came before enough steps were measured. With enough, the trial is measured and flagged.",
        cause=Cause.PERHAPS_LAYOUT,
        bounds_throughput=True,
        color="c4",
        advice="a longer measure.time_limit, a smaller measure.min_steps",
    ),
    FailureReason.HANG: FailurePolicy(
        "hang",
        "hang",
        "A rank made no progress.",
        cause=Cause.PERHAPS_LAYOUT,
        retries=1,
        may_be_setting=True,
        blame=NodeBlame.BY_RETRIES,
        peers_report_it=True,
        color="c6",
        advice="`parlay logs TRIAL --rank N` shows where each rank stood, `parlay selftest SEARCH.YAML`"
        " whether ranks can meet on these nodes at all (NCCL_SOCKET_IFNAME names the network between them); a longer"
        " measure.time_limit, up to 10m, where a start, a compilation or a micro-batch takes half of it",
    ),
    FailureReason.NODE_FAILURE: FailurePolicy(
        "node failure",
        "node fail",
        "A node or one of its GPUs failed.",
        cause=Cause.MACHINE,
        retries=2,
        may_be_setting=True,
        blame=NodeBlame.BY_ALL,
        peers_report_it=True,
    ),
    FailureReason.PREEMPTED: FailurePolicy(
        "preempted",
        "preempted",
        "Slurm preempted the job.",
        cause=Cause.MACHINE,
        ending=Ending.PREEMPTED,
        retries=8,
    ),
    FailureReason.BOOT_FAILURE: FailurePolicy(
        "node failed to boot",
        "boot fail",
        "A node did not boot.",
        cause=Cause.MACHINE,
        retries=2,
        blame=NodeBlame.BY_ALL,
    ),
    FailureReason.LAUNCH_FAILURE: FailurePolicy(
        "launch failure",
        "launch fail",
        "The ranks could not be started, or one could not read or write its own files.",
        cause=Cause.MACHINE,
        retries=2,
        may_be_setting=True,
        blame=NodeBlame.BY_RETRIES,
        stops_search=True,
    ),
    FailureReason.GPU_MEMORY_IN_USE: FailurePolicy(
        "GPU memory already in use",
        "GPU in use",
        "Other processes held GPU memory at the start.",
        cause=Cause.MACHINE,
        retries=2,
        blame=NodeBlame.REPORTED_BY_ALL,
        only_rank_knows=True,
    ),
    FailureReason.SCRIPT_ERROR: FailurePolicy(
        "trainer crashed",
        "crashed",
        "The trainer crashed.",
        cause=Cause.PERHAPS_LAYOUT,
        may_be_setting=True,
        stops_search=True,
        color="c7",
    ),
    FailureReason.SETTING_FAILURE: FailurePolicy(
        "failing setting",
        "bad setting",
        "No attempt ran with a value of a setting, on several layouts or on one that runs without it.",
        cause=Cause.USER,
        advice="another value of the setting in space.env or space.launch, or in the table of candidates",
    ),
    FailureReason.STEPS_UNREAD: FailurePolicy(
        "no step in the log",
        "unread log",
        "The trainer logged steps or ended well, and no line of its log matches `trainer.patterns`.",
        cause=Cause.USER,
        only_rank_knows=True,
        stops_search_at_once=True,
        advice="trainer.patterns that match the lines of the log, or the trainer.log_rank that prints them",
    ),
    FailureReason.RESULT_INVALID: FailurePolicy(
        "invalid result",
        "invalid",
        "The outcome is damaged, implausible or contradicts the spec; the log excerpt says why.",
        only_rank_knows=True,
    ),
    FailureReason.ENERGY_UNKNOWN: FailurePolicy(
        "energy not measured",
        "no energy",
        "The energy of the ranks' GPUs, an objective of the search, was not measured.",
        cause=Cause.MACHINE,
        only_rank_knows=True,
        stops_search_at_once=True,
        advice="an objective other than joules_per_token",
    ),
    FailureReason.CANCELLED_BY_USER: FailurePolicy(
        "cancelled by the user",
        "cancelled",
        "Cancelled by the user, with the search or by `scancel`.",
        cause=Cause.USER,
        ending=Ending.CANCELLED,
        baseline_retries=1,
    ),
    FailureReason.CANCELLED_BY_SEARCH: FailurePolicy(
        "cancelled by the search",
        "cancelled",
        "Cancelled by the driver: budget, end of the search, or a duplicate job.",
        cause=Cause.SEARCH,
        ending=Ending.CANCELLED,
    ),
    FailureReason.INTERRUPTED: FailurePolicy(
        "interrupted",
        "interrupted",
        "The ranks died with their driver, a step with its pilot, or a pilot was preempted before it served.",
        cause=Cause.SEARCH,
        retries=math.inf,
    ),
    FailureReason.JOB_LOST: FailurePolicy(
        "job lost",
        "job lost",
        "No trace of an accepted attempt is left.",
        retries=1,
    ),
}

if missing := [reason for reason in FailureReason if reason not in _POLICIES]:
    raise TypeError(f"failure reasons without a policy: {', '.join(missing)}")

_WITHOUT_REASON = FailurePolicy("failed", "failed", "No reason is known.")


def policy_of(reason: FailureReason | None) -> FailurePolicy:
    """The policy of a reason; of None one from which nothing follows."""
    return _WITHOUT_REASON if reason is None else _POLICIES[reason]
