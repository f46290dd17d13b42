"""Engines: which of them a CPU only emulates the device of."""

from __future__ import annotations

import pytest

from search_spaces.engines import ENGINES, is_emulated
from search_spaces.hardware.cluster import ACCELERATORS

NATIVE = {"torch", "deepspeed", "command", "accelerate-launch"}
"""Engines that run on a CPU as they are; what a command does is its user's."""


def test_what_is_written_for_gpus_is_emulated_on_a_cpu_and_nowhere_else():
    assert {engine for engine in ENGINES if not is_emulated(engine, "cpu")} == NATIVE
    gpus = set(ACCELERATORS) - {"cpu"}
    assert not any(is_emulated(engine, gpu) for engine in ENGINES for gpu in gpus)
    with pytest.raises(KeyError):
        is_emulated("megatron", "cpu")
