"""Check before the self-test forks: after a device was used, no child can use it."""

from __future__ import annotations

import pytest
import torch

from trials.train.selftest.program import require_untouched_devices

pytestmark = pytest.mark.processes


def test_devices_that_nobody_touched_may_be_used_by_children():
    require_untouched_devices()


@pytest.mark.parametrize("what_tells", ["is_initialized", "_is_in_bad_fork"])
def test_where_cuda_was_used_before_the_fork_the_selftest_refuses(monkeypatch, what_tells):
    monkeypatch.setattr(torch.cuda, what_tells, lambda: True)
    with pytest.raises(RuntimeError, match="CUDA was used while torch and the engines were imported"):
        require_untouched_devices()
