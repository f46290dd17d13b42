"""The verdict of a search, by a table of measurements and endings."""

from __future__ import annotations

from collections.abc import Callable

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
SPEC = {"name": "tiny", "search": {"max_trials": 10}}

Search = SearchUnderTest


def verdict_over(search: Search, baseline_key: str | None = BASELINE.key) -> SearchVerdict:
    ranking = rank(search.record.trials, Objective.TOKENS_PER_SEC, BATCH)
    return verdict_of(search.record, ranking, baseline_key)


def measured(search: Search, layout: Layout, speed: float, spread: float = 0.02) -> None:
    ends = {"tokens_per_sec_low": speed * (1 - spread), "tokens_per_sec_high": speed * (1 + spread)}
    search.measure(search.start(layout), speed, **ends)


def faster(search: Search) -> None:
    measured(search, BASELINE, 100.0)
    measured(search, OTHER, 160.0)


def measured_again(search: Search) -> None:
    faster(search)
    search.measure(search.start(OTHER, "repeat"), 160.0)


def tied(search: Search) -> None:
    measured(search, BASELINE, 100.0, spread=0.3)
    measured(search, OTHER, 108.0, spread=0.3)


def without_an_interval(search: Search) -> None:
    measured(search, BASELINE, 100.0)
    search.measure(search.start(OTHER), 160.0, tokens_per_sec_low=None, tokens_per_sec_high=None)


def baseline_first(search: Search) -> None:
    measured(search, BASELINE, 160.0)
    measured(search, OTHER, 100.0)


def baseline_tied_first(search: Search) -> None:
    measured(search, BASELINE, 101.0)
    measured(search, OTHER, 100.0)


def only_the_baseline(search: Search) -> None:
    measured(search, BASELINE, 100.0)
    search.fail(search.start(OTHER), FailureReason.GPU_OOM)


def baseline_out_of_memory(search: Search) -> None:
    search.fail(search.start(BASELINE), FailureReason.GPU_OOM)
    measured(search, OTHER, 160.0)


def baseline_lost(search: Search) -> None:
    search.fail(search.start(BASELINE), FailureReason.JOB_LOST)
    measured(search, OTHER, 160.0)


def baseline_cancelled(search: Search) -> None:
    search.fail(search.start(BASELINE), FailureReason.CANCELLED_BY_USER)
    measured(search, OTHER, 160.0)


def baseline_in_flight(search: Search) -> None:
    search.start(BASELINE)
    measured(search, OTHER, 160.0)


def never_tried(search: Search) -> None:
    measured(search, OTHER, 160.0)


def all_failed(search: Search) -> None:
    for layout, reason in (
        (BASELINE, FailureReason.GPU_OOM),
        (OTHER, FailureReason.GPU_OOM),
        (THIRD, FailureReason.HANG),
    ):
        search.fail(search.start(layout), reason)


def nothing(search: Search) -> None:
    pass


def one_in_flight(search: Search) -> None:
    search.fail(search.start(OTHER), FailureReason.CANCELLED_BY_USER)


MAX = ("completed", "max_trials", None)
NO_LAYOUT = ("failed", "no_feasible_layout", None)
CANCELLED = ("cancelled", "cancelled_by_user", None)
REFUSED = ("failed", "submission_rejected", "sbatch: error: Invalid account")


