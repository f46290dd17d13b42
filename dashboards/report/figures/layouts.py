"""Figures of the layouts: speed by parallel sizes, axis importance, time breakdown and pipeline of the best. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dashboards.report.data import ReportData, TrialView
from dashboards.report.figures.figure import SEQUENTIAL, Figure, axis, line, plot
from dashboards.report.figures.importance import FEWEST_LAYOUTS, LEAST_EXPLAINED
from dashboards.report.figures.pipeline_schedule import Box, Timeline, backward_passes, pipeline_timeline
from dashboards.report.figures.time_breakdown import TimeBreakdown
from dashboards.report.sentences import (
    TIMES,
    describe_empty,
    duration,
    format_field,
    format_parallelism,
    format_trial,
    percent,
)
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import format_number, format_value
from search_spaces.layouts.layout import axis_of
from trials.files.text import plural

_MAX_FIELDS = 9
_SHADES = 5
"""Shades of the lines in parallel coordinates, from slow to fast, each for an equal number of lines."""
_MIN_SHARE = 0.005
"""Share of the step time below which a difference is not shown by itself."""


def layout_figures(data: ReportData) -> list[Figure]:
    return [_heat(data), _parallel(data), _importance(data), _time(data), _timeline(data)]


def _heat(data: ReportData) -> Figure:
    """Heat map of the best speed for each tensor and pipeline size."""
    unit, title = UNITS[data.objective], "Tensor and pipeline size"
    if not data.layouts:
        return Figure("heat", title, describe_empty(data))
    count = _num_nodes(data)
    on_nodes = "" if len({t.layout.num_nodes for t in data.layouts}) == 1 else f" on {plural(count, 'node')}"
    data = _on_the_bests_nodes(data)
    tried = [*data.layouts, *(t for t in data.trials if t.has_failed)]
    tensors = sorted({t.layout.tensor_parallel for t in tried})
    stages = sorted({t.layout.pipeline_parallel for t in tried})
    cells = {(p, t): _cell(data, p, t) for p in stages for t in tensors}
    found = {place: speed for place, (speed, _) in cells.items() if speed is not None}
    if not found:
        return Figure("heat", title, describe_empty(data))
    (best_stages, best_tensor), best = max(found.items(), key=lambda item: item[1])
    texts = [[cells[p, t][1] for t in tensors] for p in stages]
    failed = [(p, t) for (p, t), (speed, texts) in cells.items() if speed is None and texts]
    marks = [
        {"x": tensors.index(t), "y": stages.index(p), "text": cells[p, t][1], "showarrow": False, "font": _QUIET}
        for p, t in failed
    ]
    more = f", in {len(failed)} more every trial failed" if failed else ""
    return Figure(
        "heat",
        title,
        f"Highest with tensor {best_tensor} and pipeline {best_stages}{on_nodes}: {format_number(best)} {unit}."
        f" {plural(len(found), 'combination')} measured{more}.",
        plot(
            [_heat_map([[cells[p, t][0] for t in tensors] for p in stages], texts, unit)],
            xaxis=_sizes_axis("tensor", tensors),
            yaxis=_sizes_axis("pipeline", stages),
            annotations=marks,
        ),
        height=max(300, 130 + 46 * len(stages)),
        note=f"Each cell is the fastest layout of its sizes; {TIMES} marks sizes of which every trial failed.",
    )


def _on_the_bests_nodes(data: ReportData) -> ReportData:
    """The data of the layouts on as many nodes as the best: a cell compares layouts on the same nodes."""
    count = _num_nodes(data)
    return replace(
        data,
        layouts=tuple(layout for layout in data.layouts if layout.layout.num_nodes == count),
        trials=tuple(trial for trial in data.trials if trial.layout.num_nodes == count),
    )


def _heat_map(values: Sequence[Sequence[float | None]], texts: Sequence[Sequence[str]], unit: str) -> dict[str, Any]:
    """Heat map trace with one row per number of stages."""
    return {
        "type": "heatmap",
        "x": list(range(len(values[0]))),
        "y": list(range(len(values))),
        "z": values,
        "text": texts,
        "texttemplate": "%{text}",
        "colorscale": SEQUENTIAL,
        "xgap": 3,
        "ygap": 3,
        "hoverongaps": False,
        "hovertemplate": "%{z:,.4~g} " + unit + "<extra></extra>",
        "colorbar": {"title": {"text": unit, "side": "right", "font": _QUIET}, "thickness": 12, "outlinewidth": 0},
    }


_QUIET = {"size": 12, "color": "@muted"}


def _sizes_axis(title: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Axis with equally spaced sizes."""
    places = list(range(len(sizes)))
    ticks = {"tickvals": places, "ticktext": [str(size) for size in sizes], "range": [-0.5, len(sizes) - 0.5]}
    return axis(title, showgrid=False, zeroline=False, **ticks)


