"""Verdict of a search: its result, compared with the baseline, and how it ended. Pure, over a record and its ranking.

Everything that reports a search's result rests on it; dashboards/terminal/headline.py has the sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.analysis.best_layout import Choice, choice_of
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import Objective, Ranking, Speedup, objectives_of_record, rank, speedup_over
from trials.failure_policy import Ending, policy_of
from trials.ledger.events import EndReason, SearchRecord, SearchState
from trials.trial import Attempt, FailureReason, Flag, LowerStrEnum, Trial, TrialKind, TrialState


class VerdictKind(LowerStrEnum):
    """Result of a search. `slower` and `no_winner` also occur for a best layout that constraints or memory chose."""

    FASTER = "faster"
    """The best is faster than the baseline; the interval excludes 1."""
    SLOWER = "slower"
    """The best is slower than the baseline; the interval excludes 1."""
    NO_WINNER = "no_winner"
    """The interval of the speedup contains 1, or is unknown."""
    BASELINE_BEST = "baseline_best"
    """The baseline is the best, and no layout is tied with it."""
    ONLY_BASELINE = "only_baseline"
    """Nothing but the baseline was measured."""
    NO_COMPARISON = "no_comparison"
    """No baseline, or it was not measured."""
    NONE_ALLOWED = "none_allowed"
    """Layouts were measured, but leave too little memory or are suspect."""
    NOTHING_YET = "nothing_yet"
    """No trial has ended with a measurement so far."""
    NOTHING_MEASURED = "nothing_measured"
    """It ended without a measurement."""
    ALL_FAILED = "all_failed"
    """Every trial failed."""
    CANCELLED = "cancelled"
    """Cancelled before anything was measured."""
    REFUSED = "refused"
    """The cluster rejected its jobs."""


class DisplayState(LowerStrEnum):
    """The state of a search as people see it: one that the cluster refused is neither completed nor merely failed."""

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """Ended as `submission_rejected`."""


_CUT_SHORT = (
    *(EndReason.CANCELLED_BY_USER, EndReason.WALL_TIME, EndReason.IDLE, EndReason.SUBMISSION_REJECTED),
    *(EndReason.SCRIPT_ERROR, EndReason.PROGRAM_CHANGED),
)
"""Ends before the finals, or amid them."""


@dataclass(frozen=True)
class TrialCounts:
    """Numbers of trials by outcome. A pruned trial stopped early and has not failed."""

    measured: int = 0
    stopped_early: int = 0
    failed: int = 0
    cancelled: int = 0
    in_flight: int = 0


@dataclass(frozen=True)
class SearchVerdict:
    """Result of a search, as far as it is known.

    `ranking` holds the best layout and its ties. `baseline` is the baseline's trial: over all its runs where it was
    measured, else its last trial; None where it was never tried. `speedup` is the best's over the baseline; None where
    they cannot be compared, or are one layout. `num_layouts` were tried and have ended, of `max_layouts` (None: unknown
    limit). `most_common_failure` is the reason of most failed trials, with their number and the name of the first.
    `replayed_table` answered in place of trials.
    """

    kind: VerdictKind
    state: DisplayState
    end_reason: EndReason | None
    detail: str | None
    ranking: Ranking
    names_baseline: bool
    baseline: TrialOrLayout | None
    speedup: Speedup | None
    counts: TrialCounts
    num_layouts: int
    max_layouts: int | None
    most_common_failure: tuple[FailureReason, int, str] | None
    replayed_table: str | None

    @property
    def best(self) -> RankedLayout | None:
        return self.ranking.best

    @property
    def is_ended(self) -> bool:
        return self.state not in (DisplayState.CREATED, DisplayState.RUNNING, DisplayState.STOPPING)

    @property
    def is_complete(self) -> bool:
        """True if the search has ended, and was neither cancelled nor cut short."""
        return self.is_ended and self.end_reason not in _CUT_SHORT

    @property
    def is_unproven(self) -> bool:
        """True if not all that was trained could be seen of the best layout, or of the baseline it is compared with."""
        compared = [self.best, None if self.speedup is None else self.baseline]
        return any(Flag.UNPROVEN in one.flags for one in compared if one is not None)

    @property
    def best_word(self) -> str:
        """Word for the best layout: recommended where a faster one was measured."""
        if choice_of(self.ranking) is not Choice.FASTEST:
            return "recommended" if self.is_complete else "recommended so far"
        if self.is_complete:
            return "best"
        return "fastest so far" if self.ranking.objective is Objective.TOKENS_PER_SEC else "best so far"


def verdict_of(search: SearchRecord, ranking: Ranking, baseline_key: str | None) -> SearchVerdict:
    """The verdict by this ranking of the search's trials; `baseline_key` is the baseline's layout key, or None."""
    baseline = baseline_of(search, ranking, baseline_key)
    best = ranking.best
    speedup = None
    if best is not None and baseline is not None and best.layout.key != baseline_key:
        speedup = speedup_over(baseline, best, ranking.objective)
    counts = counts_of(search.trials)
    return SearchVerdict(
        kind=_kind(search, ranking, baseline, speedup, counts),
        state=display_state(search.state, search.end_reason),
        end_reason=search.end_reason,
        detail=search.detail,
        ranking=ranking,
        names_baseline=baseline_key is not None,
        baseline=baseline,
        speedup=speedup,
        counts=counts,
        num_layouts=num_layouts_tried(search),
        max_layouts=(search.spec.get("search") or {}).get("max_trials"),
        most_common_failure=_most_common_failure(search.trials),
        replayed_table=search.replayed_table,
    )


_TRIED = (TrialState.MEASURED, TrialState.FAILED)


def num_layouts_tried(search: SearchRecord) -> int:
    """Number of layouts that were tried and have ended; one that was cancelled was not tried."""
    return sum(trial.kind is TrialKind.SEARCH and trial.state in _TRIED for trial in search.trials)


def ranking_of(search: SearchRecord, trials: Sequence[Trial]) -> Ranking:
    """These trials of the search, ranked by its own objectives, global batch and memory headroom."""
    spec = search.spec
    objective, *others = objectives_of_record(spec)
    return rank(trials, objective, global_batch_of(search), MemoryHeadroom.of_search(spec), tuple(others))


def global_batch_of(search: SearchRecord) -> int:
    """Sequences per step for which layouts compete; the first trial's, where the record does not say."""
    batch = search.spec.get("global_batch_size")
    return batch or next((trial.layout.global_batch_size for trial in search.trials), 1)


