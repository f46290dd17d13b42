"""Verdict of a search as text: headline, sentence, end reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dashboards.text import cut_word, lower_first, printable, sentence_of, upper_first
from dashboards.trial_text import (
    describe_replayed_table,
    format_number,
    format_short,
    format_throughput_interval,
    join_names,
    layout_name,
)
from search_spaces.layouts.short_name import varying_axes
from trials.analysis.best_layout import (
    Choice,
    choice_of,
    describe_choice,
    describe_faster,
    describe_memory_room,
    describe_no_best,
    faster_layout,
)
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, Ranking, Speedup
from trials.analysis.verdict import SearchVerdict, VerdictKind
from trials.failure_policy import Cause, policy_of
from trials.files.text import last_line, plural
from trials.ledger.events import EndReason
from trials.outcome_types import MeasuredMetrics
from trials.trial import Trial, TrialState

UNITS: Mapping[Objective, str] = {
    Objective.TOKENS_PER_SEC: "tokens/s",
    Objective.TOKENS_PER_SEC_PER_GPU: "tokens/s per GPU",
    Objective.NODE_HOURS_PER_BILLION_TOKENS: "tokens/s per node",
    Objective.JOULES_PER_TOKEN: "tokens/J",
}
"""Unit of the speed that is shown for each objective; larger is always better."""

_LONGEST_REASON = 200

_END_DESCRIPTIONS: Mapping[EndReason, str] = {
    EndReason.MAX_TRIALS: "reached the limit of search.max_trials",
    EndReason.BUDGET: "reached its budget of node-hours",
    EndReason.CONVERGED: "converged: no remaining layout is likely to be faster",
    EndReason.SPACE_EXHAUSTED: "every layout was tried",
    EndReason.WALL_TIME: "reached search.max_wall_time",
    EndReason.IDLE: "idle: no trial started, ran or ended within search.idle_limit",
    EndReason.NO_FEASIBLE_LAYOUT: "no layout could be measured",
    EndReason.SCRIPT_ERROR: "three trials in a row crashed alike",
    EndReason.PROGRAM_CHANGED: "the training script changed during the search",
    EndReason.CANCELLED_BY_USER: "cancelled by the user",
    EndReason.SUBMISSION_REJECTED: "the cluster rejected a job",
}
_CUT_SHORT_BY: Mapping[EndReason | None, str] = {
    EndReason.WALL_TIME: " by search.max_wall_time",
    EndReason.IDLE: " by search.idle_limit",
    EndReason.SUBMISSION_REJECTED: ": the cluster rejected a job",
    EndReason.SCRIPT_ERROR: ": three trials in a row crashed alike",
    EndReason.PROGRAM_CHANGED: ": the training script changed",
}


def headline(verdict: SearchVerdict) -> str:
    """Result of the search in a few words, without a full stop; of one that is not complete also how far it went."""
    if verdict.best is None or verdict.is_complete:
        return _result(verdict)
    return f"{describe_incomplete(verdict)}. {_result_so_far(verdict)}"


def _result(verdict: SearchVerdict) -> str:
    result = _HEADLINES[verdict.kind](verdict)
    return f"Unproven: {lower_first(result)}" if verdict.is_unproven else result


def describe_incomplete(verdict: SearchVerdict) -> str:
    """Progress of a search that runs, was cancelled or cut short, without a full stop."""
    layouts = plural(verdict.max_layouts or verdict.num_layouts, "layout")
    if verdict.max_layouts is not None:
        layouts = f"{verdict.num_layouts} of {layouts}"
    if not verdict.is_ended:
        return f"{str(verdict.state).capitalize()}, {layouts}"
    word = "Cancelled" if verdict.end_reason is EndReason.CANCELLED_BY_USER else "Stopped"
    return f"{word} after {layouts}{_CUT_SHORT_BY.get(verdict.end_reason, '')}"


def sentence(verdict: SearchVerdict) -> str:
    """Evidence for the headline in a few sentences: first that a table was replayed, if one was."""
    table = verdict.replayed_table
    return _evidence(verdict) if table is None else f"{describe_replayed_table(table)} {_evidence(verdict)}"


def _evidence(verdict: SearchVerdict) -> str:
    best = verdict.best
    if verdict.kind is VerdictKind.ONLY_BASELINE:
        return "There is nothing to compare it with" + ("." if verdict.is_ended else " yet.")
    if best is not None:
        faster = faster_layout(verdict.ranking)
        others = [tie.trial for tie in verdict.ranking.ties if tie is not faster]
        tied = f" Statistically tied with {best.trial}: {join_names(others)}." if others else ""
        return f"{describe_choice(verdict.ranking)}.{tied}"
    if verdict.kind is VerdictKind.NONE_ALLOWED:
        reason = describe_no_best(verdict.ranking) or ""
        return sentence_of(reason)
    if not verdict.is_ended:
        return "The first numbers appear once a trial has been measured."
    if verdict.kind in (VerdictKind.REFUSED, VerdictKind.CANCELLED):
        return "No layout was measured."
    if detail := printable(last_line(verdict.detail or "")):
        return detail
    if verdict.most_common_failure is None:
        return f"The search has ended: {describe_ending(verdict) or 'nothing was tried'}."
    return f"parlay logs {verdict.most_common_failure[-1]} shows what that trial wrote."


def best_layout_line(verdict: SearchVerdict) -> str:
    """Best layout, its throughput and speed-up in one line; the headline where there is none."""
    best = verdict.best
    if best is None:
        return describe_no_best(verdict.ranking) or lower_first(headline(verdict))
    text = _result(verdict)
    if verdict.kind is VerdictKind.NO_COMPARISON:
        text = _describe_missing_comparison(verdict)
    speed = f"{format_throughput(best.measured)} tokens/s"
    parts = [f"{verdict.best_word}: {best.trial}, {best_layout_name(verdict)}, {speed}", lower_first(text)]
    if verdict.is_ended and not verdict.is_complete:
        parts.append(_describe_runs(best))
    if (faster := describe_faster(verdict.ranking)) is not None:
        parts.append(faster)
    elif verdict.ranking.ties:
        parts.append(f"statistically tied with {_tie_names(verdict)}")
    return "; ".join(parts)


def best_layout_name(verdict: SearchVerdict) -> str:
    """Name of the best layout, with the axes in which the measured ones differ; "" without one."""
    if verdict.best is None:
        return ""
    return layout_name(verdict.best.layout, varying_axes([ranked.layout for ranked in verdict.ranking.ordered]))


def describe_end_reason(reason: EndReason) -> str:
    """Text of an end reason."""
    return _END_DESCRIPTIONS[reason]


def describe_ending(verdict: SearchVerdict) -> str:
    """Reason for the end of the search, without a full stop; "" while it runs."""
    reason = verdict.end_reason
    if reason is None:
        return ""
    if reason is EndReason.CANCELLED_BY_USER:
        return lower_first(describe_incomplete(verdict))
    if reason is EndReason.MAX_TRIALS and verdict.max_layouts is not None:
        return f"reached the limit of {plural(verdict.max_layouts, 'layout')}"
    if reason is EndReason.SUBMISSION_REJECTED:
        return lower_first(_describe_rejection(verdict))
    return describe_end_reason(reason)


def format_speedup(speedup: Speedup, objective: Objective = Objective.TOKENS_PER_SEC) -> str:
    """Speed-up over the baseline, with its 95 % interval."""
    better = "faster" if objective is Objective.TOKENS_PER_SEC else "better"
    unit = "" if objective is Objective.TOKENS_PER_SEC else f" in {UNITS[objective]}"
    if speedup.ratio >= 1:
        return f"{speedup.ratio:.2f}x {better} than the baseline{unit}{format_interval(speedup)}"
    return f"{speedup.ratio:.2f}x the speed of the baseline{unit}{format_interval(speedup)}"


def format_interval(speedup: Speedup) -> str:
    """95 % interval of a speed-up in parentheses, to be appended to the number."""
    if speedup.low is None or speedup.high is None:
        return " (interval unknown)"
    return f" ({speedup.low:.2f}\N{EN DASH}{speedup.high:.2f})"


def headroom_lines(ranking: Ranking) -> list[str]:
    """Warning about measured layouts that leave less free memory than required; at most one line."""
    too_full = [trial for trial in ranking.ordered if not ranking.has_headroom(trial)]
    if ranking.headroom is None or not too_full:
        return []
    rule = f"constraints.min_free_memory_gib is {ranking.headroom.min_free_gib:g} GiB"
    leave = "leaves" if len(too_full) == 1 else "leave"
    return [f"! {join_names([trial.trial for trial in too_full])} {leave} less memory free than required: {rule}"]


def against_baseline(verdict: SearchVerdict) -> tuple[str, str]:
    """Speed-up over the baseline and its 95 % interval; a word where there is no clear winner, and "" for unknown."""
    speedup, so_far = verdict.speedup, "" if verdict.is_complete else " so far"
    if verdict.kind is VerdictKind.BASELINE_BEST:
        return f"the baseline is {verdict.best_word}", ""
    if verdict.kind is VerdictKind.ONLY_BASELINE:
        return "only the baseline", ""
    if verdict.kind is VerdictKind.NO_WINNER:
        interval = "" if speedup is None else f"{speedup.ratio:.2f}x{format_interval(speedup)}"
        return f"no clear winner{so_far}", interval
    if speedup is None:
        return "", ""
    unproven = ", unproven" if verdict.is_unproven else ""
    return f"{speedup.ratio:.2f}x{so_far}{unproven}", format_interval(speedup).strip()


def format_throughput(metrics: MeasuredMetrics) -> str:
    """Tokens per second with the 95 % interval, where one is known."""
    interval = format_throughput_interval(metrics)
    return format_number(metrics.tokens_per_sec) + (f" ({interval})" if interval else "")


def _result_so_far(verdict: SearchVerdict) -> str:
    """Result of a search that is not complete, as far as it is known."""
    best, speedup = verdict.best, verdict.speedup
    if verdict.kind not in (VerdictKind.FASTER, VerdictKind.SLOWER) or best is None or speedup is None:
        return _HEADLINES[verdict.kind](verdict)
    objective = verdict.ranking.objective
    unit = "" if objective is Objective.TOKENS_PER_SEC else f" in {UNITS[objective]}"
    word = f"unproven, {verdict.best_word}" if verdict.is_unproven else verdict.best_word
    return f"{upper_first(word)}: {speedup.ratio:.2f}x{unit}, {_describe_runs(best)}"


def _describe_runs(best: RankedLayout) -> str:
    return "not re-measured" if len(best.counted) == 1 else f"measured in {len(best.counted)} runs"


def _measured_speedup(verdict: SearchVerdict) -> str:
    assert verdict.speedup is not None, "both were measured"
    return format_speedup(verdict.speedup, verdict.ranking.objective)


def _no_winner(verdict: SearchVerdict) -> str:
    words = "No clear winner" + ("" if verdict.is_ended else " so far")
    if verdict.speedup is None:
        return f"{words}: the baseline is statistically tied with {_tie_names(verdict)}"
    return f"{words}: {verdict.speedup.ratio:.2f}x{format_interval(verdict.speedup)}"


def _baseline_best(verdict: SearchVerdict) -> str:
    better = "faster" if verdict.ranking.objective is Objective.TOKENS_PER_SEC else "better"
    return f"No measured layout{_eligible_clause(verdict.ranking)} is {better} than the baseline"


def _eligible_clause(ranking: Ranking) -> str:
    if choice_of(ranking) is Choice.FASTEST:
        return ""
    return describe_memory_room(ranking).replace("leave ", "leaves ") or " that may be chosen"


def _only_baseline(verdict: SearchVerdict) -> str:
    return "Only the baseline " + ("was measured" if verdict.is_ended else "has been measured so far")


def _no_comparison(verdict: SearchVerdict) -> str:
    best = verdict.best
    assert best is not None, "it has no baseline to be compared with"
    return f"{format_short(best.measured.tokens_per_sec)} tokens/s, {_describe_missing_comparison(verdict)}"


def _describe_missing_comparison(verdict: SearchVerdict) -> str:
    return f"no comparison: {_missing_baseline_reason(verdict)}"


def _missing_baseline_reason(verdict: SearchVerdict) -> str:
    baseline = verdict.baseline
    if not verdict.names_baseline:
        return "the search file names no baseline"
    if baseline is not None and baseline.measured is not None:
        return f"the baseline ({baseline.trial}) was measured with another global batch size"
    if not isinstance(baseline, Trial) or not baseline.state.is_ended:
        return "the baseline was not tried" if verdict.is_ended else "the baseline has not been measured yet"
    return f"the baseline ({baseline.trial}) {_describe_baseline_end(baseline, verdict)}"


def _describe_baseline_end(baseline: Trial, verdict: SearchVerdict) -> str:
    if baseline.state is not TrialState.CANCELLED:
        return "failed" + (f": {policy_of(baseline.reason).label}" if baseline.reason else "")
    by_search = verdict.end_reason is EndReason.CANCELLED_BY_USER or policy_of(baseline.reason).cause is not Cause.USER
    return "was cancelled with the search" if by_search else "was cancelled from outside the search"


def _describe_rejection(verdict: SearchVerdict) -> str:
    reason = cut_word(printable(" ".join((verdict.detail or "").split())), _LONGEST_REASON)
    return "The cluster rejected a job" + (f": {reason}" if reason else "")


def _all_failed(verdict: SearchVerdict) -> str:
    assert verdict.most_common_failure is not None, "some trial failed"
    (reason, count, _), failed = verdict.most_common_failure, verdict.counts.failed
    text = f"No layout was measured: {plural(failed, 'trial')} failed, "
    return text + (policy_of(reason).label if count == failed else f"{count} of them: {policy_of(reason).label}")


def _tie_names(verdict: SearchVerdict) -> str:
    return join_names([tie.trial for tie in verdict.ranking.ties])


_HEADLINES = {
    VerdictKind.FASTER: _measured_speedup,
    VerdictKind.SLOWER: _measured_speedup,
    VerdictKind.NO_WINNER: _no_winner,
    VerdictKind.BASELINE_BEST: _baseline_best,
    VerdictKind.ONLY_BASELINE: _only_baseline,
    VerdictKind.NO_COMPARISON: _no_comparison,
    VerdictKind.NONE_ALLOWED: lambda verdict: "No measured layout qualifies as the best",
    VerdictKind.NOTHING_YET: lambda verdict: "No layout has been measured yet",
    VerdictKind.NOTHING_MEASURED: lambda verdict: "No layout was measured",
    VerdictKind.ALL_FAILED: _all_failed,
    VerdictKind.CANCELLED: describe_incomplete,
    VerdictKind.REFUSED: _describe_rejection,
}
