"""Ranks of a fabric check that take longer than others for every collective."""

from __future__ import annotations

from pathlib import Path

from tests.orchestrator.cli.parlay import python_that_begins_with


def delayed_python(folder: Path, variable: str, value: str) -> Path:
    """An interpreter whose fabric check is slow in the processes with this environment variable."""
    return python_that_begins_with(_PROGRAM.replace("VARIABLE", variable).replace("VALUE", value), folder)


_PROGRAM = """
import os
import sys
import time


class Delaying:
    def find_spec(self, name, path=None, target=None):
        if name == "trials.train.fabric.check" and os.environ.get("VARIABLE") == "VALUE":
            import torch.distributed as dist

            for kind in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "batch_isend_irecv"):
                setattr(dist, kind, after(0.04, getattr(dist, kind)))


def after(delay_s, call):
    def delayed(*arguments, **options):
        time.sleep(delay_s)
        return call(*arguments, **options)

    return delayed


sys.meta_path.insert(0, Delaying())
"""
