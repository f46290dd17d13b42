"""Check before the self-test forks: after a device was used, no child can use it."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest
import torch

from search_spaces.engines import MEGATRON_CORE, TORCHTITAN
from tests.trials.train.parity import needs_megatron, needs_torchtitan
from trials.train.selftest.program import importable_before_forks, packaged_software, require_untouched_devices

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("accelerator", "imported"), [("cpu", {"deepspeed", "megatron-core"}), ("h100", {"deepspeed"})]
)
def test_what_asks_for_a_device_or_is_patched_while_it_is_imported_is_left_to_the_children(accelerator, imported):
    assert importable_before_forks({"deepspeed", "megatron-core", "torchtitan"}, accelerator) == imported


@needs_megatron
@needs_torchtitan
@pytest.mark.slow
def test_versions_are_those_of_the_cases_engines_whether_or_not_they_are_imported_yet(monkeypatch):
    """On a GPU megatron-core is imported by the children alone."""
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)
    found = packaged_software({"torch", MEGATRON_CORE, TORCHTITAN})
    assert (found["megatron_core"], found[TORCHTITAN]) == (version(MEGATRON_CORE), version(TORCHTITAN))
    assert packaged_software({"torch"}) == {}
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    assert packaged_software({MEGATRON_CORE}) == {}


@pytest.mark.parametrize("what_tells", ["is_initialized", "_is_in_bad_fork"])
def test_where_cuda_was_used_before_the_fork_the_selftest_refuses(monkeypatch, what_tells):
    require_untouched_devices()
    monkeypatch.setattr(torch.cuda, what_tells, lambda: True)
    with pytest.raises(RuntimeError, match="CUDA was used while torch and the engines were imported"):
        require_untouched_devices()
