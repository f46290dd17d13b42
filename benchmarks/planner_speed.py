"""Benchmark of the planner on many layouts: seconds of each part of a plan.

    python -m benchmarks.planner_speed [--layouts 100000] [--repeats 3] [--beside CHECKOUT] [--json]

`columns` makes a table of layouts, `estimate` their step time, memory and fit probability; that of another checkout
may break the step down, too. Each part's fastest run counts, since other load only adds time. With `--beside`, a
checkout of another commit, both take turns, and each part is said in percent of the other's time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
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
    arguments = arguments_of(__doc__, layouts=100_000, repeats=3, beside="")
    if arguments.beside:
        show(lines_beside(Path(arguments.beside), arguments.repeats), arguments.json)
    else:
        show(lines(arguments.layouts, arguments.repeats), arguments.json)


def lines(most_layouts: int, repeats: int = 1) -> Iterator[Line]:
    """Seconds of each part of a plan, for at most a number of layouts, spread over the space."""
    spec = load_search_text(SEARCH, Path.cwd())
    begun = time.perf_counter()
    space = candidates_of(spec)
    yield {"what": "enumerate", "layouts": len(space.layouts), "seconds": time.perf_counter() - begun}
    rows = np.linspace(0, len(space.layouts) - 1, min(most_layouts, len(space.layouts))).astype(int)
    yield _line("columns", len(rows), repeats, partial(LayoutTable.of, [*space.layouts.take(rows)]))
    layouts = space.layouts.take(rows)
    space = replace(space, layouts=layouts)
    yield _line("estimate", len(rows), repeats, lambda: Estimates.of(task_of(spec), layouts))
    yield _line("plan", len(rows), repeats, lambda: plan_of(spec, space))
    plan = plan_of(spec, space)
    yield _line("plan_json_top_20", len(rows), repeats, lambda: plan.first(20))
    yield _line("plan_json", len(rows), repeats, plan.first)


def _line(what: str, layouts: int, repeats: int, work: Callable[[], object]) -> Line:
    return {"what": what, "layouts": layouts, "seconds": min(timeit.Timer(work, "gc.enable()").repeat(repeats, 1))}


def lines_beside(checkout: Path, repeats: int) -> Iterator[Line]:
    """Seconds of each part here and in a checkout of another commit, and their ratio in percent."""
    trees = (Path(__file__).parents[1], checkout.resolve())
    rounds = [[_seconds_in(tree) for tree in trees] for _ in range(repeats)]
    for what in rounds[0][0]:
        here, there = (min(of_round[tree][what] for of_round in rounds) for tree in (0, 1))
        yield {"what": what, "seconds": here, "seconds_beside": there, "percent": round(100 * here / there)}


def _seconds_in(tree: Path) -> dict[str, float]:
    """Seconds of each part of a run of this benchmark in that tree, one process after the other."""
    command = [sys.executable, "-m", "benchmarks.planner_speed", "--repeats", "1"]
    command += ["--json"] if tree == Path(__file__).parents[1] else []  # 33a1b12 prints JSON and has no such option
    environment = os.environ | {"PYTHONPATH": str(tree)}
    run = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True)
    return {line["what"]: line["seconds"] for line in map(json.loads, run.stdout.splitlines())}


if __name__ == "__main__":
    main()