def baseline_key_of(search: SearchRecord) -> str | None:
    """The layout key of the baseline that the search file names; None where it names none."""
    given = search.spec.get("baseline")
    return Layout.from_json(given).key if given else None


def display_state(state: SearchState, end_reason: EndReason | None) -> DisplayState:
    """The state as people see it."""
    is_refused = state.is_ended and end_reason is EndReason.SUBMISSION_REJECTED
    return DisplayState.REFUSED if is_refused else DisplayState(state.value)


def counts_of(trials: Iterable[Trial]) -> TrialCounts:
    """Numbers of these trials by outcome."""
    standings = Counter(_standing(trial) for trial in trials)
    return TrialCounts(**standings)


def has_failed(trial: Trial) -> bool:
    """True if the trial counts as failed; a pruned one does not."""
    return _standing(trial) == "failed"


def has_stopped_early(trial: Trial | Attempt) -> bool:
    """True if the trial or attempt ended itself because it could not become the best any more."""
    return policy_of(trial.reason).ending is Ending.STOPPED_EARLY


def _standing(trial: Trial) -> str:
    """The field of TrialCounts that counts this trial."""
    if not trial.state.is_ended:
        return "in_flight"
    return "stopped_early" if has_stopped_early(trial) else trial.state.value


def _kind(
    search: SearchRecord,
    ranking: Ranking,
    baseline: TrialOrLayout | None,
    speedup: Speedup | None,
    counts: TrialCounts,
) -> VerdictKind:
    if ranking.best is None:
        return _kind_without_best(search, ranking, counts)
    if baseline is not None and ranking.best.layout.key == baseline.layout.key:
        if len(ranking.ordered) == 1:
            return VerdictKind.ONLY_BASELINE
        return VerdictKind.NO_WINNER if ranking.ties else VerdictKind.BASELINE_BEST
    if speedup is None:
        return VerdictKind.NO_COMPARISON
    is_tie = baseline is not None and baseline.layout.key in {tie.layout.key for tie in ranking.ties}
    if is_tie or speedup.low is None or speedup.high is None or speedup.low <= 1 <= speedup.high:
        return VerdictKind.NO_WINNER
    return VerdictKind.FASTER if speedup.low > 1 else VerdictKind.SLOWER


def _kind_without_best(search: SearchRecord, ranking: Ranking, counts: TrialCounts) -> VerdictKind:
    if search.end_reason is EndReason.SUBMISSION_REJECTED:
        return VerdictKind.REFUSED
    if ranking.ordered:
        return VerdictKind.NONE_ALLOWED
    if search.end_reason is EndReason.CANCELLED_BY_USER:
        return VerdictKind.CANCELLED
    if not search.state.is_ended:
        return VerdictKind.NOTHING_YET
    return VerdictKind.ALL_FAILED if counts.failed else VerdictKind.NOTHING_MEASURED


def baseline_of(search: SearchRecord, ranking: Ranking, key: str | None) -> TrialOrLayout | None:
    """The baseline over all its runs, else its last trial; None where it was never tried."""
    known: tuple[TrialOrLayout, ...] = (*ranking.ordered, *search.trials)
    measured = (t for t in known if t.measured and t.layout.key == key)
    tried = (t for t in reversed(search.trials) if t.layout.key == key)
    return next(measured, None) or next(tried, None)


def _most_common_failure(trials: Iterable[Trial]) -> tuple[FailureReason, int, str] | None:
    failed = [(trial.reason, trial.trial) for trial in trials if trial.reason is not None and has_failed(trial)]
    if not failed:
        return None
    ((reason, count),) = Counter(reason for reason, _ in failed).most_common(1)
    return reason, count, next(name for other, name in failed if other is reason)
