"""The verdict of a search, by a table of measurements and endings."""

from __future__ import annotations

from typing import Any

import pytest

from dashboards.terminal.headline import describe_ending, headline, sentence
from search_spaces.layouts.layout import Layout
from tests.dashboards.compared import BASELINE, BATCH
from tests.dashboards.searches import SearchUnderTest
from trials.analysis.ranking import Objective, rank
from trials.analysis.verdict import DisplayState, SearchVerdict, TrialCounts, VerdictKind, verdict_of
from trials.ledger.events import EventKind
from trials.trial import FailureReason

OTHER = Layout(micro_batch_size=2, grad_accum_steps=8)
THIRD = Layout(micro_batch_size=4, grad_accum_steps=4)
LAYOUTS = {"baseline": BASELINE, "other": OTHER, "third": THIRD}
SPEC = {"name": "tiny", "search": {"max_trials": 10}}

Search = SearchUnderTest


def verdict_over(search: Search, baseline_key: str | None = BASELINE.key) -> SearchVerdict:
    ranking = rank(search.record.trials, Objective.TOKENS_PER_SEC, BATCH)
    return verdict_of(search.record, ranking, baseline_key)


def told(story: str, ends: tuple[str, str, str | None] | None = None, spec: dict[str, Any] = SPEC) -> Search:
    """A search by its trials, such as `baseline 100, other 160 again, third gpu_oom, third runs`: a speed known to
    2 % (`~` 30 %, `?` unknown; `!` unproven), the reason of a failure, or a trial in flight."""
    search = Search(spec)
    for words in filter(None, story.split(", ")):
        name, what, *kind = words.split()
        run = search.start(LAYOUTS[name], "repeat" if kind else "search")
        if what[0].isdigit():
            speed, spread = float(what.rstrip("~?!")), 0.3 if what.endswith("~") else 0.02
            ends_at = (None, None) if what.endswith("?") else (speed * (1 - spread), speed * (1 + spread))
            flags = ("unproven",) if what.endswith("!") else ()
            search.measure(run, speed, flags, tokens_per_sec_low=ends_at[0], tokens_per_sec_high=ends_at[1])
        elif what != "runs":
            search.fail(run, FailureReason(what))
    if ends is not None:
        state, end_reason, detail = ends
        search.event(EventKind.SEARCH_STATE, state=state, end_reason=end_reason, detail=detail)
    return search


MAX = ("completed", "max_trials", None)
NO_LAYOUT = ("failed", "no_feasible_layout", None)
CHANGED = ("completed", "program_changed", "the program changed: train.py")
STOPPED = "baseline cancelled_by_user, other 160"
CANCELLED = ("cancelled", "cancelled_by_user", None)
REFUSED = ("failed", "submission_rejected", "sbatch: error: Invalid account")


FASTER, TIED, ONLY = "baseline 100, other 160", "baseline 100~, other 108~", "baseline 100, other gpu_oom"
FAILED = "baseline gpu_oom, other gpu_oom, third hang"
NO_COMPARISON = "160 tokens/s, no comparison: the baseline"


@pytest.mark.parametrize(
    ("story", "ends", "kind", "words"),
    [
        (FASTER, MAX, "faster", "1.60x faster than the baseline (1.54–1.67)"),
        (FASTER, None, "faster", "Running, 2 of 10 layouts. Fastest so far: 1.60x, not re-measured"),
        (FASTER, ("completed", "wall_time", None), "faster", "Stopped after 2 of 10 layouts by search.max_wall_time."),
        (FASTER, CHANGED, "faster", "Stopped after 2 of 10 layouts: the training script changed. Fastest so far"),
        (f"{FASTER}, other 160 again", CANCELLED, "faster", "Fastest so far: 1.60x, measured in 2 runs"),
        ("baseline 100!, other 160!", MAX, "faster", "Unproven: 1.60x faster than the baseline"),
        (TIED, MAX, "no_winner", "No clear winner: 1.08x (0.58–2.01)"),
        ("baseline 100, other 160?", MAX, "no_winner", "No clear winner: 1.60x (interval unknown)"),
        ("baseline 160, other 100", MAX, "baseline_best", "No measured layout is faster than the baseline"),
        ("baseline 101, other 100", MAX, "no_winner", "No clear winner: the baseline is statistically tied with t0002"),
        (ONLY, MAX, "only_baseline", "Only the baseline was measured"),
        ("baseline gpu_oom, other 160", MAX, "no_comparison", f"{NO_COMPARISON} (t0001) failed: out of memory"),
        (STOPPED, MAX, "no_comparison", f"{NO_COMPARISON} (t0001) was cancelled from outside the search"),
        ("baseline runs, other 160", None, "no_comparison", f"{NO_COMPARISON} has not been measured yet"),
        ("other 160", MAX, "no_comparison", f"{NO_COMPARISON} was not tried"),
        (FAILED, NO_LAYOUT, "all_failed", "No layout was measured: 3 trials failed, 2 of them: out of memory"),
        (FAILED, None, "nothing_yet", "No layout has been measured yet"),
        ("", ("failed", "wall_time", None), "nothing_measured", "No layout was measured"),
        ("other cancelled_by_user", CANCELLED, "cancelled", "Cancelled after 0 of 10 layouts"),
        ("", REFUSED, "refused", "The cluster rejected a job: sbatch: error: Invalid account"),
    ],
)
def test_each_case_has_a_kind_and_a_headline(story, ends, kind, words):
    verdict = verdict_over(told(story, ends))
    assert verdict.kind == VerdictKind(kind)
    assert words in headline(verdict)
    assert sentence(verdict).endswith(".")


def test_a_verdict_names_a_missing_baseline_and_a_replayed_table_and_counts_all_runs():
    verdict = verdict_over(told("other 160", MAX), baseline_key=None)
    assert verdict.kind is VerdictKind.NO_COMPARISON
    assert headline(verdict) == "160 tokens/s, no comparison: the search file names no baseline"
    search = told("baseline 100, other 200, baseline 100 again, other 450 again")
    assert verdict_over(search).speedup.ratio == pytest.approx(3.0), "the middle of 200 and 450 is 300"
    search = told(FASTER, spec=SPEC | {"launcher": {"kind": "simulated", "table": "/data/llama.csv"}})
    assert sentence(verdict_over(search)).startswith("Replayed from llama.csv. Parlay ran nothing in this search. t0")


def test_a_pruned_trial_is_no_failure_and_a_refusal_after_a_measurement_leaves_the_finding():
    search = told(FASTER)
    search.prune(search.start(THIRD), 50.0)
    search.fail(search.start(Layout(micro_batch_size=8, grad_accum_steps=2)), FailureReason.HANG)
    search.start(Layout(micro_batch_size=16))
    verdict = verdict_over(search)
    assert verdict.counts == TrialCounts(measured=2, stopped_early=1, failed=1, in_flight=1)
    assert verdict.most_common_failure == (FailureReason.HANG, 1, "t0004")
    search = told(FASTER, ("completed", "submission_rejected", "sbatch: error: Invalid account"))
    verdict = verdict_over(search)
    assert (verdict.kind, verdict.state) == (VerdictKind.FASTER, DisplayState.REFUSED)
    assert describe_ending(verdict) == "the cluster rejected a job: sbatch: error: Invalid account"
