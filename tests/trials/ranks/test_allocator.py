"""Memory that a rank on a CPU returns to the kernel, in a new process, since allocator settings are final."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
from pathlib import Path
from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.ranks.allocator import LARGE_BUFFER_BYTES, trim_heap
from trials.ranks.environment import prepare_process

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

prepare_process(make_spec(Layout()), {})
bytearray(16 * LARGE_BUFFER_BYTES)  # once freed, glibc would keep whatever is smaller in its heap
large = bytearray(8 * LARGE_BUFFER_BYTES)
before = resident_mib()
del large
print(before - resident_mib())
buffers = [bytearray(LARGE_BUFFER_BYTES // 4) for _ in range(400)]  # 100 MiB in the heap
kept = buffers[1::2]
del buffers  # every other one is a hole
before = resident_mib()
trim_heap()
print(before - resident_mib())
"""


def test_on_a_cpu_a_large_buffer_and_holes_between_small_ones_go_back_to_the_kernel():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=20)
    of_large, of_holes = map(float, done.stdout.split())
    assert of_large >= 7, "of 8 MiB"
    assert of_holes >= 40, "of 50 MiB"
