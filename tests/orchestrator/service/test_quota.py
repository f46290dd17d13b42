"""Fair shares of the trials in flight: properties, and a simulation of many searches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.service.quota import QuotaFile, QuotaRequest, fair_shares, grant_slots

REQUESTS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(lambda active, more: QuotaRequest(active, active + more), st.integers(0, 12), st.integers(0, 12)),
    max_size=8,
)
CAPACITIES = st.integers(0, 60)


@pytest.mark.slow
@given(CAPACITIES, REQUESTS)
def test_all_is_shared_out_and_no_more_and_who_wants_more_has_at_most_one_less_than_another(capacity, requests):
    shares = fair_shares(capacity, requests)
    assert sum(shares.values()) == min(capacity, sum(d.target for d in requests.values()))
    assert all(0 <= shares[name] <= request.target for name, request in requests.items())
    short = [shares[name] for name, request in requests.items() if shares[name] < request.target]
    assert not short or max(shares.values()) <= min(short) + 1
    settled = {name: QuotaRequest(shares[name], request.target) for name, request in requests.items()}
    assert fair_shares(capacity, settled) == shares, "they do not move once everybody has its own"
    assert fair_shares(capacity, dict(reversed(settled.items()))) == shares


@pytest.mark.slow
@given(CAPACITIES, REQUESTS)
def test_together_they_begin_what_is_free_where_anybody_wants_it(capacity, requests):
    active = sum(request.active for request in requests.values())
    target = sum(request.target for request in requests.values())
    begun = {name: grant_slots(capacity, requests, name) for name in requests}
    assert sum(begun.values()) == max(0, min(capacity, target) - active)
    assert all(request.active + begun[name] <= request.target for name, request in requests.items())


def test_one_search_alone_has_everything_and_gives_half_of_it_up_to_a_second_as_its_trials_end(tmp_path):
    quota = QuotaFile(tmp_path / "quota.json", 8)
    assert quota.grant("a", 0, 100) == 8
    assert quota.grant("b", 0, 100) == 0
    assert [(quota.grant("a", active, 100), quota.grant("b", 7 - active, 100)) for active in (7, 6, 5, 4)] == [
        (0, 1)
    ] * 4
    assert quota.grant("a", 3, 100) == 1


def test_what_is_free_goes_first_to_whoever_has_the_fewest():
    requests = {"many": QuotaRequest(4, 9), "some": QuotaRequest(1, 9), "none": QuotaRequest(0, 9)}
    assert [grant_slots(6, requests, name) for name in requests] == [0, 0, 1]


def test_where_there_are_more_searches_than_trials_they_take_turns(tmp_path):
    quota, turns = QuotaFile(tmp_path / "quota.json", 1), []
    quota.reset(dict.fromkeys("abc", 0))
    for _ in range(8):
        for search in "abc":  # a trial has ended when its search asks again
            turns += [search] * quota.grant(search, 0, 1)
    assert turns == ["a", "b", "c"] * 2


def test_what_a_dead_driver_left_in_flight_counts_and_what_an_ended_search_had_does_not(tmp_path):
    quota = QuotaFile(tmp_path / "quota.json", 4)
    quota.reset({"dead": 3})
    assert quota.grant("a", 0, 4) == 1
    quota.set_active("dead", 0)
    assert quota.grant("a", 1, 4) == 3


def test_processes_that_ask_at_once_never_begin_more_than_is_free(tmp_path):
    quota = QuotaFile(tmp_path / "quota.json", 10)
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda n: quota.grant(f"s{n}", 0, 3), range(16)))
    assert sum(begun) <= 10
    assert sum(quota.grant(f"s{n}", begun[n], 3 - begun[n]) for n in range(16)) + sum(begun) == 10


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"schema": "parlay.quota/1", "searches": [{"active": 1}]}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path, damage):
    (tmp_path / "quota.json").write_text(damage)
    assert QuotaFile(tmp_path / "quota.json", 2).grant("a", 0, 3) == 2
    (tmp_path / "quota.json").write_text(damage)
    QuotaFile(tmp_path / "quota.json", 2).set_active("b", 1)
    assert QuotaFile(tmp_path / "quota.json", 2).grant("a", 0, 3) == 1
