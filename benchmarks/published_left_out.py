"""Errors of published layouts by family and by source, with what they tuned left out, and an ablation of the constants.

    python -m benchmarks.published_left_out TABLE.csv ... --papers papers_published_layouts.csv [--ablation] [--json]

A family, and a source, is predicted without the constants that its published steps set: each has the value that data
sheets or other sources give it. With --ablation constants are taken out one after the other, the one of least effect
first and the fitted ones fitted again, until each that is left changes the error of a family by a point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.optimize import least_squares

from benchmarks.output import Line, arguments_of, show
from benchmarks.published import published_lines
from benchmarks.published_throughput import Reading, error_line, errors_of, readings_in
from search_spaces.cost_model import exchange_time, layer_time, step_time
from search_spaces.cost_model.constants import PRIORS
from search_spaces.engines import ENGINE_PROFILES
from search_spaces.hardware import links
from search_spaces.hardware.cluster import ACCELERATORS

DENSE_3D, DENSE_FSDP, EXPERTS = "dense 3D", "dense FSDP", "experts"
POINT = 0.01


@dataclass(frozen=True)
class Constant:
    """A constant of the time model: how to set it, its value without any published step, and the family and the source
    whose steps set it, if any."""

    set_to: Callable[[Any], Any]
    without: Any
    family: str | None = None
    source: str | None = None


def _in(module: Any, name: str) -> Callable[[Any], Any]:
    return lambda value: patch.object(module, name, value)


def _median(name: str) -> Callable[[Any], Any]:
    return lambda value: patch.dict(PRIORS, {name: replace(PRIORS[name], median=value)})


def _engines(name: str) -> Callable[[Any], Any]:
    return lambda value: patch.dict(
        ENGINE_PROFILES,  # type: ignore[arg-type]
        {engine: replace(profile, **{name: value}) for engine, profile in ENGINE_PROFILES.items()},
    )


def _gemm_share(chip: str) -> Callable[[Any], Any]:
    named = {name: known for name, known in ACCELERATORS.items() if name.startswith(chip)}
    return lambda value: patch.dict(ACCELERATORS, {n: replace(known, gemm_share=value) for n, known in named.items()})


def _efa(**changed: float) -> Callable[[Any], Any]:
    ((field, _),) = changed.items()
    return lambda value: patch.dict(links.FABRIC_KINDS, {"efa": replace(links.FABRIC_KINDS["efa"], **{field: value})})


INFINIBAND = links.FABRIC_KINDS["infiniband"]
TUNED: Mapping[str, Constant] = {
    "GEMM share of H100": Constant(_gemm_share("h100"), 0.66, DENSE_3D),
    "half-rate hidden size": Constant(_in(layer_time, "HALF_RATE_HIDDEN"), 0, DENSE_3D),
    "launches of a layer": Constant(_in(layer_time, "LAYER_LAUNCH_S"), 0.4e-3, DENSE_3D),
    "collectives": Constant(_median("collectives"), 1.0, DENSE_3D),
    "GEMM slowdown of Megatron-DeepSpeed": Constant(_engines("gemm_slowdown"), 1, DENSE_3D),
    "sharded": Constant(_median("sharded"), 1.0, DENSE_FSDP),
    "launches of experts": Constant(_in(layer_time, "EXPERT_LAYER_LAUNCH_S"), 0.7e-3, EXPERTS),
    "all-to-alls over EFA": Constant(_efa(all_to_all_share=0), INFINIBAND.all_to_all_share, None, "awslabs"),
    "dispatch over EFA": Constant(_efa(dispatch_us=0), INFINIBAND.dispatch_us, None, "awslabs"),
    "GEMM share of B200": Constant(_gemm_share("b"), 0.55, None, "MooreThreads"),
    "grouped GEMMs": Constant(_in(layer_time, "GROUPED_GEMM_SLOWDOWN"), 1.11, None, "MooreThreads"),
}
"""Constants that published steps, or a source of them, set."""
FITTED = {
    "half-rate hidden size": layer_time.HALF_RATE_HIDDEN,
    "launches of a layer": layer_time.LAYER_LAUNCH_S,
    "launches of experts": layer_time.EXPERT_LAYER_LAUNCH_S,
    "collectives": PRIORS["collectives"].median,
}
"""Constants that are fitted again when others are taken out."""
ABLATED: Mapping[str, Constant] = {
    **{name: known for name, known in TUNED.items() if "share" not in name},
    "launches of a layer": Constant(_in(layer_time, "LAYER_LAUNCH_S"), 0),
    "launches of experts": Constant(_in(layer_time, "EXPERT_LAYER_LAUNCH_S"), 0),
    "host calls": Constant(_in(layer_time, "HOST_CALL_S"), 0),
    "grouped GEMMs": Constant(_in(layer_time, "GROUPED_GEMM_SLOWDOWN"), 1),
    "messages between stages": Constant(_in(step_time, "MESSAGE_S"), 0),
    "fixed work of a step": Constant(_in(step_time, "STEP_S"), 0),
    "dispatch": Constant(_median("dispatch"), 1.0),
    "exposed share, in layers": Constant(_in(exchange_time, "EXPOSED"), 1),
    "exposed share, reductions": Constant(_in(step_time, "EXPOSED"), 1),
    "one adapter for DeepSpeed's gathers": Constant(_engines("gathers_each_parameter"), False),
    "waits for the host": Constant(_median("latency"), 1e-9),
}


def main() -> None:
    arguments = arguments_of(__doc__, "tables+", papers="", ablation=False)
    readings = readings_in(arguments.tables)
    papers = Path(arguments.papers) if arguments.papers else None
    found = ablation(_thinned(readings), papers) if arguments.ablation else lines(readings, papers)
    show(found, arguments.json)


def lines(readings: Sequence[Reading], papers: Path | None) -> Iterator[Line]:
    """Errors of each family, and of each source, without what its own steps set; then of all of them together."""
    for kind in ("family", "source"):
        pooled: list[float] = []
        for name in sorted({getattr(reading, kind) for reading in readings}):
            without = {key: known.without for key, known in TUNED.items() if getattr(known, kind) == name}
            with changed(without):
                found = errors_of(reading for reading in readings if getattr(reading, kind) == name)
                yield {"left_out": name, "constants": ", ".join(without), **error_line(found)}
                if kind == "family" and papers is not None:
                    yield from paper_lines(papers, name)
            pooled += found
        yield {"summary": True, "left_out": f"each {kind}", **error_line(pooled)}


@contextmanager
def changed(values: Mapping[str, Any]) -> Iterator[None]:
    """The time model with these values of constants."""
    with ExitStack() as changes:
        for name, value in values.items():
            known = TUNED.get(name) or ABLATED[name]
            changes.enter_context(known.set_to(value))
        yield


def paper_lines(papers: Path, family: str) -> Iterator[Line]:
    """Summaries of the papers' steps of this family."""
    for line in published_lines([papers]):
        kind = DENSE_FSDP if "ZeRO-3" in line["source"] else DENSE_3D
        if "summary" in line and kind == family:
            yield line


