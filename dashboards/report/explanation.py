"""Explanation of a search without a comparison, and of its failures, for page, terminal and MLflow: sentences and the
next command. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dashboards.search_view import SearchView, recorded_section
from dashboards.terminal.headline import describe_ending
from dashboards.text import lower_first, printable, upper_first, with_full_stop
from dashboards.trial_text import (
    advice_after,
    describe_failure,
    failure_cause,
    format_setting,
    had_no_room_for_a_model,
)
from search_spaces.layouts.layout import AXES, axis_of
from trials.analysis.failure_patterns import Condition, FailurePattern, common_last_line, failure_patterns
from trials.analysis.verdict import SearchVerdict, VerdictKind, has_failed, has_stopped_early
from trials.failure_policy import policy_of
from trials.files.text import plural
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, FailureReason, Trial

_SAVING_MEMORY = ("micro_batch_size", "zero_stage", "offload", "activation_checkpointing")
_LONGEST_LINE = 300


@dataclass(frozen=True)
class NextCommand:
    """A command, and what it is for."""

    purpose: str
    command: str


@dataclass(frozen=True)
class Explanation:
    """Reasons why a search has no result to compare, or for which it waits."""

    title: str
    sentences: tuple[str, ...]
    commands: tuple[NextCommand, ...]


def explanation_of(view: SearchView) -> Explanation | None:
    """Explanation of a search that has nothing to compare; None for one that has."""
    search, verdict = view.search, view.verdict
    name, file = search.search_id, "search.yaml"
    again = NextCommand("Correct the search file and start again", f"parlay run {file}")
    if verdict.kind in (VerdictKind.ALL_FAILED, VerdictKind.NOTHING_MEASURED, VerdictKind.NONE_ALLOWED):
        sentences = (*_failures(search), *_too_full(view))
        commands = (*_log_command(name, verdict), again)
        title = "Why no layout qualifies" if verdict.kind is VerdictKind.NONE_ALLOWED else "Why nothing was measured"
        return Explanation(title, sentences, commands) if sentences else None
    if verdict.kind is VerdictKind.REFUSED:
        check = NextCommand("See what the cluster accepts", f"parlay doctor {file} --submit-test")
        return Explanation("What to do", (), (check, again))
    if verdict.kind is VerdictKind.CANCELLED:
        new = NextCommand("Start a new search", f"parlay run {file}")
        return Explanation("What to do", tuple(_failures(search)), (new,))
    if verdict.kind is VerdictKind.ONLY_BASELINE and verdict.is_ended:
        failed = tuple(_failures(search))
        words = failed or (with_full_stop(f"No other layout was tried: {describe_ending(verdict)}"),)
        return Explanation("Why there is no comparison", words, (*_log_command(name, verdict), again))
    if (
        verdict.kind is VerdictKind.NO_COMPARISON
        and isinstance(verdict.baseline, Trial)
        and has_failed(verdict.baseline)
    ):
        words = (*_baseline_failure(verdict.baseline, search), *_failures(search))
        return Explanation("Why there is no comparison", words, (_log_of(verdict.baseline.trial, name),))
    if not verdict.is_ended and verdict.kind in (VerdictKind.NOTHING_YET, VerdictKind.ONLY_BASELINE):
        follow = NextCommand("Follow it in a terminal", f"parlay watch {name}")
        return Explanation("What happens now", () if search.in_flight else ("No trial is in flight yet.",), (follow,))
    return None


def describe_condition(condition: Condition) -> str:
    """Axis and values: `micro-batch 8 and more`."""
    axis = axis_of(condition.axis)
    more = {"at_least": " and more", "at_most": " and less"}.get(condition.bound, "")
    return f"{axis.label} {format_setting(condition.value)}{more}"


def describe_failures(search: SearchRecord) -> list[str]:
    """The reasons of failures by their number, trials that stopped early, and the axis values that failures share."""
    reasons = Counter(trial.reason for trial in search.trials if has_failed(trial))
    counts = ", ".join(f"{count} {policy_of(reason).label}" for reason, count in reasons.most_common())
    told = [f"{plural(reasons.total(), 'trial')} of {len(search.trials)} failed: {counts}."] if reasons else []
    if early := sum(map(has_stopped_early, search.trials)):
        told.append(f"{plural(early, 'trial')} stopped early: too slow to become the best.")
    return [*told, *map(describe_pattern, failure_patterns(search.trials))]


def explanation_lines(view: SearchView) -> list[str]:
    """The explanation as lines of a terminal; of a search that needs none its failures."""
    found = explanation_of(view) if view.verdict.is_ended else None
    if found is None or not found.sentences:
        return describe_failures(view.search)
    return [f"{lower_first(found.title)}:", *(f"  {sentence}" for sentence in found.sentences)]


def _baseline_failure(baseline: Trial, search: SearchRecord) -> Iterator[str]:
    """Rank, phase and limit of the baseline's failure, or the last line of its log; none where nothing was written."""
    last = baseline.last_attempt
    if last is not None and (
        words := describe_failure(last, _memory_limit_gib(search)) or failure_cause(last.excerpt or "")
    ):
        yield f"{with_full_stop(f'The baseline ({baseline.trial}): {printable(words)}')}"


