"""Ranking of measured layouts: the best, its ties, layouts that may never be the best, and the reason."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from tests.kit import OUTCOME, metrics, with_metrics
from trials.analysis.best_layout import (
    Choice,
    Fastest,
    choice_of,
    describe_no_best,
    fastest_of,
    no_room_detail,
    rationale,
)
from trials.analysis.early_stopping import incumbents_of
from trials.analysis.ranked_layout import needs_repeat, suspect_reruns
from trials.analysis.ranking import (
    MIN_MEMORY_SAVING,
    Objective,
    Ranking,
    Speedup,
    objectives_of_record,
    rank,
    speedup_over,
    upper_bound_of,
    value_of,
)
from trials.outcome_types import ThroughputBound
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState

SPEED = Objective.TOKENS_PER_SEC
NODE_HOURS = Objective.NODE_HOURS_PER_BILLION_TOKENS
OF_THROUGHPUT = [objective for objective in Objective if objective.follows_from_throughput]


def trial(
    number: int, tokens_per_sec: float, spread: float | None = 0.0, flags: tuple[str, ...] = (), **layout
) -> Trial:
    """A measured trial whose interval reaches `spread` of its value to both sides; its layout differs by number."""
    ends = {} if spread is None else {"low": 1 - spread, "high": 1 + spread}
    interval = {f"tokens_per_sec_{end}": tokens_per_sec * factor for end, factor in ends.items()}
    outcome = replace(OUTCOME, measured=metrics(tokens_per_sec, **interval), flags=flags)
    attempt = Attempt(f"t{number:04d}", "a1", "0" * 32, 1, 60.0, state=TrialState.MEASURED, outcome=outcome)
    shape = {"data_parallel": 8, "tensor_parallel": number} | layout
    return Trial(f"t{number:04d}", Layout(**shape), state=TrialState.MEASURED, attempts=(attempt,))


def names(trials) -> list[str]:
    return [t.trial for t in trials]


class TestRanking:
    def test_the_fastest_of_one_global_batch_is_the_best_and_of_equals_the_first(self):
        ranking = rank([trial(1, 100.0), trial(2, 300.0), trial(3, 200.0)], SPEED, 8)
        assert names(ranking.ordered) == ["t0002", "t0003", "t0001"]
        assert ranking.best.trial == "t0002"
        assert ranking.ties == ()
        failed = Trial("t0001", Layout(data_parallel=8), state=TrialState.FAILED, reason=FailureReason.GPU_OOM)
        assert rank([failed, Trial("t0002", Layout(data_parallel=8))], SPEED, 8) == Ranking(SPEED)
        assert names(rank([trial(1, 100.0), trial(2, 300.0, grad_accum_steps=2)], SPEED, 8).ordered) == ["t0001"]
        assert rank([trial(2, 100.0), trial(1, 100.0)], SPEED, 8).best.trial == "t0002"

    @pytest.mark.parametrize("flag", ["suspect_node", "fingerprint_changed"])
    def test_a_suspect_is_never_the_best_however_fast(self, flag):
        ranking = rank([trial(1, 300.0, flags=(flag,)), trial(2, 100.0)], SPEED, 8)
        assert ranking.best.trial == "t0002"
        assert names(ranking.ordered) == ["t0002", "t0001"]
        alone = rank([trial(1, 300.0, flags=(flag,))], SPEED, 8)
        assert (alone.best, names(alone.ordered)) == (None, ["t0001"])
        explained = trial(1, 300.0, flags=("extrapolated", "time_limit", "failed_after_result", "host_memory_growth"))
        assert rank([explained, trial(2, 100.0)], SPEED, 8).best.trial == "t0001"

    def test_layouts_whose_intervals_overlap_the_best_tie_with_it_but_no_suspect_and_no_repeat(self):
        trials = [trial(1, 300.0, 0.05), trial(2, 280.0, 0.05), trial(3, 260.0, 0.05), trial(4, 290.0, 0.0)]
        assert names(rank(trials, SPEED, 8).ties) == ["t0004", "t0002"]
        again = trial(3, 299.0, 0.05, tensor_parallel=1)
        ranking = rank([trial(1, 300.0, 0.05), trial(2, 299.0, 0.05, ("suspect_node",)), again], SPEED, 8)
        assert ranking.ties == ()
        best = trial(1, 300.0, 0.05)
        assert names(rank([best, trial(2, 290.0, None), trial(3, 280.0, None)], SPEED, 8).ties) == ["t0002"]

    def test_an_unproven_layout_is_not_recommended_over_a_proven_one(self):
        ranking = rank([trial(1, 300.0, 0.05, ("unproven",)), trial(2, 299.0, 0.05), trial(3, 100.0)], SPEED, 8)
        assert (names(ranking.ordered), names(ranking.ties)) == (["t0002", "t0003", "t0001"], [])
        unproven = [trial(1, 300.0, 0.05, ("unproven",)), trial(2, 299.0, 0.05, ("unproven",))]
        assert rank(unproven, SPEED, 8).best.trial == "t0001"


def again(number: int, layout: int, tokens_per_sec: float, spread: float | None = 0.0) -> Trial:
    """A repeat of the layout of trial `layout`."""
    return replace(trial(number, tokens_per_sec, spread, tensor_parallel=layout), kind=TrialKind.REPEAT)


def failed_again(number: int, layout: int, reason: FailureReason) -> Trial:
    shape = Layout(data_parallel=8, tensor_parallel=layout)
    return Trial(f"t{number:04d}", shape, TrialKind.REPEAT, TrialState.FAILED, reason)


class TestRepeats:
    def test_a_layout_counts_once_by_the_median_of_its_runs(self):
        ranking = rank([trial(1, 300.0), again(2, 1, 200.0), again(3, 1, 220.0)], SPEED, 8)
        assert names(ranking.ordered) == ["t0001"]
        assert ranking.best.measured.tokens_per_sec == pytest.approx(220.0)
        assert names(ranking.best.runs) == ["t0001", "t0002", "t0003"]
        slow = with_metrics(trial(1, 100.0), step_time_s=4.0, peak_memory_gib=2.0)
        fast = with_metrics(again(2, 1, 400.0), step_time_s=1.0, peak_memory_gib=3.0)
        measured = rank([slow, fast], SPEED, 8).best.measured
        assert measured.tokens_per_sec * measured.step_time_s == pytest.approx(400.0)
        assert measured.step_time_low_s < measured.step_time_s < measured.step_time_high_s
        assert measured.peak_memory_gib == 3.0
        suspect = replace(trial(1, 900.0, flags=("suspect_node",)))
        best = rank([suspect, again(2, 1, 300.0), trial(3, 100.0)], SPEED, 8).best
        assert (best.trial, best.measured.tokens_per_sec, best.flags) == ("t0002", 300.0, ())

    def test_the_winner_changes_when_the_best_was_lucky_or_varies_more(self):
        before = [trial(1, 300.0), trial(2, 280.0)]
        repeats = [again(3, 1, 240.0), again(4, 2, 281.0), again(5, 1, 241.0), again(6, 2, 279.0)]
        assert rank(before, SPEED, 8).best.trial == "t0001"
        best = rank([*before, *repeats], SPEED, 8).best
        assert (best.trial, best.measured.tokens_per_sec) == ("t0002", pytest.approx(280.0))
        wild = [trial(1, 301.0), again(3, 1, 400.0), again(5, 1, 200.0)]
        calm = [trial(2, 300.0), again(4, 2, 301.0), again(6, 2, 299.0)]
        ranking = rank([*wild, *calm], SPEED, 8)
        assert ranking.best.trial == "t0002"
        assert names(ranking.ties) == ["t0001"]

    def test_the_interval_rests_on_the_spread_between_runs_not_on_the_steps_of_one(self):
        narrow = [trial(1, 300.0, 1e-6), again(2, 1, 300.0, 1e-6), again(3, 1, 300.0, 1e-6)]
        measured = rank(narrow, SPEED, 8).best.measured
        # 2.447 (Student's t, 6 degrees of freedom) x 3 % x sqrt(4 / 6) / sqrt(3)
        assert math.log(measured.tokens_per_sec_high / 300.0) == pytest.approx(0.0346, abs=1e-4)
        assert math.log(300.0 / measured.tokens_per_sec_low) == pytest.approx(0.0346, abs=1e-4)

    def test_once_there_are_finalists_only_they_compete(self):
        lone = trial(3, 295.0)
        trials = [trial(1, 300.0), trial(2, 298.0), lone, again(4, 1, 290.0), again(5, 2, 292.0)]
        ranking = rank(trials, SPEED, 8)
        assert names(ranking.ordered)[2:] == ["t0003"]
        assert lone.trial not in names([ranking.best, *ranking.ties])

    @pytest.mark.parametrize("reason", [FailureReason.GPU_OOM, FailureReason.RESULT_INVALID])
    def test_a_layout_whose_repeat_failed_of_itself_is_no_finalist(self, reason):
        trials = [trial(1, 300.0), trial(2, 200.0), failed_again(3, 1, reason), again(4, 2, 200.0)]
        assert rank(trials, SPEED, 8).best.trial == "t0002"

    def test_a_repeat_that_the_machine_lost_takes_nothing_from_its_layout(self):
        lost = failed_again(3, 1, FailureReason.NODE_FAILURE)
        assert rank([trial(1, 300.0), trial(2, 200.0), lost, again(4, 2, 200.0)], SPEED, 8).best.trial == "t0001"
        trials = [trial(1, 300.0), trial(2, 200.0), failed_again(3, 1, FailureReason.GPU_OOM)]
        assert rank(trials, SPEED, 8).best.trial == "t0001"

    def test_the_parts_of_a_step_are_the_profiled_runs_mean_shares_and_add_up_to_its_time(self):
        runs = [trial(1, 100.0), again(2, 1, 100.0), again(3, 1, 100.0)]
        for parts, expected in (
            ((None, {"compute": 0.5, "bubble": 1.5}, {"compute": 1.4, "bubble": 0.6}), (0.95, 1.05)),
            (({"compute": 0.0}, {"compute": 1.0}, {"compute": 1.0, "bubble": 1.0}), (1.5, 0.5)),
        ):
            profiled = [with_metrics(r, step_time_s=2.0, time_s=time_s) for r, time_s in zip(runs, parts, strict=True)]
            found = rank(profiled, SPEED, 8).best.measured.time_s
            assert (found["compute"], found["bubble"]) == pytest.approx(expected)


class TestMemoryToSpare:
    """Tied finalists: three runs of each, which agree."""

    def ranking(self, *layouts: tuple[float, float | None], flags: tuple[str, ...] = (), nodes=(1, 1, 1, 1)) -> Ranking:
        """Ranking of layouts t0001, t0002, ... with this speed and this peak in GiB, followed by their repeats."""
        trials = []
        for repeat in range(3):
            for number, (tokens_per_sec, peak_gib) in enumerate(layouts, start=1):
                shape = {"tensor_parallel": number, "num_nodes": nodes[number - 1]}
                run = trial(number + repeat * len(layouts), tokens_per_sec, flags=flags, **shape)
                run = with_metrics(run, peak_memory_gib=peak_gib)
                trials.append(replace(run, kind=TrialKind.REPEAT if repeat else TrialKind.SEARCH))
        return rank(trials, SPEED, 8)

    def chosen(self, *layouts: tuple[float, float | None], **more) -> list[str]:
        """The best, and after it its ties."""
        ranking = self.ranking(*layouts, **more)
        return names([ranking.best, *ranking.ties])

    def test_the_one_that_needs_much_less_memory_is_the_best_and_the_fastest_is_a_tie(self):
        ranking = self.ranking((300.0, 10.0), (299.0, 7.0), (298.0, 9.5))
        assert (ranking.best.trial, ranking.fastest.trial) == ("t0002", "t0001")
        assert names(ranking.ties) == ["t0001", "t0003"]
        assert names(ranking.ordered) == ["t0001", "t0002", "t0003"]
        ranking = self.ranking((300.0, 10.0), (299.0, 7.0))
        changed = ranking.best.runs[1]
        runs = [run for layout in ranking.ordered for run in layout.runs if run is not changed]
        again = rank([*runs, with_metrics(changed, peak_memory_gib=9.9)], SPEED, 8)
        assert (ranking.best.trial, again.best.trial) == ("t0002", "t0001")
        ranking = self.ranking((300.0, 10.0), (299.0, 7.0))
        assert [one.trial for one in incumbents_of([ranking], "tiny-aaaaaa", 8).incumbents] == ["t0001"]

    @pytest.mark.parametrize(
        ("layouts", "nodes", "chosen"),
        [
            ([(300.0, 10.0), (299.0, 7.0), (298.0, 6.0)], (1, 1, 1), "t0003 t0001 t0002"),  # the least of all
            ([(300.0, 10.0), (299.0, 10.0 * (1 - MIN_MEMORY_SAVING) + 0.01)], (1, 1), "t0001 t0002"),
            ([(300.0, 10.0), (299.0, 10.0 * (1 - MIN_MEMORY_SAVING))], (1, 1), "t0002 t0001"),
            ([(300.0, 10.0), (200.0, 1.0)], (1, 1), "t0001"),  # slower for certain
            ([(300.0, None), (299.0, 1.0)], (1, 1), "t0001 t0002"),
            ([(300.0, 10.0), (299.0, None)], (1, 1), "t0001 t0002"),
            ([(300.0, 10.0), (299.0, 5.0)], (1, 2), "t0001 t0002"),  # bought with more nodes
            ([(300.0, 10.0), (299.0, 5.0)], (2, 1), "t0002 t0001"),
        ],
    )
    def test_it_is_the_one_of_the_least_memory_among_as_fast_ones_on_as_few_nodes(self, layouts, nodes, chosen):
        assert self.chosen(*layouts, nodes=nodes) == chosen.split()

    def test_without_finalists_the_fastest_stays_the_best(self):
        runs = [(trial(1, 300.0, 0.05), 10.0), (trial(2, 299.0, 0.05), 1.0)]
        assert rank([with_metrics(run, peak_memory_gib=gib) for run, gib in runs], SPEED, 8).best.trial == "t0001"

    @pytest.mark.fault(38)
    def test_suspect_runs_are_never_chosen_for_their_memory(self):
        assert self.chosen((300.0, 10.0), (299.0, 5.0), flags=("suspect_node",)) == ["t0001", "t0002"]


class TestMemoryFloor:
    """Ranks with 10 GiB, of which 4 have to stay free."""

    HEADROOM = MemoryHeadroom(10.0, 4.0)

    def of(self, *runs: tuple[Trial, float | None]) -> Ranking:
        return rank([with_metrics(run, peak_memory_gib=gib) for run, gib in runs], SPEED, 8, self.HEADROOM)

    def test_a_layout_that_leaves_less_comes_last_and_one_repeat_that_takes_too_much_is_enough(self):
        ranking = self.of((trial(1, 300.0, 0.05), 7.0), (trial(2, 299.0, 0.05), 6.0), (trial(3, 298.0, 0.05), 6.5))
        assert names(ranking.ordered) == ["t0002", "t0001", "t0003"]
        assert (ranking.best.trial, ranking.fastest.trial, ranking.ties) == ("t0002", "t0002", ())
        assert [ranking.has_headroom(t) for t in ranking.ordered] == [True, False, False]
        assert self.of((trial(1, 300.0), None), (trial(2, 200.0), 5.0)).best.trial == "t0002"
        assert rank([trial(1, 300.0)], SPEED, 8).has_headroom(trial(1, 300.0)), "nothing is too full without a headroom"
        ranking = self.of((trial(1, 300.0), 7.0), (trial(2, 200.0), 6.5))
        assert (ranking.best, ranking.fastest, names(ranking.ordered)) == (None, None, ["t0001", "t0002"])
        assert incumbents_of([ranking], "tiny-aaaaaa", 8) is None
        slower = [(trial(2, 200.0), 5.0), (again(4, 2, 200.0), 5.0)]
        assert self.of((trial(1, 300.0), 5.0), (again(3, 1, 300.0), 5.9), *slower).best.trial == "t0001"
        assert self.of((trial(1, 300.0), 5.0), (again(3, 1, 300.0), 6.1), *slower).best.trial == "t0002"


class TestSuspects:
    FLAG = ("suspect_node",)

    @pytest.mark.fault(38)
    def test_two_suspect_runs_may_be_the_best_where_no_other_layout_has_a_clean_one(self):
        twice = [
            trial(1, 300.0, flags=self.FLAG),
            replace(again(2, 1, 320.0), attempts=trial(2, 320.0, flags=self.FLAG).attempts),
        ]
        once = trial(3, 900.0, flags=self.FLAG)
        ranking = rank([*twice, once], SPEED, 8)
        assert (ranking.best.trial, ranking.best.flags) == ("t0001", self.FLAG)
        assert names(ranking.ordered) == ["t0001", "t0003"]
        assert rank([*twice, once, trial(4, 10.0)], SPEED, 8).best.trial == "t0004"

    @pytest.mark.fault(38)
    def test_a_rerun_makes_no_finalist_but_the_repeat_after_it(self):
        trials = [trial(1, 100.0, flags=self.FLAG), again(2, 1, 120.0), trial(3, 300.0)]
        assert suspect_reruns(trials) == {"t0002"}
        assert names(rank(trials, SPEED, 8).ordered) == ["t0003", "t0002"]
        trials = [trial(1, 100.0, flags=self.FLAG), again(2, 1, 120.0), trial(3, 300.0), again(4, 1, 121.0)]
        assert names(rank(trials, SPEED, 8).ordered) == ["t0002", "t0003"]
        assert not needs_repeat(trial(1, 100.0, flags=("fingerprint_changed",)))
        assert suspect_reruns([trial(1, 100.0, flags=("fingerprint_changed",)), again(2, 1, 120.0)]) == frozenset()


class TestObjectives:
    FEW, MANY = trial(1, 1000.0, num_nodes=2), trial(2, 1500.0, num_nodes=4)

    def test_each_objective_ranks_by_its_own_value(self):
        assert rank([self.FEW, self.MANY], SPEED, 8).best.first is self.MANY
        per_gpu = Objective.TOKENS_PER_SEC_PER_GPU
        assert value_of(self.FEW, per_gpu) == 1000 / 8
        assert value_of(self.MANY, per_gpu) == 1500 / 16
        assert rank([self.FEW, self.MANY], per_gpu, 8).best.first is self.FEW
        ranking = rank([self.FEW, self.MANY], NODE_HOURS, 8)
        assert ranking.best.first is self.FEW
        assert fastest_of(ranking).value == pytest.approx(2 * 1e9 / 1000 / 3600)
        with pytest.raises(ValueError, match="t0001 was not measured"):
            value_of(Trial("t0001", Layout()), SPEED)


class TestSpeedup:
    def test_a_speedup_is_today_over_the_best_with_the_widest_interval(self):
        speedup = speedup_over(trial(1, 100.0, 0.1), trial(2, 160.0, 0.1), SPEED)
        assert speedup == Speedup(1.6, pytest.approx(144 / 110), pytest.approx(176 / 90))
        few, many = trial(1, 1000.0, num_nodes=2), trial(2, 1500.0, num_nodes=4)
        assert speedup_over(many, few, NODE_HOURS).ratio == pytest.approx(4 / 3)
        assert speedup_over(trial(1, 100.0, None), trial(2, 150.0, 0.1), SPEED) == Speedup(1.5, None, None)
        one = trial(1, 100.0)
        assert speedup_over(Trial("t0002", Layout()), one, SPEED) is None
        assert speedup_over(one, Trial("t0002", Layout()), SPEED) is None
        assert speedup_over(trial(2, 100.0, grad_accum_steps=2), one, SPEED) is None


class TestBestFile:
    """best.json, which running trials compare themselves with."""

    def test_one_run_is_as_fast_only_to_within_what_runs_differ_by_and_several_that_agree_to_within_less(self):
        def threshold(*trials: Trial, objective: Objective = SPEED) -> float:
            return incumbents_of([rank(trials, objective, 8)], "tiny-aaaaaa", 8).incumbents[0].threshold

        alone = threshold(trial(1, 300.0))
        assert alone == pytest.approx(300.0 * 0.92, rel=0.01)
        assert threshold(trial(1, 300.0), *(again(n, 1, 300.0) for n in (2, 3, 4))) > 0.95 * 300.0
        per_gpu = Objective.TOKENS_PER_SEC_PER_GPU
        assert threshold(trial(1, 300.0), objective=per_gpu) == alone

    def test_each_number_of_nodes_has_an_incumbent_in_tokens_per_second(self):
        slow, fast = trial(1, 100.0, num_nodes=1), trial(2, 300.0, num_nodes=2)
        by_nodes = [
            rank(trials, NODE_HOURS, 8, others=(SPEED,))
            for trials in ([slow], [fast], [trial(3, 900.0, flags=("fingerprint_changed",))])
        ]
        told = incumbents_of(by_nodes, "tiny-aaaaaa", 8)
        assert told.objectives == (NODE_HOURS, SPEED)
        assert [(one.trial, one.num_nodes) for one in told.incumbents] == [("t0001", 1), ("t0002", 2)]
        assert [one.threshold for one in told.incumbents] == pytest.approx([92.0, 276.0], rel=0.01)
        assert told.incumbents[0].fingerprint == {"torch": "2.13.0"}


class TestUpperBound:
    def failed(self, reason: FailureReason, bound: float | None) -> Trial:
        ended = trial(1, 300.0)
        outcome = replace(OUTCOME, reason=reason, measured=bound and ThroughputBound(bound))
        attempt = replace(ended.last_attempt, state=TrialState.FAILED, outcome=outcome)
        return replace(ended, state=TrialState.FAILED, reason=reason, attempts=(attempt,))

    def test_only_a_trial_that_was_pruned_or_ran_out_of_time_has_one_in_the_objectives_unit(self):
        for reason in (FailureReason.PRUNED, FailureReason.TIME_LIMIT):
            assert upper_bound_of(self.failed(reason, 320.0), SPEED) == 320.0
            assert upper_bound_of(self.failed(reason, 320.0), Objective.TOKENS_PER_SEC_PER_GPU) == 40.0
        assert upper_bound_of(trial(1, 300.0, 0.1), SPEED) is None
        assert upper_bound_of(self.failed(FailureReason.PRUNED, None), SPEED) is None
        assert upper_bound_of(self.failed(FailureReason.HANG, 320.0), SPEED) is None
        assert upper_bound_of(Trial("t0001", Layout(), reason=FailureReason.PRUNED), SPEED) is None


def with_peak(run: Trial, peak_gib: float) -> Trial:
    return with_metrics(run, peak_memory_gib=peak_gib)


def test_the_best_says_why_it_was_chosen_and_nothing_without_one():
    ranking = rank([trial(1, 300.0, 0.05), trial(2, 299.0, 0.05)], SPEED, 8)
    assert fastest_of(ranking) == Fastest("t0001", 300.0, None)
    assert rationale(ranking) == "t0001 is the fastest of the layouts measured"
    ranking = rank([trial(1, 300.0)], NODE_HOURS, 8)
    assert rationale(ranking) == "t0001 is the best in node_hours_per_billion_tokens of the layouts measured"
    nothing = Ranking(SPEED)
    assert [tell(nothing) for tell in (choice_of, fastest_of, rationale)] == [None] * 3


def test_what_was_chosen_for_its_memory_or_interval_says_over_which():
    first = [with_peak(run, 63.0) for run in (trial(1, 300.0), again(3, 1, 300.0), again(5, 1, 300.0))]
    second = [with_peak(run, 55.5) for run in (trial(2, 291.0), again(4, 2, 291.0), again(6, 2, 291.0))]
    ranking = rank([*first, *second], SPEED, 8)
    assert (ranking.best.trial, choice_of(ranking), names(ranking.ties)) == ("t0002", Choice.MEMORY, ["t0001"])
    assert fastest_of(ranking) == Fastest("t0001", pytest.approx(300.0), 63.0)
    assert ranking.best.measured.tokens_per_sec == pytest.approx(291.0), "the numbers are those of the chosen layout"
    words = "Recommended: t0002. t0001 is 3 % faster, within noise, but needs 63 GiB instead of 55.5"
    assert rationale(ranking) == words
    steady, varying = [trial(1, 300.0), again(3, 1, 300.0)], [trial(2, 250.0), again(4, 2, 380.0)]
    ranking = rank([*steady, *varying], SPEED, 8)
    assert (ranking.best.trial, choice_of(ranking), fastest_of(ranking).trial) == ("t0001", "interval", "t0002")
    words = "Recommended: t0001. t0002 is 3 % faster, within noise, but its 95 % interval reaches lower"
    assert rationale(ranking) == words


def test_a_faster_one_that_did_not_compete_is_named_with_its_obstacle():
    headroom, full, fits = MemoryHeadroom(10.0, 4.0), with_peak(trial(1, 300.0), 9.0), with_peak(trial(2, 200.0), 5.0)
    ranking = rank([full, fits], SPEED, 8, headroom)
    assert (choice_of(ranking), fastest_of(ranking).trial) == (Choice.EXCLUDED, "t0001")
    assert rationale(ranking) == "Recommended: t0002. t0001 is 50 % faster, but leaves too little memory free"
    once = rank([trial(1, 303.0), trial(2, 300.0), again(3, 2, 300.0)], SPEED, 8)
    assert rationale(once) == "Recommended: t0002. t0001 is 1 % faster, but was not measured again"
    suspect = rank([trial(1, 303.0, flags=("suspect_node",)), trial(2, 302.0)], SPEED, 8)
    assert rationale(suspect) == "Recommended: t0002. t0001 is 0.3 % faster, but is suspect"
    unproven = rank([trial(1, 330.0, flags=("unproven",)), trial(2, 300.0)], SPEED, 8)
    assert rationale(unproven) == "Recommended: t0002. t0001 is 10 % faster, but is unproven"
    assert rationale(rank([fits], SPEED, 8, headroom)) == "t0002 is the fastest of the layouts measured"


def test_where_no_layout_may_be_the_best_that_is_said():
    headroom = MemoryHeadroom(10.0, 4.0)
    full = [with_peak(trial(1, 300.0), 9.0), with_peak(trial(2, 200.0), 8.8), trial(3, 100.0)]
    asked = "no layout that was measured leaves 4 GiB free (constraints.min_free_memory_gib)"
    assert no_room_detail(rank(full, SPEED, 8, headroom)) == f"{asked}: t0002 comes nearest and leaves 1.2 GiB"
    assert no_room_detail(rank(full[2:], SPEED, 8, headroom)) == f"{asked}: the peak of none is known"
    assert no_room_detail(rank([*full, with_peak(trial(4, 1.0), 1.0)], SPEED, 8, headroom)) is None
    assert no_room_detail(rank(full, SPEED, 8)) is no_room_detail(rank([], SPEED, 8, headroom)) is None
    suspect = rank([trial(1, 300.0, flags=("suspect_node",))], SPEED, 8)
    assert describe_no_best(suspect) == "no layout that was measured may be the best: one suspect run alone never is"
    assert describe_no_best(rank([], SPEED, 8)) is None
    full = rank([with_peak(trial(1, 300.0), 9.0)], SPEED, 8, headroom)
    assert describe_no_best(full) == no_room_detail(full)


@pytest.mark.parametrize("given", [5, [], "tokens_per_sec", ["loss"]])
def test_objectives_of_a_record_that_are_no_list_of_objectives_are_refused(given):
    with pytest.raises(ValueError, match=r"[Oo]bjective"):
        objectives_of_record({"objectives": given})
