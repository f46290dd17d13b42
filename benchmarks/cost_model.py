"""Benchmark of the cost models: prediction errors on measured tables and on published figures of single layouts.

    python -m benchmarks.cost_model TABLE.csv ... [--mode cold,calibrated,leave_one_model_out] [--sampler guided,random]
        [--seeds 5] [--problem NAME] [--json]

In mode cold the models have only the shipped priors. In calibrated they know five trials of the problem, chosen by a
sampler as in a search; in leave_one_model_out they have learnt from trials of the source's other models, as from
earlier searches. Known trials are not scored. A table of published figures (benchmarks/published.py) is compared with
the predictions of the cold models.

A line a problem, null where no row shows a value: median errors of step time and memory, rank correlation of step
times, and of failed rows those that are labelled or proven out of memory (`oom`: a smaller micro-batch came near the
limit), the share of them that was predicted not to fit, and the others that were predicted to fit. Then summaries by
source, and one averaged over them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import spearmanr

from benchmarks.measured import first_trials, observations_in, others_of, strict_sampler, task_of
from benchmarks.output import Line, arguments_of, mean_of, show
from benchmarks.published import COLUMNS, columns_of, published_lines
from orchestrator.search.samplers.cost_model_posterior import TuningTask, memory_posterior
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import MemoryEvidence, StepTimePosterior
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.tables.benchmark_problem import problems_in
from search_spaces.tables.measured_table import Observation

MODES = ("cold", "calibrated", "leave_one_model_out")
NUM_TRIALS = 5
_FEWEST_CALIBRATED = 2 * NUM_TRIALS
# A rank correlation needs more step times.
_FEWEST_RANKED = 5
_REFUSED_BELOW = 0.5
_NEAR_THE_LIMIT = 0.9
"""Share of the device's memory above which the next larger micro-batch must run out."""


def main() -> None:
    chosen = {"mode": ",".join(MODES), "sampler": "guided,random", "problem": ""}
    arguments = arguments_of(__doc__, "tables+", seeds=1, **chosen)
    measured, published = _split_by_kind(arguments.tables)
    lines = show(_lines(observations_in(measured), arguments), arguments.json)
    show(summaries(lines), arguments.json)
    show(published_lines(published), arguments.json)


@dataclass(frozen=True)
class Case:
    """Problem with the models' cold predictions for each of its rows."""

    name: str
    task: TuningTask
    rows: tuple[Observation, ...]
    terms: StepTerms
    memory_gib: np.ndarray

    @classmethod
    def of(cls, name: str, rows: Sequence[Observation]) -> Case:
        task = task_of(rows[0])
        table = LayoutTable.of(row.layout for row in rows)
        terms = StepTerms.of(task.model, task.cluster, table)
        return cls(name, task, tuple(rows), terms, stage_memory(task.model, table).peak)


def score(case: Case, known: Sequence[int] = (), seed: int = 0) -> Line:
    """Figures of the models after these rows, in this order, over all others."""
    timed = [index for index in known if case.rows[index].step_time_s is not None]
    seconds = [case.rows[index].step_time_s or math.nan for index in timed]
    time = StepTimePosterior(case.terms.take(np.array(timed, dtype=int)), seconds, seed, case.task.priors.time)
    evidence = [
        MemoryEvidence(float(gib), row.outcome == "ok", row.peak_memory_gib)
        for gib, row in ((case.memory_gib[index], case.rows[index]) for index in known)
        if row.outcome in ("ok", "oom")  # a failure of unknown cause is none, since our trials report their reason
    ]
    memory = memory_posterior(case.task, evidence)
    scored = np.ones(len(case.rows), dtype=bool)
    scored[list(known)] = False
    ran = np.array([row.outcome == "ok" for row in case.rows])
    refused = memory.fits(case.memory_gib) < _REFUSED_BELOW
    out_of_memory = np.array([row.outcome == "oom" for row in case.rows]) | _proven(case)
    predicted_s = np.exp(time.predict(case.terms)[0])
    measured_s = np.array([row.step_time_s or np.nan for row in case.rows])
    peaks_gib = np.array([row.peak_memory_gib or np.nan for row in case.rows])
    is_timed, has_peak = scored & ran, scored & ran & ~np.isnan(peaks_gib)
    return {
        "ok_rows": int((scored & ran).sum()),
        "time_error_median": _median_error(predicted_s[is_timed], measured_s[is_timed]),
        "rank_correlation": _rank_correlation(predicted_s[is_timed], measured_s[is_timed]),
        "memory_error_median": _median_error(case.memory_gib[has_peak] * memory.factor, peaks_gib[has_peak]),
        "failed_rows": int((scored & ~ran).sum()),
        "oom_rows": int((scored & out_of_memory).sum()),
        "oom_recalled": mean_of(refused[scored & out_of_memory]),
        "unexplained": int((scored & ~ran & ~out_of_memory & ~refused).sum()),
        "ok_refused": mean_of(refused[scored & ran]),
    }


