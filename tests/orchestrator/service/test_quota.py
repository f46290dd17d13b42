"""Fair shares of the trials in flight: their properties, and a simulated crowd of searches that use them."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.service.quota import Demand, Shares, fair_shares, may_begin
from orchestrator.service.quota_file import ShareFile

DEMANDS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(lambda held, more: Demand(held, held + more), st.integers(0, 12), st.integers(0, 12)),
    max_size=8,
)
CAPACITIES = st.integers(0, 60)


@pytest.mark.slow
@given(CAPACITIES, DEMANDS)
def test_all_is_shared_out_and_no_more(capacity, demands):
    shares = fair_shares(capacity, demands)
    assert sum(shares.values()) == min(capacity, sum(d.wanted for d in demands.values()))
    assert all(0 <= shares[name] <= demand.wanted for name, demand in demands.items())


@pytest.mark.slow
@given(CAPACITIES, DEMANDS)
def test_nobody_who_wants_more_has_less_than_another_by_more_than_one_trial(capacity, demands):
    shares = fair_shares(capacity, demands)
    short = [shares[name] for name, demand in demands.items() if shares[name] < demand.wanted]
    assert not short or max(shares.values()) <= min(short) + 1


@pytest.mark.slow
@given(CAPACITIES, DEMANDS)
def test_shares_do_not_move_once_everybody_has_its_own(capacity, demands):
    shares = fair_shares(capacity, demands)
    settled = {name: Demand(shares[name], demand.wanted) for name, demand in demands.items()}
    assert fair_shares(capacity, settled) == shares
    assert fair_shares(capacity, dict(reversed(settled.items()))) == shares


@pytest.mark.slow
@given(CAPACITIES, DEMANDS)
def test_together_they_begin_what_is_free_where_anybody_wants_it(capacity, demands):
    held = sum(demand.held for demand in demands.values())
    wanted = sum(demand.wanted for demand in demands.values())
    begun = {name: may_begin(capacity, demands, name) for name in demands}
    assert sum(begun.values()) == max(0, min(capacity, wanted) - held)
    assert all(demand.held + begun[name] <= demand.wanted for name, demand in demands.items())


def test_one_search_alone_has_everything_and_gives_half_of_it_up_to_a_second_as_its_trials_end():
    shares = Shares(8)
    assert shares.ask("a", 0, 100) == 8
    assert shares.ask("b", 0, 100) == 0
    assert [(shares.ask("a", held, 100), shares.ask("b", 7 - held, 100)) for held in (7, 6, 5, 4)] == [(0, 1)] * 4
    assert shares.ask("a", 3, 100) == 1


def test_what_is_free_goes_first_to_whoever_has_the_fewest():
    demands = {"many": Demand(4, 9), "some": Demand(1, 9), "none": Demand(0, 9)}
    assert [may_begin(6, demands, name) for name in demands] == [0, 0, 1]


def test_where_there_are_more_searches_than_trials_they_take_turns():
    shares, turns = Shares(1, {search: Demand(0, 0) for search in "abc"}), []
    for _ in range(8):
        for search in "abc":  # a trial has ended when its search asks again
            turns += [search] * shares.ask(search, 0, 1)
    assert turns == ["a", "b", "c"] * 2


def test_what_a_dead_driver_left_in_flight_counts_and_what_an_ended_search_had_does_not(tmp_path):
    shares = ShareFile(tmp_path / "shares.json", 4)
    shares.reset({"dead": 3})
    assert shares.ask("a", 0, 4) == 1
    shares.expect("dead", 0)
    assert shares.ask("a", 1, 4) == 3


def test_processes_that_ask_at_once_never_begin_more_than_is_free(tmp_path):
    shares = ShareFile(tmp_path / "shares.json", 10)
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda n: shares.ask(f"s{n}", 0, 3), range(16)))
    assert sum(begun) <= 10
    assert sum(shares.ask(f"s{n}", begun[n], 3 - begun[n]) for n in range(16)) + sum(begun) == 10


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"schema": "parlay.shares/1", "searches": [{"held": 1}]}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path, damage):
    (tmp_path / "shares.json").write_text(damage)
    assert ShareFile(tmp_path / "shares.json", 2).ask("a", 0, 3) == 2
    (tmp_path / "shares.json").write_text(damage)
    ShareFile(tmp_path / "shares.json", 2).expect("b", 1)
    assert ShareFile(tmp_path / "shares.json", 2).ask("a", 0, 3) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_crowd_never_has_more_in_flight_than_is_allowed_and_leaves_nothing_idle(seed):
    rng, shares, capacity = random.Random(seed), Shares(20), 20
    held, left = dict.fromkeys("abcdefg", 0), {name: rng.randrange(1, 60) for name in "abcdefg"}
    while any(left.values()) or any(held.values()):
        for name in rng.sample(sorted(held), len(held)):
            held[name] -= rng.randint(0, held[name])
            begun = shares.ask(name, held[name], min(left[name], 15))
            held[name] += begun
            left[name] -= begun
            assert sum(held.values()) <= capacity
        for name in sorted(held) * 2:  # nobody ends a trial: what is free goes to those who want it
            begun = shares.ask(name, held[name], min(left[name], 15))
            held[name] += begun
            left[name] -= begun
        assert sum(held.values()) == capacity or not any(left.values())
