"""Policy of the failure reasons: total, free of contradictions, and the same on the page."""

from __future__ import annotations

import math

import pytest

from tests.sources import ROOT
from trials.failure_policy import Cause, Ending, NodeBlame, policy_of
from trials.trial import FailureReason

RETRIED = {0: "no", 1: "once", 2: "twice", 8: "8 times", math.inf: "always"}


def row(reason: FailureReason) -> str:
    policy = policy_of(reason)
    of_baseline = f"; the baseline {RETRIED[policy.baseline_retries]}" if policy.baseline_retries else ""
    return f"| `{reason}` | {RETRIED[policy.retries]}{of_baseline} | {policy.explanation} |"


@pytest.mark.parametrize("reason", FailureReason)
def test_no_policy_contradicts_itself(reason):
    policy = policy_of(reason)
    assert not (policy.only_rank_knows and policy.peers_report_it)
    assert policy.ending in (Ending.FAILED, Ending.PREEMPTED) or (policy.retries, policy.blame) == (0, NodeBlame.NONE)
    assert policy.cause is not Cause.LAYOUT or (policy.retries, policy.blame) == (0, NodeBlame.NONE)
    assert policy.exceeded is None or policy.cause is Cause.LAYOUT


def test_nothing_follows_from_an_unknown_reason():
    policy = policy_of(None)
    assert (policy.retries, policy.blame, policy.cause) == (0, NodeBlame.NONE, Cause.UNKNOWN)
    assert (policy.ending, policy.stops_search, policy.needs_outcome) == (Ending.FAILED, False, True)


def test_the_page_says_what_the_policies_say():
    page = (ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("| reason | retried | meaning |\n|---|---|---|\n")
    assert rest.partition("\n\n")[0].splitlines() == list(map(row, FailureReason))
