"""Check before the self-test forks: after a device was used, no child can use it."""

from __future__ import annotations

import pytest
import torch

from trials.train.selftest.program import importable_before_forks, require_untouched_devices

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("accelerator", "imported"), [("cpu", {"deepspeed", "megatron-core"}), ("h100", {"deepspeed"})]
)
def test_what_asks_for_a_device_while_it_is_imported_is_left_to_the_children(accelerator, imported):
    assert importable_before_forks({"deepspeed", "megatron-core"}, accelerator) == imported


def test_devices_that_nobody_touched_may_be_used_by_children():
    require_untouched_devices()


@pytest.mark.parametrize("what_tells", ["is_initialized", "_is_in_bad_fork"])
def test_where_cuda_was_used_before_the_fork_the_selftest_refuses(monkeypatch, what_tells):
    monkeypatch.setattr(torch.cuda, what_tells, lambda: True)
    with pytest.raises(RuntimeError, match="CUDA was used while torch and the engines were imported"):
        require_untouched_devices()