@pytest.mark.parametrize(
    ("happens", "ends", "kind", "words"),
    [
        (faster, MAX, "faster", "1.60x faster than the baseline (1.54–1.67)"),
        (faster, None, "faster", "Running, 2 of 10 layouts. Fastest so far: 1.60x, not re-measured"),
        (faster, CANCELLED, "faster", "Cancelled after 2 of 10 layouts. Fastest so far: 1.60x, not re-measured"),
        (
            faster,
            ("completed", "wall_time", None),
            "faster",
            "Stopped after 2 of 10 layouts by search.max_wall_time. Fastest so far: 1.60x, not re-measured",
        ),
        (
            faster,
            ("completed", "program_changed", "the program changed: train.py"),
            "faster",
            "Stopped after 2 of 10 layouts: the training script changed. Fastest so far: 1.60x, not re-measured",
        ),
        (
            faster,
            ("completed", "script_error", "ImportError: no module"),
            "faster",
            "Stopped after 2 of 10 layouts: three trials in a row crashed alike. "
            "Fastest so far: 1.60x, not re-measured",
        ),
        (
            measured_again,
            CANCELLED,
            "faster",
            "Cancelled after 2 of 10 layouts. Fastest so far: 1.60x, measured in 2 runs",
        ),
        (tied, CANCELLED, "no_winner", "Cancelled after 2 of 10 layouts. No clear winner: 1.08x (0.58–2.01)"),
        (tied, MAX, "no_winner", "No clear winner: 1.08x (0.58–2.01)"),
        (without_an_interval, MAX, "no_winner", "No clear winner: 1.60x (interval unknown)"),
        (baseline_first, MAX, "baseline_best", "No measured layout is faster than the baseline"),
        (
            baseline_tied_first,
            MAX,
            "no_winner",
            "No clear winner: the baseline is statistically tied with t0002",
        ),
        (only_the_baseline, MAX, "only_baseline", "Only the baseline was measured"),
        (
            only_the_baseline,
            None,
            "only_baseline",
            "Running, 2 of 10 layouts. Only the baseline has been measured so far",
        ),
        (
            baseline_out_of_memory,
            MAX,
            "no_comparison",
            "160 tokens/s, no comparison: the baseline (t0001) failed: out of memory",
        ),
        (baseline_lost, MAX, "no_comparison", "160 tokens/s, no comparison: the baseline (t0001) failed: job lost"),
        (
            baseline_cancelled,
            MAX,
            "no_comparison",
            "160 tokens/s, no comparison: the baseline (t0001) was cancelled from outside the search",
        ),
        (
            baseline_cancelled,
            CANCELLED,
            "no_comparison",
            "Cancelled after 1 of 10 layouts. "
            "160 tokens/s, no comparison: the baseline (t0001) was cancelled with the search",
        ),
        (
            baseline_in_flight,
            None,
            "no_comparison",
            "Running, 1 of 10 layouts. 160 tokens/s, no comparison: the baseline has not been measured yet",
        ),
        (never_tried, MAX, "no_comparison", "160 tokens/s, no comparison: the baseline was not tried"),
        (
            all_failed,
            NO_LAYOUT,
            "all_failed",
            "No layout was measured: 3 trials failed, 2 of them: out of memory",
        ),
        (all_failed, None, "nothing_yet", "No layout has been measured yet"),
        (nothing, None, "nothing_yet", "No layout has been measured yet"),
        (nothing, ("failed", "wall_time", None), "nothing_measured", "No layout was measured"),
        (one_in_flight, CANCELLED, "cancelled", "Cancelled after 0 of 10 layouts"),
        (nothing, REFUSED, "refused", "The cluster rejected a job: sbatch: error: Invalid account"),
    ],
)
def test_each_case_has_a_kind_and_a_headline(
    happens: Callable[[Search], None], ends: tuple[str, str, str | None] | None, kind: str, words: str
):
    verdict = verdict_over(ended(happens, ends))
    assert (verdict.kind, headline(verdict)) == (VerdictKind(kind), words)
    assert sentence(verdict).endswith(".")


def ended(happens: Callable[[Search], None], ends: tuple[str, str, str | None] | None) -> Search:
    search = Search(SPEC)
    happens(search)
    if ends is not None:
        state, end_reason, detail = ends
        search.event(EventKind.SEARCH_STATE, state=state, end_reason=end_reason, detail=detail)
    return search


def test_a_search_file_without_a_baseline_is_said_to_name_none():
    verdict = verdict_over(ended(never_tried, MAX), baseline_key=None)
    assert verdict.kind is VerdictKind.NO_COMPARISON
    assert headline(verdict) == "160 tokens/s, no comparison: the search file names no baseline"


def test_the_numbers_are_over_all_runs_of_both_layouts():
    search = Search(SPEC)
    for layout, speed in ((BASELINE, 100.0), (OTHER, 200.0), (BASELINE, 100.0), (OTHER, 450.0)):
        search.measure(search.start(layout, "search" if speed < 450 else "repeat"), speed)
    assert verdict_over(search).speedup.ratio == pytest.approx(3.0), "the middle of 200 and 450 is 300"


def test_the_sentence_of_a_replayed_table_names_it_for_whoever_reads_only_that():
    search = Search(SPEC | {"launcher": {"kind": "simulated", "table": "/data/llama.csv"}})
    faster(search)
    assert sentence(verdict_over(search)).startswith("Replayed from llama.csv. Parlay ran nothing in this search. t0")


def test_a_pruned_trial_has_stopped_early_and_is_in_no_count_of_failures():
    search = Search(SPEC)
    faster(search)
    search.prune(search.start(THIRD), 50.0)
    search.fail(search.start(Layout(micro_batch_size=8, grad_accum_steps=2)), FailureReason.HANG)
    search.start(Layout(micro_batch_size=16))
    verdict = verdict_over(search)
    assert verdict.counts == TrialCounts(measured=2, stopped_early=1, failed=1, in_flight=1)
    assert verdict.most_common_failure == (FailureReason.HANG, 1, "t0004")


def test_a_refusal_after_a_measurement_leaves_the_finding_and_is_seen_in_the_state():
    search = ended(faster, ("completed", "submission_rejected", "sbatch: error: Invalid account"))
    verdict = verdict_over(search)
    assert (verdict.kind, verdict.state) == (VerdictKind.FASTER, DisplayState.REFUSED)
    assert describe_ending(verdict) == "the cluster rejected a job: sbatch: error: Invalid account"


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (None, ""),
        (MAX, "reached the limit of 10 layouts"),
        (CANCELLED, "cancelled after 2 of 10 layouts"),
        (("completed", "converged", None), "converged: no remaining layout is likely to be faster"),
    ],
)
def test_an_end_has_its_words(ends: tuple[str, str, str | None] | None, words: str):
    assert describe_ending(verdict_over(ended(faster, ends))) == words
