"""Report as one self-contained HTML file: no network, no other file, no eval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from dashboards.rank_placement import RankPlacement, nodes_per_domain, rank_placement
from dashboards.report import sentences
from dashboards.report.explanation import describe_failures, explanation_of
from dashboards.report.figures.figure import Figure
from dashboards.report.figures.registry import SECTIONS, report_figures, wide_figures
from dashboards.report.html import Page, embedded_json, fragment, html_page
from dashboards.report.setup import setup_rows
from dashboards.report.table import table
from dashboards.report.use_it import UseIt
from dashboards.search_view import SearchView, recorded_section
from dashboards.terminal.headline import headline, sentence
from dashboards.terminal.progress import (
    describe_time,
    flight_parts,
    format_clock,
    limit_usages,
)
from dashboards.text import printable, with_full_stop
from dashboards.trial_text import format_short, format_short_interval, format_tokens
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.training_rate import TrainingRate, training_rate
from trials.analysis.verdict import VerdictKind
from trials.files.text import plural
from trials.ledger.events import SearchRecord
from trials.schema.checkpoint_section import checkpoints_of
from trials.trial import Attempt

_MAX_IN_FLIGHT = 4


@dataclass(frozen=True)
class PageSection:
    key: str
    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Tile:
    """One number of the best layout, with a remark."""

    name: str
    value: str
    more: str | None = None


def report_page(view: SearchView, use: UseIt | None = None) -> str:
    """Whole HTML file; `use` is that of the search's recipe, None without one."""
    return _page(view, use, True).text


def report_without_scripts(view: SearchView, use: UseIt | None = None) -> Page:
    """Report to be embedded by the live page: text, table with links to the logs, and figures as data."""
    return _page(view, use, False)


def _page(view: SearchView, use: UseIt | None, draws: bool) -> Page:
    figures = report_figures(view)
    best_title = sentences.best_title(view)
    sections = [
        PageSection(key, title or best_title, tuple(figures[k] for k in keys if k in figures))
        for key, title, keys in SECTIONS
    ]
    return html_page(
        "report.html.jinja",
        f"{view.name}: {headline(view.verdict)}",
        draws=draws,
        use=use,
        setup=setup_rows(view.search.spec, view.ranking.ordered),
        renewed="the file is rewritten" if draws else "this page is updated",
        logs=None if draws else f"/searches/{view.search.search_id}/logs",
        figures=embedded_json({key: figure.plot for key, figure in figures.items() if figure.plot}),
        sections=[section for section in sections if _has_content(section, view)],
        wide=wide_figures(view),
        **table(view),
        **_first_screen(view),
    )


def _has_content(section: PageSection, view: SearchView) -> bool:
    """True if something is drawn; the placement of the best layout's ranks always is."""
    return any(figure.plot for figure in section.figures) or (section.key == "best" and view.best is not None)


def notebook_card(view: SearchView) -> str:
    """First screen in a few lines of HTML for a notebook's cell; without scripts, in the notebook's own colours."""
    screen = _first_screen(view)
    shown = {
        name: screen[name]
        for name in ("headline", "comparison", "below", "best_title", "shape", "others", "tiles", "sure", "state_words")
    }
    return fragment("notebook_card.html.jinja", view=view, **shown)


