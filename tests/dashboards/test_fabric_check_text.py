"""Fabric check of a search in words: its state, its findings, and the numbers that the search goes on with."""

from __future__ import annotations

from dashboards.fabric_check_text import describe_fabric_check
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from tests.trials.ledger.stories import Story
from trials.ledger.events import FABRIC_CHECK
from trials.trial import FailureReason

LINKS = Links((LinkDomain("node", 4, 200.0, 10.0),), Fabric(100.0, 5.0))


def test_the_bandwidth_and_latency_that_were_measured_are_told():
    search = Story()
    search.create()
    search.propose_check()
    search.submit(FABRIC_CHECK)
    search.launch(FABRIC_CHECK, job_id="4710")
    assert describe_fabric_check(search.search) == ["fabric check: queued as 4710"]
    search.measure(FABRIC_CHECK)
    search.end_trial(FABRIC_CHECK)
    search.conclude_check(LINKS.to_json())
    finding, avoided, links = describe_fabric_check(search.search)
    assert (finding, avoided[:16]) == ("fabric check: n2 is slow", "trials avoid n2,")
    assert links.endswith("on 2 nodes: node of 4 ranks 200 GB/s, 10 us; between nodes 100 GB/s a node, 5 us")


def test_a_check_that_failed_says_why():
    search = Story()
    search.create()
    search.propose_check()
    search.submit(FABRIC_CHECK)
    search.fail(FABRIC_CHECK, reason=FailureReason.TIME_LIMIT, excerpt="no room")
    assert describe_fabric_check(search.search) == ["fabric check: failed, time limit: no room"]
