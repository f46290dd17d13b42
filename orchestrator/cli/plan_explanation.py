"""Step time and memory of the first layout of a plan and of the baseline, broken down side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dashboards.trial_text import describe_training_rate
from orchestrator.planning.explain import ExplainedLayout, count_fits, explain_layouts, time_saved_s
from orchestrator.planning.plan import Plan
from search_spaces.layouts.layout import Layout
from search_spaces.verification import Verification

_NAME_WIDTH = 26


def explanation_lines(plan: Plan, baseline: Layout | None) -> Iterator[str]:
    """Two tables, each with a row per layout."""
    rows = explain_layouts(plan, baseline)
    yield _heading(plan, baseline)
    yield from _time_lines(plan, rows, time_saved_s(plan, baseline) if len(rows) > 1 else None)
    yield from _memory_lines(plan, rows)
    for each in rows:
        if each.training_rate is not None:
            yield f"  {_name(each)} trains {describe_training_rate(each.training_rate)}"
    yield from (f"  {_name(each)} is verified: {Verification.of(each.layout)}" for each in rows)


def _heading(plan: Plan, baseline: Layout | None) -> str:
    if baseline is None:
        return "predicted for the first layout:"
    place = plan.layouts.index(baseline) + 1
    if place == 1:
        return "predicted for the first layout, which is the baseline:"
    return f"predicted for the first layout and the baseline, {baseline.key}, number {place}:"


def _time_lines(plan: Plan, rows: Sequence[ExplainedLayout], saved: Mapping[str, float] | None) -> Iterator[str]:
    names = [name for name, seconds in plan.estimates.time_s.items() if any(seconds[_row(each)] > 0 for each in rows)]
    known = plan.speed_is_known
    shares = "      MFU      HFU" if known and plan.mfu(0) is not None else ""
    yield f"  {'seconds per step' if known else 'share of a step':{_NAME_WIDTH}}{_cells(names)}           all{shares}"
    for each in rows:
        whole = float(plan.estimates.step_time_s[_row(each)])
        unit = 1.0 if known else whole
        parts = [float(plan.estimates.time_s[name][_row(each)]) / unit for name in names]
        utilization = f"{_share(each.mfu)}{_share(each.hfu)}" if shares else ""
        yield f"  {_name(each):{_NAME_WIDTH}}{_numbers(parts)}  {whole / unit:12.4g}{utilization}"
    if saved is not None:
        cells = "".join(f"  {saved[name]:+13.4g}" for name in names)
        yield f"  {'time saved per step':{_NAME_WIDTH}}{cells}  {sum(saved.values()):+12.4g}"


def _memory_lines(plan: Plan, rows: Sequence[ExplainedLayout]) -> Iterator[str]:
    names = [name for name in rows[0].parts_gib if any(each.parts_gib[name] for each in rows)]
    yield f"  {'GiB on the fullest stage':{_NAME_WIDTH}}{_cells(names)}          peak    stage     fits"
    for each in rows:
        parts, fits = _numbers([each.parts_gib[name] for name in names]), each.fits or "-"
        yield f"  {_name(each):{_NAME_WIDTH}}{parts}  {each.peak_memory_gib:12.4g}{each.fullest_stage:9d}{fits:>9}"
    if (fit := count_fits(plan)) is not None and plan.task.usable_gib is not None:
        words = ", ".join(f"{word} {count}" for word, count in fit)
        yield f"  layouts by fit into {plan.task.usable_gib:.4g} GiB: {words}"


def _name(each: ExplainedLayout) -> str:
    return f"the {each.what}"


def _row(each: ExplainedLayout) -> int:
    return each.place - 1


def _share(share: float | None) -> str:
    return f"{'-':>9}" if share is None else f"{share:9.1%}"


def _cells(names: Sequence[str]) -> str:
    return "".join(f"  {name:>13}" for name in names)


def _numbers(values: Sequence[float]) -> str:
    return "".join(f"  {value:13.4g}" for value in values)
