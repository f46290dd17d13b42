"""Samplers by name, and the replacement of one that raises or hangs, with one message."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import numpy  # noqa: F401  # brings the library whose threads are counted
import pytest
from threadpoolctl import threadpool_info

from orchestrator.config.schema.search_file import SAMPLERS
from orchestrator.search.samplers.base import GridSampler
from orchestrator.search.samplers.deephyper import DeepHyperSampler
from orchestrator.search.samplers.factory import make_sampler
from orchestrator.search.samplers.fallback import FallbackSampler
from search_spaces.layouts.layout import Layout
from tests.contracts.test_sampler import TASK

CANDIDATES = [Layout(micro_batch_size=size) for size in range(1, 30)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_answers_to_the_name_it_was_made_by(name):
    assert make_sampler(name, CANDIDATES, TASK, 1).name == name


def test_grid_keeps_the_order_given():
    assert make_sampler("grid", CANDIDATES, TASK, 1).ask(99, []) == CANDIDATES


def test_random_is_another_order_for_another_seed_and_none_of_the_candidates_own():
    one, other = (make_sampler("random", CANDIDATES, TASK, seed).ask(99, []) for seed in (1, 2))
    assert one != other
    assert make_sampler("random", CANDIDATES[::-1], TASK, 1).ask(99, []) == one


@pytest.mark.fault(44)
def test_deephyper_failing_is_noted_and_random_goes_on(monkeypatch, logged):
    def fail(*_):
        raise ValueError("no fit")

    monkeypatch.setattr(DeepHyperSampler, "ask", fail)
    asked = make_sampler("deephyper", CANDIDATES, TASK, 1).ask(5, [])
    assert asked == make_sampler("random", CANDIDATES, TASK, 1).ask(5, [])
    assert logged == ["sampler deephyper failed (ValueError: no fit); continuing with random"]


@pytest.mark.processes
def test_making_a_sampler_imports_no_deephyper():
    program = (
        "import sys; from tests.contracts.test_sampler import TASK\n"
        "from orchestrator.config.schema.search_file import SAMPLERS\n"
        "from orchestrator.search.samplers.factory import make_sampler\n"
        "from search_spaces.layouts.layout import Layout\n"
        "[make_sampler(name, [Layout()], TASK, 1) for name in SAMPLERS]; sys.exit('deephyper' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


THREE = [Layout(micro_batch_size=size) for size in (1, 2, 4)]
OTHER = GridSampler(THREE[::-1])


class Doing(GridSampler):
    """A grid sampler that calls this with the number of each ask first."""

    name = "doing"

    def __init__(self, action: Callable[[int], object]):
        super().__init__(THREE)
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
    assert sampler.ask(2, []) == THREE[:2]
    assert (sampler.name, logged) == ("doing", [])
    assert asked_in[0].daemon


@pytest.mark.fault(44)
def test_one_that_raises_is_replaced_from_then_on_and_that_is_said_once(logged):
    first = breaking(at=2)
    sampler = FallbackSampler(first, OTHER)
    assert [sampler.ask(1, []) for _ in range(3)] == [THREE[:1], THREE[-1:], THREE[-1:]]
    assert first.asks == 2
    assert logged == ["sampler doing failed (ArithmeticError: no surrogate); continuing with grid"]


@pytest.mark.fault(44)
def test_one_that_fails_when_asked_whether_to_stop_is_replaced_as_well(logged, monkeypatch):
    undecided = breaking()
    monkeypatch.setattr(undecided, "has_converged", lambda history: undecided.ask(1, history))
    sampler = FallbackSampler(undecided, OTHER)
    assert not sampler.has_converged([])
    assert (sampler.ask(1, []), len(logged)) == (THREE[-1:], 1)


def test_when_the_second_raises_too_there_is_nothing_left_to_hide_it():
    with pytest.raises(ArithmeticError):
        FallbackSampler(breaking(), breaking()).ask(1, [])


@pytest.mark.fault(44)
def test_one_that_hangs_is_left_behind_for_good_and_that_is_said_once(logged):
    released, asked = threading.Event(), threading.Event()
    hanging = Doing(lambda number: (asked.set(), released.wait()))
    sampler = FallbackSampler(hanging, OTHER, time_limit_s=0.0)
    assert sampler.ask(1, []) == THREE[-1:]
    assert asked.wait(5.0)
    released.set()
    assert sampler.ask(1, []) == THREE[-1:]
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
