"""Predictability of a measured table's rows from each other: a bound for models after a few trials of it.

    python -m benchmarks.table_regularity TABLE.csv ... [--seeds 3] [--problem NAME] [--json]

A forest is trained on nine tenths of a problem's rows and predicts the last tenth, each tenth in turn. Its features are
the layout's numbers with the cold model's prediction (`with_model`), or the numbers alone. A search's model knows five
rows where the forest knows dozens: what even the forest cannot predict does not follow from the layout, as far as the
table shows.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import KFold

from benchmarks.cost_model import Case
from search_spaces.cost_model.posterior import StepTimePosterior
from search_spaces.layouts.layout import Layout
from search_spaces.tables.benchmark_problem import BenchmarkProblem, problems_in
from search_spaces.tables.measured_table import read_table

NUM_FOLDS = 10
_FEWEST_ROWS = 2 * NUM_FOLDS
_NUM_TREES = 200


def main() -> None:
    arguments = _arguments()
    rows = (row for path in arguments.tables for row in read_table(path).require_valid().observations)
    problems = {name: problem for name, problem in problems_in(rows).items() if arguments.problem in name}
    lines = []
    for line in lines_of(problems.items(), arguments.seeds):
        lines.append(line)
        _show(line, arguments.json)
    for summary in summaries(lines):
        _show(summary, arguments.json)


def lines_of(problems: Iterable[tuple[str, BenchmarkProblem]], seeds: int) -> Iterator[dict[str, Any]]:
    """Line per problem with at least two rows per fold: median prediction error over rows and seeds."""
    for name, problem in problems:
        rows = [row for row in problem.results.values() if row.step_time_s is not None]
        if len(rows) < _FEWEST_ROWS:
            continue
        case = Case.of(name, rows)
        log_measured = np.log([row.step_time_s or np.nan for row in rows])
        log_model = StepTimePosterior(case.terms, (), 0, case.task.priors.time).predict(case.terms)[0]
        numbers = np.array([_numbers(row.layout) for row in rows])
        yield {
            "problem": name,
            "source": rows[0].source,
            "num_nodes": case.task.cluster.num_nodes,
            "rows": len(rows),
            "error_median": median_error(numbers, log_measured, seeds),
            "error_median_with_model": median_error(np.column_stack([numbers, log_model]), log_measured, seeds),
        }


def median_error(features: np.ndarray, log_measured: np.ndarray, seeds: int) -> float:
    """Median of |predicted / measured - 1| for `features` (rows, columns) and log seconds (rows)."""
    errors = []
    for seed in range(seeds):
        for known, asked in KFold(NUM_FOLDS, shuffle=True, random_state=seed).split(features):
            forest = ExtraTreesRegressor(_NUM_TREES, random_state=seed).fit(features[known], log_measured[known])
            errors.append(np.abs(np.exp(forest.predict(features[asked]) - log_measured[asked]) - 1))
    return round(float(np.median(np.concatenate(errors))), 4)


def summaries(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Line per source and machine size: medians over its problems."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        kinds[line["source"], "many" if line["num_nodes"] > 1 else "one"].append(line)
    for (source, nodes), found in kinds.items():
        errors = {name: median(line[name] for line in found) for name in ("error_median", "error_median_with_model")}
        yield {"summary": True, "source": source, "nodes": nodes, "problems": len(found), **errors}


def _numbers(layout: Layout) -> list[float]:
    counts = (
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.data_parallel,
        layout.micro_batch_size,
        layout.grad_accum_steps,
    )
    return [*np.log(counts), layout.zero_stage, layout.sequence_parallel]


def _show(line: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(line) if as_json else _readable(line), flush=True)


def _readable(line: dict[str, Any]) -> str:
    if "summary" in line:
        name, count = f"= {line['source']}, {line['nodes']} node(s)", f"{line['problems']} problems"
    else:
        name, count = line["problem"], f"{line['rows']} rows"
    errors = (line["error_median"], line["error_median_with_model"])
    return f"{name:36} {count:>12}  off {errors[0]:6.1%}, with the model {errors[1]:6.1%}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="measured tables")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of folds and forests")
    parser.add_argument("--problem", default="", help="only problems whose name contains this")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