def summaries(lines: Sequence[Line]) -> Iterator[Line]:
    """Line per mode, sampler, machine size and source, and one averaged over the sources.

    Errors are medians over problems, rank correlations means; shares are of all rows together, and rows are counted
    once for all seeds.
    """
    for mode, sampler in dict.fromkeys((line["mode"], line["sampler"]) for line in lines):
        for nodes in ("one", "many"):
            by_source: dict[str, list[Line]] = defaultdict(list)
            for line in lines:
                is_many = line["num_nodes"] > 1
                if (line["mode"], line["sampler"], is_many) == (mode, sampler, nodes == "many"):
                    by_source[line["source"]].append(line)
            rows = [{"source": source, **_summary(found)} for source, found in by_source.items()]
            if rows:
                rows.append({"source": "macro", **{name: mean_of(row[name] for row in rows) for name in _AVERAGED}})
            head = {"summary": True, "mode": mode, "sampler": sampler, "nodes": nodes}
            yield from (head | row for row in rows)


_COUNTED = ("failed_rows", "oom_rows", "unexplained")
_AVERAGED = ("time_error_median", "rank_correlation", "memory_error_median", "oom_recalled", "ok_refused")


def _split_by_kind(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Measured tables and published figures among the files; one with other columns is reported as skipped."""
    measured, published = [], []
    for path in paths:
        columns = columns_of(path) if path.is_file() else None
        if columns is None or "problem" in columns:
            measured.append(path)
        elif columns >= COLUMNS:
            published.append(path)
        else:
            print(f"{path} has no figures of a kind that is known here: skipped", file=sys.stderr)
    return measured, published


def _lines(observations: Iterable[Observation], arguments: argparse.Namespace) -> Iterator[Line]:
    """Lines of the problems that are large enough to be calibrated, or have other models, where the mode needs it."""
    problems = problems_in(observations)
    cases = [
        Case.of(name, list(problem.results.values()))
        for name, problem in problems.items()
        if arguments.problem in name and any(row.step_time_s for row in problem.results.values())
    ]
    for mode in arguments.mode.split(","):
        samplers = arguments.sampler.split(",") if mode == "calibrated" else [None]
        for sampler, case, seed in product(samplers, cases, range(1 if mode == "cold" else arguments.seeds)):
            known = _trials(case, sampler, seed) if sampler and len(case.rows) >= _FEWEST_CALIBRATED else []
            others = others_of(case.name, problems, seed) if mode == "leave_one_model_out" else ()
            if not known and not others and mode != "cold":
                continue
            head = {
                "problem": case.name,
                "source": case.rows[0].source,
                "num_nodes": case.task.cluster.num_nodes,
                "candidates": len(case.rows),
                "mode": mode,
                "sampler": sampler,
                "seed": seed,
            }
            yield head | score(replace(case, task=replace(case.task, prior_trials=others)), known, seed)


def _trials(case: Case, sampler_name: str, seed: int) -> list[int]:
    """First rows that a search would try, in order."""
    results = {row.layout.key: row for row in case.rows}
    sampler = strict_sampler(sampler_name, [row.layout for row in case.rows], case.task, seed)
    return [case.rows.index(row) for row in first_trials(sampler, results, NUM_TRIALS)]


def _proven(case: Case) -> np.ndarray:
    """Failed rows that must have run out of memory: the same layout with a smaller micro-batch came near the limit."""
    by_layout: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in case.rows:
        if row.peak_memory_gib is not None and row.outcome == "ok":
            by_layout[_without_micro_batch(row.layout)].append((row.layout.micro_batch_size, row.peak_memory_gib))
    near_gib = _NEAR_THE_LIMIT * (case.task.cluster.accelerator.usable_memory_gib or math.inf)
    found = np.zeros(len(case.rows), dtype=bool)
    for index, row in enumerate(case.rows):
        peaks = by_layout[_without_micro_batch(row.layout)]
        smaller = sorted(peak for peak in peaks if peak[0] < row.layout.micro_batch_size)
        found[index] = row.outcome != "ok" and bool(smaller) and smaller[-1][1] >= near_gib
    return found


def _without_micro_batch(layout: Layout) -> str:
    return replace(layout, micro_batch_size=1, grad_accum_steps=1).key


def _median_error(predicted: np.ndarray, measured: np.ndarray) -> float | None:
    return round(float(np.median(np.abs(predicted / measured - 1))), 4) if len(measured) else None


def _rank_correlation(predicted: np.ndarray, measured: np.ndarray) -> float | None:
    if len(measured) < _FEWEST_RANKED or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return None
    return round(float(spearmanr(predicted, measured).statistic), 4)


def _summary(lines: Sequence[Line]) -> Line:
    seeds = len({line["seed"] for line in lines})
    counts = {name: round(sum(line[name] for line in lines) / seeds) for name in _COUNTED}
    return {
        "problems": len({line["problem"] for line in lines}),
        "time_error_median": _median_of(lines, "time_error_median"),
        "rank_correlation": mean_of(line["rank_correlation"] for line in lines),
        "memory_error_median": _median_of(lines, "memory_error_median"),
        **counts,
        "oom_recalled": _pooled(lines, "oom_recalled", "oom_rows"),
        "ok_refused": _pooled(lines, "ok_refused", "ok_rows"),
    }


def _median_of(lines: Iterable[Line], name: str) -> float | None:
    known = [line[name] for line in lines if line[name] is not None]
    return round(median(known), 4) if known else None


def _pooled(lines: Iterable[Line], share: str, rows: str) -> float | None:
    known = [line for line in lines if line[share] is not None]
    count = sum(line[rows] for line in known)
    return round(sum(line[share] * line[rows] for line in known) / count, 4) if count else None


if __name__ == "__main__":
    main()
