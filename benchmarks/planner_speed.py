"""Benchmark of the planner on many layouts: seconds of each part of a plan.

    python -m benchmarks.planner_speed [--layouts 100000] [--repeats 3] [--json]

`estimate` covers a layout's numbers: step time and its breakdown, memory, and the fit probability. Each part's fastest
run counts, since other load only adds time.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.output import Line, arguments_of, show
from orchestrator.config.loader import load_search_text
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.plan import Estimates, plan_of, task_of
from search_spaces.layouts.table import LayoutTable

SEARCH = """\
name: planner-speed
model: gpt-175b
cluster: {accelerator: a100-80gb, gpus_per_node: 8, num_nodes: 64}
global_batch_size: 1536
space:
  num_nodes: [16, 32, 48, 64]
  tensor_parallel: [1, 2, 4, 8]
  pipeline_parallel: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
  micro_batch_size: [1, 2, 3, 4, 6, 8, 12, 16]
  zero_stage: [0, 1, 2, 3]
  offload: [none, optimizer]
  activation_checkpointing: [none, selective, full]
  sequence_parallel: [false, true]
  precision: [fp16, bf16]
  attention_kernel: [math, flash]
  engine: [torch, deepspeed]
"""


def main() -> None:
    arguments = arguments_of(__doc__, layouts=100_000, repeats=3)
    show(lines(arguments.layouts, arguments.repeats), arguments.json)


def lines(most_layouts: int, repeats: int = 1) -> Iterator[Line]:
    """Seconds of each part of a plan, for at most a number of layouts, spread over the space."""
    spec = load_search_text(SEARCH, Path.cwd())
    begun = time.perf_counter()
    space = candidates_of(spec)
    yield {"what": "enumerate", "layouts": len(space.layouts), "seconds": time.perf_counter() - begun}
    rows = np.linspace(0, len(space.layouts) - 1, min(most_layouts, len(space.layouts))).astype(int)
    space = replace(space, layouts=tuple(space.layouts[row] for row in rows))
    table, plan = LayoutTable.of(space.layouts), plan_of(spec, space)
    parts = {
        "columns": lambda: LayoutTable.of(space.layouts),
        "estimate": lambda: Estimates.of(task_of(spec), table),
        "plan": lambda: plan_of(spec, space),
        "plan_json": lambda: [row.plain() for row in plan.first()],
    }
    for what, work in parts.items():
        yield {"what": what, "layouts": len(rows), "seconds": min(timeit.Timer(work, "gc.enable()").repeat(repeats, 1))}


if __name__ == "__main__":
    main()
