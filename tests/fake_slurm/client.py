"""Fake of one user's Slurm commands over a simulated cluster, with injected faults."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm.association_limits import AssociationLimits
from slurm.client import CANCEL_TIMEOUT_S, COMMAND_TIMEOUT_S
from slurm.interface import Slurm, SlurmSettings, SlurmUnreachable, Submission, SubmitStatus
from slurm.job_state import JobSnapshot, JobState
from slurm.nodes import NodeSnapshot, wait_reason
from slurm.partitions import PartitionSnapshot, named_partitions
from slurm.request import JobRequest
from tests.fake_slurm.cluster import FakeCluster
from tests.fake_slurm.jobs import FakeJob
from tests.fake_slurm.placement import choose_nodes, may_use

_REFUSED = "sbatch: error: Batch job submission failed: "
_NO_ANSWER = "Socket timed out on send/recv operation"
_NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"
_NO_ACCOUNTING = "sacct: error: Problem talking to the database: Connection refused"
_BUSY = _REFUSED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@dataclass
class _SubmitFault:
    """Result of the next `times` submissions, until a moment of the simulated time."""

    answer: Submission
    times: float = 1
    until: float = math.inf
    appears_after_s: float | None = None


class FakeSlurm(Slurm):
    """View of `cluster` by one user. A cluster may have several: other users, or the next driver.

    Fields that tests may set at any time:

    - `answer_s`: simulated seconds that every command takes.
    - `warning`: message of sbatch with the id of an accepted job.
    - `state_words`: unknown states to report, by job id.
    - `partition_limits`: partitions with limits, by name.
    - `limits`: the user's association limits.
    - `block_sizes`: nodes of the blocks of its topology.
    - `leaf_of_node`: leaf switch or block of each node.
    - `failing_cancels`: number of further scancels without effect; with `cancels_hang` they also take their timeout.

    A command without an answer takes the cluster's MessageTimeout.
    """

    def __init__(self, cluster: FakeCluster, user: str = "ann"):
        self.cluster = cluster
        self.user = user
        self.answer_s = 0.0
        self.warning = ""
        self.state_words: dict[str, str] = {}
        self.partition_limits: dict[str, PartitionSnapshot] = {}
        self.limits = AssociationLimits()
        self.block_sizes: tuple[int, ...] = ()
        self.leaf_of_node: Mapping[str, str] = {}
        self.failing_cancels = 0.0
        self.cancels_hang = False
        self._faults: list[_SubmitFault] = []

    # -- Slurm's commands

    def now(self) -> float:
        return self.cluster.cluster_time

    def settings(self) -> SlurmSettings:
        self._ask_controller()
        return self.cluster.settings

    def monotonic(self) -> float:
        return self.cluster.time

    def partitions(self) -> tuple[PartitionSnapshot, ...]:
        """Return the partitions; the first one is the default."""
        self._ask_controller()
        names = self.cluster.partitions
        usual = {name: PartitionSnapshot(name, name == names[0], num_nodes=len(self.cluster.nodes)) for name in names}
        return tuple(self.partition_limits.get(name, usual[name]) for name in names)

    def nodes(self) -> tuple[NodeSnapshot, ...]:
        self._ask_controller()
        return tuple(self._nodes())

    def blocks(self) -> tuple[int, ...]:
        self._ask_controller()
        return self.block_sizes

    def leaves(self) -> Mapping[str, str]:
        self._ask_controller()
        return self.leaf_of_node

    def association_limits(self) -> AssociationLimits | None:
        if not self.cluster.settings.has_accounting:
            return None
        self._ask_accounting()
        return self.limits

    def test(self, request: JobRequest) -> Submission:
        self._ask_controller()
        refused = next((fault.answer for fault in self._faults if fault.answer.status is SubmitStatus.REFUSED), None)
        if refused is not None:
            return refused
        if (message := self._rejection_reason(request) or self._unsatisfiable_reason(request)) is not None:
            return Submission(SubmitStatus.REFUSED, message=message)
        if (message := wait_reason(request, self._nodes())) is not None:
            return Submission(SubmitStatus.BUSY, message=message)
        if (message := self._beyond_partition(request)) is not None:
            return Submission(SubmitStatus.REFUSED, message=message)
        return Submission(SubmitStatus.ACCEPTED)

    def submit(self, request: JobRequest) -> Submission:
        try:
            self._ask_controller()
        except SlurmUnreachable as error:
            return self._submit_unanswered(request, str(error))
        if (fault := self._next_fault()) is not None:
            return self._submit_with(fault, request)
        if not request.script.is_file():
            return Submission(SubmitStatus.REFUSED, message=f"sbatch: error: Unable to open file {request.script}")
        if (message := self._rejection_reason(request)) is not None:
            return Submission(SubmitStatus.REFUSED, message=message)
        if (message := self._unsatisfiable_reason(request)) is not None:
            self.cluster.refuse(self.user, request)
            return Submission(SubmitStatus.REFUSED, message=message)
        return Submission(SubmitStatus.ACCEPTED, self.cluster.accept(self.user, request).job_id, self.warning)

    def jobs(self) -> tuple[JobSnapshot, ...]:
        return tuple(job for job in self._squeue() if job.user == self.user)

    def jobs_on(self, nodes: Sequence[str]) -> tuple[JobSnapshot, ...]:
        return tuple(job for job in self._squeue() if not {*job.nodes}.isdisjoint(nodes))

    def _squeue(self) -> list[JobSnapshot]:
        self._ask_controller()
        known = map(self._snapshot, self.cluster.jobs())
        return [replace(job, exit_code=None, signal=None, restarts=None, billing=None, qos=None) for job in known]

    def describe(self, job_id: str) -> JobSnapshot | None:
        self._ask_controller()
        return next((self._snapshot(job) for job in self.cluster.jobs() if job.job_id == job_id), None)

    def accounted_jobs(self, names: Iterable[str], since: float) -> tuple[JobSnapshot, ...] | None:
        if not self.cluster.settings.has_accounting:
            return None
        self._ask_accounting()
        wanted = {(self.user, name) for name in names}
        rows = (row for row in self.cluster.accounting.rows(self.cluster.time) if (row.user, row.name) in wanted)
        return tuple(row for row in rows if row.submitted_at is not None and row.submitted_at >= math.floor(since))

    def cancel(self, jobs: Sequence[JobSnapshot]) -> set[str]:
        """Cancel, and wait for the end as long as the real client does."""
        self._ask_controller()
        if self.failing_cancels > 0:
            self.failing_cancels -= 1
            self.cluster.advance(COMMAND_TIMEOUT_S if self.cancels_hang else 0.0)
        else:
            for job_id in self._still_there(jobs):
                self.cluster.cancel(job_id)
        deadline = self.cluster.time + CANCEL_TIMEOUT_S
        while (pending := self._still_there(jobs)) and self.cluster.time < deadline:
            self.cluster.advance_to_next_event(at_most=deadline - self.cluster.time)
        return pending

    def _still_there(self, jobs: Sequence[JobSnapshot]) -> set[str]:
        wanted = {(job.job_id, (job.user, job.name)) for job in jobs if job.user == self.user}
        known = self.cluster.jobs()
        return {job.job_id for job in known if (job.job_id, job.key) in wanted and not job.state.is_ended}

    # -- submission faults, met one after the other

    def submissions_time_out(self, times: float = 1, appears_after_s: float | None = 0.0) -> None:
        """Let sbatch time out although the job is accepted and appears `appears_after_s` later; None: not accepted."""
        answer = Submission(SubmitStatus.UNCONFIRMED, message=_REFUSED + _NO_ANSWER)
        self._faults.append(_SubmitFault(answer, times, appears_after_s=appears_after_s))

    def submissions_busy(self, times: float = math.inf, for_s: float = math.inf, message: str = _BUSY) -> None:
        """Refuse submissions for now: a limit of the queue is reached."""
        until = self.cluster.time + for_s
        self._faults.append(_SubmitFault(Submission(SubmitStatus.BUSY, message=message), times, until))

    def submissions_refused(self, message: str, times: float = math.inf) -> None:
        """Refuse submissions for good: account, partition or QOS are wrong."""
        self._faults.append(_SubmitFault(Submission(SubmitStatus.REFUSED, message=message), times))

    # -- true usage of this user's jobs

    def most_alive(self, name: str) -> int:
        """Return the most jobs of this name ever pending or running at once, with processes that Slurm lost."""
        return self.cluster.usage.most_alive[self.user, name]

    def most_running(self, name: str) -> int:
        """Return the most jobs of this name whose processes ever ran at once."""
        return self.cluster.usage.most_running[self.user, name]

    def used_node_s(self, name: str) -> float:
        """Return the node-seconds that jobs of this name have held so far."""
        return self.cluster.usage.node_s((self.user, name), self.cluster.jobs(), self.cluster.time)

    # -- answers to commands

    def _ask_controller(self) -> None:
        self.cluster.advance(self.answer_s)
        if self.cluster.is_hung or self.cluster.is_down:
            message = _NO_ANSWER if self.cluster.is_hung else _NO_CONTROLLER
            self.cluster.advance(self.cluster.settings.message_timeout_s)
            raise SlurmUnreachable(message)

    def _ask_accounting(self) -> None:
        self.cluster.advance(self.answer_s)
        if self.cluster.accounting.is_down(self.cluster.time):
            raise SlurmUnreachable(_NO_ACCOUNTING)

    def _submit_unanswered(self, request: JobRequest, message: str) -> Submission:
        """Submit to a controller that is down or hangs; a hanging one accepts the job when it continues."""
        if message == _NO_CONTROLLER:
            return Submission(SubmitStatus.BUSY, message=_REFUSED + message)
        self.cluster.at(self.cluster.controller_back, lambda: self.cluster.accept(self.user, request))
        return Submission(SubmitStatus.UNCONFIRMED, message=_REFUSED + message)

    def _next_fault(self) -> _SubmitFault | None:
        self._faults = [fault for fault in self._faults if fault.times > 0 and self.cluster.time < fault.until]
        if not self._faults:
            return None
        self._faults[0].times -= 1
        return self._faults[0]

    def _submit_with(self, fault: _SubmitFault, request: JobRequest) -> Submission:
        if fault.answer.status is SubmitStatus.UNCONFIRMED:
            if fault.appears_after_s is not None:
                appears = self.cluster.time + fault.appears_after_s
                self.cluster.at(appears, lambda: self.cluster.accept(self.user, request))
            self.cluster.advance(self.cluster.settings.message_timeout_s)
        return fault.answer

    def _rejection_reason(self, request: JobRequest) -> str | None:
        """Return sbatch's message for an invalid request, checked in sbatch's order."""
        options = request.options
        if options.partition and options.partition not in self.cluster.partitions:
            error = f"sbatch: error: invalid partition specified: {options.partition}"
            return f"{error}\n{_REFUSED}Invalid partition name specified"
        if not {*request.exclude, *options.exclude, *options.nodelist} <= self.cluster.nodes.keys():
            return f"{_REFUSED}Invalid node name specified"
        return None

    def _unsatisfiable_reason(self, request: JobRequest) -> str | None:
        nodes = [node for node in self.cluster.nodes.values() if may_use(request, node)]
        return None if choose_nodes(request, nodes, ()) else f"{_REFUSED}Requested node configuration is not available"

    def _beyond_partition(self, request: JobRequest) -> str | None:
        return self.beyond_limits(request, named_partitions(request, self.partitions()))

    def _nodes(self) -> list[NodeSnapshot]:
        """Return nodes as sinfo lists them; the first partition is the default one."""
        default, away = self.cluster.partitions[0], self.cluster.unavailable
        return [
            NodeSnapshot(
                name,
                "drained" if name in away else "idle",
                node.cpus,
                node.gpus,
                partition,
                is_in_default_partition=partition == default,
                memory_mib=node.memory_mib,
                gpu_kinds=node.gpu_kinds,
            )
            for partition in self.cluster.partitions
            for name, node in self.cluster.nodes.items()
        ]

    def _snapshot(self, job: FakeJob) -> JobSnapshot:
        seen = job.snapshot()
        word = self.state_words.get(job.job_id)
        return seen if word is None else replace(seen, state=JobState.UNKNOWN, state_text=word)
