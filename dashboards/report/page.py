"""Report as one self-contained HTML file: no network, no other file, no eval."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from dashboards.rank_placement import rank_placement
from dashboards.report import sentences
from dashboards.report.data import ReportData
from dashboards.report.figures.figure import Figure
from dashboards.report.figures.registry import SECTIONS, report_figures, wide_figures
from dashboards.report.html import Page, embedded_json, fragment, html_page
from dashboards.report.table import RUN_COLUMNS, filter_keys, sorted_column, table_columns, table_rows
from dashboards.terminal.headline import headline, sentence
from dashboards.text import printable
from dashboards.trial_text import format_short, format_short_interval, format_tokens
from trials.analysis.verdict import VerdictKind
from trials.files.text import plural


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Tile:
    """One number of the best layout, with a remark."""

    name: str
    value: str
    more: str | None = None


@dataclass(frozen=True)
class Meter:
    """Used part of a limit."""

    name: str
    value: float
    most: float
    text: str


def report_page(data: ReportData) -> str:
    """Whole HTML file."""
    return _page(data, True, "the file is rewritten").text


def report_without_scripts(data: ReportData) -> Page:
    """Report to be embedded by the live page: text, table, and figures as data."""
    return _page(data, False, "this page is updated")


def _page(data: ReportData, draws: bool, renewed: str) -> Page:
    figures = report_figures(data)
    best_title = sentences.best_title(data)
    sections = [
        Section(key, title or best_title, tuple(figures[k] for k in keys if k in figures))
        for key, title, keys in SECTIONS
    ]
    return html_page(
        "report.html.jinja",
        f"{data.name}: {headline(data.verdict)}",
        draws=draws,
        data=data,
        renewed=renewed,
        figures=embedded_json({key: figure.plot for key, figure in figures.items() if figure.plot}),
        sections=[section for section in sections if _has_content(section, data)],
        wide=wide_figures(data),
        columns=table_columns(data),
        rows=table_rows(data),
        run_columns=RUN_COLUMNS,
        sorted_by=sorted_column(data),
        keys=json.dumps(filter_keys()),
        **_first_screen(data),
    )


def _has_content(section: Section, data: ReportData) -> bool:
    """True if something is drawn; the placement of the best layout's ranks always is."""
    return any(figure.plot for figure in section.figures) or (section.key == "best" and data.best is not None)


def notebook_card(data: ReportData) -> str:
    """First screen in a few lines of HTML for a notebook's cell; without scripts, in the notebook's own colours."""
    screen = _first_screen(data)
    shown = {
        name: screen[name]
        for name in ("headline", "comparison", "below", "best_title", "shape", "others", "tiles", "sure", "state")
    }
    return fragment("notebook_card.html.jinja", data=data, **shown)


def _first_screen(data: ReportData) -> dict[str, Any]:
    """Variables of the templates' first screen."""
    best, verdict = data.best, data.verdict
    full = headline(verdict)
    is_clear = verdict.kind is VerdictKind.FASTER and verdict.is_complete and not verdict.is_unproven
    clear = verdict.speedup if is_clear else None
    ratio = None if clear is None else f"{clear.ratio:.2f}"
    return {
        "headline": full,
        "ratio": ratio,
        "ratio_text": full.removeprefix(f"{ratio}x ").partition(" (")[0] if ratio else None,
        "comparison": sentences.describe_comparison(data),
        "times": sentences.TIMES,
        "below": sentence(verdict),
        "best_title": sentences.best_title(data),
        "shape": sentences.format_parallelism(best.layout) if best else None,
        "others": ", ".join(sentences.format_other_fields(best.layout, data.varying)) if best else None,
        "alternatives": list(sentences.alternatives(data)),
        "tiles": _tiles(data),
        "sure": sentences.describe_confidence(data),
        "state": sentences.describe_state(data),
        "meters": _meters(data),
        "cost": sentences.describe_cost(data),
        "spent_on": sentences.describe_spending(data),
        "as_of": datetime.fromtimestamp(data.at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "placement": rank_placement(best.layout, data.gpus_per_node, data.nodes_per_domain) if best else None,
        "caption": _caption(data),
        "footer": f"Parlay {version('parlay')}. Rules of measurement: docs/measuring.md."
        f" Written for {printable(data.name)}, search {data.search_id}.",
    }


def _caption(data: ReportData) -> str:
    """Caption of the table, with the reasons why layouts may be above the best."""
    text = f"{plural(len(data.tried), 'layout')} in {plural(len(data.trials), 'trial')}, fastest first"
    text += "; click a heading to sort"
    if data.best is None or data.tried[0].layout.key == data.best.layout.key:
        return text
    above = "tied with it, not measured again, suspect, unproven or short of free memory"
    return f"{text}. A layout above {data.best.trial} is {above}."


def _tiles(data: ReportData) -> list[Tile]:
    best = data.best
    if best is None:
        return []
    metrics = best.metrics
    tiles = [
        Tile("Tokens a second", format_short(metrics.tokens_per_sec), format_short_interval(metrics)),
        Tile("Step", sentences.step_time(metrics.step_time_s), f"{best.layout.global_batch_size} sequences"),
    ]
    if (rate := best.rate) is not None:
        stalls = rate.stalled_share
        more = "without checkpoints" if stalls is None else f"checkpoints take {sentences.percent(stalls)}"
        tiles.append(Tile("Tokens a day", format_tokens(rate.tokens_per_day), more))
    if metrics.peak_memory_gib is not None:
        tiles.append(Tile("Peak memory", f"{format_short(metrics.peak_memory_gib)} GiB", "of the fullest rank"))
    if metrics.mfu is not None:
        tiles.append(Tile("MFU", sentences.percent(metrics.mfu), "of the peak FLOP/s"))
    if metrics.expert_tokens_most is not None and metrics.expert_tokens_mean is not None:
        mean = f"at most, mean {format_short(metrics.expert_tokens_mean)} a step"
        tiles.append(Tile("Tokens an expert", format_short(metrics.expert_tokens_most), mean))
    if metrics.joules_per_token is not None:
        tiles.append(Tile("Energy", f"{format_short(metrics.joules_per_token)} J", "a token, of the GPUs"))
    ranks = plural(best.layout.num_gpus, "rank")
    on = f"{printable(data.accelerator or 'devices')} on {plural(best.layout.num_nodes, 'node')}"
    if best.leaf_counts:
        what = "leaf switch or block" if best.leaf_counts == (1,) else "leaf switches or blocks"
        on += f", {' or '.join(map(str, best.leaf_counts))} {what}"
    return [*tiles, Tile("Machine", ranks, on)]


def _meters(data: ReportData) -> list[Meter]:
    progress, verdict = data.progress, data.verdict
    meters = []
    if limit := verdict.max_layouts:
        meters.append(Meter("Layouts", min(verdict.num_layouts, limit), limit, f"{verdict.num_layouts} of {limit}"))
    if progress.budget_node_hours:
        used, most = progress.node_hours_used, progress.budget_node_hours
        reserved = f", {progress.node_hours_reserved:.3g} reserved" if progress.node_hours_reserved else ""
        meters.append(Meter("Node-hours", min(used, most), most, f"{used:.3g} of {most:g}{reserved}"))
    return meters
