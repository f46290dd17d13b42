"""Use of the node-hours of a search, its cost and its pay-back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dashboards.cost_text import describe_search_cost
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from tests.kit import metrics
from trials.analysis.node_time import node_time, search_node_time
from trials.analysis.ranking import Speedup
from trials.analysis.search_cost import PayBack, SearchCost
from trials.analysis.verdict import baseline_key_of, ranking_of, verdict_of
from trials.ledger.events import EventKind, FabricCheck, PilotUsage, SearchRecord
from trials.ranks.startup import StartupPart
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, Trial, TrialState

PARTS = {"import": 36.0, "rendezvous": 3.6, "warmup": 18.0}


def attempt(
    state: TrialState = TrialState.MEASURED,
    reason: FailureReason | None = None,
    step_times_s: tuple[float, ...] = (),
    node_hours: float | None = 0.5,
    **fields: Any,
) -> Attempt:
    """An attempt on two nodes, charged half a node-hour; `fields` are those of its measurement."""
    measured = metrics(1000.0, 9.0, **{"warmup_steps": 2, "measured_steps": 10, "startup_parts_s": PARTS} | fields)
    status = OutcomeStatus.MEASURED if reason is None else OutcomeStatus.FAILED
    told = {"reason": reason, "measured": measured, "step_times_s": step_times_s}
    outcome = Outcome("s", "t0001", "a1", "0" * 32, status, **told)
    ends = {"state": state, "reason": reason, "outcome": outcome, "node_hours": node_hours}
    return Attempt("t0001", "a1", "0" * 32, 2, 600.0, **ends)


def trial(*attempts: Attempt) -> Trial:
    return Trial("t0001", Layout(), attempts=attempts)


def test_a_trial_measures_in_its_measured_steps_as_long_as_they_were():
    found = node_time([trial(attempt())])
    assert found.measured_node_hours == pytest.approx(2 * 10 * 9.0 / 3600)
    assert found.measured_share == pytest.approx(0.1)
    assert found.startup_node_hours == pytest.approx({"import": 0.02, "rendezvous": 0.002, "warmup": 0.01})
    assert list(found.startup_node_hours) == [StartupPart.IMPORT, StartupPart.RENDEZVOUS, StartupPart.WARMUP]
    assert (found.unmeasured_node_hours, found.idle_node_hours) == (0.0, 0.0)
    times = (50.0, 5.0, *[1.0, 2.0] * 5, 100.0)
    assert node_time([trial(attempt(step_times_s=times))]).measured_node_hours == pytest.approx(2 * 15.0 / 3600)
    found = node_time([trial(attempt(TrialState.FAILED, FailureReason.PRUNED))])
    assert (found.measured_share, found.unmeasured_node_hours) == (pytest.approx(0.1), 0.0)
    assert node_time([trial(attempt(node_hours=0.01))]).measured_share == 1.0


@pytest.mark.parametrize("reason", [FailureReason.NODE_FAILURE, FailureReason.RESULT_INVALID])
def test_a_failed_attempt_measures_nothing_whatever_its_outcome_says(reason):
    found = node_time([trial(attempt(TrialState.FAILED, reason), attempt())])
    assert found.unmeasured_node_hours == 0.5
    assert found.measured_share == pytest.approx(0.05)
    assert found.startup_node_hours[StartupPart.IMPORT] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("others", "name", "hours", "share"),
    [
        ({"idle_node_hours": 0.5}, "idle_node_hours", 0.5, 0.05),
        ({"fabric_check_node_hours": 0.5}, "fabric_check_node_hours", 0.5, 0.05),
    ],
)
def test_pilots_that_idle_and_the_fabric_check_are_part_of_the_whole(others, name, hours, share):
    found = node_time([trial(attempt())], **others)
    assert (getattr(found, name), found.unmeasured_node_hours) == (hours, 0.0)
    assert found.measured_share == pytest.approx(share)


@pytest.mark.parametrize(("held", "idle"), [(2.0, 0.75), (1.0, 0.0)])
def test_idle_is_what_pilots_held_beyond_their_steps_and_never_below_zero(held, idle):
    """The check and the first trial are steps; the second trial has a job of its own."""
    step, job = replace(attempt(), is_step=True), replace(attempt(), trial="t0002")
    check = FabricCheck(trial(replace(attempt(), is_step=True, node_hours=0.75)))
    pilots = {"p0001": PilotUsage(4, 3600.0, 1e9, held), "p0002": PilotUsage(4, 3600.0, 1e9, 0.0)}
    trials = (trial(step), replace(trial(job), trial="t0002"))
    record = SearchRecord("s", {}, "c0de", 1e9, trials=trials, pilots=pilots, fabric_check=check)
    assert search_node_time(record).idle_node_hours == idle
    assert search_node_time(record).node_hours == 0.5 + 0.5 + 0.75 + idle


def test_idle_is_not_told_while_steps_of_a_pilot_that_is_not_charged_yet_may_hide_it():
    """Half a node-hour of the first pilot was idle; the second one runs the step."""
    step = trial(replace(attempt(), is_step=True))
    first, second = PilotUsage(4, 3600.0, 1e9, 1.0), PilotUsage(4, 3600.0, 1e9)
    record = SearchRecord("s", {}, "c0de", 1e9, trials=(step,), pilots={"p0001": first, "p0002": second})
    assert (search_node_time(record).idle_node_hours, search_node_time(record).node_hours) == (0.0, 0.5)
    record = replace(record, pilots={"p0001": first, "p0002": replace(second, node_hours=0.75)})
    assert search_node_time(record).idle_node_hours == 1.25


def test_what_is_unknown_is_absent_and_no_share_known_before_a_charge():
    assert node_time([trial(attempt(startup_parts_s=None))]).startup_node_hours == {}
    found = node_time([trial(attempt(startup_parts_s={"build": 1.0})), trial(attempt(startup_parts_s={"build": 2.0}))])
    assert found.startup_node_hours == pytest.approx({"build": 2 * 3.0 / 3600})
    assert node_time([]).measured_share is None
    running = replace(attempt(TrialState.RUNNING), outcome=None, node_hours=None)
    assert node_time([trial(running)]).node_hours == 0.0


def test_what_preemption_and_requeues_cost_is_apart_from_other_attempts_without_a_measurement():
    preempted = replace(attempt(TrialState.FAILED, FailureReason.PREEMPTED), outcome=None, node_hours=0.5)
    requeued = replace(
        attempt(TrialState.FAILED, FailureReason.HANG), outcome=None, node_hours=1.0, earlier_node_hours=0.25
    )
    found = node_time([trial(preempted), trial(requeued)])
    assert (found.preempted_node_hours, found.unmeasured_node_hours, found.node_hours) == (0.75, 0.75, 1.5)


BASELINE, BETTER = Layout(micro_batch_size=1, grad_accum_steps=4), Layout(micro_batch_size=2, grad_accum_steps=2)


def cost_of(search: SearchRecord) -> SearchCost:
    return SearchCost.of(search, verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search)))


def test_pay_back_is_by_the_tokens_that_the_baseline_would_take_longer_for():
    found = PayBack.of(20.0, Speedup(1.25, 1.125, 1.5), 8, 8)
    assert (found.node_hours_saved_per_hour, found.hours) == (2.0, 10.0)
    assert (found.hours_low, found.hours_high) == (5.0, 20.0)
    assert (found.node_hours_saved_per_hour_low or 0) > 0
    found = PayBack.of(10.0, Speedup(0.75), 4, 8)
    assert (found.node_hours_saved_per_hour, found.hours, found.has_interval) == (2.0, 5.0, False)


SPEC = {"name": "tiny", "baseline": BASELINE.to_json(), "search": {"seed": 1}}
WIDE = {"tokens_per_sec_low": 700.0, "tokens_per_sec_high": 1700.0}


@pytest.mark.parametrize(
    ("spec", "speeds", "fields"),
    [
        (SPEC | {"launcher": {"kind": "simulated", "table": "a.csv"}}, (1000.0, 1250.0), {}),
        (SPEC, (1000.0, 1250.0), {"flags": ("unproven",)}),
        (SPEC, (1000.0,), {}),  # no better layout
        (SPEC, (1000.0, 1280.0), WIDE),  # no clear winner
    ],
)
def test_what_was_not_trained_or_not_proven_to_be_faster_pays_nothing_back(spec, speeds, fields):
    found = SearchUnderTest(spec)
    for layout, speed in zip((BASELINE, BETTER), speeds, strict=False):
        found.measure(found.start(layout), speed, **fields)
    assert cost_of(found.record).pay_back is None


@pytest.mark.parametrize(
    ("speedup", "nodes", "words"),
    [
        (Speedup(1.25, 1.0, 1.5), 8, "(95 % interval: 5 hours to never)"),
        (Speedup(1.5), 16, "never pays back in node-hours: the same tokens take the baseline 12 node-hours where"),
        (Speedup(0.9, 0.8, 1.25), 8, "where the layout that it found takes 8; after 10 hours at the soonest, at 95 %"),
    ],
)
def test_within_its_interval_it_may_never(speedup, nodes, words):
    found = PayBack.of(20.0, speedup, nodes, 8)
    assert words in describe_search_cost(SearchCost(20.0, None, found))


def search(billed_hours: float | None) -> SearchUnderTest:
    search = SearchUnderTest(SPEC)
    search.billed_hours = billed_hours
    search.measure(search.start(BASELINE), 1000.0)
    search.measure(search.start(BETTER), 1250.0)
    return search


def test_a_search_says_what_its_jobs_were_billed():
    found = cost_of(search(billed_hours=8.0).record)
    assert (found.node_hours, found.billed_hours) == (0.5, 16.0)
    assert found.pay_back is not None
    assert found.pay_back.hours == pytest.approx(2.0)
    assert describe_search_cost(found).startswith(
        "this search cost 0.5 node-hours, billed as 16 billing hours, and pays"
    )
    partly = search(billed_hours=8.0)
    partly.billed_hours = None
    partly.measure(partly.start(Layout(micro_batch_size=4, grad_accum_steps=1)), 900.0)
    assert cost_of(partly.record).billed_hours is None
    found = search(billed_hours=8.0)
    found.event(EventKind.PILOT_SUBMITTED, pilot="p0001", num_nodes=2, reserved_s=900.0)
    found.event(EventKind.PILOT_ENDED, pilot="p0001", job_id="4711", node_hours=0.125, billed_hours=3.0)
    assert found.record.billed_hours == 19.0


def in_pilots(record: SearchRecord, *pilots: PilotUsage) -> SearchRecord:
    """The same search with its attempts as steps of these pilots."""
    trials = tuple(replace(t, attempts=tuple(replace(a, is_step=True) for a in t.attempts)) for t in record.trials)
    named = {f"p{number:04d}": pilot for number, pilot in enumerate(pilots, 1)}
    return replace(record, trials=trials, pilots=named)


def test_what_a_search_cost_is_not_told_while_a_pilot_may_still_be_charged():
    ended, open_one = PilotUsage(4, 3600.0, 1e9, 0.25, 8.0), PilotUsage(4, 3600.0, 1e9)
    found = cost_of(in_pilots(search(None).record, ended, open_one))
    assert (found.pay_back, found.billed_hours) == (None, None)
    assert describe_search_cost(found) is None
    found = cost_of(in_pilots(search(None).record, ended, replace(open_one, node_hours=0.25, billed_hours=8.0)))
    assert (found.pay_back and found.pay_back.hours) == pytest.approx(2.0)
    assert found.billed_hours == 16.0