def _first_screen(view: SearchView) -> dict[str, Any]:
    """Variables of the templates' first screen."""
    best, verdict, search = view.best, view.verdict, view.search
    full, explanation, failures = headline(verdict), explanation_of(view), describe_failures(search)
    explained = () if explanation is None else explanation.sentences
    is_clear = verdict.kind is VerdictKind.FASTER and verdict.is_complete and not verdict.is_unproven
    clear = verdict.speedup if is_clear else None
    ratio = None if clear is None else f"{clear.ratio:.2f}"
    return {
        "view": view,
        "explanation": explanation,
        "headline": full,
        "ratio": ratio,
        "ratio_text": full.removeprefix(f"{ratio}x ").partition(" (")[0] if ratio else None,
        "comparison": sentences.describe_comparison(view),
        "times": sentences.TIMES,
        "below": sentence(verdict),
        "best_title": sentences.best_title(view),
        "shape": sentences.format_parallelism(best.layout) if best else None,
        "others": ", ".join(sentences.format_other_fields(best.layout, view.varying)) if best else None,
        "alternatives": list(sentences.alternatives(view)),
        "tiles": _tiles(view),
        "sure": sentences.describe_confidence(view),
        "state_words": [*_state_words(view), *(words for words in failures if words not in explained)],
        "meters": limit_usages(search, view.at),
        "flights": list(_flights(view)),
        "clock": format_clock,
        "more_flights": len(search.in_flight) - _MAX_IN_FLIGHT,
        "cost": sentences.describe_cost(view),
        "spent_on": sentences.describe_spending(view),
        "as_of": datetime.fromtimestamp(view.at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "placement": _placement(search, best.layout) if best else None,
        "caption": _caption(view),
        "footer": f"Parlay {version('parlay')}. Rules of measurement: docs/measuring.md."
        f" Written for {printable(view.name)}, search {search.search_id}.",
    }


def _state_words(view: SearchView) -> Iterator[str]:
    yield sentences.describe_state(view)
    if not view.search.state.is_ended and (words := describe_time(view.search, view.at)) is not None:
        yield with_full_stop(words)


def _placement(search: SearchRecord, layout: Layout) -> RankPlacement:
    cluster = recorded_section(search.spec, "cluster")
    gpus_per_node = cluster.get("gpus_per_node") or -(-layout.num_gpus // layout.num_nodes)
    return rank_placement(layout, gpus_per_node, nodes_per_domain(cluster, layout))


def _caption(view: SearchView) -> str:
    """Caption of the table, with the reasons why layouts may be above the best."""
    text = f"{plural(len(view.rows), 'layout')} in {plural(len(view.search.trials), 'trial')}, fastest first"
    text += "; ± is the 95 % interval; click a heading to sort"
    if view.best is None or view.rows[0] is view.best:
        return text
    above = "tied with it, not measured again, suspect, unproven or short of free memory"
    return f"{text}. A layout above {view.best.trial} is {above}."


def _tiles(view: SearchView) -> list[Tile]:
    best = view.best
    if best is None:
        return []
    metrics = best.measured
    tiles = [
        Tile("Tokens a second", format_short(metrics.tokens_per_sec), format_short_interval(metrics)),
        Tile("Step", sentences.step_time(metrics.step_time_s), f"{best.layout.global_batch_size} sequences"),
    ]
    if (rate := _rate(best, view.search)) is not None:
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
    on = f"{printable(_accelerator(view.search) or 'devices')} on {plural(best.layout.num_nodes, 'node')}"
    if counts := _leaf_counts(best):
        what = "leaf switch or block" if counts == [1] else "leaf switches or blocks"
        on += f", {' or '.join(map(str, counts))} {what}"
    return [*tiles, Tile("Machine", ranks, on)]


def _rate(best: RankedLayout, search: SearchRecord) -> TrainingRate | None:
    if not (model := recorded_section(search.spec, "model")):
        return None
    shape = ModelShape.from_json(model)
    return training_rate(best.measured.tokens_per_sec, shape, best.layout, checkpoints_of(search.spec))


def _accelerator(search: SearchRecord) -> str | None:
    found = recorded_section(search.spec, "cluster").get("accelerator")
    return found.get("name") if isinstance(found, Mapping) else found


def _leaf_counts(best: RankedLayout) -> list[int]:
    """Numbers of leaf switches or blocks that its runs lay below; [] where no topology is known."""
    attempts = (run.last_attempt for run in best.runs)
    return sorted({len(set(attempt.leaves)) for attempt in attempts if attempt is not None and attempt.leaves})


@dataclass(frozen=True)
class _Flight:
    """Attempt in flight as a page says it: words, and durations in seconds, which go on in a live page."""

    attempt: Attempt
    parts: tuple[str | float, ...]


def _flights(view: SearchView) -> Iterator[_Flight]:
    """The oldest attempts in flight."""
    for attempt in view.search.in_flight[:_MAX_IN_FLIGHT]:
        parts = flight_parts(attempt, view.at, view.search.replayed_table is not None)
        yield _Flight(attempt, tuple(printable(part) if isinstance(part, str) else part for part in parts))
