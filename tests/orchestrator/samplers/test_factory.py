"""Samplers by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestrator.samplers.deephyper import DeepHyperSampler
from orchestrator.samplers.factory import SAMPLERS, make_sampler
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.contracts.test_sampler import TASK

CANDIDATES = [Layout(micro_batch_size=size) for size in range(1, 30)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_answers_to_the_name_it_was_made_by(name):
    assert make_sampler(name, CANDIDATES, TASK, 1).name == name


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(InputError) as caught:
        make_sampler("deephiper", CANDIDATES, TASK, 1)
    problem = caught.value.problems[0]
    assert (problem.key, problem.value, problem.fix) == ("search.sampler", "deephiper", "did you mean deephyper?")


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
        "from orchestrator.samplers.factory import SAMPLERS, make_sampler\n"
        "from search_spaces.layouts.layout import Layout\n"
        "[make_sampler(name, [Layout()], TASK, 1) for name in SAMPLERS]; sys.exit('deephyper' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
