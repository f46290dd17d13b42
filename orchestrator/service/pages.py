"""Read-only pages of the service for a browser: the list of searches, and a live report of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from dashboards.access.browser_sessions import ENTRY_PATH, Sessions
from dashboards.report.html import Page
from dashboards.report.live_page import SearchListRow, live_page, message_page, searches_page
from orchestrator.service.handlers import RequestHandlers
from orchestrator.service.live_reports import LiveReport, LiveReports, report_events
from search_spaces.errors import ExternalError, InputError

_SEARCH_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


def is_page(path: str) -> bool:
    """True if the path is a browser's page, which a cookie opens. Never true under /v1."""
    return path in ("/", ENTRY_PATH) or path.startswith("/searches/")


def page_routes(handlers: RequestHandlers, sessions: Sessions, is_stopping: Callable[[], bool]) -> list[Route]:
    """Routes of the pages, which are not part of the OpenAPI document."""
    pages = _Pages(handlers, sessions, is_stopping)
    return [
        Route("/", pages.searches),
        Route(ENTRY_PATH, pages.enter),
        Route("/searches/{search}", pages.search),
        Route("/searches/{search}/report", pages.report),
        Route("/searches/{search}/events", pages.events),
    ]


def refusal_page(status: int, title: str, *sentences: str | None, leads_home: bool = False) -> Response:
    """Error page: what is wrong, and what to do."""
    return _html(message_page(title, *sentences, leads_home=leads_home), status)


def _with_error_page(answer: Callable[[_Pages, Request], Response]) -> Callable[[_Pages, Request], Response]:
    """Decorator: errors become an error page."""

    @wraps(answer)
    def answered(pages: _Pages, request: Request) -> Response:
        try:
            return answer(pages, request)
        except InputError as error:
            problem = error.problems[0]
            return refusal_page(404, "Not found", problem.message, problem.fix, leads_home=True)
        except ExternalError as error:
            return refusal_page(503, "Temporarily unavailable", str(error), error.fix)
        except OSError as error:
            return refusal_page(503, "Temporarily unavailable", str(error))

    return answered


class _Pages:
    def __init__(self, handlers: RequestHandlers, sessions: Sessions, is_stopping: Callable[[], bool]):
        self._handlers = handlers
        self._sessions = sessions
        self._is_stopping = is_stopping
        self._reports = LiveReports()

    def enter(self, request: Request) -> Response:
        """Exchange the key of an address for a cookie. Answers with a page instead of a redirect: after a redirect a
        browser that came from another site would not send the cookie."""
        cookie = self._sessions.enter(request.query_params.get("key", ""))
        if cookie is None:
            again = "An address is valid once, for ten minutes. parlay serve --page prints a new one."
            return refusal_page(401, "Sign-in address expired", again)
        return _html(message_page("Signed in", goes_to="/"), 200, {"set-cookie": cookie})

    @_with_error_page
    def searches(self, request: Request) -> Response:
        stopped = self._handlers.stopped_searches()
        return _html(searches_page([_search_row(row, stopped) for row in self._handlers.searches()["searches"]]))

    @_with_error_page
    def search(self, request: Request) -> Response:
        return _html(live_page(self._report(request)[0]))

    @_with_error_page
    def report(self, request: Request) -> Response:
        return _html(self._report(request)[1].newest().page)

    @_with_error_page
    def events(self, request: Request) -> Response:
        search, report = self._report(request)
        report.newest()  # an error becomes a response instead of a broken stream
        events = report_events(report, lambda: self._handlers.stopped_searches().get(search), self._is_stopping)
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    def _report(self, request: Request) -> tuple[str, LiveReport]:
        """Full id of the requested search, and its report."""
        given = request.path_params["search"]
        if not _SEARCH_ID.fullmatch(given):
            fix = "the first page lists the searches"
            raise InputError.of("unknown_id", "not a search id", key="search", fix=fix)
        journal = self._handlers.journal_path(given)
        return journal.parent.name, self._reports.of(journal)


def _search_row(row: dict[str, Any], stopped: Mapping[str, str]) -> SearchListRow:
    names = ("search_id", "state", "end_reason", "num_trials", "best_trial")
    return SearchListRow(**{name: row[name] for name in names}, stopped=stopped.get(row["search_id"]))


def _html(page: Page, status: int = 200, more: dict[str, str] | None = None) -> Response:
    policy = {"content-security-policy": f"{page.policy}; frame-ancestors 'none'"}
    return HTMLResponse(page.text, status, _HEADERS | policy | (more or {}))
