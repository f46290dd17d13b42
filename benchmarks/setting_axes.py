"""Trials to the best pair of layout and settings, against the trials to the best layout alone.

    python -m benchmarks.setting_axes [--sampler guided,deephyper,random] [--tables 20] [--json]

Simulated tables of 20 layouts x 4 settings (two variables of two values, or one of four). Where the cost model is
known, a layout's time is the model's with an error of 20 % of its own, and a guided search finds the best layout in two
trials, as on measured tables; where it is unknown, the model's ranking says nothing, and the layouts have to be tried.
A setting's effect has a standard deviation of 10 % and is the same for all layouts (constant), has another 7 % that
differ between layouts with and without tensor parallelism and 3.5 % of each layout's own (interacting), or is none but
for 0.5 % of noise, which all tables have (null). The layouts alone have the table's first setting. The tolerance is
2 %, as in search_efficiency.py, or none.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.search_efficiency import strict_sampler
from orchestrator.samplers.base import TrialFeedback
from orchestrator.samplers.cost_model_posterior import CostModelPredictor, TuningTask
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import Settings
from search_spaces.layouts.workload import Workload
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import accelerator_named
from search_spaces.search_space import search_space

EFFECTS = ("constant", "interacting", "null")
TOLERANCES = (0.02, 0.0)
NUM_LAYOUTS = 20
_SPREADS = {"known": 1.0, "unknown": 0.0}
"""Share of the model's predicted differences between layouts that are there."""
_LAYOUT_ERROR, _EFFECT, _INTERACTION, _NOISE = 0.2, 0.1, 0.07, 0.005
_AXES = {"tensor_parallel": (1, 2, 4, 8), "pipeline_parallel": (1, 2, 4), "micro_batch_size": (1, 2, 4)}
_MODEL = ModelShape(
    num_layers=24,
    hidden_size=2048,
    num_attention_heads=16,
    num_key_value_heads=16,
    ffn_hidden_size=8192,
    gated_mlp=False,
    vocab_size=51200,
    seq_length=2048,
    tied_embeddings=True,
    position_embedding="learned",
    norm="layernorm",
)
_OF_TWO = {"NCCL_ALGO": (None, "Ring"), "NCCL_NCHANNELS_PER_NET_PEER": ("1", "4")}
_OF_ONE = {"NCCL_MIN_NCHANNELS": ("4", "8", "16", "32")}


def main() -> None:
    arguments = _arguments()
    for sampler in arguments.sampler.split(","):
        for model, effect in product(_SPREADS, EFFECTS):
            lines = [line for seed in _seeds(arguments) for line in _lines(sampler, effect, seed, model)]
            for summary in _summaries(lines, sampler, effect, model):
                print(json.dumps(summary) if arguments.json else _readable(summary), flush=True)


def simulated_table(effect: str, seed: int, model: str) -> tuple[TuningTask, dict[str, float]]:
    """The tuning task of a table, and its speeds by layout key, in tokens a second."""
    rng = np.random.default_rng(seed)
    task = TuningTask(_MODEL, Cluster(accelerator_named("h100-80gb"), gpus_per_node=8, num_nodes=2))
    layouts = _layouts(task, rng)
    texts = [settings.text for settings in _settings(_OF_TWO if seed % 2 else _OF_ONE)]
    predicted = CostModelPredictor(task, layouts, seed).predict([]).log_value
    logs = predicted.mean() + _SPREADS[model] * (predicted - predicted.mean())
    logs += rng.normal(0, _LAYOUT_ERROR, len(layouts))
    shared = rng.normal(0, _EFFECT, len(texts)) if effect != "null" else np.zeros(len(texts))
    of_kind = rng.normal(0, _INTERACTION, (2, len(texts))) if effect == "interacting" else np.zeros((2, len(texts)))
    speeds = {}
    for layout, log in zip(layouts, logs, strict=True):
        own = _INTERACTION / 2 * rng.normal(size=len(texts)) * (effect == "interacting")
        noise = rng.normal(0, _NOISE, len(texts))
        effects = shared + of_kind[int(layout.tensor_parallel > 1)] + own + noise
        for text, setting in zip(texts, effects, strict=True):
            speeds[replace(layout, settings=text).key] = math.exp(log + setting)
    return task, speeds


