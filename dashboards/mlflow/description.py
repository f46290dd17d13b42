"""Description of a search's run in MLflow as Markdown: verdict, best layouts, state. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dashboards.mlflow.runs import roles_of
from dashboards.report import sentences
from dashboards.report.data import ReportData, TrialView, report_data
from dashboards.report.use_it import use_it
from dashboards.terminal.headline import headline, sentence
from dashboards.text import escape_markdown, printable
from dashboards.trial_text import (
    UNKNOWN,
    describe_energy,
    describe_expert_tokens,
    format_number,
    format_throughput_interval,
    layout_name,
)
from search_spaces.layouts.layout import Layout
from trials.files.folders import SearchFolder
from trials.files.text import plural
from trials.ledger.events import SearchRecord

_MOST_LAYOUTS = 10
_NO_BREAK = "\N{NO-BREAK SPACE}"


def search_description(search: SearchRecord, folder: SearchFolder, links: Mapping[str, str], trials: str) -> str:
    """Description of an ended search's run. `links` are those to runs of trials in MLflow, `trials` the one to all."""
    data = report_data(search, search.ended_at or search.created_at, use_it(folder))
    parts = [
        f"**{escape_markdown(headline(data.verdict))}**",
        escape_markdown(" ".join(filter(None, [sentences.describe_comparison(data), sentence(data.verdict)]))),
        *_winner(data, links),
        *_launch(data),
        escape_markdown(" ".join([*sentences.describe_confidence(data), *sentences.describe_tradeoffs(data)])),
        escape_markdown(sentences.describe_state(data)),
        f"[All trials, the fastest first]({trials})",
        escape_markdown(sentences.describe_cost(data)),
        *_best_layouts(data, links, roles_of(search)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _launch(data: ReportData) -> Iterator[str]:
    """Commands that train with the best layout, as code blocks, in which Markdown has no effect."""
    if data.use is None:
        return
    commands = [] if data.use.start is None else [("Launch the measured program", data.use.start)]
    commands += [(f"Train with {launch.trainer}", launch.command) for launch in data.use.launches[:1]]
    for purpose, command in commands:
        yield f"{escape_markdown(purpose)}:"
        yield f"    {printable(command)}"


def _winner(data: ReportData, links: Mapping[str, str]) -> Iterator[str]:
    best = data.best
    if best is None:
        return
    lines = [
        f"{sentences.best_title(data).lower()}: {_link_text(best.trial, links.get(best.trial))},"
        f" {_shape(best.layout, data)}"
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


def _best_layouts(data: ReportData, links: Mapping[str, str], roles: Mapping[str, str]) -> Iterator[str]:
    """Table of the first layouts over all their runs, in ranked order: a row a layout, with a link to its first run."""
    first = data.layouts[:_MOST_LAYOUTS]
    if not first:
        return
    heading = ("layout", "role", "tokens/s", "95 %", f"{sentences.TIMES}{_NO_BREAK}baseline", "GiB", "runs")
    yield f"**The first {len(first)} of {len(data.layouts)} measured layouts**"
    yield _table(heading, [_row(layout, data, links, roles) for layout in first])


def _row(trial: TrialView, data: ReportData, links: Mapping[str, str], roles: Mapping[str, str]) -> tuple[str, ...]:
    times = f"{trial.speed / data.baseline_speed:.2f}" if trial.speed and data.baseline_speed else UNKNOWN
    return (
        _link_text(layout_name(trial.layout, data.varying), links.get(trial.trial)) + _remarks(trial),
        roles.get(trial.trial, ""),
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
    return escape_markdown(", ".join(words))


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown table. MLflow renders columns without padding, so cells end with a space."""
    lines = [[f"{cell}&ensp;" for cell in cells] for cells in (heading, *rows)]
    lines.insert(1, ["---"] * len(heading))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _link_text(text: str, address: str | None) -> str:
    return escape_markdown(text) if address is None else f"[{escape_markdown(text)}]({address})"
