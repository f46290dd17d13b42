"""Authentication of requests to a server on loopback, for the service and for MLflow's pages."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from dashboards.access.browser_sessions import ENTRY_PATH, Sessions

ACTION_HEADER = "parlay-action-key"
"""Header with the action key of a browser. A page of another origin cannot send it: browsers ask the server first."""
_SIGN_IN = "open an address printed by parlay serve --page"


@dataclass(frozen=True)
class RequestRejected(Exception):
    """Rejected request: HTTP status, code, message and fix."""

    status: int
    code: str
    message: str
    fix: str | None = None


@dataclass(frozen=True)
class AuthPolicy:
    """Rules for requests. On a unix socket the file system decides, and all fields are empty.

    On a port every request must name one of `hosts` (which stops DNS rebinding), must not come from a foreign web page,
    and must have the token, or a cookie of `sessions` where one is accepted.
    """

    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset()
    sessions: Sessions | None = None

    @classmethod
    def on_port(cls, token: str, port: int, page_key: str) -> AuthPolicy:
        hosts = frozenset(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))
        return cls(token, hosts, Sessions(token, page_key, port))

    def admit(self, scope: Scope, accepts_cookie: bool) -> None:
        """Return if the request is allowed or has the key of a sign-in address; raise RequestRejected otherwise."""
        if self.token is None:
            return
        headers = Headers(scope=scope)
        self._require_own_host(headers)
        if scope["path"] == ENTRY_PATH or (accepts_cookie and self.is_known_browser(headers)):
            return
        given = headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            raise RequestRejected(401, "token", "the request lacks the server's token", "Authorization: Bearer TOKEN")

    def admit_action(self, scope: Scope) -> None:
        """Return if a page of this server may change something by this request; raise RequestRejected otherwise.

        It needs the origin of a page of ours, the cookie, and the action key that only such a page can read.
        """
        headers = Headers(scope=scope)
        self._require_own_host(headers)
        if headers.get("origin") != f"http://{headers.get('host')}" or not self.is_known_browser(headers):
            raise RequestRejected(403, "origin", "the request does not come from a page of this server", _SIGN_IN)
        key = headers.get(ACTION_HEADER, "")
        if self.sessions is None or not self.sessions.may_act(headers.get("cookie", ""), key):
            message = "this browser may read, but not change anything: its sign-in is from before a restart"
            raise RequestRejected(403, "action_key", message, _SIGN_IN)

    def _require_own_host(self, headers: Headers) -> None:
        if headers.get("host") not in self.hosts:
            raise RequestRejected(403, "host", "the Host header is not this server's", "use 127.0.0.1 and its port")
        if "origin" in headers and headers["origin"] not in {f"http://{host}" for host in self.hosts}:
            raise RequestRejected(403, "origin", "the request comes from a foreign web page", "send it from a program")

    def is_known_browser(self, headers: Headers) -> bool:
        """True if the request has a valid cookie and does not come from a page of another port."""
        is_own = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        return is_own and self.sessions is not None and self.sessions.is_signed_in(headers.get("cookie", ""))


def last_answer(send: Send) -> Send:
    """Wrap `send` so that the answer closes the connection; a rejected client could keep it open otherwise."""

    async def send_last(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_last
