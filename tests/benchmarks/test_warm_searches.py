"""Node-seconds of a search by what they were spent on, and the table over both ways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.warm_searches import Cost, cost_of, table
from search_spaces.layouts.layout import Layout
from tests.kit import metrics
from trials.ledger.events import PilotUsage, SearchRecord
from trials.trial import Attempt, Outcome, OutcomeStatus, Trial, TrialState, utc_text

BEGAN = 1_790_000_000.0


def attempt(has_outcome: bool = True) -> Attempt:
    """Twenty seconds on two nodes; its ranks began a second after it and reported two seconds before its end."""
    measured = metrics(1000.0, 0.5, warmup_steps=2, measured_steps=10, startup_parts_s={"import": 3.0, "build": 1.0})
    outcome = Outcome("s", "t0001", "a1", "0" * 32, OutcomeStatus.MEASURED, measured=measured, started_warm=True)
    outcome = replace(outcome, started_at=utc_text(BEGAN + 1), ended_at=utc_text(BEGAN + 18))
    times = {"started_at": BEGAN, "ended_at": BEGAN + 20, "node_hours": 40 / 3600}
    ended = Attempt("t0001", "a1", "0" * 32, 2, 600.0, state=TrialState.MEASURED, **times)
    return replace(ended, outcome=outcome if has_outcome else None)


def search(*attempts: Attempt) -> SearchRecord:
    trial = Trial("t0001", Layout(), attempts=attempts)
    return SearchRecord("s-aaaaaa", {}, "c0de", BEGAN, trials=(trial,), pilots={"p0001": PilotUsage(5 / 3600)})


def test_the_parts_of_a_search_add_up_to_what_it_was_charged():
    cost = cost_of(search(attempt()))
    parts = {"import": 6.0, "build": 2.0, "measured": 10.0, "idle pilot": 5.0, "launch": 2.0, "end": 4.0, "other": 16.0}
    assert cost.node_s == pytest.approx(parts)
    assert cost.total_s == pytest.approx(45.0)
    assert cost.share("import", "rendezvous", "build") == pytest.approx(8 / 45)
    assert (cost.trials, cost.num_warm, cost.median_step_s) == ((f"search {Layout().key}",), 1, 0.5)


@pytest.mark.parametrize("attempts", [(attempt(has_outcome=False),), (attempt(), attempt())], ids=["failed", "retried"])
def test_a_search_with_another_trial_than_asked_for_is_no_measurement(attempts):
    with pytest.raises(SystemExit, match="t0001 was not measured at once"):
        cost_of(search(*attempts))


def test_the_ratio_is_the_median_of_the_rounds_ratios():
    def cost(import_s: float, measured_s: float) -> Cost:
        return Cost({"import": import_s, "measured": measured_s}, ("search", "repeat"), 2, 0.1)

    plain, warm = [cost(6, 4), cost(9, 11), cost(70, 30)], [cost(1, 4), cost(1, 11), cost(10, 30)]
    found = {row.split(" | ")[0].strip("| "): row.strip("| ").split(" | ")[1:] for row in table(plain, warm, 0.4)}
    assert found["warm over plain"] == ["", "0.500", "at most 0.55"]
    assert found["the same without any start, warm-up and pause"][1] == "0.400"
    assert found["node-seconds"][:2] == ["20.0", "12.0"]
    assert found["share that measures"] == ["0.400", "0.800", "at least 0.4"]
    assert found["trials with forked ranks"][:2] == ["2 of 2", "2 of 2"]
