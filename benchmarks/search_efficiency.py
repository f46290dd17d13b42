"""Benchmark of samplers: trials needed to come near the best layout of a measured table.

    python -m benchmarks.search_efficiency TABLE.csv ... [--sampler deephyper,random] [--mode cold,leave_one_model_out]
        [--seeds 5] [--json]

The rows of a problem are the candidates; one trial at a time is asked for and answered from the table. A layout that
failed costs a trial. In mode cold a sampler has only the shipped priors; in leave_one_model_out it has also learnt from
trials of the source's other models, as from earlier searches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import numpy as np

from benchmarks.machines import with_links
from benchmarks.others import others_of
from orchestrator.samplers.base import Sampler, TrialFeedback
from orchestrator.samplers.cost_model_posterior import TuningTask
from orchestrator.samplers.deephyper import TUNED, DeepHyperSampler
from orchestrator.samplers.factory import SAMPLERS, make_sampler
from orchestrator.samplers.fallback import FallbackSampler
from search_spaces.layouts.layout import Layout
from search_spaces.tables.benchmark_problem import BenchmarkProblem, problems_in
from search_spaces.tables.measured_table import Observation, read_table
from trials.trial import FailureReason

# Problems with few candidates are easy for any sampler, and summarised separately.
_FEWEST_CANDIDATES = 20
_MANY_CANDIDATES = 50
_LONE_OUTLIER = 1.25
_FEWEST_REPEATED = 3
_FIGURES = ("median", "mean", "geometric_mean", "p90", "mean_without_outliers")
_AVERAGED = (*_FIGURES, "stop_regret_median", "stop_regret_p90")
MODES = ("cold", "leave_one_model_out")


def main() -> None:
    arguments = _arguments()
    tables = [path for path in arguments.tables if path.is_file()]
    for path in set(arguments.tables) - set(tables):
        print(f"{path} is not there: skipped", file=sys.stderr)
    lines = []
    for line in _lines(tables, arguments):
        lines.append(line)
        if arguments.json:
            print(json.dumps(line), flush=True)
    for summary in summaries(lines):
        print(json.dumps(summary) if arguments.json else _readable(summary))


def run(
    name: str,
    problem: BenchmarkProblem,
    sampler_name: str,
    seed: int,
    prior_trials: Sequence[Observation] | None = None,
    noise: float | None = None,
) -> dict[str, Any]:
    """Contract's line of one search of one problem: until it is within 2 % of the best, and on until it stops.

    One that never stops has no `stop_trials` and ends once it is near the best. `earlier` are trials of other models,
    None where the search is cold; `noise` is the table's, by `noise_of`.
    """
    task = TuningTask(
        problem.model, with_links(next(iter(problem.results.values()))), prior_trials=tuple(prior_trials or ())
    )
    times = sorted(row.step_time_s for row in problem.results.values() if row.step_time_s is not None)
    best_s = times[0]
    rows, stop_trials = _searched(problem, _sampler(sampler_name, problem.layouts, task, seed), best_s)
    near, nearly = (_first_within(rows, best_s, share) for share in (0.02, 0.05))
    return {
        "problem": name,
        "source": rows[0].source,
        "candidates": len(problem.results),
        "sampler": sampler_name,
        "seed": seed,
        "mode": MODES[prior_trials is not None],
        "trials_to_2pct": near,
        "trials_to_5pct": nearly,
        "node_seconds_to_2pct": _node_seconds(rows[:near]),
        "node_seconds_to_5pct": _node_seconds(rows[:nearly]),
        "stop_trials": stop_trials,
        "stop_regret": None if stop_trials is None else _regret(rows[:stop_trials], best_s, noise or 0.0),
        "noise": noise,
        "lone_outlier": len(times) > 1 and times[1] >= _LONE_OUTLIER * times[0],
    }


def summaries(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Trials to 2 %: line per sampler, mode and source, and one averaged over sources; small problems separately."""
    for candidates, belongs in _SIZES.items():
        chosen = [line for line in lines if belongs(line["candidates"])]
        for sampler, mode in dict.fromkeys((line["sampler"], line["mode"]) for line in chosen):
            by_source: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for line in chosen:
                if (line["sampler"], line["mode"]) == (sampler, mode):
                    by_source[line["source"]].append(line)
            rows = [{"source": source} | _summary(found) for source, found in by_source.items()]
            averaged = {figure: _mean(row[figure] for row in rows) for figure in _AVERAGED}
            rows.append({"source": "macro", **averaged, **_pooled_regret(by_source.values())})
            head = {"summary": True, "sampler": sampler, "mode": mode, "candidates": candidates}
            yield from (head | row for row in rows)


