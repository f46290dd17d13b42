"""Startup by parts, at given ages of the process."""

from __future__ import annotations

import pytest

from trials.ranks.startup import Startup, StartupPart


def startup_of(*ends: tuple[StartupPart, float, float | None]) -> Startup:
    startup = Startup()
    for part, at_s, compile_s in ends:
        startup.end_of(part, at_s, compile_s)
    return startup


def test_a_part_that_comes_in_pieces_is_their_sum():
    startup = startup_of(
        (StartupPart.IMPORT, 2.0, None),
        (StartupPart.RENDEZVOUS, 2.5, None),
        (StartupPart.IMPORT, 4.0, None),
        (StartupPart.RENDEZVOUS, 5.0, None),
    )
    assert startup.fields() == {"startup_s": 5.0, "startup_parts_s": {"import": 3.5, "rendezvous": 1.5}}


def test_compilation_is_taken_out_of_the_steps_it_was_in():
    startup = startup_of(
        (StartupPart.BUILD, 1.0, None), (StartupPart.FIRST_STEP, 11.0, 8.0), (StartupPart.WARMUP, 14.0, 8.5)
    )
    parts = {"build": 1.0, "compile": 8.5, "first_step": 2.0, "warmup": 2.5}
    assert startup.fields() == {"startup_s": 14.0, "startup_parts_s": parts}
    assert list(startup.fields()["startup_parts_s"]) == list(parts)


def test_compilation_is_never_longer_than_the_steps_it_was_in():
    """The counters add up graphs that may be compiled at the same time."""
    startup = startup_of((StartupPart.BUILD, 1.0, None), (StartupPart.FIRST_STEP, 3.0, 5.0))
    assert startup.fields()["startup_parts_s"] == {"build": 1.0, "compile": 2.0, "first_step": 0.0}


@pytest.mark.parametrize("compile_s", [0.0, None])
def test_a_compiler_that_took_no_time_differs_from_one_that_is_unknown(compile_s):
    parts = startup_of((StartupPart.FIRST_STEP, 1.0, compile_s)).fields()["startup_parts_s"]
    assert parts == ({"first_step": 1.0} if compile_s is None else {"compile": 0.0, "first_step": 1.0})
