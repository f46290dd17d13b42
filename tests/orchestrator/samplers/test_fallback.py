"""Replacement of a sampler that raises or hangs, with one message."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy  # noqa: F401  # brings the library whose threads are counted
import pytest
from threadpoolctl import threadpool_info

from orchestrator.samplers.fallback import FallbackSampler
from orchestrator.samplers.model_free import GridSampler
from search_spaces.layouts.layout import Layout

CANDIDATES = [Layout(micro_batch_size=size) for size in (1, 2, 4)]
OTHER = GridSampler(CANDIDATES[::-1])


class Doing(GridSampler):
    """A grid sampler that calls this with the number of each ask first."""

    name = "doing"

    def __init__(self, action: Callable[[int], object]):
        super().__init__(CANDIDATES)
        self._action, self.asks = action, 0

    def ask(self, count, history):
        self.asks += 1
        self._action(self.asks)
        return super().ask(count, history)


def breaking(at: int = 1) -> Doing:
    """A sampler that raises from this ask on."""

    def fail(number: int) -> None:
        if number >= at:
            raise ArithmeticError("no surrogate")

    return Doing(fail)


def test_a_sampler_that_works_is_not_replaced_and_asked_in_a_thread_that_holds_up_no_exit(logged):
    asked_in: list[threading.Thread] = []
    sampler = FallbackSampler(Doing(lambda number: asked_in.append(threading.current_thread())), breaking())
    assert sampler.ask(2, []) == CANDIDATES[:2]
    assert (sampler.name, logged) == ("doing", [])
    assert asked_in[0].daemon


@pytest.mark.fault(44)
def test_one_that_raises_is_replaced_from_then_on_and_that_is_said_once(logged):
    first = breaking(at=2)
    sampler = FallbackSampler(first, OTHER)
    assert [sampler.ask(1, []) for _ in range(3)] == [CANDIDATES[:1], CANDIDATES[-1:], CANDIDATES[-1:]]
    assert first.asks == 2
    assert logged == ["sampler doing failed (ArithmeticError: no surrogate); continuing with grid"]


@pytest.mark.fault(44)
def test_one_that_fails_when_asked_whether_to_stop_is_replaced_as_well(logged, monkeypatch):
    undecided = breaking()
    monkeypatch.setattr(undecided, "has_converged", lambda history: undecided.ask(1, history))
    content = GridSampler(CANDIDATES[::-1])
    monkeypatch.setattr(content, "has_converged", lambda history: True)
    sampler = FallbackSampler(undecided, content)
    assert sampler.has_converged([])
    assert sampler.ask(1, []) == CANDIDATES[-1:]
    assert logged == ["sampler doing failed (ArithmeticError: no surrogate); continuing with grid"]


def test_when_the_second_raises_too_there_is_nothing_left_to_hide_it():
    with pytest.raises(ArithmeticError):
        FallbackSampler(breaking(), breaking()).ask(1, [])


@pytest.mark.fault(44)
def test_one_that_hangs_is_left_behind_for_good_and_that_is_said_once(logged):
    released, asked = threading.Event(), threading.Event()
    hanging = Doing(lambda number: (asked.set(), released.wait()))
    sampler = FallbackSampler(hanging, OTHER, time_limit_s=0.0)
    assert sampler.ask(1, []) == CANDIDATES[-1:]
    assert asked.wait(5.0)
    released.set()
    assert sampler.ask(1, []) == CANDIDATES[-1:]
    assert hanging.asks == 1
    assert logged == ["sampler doing failed (TimeoutError: no answer within 0 s); continuing with grid"]


def test_samplers_asked_at_once_take_one_core_each():
    second_asks, first_has_left, seen = threading.Event(), threading.Event(), []

    def start_second(number: int) -> None:
        second.start()
        assert second_asks.wait(60)

    def look(number: int) -> None:
        second_asks.set()
        assert first_has_left.wait(60)
        seen.extend(pool["num_threads"] for pool in threadpool_info())

    second = threading.Thread(target=FallbackSampler(Doing(look), OTHER).ask, args=(1, []))
    FallbackSampler(Doing(start_second), OTHER).ask(1, [])
    first_has_left.set()
    second.join()
    assert set(seen) == {1}