def _cell(data: ReportData, stages: int, tensor: int) -> tuple[float | None, str]:
    speeds = [t.speed for t in data.layouts if t.speed is not None and _has_sizes(t, stages, tensor)]
    if speeds:
        return max(speeds), _thousands(max(speeds))
    here = [t for t in data.trials if _has_sizes(t, stages, tensor)]
    return None, TIMES if here and all(t.has_failed for t in here) else ""


def _has_sizes(trial: TrialView, stages: int, tensor: int) -> bool:
    return (trial.layout.pipeline_parallel, trial.layout.tensor_parallel) == (stages, tensor)


def _thousands(value: float) -> str:
    """Number short enough for a cell."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _parallel(data: ReportData) -> Figure:
    """Parallel coordinates: a line for each measured layout through its fields and its speed.

    Drawn as plain lines: plotly's parallel coordinates need WebGL and eval, which the page's policy forbids.
    """
    unit, title = UNITS[data.objective], "Parallel coordinates of all measured layouts"
    fields = [name for name in data.varying if _varies(name, data)][:_MAX_FIELDS]
    if len(data.layouts) < 2 or not fields:
        return Figure("parallel", title, "Needs at least two measured layouts that differ.")
    places = {name: _positions([t.layout.canonical().axis_values.get(name) for t in data.layouts]) for name in fields}
    speeds = np.array([t.speed for t in data.layouts], dtype=float)
    ends = (speeds - speeds.min()) / (np.ptp(speeds) or 1.0)
    slower_than = len(speeds) - 1 - np.argsort(np.argsort(speeds, kind="stable"))
    shades = _SHADES - 1 - slower_than * _SHADES // len(speeds)
    traces: list[dict[str, Any]] = []
    for shade in range(_SHADES):
        chosen = np.flatnonzero(shades == shade).tolist()
        traces += [_lines(data, fields, places, ends, chosen, shade)] if chosen else []
    labels = [_label(x, y, format_value(value)) for x, name in enumerate(fields) for value, y in places[name].items()]
    labels += [_label(len(fields), y, _thousands(float(speeds.min() + y * np.ptp(speeds)))) for y in (0.0, 0.5, 1.0)]
    names = [axis_of(name).heading for name in fields] + [unit]
    return Figure(
        "parallel",
        title,
        f"{plural(len(data.layouts), 'layout')} over {plural(len(fields), 'field')}: {', '.join(names[:-1])}."
        f" The fastest 20 % {_shared_settings(data, fields, shades)}.",
        plot(
            traces,
            **_upright_axes(names),
            annotations=labels,
            meta={"least_width": 76 * len(names)},
            hovermode="closest",
        ),
        height=440,
        note="One line a layout, over all its runs; slow ones pale, fast ones strong.",
    )


def _upright_axes(names: Sequence[str]) -> dict[str, Any]:
    """Vertical axis for each name."""
    upright = {"type": "line", "y0": -0.02, "y1": 1.02, "line": {"color": "@grid", "width": 1.5}}
    return {
        "xaxis": {
            "tickvals": list(range(len(names))),
            "ticktext": [name.replace(" ", "<br>") for name in names],
            "side": "top",
            "showgrid": False,
            "zeroline": False,
            "range": [-0.3, len(names) - 0.65],
        },
        "yaxis": {"visible": False, "range": [-0.04, 1.05]},
        "shapes": [{**upright, "x0": x, "x1": x} for x in range(len(names))],
    }


def _varies(name: str, data: ReportData) -> bool:
    return len({t.layout.canonical().axis_values.get(name) for t in data.layouts}) > 1


def _positions(values: Sequence[Any]) -> dict[Any, float]:
    """Position of each value on its axis, 0 to 1: numbers in their order, before words and after what is not set."""
    ordered = sorted(set(values), key=lambda value: (value is not None, isinstance(value, str), value))
    return {value: place / max(1, len(ordered) - 1) for place, value in enumerate(ordered)}


def _lines(
    data: ReportData, fields: Sequence[str], places: dict, ends: np.ndarray, chosen: Sequence[int], shade: int
) -> dict:
    """All lines of one shade in one trace, with gaps between them and small offsets against overlap."""
    x: list[float | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for row in chosen:
        trial = data.layouts[row]
        values, off = trial.layout.canonical().axis_values, (row % 9 - 4) * 0.004
        x += [*range(len(fields) + 1), None]
        y += [*(places[name][values.get(name)] + off for name in fields), float(ends[row]), None]
        text += [f"{format_trial(trial)}<br>{format_number(trial.speed)} {UNITS[data.objective]}"] * (len(fields) + 2)
    width, opacity = 1 + 0.4 * shade, 0.5 + 0.1 * shade
    drawn = line(x, y, "", f"@s{shade}", line={"width": width, "shape": "spline", "smoothing": 0.5}, opacity=opacity)
    return drawn | {"text": text, "hoverinfo": "text"}


def _label(x: float, y: float, text: str) -> dict[str, Any]:
    """Label of a value next to its axis, with an opaque background."""
    place = {"x": x, "y": y, "xanchor": "left", "xshift": 5, "yanchor": "middle"}
    return {"text": text, "showarrow": False, "bgcolor": "@paper", "borderpad": 1, "font": {"size": 11}} | place


def _shared_settings(data: ReportData, fields: Sequence[str], shades: np.ndarray) -> str:
    """Settings that all of the fastest layouts share."""
    fastest = [t for t, shade in zip(data.layouts, shades.tolist(), strict=True) if shade == _SHADES - 1]
    values = {name: {t.layout.canonical().axis_values.get(name) for t in fastest} for name in fields}
    same = [format_field(name, *found) for name, found in values.items() if len(found) == 1]
    return f"all have {', '.join(same)}" if same else "have no setting in common"


def _importance(data: ReportData) -> Figure:
    """Importance of each axis for the speed."""
    title, found = "Axis importance", data.importance
    if found is None:
        return Figure("importance", title, f"Needs at least {FEWEST_LAYOUTS} measured layouts that differ in speed.")
    explained = f"explains {percent(max(0.0, found.explained))} of the variance in held-out layouts"
    basis = f"{found.num_layouts} measured layouts; the model {explained}"
    if not found.is_reliable:
        texts = f"Not shown: it would be based on {basis}, less than {percent(LEAST_EXPLAINED)}."
        return Figure("importance", title, texts)
    first = next(iter(found.effects))
    return Figure(
        "importance",
        title,
        f"{axis_of(first).label.capitalize()} matters most: it changes throughput by {percent(found.effects[first])} on"
        f" average. Based on {basis}{_on_nodes(data)}.",
        plot(
            [_effect_bars(found.effects)],
            xaxis=axis("average change of throughput", tickformat=".0%", range=[0, 1.18 * max(found.effects.values())]),
            yaxis={"automargin": True},
        ),
        height=max(240, 110 + 34 * len(found.effects)),
        note="Mean absolute Shapley value of each axis over the measured layouts, of a kernel regression of log speed.",
    )


def _on_nodes(data: ReportData) -> str:
    """Number of nodes of the best layout, where others were measured too."""
    counts = {layout.layout.num_nodes for layout in data.layouts}
    return "" if len(counts) < 2 else f", all on {plural(_num_nodes(data), 'node')} as the best layout"


def _num_nodes(data: ReportData) -> int:
    """Number of nodes of the best layout, or of the fastest where there is none."""
    first = data.best.layout if data.best is not None else data.layouts[0].layout
    return first.num_nodes


def _effect_bars(effects: Mapping[str, float]) -> dict[str, Any]:
    """Bars of the effects, the largest on top."""
    names = list(effects)[::-1]
    return {
        "type": "bar",
        "orientation": "h",
        "y": [axis_of(name).label for name in names],
        "x": [effects[name] for name in names],
        "text": [percent(effects[name]) for name in names],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": "@accent"},
        "hovertemplate": "%{y} changes throughput by %{x:.1%}<extra></extra>",
    }


def _time(data: ReportData) -> Figure:
    """Step time in seconds: from the baseline's to the best layout's, or the best layout's parts."""
    title, found = "Step time", data.time_breakdowns
    if not found:
        texts = "Unknown: no layout was profiled (measure.profile), and the cost model does not know this accelerator."
        return Figure("time", title, texts if data.best else describe_empty(data))
    steps = _bridge(found)
    origin = "as profiled" if found[0].is_profiled else "as predicted by the cost model, not measured"
    return Figure(
        "time",
        f"{title}: from the baseline to the best layout" if len(found) > 1 else f"{title} by part",
        f"{_measured_times(found)} By part, {origin}: {_bridge_sentence(found, steps)}.",
        plot(
            [_bridge_bars(found, steps)],
            xaxis=axis("seconds a step", rangemode="tozero"),
            yaxis={"automargin": True, "autorange": "reversed"},
        ),
        height=150 + 30 * (len(steps) + len(found)),
        note="Parts that differ by less than 0.5 % of the step are summed up as others." if "others" in steps else None,
    )


