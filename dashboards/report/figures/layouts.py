"""Figures of the layouts: speed by parallel sizes, axis importance, time breakdown. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from dashboards.columns import TIMES
from dashboards.report.figures.figure import SEQUENTIAL, Figure, axis, plot
from dashboards.report.figures.importance import FEWEST_LAYOUTS, LEAST_EXPLAINED, axis_importance
from dashboards.report.figures.time_breakdown import TimeBreakdown, time_breakdowns
from dashboards.report.sentences import describe_empty, percent, step_time
from dashboards.search_view import SearchView
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import format_short
from search_spaces.layouts.layout import DERIVED, SETTINGS, axis_of
from search_spaces.layouts.settings import as_numbers, setting_axes
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import value_of
from trials.analysis.verdict import has_failed
from trials.files.text import plural

_MIN_SHARE = 0.005
"""Share of the step time below which a difference is not shown by itself."""


def layout_figures(view: SearchView) -> list[Figure]:
    return [_heat(view), _importance(view), _time(view)]


def _heat(view: SearchView) -> Figure:
    """Heat map of the best speed for each tensor and pipeline size, with a block of columns a number of nodes."""
    unit, title = UNITS[view.objective], "Tensor and pipeline size"
    tried: list[TrialOrLayout] = [*view.ranking.ordered, *filter(has_failed, view.search.trials)]
    columns = sorted({(t.layout.num_nodes, t.layout.tensor_parallel) for t in tried})
    stages = sorted({t.layout.pipeline_parallel for t in tried})
    best = _fastest_by_nodes(view)
    if not best:
        return Figure("heat", title, describe_empty(view))
    cells = [[_cell(view, nodes, p, tensor) for nodes, tensor in columns] for p in stages]
    flat = [cell for row in cells for cell in row]
    if sum(cell != (None, "") for cell in flat) < 2:
        return Figure("heat", title, "Needs layouts of at least two sizes.")
    failed = [(x, y) for y, row in enumerate(cells) for x, cell in enumerate(row) if cell == (None, TIMES)]
    marks = [{"x": x, "y": y, "text": TIMES, "showarrow": False, "font": _QUIET} for x, y in failed]
    blocks = _blocks(columns)
    has_blocks = len(blocks) > 1
    fastest = [view.speed(best[nodes]) if has_blocks and nodes in best else 1.0 for nodes, _ in columns]
    colors = [[_share(cell[0], most) for cell, most in zip(row, fastest, strict=True)] for row in cells]
    more = f", in {len(failed)} more every trial failed" if failed else ""
    relative = ", the stronger the nearer to the fastest on as many nodes" if has_blocks else ""
    heat_maps = list(_heat_maps(colors, [[text for _, text in row] for row in cells], unit))
    return Figure(
        "heat",
        title,
        f"{_describe_fastest(view, best)} {plural(sum(c[0] is not None for c in flat), 'combination')} measured{more}.",
        plot(
            [_narrow(heat_map) for heat_map in heat_maps] if has_blocks else heat_maps,
            xaxis=_sizes_axis("tensor", [tensor for _, tensor in columns]),
            yaxis=_sizes_axis("pipeline", stages),
            annotations=[*marks, *(_block_title(*block) for block in (blocks if has_blocks else ()))],
            shapes=[_block_border(start) for _, start, _ in blocks[1:]],
            **({"meta": {"least_width": 150 + 40 * len(columns)}} if has_blocks else {}),
        ),
        height=max(300, 130 + 46 * len(stages)) if not has_blocks else max(300, 150 + 32 * len(stages)),
        note=f"Each cell is the fastest layout of its sizes{relative}; {TIMES}: every trial failed.",
    )


def _fastest_by_nodes(view: SearchView) -> dict[int, RankedLayout]:
    """Fastest measured layout on each number of nodes."""
    return {
        nodes: max((t for t in view.ranking.ordered if t.layout.num_nodes == nodes), key=lambda t: view.speed(t) or 0.0)
        for nodes in view.node_counts
    }


def _describe_fastest(view: SearchView, best: Mapping[int, RankedLayout]) -> str:
    unit, speeds = UNITS[view.objective], {nodes: format_short(view.speed(t)) for nodes, t in best.items()}
    sizes = {n: f"tensor {t.layout.tensor_parallel} and pipeline {t.layout.pipeline_parallel}" for n, t in best.items()}
    if len(best) == 1:
        (nodes,) = best
        return f"Highest with {sizes[nodes]}: {speeds[nodes]} {unit}."
    each = (f"{sizes[n]} on {plural(n, 'node')} ({speeds[n]})" for n in best)
    return f"Highest, in {unit}: {', '.join(each)}."


def _share(speed: float | None, fastest: float | None) -> float | None:
    return None if speed is None or not fastest else speed / fastest


def _blocks(columns: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Number of nodes of each block of columns, its first column and its number of columns."""
    counts = Counter(nodes for nodes, _ in columns)
    starts = accumulate(counts.values(), initial=0)
    return [(nodes, start, count) for (nodes, count), start in zip(counts.items(), starts, strict=False)]


