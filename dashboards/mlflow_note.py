"""The description of a search's run in MLflow: the winner, how it ended, the best trials; Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from dashboards.report import words
from dashboards.report.data import ReportData, TrialView
from dashboards.text import printable
from search_spaces.layout import Layout
from trials.ledger.events import SearchRecord
from trials.text import counted

_MOST_TRIALS = 10
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~!&])")

Link = Callable[[str], str | None]
"""Where MLflow shows a trial, by its name."""


def search_note(search: SearchRecord, data: ReportData, link: Link = lambda trial: None) -> str:
    """What `data` says of the search, for those who look at its run first."""
    parts = [
        f"**{_plain(words.answer_words(data))}**",
        _plain(words.answer_below(data)),
        *_winner(data, link),
        _plain(" ".join(words.sure_words(data))),
        _plain(words.state_words(data)),
        _plain(words.cost_words(data)),
        *_best_trials(search, data, link),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _winner(data: ReportData, link: Link) -> Iterator[str]:
    answer = data.answer
    if answer is None:
        return
    rows = [("layout", f"{_linked(answer.trial, link)}: {_shape(answer.layout, data)}")]
    rows.append(("tokens per second", words.amount(answer.tokens_per_sec)))
    if answer.tokens_per_sec_low is not None and answer.tokens_per_sec_high is not None:
        interval = f"{words.amount(answer.tokens_per_sec_low)} to {words.amount(answer.tokens_per_sec_high)}"
        rows.append(("95 % interval", interval))
    if answer.step_time_s is not None:
        sequences = counted(answer.layout.global_batch_size, "sequence")
        rows.append(("step", f"{words.duration(answer.step_time_s)} for {sequences}"))
    if answer.peak_memory_gib is not None:
        rows.append(("peak memory", f"{words.amount(answer.peak_memory_gib, 3)} GiB of the fullest rank"))
    yield _table(("", "the best layout"), rows)


def _best_trials(search: SearchRecord, data: ReportData, link: Link) -> Iterator[str]:
    """A row a trial, fastest first: repeats of one layout are trials too."""
    best = sorted(data.measured, key=lambda trial: -(trial.speed or 0.0))[:_MOST_TRIALS]
    if not best:
        return
    heading = ("trial", "tokens/s", "95 % interval", f"{words.TIMES} today", "GiB", "layout")
    yield f"#### The best {len(best)} of {len(data.measured)} measured trials"
    yield _table(heading, [_row(search, trial, data, link) for trial in best])


def _row(search: SearchRecord, trial: TrialView, data: ReportData, link: Link) -> tuple[str, ...]:
    measured = search.trial(trial.trial).measured or {}
    low, high = measured.get("tokens_per_sec_low"), measured.get("tokens_per_sec_high")
    today = f"{trial.speed / data.baseline_speed:.2f}" if trial.speed and data.baseline_speed else words.UNKNOWN
    return (
        _linked(trial.trial, link),
        words.amount(trial.tokens_per_sec),
        words.UNKNOWN if low is None or high is None else f"{words.amount(low)} to {words.amount(high)}",
        today,
        words.amount(trial.peak_memory_gib, 3),
        _shape(trial.layout, data, *(flag.replace("_", " ") for flag in trial.flags)),
    )


def _shape(layout: Layout, data: ReportData, *remarks: str) -> str:
    return _plain(", ".join([words.shape_words(layout), *words.other_words(layout, data.varying), *remarks]))


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _linked(trial: str, link: Link) -> str:
    address = link(trial)
    return trial if address is None else f"[{trial}]({address})"


def _plain(text: str) -> str:
    """The text in one line, nothing of it taken for Markdown or HTML: searches carry words of users and trials."""
    return _SPECIAL.sub(r"\\\1", printable(text))
