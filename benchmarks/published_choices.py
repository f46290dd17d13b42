"""Choices that published tables tell: is the fastest measured setting the fastest predicted, and was it in doubt?

    python -m benchmarks.published_choices rows_2026.csv throughput_2023_2026.csv [--axis NAME,NAME] [--seeds 20]

A choice is a set of rows of one table that differ in one setting, with the micro-batches that follow from it. It is in
doubt where the fastest predicted is the fastest with a probability below two thirds, by the cost model's prior.
Then each table with several settings is replayed: the regret after four trials of the guided sampler, beside a random
order.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from benchmarks.measured import feedback_of, strict_sampler
from benchmarks.output import Line, arguments_of, show
from benchmarks.published_throughput import Reading, Training, readings_in
from orchestrator.search.samplers.cost_model_posterior import TuningTask
from search_spaces.cost_model.posterior import TimePrior
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.tables.measured_table import Observation

AXES = ("expert_dispatcher", "expert_parallel", "micro_batch_size")
SURE = 2 / 3
"""Chosen after 3/4, at which three of nine choices of a dispatcher are in doubt (docs/cost_model.md)."""
TRIALS = 4


def main() -> None:
    arguments = arguments_of(__doc__, "tables+", axis=",".join(AXES), seeds=20)
    readings = [reading for reading in readings_in(arguments.tables) if reading.counts]
    for axis in arguments.axis.split(","):
        show(choice_lines(readings, axis), arguments.json)
    show(replay_lines(readings, arguments.seeds), arguments.json)


def choice_lines(readings: Iterable[Reading], axis: str) -> Iterator[Line]:
    """A line for each choice of this axis, and their summary."""
    groups: dict[tuple[object, ...], list[Reading]] = defaultdict(list)
    for reading in readings:
        training = _said(reading)
        others = replace(training.layout, **{axis: getattr(Layout(), axis)}, grad_accum_steps=1).key
        groups[(*_table_of(reading), training.layout.global_batch_size, others)].append(reading)
    found = [line for group in groups.values() if (line := _choice(group, axis)) is not None]
    yield from found
    sure = [line for line in found if not line["in_doubt"]]
    yield {
        "summary": True,
        "axis": axis,
        "choices": len(found),
        "right": sum(line["right"] for line in found),
        "in_doubt": len(found) - len(sure),
        "right_of_the_others": sum(line["right"] for line in sure),
        "regret_mean": round(fmean(line["regret"] for line in found), 4) if found else None,
    }


def _choice(group: Sequence[Reading], axis: str) -> Line | None:
    """The line of a choice; None where all rows have the same setting."""
    rates: dict[str, list[float]] = defaultdict(list)
    first: dict[str, Training] = {}
    for reading in group:
        setting = str(getattr(_said(reading).layout, axis))
        rates[setting].append(reading.measured)
        first.setdefault(setting, _said(reading))
    if len(rates) < 2:
        return None
    measured = {setting: median(found) for setting, found in rates.items()}
    probabilities = _probabilities([*first.values()])
    row = int(probabilities.argmax())
    best, chosen = max(measured, key=lambda setting: measured[setting]), [*first][row]
    probability = float(probabilities[row])
    return {
        "axis": axis,
        "table": _table_of(group[0])[1],
        "measured": {setting: round(rate, 1) for setting, rate in measured.items()},
        "predicted": chosen,
        "probability": round(probability, 3),
        "right": chosen == best,
        "in_doubt": probability < SURE,
        "regret": round(measured[best] / measured[chosen] - 1, 4),
    }


def _probabilities(trainings: Sequence[Training]) -> np.ndarray:
    """Probability of each layout of one model that it is faster than each of the others."""
    terms = StepTerms.of(trainings[0].model, trainings[0].cluster, LayoutTable.of(each.layout for each in trainings))
    faster = [TimePrior.default().probability_faster(terms, than) for than in range(len(terms))]
    return np.min([np.where(np.arange(len(terms)) == than, 1, row) for than, row in enumerate(faster)], axis=0)


def replay_lines(readings: Sequence[Reading], seeds: int) -> Iterator[Line]:
    """Regret after four trials of each table whose rows are at least five layouts."""
    tables: dict[tuple[object, ...], list[Reading]] = defaultdict(list)
    for reading in readings:
        if reading.row.get("group"):
            tables[(*_table_of(reading), _said(reading).layout.global_batch_size)].append(reading)
    for rows in tables.values():
        results = {row.layout.key: row for row in map(_observation, sorted(rows, key=lambda row: row.measured))}
        if len(results) > TRIALS:
            found = {name: [_regret(name, results, seed) for seed in range(seeds)] for name in ("guided", "random")}
            yield {
                "replay": rows[0].row["group"],
                "layouts": len(results),
                **{f"{name}_mean": round(fmean(regrets), 4) for name, regrets in found.items()},
                **{f"{name}_worst": round(max(regrets), 4) for name, regrets in found.items()},
            }


def _regret(sampler_name: str, results: dict[str, Observation], seed: int) -> float:
    """Step time of the best of the first trials over that of the best of all, less one."""
    layouts = [row.layout for row in results.values()]
    random.Random(seed).shuffle(layouts)
    first = next(iter(results.values()))
    sampler = strict_sampler(sampler_name, layouts, TuningTask(first.model, first.cluster), seed)
    tried: list[Observation] = []
    while len(tried) < TRIALS:
        (asked,) = sampler.ask(1, [feedback_of(row) for row in tried])
        tried.append(results[asked.key])
    best, found = (min(row.step_time_s or np.inf for row in rows) for rows in (results.values(), tried))
    return float(found / best - 1)


def _observation(reading: Reading) -> Observation:
    training, row = _said(reading), reading.row
    tokens = training.layout.global_batch_size * training.model.seq_length / training.layout.num_gpus
    about = row["group"], reading.source, row["model"], training.model, training.cluster
    seconds = tokens / reading.measured
    return Observation(*about, training.layout.global_batch_size, training.layout, "ok", step_time_s=seconds)


def _table_of(reading: Reading) -> tuple[object, ...]:
    training = _said(reading)
    return reading.row["source"], reading.row.get("group") or reading.row["section"], training.model, training.cluster


def _said(reading: Reading) -> Training:
    assert reading.training is not None
    return reading.training


if __name__ == "__main__":
    main()