def ablation(readings: Sequence[Reading], papers: Path | None) -> Iterator[Line]:
    """A line for each constant, in the order in which they are taken out, with the largest change of a family's median
    error in points."""
    gone: dict[str, Any] = {}
    before = _by_family(readings, papers, {})
    while True:
        fitted = _fitted(readings, papers, gone) if gone else {}
        worse: dict[str, tuple[float, str]] = {}
        for name, known in ABLATED.items():
            if name not in gone:
                after = _by_family(readings, papers, {**fitted, **gone, name: known.without})
                worse[name] = max((after[family] - error, family) for family, error in before.items())
        for name, (points, family) in sorted(worse.items(), key=lambda item: item[1]):
            goes = points <= POINT
            yield {"goes" if goes else "stays": name, "worse": round(100 * points, 1), "family": family}
            if goes:
                gone[name] = ABLATED[name].without
                break
        else:
            return


def _thinned(readings: Sequence[Reading]) -> list[Reading]:
    """The rows that count, of a family with many of them every third."""
    by_family: dict[str, list[Reading]] = defaultdict(list)
    for reading in readings:
        if reading.counts:
            by_family[reading.family].append(reading)
    return [reading for found in by_family.values() for reading in found[:: 3 if len(found) > _MANY else 1]]


_MANY = 150


def _fitted(readings: Sequence[Reading], papers: Path | None, gone: Mapping[str, Any]) -> dict[str, float]:
    """The fitted constants that are left, fitted again: a robust least-squares fit of the rates' logarithms."""
    names = [name for name in FITTED if name not in gone]

    def off(logs: np.ndarray) -> np.ndarray:
        with changed({**gone, **dict(zip(names, np.exp(logs), strict=True))}):
            return np.log1p(errors_of(readings) + [1 / (1 + error) - 1 for _, error in _paper_errors(papers)])

    start = np.log([FITTED[name] for name in names])
    found = least_squares(off, start, loss="soft_l1", f_scale=0.1, diff_step=1e-2, xtol=1e-3, ftol=1e-3, max_nfev=5)
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def _by_family(readings: Sequence[Reading], papers: Path | None, values: Mapping[str, Any]) -> dict[str, float]:
    """Median error of each family, and of each paper's steps, with these values of constants."""
    with changed(values):
        families = {reading.family for reading in readings}
        errors = {f: errors_of(r for r in readings if r.family == f) for f in families}
        for name, error in _paper_errors(papers):
            errors.setdefault(name, []).append(error)
        return {name: float(np.median(np.abs(found))) for name, found in errors.items()}


def _paper_errors(papers: Path | None) -> Iterator[tuple[str, float]]:
    """Each paper and the relative error of each of its steps; those of ZeRO 3 are apart."""
    for line in published_lines([papers] if papers is not None else []):
        if "case" in line:
            paper = line["source"].split()[0]
            yield (f"{paper} (ZeRO-3)" if "ZeRO-3" in line["source"] else paper), line["error"]


if __name__ == "__main__":
    main()
