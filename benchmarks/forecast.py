"""Benchmark of forecasts: best step time and layout on more nodes from trials on a few, on measured tables.

    python -m benchmarks.forecast TABLE.csv ... [--trials 12] [--seeds 5] [--json]

Problems of one model and node type are known up to some number of nodes, with `--trials` trials each as the guided
sampler chooses them (0: every row), and forecast at 2, 4 and 8 times as many nodes, where the table has the global
batch of weak or strong scaling. Candidates for the best are all layouts of the table, failed ones too.

A line a forecast: whether its interval has the measured best, its error, whether the best is among its contenders, and
how much slower than the best the named layout is (null where it failed). Then a summary by multiple of the nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.measured import first_of, first_trials, observations_in, strict_sampler, task_of
from benchmarks.output import Line, arguments_of, mean_of, show
from orchestrator.planning.forecast import MIN_MEASURED, NODE_MULTIPLES, Forecast, ForecastInput, Scaling, forecast
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.tables.benchmark_problem import BenchmarkProblem, problems_in
from search_spaces.tables.measured_table import Observation

Family = Mapping[str, BenchmarkProblem]
"""Problems of one model and node type, by name."""


def main() -> None:
    arguments = arguments_of(__doc__, "tables+", trials=12, seeds=5)
    families = _families(problems_in(observations_in(arguments.tables)))
    found = (line for family in families for line in _lines(family, arguments.trials, arguments.seeds))
    show(summaries(show(found, arguments.json)), arguments.json)


def lines_of(family: Family, base_nodes: int, rows: Sequence[Observation], seed: int) -> Iterator[Line]:
    """Line for each scaling and multiple of the nodes that the family has measured; none where too few of
    the rows on at most `base_nodes` nodes ran."""
    if sum(row.step_time_s is not None for row in rows) < MIN_MEASURED:
        return
    first = rows[0]
    tried = ForecastInput.of(task_of(first), rows, _layouts_in(family), seed=seed)
    for times in NODE_MULTIPLES:
        for found in forecast(tried, [*Scaling], [times * base_nodes]).forecasts:
            layout = found.layout
            problem = _problem_on(family, layout.num_nodes, layout.global_batch_size)
            if problem is not None and any(row.step_time_s is not None for row in problem.results.values()):
                head = {"source": first.source, "model_name": first.model_name, "base_nodes": base_nodes}
                head |= {"times": times, "trials": len(rows), "seed": seed}
                yield head | score(found, problem)


def score(found: Forecast, problem: BenchmarkProblem) -> Line:
    """Line of a forecast against the measurements."""
    ran = {key: row.step_time_s for key, row in problem.results.items() if row.step_time_s is not None}
    best_key = min(ran, key=lambda key: ran[key])
    best_s, chosen_s = ran[best_key], ran.get(found.layout_key)
    return {
        "scaling": found.scaling,
        "step_time_s": found.step_time_s,
        "step_time_low_s": found.step_time_low_s,
        "step_time_high_s": found.step_time_high_s,
        "measured_s": best_s,
        "is_covered": found.step_time_low_s <= best_s <= found.step_time_high_s,
        "error": round(found.step_time_s / best_s - 1, 4),
        "contenders": len(found.contenders),
        "best_is_contender": best_key in {contender.layout_key for contender in found.contenders},
        "regret": None if chosen_s is None else round(chosen_s / best_s - 1, 4),
        "chosen_is_covered": None if chosen_s is None else found.step_time_low_s <= chosen_s <= found.step_time_high_s,
    }


def summaries(lines: Sequence[Line]) -> Iterator[Line]:
    """Line for each multiple of the nodes."""
    by_times: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        by_times[line["times"]].append(line)
    for times, found in sorted(by_times.items()):
        regrets = [line["regret"] for line in found if line["regret"] is not None]
        # Factors from the centre of each interval to its ends.
        half_widths = [(line["step_time_high_s"] / line["step_time_low_s"]) ** 0.5 for line in found]
        yield {
            "summary": True,
            "times": times,
            "forecasts": len(found),
            "covered": mean_of(line["is_covered"] for line in found),
            "chosen_covered": mean_of(line["chosen_is_covered"] for line in found if line["regret"] is not None),
            "error_median": round(median(abs(line["error"]) for line in found), 4),
            "half_width_median": round(median(half_widths), 3),
            "contenders_median": median(line["contenders"] for line in found),
            "best_is_contender": mean_of(line["best_is_contender"] for line in found),
            "regret_median": median(regrets) if regrets else None,
            "regret_max": max(regrets, default=None),
            "failed": len(found) - len(regrets),
        }


def _families(problems: Mapping[str, BenchmarkProblem]) -> list[Family]:
    """Families with more than one number of nodes."""
    found: dict[Any, dict[str, BenchmarkProblem]] = defaultdict(dict)
    for name, problem in problems.items():
        kind = (problem.model, problem.cluster.accelerator.name, problem.cluster.gpus_per_node)
        found[kind][name] = problem
    return [family for family in found.values() if len(_node_counts(family)) > 1]


def _node_counts(family: Family) -> list[int]:
    return sorted({problem.cluster.num_nodes for problem in family.values()})


def _lines(family: Family, trials: int, seeds: int) -> Iterator[Line]:
    for seed in range(seeds):
        rows: list[Observation] = []
        for base_nodes in _node_counts(family)[:-1]:
            for name, problem in family.items():
                if problem.cluster.num_nodes == base_nodes:
                    rows += _known_rows(name, problem, trials, seed)
            yield from lines_of(family, base_nodes, rows, seed)


def _known_rows(name: str, problem: BenchmarkProblem, trials: int, seed: int) -> list[Observation]:
    """First rows that a guided search of the problem would try, under the problem's name; all of them for 0."""
    if trials == 0:
        return list(problem.results.values())
    sampler = strict_sampler("guided", problem.layouts, task_of(first_of(problem)), seed)
    rows = first_trials(sampler, problem.results, trials)
    return [replace(row, problem=name) for row in rows]


def _layouts_in(family: Family) -> Callable[[int, int], Sequence[Layout]]:
    def layouts_on(num_nodes: int, batch: int) -> Sequence[Layout]:
        problem = _problem_on(family, num_nodes, batch)
        if problem is None:
            raise InputError.of("no_measurement", "the table has none")
        return problem.layouts

    return layouts_on


def _problem_on(family: Family, num_nodes: int, batch: int) -> BenchmarkProblem | None:
    return next((p for p in family.values() if (p.cluster.num_nodes, p.global_batch_size) == (num_nodes, batch)), None)


if __name__ == "__main__":
    main()
