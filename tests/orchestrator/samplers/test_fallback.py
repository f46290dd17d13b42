"""Replacement of a sampler that raises or hangs, with one message."""

from __future__ import annotations

import threading

import numpy  # noqa: F401  # brings the library whose threads are counted
import pytest
from threadpoolctl import threadpool_info

from orchestrator.samplers.base import Sampler
from orchestrator.samplers.fallback import FallbackSampler
from orchestrator.samplers.model_free import GridSampler
from search_spaces.layouts.layout import Layout

CANDIDATES = [Layout(micro_batch_size=size) for size in (1, 2, 4)]


class Breaking(Sampler):
    """A grid sampler that raises from the `broken_at`-th call on."""

    name = "breaking"

    def __init__(self, broken_at: int):
        self._asks_left = broken_at - 1
        self.asks = 0

    def ask(self, count, history):
        self.asks += 1
        if self.asks > self._asks_left:
            raise ArithmeticError("no surrogate")
        return GridSampler(CANDIDATES).ask(count, history)


class Hanging(Sampler):
    """A sampler that blocks until `released` is set."""

    name = "hanging"

    def __init__(self):
        self.released = threading.Event()
        self.asked = threading.Event()
        self.asks = 0

    def ask(self, count, history):
        self.asks += 1
        self.asked.set()
        self.released.wait()
        return []


def test_a_sampler_that_works_is_not_replaced(logged):
    sampler = FallbackSampler(GridSampler(CANDIDATES), Breaking(1))
    assert sampler.ask(2, []) == CANDIDATES[:2]
    assert sampler.name == "grid"
    assert logged == []


@pytest.mark.fault(44)
def test_one_that_raises_is_replaced_from_then_on_and_that_is_said_once(logged):
    breaking = Breaking(broken_at=2)
    sampler = FallbackSampler(breaking, GridSampler(CANDIDATES[::-1]))
    assert sampler.ask(1, []) == CANDIDATES[:1]
    assert sampler.ask(1, []) == CANDIDATES[-1:]
    assert sampler.ask(1, []) == CANDIDATES[-1:]
    assert breaking.asks == 2
    assert logged == ["sampler breaking failed (ArithmeticError: no surrogate); continuing with grid"]


@pytest.mark.fault(44)
def test_one_that_fails_when_asked_whether_to_stop_is_replaced_as_well(logged):
    class Undecided(GridSampler):
        def has_converged(self, history):
            raise ArithmeticError("no surrogate")

    class Content(GridSampler):
        def has_converged(self, history):
            return True

    sampler = FallbackSampler(Undecided(CANDIDATES), Content(CANDIDATES[::-1]))
    assert sampler.has_converged([])
    assert sampler.ask(1, []) == CANDIDATES[-1:]
    assert logged == ["sampler grid failed (ArithmeticError: no surrogate); continuing with grid"]


def test_when_the_second_raises_too_there_is_nothing_left_to_hide_it():
    sampler = FallbackSampler(Breaking(1), Breaking(1))
    with pytest.raises(ArithmeticError):
        sampler.ask(1, [])


@pytest.mark.fault(44)
def test_one_that_hangs_is_left_behind_for_good_and_that_is_said_once(logged):
    hanging = Hanging()
    sampler = FallbackSampler(hanging, GridSampler(CANDIDATES), time_limit_s=0.0)
    assert sampler.ask(1, []) == CANDIDATES[:1]
    assert hanging.asked.wait(5.0)
    hanging.released.set()
    assert sampler.ask(1, []) == CANDIDATES[:1]
    assert hanging.asks == 1
    assert logged == ["sampler hanging failed (TimeoutError: no answer within 0 s); continuing with grid"]


def test_the_first_is_asked_in_a_thread_that_holds_up_no_exit():
    asked_in: list[threading.Thread] = []

    class Noting(GridSampler):
        def ask(self, count, history):
            asked_in.append(threading.current_thread())
            return super().ask(count, history)

    FallbackSampler(Noting(CANDIDATES), Breaking(1)).ask(1, [])
    assert asked_in[0].daemon


def test_samplers_asked_at_once_take_one_core_each():
    second_asks, first_has_left = threading.Event(), threading.Event()
    seen = []

    class First(Sampler):
        name = "first"

        def ask(self, count, history):
            second.start()
            assert second_asks.wait(60)
            return []

    class Second(Sampler):
        name = "second"

        def ask(self, count, history):
            second_asks.set()
            assert first_has_left.wait(60)
            seen.extend(pool["num_threads"] for pool in threadpool_info())
            return []

    second = threading.Thread(target=FallbackSampler(Second(), GridSampler(CANDIDATES)).ask, args=(1, []))

    FallbackSampler(First(), GridSampler(CANDIDATES)).ask(1, [])
    first_has_left.set()
    second.join()
    assert set(seen) == {1}
