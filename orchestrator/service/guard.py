"""What stands before the service: who may speak to it, how much, and one line of the log for each request."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboards.text import printable
from orchestrator.service.pages import is_page, refusal_page
from orchestrator.service.sessions import ENTRY_PATH, Sessions
from search_spaces.errors import Problem

MOST_BODY_BYTES = 2**20
_LONGEST_LOGGED = 200


@dataclass(frozen=True)
class Door:
    """Who may come in. On a unix socket the file system decides, and both are absent.

    On a port every request names one of `hosts` as it was typed (a page of another name that resolves to this machine
    does not), comes from no web page but the service's own, and shows the token; to read pages, a cookie of `sessions`
    will do.
    """

    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset()
    sessions: Sessions | None = None

    @classmethod
    def on_port(cls, token: str, port: int, page_key: str) -> Door:
        hosts = frozenset(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))
        return cls(token, hosts, Sessions(token, page_key, port))


@dataclass(frozen=True)
class _Refusal(Exception):
    status: int
    code: str
    message: str
    fix: str | None = None

    def response(self, path: str) -> Response:
        if is_page(path):
            return refusal_page(self.status, "You may not read this", self.message, self.fix)
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else None
        return error_response(self.status, Problem(self.code, self.message, fix=self.fix), headers)


class Guard:
    """ASGI: refuses what does not belong here before anything reads it. A body is whole before the service sees it."""

    def __init__(self, app: ASGIApp, door: Door, log: Callable[[str], None]):
        self._app = app
        self._door = door
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            _admit(self._door, scope, Headers(scope=scope))
            body = await _whole_body(Headers(scope=scope), receive)
            _require_json(scope["method"], Headers(scope=scope), body)
            await self._app(scope, _told_again(body, receive), noted)
        except _Refusal as refusal:
            await refusal.response(scope["path"])(scope, receive, noted)
        finally:
            path = printable(scope["path"])[:_LONGEST_LOGGED]  # without the query, and never a header
            self._log(f"{scope['method']} {path} {status} {1000 * (time.monotonic() - begun):.0f} ms")


def error_response(status: int, first: Problem, headers: Mapping[str, str] | None, *others: Problem) -> JSONResponse:
    """The contract's error object."""
    beside = {"others": [problem.to_json() for problem in others]} if others else {}
    return JSONResponse({"error": first.to_json() | beside}, status, dict(headers or {}))


def _admit(door: Door, scope: Scope, headers: Headers) -> None:
    if door.token is None:
        return
    if headers.get("host") not in door.hosts:
        raise _Refusal(403, "host", "the request names another host than this service's", "use 127.0.0.1 and its port")
    if "origin" in headers and headers["origin"] not in {f"http://{host}" for host in door.hosts}:
        raise _Refusal(403, "origin", "the request comes from a web page", "ask from a program")
    if scope["path"] == ENTRY_PATH or _is_known_browser(door, scope, headers):
        return
    given = headers.get("authorization", "").encode()
    if not hmac.compare_digest(given, f"Bearer {door.token}".encode()):
        by_browser = "open an address that parlay serve --page prints"
        fix = by_browser if is_page(scope["path"]) else "Authorization: Bearer TOKEN"
        raise _Refusal(401, "token", "the request does not show the service's token", fix)


def _is_known_browser(door: Door, scope: Scope, headers: Headers) -> bool:
    """Whether a cookie lets this request in: to read a page, and not from one that another port of this host serves."""
    if door.sessions is None or not is_page(scope["path"]) or scope["method"] not in ("GET", "HEAD"):
        return False
    is_own = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return is_own and door.sessions.holds(headers.get("cookie", ""))


async def _whole_body(headers: Headers, receive: Receive) -> bytes:
    """The body, chunked or not; _Refusal for one that is too large, as soon as that is known."""
    declared = headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MOST_BODY_BYTES:
        raise _too_large()
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += message.get("body", b"")
        if len(body) > MOST_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return body


def _too_large() -> _Refusal:
    return _Refusal(413, "too_large", f"the body is larger than {MOST_BODY_BYTES} bytes", "name files, send none")


def _require_json(method: str, headers: Headers, body: bytes) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and method == "POST" and kind != "application/json":
        raise _Refusal(415, "media_type", "the body is not JSON", "Content-Type: application/json")


def _told_again(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what else comes: that the client has gone."""
    told = False

    async def next_message() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
