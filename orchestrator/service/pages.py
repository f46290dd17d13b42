"""Pages of the service for a browser: searches, a live report of each, logs of trials."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, wraps
from pathlib import Path
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dashboards.access.browser_sessions import ENTRY_PATH, Sessions
from dashboards.report.html import Page
from dashboards.report.live_page import live_page, message_page, searches_page, signed_in_page
from dashboards.report.log_page import log_page, trials_page
from dashboards.search_rows import SearchListRow, search_row
from orchestrator.launchers.timeouts import result_with_timeout, submit_to_thread
from orchestrator.service.handlers import RequestHandlers
from orchestrator.service.live_reports import LiveReport, live_report
from search_spaces.errors import ExternalError, InputError
from trials.ledger.reader import LedgerReader

_SEARCH_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
_RANK = re.compile(r"[0-9]{1,6}")
_ACTIONS = ("cancel", "resume")
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}
MAX_SEARCHES = 100
"""Searches in the list: each is read with its trials once after each change."""
_MAX_REPORTS = 64
"""Searches whose last rendering is kept for all viewers."""
_OWNER_TIMEOUT_S = 2.0


def is_page(path: str) -> bool:
    """True if the path is a browser's page, which a cookie opens. Never true under /v1."""
    return path in ("/", ENTRY_PATH) or path.startswith("/searches/")


def is_action(path: str) -> bool:
    """True if a POST to the path is what a button of a page does."""
    return path.startswith("/searches/") and path.rpartition("/")[2] in _ACTIONS


def wants_page(headers: Headers) -> bool:
    """True for the request of a person's browser: it asks for HTML, which programs do not."""
    return "text/html" in headers.get("accept", "")


def page_routes(handlers: RequestHandlers, sessions: Sessions, is_read_only: bool) -> list[Route]:
    """Routes of the pages, which are not part of the OpenAPI document. `is_read_only`: they change nothing."""
    pages = _Pages(handlers, sessions, is_read_only)
    routes = [
        Route("/", pages.searches),
        Route(ENTRY_PATH, pages.enter),
        Route("/searches/{search}", pages.search),
        Route("/searches/{search}/report", pages.report),
        Route("/searches/{search}/logs", pages.trials),
        Route("/searches/{search}/logs/{trial}", pages.log),
    ]
    if not is_read_only:
        routes += [Route(f"/searches/{{search}}/{action}", pages.act, methods=["POST"]) for action in _ACTIONS]
    return routes