def _block_title(nodes: int, start: int, count: int) -> dict[str, Any]:
    middle = {"x": start + (count - 1) / 2, "y": 1, "yref": "paper", "yanchor": "bottom"}
    return {"text": plural(nodes, "node"), "showarrow": False, "font": _QUIET} | middle


def _block_border(start: int) -> dict[str, Any]:
    """Line before a block of columns."""
    place = {"x0": start - 0.5, "x1": start - 0.5, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "line", "line": {"color": "@muted", "width": 1}} | place


def _heat_maps(
    values: Sequence[Sequence[float | None]], texts: Sequence[Sequence[str]], unit: str
) -> Iterator[dict[str, Any]]:
    """Heat map traces with one row per number of stages: the slow half of the colour scale and the fast one, each with
    text that can be read on it."""
    known = [value for row in values for value in row if value is not None]
    low, high = min(known), max(known)
    least = low if low < high else 0.0
    for is_fast in sorted({2 * value >= least + high for value in known}):
        half = [[v if v is not None and (2 * v >= least + high) is is_fast else None for v in row] for row in values]
        shown = [
            ["" if value is None else text for value, text in zip(*row, strict=True)]
            for row in zip(half, texts, strict=True)
        ]
        text_color = {"textfont": {"color": "@onfast" if is_fast else "@onslow"}}
        yield _heat_map(half, shown, unit) | text_color | {"zmin": least, "zmax": high, "showscale": is_fast}


def _narrow(heat_map: Mapping[str, Any]) -> dict[str, Any]:
    """Heat map for a block of columns each number of nodes, without a scale in tokens per second."""
    return {**heat_map, "showscale": False, "xgap": 1, "textfont": {**heat_map["textfont"], "size": 9}}


def _heat_map(values: Sequence[Sequence[float | None]], texts: Sequence[Sequence[str]], unit: str) -> dict[str, Any]:
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
        "hovertemplate": "%{text}<extra></extra>",
        "colorbar": {"title": {"text": unit, "side": "right", "font": _QUIET}, "thickness": 12, "outlinewidth": 0},
    }


_QUIET = {"size": 12, "color": "@muted"}


