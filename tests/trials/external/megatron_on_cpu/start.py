"""Start of an interpreter: patches before pretrain_gpt.py, nothing before any other program. Imported by site."""

from __future__ import annotations

import os
import sys

SCRIPT = "pretrain_gpt.py"
FAULT, GIVEN, COUNTED = "PRETRAIN_FAULT", "PRETRAIN_GIVEN", "PRETRAIN_COUNTED"
"""Environment variables: a fault by name, any text for given weights and tokens, any text for a file with the
forward passes."""


def prepare(script: str) -> None:
    """Apply patches, fault and given weights before the script, whose folder holds the package megatron."""
    sys.path.insert(0, os.path.dirname(script))
    from tests.trials.external.megatron_on_cpu import faults, forward_passes, given, training

    training.emulate_device()
    if name := os.environ.get(FAULT):
        faults.bring_about(name)
    if GIVEN in os.environ:
        given.give_weights_and_tokens()
    if COUNTED in os.environ:
        forward_passes.count()


if sys.orig_argv[1:] and os.path.basename(sys.orig_argv[1]) == SCRIPT:
    prepare(sys.orig_argv[1])