def _bridge(found: Sequence[TimeBreakdown]) -> dict[str, float]:
    """Seconds by which the last layout's parts differ from the first one's, or from nothing where it is alone: the
    largest change first; small ones as others."""
    first, last = (found[0].seconds if len(found) > 1 else {}), found[-1].seconds
    changes = {name: last.get(name, 0.0) - first.get(name, 0.0) for name in dict.fromkeys((*first, *last))}
    least = _MIN_SHARE * found[0].total_s
    large = {name: change for name, change in changes.items() if abs(change) >= least}
    steps = dict(sorted(large.items(), key=lambda item: -abs(item[1])))
    others = sum(change for name, change in changes.items() if name not in large)
    return steps | ({"others": others} if len(large) < sum(map(bool, changes.values())) else {})


def _bridge_bars(found: Sequence[TimeBreakdown], steps: Mapping[str, float]) -> dict[str, Any]:
    """Waterfall from the first layout's step time to the last one's."""
    starts = [(found[0].label.replace("best", "best layout"), found[0].total_s)] if len(found) > 1 else []
    bars = [
        *(("absolute", label, total) for label, total in starts),
        *(("relative", _part_name(name, found), change) for name, change in steps.items()),
        ("total", "best layout" if found[-1].label == "best" else "baseline", found[-1].total_s),
    ]
    texts = [duration(seconds) if kind != "relative" or not starts else _signed(seconds) for kind, _, seconds in bars]
    return {
        "type": "waterfall",
        "orientation": "h",
        "measure": [kind for kind, _, _ in bars],
        "y": [label for _, label, _ in bars],
        "x": [seconds for _, _, seconds in bars],
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "increasing": {"marker": {"color": "@c2" if starts else "@c1"}},
        "decreasing": {"marker": {"color": "@c3"}},
        "totals": {"marker": {"color": "@accent"}},
        "connector": {"line": {"color": "@grid", "width": 1}},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }


