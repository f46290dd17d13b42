"""Pages of the service: live report of a search, list of searches, and short messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from dashboards.report.html import Page, html_page, package_file, plotly
from dashboards.report.table import Column
from dashboards.terminal.headline import describe_end_reason
from dashboards.text import printable
from trials.analysis.verdict import DisplayState, display_state
from trials.files.text import plural
from trials.ledger.events import EndReason, SearchState


@dataclass(frozen=True)
class SearchListRow:
    """Search in the list. `stopped` is the reason why an unended search has no driver."""

    search_id: str
    state: SearchState
    end_reason: EndReason | None
    num_trials: int
    best_trial: str | None
    stopped: str | None = None

    @property
    def display_state(self) -> DisplayState:
        """State as it is shown."""
        return display_state(self.state, self.end_reason)

    @property
    def reason(self) -> str:
        """Reason of its end, or why it has no driver; "" while it runs."""
        if self.stopped is not None:
            return f"no driver: {printable(self.stopped)}"
        return "" if self.end_reason is None else describe_end_reason(self.end_reason)


_COLUMNS = (
    Column("search", is_number=False),
    Column("state", is_number=False),
    Column("reason", is_number=False),
    Column("trials", is_number=True),
    Column("best", is_number=False),
)


def live_page(search_id: str) -> Page:
    """Page that shows /searches/ID/report, reloaded on events of /searches/ID/events."""
    scripts = (plotly(), package_file("page.js"), package_file("live.js"))
    return html_page("live.html.jinja", f"{search_id}: report", scripts, asks_service=True, search_id=search_id)


def searches_page(lines: Sequence[SearchListRow]) -> Page:
    """List of a ledger's searches with links to their reports."""
    return html_page(
        "searches.html.jinja",
        "Parlay: searches",
        (package_file("searches.js"),),
        asks_service=True,
        heading=plural(len(lines), "search"),
        columns=_COLUMNS,
        rows=lines,
        nothing="No search yet. Start one with: parlay submit search.yaml",
        footer=f"Parlay {version('parlay')}",
    )


def message_page(title: str, *sentences: str | None, goes_to: str | None = None, leads_home: bool = False) -> Page:
    """Page of a few sentences that redirects to `goes_to`, or links to the list of searches."""
    shown = [_as_sentence(printable(text)) for text in sentences if text]
    return html_page("message.html.jinja", printable(title), sentences=shown, goes_to=goes_to, leads_home=leads_home)


def _as_sentence(text: str) -> str:
    """Error message as a sentence: errors begin in lower case and end without a full stop."""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")
