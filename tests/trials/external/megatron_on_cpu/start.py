"""Start of an interpreter: patches before pretrain_gpt.py, nothing before any other program. Imported by site."""

from __future__ import annotations

import os
import sys

SCRIPT = "pretrain_gpt.py"
GIVEN = "PRETRAIN_GIVEN"
"""Environment variable: any text for given weights and tokens."""


def prepare(script: str) -> None:
    """Apply patches and given weights before the script, whose folder holds the package megatron."""
    sys.path.insert(0, os.path.dirname(script))
    from tests.trials.external.megatron_on_cpu import given, training

    training.emulate_device()
    if GIVEN in os.environ:
        given.give_weights_and_tokens()


if sys.orig_argv[1:] and os.path.basename(sys.orig_argv[1]) == SCRIPT:
    prepare(sys.orig_argv[1])