def _part_name(name: str, found: Sequence[TimeBreakdown]) -> str:
    """Name of a part; the communication of tensor-parallel groups is timed with that of context and expert groups."""
    if name != "tensor":
        return name.replace("data_parallel", "data").replace("_", " ")
    layouts = [parts.layout for parts in found]
    groups = {"tensor": "tensor_parallel", "context": "context_parallel", "expert": "expert_parallel"}
    present = [word for word, field in groups.items() if any(getattr(layout, field) > 1 for layout in layouts)]
    return " and ".join(present) or name


def _measured_times(found: Sequence[TimeBreakdown]) -> str:
    """Sentence with the measured step times."""
    names = {"best": "the best layout", "baseline": "the baseline"}
    known = [f"{duration(p.step_time_s)} ({names[p.label]})" for p in found if p.step_time_s is not None]
    return f"Measured: {' to '.join(known)}." if known else "No step time was measured."


def _bridge_sentence(found: Sequence[TimeBreakdown], steps: Mapping[str, float]) -> str:
    if len(found) == 1:
        parts = ", ".join(f"{_part_name(name, found)} {duration(seconds)}" for name, seconds in steps.items())
        return f"{duration(found[0].total_s)}, of which {parts}"
    parts = ", ".join(f"{_part_name(name, found)} {_signed(change)}" for name, change in steps.items())
    return f"{duration(found[0].total_s)} to {duration(found[1].total_s)}: {parts or 'no difference'}"


