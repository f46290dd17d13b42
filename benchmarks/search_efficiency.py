"""Benchmark of samplers: trials needed to come near the best layout of a measured table.

    python -m benchmarks.search_efficiency TABLE.csv ... [--sampler deephyper,random] [--mode cold,leave_one_model_out]
        [--seeds 5] [--problem NAME] [--candidates 20] [--json]

The rows of a problem are the candidates; one trial at a time is asked for and answered from the table. A layout that
failed costs a trial. In mode cold a sampler has only the shipped priors; in leave_one_model_out it has also learnt from
trials of the source's other models, as from earlier searches. `deephyper_tuned` has the best settings found for the
published tables. `--problem` and `--candidates` choose problems by a part of their name and by their least size.

A line a search: trials until a layout within 2 % of the best was measured; the trials after which the search stops by
itself, and the step time of its best over the table's, less one. Then a summary of each source, and one averaged over
them; problems with few candidates are easy for any sampler, and apart.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from statistics import fmean, geometric_mean, median

import numpy as np

from benchmarks.measured import feedback_of, first_of, observations_in, others_of, strict_sampler, task_of
from benchmarks.output import Line, arguments_of, mean_of, show
from orchestrator.search.samplers.base import Sampler, TrialFeedback
from orchestrator.search.samplers.deephyper import DeepHyperSampler, DeepHyperSettings
from search_spaces.tables.benchmark_problem import BenchmarkProblem, problems_in
from search_spaces.tables.measured_table import Observation

TUNED = DeepHyperSettings(initial_points=1, kappa=0.5, derived_axes=True, ranks=True)
"""Best settings found on the measured tables; docs/experiments.md lists the others tried."""
MODES = ("cold", "leave_one_model_out")
_SIZES = {">=20": (20, math.inf), ">=50": (50, math.inf), "<20": (0, 20)}
"""Least numbers of candidates, and those that they are below."""
_LONE_OUTLIER = 1.25
_AVERAGED = (
    "median",
    "mean",
    "geometric_mean",
    "p90",
    "mean_without_outliers",
    "stop_regret_median",
    "stop_regret_p90",
)


def main() -> None:
    chosen = {"sampler": "guided,deephyper,random", "mode": "cold", "problem": "", "candidates": 1}
    arguments = arguments_of(__doc__, "tables+", seeds=5, **chosen)
    lines = show(_lines(observations_in(arguments.tables), arguments), arguments.json)
    show(summaries(lines), arguments.json)


def run(
    name: str,
    problem: BenchmarkProblem,
    sampler_name: str,
    seed: int,
    prior_trials: Sequence[Observation] | None = None,
) -> Line:
    """Line of one search of one problem: until it is within 2 % of the best, and on until it stops.

    One that never stops has no `stop_trials` and ends once it is near the best. `prior_trials` are of other models,
    None where the search is cold.
    """
    times = sorted(row.step_time_s for row in problem.results.values() if row.step_time_s is not None)
    sampler = (
        DeepHyperSampler(problem.layouts, seed, TUNED)
        if sampler_name == "deephyper_tuned"
        else strict_sampler(sampler_name, problem.layouts, task_of(first_of(problem), prior_trials or ()), seed)
    )
    rows, stop_trials = _searched(problem, sampler, times[0])
    return {
        "problem": name,
        "source": rows[0].source,
        "candidates": len(problem.results),
        "sampler": sampler_name,
        "seed": seed,
        "mode": MODES[prior_trials is not None],
        "trials_to_2pct": next(n for n in range(1, len(rows) + 1) if _is_near(rows[:n], times[0])),
        "stop_trials": stop_trials,
        "stop_regret": None if stop_trials is None else _regret(rows[:stop_trials], times[0]),
        "lone_outlier": len(times) > 1 and times[1] >= _LONE_OUTLIER * times[0],
    }


def summaries(lines: Sequence[Line]) -> Iterator[Line]:
    """Trials to 2 %: line per sampler, mode and source, and one averaged over sources; small problems separately."""
    for candidates, (least, below) in _SIZES.items():
        chosen = [line for line in lines if least <= line["candidates"] < below]
        for sampler, mode in dict.fromkeys((line["sampler"], line["mode"]) for line in chosen):
            by_source: dict[str, list[Line]] = defaultdict(list)
            for line in chosen:
                if (line["sampler"], line["mode"]) == (sampler, mode):
                    by_source[line["source"]].append(line)
            rows: list[Line] = [{"source": source} | _summary(found) for source, found in by_source.items()]
            averaged = {figure: mean_of(row[figure] for row in rows) for figure in _AVERAGED}
            pooled = _stop_figures([line for found in by_source.values() for line in found])
            rows.append({"source": "macro", **averaged, **{f"pooled_{name}": pooled[name] for name in pooled}})
            head = {"summary": True, "sampler": sampler, "mode": mode, "candidates": candidates}
            yield from (head | row for row in rows)


def _lines(observations: Sequence[Observation], arguments: argparse.Namespace) -> Iterator[Line]:
    problems = {
        name: found
        for name, found in problems_in(observations).items()
        if any(row.step_time_s for row in found.results.values())
    }
    for name, problem in problems.items():
        if arguments.problem not in name or len(problem.results) < arguments.candidates:
            continue
        wanted = product(arguments.sampler.split(","), arguments.mode.split(","), range(arguments.seeds))
        for sampler, mode, seed in wanted:
            prior_trials = None if mode == "cold" else others_of(name, problems, seed)
            if prior_trials != ():
                yield run(name, problem, sampler, seed, prior_trials)


def _searched(problem: BenchmarkProblem, sampler: Sampler, best_s: float) -> tuple[list[Observation], int | None]:
    """Trials in order, and the number after which the search would have stopped."""
    history: list[TrialFeedback] = []
    rows: list[Observation] = []
    stop_trials: int | None = None
    while not _is_near(rows, best_s) or (stop_trials is None and sampler.name == "guided"):
        if stop_trials is None and sampler.has_converged(history):
            stop_trials = len(rows)
            continue
        asked = sampler.ask(1, history)
        if not asked:
            return rows, len(rows)
        rows.append(problem.results[asked[0].key])
        history.append(feedback_of(rows[-1]))
    return rows, stop_trials


def _is_near(rows: Iterable[Observation], best_s: float) -> bool:
    """True if one of the rows is within 2 % of the best."""
    return any(row.step_time_s is not None and row.step_time_s <= best_s * 1.02 for row in rows)


def _regret(rows: Iterable[Observation], best_s: float) -> float:
    """Relative slowdown of the best of these against the table's best."""
    return round(min(row.step_time_s for row in rows if row.step_time_s is not None) / best_s - 1, 4)


def _summary(lines: Sequence[Line]) -> Line:
    trials = [line["trials_to_2pct"] for line in lines]
    stops = [line["stop_trials"] for line in lines if line.get("stop_trials") is not None]
    return {
        "median": median(trials),
        "mean": fmean(trials),
        "geometric_mean": geometric_mean(trials),
        "mean_without_outliers": mean_of(line["trials_to_2pct"] for line in lines if not line["lone_outlier"]),
        "p90": float(np.percentile(trials, 90)),
        "stop_trials_median": median(stops) if stops else None,
        "stop_trials_max": max(stops, default=None),
        **_stop_figures(lines),
        "problems": len({line["problem"] for line in lines}),
        "lone_outliers": len({line["problem"] for line in lines if line["lone_outlier"]}),
    }


def _stop_figures(lines: Sequence[Line]) -> Line:
    """Median and 90th percentile of the regret over the searches that stopped by themselves."""
    found = [line["stop_regret"] for line in lines if line.get("stop_trials") is not None]
    high = float(np.percentile(found, 90)) if found else None
    return {"stop_regret_median": median(found) if found else None, "stop_regret_p90": high}


if __name__ == "__main__":
    main()
