"""The end of attempts that nobody wants any more: asked for once for all, and looked after until nothing runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.launchers.slurm.monitor import Watch
from orchestrator.launchers.slurm.queries import Questions
from orchestrator.launchers.slurm.submissions import SETTLE_S, Submissions, Tracked
from slurm.interface import Slurm
from trials.attempt_result import Liveness

_NEXT_LOOK_S = 1.0
"""How soon the other attempts are looked at again after a scancel."""


class Cancels:
    """Cancels what `submissions` tracks, and sees by `watch` what became of it."""

    def __init__(self, slurm: Slurm, questions: Questions, submissions: Submissions, watch: Watch):
        self._slurm = slurm
        self._questions = questions
        self._submissions = submissions
        self._watch = watch

    def cancel(self, keys: Iterable[str]) -> set[str]:
        """One scancel for all, and a look at what it did; repeated at the pace of the other questions."""
        known = self._submissions.tracked
        wanted = {key: known[key] for key in keys if key in known}
        for tracked in wanted.values():
            tracked.cancelled = True
        due = {key: tracked for key, tracked in wanted.items() if _may_live(tracked) and self._is_due(tracked)}
        if due:
            self._questions.look(now=not self._questions.silence)  # who is silent is not asked oftener for that
            self._watch.read(due)
            self._cancel_due(due)
        return {key for key, tracked in wanted.items() if _may_live(tracked)}

    def _is_due(self, tracked: Tracked) -> bool:
        at = tracked.cancelled_at
        return at is None or not self._questions.is_to_come(at + self._questions.interval_s)

    def _cancel_due(self, due: Mapping[str, Tracked]) -> None:
        if self._questions.answer is None:
            return
        for tracked in due.values():
            tracked.cancelled_at = self._slurm.monotonic()
            doubt = tracked.doubtful_since
            settled = doubt is not None and self._questions.asked_at >= doubt + SETTLE_S
            if settled and self._submissions.job_of(tracked) is None:
                tracked.doubtful_since = None
        if alive := [job for job in self._submissions.jobs_of(due.values()) if not job.state.is_ended]:
            self._submissions.cancel(alive)
            self._questions.look(now=True)
            self._watch.read(due)
        self._questions.look_again_in(_NEXT_LOOK_S)


def _may_live(tracked: Tracked) -> bool:
    never_submitted = tracked.job_id is None and tracked.doubtful_since is None
    return not never_submitted and tracked.status.liveness is not Liveness.ENDED
