"""Memory that a rank on a CPU returns to the kernel. Each test uses a new process, since allocator settings are
final."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MAPPED_BUFFERS = """
import ctypes
from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.ranks.allocator import LARGE_BUFFER_BYTES
from trials.ranks.environment import prepare_process

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd rest".split()]
    _fields_ += [(f"more{i}", ctypes.c_size_t) for i in range(4)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2
prepare_process(make_spec(Layout()), {})
bytearray(16 * LARGE_BUFFER_BYTES)  # once freed, glibc would keep whatever is smaller in its heap
before = libc.mallinfo2().hblks
kept = bytearray(2 * LARGE_BUFFER_BYTES)
print(libc.mallinfo2().hblks - before)
"""


HOLES = """
from pathlib import Path
from trials.ranks.allocator import LARGE_BUFFER_BYTES, trim_heap, map_large_buffers

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

map_large_buffers()
buffers = [bytearray(LARGE_BUFFER_BYTES // 4) for _ in range(400)]  # 100 MiB in the heap
kept = buffers[1::2]
del buffers  # every other one is a hole
before = resident_mib()
trim_heap()
print(before - resident_mib())
"""


@pytest.mark.parametrize(("program", "least"), [(MAPPED_BUFFERS, 1), (HOLES, 40)], ids=["mapped", "trimmed"])
def test_on_a_cpu_a_large_buffer_is_mapped_by_itself_and_holes_go_back(program, least):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    assert float(done.stdout) >= least  # mappings, and of 50 MiB
