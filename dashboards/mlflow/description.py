"""Description of a search's run in MLflow as Markdown: verdict, best layouts, state. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from dashboards.report import sentences
from dashboards.report.data import ReportData, TrialView
from dashboards.terminal.headline import headline, sentence
from dashboards.text import printable
from dashboards.trial_text import (
    UNKNOWN,
    describe_energy,
    describe_expert_tokens,
    format_number,
    format_throughput_interval,
    layout_name,
)
from search_spaces.layouts.layout import Layout
from trials.files.text import plural

_MOST_LAYOUTS = 10
_NO_BREAK = "\N{NO-BREAK SPACE}"
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~!&])")

Link = Callable[[str], str | None]
"""Function from a trial's name to its link in MLflow."""


def search_description(data: ReportData, link: Link = lambda trial: None, trials: str | None = None) -> str:
    """Description of a search's run; `trials` is the link to a view of its trials."""
    parts = [
        f"**{_escape_markdown(headline(data.verdict))}**",
        _escape_markdown(sentence(data.verdict)),
        *_winner(data, link),
        _escape_markdown(" ".join([*sentences.describe_confidence(data), *sentences.describe_tradeoffs(data)])),
        _escape_markdown(sentences.describe_state(data)),
        "" if trials is None else f"[All trials, the fastest first]({trials})",
        _escape_markdown(sentences.describe_cost(data)),
        *_best_layouts(data, link),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _winner(data: ReportData, link: Link) -> Iterator[str]:
    best = data.best
    if best is None:
        return
    lines = [
        f"{sentences.best_title(data).lower()}: {_link_text(best.trial, link(best.trial))}, {_shape(best.layout, data)}"
    ]
    metrics, sequences = best.metrics, plural(best.layout.global_batch_size, "sequence")
    interval = format_throughput_interval(metrics)
    speed = format_number(metrics.tokens_per_sec) + (f", 95 % {interval}" if interval else "")
    lines.append(f"tokens per second: {speed}")
    lines.append(f"step: {sentences.duration(metrics.step_time_s)} for {sequences}")
    if metrics.peak_memory_gib is not None:
        lines.append(f"peak memory: {format_number(metrics.peak_memory_gib, 3)} GiB of the fullest rank")
    if (loads := describe_expert_tokens(metrics)) is not None:
        lines.append(loads)
    if (energy := describe_energy(metrics)) is not None:
        lines.append(energy)
    yield "\n".join(f"- {line}" for line in lines)


def _best_layouts(data: ReportData, link: Link) -> Iterator[str]:
    """Table of the first layouts over all their runs, in ranked order: a row a layout, with a link to its first run."""
    first = data.layouts[:_MOST_LAYOUTS]
    if not first:
        return
    heading = ("layout", "tokens/s", "95 %", f"{sentences.TIMES}{_NO_BREAK}baseline", "GiB", "runs")
    yield f"**The first {len(first)} of {len(data.layouts)} measured layouts**"
    yield _table(heading, [_row(layout, data, link) for layout in first])


def _row(trial: TrialView, data: ReportData, link: Link) -> tuple[str, ...]:
    times = f"{trial.speed / data.baseline_speed:.2f}" if trial.speed and data.baseline_speed else UNKNOWN
    return (
        _link_text(layout_name(trial.layout, data.varying), link(trial.trial)) + _remarks(trial),
        format_number(trial.tokens_per_sec),
        (trial.metrics and format_throughput_interval(trial.metrics)) or UNKNOWN,
        times,
        format_number(trial.peak_memory_gib, 3),
        str(_num_runs(trial, data)),
    )


def _remarks(trial: TrialView) -> str:
    return "".join(f", {flag.replace('_', ' ')}" for flag in trial.flags)


def _num_runs(layout: TrialView, data: ReportData) -> int:
    """Measured runs of the layout."""
    return sum(run.layout.key == layout.layout.key and run.metrics is not None for run in data.trials)


def _shape(layout: Layout, data: ReportData) -> str:
    words = [sentences.format_parallelism(layout), *sentences.format_other_fields(layout, data.varying)]
    return _escape_markdown(", ".join(words))


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown table. MLflow renders columns without padding, so cells end with a space."""
    lines = [[f"{cell}&ensp;" for cell in cells] for cells in (heading, *rows)]
    lines.insert(1, ["---"] * len(heading))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _link_text(text: str, address: str | None) -> str:
    return _escape_markdown(text) if address is None else f"[{_escape_markdown(text)}]({address})"


def _escape_markdown(text: str) -> str:
    """Text in one line, escaped for Markdown and HTML, since users and trials write parts of it."""
    return _SPECIAL.sub(r"\\\1", printable(text))
