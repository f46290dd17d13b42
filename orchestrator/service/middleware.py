"""Authentication, body limits and the request log of the service."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboards.access.auth import AuthPolicy, RequestRejected, last_answer
from dashboards.access.browser_sessions import ENTRY_PATH
from dashboards.text import printable
from orchestrator.config.answer import ErrorAnswer
from orchestrator.service.pages import is_action, is_page, page_for_signed_in, refusal_page, wants_page
from search_spaces.errors import Problem

_log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
MAX_LOGGED_REJECTIONS, REJECTIONS_WINDOW_S = 20, 60.0
"""Logged rejections per window of seconds; further ones are only counted."""
_MAX_LOGGED_PATH = 200


class AuthMiddleware:
    """ASGI middleware: rejects requests before anything reads them, and passes complete bodies on."""

    def __init__(self, app: ASGIApp, policy: AuthPolicy):
        self._app = app
        self._auth_policy = policy
        self._lines = _RequestLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, is_unauthenticated = time.monotonic(), 0, True

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await (last_answer(send) if is_unauthenticated else send)(message)

        try:
            self._admit(scope)
            is_unauthenticated = scope["path"] == ENTRY_PATH  # anybody may try a key
            body = await _whole_body(Headers(scope=scope), receive)
            _require_json(scope["method"], Headers(scope=scope), body)
            await self._app(scope, _replay_body(body, receive), send_and_record)
        except RequestRejected as refused:
            await self._refusal(refused, scope)(scope, receive, send_and_record)
        finally:
            path = printable(scope["path"])[:_MAX_LOGGED_PATH]  # without the query, and never a header
            line = f"{scope['method']} {path} {status} {1000 * (time.monotonic() - started):.0f} ms"
            self._lines.write(line, is_unauthenticated, time.monotonic())

    def _admit(self, scope: Scope) -> None:
        """Raise RequestRejected unless the request may be answered. Pages are read with a cookie; what they change
        needs their action key."""
        if is_action(scope["path"]) and scope["method"] == "POST" and self._auth_policy.token is not None:
            self._auth_policy.admit_action(scope)
        else:
            self._auth_policy.admit(scope, is_page(scope["path"]) and scope["method"] in ("GET", "HEAD"))

    def _refusal(self, refused: RequestRejected, scope: Scope) -> Response:
        headers, path = Headers(scope=scope), scope["path"]
        is_read = scope["method"] in ("GET", "HEAD")
        if not is_read or not (is_page(path) or wants_page(headers)):
            challenge = {"www-authenticate": "Bearer"} if refused.status == 401 else None
            return error_response(refused.status, Problem(refused.code, refused.message, fix=refused.fix), challenge)
        if refused.code == "token" and not is_page(path) and self._auth_policy.is_known_browser(headers):
            return page_for_signed_in(path)
        is_unknown = refused.status == 401
        fix = "open an address printed by parlay serve --page" if is_unknown else refused.fix
        title = "Sign-in required" if is_unknown else "Access denied"
        return refusal_page(refused.status, title, None if is_unknown else refused.message, fix)


class _RequestLog:
    """One line per request; of unauthenticated requests a limited number per minute, then their count."""

    def __init__(self) -> None:
        self._since = 0.0
        self._num_rejected = 0

    def write(self, line: str, is_unauthenticated: bool, now: float) -> None:
        if now - self._since >= REJECTIONS_WINDOW_S:
            if self._num_rejected > MAX_LOGGED_REJECTIONS:
                _log.info(f"{self._num_rejected - MAX_LOGGED_REJECTIONS} more requests were rejected")
            self._since, self._num_rejected = now, 0
        self._num_rejected += is_unauthenticated
        if not is_unauthenticated or self._num_rejected <= MAX_LOGGED_REJECTIONS:
            _log.info(line)


def error_response(status: int, first: Problem, headers: Mapping[str, str] | None, *others: Problem) -> JSONResponse:
    """The problems as an ErrorAnswer."""
    return JSONResponse(ErrorAnswer.of(first, *others).plain(), status, dict(headers or {}))


async def _whole_body(headers: Headers, receive: Receive) -> bytes:
    """Read the body, chunked or not. Raises RequestRejected as soon as it is too large."""
    declared = headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return body


def _too_large() -> RequestRejected:
    return RequestRejected(
        413, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes", "send paths of files, not their content"
    )


def _require_json(method: str, headers: Headers, body: bytes) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and method == "POST" and kind != "application/json":
        raise RequestRejected(415, "media_type", "the body is not JSON", "Content-Type: application/json")


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Receive the body as one message, then further messages such as a disconnect."""
    is_sent = False

    async def next_message() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
