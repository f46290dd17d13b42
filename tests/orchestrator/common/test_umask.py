from __future__ import annotations

import os

from orchestrator.common.umask import private_umask


def test_of_blocks_that_overlap_as_those_of_two_threads_do_the_last_one_gives_the_default_back():
    before = os.umask(0o022)
    try:
        first, second = private_umask(), private_umask()
        seen = []
        for step in (first.__enter__, second.__enter__, lambda: first.__exit__(None, None, None)):
            step()
            seen.append(os.umask(0o077))
        second.__exit__(None, None, None)
        assert (seen, os.umask(0o022)) == ([0o077] * 3, 0o022)
    finally:
        os.umask(before)