def _too_full(view: SearchView) -> Iterator[str]:
    """Layouts that leave less memory free than required, and what may help."""
    if too_full := [layout for layout in view.ranking.ordered if not view.ranking.has_headroom(layout)]:
        advice = f"a smaller constraints.min_free_memory_gib, {policy_of(FailureReason.GPU_OOM).advice}"
        yield f"{plural(len(too_full), 'layout')} left too little memory free. To try: {advice}."


def _failures(search: SearchRecord) -> Iterator[str]:
    """The reasons by their number, then what may help against the most common one and what its trials share."""
    trials = search.trials
    failed = [trial for trial in trials if has_failed(trial)]
    reasons = Counter(trial.reason for trial in failed)
    if not reasons:
        return
    counts, *others = describe_failures(search)
    yield counts
    reason = reasons.most_common(1)[0][0]
    attempts = [trial.last_attempt for trial in failed if trial.reason is reason and trial.last_attempt is not None]
    if advice := advice_after(reason, attempts, _memory_limit_gib(search)):
        yield f"To try: {advice}."
    if reason is not None:
        yield from _shared(trials, reason, attempts)
    yield from others


def _memory_limit_gib(search: SearchRecord) -> float | None:
    return recorded_section(search.spec, "measure").get("memory_limit_gib")


def _shared(trials: Sequence[Trial], reason: FailureReason, attempts: Sequence[Attempt]) -> Iterator[str]:
    """The line with which half of the logs or more end, and for too little memory the values that all have of the axes
    that save some."""
    found, layouts = common_last_line(trials, reason), [trial.layout for trial in trials if trial.reason is reason]
    count = len(layouts)
    if found is not None and 2 * found[1] >= count:
        line = printable(found[0])
        shown = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE].rsplit(' ', 1)[0]} ..."
        those = f"All {count}" if found[1] == count else f"{found[1]} of {count}"
        yield f"{those} logs end with: {shown}" if count > 1 else f"Its log ends with: {shown}"
    if policy_of(reason).exceeded is not None and not had_no_room_for_a_model(attempts):
        common = [name for name in _SAVING_MEMORY if len({getattr(layout, name) for layout in layouts}) == 1]
        values = [f"{AXES[name].label} {format_setting(getattr(layouts[0], name))}" for name in common]
        yield from [f"{'All' if count > 1 else 'It'} had {', '.join(values)}."] if values else []


def describe_pattern(pattern: FailurePattern) -> str:
    """Sentence for the axis values that failed layouts have more often than others."""
    label = policy_of(pattern.reason).label
    of_failed = f"{upper_first(label)}: {pattern.num_with} of {pattern.num_failed}"
    of_others = f"{pattern.others_with} of the {pattern.num_others} that ran"
    return f"{of_failed} had {describe_condition(pattern.condition)}, and {of_others}."


def _log_command(search_id: str, verdict: SearchVerdict) -> tuple[NextCommand, ...]:
    """Command for the log of the first trial with the most common reason."""
    if verdict.most_common_failure is None:
        return ()
    *_, trial = verdict.most_common_failure
    return (_log_of(trial, search_id),)


def _log_of(trial: str, search_id: str) -> NextCommand:
    return NextCommand(f"Read the log of {trial}", f"parlay logs {search_id} {trial}")
