"""Programs of the forked ranks that train by accelerate. Arguments and answers are JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parallel import DistributedDataParallel

from tests.trials.train import rank_programs, torchtitan_programs


def train_recording(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a case, and count the reductions by the function that calls them. `without` names one whose reductions are
    left out."""
    without, places = arguments.get("without"), []
    forward = DistributedDataParallel.forward

    def counted(self: DistributedDataParallel, *given: Any, **options: Any) -> Any:
        places.append("reducer")
        self.require_backward_grad_sync &= without != "reducer"
        return forward(self, *given, **options)

    DistributedDataParallel.forward = counted  # type: ignore[method-assign]
    found = torchtitan_programs.train_recording(arguments, folder)
    return {"trained": found["trained"], "places": [*found["places"], *places]}


def dtypes_inside(arguments: Mapping[str, Any], folder: Path) -> list[str]:
    """Types of the products' outputs in a step of a case."""
    found: set[str] = set()

    def note(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(module, torch.nn.Linear):
            found.add(str(output.dtype))

    hook = register_module_forward_hook(note)
    rank_programs.train_layout({**arguments, "steps": 1}, folder)
    hook.remove()
    return sorted(found)
