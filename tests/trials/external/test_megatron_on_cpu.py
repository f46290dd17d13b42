"""Patches under pretrain_gpt.py, each left out: the line of Megatron-LM that it names then fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import pytest

from tests.trials.external.megatron_on_cpu.environment import VERSIONS, checkout_of
from tests.trials.external.patched_interpreter import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TAG, MAIN = VERSIONS
ERRORS = {
    "triton": (TAG, "No module named 'triton'"),
    "regex": (TAG, "No module named 'regex'"),
    "compiler": (MAIN, "isinstance() arg 2 must be a type"),  # torch's compiler meets the mock of triton
    "helpers": (MAIN, "No such file or directory: 'make'"),
    "device": (MAIN, "Megatron requires CUDA."),
    "streams": (MAIN, "torch.cuda.Stream requires CUDA support"),
    "memory": (MAIN, "max reserved: 0.00"),
    "kernels": (TAG, "/bin/nvcc"),
}
if sys.version_info < (3, 12):
    ERRORS["override"] = (MAIN, "cannot import name 'override' from 'typing'")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> Callable[[str], dict[str, tuple[str, str]]]:
    """By version, what the line of each patch does without it and with all patches."""
    if find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed: the extra `trainers`")
    folder = tmp_path_factory.mktemp("megatron")

    @cache
    def of(version: str) -> dict[str, tuple[str, str]]:
        names = [name for name, (needed_by, _) in ERRORS.items() if needed_by == version]
        program = [sys.executable, "-m", "tests.trials.external.megatron_on_cpu.left_out"]
        command = [*program, str(checkout_of(version, folder)), *names]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True).stdout
        return {name: (without, with_all) for name, without, with_all in json.loads(printed.splitlines()[-1])}

    return of


@pytest.mark.parametrize("patch", ERRORS)
def test_without_a_patch_the_line_that_it_names_fails(outcomes, patch):
    """Fails once Megatron-LM no longer needs it."""
    version, words = ERRORS[patch]
    without, with_all = outcomes(version)[patch]
    assert words in without
    assert words not in with_all


def test_every_patch_has_a_test_that_leaves_it_out():
    from tests.trials.external.megatron_on_cpu.training import DEVICE, IMPORTS, MEGATRON

    assert {patch.name for patch in (*IMPORTS, *DEVICE, *MEGATRON)} == {*ERRORS, "override"}
