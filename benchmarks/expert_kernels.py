"""Operations that megatron-core launches for each expert of a rank in a pass of one layer.

    python -m benchmarks.expert_kernels

Counted on a CPU, without views and without what the optimizer launches: of a step with more experts a rank, and with
more micro-batches, those of a step with fewer. Each count is of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from search_spaces.engines import MEGATRON_CORE
from search_spaces.model_shape import ModelShape
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import case_spec

FEW_EXPERTS, MANY_EXPERTS = 8, 16
PASSES = 3
"""Forward, and backward to inputs and to weights."""
_NO_KERNELS = {
    *("alias", "as_strided", "detach", "expand", "permute", "select", "slice", "split", "split_with_sizes"),
    *("squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view"),
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"),
}
"""Operations that only make a view, allocate, or read a number."""


def main() -> None:
    arguments = _arguments()
    if arguments.count is None:
        print(f"{kernels_per_expert():.1f} kernels an expert, layer and pass")
    else:
        print(json.dumps(count(*arguments.count)))


def kernels_per_expert() -> float:
    """Mean over the passes of a micro-batch."""
    few, many = (_of_a_micro_batch(experts) for experts in (FEW_EXPERTS, MANY_EXPERTS))
    layers = _model(FEW_EXPERTS).num_expert_layers
    return (many - few) / (MANY_EXPERTS - FEW_EXPERTS) / layers / PASSES


def _of_a_micro_batch(experts: int) -> float:
    counts = []
    for micro_batches in (2, 4):
        command = [sys.executable, "-m", "benchmarks.expert_kernels", "--count", str(experts), str(micro_batches)]
        counts.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return (counts[1] - counts[0]) / 2


def count(experts: int, micro_batches: int) -> int:
    """Operations of one step and of building the model, on one rank."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from trials.files.folders import AttemptFolder
    from trials.ranks.environment import RankEnvironment
    from trials.train.parallel.device import Device
    from trials.train.selftest.training import train_layout

    class Counting(TorchDispatchMode):
        launched = 0

        def __torch_dispatch__(
            self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            self.launched += operation.overloadpacket.__name__ not in _NO_KERNELS
            return operation(*args, **(kwargs or {}))

    case = named_case("experts", "mixtral", engine=MEGATRON_CORE)
    case = replace(case, model=_model(experts), layout=replace(case.layout, grad_accum_steps=micro_batches))
    with tempfile.TemporaryDirectory() as folder, Counting() as counting:
        environment = RankEnvironment(rank=0, world_size=1, local_rank=0)
        environment.export(os.environ)
        spec = case_spec(case, "cpu", 1)
        train_layout(spec, AttemptFolder(Path(folder)), environment, Device(torch.device("cpu")), steps=1)
    return counting.launched


def _model(experts: int) -> ModelShape:
    return replace(named_case("experts", "mixtral", engine=MEGATRON_CORE).model, num_experts=experts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, nargs=2, metavar=("EXPERTS", "MICRO_BATCHES"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