def _sizes_axis(title: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Axis with equally spaced sizes."""
    places = list(range(len(sizes)))
    ticks = {"tickvals": places, "ticktext": [str(size) for size in sizes], "range": [-0.5, len(sizes) - 0.5]}
    return axis(title, showgrid=False, zeroline=False, **ticks)


def _cell(view: SearchView, nodes: int, stages: int, tensor: int) -> tuple[float | None, str]:
    def has_sizes(row: TrialOrLayout) -> bool:
        layout = row.layout
        return (layout.num_nodes, layout.pipeline_parallel, layout.tensor_parallel) == (nodes, stages, tensor)

    speeds = [value_of(layout, view.objective) for layout in view.ranking.ordered if has_sizes(layout)]
    if speeds:
        return max(speeds), format_short(max(speeds))
    here = [t for t in view.search.trials if has_sizes(t)]
    return None, TIMES if here and all(map(has_failed, here)) else ""


def _importance(view: SearchView) -> Figure:
    """Importance of each axis for the speed."""
    title, nodes = "Axis importance", view.best_num_nodes
    found = axis_importance(*_speeds(view))
    where = f" on {plural(nodes, 'node')}" if nodes is not None and len(view.node_counts) > 1 else ""
    if found is None:
        needed = f"{where[1:]} " if where else ""
        texts = f"Needs at least {FEWEST_LAYOUTS} measured layouts {needed}that differ in speed."
        return Figure("importance", title, texts)
    explained = f"explains {percent(max(0.0, found.explained))} of the variance in held-out layouts"
    basis = f"{found.num_layouts} measured layouts{where}; the model {explained}"
    if not found.is_reliable:
        texts = f"Not shown: it would be based on {basis}, less than {percent(LEAST_EXPLAINED)}."
        return Figure("importance", title, texts)
    first = next(iter(found.effects))
    return Figure(
        "importance",
        title,
        f"{axis_of(first).label.capitalize()} matters most: its value makes a layout faster or slower by a factor of"
        f" {1 + found.effects[first]:.2f} on average. Based on {basis}.",
        plot(
            [_effect_bars(found.effects)],
            xaxis=axis("average factor of throughput", range=[1, 1 + 1.18 * max(found.effects.values())]),
            yaxis={"automargin": True},
        ),
        height=max(240, 110 + 34 * len(found.effects)),
        note="Mean absolute Shapley value of each axis over the measured layouts, of a kernel regression of log speed.",
    )


def _speeds(view: SearchView) -> tuple[list[dict[str, Any]], list[float]]:
    """Measured layouts on as many nodes as the best by their freely chosen fields, and their speeds."""
    ranked = [layout for layout in view.ranking.ordered if layout.layout.num_nodes == view.best_num_nodes]
    layouts = [layout.layout.canonical() for layout in ranked]
    settings = setting_axes([layout.settings for layout in layouts])
    columns = {name: as_numbers(values) for name, values in settings.items()}
    chosen = [
        {name: value for name, value in layout.without_settings.to_json().items() if name not in (*DERIVED, SETTINGS)}
        | {name: column[row] for name, column in columns.items()}
        for row, layout in enumerate(layouts)
    ]
    return chosen, [value_of(layout, view.objective) for layout in ranked]


def _effect_bars(effects: Mapping[str, float]) -> dict[str, Any]:
    """Bars of the effects, the largest on top."""
    names = list(effects)[::-1]
    return {
        "type": "bar",
        "orientation": "h",
        "y": [axis_of(name).label for name in names],
        "base": 1,
        "x": [effects[name] for name in names],
        "text": [f"{1 + effects[name]:.2f}{TIMES}" for name in names],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": "@accent"},
        "hovertemplate": "%{y}: a factor of %{text}<extra></extra>",
    }


def _time(view: SearchView) -> Figure:
    """Step time in seconds: from the baseline's to the best layout's, or the parts of one of them."""
    title, found = "Step time", time_breakdowns(view)
    if not found:
        texts = "Unknown: no layout was profiled (measure.profile), and the cost model does not know this accelerator."
        return Figure("time", title, texts if view.best else describe_empty(view))
    steps = _bridge(found)
    origin = "as profiled" if found[0].is_profiled else "as predicted by the cost model, not measured"
    return Figure(
        "time",
        f"{title}: from {found[0].label} to {found[1].label}" if len(found) > 1 else f"{title} by part",
        f"{_measured_times(found)} By part, {origin}: {_bridge_sentence(found, steps)}.",
        plot(
            [_bridge_bars(found, steps)],
            xaxis=axis("seconds a step", rangemode="tozero"),
            yaxis={"automargin": True, "autorange": "reversed"},
        ),
        height=150 + 30 * (len(steps) + len(found)),
        note=" ".join(words for name, words in _NOTES.items() if name in steps) or None,
    )


_NOTES = {
    "others": "Others: parts that differ by less than 0.5 % of the step.",
    "unexplained": "Unexplained: measured time that no part accounts for.",
}


def _bridge(found: Sequence[TimeBreakdown]) -> dict[str, float]:
    """Seconds by which the last layout's parts differ from the first one's, or from nothing where it is alone: the
    largest change first, small ones as others; then what no part explains of the measured step times."""
    first, last = (found[0].seconds if len(found) > 1 else {}), found[-1].seconds
    changes = {name: last.get(name, 0.0) - first.get(name, 0.0) for name in dict.fromkeys((*first, *last))}
    least = _MIN_SHARE * found[0].step_time_s
    large = {name: change for name, change in changes.items() if abs(change) >= least}
    steps = dict(sorted(large.items(), key=lambda item: -abs(item[1])))
    others = sum(change for name, change in changes.items() if name not in large)
    steps |= {"others": others} if len(large) < sum(map(bool, changes.values())) else {}
    unexplained = found[-1].step_time_s - (found[0].step_time_s if first else 0.0) - sum(changes.values())
    return steps | ({"unexplained": unexplained} if abs(unexplained) >= least else {})


def _bridge_bars(found: Sequence[TimeBreakdown], steps: Mapping[str, float]) -> dict[str, Any]:
    """Waterfall from the first layout's step time to the last one's."""
    starts = found[:-1]
    bars = [
        *(("absolute", start.label, start.step_time_s) for start in starts),
        *(("relative", _part_name(name), change) for name, change in steps.items()),
        ("total", found[-1].label, found[-1].step_time_s),
    ]
    texts = [step_time(seconds) if kind != "relative" or not starts else _signed(seconds) for kind, _, seconds in bars]
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


def _part_name(name: str) -> str:
    return name.removesuffix("_parallel")


def _measured_times(found: Sequence[TimeBreakdown]) -> str:
    """Sentence with the measured step times."""
    known = [f"{step_time(p.step_time_s)} ({p.label})" for p in found]
    return f"Measured: {' to '.join(known)}."


def _bridge_sentence(found: Sequence[TimeBreakdown], steps: Mapping[str, float]) -> str:
    shown = step_time if len(found) == 1 else _signed
    return ", ".join(f"{_part_name(name)} {shown(change)}" for name, change in steps.items()) or "no difference"


def _signed(seconds: float) -> str:
    """Change of a duration with its sign."""
    sign = "+" if seconds >= 0 else "\N{MINUS SIGN}"
    return f"{sign}{step_time(abs(seconds))}"