def _signed(seconds: float) -> str:
    """Change of a duration with its sign."""
    sign = "+" if seconds >= 0 else "\N{MINUS SIGN}"
    return f"{sign}{duration(abs(seconds))}"


def _timeline(data: ReportData) -> Figure:
    """Timeline of the best layout's pipeline stages."""
    title = "Pipeline of the best layout"
    if data.best is None:
        return Figure("timeline", title, describe_empty(data))
    layout = data.best.layout.canonical()
    found = pipeline_timeline(layout, data.num_layers)
    if found is None:
        return Figure("timeline", title, "The best layout has no pipeline stages, or a schedule that is not drawn.")
    stages = layout.pipeline_parallel
    passes = f"{backward_passes(layout, data.num_layers):.3g}"
    drawn = f"the first {found.num_drawn} of " if found.num_drawn < found.num_micro_batches else ""
    return Figure(
        "timeline",
        title,
        f"{stages} stages, {format_value(layout.pipeline_schedule)}, micro-batches a step: {found.num_micro_batches};"
        f" with equally fast stages, each is idle for {percent(found.bubble)} of a step (bubble).",
        plot(
            _boxes(found),
            xaxis=axis("time, in forward passes of a stage", rangemode="tozero", showgrid=False, zeroline=False),
            yaxis=axis(
                "stage",
                autorange="reversed",
                showgrid=False,
                zeroline=False,
                **({"dtick": 1} if stages <= 16 else {}),
            ),
            legend={"orientation": "h", "y": 1.15, "x": 0},
            showlegend=True,
            hovermode=False,
        ),
        height=min(620, 170 + 34 * stages),
        note=f"Simulated from the schedule, not recorded: {drawn}{found.num_micro_batches} micro-batches of"
        f" {format_parallelism(layout)}; a backward pass takes {passes} forward passes, sending takes no time.",
    )


def _boxes(timeline: Timeline) -> list[dict]:
    """Traces of forward and backward passes, one per chunk with its own shade."""
    chunks = max(box.chunk for box in timeline.boxes) + 1
    traces = []
    for is_forward, name, color in ((True, "forward", "@accent"), (False, "backward", "@c4")):
        for chunk in range(chunks):
            boxes = [b for b in timeline.boxes if (b.is_forward, b.chunk) == (is_forward, chunk)]
            label = name if chunks == 1 else f"{name}, chunk {chunk + 1}"
            traces.append(_box_trace(boxes, label, color, 1 - 0.6 * chunk / chunks))
    return traces


def _box_trace(boxes: Sequence[Box], name: str, color: str, opacity: float) -> dict:
    x: list[float | None] = []
    y: list[float | None] = []
    for box in boxes:
        top, bottom = box.stage - 0.4, box.stage + 0.4
        x += [box.start, box.end, box.end, box.start, box.start, None]
        y += [top, top, bottom, bottom, top, None]
    drawn = line(x, y, name, "@paper", line={"width": 1, "shape": "linear"})
    return drawn | {"fill": "toself", "fillcolor": color, "opacity": opacity}
