"""Description of a search's run in MLflow as Markdown: verdict, best layouts, state. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dashboards.columns import SPEED, TIMES, column, name_of
from dashboards.mlflow.runs import roles_of
from dashboards.report import sentences
from dashboards.report.explanation import NextCommand, explanation_of
from dashboards.report.use_it import UseIt, use_it
from dashboards.search_view import SearchView
from dashboards.terminal.headline import headline, sentence
from dashboards.text import escape_markdown, printable
from dashboards.trial_text import (
    describe_energy,
    describe_expert_tokens,
    duration,
    format_number,
    format_throughput_interval,
)
from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import RankedLayout
from trials.files.folders import SearchFolder
from trials.files.text import plural
from trials.ledger.events import SearchRecord

_MOST_LAYOUTS = 10
_COLUMNS = (SPEED, "± %", f"{TIMES} baseline", "GiB", "runs")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def search_description(search: SearchRecord, folder: SearchFolder, links: Mapping[str, str], trials: str) -> str:
    """Description of an ended search's run. `links` are those to runs of trials in MLflow, `trials` the one to all."""
    view = SearchView.of(search, search.ended_at or search.created_at)
    commands = list(_launch_commands(use_it(folder)))
    parts = [
        _with_command(_headline(view, links), *commands[:1]),
        *_explanation(view),
        *(_with_command("", command) for command in commands[1:]),
        escape_markdown(" ".join(filter(None, [sentences.describe_comparison(view), sentence(view.verdict)]))),
        *_numbers(view),
        escape_markdown(" ".join([*sentences.describe_confidence(view), *sentences.describe_tradeoffs(view)])),
        escape_markdown(sentences.describe_state(view)),
        f"[All trials, the fastest first]({trials})",
        escape_markdown(sentences.describe_cost(view)),
        *_best_layouts(view, links, roles_of(search)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(view: SearchView, links: Mapping[str, str]) -> str:
    """Verdict and best layout: of a long description MLflow shows the first lines."""
    result, best = f"**{escape_markdown(headline(view.verdict))}**", view.best
    if best is None:
        return result
    named = _link_text(best.trial, links.get(best.trial))
    return f"{result}. {sentences.best_title(view)}: {named}, {_shape(best.layout, view)}."


def _explanation(view: SearchView) -> Iterator[str]:
    """Why there is no result or no comparison, and the next command."""
    if (found := explanation_of(view)) is not None:
        yield _with_command(escape_markdown(" ".join(found.sentences)), *found.commands[:1])


def _launch_commands(use: UseIt | None) -> Iterator[NextCommand]:
    """Commands that train with the best layout."""
    if use is None:
        return
    if use.start is not None:
        yield NextCommand("Launch the measured program", use.start)
    for launch in use.launches[:1]:
        yield NextCommand(f"Train with {launch.trainer}", launch.command)


def _with_command(text: str, command: NextCommand | None = None) -> str:
    """The text and the command as a code block, in which Markdown has no effect."""
    if command is None:
        return text
    return f"{text} {escape_markdown(command.purpose)}:\n\n    {printable(command.command)}".lstrip(" ")


def _numbers(view: SearchView) -> Iterator[str]:
    """What was measured of the best layout."""
    best = view.best
    if best is None:
        return
    metrics, sequences = best.measured, plural(best.layout.global_batch_size, "sequence")
    interval = format_throughput_interval(metrics)
    speed = format_number(metrics.tokens_per_sec) + (f", 95 % {interval}" if interval else "")
    lines = [f"tokens per second: {speed}", f"step: {duration(metrics.step_time_s)} for {sequences}"]
    if metrics.peak_memory_gib is not None:
        lines.append(f"peak memory: {format_number(metrics.peak_memory_gib, 3)} GiB of the fullest rank")
    if (loads := describe_expert_tokens(metrics)) is not None:
        lines.append(loads)
    if (energy := describe_energy(metrics)) is not None:
        lines.append(energy)
    yield "\n".join(f"- {line}" for line in lines)


def _best_layouts(view: SearchView, links: Mapping[str, str], roles: Mapping[str, str]) -> Iterator[str]:
    """Table of the first layouts over all their runs, in ranked order: a row a layout, with a link to its first run."""
    first = view.ranking.ordered[:_MOST_LAYOUTS]
    if not first:
        return
    columns = [column(name) for name in _COLUMNS]
    heading = ["layout", "role", *(each.name for each in columns)]
    rows = (
        [
            _link_text(name_of(layout, view), links.get(layout.trial)) + _remarks(layout),
            roles.get(layout.trial, ""),
            *(each.text(layout, view) for each in columns),
        ]
        for layout in first
    )
    yield f"**The first {len(first)} of {len(view.ranking.ordered)} measured layouts**"
    yield _table([name.replace(" ", _NO_BREAK) for name in heading], list(rows))


def _remarks(layout: RankedLayout) -> str:
    return "".join(f", {flag.replace('_', ' ')}" for flag in layout.flags)


def _shape(layout: Layout, view: SearchView) -> str:
    words = [sentences.format_parallelism(layout), *sentences.format_other_fields(layout, view.varying)]
    return escape_markdown(", ".join(words))


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown table. MLflow renders columns without padding, so cells end with a space."""
    lines = [[f"{cell}&ensp;" for cell in cells] for cells in (heading, *rows)]
    lines.insert(1, ["---"] * len(heading))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _link_text(text: str, address: str | None) -> str:
    return escape_markdown(text) if address is None else f"[{escape_markdown(text)}]({address})"