def page_for_signed_in(path: str) -> Response:
    """Answer to a signed-in browser outside of the pages."""
    if path.startswith("/v1/") or path == "/openapi.json":
        fix = "the pages show the same; /openapi.json describes the interface to whoever has the token"
        return refusal_page(401, "For programs only", "this address needs the service's token", fix, leads_home=True)
    return refusal_page(404, "Not found", "this service has no such page", leads_home=True)


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
    def __init__(self, handlers: RequestHandlers, sessions: Sessions, is_read_only: bool):
        self._handlers = handlers
        self._sessions = sessions
        self._is_read_only = is_read_only
        self._report_of = lru_cache(_MAX_REPORTS)(live_report)
        self._searches = SearchList(handlers.ledger_url)

    def enter(self, request: Request) -> Response:
        """Exchange the key of an address for a cookie. Answers with a page instead of a redirect: after a redirect a
        browser that came from another site would not send the cookie."""
        signed_in = self._sessions.enter(request.query_params.get("key", ""))
        if signed_in is None:
            again = "An address is valid once, for ten minutes. parlay serve --page prints a new one."
            return refusal_page(401, "Sign-in address expired", again)
        page = signed_in_page("" if self._is_read_only else signed_in.action_key)
        return _html(page, 200, {"set-cookie": signed_in.set_cookie})

    @_with_error_page
    def searches(self, request: Request) -> Response:
        rows, num_older = self._searches.rows(self._handlers.stopped_searches())
        is_for_failed = request.query_params.get("show") == "failed"
        return _html(searches_page(rows, time.time(), num_older, is_for_failed))

    @_with_error_page
    def search(self, request: Request) -> Response:
        search, report = self._report(request)
        return _html(live_page(search, is_ended=report.newest().is_ended, is_read_only=self._is_read_only))

    @_with_error_page
    def report(self, request: Request) -> Response:
        """The report, with its number in a header; 204 where that is `after`. Headers say that the search has ended, or
        why nothing drives it."""
        search, report = self._report(request)
        newest = report.newest()
        headers = {"age": f"{report.age_s(newest):.0f}", "parlay-event": str(newest.seq)}
        if newest.is_ended:
            headers["parlay-ended"] = "true"
        elif (reason := self._handlers.missing_driver(search)) is not None:
            headers["parlay-stopped"] = quote(reason)
        if request.query_params.get("after") == headers["parlay-event"]:
            return Response(status_code=204, headers=_HEADERS | headers)
        return _html(newest.page, more=headers)

    @_with_error_page
    def trials(self, request: Request) -> Response:
        search = self._report(request)[0]
        return _html(trials_page(self._handlers.record(search)))

    @_with_error_page
    def log(self, request: Request) -> Response:
        """End of the log of one rank of a trial; rank 0 unless another one is named."""
        search, rank = self._report(request)[0], request.query_params.get("rank", "0")
        if not _RANK.fullmatch(rank):
            raise InputError.of("unknown_id", "not a rank", key="rank", fix="the page of the trial lists its ranks")
        return _html(log_page(self._handlers.live_log(search, request.path_params["trial"], int(rank))))

    def act(self, request: Request) -> Response:
        """Cancel or resume the search; its page shows what follows. Errors are ErrorAnswers."""
        search = _search_id(request)
        action = request.url.path.rpartition("/")[2]
        accepted = self._handlers.cancel(search) if action == "cancel" else self._handlers.resume(search)
        return JSONResponse(accepted.plain(), 202, _HEADERS)

    def _report(self, request: Request) -> tuple[str, LiveReport]:
        """Full id of the requested search, and its report."""
        journal = self._handlers.journal_path(_search_id(request))
        return journal.parent.name, self._report_of(journal)


def _search_id(request: Request) -> str:
    given: str = request.path_params["search"]
    if not _SEARCH_ID.fullmatch(given):
        fix = "the first page lists the searches"
        raise InputError.of("unknown_id", "not a search id", key="search", fix=fix)
    return given


def _html(page: Page, status: int = 200, more: dict[str, str] | None = None) -> Response:
    policy = {"content-security-policy": f"{page.policy}; frame-ancestors 'none'"}
    return HTMLResponse(page.text, status, _HEADERS | policy | (more or {}))


class SearchList:
    """The newest searches of a ledger. Thread-safe."""

    def __init__(self, ledger_url: str):
        self._url = ledger_url
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[int, SearchListRow]] = {}

    def rows(self, stopped: Mapping[str, str]) -> tuple[list[SearchListRow], int]:
        """Rows, newest first, and the number of older searches; `stopped` are reasons for missing drivers by id."""
        with self._lock, closing(LedgerReader(self._url)) as reader:
            found = reader.searches()
            rows: dict[str, tuple[int, SearchListRow]] = {}
            for each in found[:MAX_SEARCHES]:
                known = self._cached.get(each.search_id)
                if known is None or known[0] != each.last_seq:
                    owner = _owner_of(each.folder) if known is None else known[1].owner
                    known = each.last_seq, search_row(reader.search(each.search_id), owner)
                rows[each.search_id] = known
            self._cached = rows
        shown = [replace(row, stopped=stopped.get(row.search_id)) for _, row in rows.values()]
        return shown, len(found) - len(rows)


def _owner_of(folder: str | None) -> str:
    """Name of the owner of the search's folder; "" where it is unknown, or the folder does not answer."""
    if folder is None:
        return ""
    try:
        path = Path(folder)
        return result_with_timeout(submit_to_thread(path.owner, "owner"), _OWNER_TIMEOUT_S, "")
    except (OSError, KeyError):
        return ""