def trials_to_best(
    sampler: str, task: TuningTask, speeds: Mapping[str, float], layouts: Sequence[Layout], seed: int
) -> dict[float, int]:
    """Trials until one is within each tolerance of the best of these layouts."""
    chooser = strict_sampler(sampler, layouts, task, seed)
    best = max(speeds[layout.key] for layout in layouts)
    history: list[TrialFeedback] = []
    found: dict[float, int] = {}
    while len(found) < len(TOLERANCES):
        [layout] = chooser.ask(1, history)
        history.append(TrialFeedback(layout, value=speeds[layout.key]))
        for tolerance in TOLERANCES:
            if speeds[layout.key] >= best / (1 + tolerance):
                found.setdefault(tolerance, len(history))
    return found


def pairs_of(task: TuningTask, seed: int) -> tuple[list[Layout], list[Layout]]:
    """All pairs of the table, and the layouts alone, with its first setting."""
    layouts = _layouts(task, np.random.default_rng(seed))
    texts = [settings.text for settings in _settings(_OF_TWO if seed % 2 else _OF_ONE)]
    pairs = [replace(layout, settings=text) for layout in layouts for text in texts]
    return pairs, [pair for pair in pairs if pair.settings == texts[0]]


def _lines(sampler: str, effect: str, seed: int, model: str) -> Iterator[dict[str, Any]]:
    task, speeds = simulated_table(effect, seed, model)
    pairs, alone = pairs_of(task, seed)
    of_pairs, of_layouts = (trials_to_best(sampler, task, speeds, each, seed) for each in (pairs, alone))
    for tolerance in TOLERANCES:
        yield {"tolerance": tolerance, "pairs": of_pairs[tolerance], "layouts": of_layouts[tolerance]}


def _layouts(task: TuningTask, rng: np.random.Generator) -> list[Layout]:
    fixed = {"precision": ("bf16",), "attention_kernel": ("flash",), "zero_stage": (0, 1)}
    valid = search_space(Workload(task.model, task.cluster, 256), _AXES | fixed).layouts
    return [valid[row] for row in sorted(rng.choice(len(valid), NUM_LAYOUTS, replace=False).tolist())]


def _settings(axes: Mapping[str, Sequence[str | None]]) -> list[Settings]:
    return [Settings(dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def _summaries(lines: Sequence[Mapping[str, Any]], sampler: str, effect: str, model: str) -> Iterator[dict[str, Any]]:
    for tolerance in TOLERANCES:
        chosen = [line for line in lines if line["tolerance"] == tolerance]
        pairs, layouts = ([line[name] for line in chosen] for name in ("pairs", "layouts"))
        yield {
            "sampler": sampler,
            "model": model,
            "effect": effect,
            "tolerance": tolerance,
            "tables": len(chosen),
            "pairs_median": median(pairs),
            "layouts_median": median(layouts),
            "pairs_mean": round(fmean(pairs), 2),
            "layouts_mean": round(fmean(layouts), 2),
            "ratio_of_medians": round(median(pairs) / median(layouts), 2),
            "ratio_of_means": round(fmean(pairs) / fmean(layouts), 2),
            "median_ratio": round(median(p / n for p, n in zip(pairs, layouts, strict=True)), 2),
        }


def _readable(summary: Mapping[str, Any]) -> str:
    within = f"within {summary['tolerance']:.0%}" if summary["tolerance"] else "the best"
    columns = ("pairs_median", "pairs_mean", "layouts_median", "layouts_mean")
    pairs, pairs_mean, layouts, layouts_mean = (f"{summary[name]:5.1f}" for name in columns)
    ratios = [f"{summary[name]:.2f}" for name in ("ratio_of_medians", "ratio_of_means", "median_ratio")]
    table = f"{summary['sampler']:10} {summary['model']:8} {summary['effect']:12} {within:10}"
    return (
        f"{table} pairs {pairs} (mean {pairs_mean})"
        f"  layouts {layouts} (mean {layouts_mean})  ratio of medians {ratios[0]}, of means {ratios[1]}, median ratio"
        f" {ratios[2]}"
    )


def _seeds(arguments: argparse.Namespace) -> range:
    return range(arguments.first_seed, arguments.first_seed + arguments.tables)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sampler", default="guided,deephyper,random", help="several with commas")
    parser.add_argument("--tables", type=int, default=20, help="number of tables")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first table")
    parser.add_argument("--json", action="store_true", help="a JSON line a summary")
    return parser.parse_args()


if __name__ == "__main__":
    main()