_SIZES: dict[str, Callable[[int], bool]] = {
    f">={_FEWEST_CANDIDATES}": lambda count: count >= _FEWEST_CANDIDATES,
    f">={_MANY_CANDIDATES}": lambda count: count >= _MANY_CANDIDATES,
    f"<{_FEWEST_CANDIDATES}": lambda count: count < _FEWEST_CANDIDATES,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="measured tables")
    names = ", ".join([*SAMPLERS, "deephyper_tuned"])
    parser.add_argument("--sampler", default="guided,deephyper,random", help=f"of {names}; several with commas")
    parser.add_argument("--mode", default="cold", help=f"of {', '.join(MODES)}; several with commas")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, ... of each search")
    parser.add_argument("--problem", default="", help="only problems whose name contains this")
    parser.add_argument("--candidates", type=int, default=1, help="only problems of at least so many")
    parser.add_argument("--json", action="store_true", help="a JSON line a search, and the summary as JSON")
    return parser.parse_args()


def _lines(tables: Iterable[Path], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    observations = [row for table in tables for row in read_table(table).require_valid().observations]
    problems = {name: found for name, found in problems_in(observations).items() if _has_a_best(found)}
    chosen = {name: found for name, found in problems.items() if _is_wanted(name, found, arguments)}
    for name, problem in chosen.items():
        noise = noise_of(row for row in observations if row.problem == name)
        for sampler, mode in product(arguments.sampler.split(","), arguments.mode.split(",")):
            for seed in range(arguments.seeds):
                prior_trials = None if mode == "cold" else others_of(name, problems, seed)
                if prior_trials != ():
                    yield run(name, problem, sampler, seed, prior_trials, noise)


def _is_wanted(name: str, problem: BenchmarkProblem, arguments: argparse.Namespace) -> bool:
    return arguments.problem in name and len(problem.results) >= arguments.candidates


def _has_a_best(problem: BenchmarkProblem) -> bool:
    return any(row.step_time_s for row in problem.results.values())


def _searched(problem: BenchmarkProblem, sampler: Sampler, best_s: float) -> tuple[list[Observation], int | None]:
    """Trials in order, and the number after which the search would have stopped."""
    history: list[TrialFeedback] = []
    rows: list[Observation] = []
    stop_trials: int | None = None
    while not _is_within(rows, best_s, 0.02) or (stop_trials is None and sampler.name == "guided"):
        if stop_trials is None and sampler.has_converged(history):
            stop_trials = len(rows)
            continue
        asked = sampler.ask(1, history)
        if not asked:
            return rows, len(rows)
        rows.append(problem.results[asked[0].key])
        history.append(feedback_of(rows[-1]))
    return rows, stop_trials


def _sampler(name: str, layouts: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    if name == "deephyper_tuned":
        return DeepHyperSampler(layouts, seed, TUNED)
    return strict_sampler(name, layouts, task, seed)


def strict_sampler(name: str, layouts: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    """Make a sampler whose failure is raised; a search would go on with its fallback."""
    sampler = make_sampler(name, layouts, task, seed)
    return sampler.first if isinstance(sampler, FallbackSampler) else sampler


def _is_within(rows: Iterable[Observation], best_s: float, share: float) -> bool:
    return any(row.step_time_s is not None and row.step_time_s <= best_s * (1 + share) for row in rows)


def _first_within(rows: Sequence[Observation], best_s: float, share: float) -> int:
    return next(n for n in range(1, len(rows) + 1) if _is_within(rows[:n], best_s, share))


def _node_seconds(rows: Sequence[Observation]) -> float:
    return round(sum(row.duration_s * row.cluster.num_nodes for row in rows), 1)


def _regret(rows: Iterable[Observation], best_s: float, noise: float) -> float:
    """Relative slowdown of the best of these against the table's best; 0 where repeats differ by as much."""
    regret = min(row.step_time_s for row in rows if row.step_time_s is not None) / best_s - 1
    return 0.0 if regret <= noise else round(regret, 4)


def noise_of(rows: Iterable[Observation]) -> float | None:
    """Spread of repeats: largest over smallest step time less one, median over the layouts.

    None with fewer than _FEWEST_REPEATED repeated layouts, where one outlier would decide.
    """
    by_layout: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.step_time_s is not None:
            by_layout[row.layout.key].append(row.step_time_s)
    repeated = [max(times) / min(times) - 1 for times in by_layout.values() if len(times) > 1]
    return round(median(repeated), 4) if len(repeated) >= _FEWEST_REPEATED else None


def feedback_of(row: Observation) -> TrialFeedback:
    if row.step_time_s is not None:
        value = row.global_batch_size * row.model.seq_length / row.step_time_s
        return TrialFeedback(row.layout, value=value, peak_memory_gib=row.peak_memory_gib)
    return TrialFeedback(
        row.layout, reason=FailureReason.GPU_OOM if row.outcome == "oom" else FailureReason.SCRIPT_ERROR
    )


def _pooled_regret(parts: Iterable[Sequence[dict[str, Any]]]) -> dict[str, float | None]:
    """Median and 90th percentile of the regret over all searches that stopped by themselves."""
    found = [line["stop_regret"] for lines in parts for line in lines if line.get("stop_trials") is not None]
    high = float(np.percentile(found, 90)) if found else None
    return {"pooled_stop_regret_median": median(found) if found else None, "pooled_stop_regret_p90": high}


def _summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    trials = [line["trials_to_2pct"] for line in lines]
    stopped = [line for line in lines if line.get("stop_trials") is not None]
    return {
        "median": median(trials),
        "mean": fmean(trials),
        "geometric_mean": geometric_mean(trials),
        "mean_without_outliers": _mean(line["trials_to_2pct"] for line in lines if not line["lone_outlier"]),
        "p90": float(np.percentile(trials, 90)),
        "stop_trials_median": median(line["stop_trials"] for line in stopped) if stopped else None,
        "stop_trials_max": max((line["stop_trials"] for line in stopped), default=None),
        "stop_regret_median": median(line["stop_regret"] for line in stopped) if stopped else None,
        "stop_regret_p90": float(np.percentile([line["stop_regret"] for line in stopped], 90)) if stopped else None,
        "noise": _mean({line["problem"]: line["noise"] for line in lines}.values()),
        "problems": len({line["problem"] for line in lines}),
        "lone_outliers": len({line["problem"] for line in lines if line["lone_outlier"]}),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _readable(summary: dict[str, Any]) -> str:
    known = (figure for figure in _FIGURES if summary[figure] is not None)
    figures = "  ".join(f"{figure.replace('_', ' ')} {summary[figure]:5.1f}" for figure in known)
    stops = ""
    if summary.get("stop_trials_max") is not None:
        stops = f"  stops after {summary['stop_trials_median']:.0f}, {summary['stop_trials_max']} at most"
    if summary["stop_regret_p90"] is not None:
        stops += f"  regret {summary['stop_regret_median']:.1%}, {summary['stop_regret_p90']:.1%} at p90"
    if summary.get("pooled_stop_regret_p90") is not None:
        stops += f", of all together {summary['pooled_stop_regret_p90']:.1%}"
    problems = ""
    if "problems" in summary:
        problems = f"  {summary['problems']} problems, {summary['lone_outliers']} of them with a lone outlier"
        problems += f", repeats {summary['noise']:.1%} apart" if summary["noise"] is not None else ", too few repeats"
    mode = "" if summary["mode"] == "cold" else " left out"
    who = f"{summary['sampler'] + mode:18} {summary['source']:20} {summary['candidates']:>5} candidates"
    return f"{who}  {figures}{problems}{stops}"


if __name__ == "__main__":
    main()
