"""The pages of whoever serves reports: one that shows a search's report live, the list of searches, and a few words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from dashboards.report.html import Page, html_page, own, plotly
from dashboards.report.table import Column
from dashboards.terminal.headline import describe_end_reason
from dashboards.text import printable
from trials.analysis.verdict import DisplayState, display_state
from trials.files.text import counted
from trials.ledger.events import EndReason, SearchState


@dataclass(frozen=True)
class SearchListRow:
    """One search of the list. `stopped`: why it has not ended and yet nobody drives it any more."""

    search_id: str
    state: SearchState
    end_reason: EndReason | None
    num_trials: int
    best_trial: str | None
    stopped: str | None = None

    @property
    def display_state(self) -> DisplayState:
        """The state as people see it."""
        return display_state(self.state, self.end_reason)

    @property
    def why(self) -> str:
        """Why it ended, or does not go on."""
        if self.stopped is not None:
            return f"nobody drives it any more: {printable(self.stopped)}"
        return "" if self.end_reason is None else describe_end_reason(self.end_reason)


_COLUMNS = (
    Column("search", is_number=False),
    Column("state", is_number=False),
    Column("why", is_number=False),
    Column("trials", is_number=True),
    Column("best", is_number=False),
)


def live_page(search_id: str) -> Page:
    """A page that asks /searches/ID/events when to read /searches/ID/report, and shows it."""
    scripts = (plotly(), own("page.js"), own("live.js"))
    return html_page("live.html.jinja", f"{search_id}: report", scripts, asks_service=True, search_id=search_id)


def searches_page(lines: Sequence[SearchListRow]) -> Page:
    """The searches of a ledger, each with the way to its report."""
    return html_page(
        "searches.html.jinja",
        "Parlay: searches",
        (own("searches.js"),),
        asks_service=True,
        heading=counted(len(lines), "search"),
        columns=_COLUMNS,
        rows=lines,
        nothing="No search yet. parlay submit search.yaml begins one.",
        footer=f"Parlay {version('parlay')}",
    )


def message_page(title: str, *sentences: str | None, goes_to: str | None = None, leads_home: bool = False) -> Page:
    """A page of a few sentences: one that goes on to another page at once, or one with the way to the searches."""
    said = [_sentence(printable(words)) for words in sentences if words]
    return html_page("message.html.jinja", printable(title), sentences=said, goes_to=goes_to, leads_home=leads_home)


def _sentence(words: str) -> str:
    """As it stands on a page: the words of errors begin small and end without a stop."""
    return words[0].upper() + words[1:] + ("" if words[-1] in ".!?" else ".")
