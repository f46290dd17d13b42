"""Accounting of a simulated cluster, whose rows may be late, wrong for a while, or missing."""

from __future__ import annotations

from dataclasses import replace

from slurm.job_state import JobSnapshot, JobState
from tests.fake_slurm.jobs import FakeJob

FAKE_UID = 1000

_KILLED_WITHOUT_CODE = (JobState.TIMEOUT, JobState.CANCELLED, JobState.NODE_FAIL, JobState.PREEMPTED)


class FakeAccounting:
    """Rows of each job and when they become visible, on the simulated clock. `lag_s` may be set."""

    def __init__(self) -> None:
        self.lag_s = 0.5
        self._down_until = 0.0
        self._wrong_for_s = 0.0
        self._rows: list[tuple[FakeJob, list[tuple[float, JobSnapshot]]]] = []

    def go_down(self, until: float, wrong_for_s: float) -> None:
        """Give no answers until then. Changes become visible afterwards, ends wrong for `wrong_for_s` first."""
        self._down_until, self._wrong_for_s = until, wrong_for_s

    def is_down(self, now: float) -> bool:
        return now < self._down_until

    def open(self, job: FakeJob) -> None:
        """Begin the rows of a submitted job: they belong to the job, not to its id."""
        self._rows.append((job, []))

    def note(self, job: FakeJob, now: float) -> None:
        """Record the job's current state."""
        rows = next(rows for other, rows in reversed(self._rows) if other is job)
        row, seen_at = _row(job), now + self.lag_s
        if self.is_down(now):
            seen_at = self._down_until
            if row.ended_at is not None and self._wrong_for_s:
                rows.append((seen_at, _wrong_row(row)))
                seen_at += self._wrong_for_s
        rows.append((seen_at, row))

    def rows(self, now: float) -> list[JobSnapshot]:
        """Return the last visible row of every job."""
        seen = ([row for seen_at, row in rows if seen_at <= now] for _, rows in self._rows)
        return [rows[-1] for rows in seen if rows]


def _wrong_row(row: JobSnapshot) -> JobSnapshot:
    return replace(row, state=JobState.FAILED, state_text="FAILED", ended_at=None, exit_code=0, signal=0)


def _row(job: FakeJob) -> JobSnapshot:
    """Build the job's row. Accounting knows the end of a job whose processes are still being killed."""
    seen = replace(job.snapshot(), reason=None, restarts=None)
    ending = job.ending
    if ending is None and not job.state.is_ended:
        return replace(seen, exit_code=0, signal=0)
    state = ending.state if ending else job.state
    code = (ending.exit_code, ending.signal) if ending else (job.exit_code, job.signal)
    text = f"CANCELLED by {FAKE_UID}" if state is JobState.CANCELLED else state.value
    started_at = seen.started_at if seen.nodes else None
    exit_code, signal = (0, 0) if state in _KILLED_WITHOUT_CODE else code
    return replace(
        seen,
        state=state,
        state_text=text,
        started_at=started_at,
        ended_at=job.ended_at,
        exit_code=exit_code,
        signal=signal,
    )
