"""Pages of the service: live report of a search, list of searches, and short messages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from dashboards.report.html import Page, html_page
from dashboards.search_rows import SearchListRow
from dashboards.text import printable, sentence_of
from trials.files.text import plural

_STYLES = ("page.css", "service.css")
_COLUMNS = (
    *(("search", False), ("state", False), ("layouts", False), ("tokens/s", True), ("times baseline", True)),
    *(("layout", False), ("node-hours", True), ("age", True), ("owner", False)),
)
"""Headings of the list of searches, and whether their cells are numbers."""


def live_page(search_id: str, is_ended: bool = False, is_read_only: bool = False) -> Page:
    """Page that shows /searches/ID/report and follows it, with buttons that cancel and resume a search unless it has
    ended, or nothing may be changed."""
    has_actions = not (is_ended or is_read_only)
    return html_page(
        "live.html.jinja",
        f"{search_id}: report",
        ("follow.js", "live.js", *(["actions.js"] if has_actions else [])),
        asks_service=True,
        draws=True,
        styles=_STYLES,
        search_id=search_id,
        has_actions=has_actions,
    )


def signed_in_page(action_key: str) -> Page:
    """Page after a sign-in, which goes on to the searches. Its script keeps the action key for the pages of this
    origin; "" where nothing may be changed."""
    return html_page("signed_in.html.jinja", "Signed in", ("sign_in.js",), action_key=action_key)


def searches_page(
    rows: Sequence[SearchListRow], now: float, num_older: int = 0, shows_failed_only: bool = False
) -> Page:
    """List of a ledger's searches with links to their reports; `now` is UTC seconds since the epoch."""
    failed = [row for row in rows if row.has_failed]
    older = f"{plural(num_older, 'older search')}: parlay status --all --json lists them" if num_older else None
    return html_page(
        "searches.html.jinja",
        "Parlay: searches",
        ("follow.js",),
        asks_service=True,
        styles=_STYLES,
        heading=plural(len(rows) + num_older, "search"),
        columns=_COLUMNS,
        rows=failed if shows_failed_only else rows,
        num_failed=len(failed),
        shows_failed_only=shows_failed_only,
        now=now,
        older=older,
        nothing="No search yet. Start one with: parlay submit search.yaml",
        footer=f"Parlay {version('parlay')}",
    )


def message_page(title: str, *sentences: str | None, goes_to: str | None = None, leads_home: bool = False) -> Page:
    """Page of a few sentences that redirects to `goes_to`, or links to the list of searches."""
    shown = [sentence_of(printable(text)) for text in sentences if text]
    return html_page(
        "message.html.jinja",
        printable(title),
        styles=_STYLES,
        sentences=shown,
        goes_to=goes_to,
        leads_home=leads_home,
    )
