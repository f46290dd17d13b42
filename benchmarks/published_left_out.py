"""Errors of published layouts by family, with each family left out of the tuning of the time model's constants.

    python -m benchmarks.published_left_out throughput_2023_2026.csv papers_published_layouts.csv [--json]

Constants that a family's published steps set are fitted to another family's instead. Those that no other family tells
have the value that they would have without any fit. A family that set no constant is predicted with the shipped ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy.optimize import least_squares

from benchmarks import published_throughput as published
from benchmarks.output import Line, arguments_of, show
from benchmarks.published import published_lines, read_rows
from benchmarks.published_throughput import Reading
from search_spaces.cost_model import attention, machine_speed, posterior, step_time
from search_spaces.engines import ENGINE_PROFILES, TITAN_EAGER_TRAFFIC, TORCHTITAN

Constants = dict[str, float]

SHIPPED: Constants = {
    "matmul": attention.TYPICAL_MATMUL,
    "half_speed_hidden": step_time.HALF_SPEED_HIDDEN,
    "h100_slowdown": machine_speed._TRAINING_SLOWDOWN["h100-80gb"],
    "launches": posterior.PRIORS["launches"].median,
    "sharded": posterior.PRIORS["sharded"].median,
    "eager_traffic": TITAN_EAGER_TRAFFIC,
    "sinks": attention.SINK_S,
    "overhead_elements": attention.OVERHEAD_ELEMENTS,
    "triton_a100": published.TRITON_SHARE["a100"],
    "triton_h100": published.TRITON_SHARE["h100"],
}
"""Constants that published steps set."""
DENSE_3D, DENSE_FSDP, EXPERTS = "dense 3D", "dense FSDP", "experts"
TUNED_BY = {
    # Megatron-LM's steps of 2021 and 2022, nanotron's on one node, vTrain's.
    DENSE_3D: ("matmul", "half_speed_hidden", "h100_slowdown", "launches"),
    # DeepSpeed's of 2021, torchtitan's two rows without compilation, MPT's.
    DENSE_FSDP: ("sharded", "eager_traffic", "overhead_elements", "triton_a100", "triton_h100"),
    # Two pairs of Megatron-Bridge's rows of one layout, with a slow kernel and without.
    EXPERTS: ("sinks",),
}
"""Constants that a family's published steps set; families that are not here set none."""
UNFITTED: Constants = {
    "sharded": 1.0,
    "eager_traffic": 1.0,
    "sinks": 0.0,
    "overhead_elements": 0.0,
    "triton_a100": attention.FLASH_2_SHARE["a100"],
    "triton_h100": attention.FLASH_2_SHARE["h100"],
}
"""Values of what only one family tells: data sheets' speeds, and published rates of kernels."""
FITTED_TO_MPT = (*TUNED_BY[DENSE_3D], "overhead_elements", "triton_a100", "triton_h100")
"""Constants fitted to MPT's rows where dense 3D is left out. MPT's own are among them, since their values depend on the
others."""


def main() -> None:
    arguments = arguments_of(__doc__, "table", "papers")
    readings = [Reading.of(row) for row in read_rows(arguments.table)]
    show(lines(readings, arguments.papers), arguments.json)


def lines(readings: Sequence[Reading], papers: Path) -> Iterator[Line]:
    """For each family the constants it is predicted with, its errors, and those of the papers' figures of its kind."""
    for family in sorted({reading.family for reading in readings}):
        constants = without(family, readings)
        changed = {name: round(value, 4) for name, value in constants.items() if value != SHIPPED[name]}
        yield {"left_out": family, "constants": changed, "shipped": {name: SHIPPED[name] for name in changed}}
        with using(constants):
            yield from published.family_lines(reading for reading in readings if reading.family == family)
            yield from paper_lines(papers, family)


def without(family: str, readings: Sequence[Reading]) -> Constants:
    """All constants, tuned without this family."""
    if family == DENSE_3D:
        return SHIPPED | fitted([reading for reading in readings if reading.family == DENSE_FSDP])
    return SHIPPED | {name: UNFITTED[name] for name in TUNED_BY.get(family, ())}


def fitted(readings: Sequence[Reading]) -> dict[str, float]:
    """The constants with which these rows' rates are met best: a robust least-squares fit of their logarithms."""

    def off(logs: np.ndarray) -> np.ndarray:
        with using(SHIPPED | dict(zip(FITTED_TO_MPT, np.exp(logs), strict=True))):
            return np.array([np.log(training.predicted / rate) for training, rate in known])

    known = [(reading.training, reading.measured) for reading in readings if reading.training is not None]
    start = np.log([SHIPPED[name] for name in FITTED_TO_MPT])
    found = least_squares(off, start, loss="soft_l1", f_scale=0.1, diff_step=1e-3, xtol=1e-3, ftol=1e-3, max_nfev=12)
    return dict(zip(FITTED_TO_MPT, np.exp(found.x).tolist(), strict=True))


@contextmanager
def using(constants: Constants) -> Iterator[None]:
    """The time model with these constants."""
    typical = [constants.get(term, posterior.PRIORS[term].median) for term in step_time.TERMS]
    titan = replace(ENGINE_PROFILES[TORCHTITAN], eager_traffic=constants["eager_traffic"])
    slowdown = dict.fromkeys(machine_speed._TRAINING_SLOWDOWN, constants["h100_slowdown"])
    triton = {chip: constants[f"triton_{chip}"] for chip in published.TRITON_SHARE}
    with ExitStack() as changes:
        for module, name, value in (
            (posterior, "_TYPICAL", np.log(typical)),
            (attention, "TYPICAL_MATMUL", constants["matmul"]),
            (attention, "OVERHEAD_ELEMENTS", constants["overhead_elements"]),
            (attention, "SINK_S", constants["sinks"]),
            (step_time, "HALF_SPEED_HIDDEN", constants["half_speed_hidden"]),
        ):
            changes.enter_context(patch.object(module, name, value))
        for table, values in (
            (machine_speed._TRAINING_SLOWDOWN, slowdown),
            (ENGINE_PROFILES, {TORCHTITAN: titan}),
            (published.TRITON_SHARE, triton),
        ):
            changes.enter_context(patch.dict(table, values))  # type: ignore[arg-type]
        yield


def paper_lines(papers: Path, family: str) -> Iterator[Line]:
    """Summaries of the papers' steps of this family."""
    for line in published_lines([papers]):
        kind = DENSE_FSDP if "ZeRO-3" in line["source"] else DENSE_3D
        if "summary" in line and kind == family:
            yield line


if __name__ == "__main__":
    main()
